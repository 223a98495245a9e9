/**
 * A session whose shell may connect to nothing: what ax says there, and how it fetches once a person has opened the channel.
 *
 * Real daemons, the bundled CLI, and the kernel's own refusal of connect(). The genuine harnesses' sandboxes have tests of their own.
 */
import assert from 'node:assert/strict';
import { existsSync, lstatSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { BUNDLE, makeBed, sessionOf, shellOf, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import { KEYS, Terminal } from '../real/terminal.ts';
import { filtered, readOnly } from './filter.ts';
import type { Outcome } from './processes.ts';
import type { StandIn } from '../standin/spawn.ts';

const bed = makeBed();
let a: Host;
let b: Host;
before(async () => {
  [a, b] = await bed.pair();
});

const box = (host: Host): string => join(host.stateDir, 'box');

/** A session on b, attached, in a turn: what it runs is run now. */
async function attached(name: string): Promise<{ workspace: string; session: StandIn }> {
  const workspace = b.workspace(name);
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name, workspace }, sessionOf(session));
  return { workspace, session };
}

async function toFolder(workspace: string, body: string | Uint8Array): Promise<string> {
  const words = ['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', '-'];
  return String((await a.ok(words, { stdin: body }))['message_id']);
}

/** Runs a line as that session's shell tool would inside a sandbox. */
function inside(session: StandIn, words: readonly string[], how: readonly string[] = [], cwd?: string): Promise<Outcome> {
  const program = [...how, ...filtered(), process.execPath, BUNDLE];
  return b.ax(words, { program, env: shellOf(session), cwd: cwd ?? session.options.cwd });
}

/** The command of the notice that the session was sent last, as words behind `ax`. */
function told(session: StandIn): string[] {
  const line =
    session
      .all('frame')
      .at(-1)
      ?.content.split('\n')
      .find((one) => one.includes(' messages fetch ')) ?? '';
  return line.slice(line.indexOf(' messages fetch ') + 1).split(' ');
}

test('inside a sandbox every command ends with status 3 and one line that names the ways out, and none starts a daemon', async () => {
  const { session } = await attached('shut');
  const before = b.pid;
  for (const words of [
    ['messages', 'fetch', '01hq3k5r8w'],
    ['messages', 'list'],
    ['send', '--to', 'shut@hosta', 'hello'],
    ['agent', 'setup', '--name', 'shut'],
    ['host', 'list'],
    ['admin', 'status'],
    ['daemon', 'status'],
    ['daemon', 'start'],
    ['daemon', 'stop'],
    ['daemon', 'restart'],
    ['daemon', 'run'],
    ['agent', 'sandbox-fetch', 'status'],
  ]) {
    const outcome = await inside(session, words);
    assert.equal(outcome.status, 3, `${words.join(' ')}: ${outcome.stdout}${outcome.stderr}`);
    const [head, fix, ...more] = outcome.stderr.trimEnd().split('\n');
    assert.match(head ?? '', /^ax: a sandbox around this shell lets no command connect/);
    assert.match(fix ?? '', /agent allow-rules --harness claude`.*agent sandbox-fetch on`.*dangerouslyDisableSandbox$/);
    assert.deepEqual([outcome.stdout, more], ['', []], words.join(' '));
  }
  const json = await inside(session, ['messages', 'list', '--format', 'json']);
  assert.deepEqual([json.status, json.json['error']['code']], [3, 'sandboxed']);
  assert.equal(Number((await b.call('daemon.hello'))['pid']), before);
});

test('without the refusal of connect() no variable makes a shell sandboxed', async () => {
  const own = bed.host('none');
  const env = { CODEX_SANDBOX: 'seatbelt', CODEX_SANDBOX_NETWORK_DISABLED: '1', CODEX_THREAD_ID: '0b6c1a52-6f0e-4d0c-9f6e-1f2d3c4b5a69' };
  const outcome = await own.ax(['messages', 'list', '--format', 'json'], { env });
  assert.deepEqual([outcome.status, outcome.json['error']['code']], [3, 'daemon_unavailable']);
});

test('while the channel is off there is no pipe, and a notice has no code', async () => {
  const { workspace, session } = await attached('off');
  await toFolder(workspace, 'hello');
  const frame = await session.next('frame');
  assert.doesNotMatch(frame.content, /--code/);
  assert.equal(existsSync(box(b)), false);
  assert.deepEqual(await b.call('agent.sandbox_fetch'), { enabled: false, open: false, reason: null });
});

test('only a person at a terminal turns the channel on or off; a session may look', async () => {
  const { session } = await attached('asks');
  for (const words of [['on'], ['off'], ['on', '--as-owner']]) {
    const refused = await b.ax(['agent', 'sandbox-fetch', ...words], { env: shellOf(session) });
    assert.notEqual(refused.status, 0, words.join(' '));
    const piped = await b.ax(['agent', 'sandbox-fetch', ...words]);
    assert.notEqual(piped.status, 0, words.join(' '));
  }
  await assert.rejects(b.call('agent.sandbox_fetch', { set: 'on' }, sessionOf(session)), /by a person/);
  const shown = await b.ok(['agent', 'sandbox-fetch', 'status'], { env: shellOf(session) });
  assert.deepEqual([shown['type'], shown['enabled'], shown['open']], ['sandbox_fetch', false, false]);
});

test('a person at a terminal is shown what it opens, and asked; without a yes nothing changes', async (t) => {
  for (const [key, shown, isOn] of [
    [KEYS.enter, 'nothing was changed', false],
    [KEYS.left + KEYS.enter, 'on: sandboxed sessions can fetch', true],
  ] as const) {
    const terminal = new Terminal(process.execPath, [BUNDLE, 'agent', 'sandbox-fetch', 'on'], { env: b.env, cwd: b.home });
    t.after(() => terminal.kill());
    await terminal.until('Turn it on?');
    for (const words of ['Let out of the sandbox', 'Not protected', 'allow-rules']) assert.match(terminal.history(), new RegExp(words));
    terminal.type(key);
    await terminal.ended;
    assert.match(terminal.history(), new RegExp(shown));
    assert.equal((await b.call('agent.sandbox_fetch'))['enabled'], isOn);
  }
  const off = new Terminal(process.execPath, [BUNDLE, 'agent', 'sandbox-fetch', 'off'], { env: b.env, cwd: b.home });
  t.after(() => off.kill());
  assert.equal((await off.ended).status, 0, off.history());
  assert.match(off.history(), /^off: sandboxed sessions reach nothing of ax/m);
});

test('once it is on, the command of a notice fetches inside the sandbox, and the sender reads fetched', async (t) => {
  const { workspace, session } = await attached('open');
  assert.deepEqual(await b.call('agent.sandbox_fetch', { set: 'on' }), { enabled: true, open: true, reason: null });
  for (const [path, mode] of [
    [box(b), 0o700],
    [join(box(b), 'answers'), 0o700],
    [join(box(b), 'requests'), 0o200],
  ] as const)
    assert.equal(statSync(path).mode & 0o777, mode, path);
  assert.equal(lstatSync(join(box(b), 'requests')).isFIFO(), true);
  const id = await toFolder(workspace, 'come in');
  await session.next('frame');
  const words = told(session);
  assert.match(words.join(' '), new RegExp(`^messages fetch ${id} --workspace \\S+ --code [0-9a-f]{32}$`));

  // Idle: it runs no command, so somebody else asks.
  const idle = await inside(session, words);
  assert.deepEqual([idle.status, idle.stdout], [3, '']);
  assert.match(idle.stderr, /took no request .* try again\n/);
  assert.equal((await a.status(id))['state'], 'accepted');

  await session.send({ cmd: 'busy' });
  const fetched = await inside(session, words, readOnly(b.home) ?? []);
  t.diagnostic(readOnly(b.home) === undefined ? 'no read-only mounts can be made here' : 'the home was read-only');
  assert.equal(fetched.status, 0, fetched.stderr);
  assert.match(fetched.stdout, /begin ----\ncome in\n----/);
  await a.untilStatus(id, { state: 'fetched' });
  const again = await inside(session, [...words, '--format', 'json']);
  assert.deepEqual([again.json['body'], again.json['refetch'], again.json['by']], ['come in', true, 'session']);
  for (const hidden of ['code', 'kept', 'hand_out']) assert.equal(hidden in again.json, false, hidden);
  // The same line outside of a sandbox.
  assert.equal((await b.ok(words, { env: shellOf(session) }))['body'], 'come in');
});

test('all that waits can be read one after the other with the code of one notice', async () => {
  const { workspace, session } = await attached('many');
  await session.send({ cmd: 'busy' });
  const ids = [await toFolder(workspace, 'one')];
  await session.next('frame');
  for (const body of ['two', 'three']) ids.push(await toFolder(workspace, body));
  for (const id of ids) await b.untilStatus(id, { state: 'available' });
  let words = told(session);
  for (const body of ['one', 'two', 'three']) {
    const outcome = await inside(session, words);
    assert.equal(outcome.status, 0, outcome.stderr);
    assert.match(outcome.stdout, new RegExp(`begin ----\n${body}\n`));
    words = (/^next: .*? (messages fetch .*)$/m.exec(outcome.stdout)?.[1] ?? '').split(' ');
  }
  for (const id of ids) await a.untilStatus(id, { state: 'fetched' });
});

test('setup prints a command that works in the sandbox of the session', async () => {
  const workspace = b.workspace('setup');
  const session = await b.session(workspace, { autorun: false });
  await toFolder(workspace, 'waits');
  await session.next('frame');
  const done = await b.ok(['agent', 'setup', '--name', 'setup'], { env: shellOf(session), cwd: workspace });
  await session.send({ cmd: 'busy' });
  const next = String(done['next']);
  const outcome = await inside(session, next.slice(next.indexOf('messages fetch')).split(' '));
  assert.match(outcome.stdout, /begin ----\nwaits\n/, outcome.stderr);
});

test('a long body and one that is no text lie whole in a file of the owner, though the shell may write nothing', async () => {
  const { workspace, session } = await attached('long');
  await session.send({ cmd: 'busy' });
  const bodies = [Buffer.alloc(100_000, 'abcdefg '), Buffer.from([0, 1, 2, 255])];
  for (const body of bodies) {
    const id = await toFolder(workspace, body);
    await until('a notice of it', async () => told(session).includes(id) || told(session).join(' '));
    const outcome = await inside(session, told(session), readOnly(b.stateDir) ?? []);
    assert.equal(outcome.status, 0, outcome.stderr);
    const path = join(b.stateDir, 'fetched', id);
    assert.match(outcome.stdout, new RegExp(path));
    assert.equal(readFileSync(path).equals(body), true);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    await a.untilStatus(id, { state: 'fetched' });
  }
  assert.equal(statSync(join(b.stateDir, 'fetched')).mode & 0o777, 0o700);
});

test('a session gets nothing with the code of another, without one, or for another message', async () => {
  const [mine, other] = [await attached('mine'), await attached('other')];
  for (const one of [mine, other]) await one.session.send({ cmd: 'busy' });
  const id = await toFolder(mine.workspace, 'for mine');
  await mine.session.next('frame');
  const words = told(mine.session);
  const json = ['--format', 'json'];
  const [foreign, guessed] = await Promise.all([
    inside(other.session, [...words, ...json]),
    inside(mine.session, [...words.slice(0, -1), '0'.repeat(32), ...json]),
  ]);
  assert.deepEqual([foreign.status, foreign.json['error']['code']], [3, 'timeout']);
  const without = await inside(mine.session, words.slice(0, words.indexOf('--code')));
  assert.equal(without.status, 3);
  assert.match(without.stderr, /takes only the whole command of a notice/);
  assert.deepEqual([guessed.status, guessed.json['error']['code']], [3, 'timeout']);
  assert.equal((await a.status(id))['state'], 'accepted');
  assert.equal((await a.status(id))['handed_out_at'], null);
  const shortened = await inside(
    mine.session,
    words.map((word) => (word === id ? id.slice(0, 10) : word)),
  );
  assert.match(shortened.stderr, /takes only the whole id/);
});

test('the switch outlives the daemon, and off removes everything at once', async () => {
  await b.kill9();
  await b.start({ direct: true });
  assert.deepEqual(await b.call('agent.sandbox_fetch'), { enabled: true, open: true, reason: null });
  assert.deepEqual(readdirSync(join(box(b), 'answers')), []);
  const { workspace, session } = await attached('lasting');
  await session.send({ cmd: 'busy' });
  const id = await toFolder(workspace, 'later');
  await until('a notice of it', async () => told(session).includes(id) || told(session).join(' '));
  const words = told(session);
  const outcome = await inside(session, words);
  assert.match(outcome.stdout, /begin ----\nlater\n/, outcome.stderr);
  await b.call('agent.sandbox_fetch', { set: 'off' });
  assert.equal(existsSync(box(b)), false);
  const off = await inside(session, words);
  assert.equal(off.status, 3);
  assert.match(off.stderr, /^ax: a sandbox around this shell .*\)\nfix: /);
  const events = (await b.call('admin.events'))['events'] as { type: string }[];
  assert.deepEqual(
    events.map((event) => event.type).filter((type) => type.startsWith('sandbox_fetch')),
    ['sandbox_fetch.on', 'sandbox_fetch.off', 'sandbox_fetch.on', 'sandbox_fetch.off'],
  );
});
