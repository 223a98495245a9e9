/**
 * Bad input with real processes: every refusal is one line or one JSON object, with its own status, and nothing is half-done.
 *
 * What comes over the wire from strangers, broken stores and full disks stand in hostile.test.ts; limits of size in bars.test.ts.
 */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { chownSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import { BUNDLE, makeBed, sessionOf, shellOf, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';
import { ranOrSkipped } from '../ran-before.ts';
import { NotInstallable } from '../real/install.ts';
import type { StandIn } from '../standin/spawn.ts';

const bed = makeBed();
let a: Host;
let b: Host;
let shortLived: string;
before(async () => {
  [a, b] = await bed.pair();
  shortLived = String((await a.ok(['host', 'invite', '--ttl', '1s']))['code']);
});

function toFolder(workspace: string, ...more: readonly string[]): string[] {
  return ['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', ...more];
}

async function attached(name: string): Promise<{ workspace: string; session: StandIn }> {
  const workspace = b.workspace(name);
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name, workspace }, sessionOf(session));
  return { workspace, session };
}

/** Sends bytes from a's stdin to a folder of b, and waits until they are there. */
async function deliver(workspace: string, body: Uint8Array | string): Promise<string> {
  const id = String((await a.ok(toFolder(workspace, '--file', '-'), { stdin: body }))['message_id']);
  await b.untilStatus(id, { state: 'available' });
  return id;
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

test('without a daemon every command names the socket and the command that starts one, with status 3', async () => {
  const down = bed.host('down');
  for (const args of [
    ['host', 'list'],
    ['messages', 'list'],
    ['admin', 'status'],
    ['agent', 'sessions'],
    ['send', '--to', 'a@b', 'x'],
  ]) {
    const error = await down.refused(args, 'daemon_unavailable', 3);
    assert.equal(error['details']['socket'], down.socketPath);
    assert.match(error['fix'], /ax daemon start$/);
  }
  const status = await down.ax(['--format', 'json', 'daemon', 'status']);
  assert.deepEqual([status.status, status.json['running']], [3, false]);
  assert.equal((await down.ax(['daemon', 'stop'])).status, 0);
});

test('an unknown host, session, agent or id is refused as what it is', async () => {
  const workspace = b.workspace('unknown');
  await a.refused(['send', '--host', 'nobody', '--destination-workspace', workspace, '--harness', 'claude', 'x'], 'host_not_found');
  await a.refused(['agent', 'sessions', 'nobody'], 'host_not_found');
  await a.refused(['host', 'ping', 'nobody'], 'host_not_found');
  const nowhere = '00000000-0000-4000-8000-000000000000';
  await a.refused(['send', '--host', 'hostb', '--session', nowhere, '--harness', 'claude', 'x'], 'not_found');
  await a.refused(['send', '--host', 'hostb', '--session', 'not-a-uuid', '--harness', 'claude', 'x'], 'usage', 2);
  await a.refused(['send', '--to', 'nobody@hostb', 'x'], 'not_found');
  await a.refused(toFolder(workspace, '--agent', 'nobody', 'x'), 'not_found');
  for (const verb of ['show', 'fetch']) await a.refused(['messages', verb, '01hq3k5r8wzzzzzzzzzzzzzzzz'], 'message_not_found');
  await a.refused(['admin', 'cancel', '01hq3k5r8wzzzzzzzzzzzzzzzz'], 'message_not_found');
  await a.refused(['messages', 'show', 'what?'], 'usage', 2);
  await a.refused(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'cursor', 'x'], 'usage', 2);
  assert.equal((await a.ok(['messages', 'list', '--sent', '--all']))['messages'].length, 0);
});

test('an empty body, a missing file and two bodies are refused before anything is stored', async () => {
  const workspace = b.workspace('empty');
  await a.refused(toFolder(workspace, ''), 'usage', 2);
  await a.refused(toFolder(workspace), 'usage', 2, { stdin: '' });
  await a.refused(toFolder(workspace, '--file', '/dev/null'), 'invalid_argument');
  await a.refused(toFolder(workspace, '--file', join(a.home, 'no-such-file')), 'not_found');
  await a.refused(toFolder(workspace, '--file', a.home), 'invalid_argument');
  await a.refused(toFolder(workspace, '--message', 'x', 'y'), 'usage', 2);
  await a.refused(toFolder(workspace, '--deadline', 'soon', 'x'), 'usage', 2);
  await a.refused(toFolder(workspace, '--deadline', '100d', 'x'), 'invalid_argument');
  await a.refused(toFolder(workspace, '--request-id', 'no spaces', 'x'), 'usage', 2);
  const sent = (await a.ok(['messages', 'list', '--sent', '--all', '--limit', '500']))['messages'] as Json[];
  assert.deepEqual(
    sent.filter((row) => row['workspace'] === workspace),
    [],
  );
});

test('names with control characters, and names that mean this host, are refused', async () => {
  const workspace = b.workspace('names');
  const session = await b.session(workspace, { autorun: false });
  for (const name of ['a\u001b[31m', 'two words', 'localhost', '', `${'n'.repeat(65)}`, 'a\u202eb']) {
    const error = await b.refused(['agent', 'setup', '--name', name, '--workspace', workspace], 'usage', 2, {
      env: shellOf(session),
      cwd: workspace,
    });
    // eslint-disable-next-line no-control-regex
    assert.equal(/[\u0000-\u001f\u202e]/.test(String(error['message'])), false);
    await a.refused(['host', 'rename', 'hostb', name], 'usage', 2);
  }
  assert.equal((await b.ok(['agent', 'list']))['agents'].filter((row: Json) => row['workspace'] === workspace).length, 0);
  for (const odd of ['with $(id)', 'with `id`', 'with <x>']) {
    const path = b.workspace(odd);
    const there = await b.session(path, { autorun: false });
    await b.refused(['agent', 'setup', '--name', 'odd', '--workspace', path], 'invalid_argument', 1, { env: shellOf(there), cwd: path });
  }
});

test('a workspace that does not exist is refused at once on this host, and by the receiver on another', async () => {
  await a.refused(['send', '--host', 'Localhost', '--destination-workspace', '/no/such/folder', '--harness', 'claude', 'x'], 'not_found');
  await a.refused(toFolder('relative/path', 'x'), 'usage', 2);
  const queued = await a.ok(toFolder('/no/such/folder', 'x'));
  const status = await a.untilStatus(String(queued['message_id']), { state: 'refused' });
  assert.deepEqual([status['cause']['code'], status['uncertain']], ['not_found', false]);
  await b.refused(['admin', 'status', String(queued['message_id'])], 'message_not_found');
  await a.refused(toFolder('/no/such/folder', '--wait', 'accepted', 'x'), 'not_found');
  assert.match((await a.ax(['admin', 'status', String(queued['message_id'])])).stdout, /refused[\s\S]*cause: /);
});

test('the address of a folder is its real path, whatever was typed', async () => {
  const { workspace, session } = await attached('real');
  const link = join(b.home, 'link');
  symlinkSync(workspace, link);
  const id = await deliver(`${link}/./`, 'through a link');
  assert.equal((await b.status(id))['destination']['workspace'], workspace);
  assert.equal(
    (await b.ok(['messages', 'fetch', id, '--workspace', link], { env: shellOf(session), cwd: workspace }))['body'],
    'through a link',
  );
  const inner = b.workspace('real/inner');
  const nested = String((await a.ok(toFolder(inner, 'another address')))['message_id']);
  await b.untilStatus(nested, { state: 'awaiting_setup' });
});

test('a body that is not UTF-8 arrives as the bytes it was', async () => {
  const { workspace, session } = await attached('bytes');
  const body = Buffer.from([0x66, 0xff, 0xfe, 0x00, 0x80, 0xc3, 0x28, 0x0a, 0xed, 0xa0, 0x80, 0x1b, 0x5b, 0x32, 0x4a]);
  const id = await deliver(workspace, body);
  const env = shellOf(session);
  const fetched = await b.ok(['messages', 'fetch', id], { env, cwd: workspace });
  assert.deepEqual(
    [fetched['encoding'], fetched['sha256'], fetched['body'], fetched['bytes']],
    ['base64', sha256(body), undefined, body.length],
  );
  assert.deepEqual(Buffer.from(String(fetched['body_base64']), 'base64'), body);
  const human = await b.ax(['messages', 'fetch', id], { env, cwd: workspace });
  const kept = join(b.stateDir, 'fetched', id);
  assert.ok(human.stdout.includes(`\nbody: ${body.length} bytes, sha256 ${sha256(body)}, in ${kept}\n`), human.stdout);
  assert.doesNotMatch(human.stdout, /\\x/);
  assert.deepEqual(readFileSync(kept), body);
  const file = join(workspace, 'ax-body.bin');
  await b.ok(['messages', 'fetch', id, '--output', file], { env, cwd: workspace });
  assert.deepEqual(readFileSync(file), body);
});

test('a body given as one word, long and with a slash in front, arrives whole and as it was typed', async () => {
  const { workspace, session } = await attached('words');
  const body = `/c/${'x'.repeat(100_000)} \\ "$HOME" %PATH% end`; // more than other ways to start a program pass on
  const id = String((await a.ok(toFolder(workspace, body)))['message_id']);
  await b.untilStatus(id, { state: 'available' });
  const fetched = await b.ok(['messages', 'fetch', id], { env: shellOf(session), cwd: workspace });
  assert.equal(fetched['body'], body);
});

test('in a user namespace of its own, as in a rootless container, a command is the same user or is told why it is not', async (t) => {
  await ranOrSkipped(t, { kind: 'user namespaces', file: 'badinput', name: 'rootless' }, async () => {
    const enter = ['unshare', '--user', '--map-root-user'];
    if ((await a.ax(['-c', 'true'], { program: [...enter, 'sh'] })).status !== 0) throw new NotInstallable('no user namespaces here');
    const program = [...enter, process.execPath, BUNDLE];
    assert.equal((await a.ok(['host', 'list'], { program }))['ok'], true);
    const sent = await a.ok(toFolder(b.workspace('rootless'), 'from within'), { program });
    await a.untilStatus(String(sent['message_id']), { state: 'accepted' });
    // The state folder of somebody whom the namespace does not know looks like nobody's.
    const other = bed.host('other');
    mkdirSync(other.stateDir, { recursive: true, mode: 0o700 });
    if (process.getuid?.() !== 0) return;
    chownSync(other.stateDir, 4242, 4242);
    const refused = await other.ax(['--format', 'json', 'daemon', 'run'], { program });
    assert.deepEqual([refused.json['ok'], refused.status], [false, 1], refused.stdout);
    assert.match(refused.json['error'].message, /belongs to another user|the state folder .* cannot be made \(E(PERM|ACCES)\)/);
  });
});

test('a body of 1 MiB arrives whole; people are shown its head and given the whole in a file of their own', async () => {
  const { workspace, session } = await attached('mebibyte');
  const body = randomBytes(MAX_PIECE_BYTES / 2).toString('hex');
  const id = await deliver(workspace, body);
  const env = shellOf(session);
  const fetched = await b.ok(['messages', 'fetch', id], { env, cwd: workspace });
  assert.equal(fetched['body'], body);
  assert.equal(fetched['sha256'], sha256(Buffer.from(body)));
  const human = await b.ax(['messages', 'fetch', id], { env, cwd: workspace });
  assert.equal(human.stdout.length < 8192, true);
  const path = /bytes \(sha256 ([0-9a-f]{64})\) are in (\/\S+)/.exec(human.stdout);
  assert.equal(path?.[1], sha256(Buffer.from(body)));
  assert.equal(readFileSync(path?.[2] ?? '', 'utf8'), body);
  assert.equal(statSync(path?.[2] ?? '').mode & 0o777, 0o600);
  await a.untilStatus(id, { state: 'fetched' });
});

test('a reader that closes the output early has not fetched, in every format', async () => {
  const { workspace, session } = await attached('early');
  const env = shellOf(session);
  for (const [format, body] of [
    ['json', 'x'.repeat(300_000)],
    ['human', 'y'.repeat(12_000)],
    ['human', 'short'],
    ['csv', 'z'.repeat(300_000)],
  ] as const) {
    const id = await deliver(workspace, body);
    const line = `"$0" "$1" --format ${format} messages fetch ${id} | head -c1 >/dev/null; exit \${PIPESTATUS[0]}`;
    const outcome = await b.ax(['-c', line, process.execPath, BUNDLE], { env, cwd: workspace, program: ['bash'] });
    assert.equal(outcome.status, 1, `${format}: ${outcome.stderr}`);
    assert.match(outcome.stderr, /does not count as fetched/);
    const status = await b.status(id);
    assert.deepEqual([status['state'], status['fetched_at']], ['available', null], format);
    assert.notEqual(status['handed_out_at'], null);
    assert.equal((await b.ok(['messages', 'fetch', id], { env, cwd: workspace }))['refetch'], true);
  }
});

test("--output of an agent's shell makes a new, visible file in its workspace, of its own form of name, and nothing else", async () => {
  const { workspace, session } = await attached('output');
  const id = await deliver(workspace, 'alias ls=evil');
  const env = shellOf(session);
  const taken = join(workspace, 'taken');
  writeFileSync(taken, 'mine');
  for (const file of [
    join(b.home, 'outside'),
    join(workspace, '.bashrc'),
    taken,
    join(workspace, '..', 'ax-up.txt'),
    join(workspace, 'AGENTS.md'),
  ]) {
    await b.refused(['messages', 'fetch', id, '--workspace', workspace, '--output', file], 'invalid_argument', 1, { env, cwd: workspace });
  }
  assert.equal(readFileSync(taken, 'utf8'), 'mine');
  assert.deepEqual([(await b.status(id))['state'], (await b.status(id))['handed_out_at']], ['available', null]);
});

test("an agent's shell changes nobody's trust unless the owner said so", async () => {
  const { session, workspace } = await attached('trust');
  const env = shellOf(session);
  for (const args of [
    ['host', 'invite'],
    ['host', 'join', 'ax1-x'],
    ['host', 'remove', 'hosta'],
    ['host', 'rename', 'hosta', 'x'],
  ]) {
    const error = await b.refused(args, 'invalid_state', 1, { env, cwd: workspace });
    assert.match(String(error['fix']), /--as-owner/);
  }
  assert.equal((await b.ok(['host', 'invite', '--as-owner'], { env, cwd: workspace }))['type'], 'host_invite');
});

test('an invite works once, for one host, within its time, and only whole', async () => {
  const third = await bed.running('hostc');
  await third.refused(['host', 'join', shortLived], 'expired');
  const code = String((await a.ok(['host', 'invite']))['code']);
  await third.refused(['host', 'join', code.slice(0, -8)], 'invalid_argument');
  await third.refused(['host', 'join', 'ax1-nonsense'], 'invalid_argument');
  await third.refused(['host', 'join', '-'], 'usage', 2, { stdin: '\n' });
  await a.refused(['host', 'join', code], 'invalid_argument');
  const used = String((await a.ok(['host', 'invite']))['code']);
  await third.ok(['host', 'join', used]);
  await third.ok(['host', 'join', used]); // the answer of the first may have been lost
  const fourth = await bed.running('hostd');
  await fourth.refused(['host', 'join', used], 'invalid_state');
  assert.equal((await fourth.ok(['host', 'list']))['hosts'].length, 0);
  assert.equal((await a.ok(['host', 'list']))['hosts'].length, 2);
  await a.stop();
  const away = await fourth.refused(['host', 'join', code], 'unavailable');
  assert.match(String(away['message']), /was not reached at \/ip4\/127\.0\.0\.1\/tcp\/\d+/);
  await a.start();
  await fourth.ok(['host', 'join', code]);
});

test('a host with mail waiting is not removed unasked, and a removed one knows that it is not trusted', async () => {
  const other = await bed.running('hoste');
  await other.ok(['host', 'join', '-'], { stdin: String((await a.ok(['host', 'invite']))['code']) });
  await until('both up', async () => ((await a.ok(['host', 'show', 'hoste']))['state'] === 'up' ? true : 'not up'));
  await other.ok(['host', 'remove', 'hosta']);
  const id = String(
    (await a.ok(['send', '--host', 'hoste', '--destination-workspace', other.workspace('w'), '--harness', 'claude', 'x']))['message_id'],
  );
  const status = await a.untilStatus(id, { state: 'deferred' });
  assert.equal(status['cause']['code'], 'untrusted_peer');
  const refusal = await a.refused(['host', 'remove', 'hoste'], 'invalid_state');
  assert.equal(refusal['details']['pending'], 1);
  // Trusted again, the message moves without another send.
  await other.ok(['host', 'add', 'hosta', `${a.listen[0]}/p2p/${a.hostId}`]);
  await a.untilStatus(id, { state: 'accepted' });
});
