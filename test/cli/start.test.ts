/**
 * A daemon that cannot start says why and what mends it, in its own words, and its log holds JSON lines and nothing else. With real daemons.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import { scripted, told } from './scripted.ts';
import type { Outcome, Scripted } from './scripted.ts';

const LISTEN = ['--listen', '/ip4/127.0.0.1/tcp/0'];

async function rigOf(t: TestContext): Promise<Scripted> {
  const rig = await scripted(t);
  rig.ends.push(() => rig.ax(['daemon', 'stop']));
  return rig;
}

/** Starts in the background and in the foreground; neither may come up. */
async function bothWays(rig: Scripted, ...flags: string[]): Promise<[start: Outcome, run: Outcome]> {
  return [await rig.ax(['daemon', 'start', ...flags]), await rig.ax(['daemon', 'run', ...flags])];
}

function assertJsonLines(rig: Scripted): Record<string, unknown>[] {
  const lines = readFileSync(join(rig.stateDir, 'daemon.log'), 'utf8').trimEnd().split('\n');
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
}

test('a port that is taken is told with the command that listens elsewhere', async (t) => {
  const rig = await rigOf(t);
  const holder = createServer().listen(0, '127.0.0.1');
  await once(holder, 'listening');
  rig.ends.push(async () => holder.close());
  const address = `/ip4/127.0.0.1/tcp/${(holder.address() as AddressInfo).port}`;
  const [start, run] = await bothWays(rig, '--listen', address);
  assert.deepEqual([start.code, run.code], [3, 1]);
  const fix = `fix: listen elsewhere: \\S+/ax --state-dir ${rig.stateDir} daemon start --listen /ip4/0\\.0\\.0\\.0/tcp/OTHER .*"listen" in config\\.json\n$`;
  assert.match(told(start), new RegExp(`^ax: the daemon ended at once: cannot listen on ${address}: the port is taken\n${fix}`));
  assert.match(run.stderr, new RegExp(`\nax: cannot listen on ${address}: the port is taken\n${fix}`));
  const json = await rig.json(['daemon', 'run', '--listen', address]);
  assert.deepEqual([json.code, json.value['ok'], json.value['error'].code], [1, false, 'unavailable']);
  const record = assertJsonLines(rig).at(-1)!;
  assert.deepEqual([record['msg'], record['code']], ['cannot run', 'unavailable']);
  assert.match(String(record['fix']), /^listen elsewhere: ax daemon start/);
});

test('a config.json with a wrong value is told with the file and the field, a key that others can read with its chmod', async (t) => {
  const rig = await rigOf(t);
  const file = join(rig.stateDir, 'config.json');
  writeFileSync(file, '{"name":5}');
  const [start, run] = await bothWays(rig, ...LISTEN);
  assert.deepEqual([start.code, run.code], [3, 1]);
  for (const { stderr } of [start, run])
    assert.match(stderr, new RegExp(`ax: .*${file}: "name": a host name is .*\nfix: correct "name" in ${file}`));
  rmSync(file);
  const key = join(rig.stateDir, 'host.key');
  writeFileSync(key, Buffer.alloc(32, 7));
  chmodSync(key, 0o644);
  for (const { stderr } of await bothWays(rig, ...LISTEN))
    assert.match(stderr, new RegExp(`${key} can be read by others \\(mode 644\\)\nfix: chmod 600 ${key}\n$`));
  assertJsonLines(rig);
});

test('a flag that is refused is a usage error before anything starts', async (t) => {
  const rig = await scripted(t);
  for (const flags of [
    ['--name', 'bad name'],
    ['--name', 'localhost'],
    ['--name', ''],
    ['--listen', 'nonsense'],
    ['--listen', ''],
  ])
    for (const verb of ['start', 'run', 'restart']) {
      const { code, value } = await rig.json(['daemon', verb, ...flags]);
      assert.deepEqual([code, value['error'].code], [2, 'usage'], `${verb} ${flags.join(' ')}`);
    }
  assert.throws(() => readFileSync(join(rig.stateDir, 'daemon.log')), { code: 'ENOENT' });
});

test('an empty or damaged note of an earlier daemon stops no start and is written anew, and the log is JSON lines', async (t) => {
  const rig = await rigOf(t);
  const [ports, launch] = ['ports.json', 'launch.json'].map((name) => join(rig.stateDir, name)) as [string, string];
  const start = async (): Promise<void> => {
    const restarted = await rig.ax(['daemon', 'restart', ...LISTEN]);
    assert.deepEqual([restarted.code, told(restarted)], [0, '']);
  };
  for (const damage of ['', '{"/ip4/127.0.0.1/tcp/0":', '[]', '{"/ip4/127.0.0.1/tcp/0":99999999}']) {
    for (const file of [ports, launch]) writeFileSync(file, damage);
    await start();
    assert.equal(typeof (JSON.parse(readFileSync(ports, 'utf8')) as Record<string, unknown>)['/ip4/127.0.0.1/tcp/0'], 'number', damage);
    assert.deepEqual(JSON.parse(readFileSync(launch, 'utf8')), { listen: ['/ip4/127.0.0.1/tcp/0'] });
  }
  for (const file of [ports, launch]) {
    rmSync(file);
    mkdirSync(file);
  }
  await start();
  const said = assertJsonLines(rig).map((record) => record['msg']);
  assert.ok(said.includes('ready') && said.includes('not noted for the next start'));
});

test('flags for a daemon that runs change nothing, and the command that does is told', async (t) => {
  const rig = await rigOf(t);
  assert.equal(told(await rig.ax(['daemon', 'start', ...LISTEN, '--name', 'one'])), '');
  assert.equal(told(await rig.ax(['daemon', 'start', ...LISTEN, '--name', 'one'])), '');
  assert.equal((await rig.ax(['daemon', 'start'])).stderr, '');
  const other = await rig.ax(['daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/1', '--name', 'two']);
  assert.deepEqual([other.code, other.stdout.split(',')[0]], [0, 'already running']);
  assert.match(
    other.stderr,
    /^ax: it runs with the flags it was started with; to change them: \S+\/ax --state-dir \S+ daemon restart --listen \/ip4\/127\.0\.0\.1\/tcp\/1 --name two\n$/,
  );
});
