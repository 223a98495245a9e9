/**
 * After a message is stored: whatever fails then, a person and a script are told that it was sent, as what, and how to ask again.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';
import type { QueuedMessage } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { HOST_ID, ID, MAIN, outcomeOf, scripted } from './scripted.ts';
import type { Outcome, Scripted } from './scripted.ts';

const QUEUED: QueuedMessage = {
  message_id: ID,
  destination: { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app', session_id: null },
  kind: 'message',
  state: 'queued',
  stored_as: null,
  live_session: null,
  from: { host: 'hosta', agent: 'builder' },
  replayed: false,
  notes: [],
};
const STATUS = { message_id: ID, live_session: null, stored_as: null, cause: null };

test('every failure after a message is stored carries its id, its state, the request id and the line that repeats it', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED });
  const failures: readonly (readonly [string, string, number, () => object])[] = [
    ['shutting_down', 'queued', 3, () => Promise.reject(new AxError('shutting_down', 'the daemon is stopping'))],
    ['internal', 'queued', 1, () => Promise.reject(new Error('boom'))],
    ['wait_timeout', 'deferred', 1, () => ({ ...STATUS, state: 'deferred', reached: false })],
    ['expired', 'expired', 1, () => ({ ...STATUS, state: 'expired', reached: false })],
  ];
  for (const [code, state, exit, wait] of failures) {
    rig.answers = { ...rig.answers, 'message.wait': wait };
    rig.asked.length = 0;
    const line = ['send', '--to', 'b@hostb', '--wait', 'fetched', '--timeout', '60ms', 'hi'];
    const failed = await rig.json(line);
    const { error } = failed.value as { error: { code: string; message: string; details: Record<string, string> } };
    const key = String(rig.asked.find((entry) => entry.method === 'message.send')?.params['request_id']);
    assert.deepEqual([failed.code, error.code], [exit, code]);
    const { message_id, state: told, request_id, retry } = error.details;
    assert.deepEqual([message_id, told, request_id], [ID, state, key], code);
    assert.match(String(retry), new RegExp(` send --to b@hostb --wait fetched --timeout 60ms hi --format json --request-id ${key}$`));
    assert.match(error.message, new RegExp(`^${ID} (is|was) ${state}\\b`));
    const human = await rig.ax(line);
    assert.match(human.stdout, new RegExp(`^${state}  ${ID}`));
    // What has ended for good is not worth a repetition.
    assert.equal(human.stderr.includes('\nretry: '), code !== 'expired', human.stderr);
  }
});

test('a daemon that stops during the wait leaves the id and the line to repeat', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED });
  const end = rig.ends.pop()!;
  rig.answers = { ...rig.answers, 'message.wait': () => new Promise<object>(() => void end()) };
  const { code, value } = await rig.json(['send', '--to', 'b@hostb', '--wait', 'accepted', 'hi']);
  assert.deepEqual([code, value['error'].code, value['error'].details.message_id], [3, 'daemon_unavailable', ID]);
  assert.match(String(value['error'].details.retry), /--request-id/);
});

function shell(rig: Scripted, line: string): Promise<Outcome> {
  const env = { PATH: process.env['PATH'] ?? '', HOME: rig.folder, AX_STATE_DIR: rig.stateDir };
  return outcomeOf(spawn('bash', ['-c', line, process.execPath, MAIN], { cwd: rig.workspace, env, stdio: ['ignore', 'pipe', 'pipe'] }));
}

test('an answer that cannot be printed says on stderr that the message was stored, as what, and how to ask for it', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED, 'message.reply': () => QUEUED });
  const check = ({ code, stderr }: Outcome, why: string): void => {
    assert.equal(code, 1);
    const said = `^ax: the message is queued as ${ID}: it was sent, but the output could not be written \\(${why}\\); do not send it again\\n`;
    assert.match(stderr, new RegExp(`${said}fix: \\S+ --state-dir \\S+ admin status ${ID}\\n$`));
  };
  for (const words of ['send --to b@hostb hi', `messages reply ${ID} hi`, 'send --to b@hostb hi --format json'])
    check(await shell(rig, `"$0" "$1" ${words} >/dev/full`), 'ENOSPC');
  const closed = Promise.withResolvers<void>();
  rig.answers = { 'message.send': () => closed.promise.then(() => QUEUED) };
  const child = rig.start(['send', '--to', 'b@hostb', 'hi']);
  child.stdout!.once('close', () => closed.resolve()).destroy();
  check(await outcomeOf(child), 'EPIPE');
});

test('a failed wait whose answer cannot be printed either is told whole on stderr, and nothing crashes', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED, 'message.wait': () => ({ ...STATUS, state: 'deferred', reached: false }) });
  const json = await shell(rig, `"$0" "$1" send --to b@hostb --wait fetched --timeout 60ms hi --format json >/dev/full`);
  assert.equal(json.code, 1);
  assert.match(
    json.stderr,
    new RegExp(`^ax: ${ID} is deferred, not fetched, after 60 ms; it stays on its way\\nfix: .*\\nretry: .*--request-id`),
  );
  const human = await shell(rig, `"$0" "$1" send --to b@hostb --wait fetched --timeout 60ms hi >/dev/full`);
  assert.equal(human.code, 1);
  assert.match(human.stderr, new RegExp(`^ax: the message is deferred as ${ID}: it was sent`));
});

test('any other answer that cannot be printed is one line and status 1', async (t) => {
  const rig = await scripted(t, { 'host.list': () => ({ hosts: [] }) });
  for (const words of ['host list', 'host list --format json', '--help'])
    assert.deepEqual(await shell(rig, `"$0" "$1" ${words} >/dev/full`), {
      code: 1,
      stdout: '',
      stderr: 'ax: the output could not be written (ENOSPC)\n',
    });
});

test('of a note nobody is promised to be told, and a message for whom no session lives there says so, for either harness', async (t) => {
  const rig = await scripted(t, {});
  for (const state of ['queued', 'accepted', 'available'] as const)
    for (const more of [{ kind: 'note' }, { stored_as: 'note' }] as const) {
      rig.answers = { 'message.send': () => ({ ...QUEUED, state, live_session: true, ...more }) };
      const { stdout } = await rig.ax(['send', '--to', 'b@hostb', '--note', 'hi']);
      assert.match(stdout, /at the next look there[;,] (and )?no session is told/, state);
      assert.doesNotMatch(stdout, /session there is told/);
    }
  for (const harness of ['claude', 'codex']) {
    const line = ['send', '--host', 'hostb', '--destination-workspace', '/srv/app', '--harness', harness, 'hi'];
    for (const state of ['accepted', 'awaiting_setup'] as const)
      for (const live of [false, true, null]) {
        const destination = { ...QUEUED.destination, harness };
        rig.answers = { 'message.send': () => ({ ...QUEUED, state, destination, live_session: live }) };
        const { stdout, stderr } = await rig.ax(line);
        assert.equal(stderr, '');
        assert.equal(stdout.includes(`No session of ${harness} that can be told lives there now.`), live === false, stdout);
      }
  }
});

test('a repeated request is told in the words of the first', async (t) => {
  const notes = ['sent as the owner of this host: nobody can reply to it'];
  const from = { host: 'hosta', agent: null };
  const rig = await scripted(t, {
    'message.send': (_params, nth) => (nth === 0 ? { ...QUEUED, from, notes } : { ...QUEUED, from, replayed: true }),
  });
  const [first, second] = [await rig.ax(['send', '--to', 'b@hostb', 'hi']), await rig.ax(['send', '--to', 'b@hostb', 'hi'])];
  assert.equal(second.stderr, first.stderr);
  assert.equal(second.stdout.replace(/ {2}\(the same request.*\)/, ''), first.stdout);
});

test('where several sessions could be meant the fix is the typed line with one of them, ready to run', async (t) => {
  const [one, two] = ['0b6c1a52-6f0e-4d0c-9f6e-1f2d3c4b5a69', '1b6c1a52-6f0e-4d0c-9f6e-1f2d3c4b5a69'];
  const details = { candidates: [`${one} (idle, builder)`, `${two} (busy)`] };
  const refusal = (): never => {
    throw new AxError('ambiguous_destination', '2 live sessions could be meant', { fix: 'name one: --session UUID', details });
  };
  const rig = await scripted(t, { 'message.send': refusal });
  const state = `--state-dir ${rig.stateDir}`;
  const named = `--host hostb --harness claude --session ${one}`;
  for (const [words, line] of [
    [['--to', 'builder@hostb', 'it is'], `${named} 'it is' --format json`],
    [['--to=builder@hostb', 'hi'], `${named} hi --format json`],
    [['--host', 'hostb', '--harness', 'claude', '--destination-workspace', '/srv/app', 'hi'], `${named} hi --format json`],
  ] as const) {
    const { value } = await rig.json(['--state-dir', rig.stateDir, 'send', ...words]);
    const fix = String(value['error'].fix);
    assert.equal(fix.slice(fix.indexOf('--state-dir')), `${state} send ${line}`);
    assert.match(fix, /^name the one you mean, as here the first: \S+\/ax --state-dir /);
    assert.deepEqual(value['error'].details.candidates, details.candidates);
  }
});

test('what was said twice or not at all in a destination is named', async (t) => {
  const rig = await scripted(t, {});
  const said = async (...args: string[]): Promise<string> => (await rig.ax(['send', 'hi', ...args])).stderr;
  assert.match(await said('--to', 'a@b', '--host', 'c'), /^ax: .*--to NAME@HOST or --host HOST, not both\n/);
  const both = ['--host', 'c', '--harness', 'claude', '--session', 'u', '--destination-workspace', '/x'];
  assert.match(await said(...both), /^ax: .*--session UUID or --destination-workspace DIR, not both\n/);
  assert.match((await rig.ax(['send', '--to', 'a@b', '--file', ''])).stderr, /^ax: --file needs the path of a file\n/);
  for (const flag of ['--deadline', '--retention'])
    for (const value of ['0', '999ms'])
      assert.match(await said('--to', 'a@b', flag, value), new RegExp(`^ax: ${flag} takes a span of at least 1 s with its unit`));
  assert.match((await rig.ax(['host', 'invite', '--ttl', '0'])).stderr, /^ax: --ttl takes a span of at least 1 s with its unit/);
  assert.equal(rig.asked.length, 0);
});
