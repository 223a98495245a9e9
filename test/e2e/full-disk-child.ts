/**
 * Run by full-disk.test.ts in a mount namespace of its own: one scenario, so many times. Ends with 0 when every rule held, with 77 when
 * this file system cannot refuse writes, else with what went wrong.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, mkdirSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { Bed, join2, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import { isAlive } from './processes.ts';
import type { Json } from './processes.ts';

const [scenario = '', rounds = '1'] = process.argv.slice(2);
const bed = new Bed();
const mounted: string[] = [];

/** A host whose home is a file system of 24 MiB; ax is told that 1 MiB left is enough, so that the disk itself is what refuses. */
async function small(name: string): Promise<Host> {
  const host = bed.host(name);
  const done = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=24m,mode=700', 'ax-test', host.home]);
  assert.equal(done.status, 0, String(done.stderr));
  mounted.push(host.home);
  mkdirSync(join(host.home, 'run'), { mode: 0o700 });
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  writeFileSync(join(host.stateDir, 'config.json'), JSON.stringify({ limits: { min_free_bytes: 1_048_576 } }));
  await host.start();
  return host;
}

/** Takes every byte that is left, and again what is freed until it is removed. */
function fillUp(host: Host): string {
  const path = join(host.home, 'ballast');
  const fd = openSync(path, 'w');
  for (const size of [1_048_576, 65_536, 4096]) {
    const chunk = Buffer.alloc(size);
    try {
      while (writeSync(fd, chunk) === size);
    } catch (error) {
      assert.equal((error as NodeJS.ErrnoException).code, 'ENOSPC');
    }
  }
  closeSync(fd);
  return path;
}

let asked = 0;

async function send(from: Host, to: string, workspace: string, body: Uint8Array): Promise<Json> {
  return from.call('message.send', { host: to, workspace, harness: 'claude', kind: 'message', body, request_id: `r${(asked += 1)}` });
}

/** Everything that only reads works, with the same process. */
async function readable(host: Host, pid: number, workspace: string, id: string, words: string): Promise<void> {
  assert.ok((await host.ok(['messages', 'list', '--all']))['messages'] instanceof Array);
  assert.equal((await host.status(id))['message_id'], id);
  assert.equal((await host.ok(['admin', 'status']))['ok'], true);
  const fetched = await host.ax(['messages', 'fetch', id, '--workspace', workspace]);
  assert.equal(fetched.status, 0, fetched.stderr);
  assert.equal(fetched.stdout.includes(words), true, fetched.stdout);
  assert.deepEqual([host.pid, isAlive(pid)], [pid, true]);
}

const big = Buffer.alloc(300_000, 'x');

async function senderFull(round: number): Promise<void> {
  const sender = await small(`s${round}`);
  const receiver = await bed.running(`r${round}`);
  await join2(receiver, sender);
  const workspace = sender.workspace('w');
  const there = receiver.workspace('w');
  const early = String((await send(receiver, sender.name, workspace, Buffer.from('kept words')))['message_id']);
  await sender.untilStatus(early, { state: 'awaiting_setup' });
  const { pid } = sender;
  const ballast = fillUp(sender);
  let refused = 0;
  const taken: string[] = [];
  for (let n = 0; n < 30; n++) {
    const end = await send(sender, receiver.name, there, big).catch((error: { code?: string }) => error.code);
    if (typeof end !== 'string') taken.push(String((end as Json)['message_id']));
    else {
      assert.equal(end, 'store_full');
      refused += 1;
    }
  }
  assert.ok(refused >= 25, `${refused} of 30 were refused`);
  await readable(sender, pid, workspace, early, 'kept words');
  const sent = (await sender.ok(['messages', 'list', '--sent', '--all']))['messages'] as Json[];
  assert.equal(sent.length, taken.length, 'what was refused left nothing, what was taken is there');
  rmSync(ballast);
  await until('the next send to be taken', async () => {
    const end = await send(sender, receiver.name, there, Buffer.from('room again')).catch((error: { code?: string }) => error.code);
    if (typeof end === 'string') return end;
    taken.push(String((end as Json)['message_id']));
    return true;
  });
  for (const id of taken) await sender.untilStatus(id, { state: 'accepted' });
  assert.equal(((await receiver.ok(['messages', 'list', '--all']))['messages'] as Json[]).length, taken.length);
  assert.deepEqual([sender.pid, isAlive(pid)], [pid, true]);
  assert.doesNotMatch(sender.log, /"msg":"crash"|unhandled/i);
  await Promise.all([sender.stop(), receiver.stop()]);
}

async function receiverFull(round: number): Promise<void> {
  const sender = await bed.running(`s${round}`);
  const receiver = await small(`r${round}`);
  await join2(sender, receiver);
  const workspace = receiver.workspace('w');
  const early = String((await send(sender, receiver.name, workspace, Buffer.from('kept words')))['message_id']);
  await sender.untilStatus(early, { state: 'accepted' });
  const { pid } = receiver;
  const ballast = fillUp(receiver);
  const ids: string[] = [];
  for (let n = 0; n < 20; n++) ids.push(String((await send(sender, receiver.name, workspace, big))['message_id']));
  // The first that are refused hold the others back: those stay queued until they are tried.
  let deferred: Json = {};
  await until('one to be refused', async () => {
    for (const id of ids) if ((deferred = await sender.call('admin.message_status', { id }))['state'] === 'deferred') return true;
    return JSON.stringify(deferred);
  });
  assert.equal(deferred['cause']['code'], 'store_full');
  assert.equal(typeof deferred['cause']['retry_after_ms'], 'number', 'and when it is tried again');
  const told = (await sender.ax(['admin', 'status', String(deferred['message_id'])])).stdout;
  assert.match(told, /the disk of .* is full: .*\(store_full\).*it asked to wait 30 s/s);
  await readable(receiver, pid, workspace, early, 'kept words');
  const held = new Set(((await receiver.ok(['messages', 'list', '--all']))['messages'] as Json[]).map((row) => String(row['message_id'])));
  for (const id of ids) {
    const { state } = await sender.call<{ state: string }>('admin.message_status', { id });
    assert.ok(state !== 'accepted' || held.has(id), `${id} is acknowledged and not there`);
  }
  rmSync(ballast);
  for (const id of ids.slice(0, 8)) await sender.untilStatus(id, { state: 'accepted' }, 90_000);
  const rows = ((await receiver.ok(['messages', 'list', '--all']))['messages'] as Json[]).map((row) => String(row['message_id']));
  assert.equal(new Set(rows).size, rows.length, 'none is there twice');
  assert.deepEqual([receiver.pid, isAlive(pid)], [pid, true]);
  assert.doesNotMatch(receiver.log, /"msg":"crash"|unhandled/i);
  await Promise.all([sender.stop(), receiver.stop()]);
}

async function refusing(round: number): Promise<void> {
  const host = await bed.running(`h${round}`);
  const workspace = host.workspace('w');
  const early = String((await send(host, 'Localhost', workspace, Buffer.from('kept words')))['message_id']);
  const data = join(host.stateDir, 'store', 'data.mdb');
  const { pid } = host;
  if (spawnSync('chattr', ['+i', data]).status !== 0) {
    process.stdout.write('no file can be made unchangeable here');
    await bed.end();
    process.exit(77);
  }
  try {
    for (let n = 0; n < 3; n++) {
      const end = await send(host, 'Localhost', workspace, big).catch((error: { code?: string }) => error.code ?? 'lost');
      assert.ok(end === 'internal' || end === 'store_corrupt', `a send said ${JSON.stringify(end)}`);
    }
    await readable(host, pid, workspace, early, 'kept words');
    const attention = (await host.ok(['admin', 'status']))['attention'] as Json[];
    assert.match(String(attention[0]?.['what']), /the store takes no more writes: /);
  } finally {
    assert.equal(spawnSync('chattr', ['-i', data]).status, 0);
  }
  const again = await send(host, 'Localhost', workspace, Buffer.from('x')).catch((error: { code?: string }) => error.code);
  assert.ok(again === 'internal' || again === 'store_corrupt', 'what failed is not used again until it was opened and looked at');
  assert.doesNotMatch(host.log, /"msg":"crash"|unhandled/i);
  await host.kill9();
  await host.start();
  assert.equal(((await host.ok(['messages', 'list', '--all']))['messages'] as Json[]).length, 1);
  await send(host, 'Localhost', workspace, Buffer.from('goes on'));
  await host.stop();
}

const scenarios: Readonly<Record<string, (round: number) => Promise<void>>> = { sender: senderFull, receiver: receiverFull, refusing };
try {
  for (let round = 1; round <= Number(rounds); round++) await scenarios[scenario]!(round);
  process.stdout.write(`${scenario}: ${rounds} runs, nothing lost\n`);
} catch (error) {
  for (const host of bed.hosts) process.stderr.write(`${host.name}: ${host.log.slice(-3000)}\n`);
  throw error;
} finally {
  for (const home of mounted) spawnSync('umount', ['-l', home]); // a folder on which something is mounted cannot be removed
  await bed.end();
}
