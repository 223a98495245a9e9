/**
 * What surrounds a command: a working directory that is gone or unnameable, a daemon of another user, silent, full or about to end.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chownSync, mkdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { asConnectError, exitOf } from '../../cli/client.ts';
import { readEnvironment } from '../../cli/environment.ts';
import { AxError } from '../../protocol/errors.ts';
import { CLAUDE_SHELL, HOST_ID, ID, MAIN, outcomeOf, scripted } from './scripted.ts';
import type { Outcome, Scripted } from './scripted.ts';

const QUEUED = {
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

/** Runs a line in a folder that is removed first, as a shell that stood in it would. */
function inGoneFolder(rig: Scripted, words: readonly string[], env: Record<string, string> = {}): Promise<Outcome> {
  const gone = join(rig.folder, 'gone');
  mkdirSync(gone);
  const child = spawn('bash', ['-c', 'cd "$1" && rmdir "$1" && shift && exec "$0" "$@"', process.execPath, gone, MAIN, ...words], {
    env: { PATH: process.env['PATH'] ?? '', HOME: rig.folder, AX_STATE_DIR: rig.stateDir, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  return outcomeOf(child);
}

test('a working directory that is gone or has an unseen character fails only what needs the local workspace', async (t) => {
  const rig = await scripted(t, {
    'host.list': () => ({ hosts: [] }),
    'message.list': () => ({ messages: [], scope: 'x' }),
    'message.send': () => QUEUED,
    'message.fetch': () => Promise.reject(new AxError('message_not_found', 'none')),
  });
  const odd = join(rig.folder, 'od\u200bd');
  mkdirSync(odd);
  const places = [(words: readonly string[]) => inGoneFolder(rig, words), (words: readonly string[]) => rig.ax(words, { cwd: odd })];
  for (const run of places) {
    for (const words of [
      ['host', 'list'],
      ['messages', 'list', '-a'],
      ['messages', 'list', '--workspace', '/'],
      ['send', '--to', 'b@hostb', 'hi'],
    ]) {
      rig.asked.length = 0;
      const { code, stderr } = await run(words);
      assert.deepEqual([code, stderr], [0, ''], words.join(' '));
      assert.equal(rig.asked[0]!.actor.origin.workspace, null);
      if (words[0] === 'send') assert.equal(rig.asked[0]!.params['local_workspace'], null);
    }
    for (const words of [
      ['messages', 'list'],
      ['messages', 'list', '--sent'],
    ]) {
      const { code, stderr } = await run(words);
      assert.equal(code, 1);
      assert.match(stderr, /^ax: the working directory is gone, or .*: it is no workspace\nfix: .*-a or --workspace DIR\n$/);
    }
    assert.equal((await run(['messages', 'fetch', ID, '--output', join(rig.workspace, 'x')])).code, 1);
    assert.equal(rig.asked.at(-1)?.method, 'message.fetch');
  }
  const relative = await inGoneFolder(rig, ['--state-dir', 'state', 'host', 'list']);
  assert.deepEqual([relative.code, relative.stderr], [1, 'ax: the working directory is gone: give state as an absolute path\n']);
  const setup = await inGoneFolder(rig, ['agent', 'setup', '--name', 'x'], CLAUDE_SHELL);
  assert.match(setup.stderr, /it is no workspace\nfix: .*add --workspace DIR\n$/);
  assert.equal((await rig.json(['host', 'list', '--local-workspace', odd])).value['error'].code, 'invalid_argument', 'one that was named');
});

test('the socket of another user is told as that, and nothing is started in its place', async (t) => {
  const rig = await scripted(t);
  const isRoot = process.getuid?.() === 0;
  const folder = isRoot ? join(rig.folder, 'other') : '/';
  if (isRoot) {
    mkdirSync(folder, { mode: 0o700 });
    chownSync(folder, 4242, 4242);
  }
  const environment = { ...readEnvironment({ stateDir: rig.stateDir }), socketPath: join(folder, 'control.sock') };
  const error = asConnectError(environment, Object.assign(new Error('no'), { code: 'EACCES' }));
  assert.deepEqual([error.code, exitOf(error), error.details?.['owner_uid']], ['daemon_unavailable', 3, isRoot ? 4242 : 0]);
  assert.match(error.message, /control\.sock belongs to another user \(uid \d+\)$/);
  assert.doesNotMatch(error.fix ?? '', /daemon start/);
});

test("this host's own daemon that ends, is full or stays silent is status 3; the same of a peer is 1", async (t) => {
  const ending = (): never => {
    throw new AxError('shutting_down', 'it stops');
  };
  const rig = await scripted(t, {
    'host.list': ending,
    'host.join': ending,
    'host.ping': () => Promise.reject(new AxError('timeout', 'hostb gave no answer')),
    'message.show': () => Promise.reject(new AxError('limit', 'too many wait there')),
  });
  for (const [words, code, exit] of [
    [['host', 'list'], 'shutting_down', 3],
    [['host', 'join', '-'], 'shutting_down', 1],
    [['host', 'ping', 'hostb'], 'timeout', 1],
    [['messages', 'show', ID], 'limit', 1],
  ] as const) {
    const failed = await rig.json(words, { input: 'code\n' });
    assert.deepEqual([failed.code, failed.value['error'].code], [exit, code], words.join(' '));
  }
  const silent = await scripted(t);
  const server = createServer((socket) => socket.resume()).listen(join(silent.stateDir, 'control.sock'));
  silent.ends.push(async () => server.close());
  const status = await silent.json(['daemon', 'status']);
  assert.deepEqual([status.code, status.value['error'].code], [3, 'timeout']);
});
