/**
 * `ax daemon`, from the bundle as it is installed, with a stand-in daemon beside it: a process of its own that serves the real control socket.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import type { TestContext } from 'node:test';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { HOST_ID, outcomeOf, scripted, told } from './scripted.ts';
import type { Scripted } from './scripted.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const STANDIN = `
import { appendFileSync, writeFileSync } from 'node:fs';
import { serveControl } from ${JSON.stringify(join(ROOT, 'daemon/control/server.ts'))};
import { systemClock } from ${JSON.stringify(join(ROOT, 'daemon/clock/system.ts'))};
const args = process.argv.slice(2);
const stateDir = args[args.indexOf('--state-dir') + 1];
writeFileSync(stateDir + '/started.json', JSON.stringify({ args, env: process.env, cwd: process.cwd() }));
if (args.includes('broken')) {
  process.stderr.write(JSON.stringify({ level: 50, msg: 'the store is corrupt\\u202e' }) + '\\n');
  process.exit(1);
}
process.stdout.write('a line on stdout\\n');
const log = { debug() {}, info() {}, warn() {}, error() {} };
const protocol = args.includes('old') ? 0 : ${CONTROL_PROTOCOL};
const status = { running: true, pid: process.pid, version: '0.1.0', protocol, host_id: '${HOST_ID}', name: 'me', uptime_ms: 1, listen: ['/ip4/127.0.0.1/tcp/1'], control: stateDir + '/control.sock', warnings: [] };
const stop = async () => { await server.close(); process.exit(0); };
const call = async (method) => {
  if (method === 'daemon.hello') return status;
  if (method === 'daemon.status') return status;
  setImmediate(stop);
  return { stopping: true };
};
const server = await serveControl({ path: stateDir + '/control.sock', call, log, clock: systemClock });
process.on('SIGTERM', stop);
setInterval(() => {}, 1000);
`;

let dist: string;

before(() => {
  dist = mkdtempSync(join(tmpdir(), 'ax-dist-'));
  mkdirSync(join(dist, 'dist'));
  mkdirSync(join(dist, 'bin'));
  const esbuild = join(ROOT, 'node_modules', 'esbuild', 'bin', 'esbuild');
  const flags = ['--bundle', '--platform=node', '--target=node22', '--format=cjs', '--log-level=error'];
  execFileSync(esbuild, [join(ROOT, 'cli', 'main.ts'), ...flags, `--outfile=${join(dist, 'dist', 'ax.cjs')}`]);
  copyFileSync(join(ROOT, 'bin', 'ax'), join(dist, 'bin', 'ax'));
  writeFileSync(join(dist, 'bin', 'package.json'), '{"type":"commonjs"}');
  symlinkSync(join(dist, 'bin', 'ax'), join(dist, 'ax'));
  writeFileSync(join(dist, 'dist', 'daemon.mjs'), STANDIN);
});

after(() => rmSync(dist, { recursive: true }));

interface Started {
  readonly args: readonly string[];
  readonly env: Record<string, string>;
  readonly cwd: string;
}

const started = (rig: Scripted): Started => JSON.parse(readFileSync(join(rig.stateDir, 'started.json'), 'utf8')) as Started;

/** An ended process that nobody has collected yet does not run. */
function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

async function installed(t: TestContext): Promise<{ rig: Scripted; script: string }> {
  const rig = await scripted(t);
  const script = join(dist, 'ax');
  // Also when an assertion fails, no process stays behind.
  rig.ends.push(() => rig.ax(['daemon', 'stop'], { script, cwd: rig.folder }));
  return { rig, script };
}

test('start returns when the daemon answers, says so when it runs already, and stop returns when it is gone', async (t) => {
  const { rig, script } = await installed(t);
  rmSync(rig.stateDir, { recursive: true });
  const env = {
    CLAUDECODE: '1',
    CLAUDE_PID: '3',
    AI_AGENT: 'x',
    CODEX_CI: '1',
    CLAUDE_CONFIG_DIR: '/conf',
    CODEX_HOME: '/codex',
    KEPT: 'yes',
  };
  const first = await rig.json(['daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0', '--listen', '/ip6/::1/tcp/0', '--name', 'me'], {
    script,
    env,
  });
  assert.deepEqual(
    [first.code, told(first), first.value['type'], first.value['running'], first.value['host_id']],
    [0, '', 'daemon_status', true, HOST_ID],
  );
  assert.equal(statSync(rig.stateDir).mode & 0o777, 0o700);
  const seen = started(rig);
  assert.deepEqual(seen.args, [
    '--state-dir',
    rig.stateDir,
    '--listen',
    '/ip4/127.0.0.1/tcp/0',
    '--listen',
    '/ip6/::1/tcp/0',
    '--name',
    'me',
  ]);
  assert.equal(seen.cwd, '/');
  const kept = Object.keys(seen.env).filter((name) => /^(CLAUDE|CODEX|AI_AGENT|KEPT)/.test(name));
  assert.deepEqual(kept.toSorted(), ['CLAUDE_CONFIG_DIR', 'CODEX_HOME', 'KEPT']);
  const again = await rig.ax(['daemon', 'start'], { script });
  assert.equal(again.code, 0);
  assert.match(again.stdout, new RegExp(`^already running, pid ${first.value['pid']}\n`));
  const logs = await rig.ax(['daemon', 'logs'], { script });
  assert.equal(logs.stdout, 'a line on stdout\n');
  assert.equal(statSync(join(rig.stateDir, 'daemon.log')).mode & 0o777, 0o600);
  const restarted = await rig.json(['daemon', 'restart'], { script });
  assert.notEqual(restarted.value['pid'], first.value['pid']);
  assert.deepEqual(started(rig).args, ['--state-dir', rig.stateDir]);
  const stop = await rig.ax(['daemon', 'stop'], { script });
  assert.deepEqual([stop.code, stop.stdout, told(stop)], [0, 'stopped\n', '']);
  assert.equal(isRunning(Number(restarted.value['pid'])), false);
  assert.equal(existsSync(join(rig.stateDir, 'control.sock')), false);
});

test('a daemon that ends at once is told by its last word, with status 3', async (t) => {
  const { rig, script } = await installed(t);
  appendFileSync(join(rig.stateDir, 'daemon.log'), 'an older word\n', { mode: 0o600 });
  const outcome = await rig.ax(['daemon', 'start', '--name', 'broken'], { script });
  assert.equal(outcome.code, 3);
  assert.match(
    told(outcome),
    /^ax: the daemon ended at once: the store is corrupt\\u\{202e\}\nfix: \S+\/ax --state-dir \S+ daemon logs\n$/,
  );
});

test('a full log is turned over once at a start', async (t) => {
  const { rig, script } = await installed(t);
  const path = join(rig.stateDir, 'daemon.log');
  writeFileSync(path, '');
  truncateSync(path, 10 * 1024 * 1024);
  await rig.ax(['daemon', 'start', '--name', 'broken'], { script });
  assert.equal(statSync(`${path}.1`).size, 10 * 1024 * 1024);
  assert.ok(statSync(path).size < 1000);
});

test('stop works on a daemon of another version; start names both versions', async (t) => {
  const { rig, script } = await installed(t);
  await rig.ax(['daemon', 'start', '--name', 'old'], { script });
  const { code, value } = await rig.json(['daemon', 'start'], { script });
  assert.deepEqual([code, value['error'].code], [3, 'update_required']);
  assert.equal((await rig.ax(['daemon', 'stop'], { script })).stdout, 'stopped\n');
});

test('run prints one ready line when the daemon answers and ends as the daemon ends when it is told to', async (t) => {
  const { rig, script } = await installed(t);
  const child = rig.start(['daemon', 'run', '--format', 'json'], { script });
  const done = outcomeOf(child);
  const [ready] = (await once(child.stdout!, 'data')) as [Buffer];
  const line = {
    schema_version: '1',
    ok: true,
    type: 'daemon_ready',
    host_id: HOST_ID,
    name: 'me',
    listen: ['/ip4/127.0.0.1/tcp/1'],
    control: join(rig.stateDir, 'control.sock'),
  };
  assert.deepEqual(JSON.parse(ready.toString()), line);
  child.kill('SIGTERM');
  const ended = await done;
  assert.deepEqual([ended.code, ended.stdout, told(ended)], [0, `${JSON.stringify(line)}\n`, 'a line on stdout\n']);
  assert.equal((await rig.ax(['daemon', 'run', '--name', 'broken'], { script })).code, 1);
});

test('logs -f goes on as the log grows and starts over when it was turned over', async (t) => {
  const { rig, script } = await installed(t);
  const path = join(rig.stateDir, 'daemon.log');
  assert.equal((await rig.json(['daemon', 'logs'], { script })).value['error'].code, 'not_found');
  writeFileSync(path, 'one\n');
  const child = rig.start(['daemon', 'logs', '-f'], { script });
  const output = child.stdout![Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  const read = async (): Promise<string> => ((await output.next()).value as Buffer).toString();
  assert.equal(await read(), 'one\n');
  appendFileSync(path, 'two\n');
  assert.equal(await read(), 'two\n');
  writeFileSync(path, 'new\n');
  assert.equal(await read(), 'new\n');
  renameSync(path, `${path}.1`);
  writeFileSync(path, 'a new file that is longer\n');
  assert.equal(await read(), 'a new file that is longer\n');
  child.kill('SIGKILL');
  await once(child, 'close');
});

test('a listen address that is none is refused before anything starts', async (t) => {
  const { rig, script } = await installed(t);
  const { code, value } = await rig.json(['daemon', 'start', '--listen', 'localhost:80'], { script });
  assert.deepEqual([code, value['error'].code, existsSync(join(rig.stateDir, 'started.json'))], [2, 'usage', false]);
});

test('a state folder that cannot be made is refused at once, also where the system makes no folders at all', async (t) => {
  const rig = await scripted(t, {});
  for (const folder of ['/proc/ax', '/proc/ax/deep/state', '/dev/null/state']) {
    const { code, stderr } = await rig.ax(['--state-dir', folder, 'daemon', 'start']);
    assert.equal(code, 1);
    assert.match(stderr, new RegExp(`^ax: the state folder ${folder} cannot be made \\(E\\w+\\)\n$`));
  }
});
