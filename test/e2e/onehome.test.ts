/**
 * One daemon, one home: of two that begin at once one serves, a stopped one is neither robbed nor waited for without end, and what an ended
 * one left behind is nobody's order to signal or to refuse. What the lock alone does is in test/daemon/lock.test.ts.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, lstatSync, mkdirSync, readFileSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { connectControl } from './client.ts';
import { LIMIT_MS, makeBed, ROOT, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import { isAlive, killGroup, launch } from './processes.ts';

const TRIES = 50;
const DAEMON = join(ROOT, 'dist', 'daemon.mjs');
const LISTEN = ['--listen', '/ip4/127.0.0.1/tcp/0'];

interface Contender {
  readonly pid: number;
  /** `ready` at its ready line; else what it answered before it ended. */
  readonly outcome: Promise<string>;
  readonly ended: Promise<unknown>;
}

function contend(host: Host, t: TestContext): Contender {
  const child = launch(process.execPath, [DAEMON, '--state-dir', host.stateDir, ...LISTEN, '--format', 'json'], {
    env: host.env,
    cwd: host.home,
    stdin: 'ignore',
  });
  const ended = new Promise((resolve) => child.once('close', resolve));
  t.after(() => (child.exitCode === null && child.signalCode === null ? killGroup(child.pid ?? 0) : undefined));
  child.stderr?.resume();
  const outcome = new Promise<string>((resolve) => {
    let text = '';
    child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
      if (!text.includes('\n')) return;
      const said = JSON.parse(text.slice(0, text.indexOf('\n'))) as { type: string; error?: { code: string; message: string } };
      resolve(said.type === 'daemon_ready' ? 'ready' : `${said.error?.code}: ${said.error?.message}`);
    });
    void ended.then(() => resolve(`ended without a word: ${text}`));
  });
  return { pid: child.pid ?? 0, outcome, ended };
}

/** Which daemon answers, asked over a connection of its own. */
async function hello(host: Host): Promise<{ readonly pid: number; readonly host_id: string }> {
  const client = await connectControl(host.socketPath);
  try {
    return await client.call('daemon.hello');
  } finally {
    await client.close();
  }
}

/** Resolves when a process is in a state of the letters given. */
async function untilState(pid: number, letters: RegExp): Promise<void> {
  await until(`process ${pid} in a state of ${letters.source}`, async () => {
    const state = /\) ([A-Za-z])/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1'))?.[1] ?? '';
    return letters.test(state) || state;
  });
}

test(`of two daemons that begin at once on one folder exactly one serves, ${TRIES} times, each time over what a kill -9 left`, async (t) => {
  const host = makeBed(t).host('hosta');
  let hostId = '';
  for (let i = 0; i < TRIES; i++) {
    const both = [contend(host, t), contend(host, t)];
    const outcomes = await Promise.all(both.map((one) => one.outcome));
    const winner = outcomes.indexOf('ready');
    const [won, lost] = [both[winner], both[1 - winner]];
    assert.ok(won !== undefined && lost !== undefined, outcomes.join(' | '));
    assert.match(outcomes[1 - winner] ?? '', /^invalid_state: another daemon holds this directory/, `try ${i}`);
    await lost.ended;
    const answer = await hello(host);
    assert.deepEqual([answer.pid, answer.host_id], [won.pid, hostId === '' ? answer.host_id : hostId]);
    hostId = answer.host_id;
    process.kill(won.pid, 'SIGKILL');
    await won.ended;
  }
});

test('a daemon that is stopped by a signal keeps its folder: starts, commands and stop end within their time and say which process it is', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const { pid } = host;
  process.kill(pid, 'SIGSTOP');
  await untilState(pid, /[Tt]/);
  const began = performance.now();
  const started = await host.ax(['--format', 'json', 'daemon', 'start', ...LISTEN]);
  assert.equal(started.status, 3, started.stdout);
  assert.equal(started.json['error']['code'], 'timeout');
  const direct = contend(host, t);
  assert.match(await direct.outcome, new RegExp(`another daemon holds this directory \\(process ${pid}\\)`));
  const stopping = await host.ax(['--format', 'json', 'daemon', 'stop']);
  assert.deepEqual([stopping.status, stopping.json['error']['code']], [3, 'timeout']);
  for (const told of [started, stopping]) {
    const { message, fix } = told.json['error'] as { message: string; fix: string };
    assert.match(message, new RegExp(`process ${pid}\\) is suspended`));
    assert.equal(fix, `kill -CONT ${pid}`);
  }
  assert.equal(performance.now() - began < LIMIT_MS, true);
  await untilState(pid, /[Tt]/); // nobody woke or ended it
  process.kill(pid, 'SIGCONT');
  await until('the daemon to answer again', async () => (await host.ax(['daemon', 'status'])).status === 0 || 'no answer');
  assert.equal((await hello(host)).pid, pid);
});

test('stale files of an ended daemon stop no start, and a process that has its number now is not signalled', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const { hostId } = host;
  await host.kill9();
  assert.equal(lstatSync(host.socketPath).isSocket(), true); // left behind
  const bystander = spawn(
    process.execPath,
    [
      '-e',
      'for (const s of ["SIGTERM", "SIGINT", "SIGHUP", "SIGCONT"]) process.on(s, () => process.exit(9)); process.stdout.write("on\\n"); setInterval(() => {}, 1000)',
    ],
    {
      stdio: ['ignore', 'pipe', 'ignore'],
    },
  );
  t.after(() => bystander.kill('SIGKILL'));
  await once(bystander.stdout, 'data');
  const lock = join(host.stateDir, 'daemon.lock');
  writeFileSync(lock, `${bystander.pid}\n`);
  for (const name of ['daemon.pid', 'ax.pid']) writeFileSync(join(host.stateDir, name), `${bystander.pid}\n`);
  assert.match((await host.ax(['daemon', 'stop'])).stdout, /was not running/);
  await host.start();
  assert.equal(host.hostId, hostId);
  assert.equal(readFileSync(lock, 'latin1').split('\n')[0], String(host.pid));
  host.pid = Number((await host.ok(['daemon', 'restart']))['pid']);
  assert.deepEqual([bystander.exitCode, bystander.signalCode, isAlive(bystander.pid ?? 0)], [null, null, true]);
});

test('a file in the place of the socket is not removed, and the start says which', async (t) => {
  const host = makeBed(t).host('hosta');
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  writeFileSync(host.socketPath, 'no socket');
  const refused = contend(host, t);
  assert.match(await refused.outcome, /^(invalid_state|internal): .*control\.sock/);
  assert.equal(readFileSync(host.socketPath, 'utf8'), 'no socket');
  assert.equal(existsSync(join(host.stateDir, 'daemon.lock')), true);
});

test('a home that another machine uses is not served here too, though the lock is not seen; a quiet one is', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  await host.kill9();
  const record = '4711\nfedcba9876543210 othermachine\n';
  const lock = join(host.stateDir, 'daemon.lock');
  const data = join(host.stateDir, 'store', 'data.mdb');
  if (!/^[0-9a-f]{32}\s*$/.test(existsSync('/etc/machine-id') ? readFileSync('/etc/machine-id', 'latin1') : '')) {
    t.diagnostic('this machine has no id of its own: it cannot be told from another');
    return;
  }
  writeFileSync(lock, record);
  const now = new Date();
  utimesSync(data, now, now);
  const refused = contend(host, t);
  assert.match(await refused.outcome, /^invalid_state: a daemon on another machine \(othermachine\) seems to use this folder/);
  await refused.ended;
  assert.equal(readFileSync(lock, 'latin1'), record);
  const longAgo = new Date(statSync(data).mtimeMs - 600_000);
  utimesSync(data, longAgo, longAgo);
  await host.start();
  await host.stop();
  assert.equal(readFileSync(lock, 'latin1'), ''); // given back: it may be moved
});
