/**
 * Hostile and broken surroundings with real processes: strangers on the sockets, another key at a known address, a copied key, stores that
 * are not ours, a full disk.
 *
 * A daemon lives through all of it, says what is wrong, serves the others, and leaves alone what is not its own.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import {
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  truncateSync,
  writeFileSync,
  openSync,
  writeSync,
  closeSync,
} from 'node:fs';
import { createConnection, type Socket } from 'node:net';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { encode } from '../../protocol/codec.ts';
import type { Method } from '../../protocol/control.ts';
import { encodeFrame } from '../../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import { Bed, BUNDLE, join2, makeBed, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import { isAlive } from './processes.ts';
import type { Json } from './processes.ts';

const bed = makeBed();
let a: Host;
let b: Host;
before(async () => {
  [a, b] = await bed.pair();
});

function toFolder(host: string, workspace: string, ...more: readonly string[]): string[] {
  return ['send', '--host', host, '--destination-workspace', workspace, '--harness', 'claude', ...more];
}

/** Writes to a socket until everything is out or the other side has closed; gives what came back. */
async function throwAt(
  target: { path: string } | { host: string; port: number },
  chunks: readonly Uint8Array[],
  limitMs = 15_000,
): Promise<{ answer: Buffer; closed: boolean }> {
  const socket: Socket = createConnection(target);
  const got: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => got.push(chunk));
  return new Promise((resolve) => {
    const done = (closed: boolean): void => {
      clearTimeout(timer);
      socket.destroy();
      resolve({ answer: Buffer.concat(got), closed });
    };
    const timer = setTimeout(() => done(false), limitMs);
    socket.on('error', () => socket.destroy()); // the other side closed while we wrote: `close` follows
    socket.on('close', () => done(true));
    socket.on('end', () => done(true));
    for (const chunk of chunks) socket.write(chunk);
  });
}

function header(length: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, length);
  return bytes;
}

test('garbage and endless frames on the control socket end that connection with a code, and nothing else', async () => {
  const { pid } = b;
  const deep = new Uint8Array(5000).fill(0x81);
  const cases: readonly (readonly [string, readonly Uint8Array[]])[] = [
    ['random bytes', [Buffer.from('GET / HTTP/1.1\r\n\r\n')]],
    ['a frame of 4 GiB', [header(0xffffffff)]],
    ['a frame one byte too long', [header(MAX_FRAME_BYTES + 1)]],
    ['a frame of nothing', [header(0)]],
    ['no CBOR', [encodeFrame(Uint8Array.of(0xff, 0x00))]],
    ['deep nesting', [encodeFrame(deep)]],
    ['no map', [encodeFrame(encode('hello'))]],
    ['no id', [encodeFrame(encode({ v: 1, method: 'host.list' }))]],
  ];
  await Promise.all(
    cases.map(async ([what, chunks]) => {
      const { answer, closed } = await throwAt({ path: b.socketPath }, chunks);
      assert.equal(closed, true, `${what}: still open`);
      assert.match(answer.toString('latin1'), /protocol_violation/, `${what}: ${JSON.stringify(answer.toString('latin1'))}`);
    }),
  );
  await assert.rejects(b.call('host.explode' as Method), { code: 'update_required' });
  await until('the daemon to serve on', async () => (await b.ax(['host', 'list'])).status === 0 || 'no');
  assert.equal(b.pid, pid);
  assert.equal(isAlive(pid), true);
});

test('an endless stream on the control socket is cut off, and costs the daemon no memory', async () => {
  const before = residentKiB(b.pid);
  const chunk = randomBytes(1024 * 1024);
  const { closed } = await throwAt(
    { path: b.socketPath },
    Array.from({ length: 40 }, () => chunk),
  );
  assert.equal(closed, true);
  assert.equal(residentKiB(b.pid) - before < 60_000, true, `grew by ${residentKiB(b.pid) - before} KiB`);
  assert.equal((await b.ax(['host', 'list'])).status, 0);
});

function residentKiB(pid: number): number {
  const text = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+)/.exec(text)?.[1] ?? 0);
}

test('garbage and endless bytes on the peer port harm no one: the paired host is served throughout', async () => {
  const port = Number((b.listen[0] ?? '').split('/').at(-1));
  const chunk = randomBytes(256 * 1024);
  const attacks = [
    ['http', [Buffer.from('GET / HTTP/1.1\r\nHost: x\r\n\r\n')]],
    ['noise', [randomBytes(4096)]],
    ['endless', Array.from({ length: 64 }, () => chunk)],
    ['multistream, then garbage', [Buffer.from('\u0013/multistream/1.0.0\n'), randomBytes(100_000)]],
    ['a line that never ends', [Buffer.from('\u0013/multistream/1.0.0\n'), Buffer.alloc(1_000_000, 0x80)]],
  ] as const;
  const { pid } = b;
  const storm = Promise.all(attacks.flatMap(([, chunks]) => [0, 1, 2, 3].map(() => throwAt({ host: '127.0.0.1', port }, chunks, 40_000))));
  const workspace = b.workspace('served');
  for (let i = 0; i < 5; i++) {
    const id = String((await a.ok(toFolder('hostb', workspace, `message ${i}`)))['message_id']);
    await a.untilStatus(id, { state: 'accepted' });
  }
  const ends = await storm;
  assert.equal(
    ends.every((end) => end.closed),
    true,
    'each of them was closed',
  );
  assert.deepEqual([b.pid, isAlive(pid)], [pid, true]);
  assert.equal((await a.ok(['host', 'ping', 'hostb']))['rtt_ms'].length, 3);
  assert.equal((await b.ok(['host', 'list']))['hosts'].length, 1);
});

test('another key at a known address gets nothing; the message waits for the right one', async (t) => {
  const own = makeBed(t);
  const [sender, receiver] = await own.pair('sender', 'receiver');
  const address = receiver.listen[0] ?? '';
  await receiver.stop();
  const impostor = own.host('impostor');
  await impostor.start({ args: ['--listen', address, '--name', 'receiver'] });
  const workspace = receiver.workspace('w');
  const id = String((await sender.ok(toFolder('receiver', workspace, 'secret')))['message_id']);
  await until('the other key to be noticed', async () => {
    const row = await sender.call<{ host: { state: string } }>('host.show', { host: 'receiver' });
    return row.host.state === 'wrong_peer' || row.host.state;
  });
  const attention = (await sender.ok(['admin', 'status']))['attention'] as Json[];
  assert.equal(
    attention.some((row) => /another key answers at the address of receiver/.test(String(row['what']))),
    true,
    JSON.stringify(attention),
  );
  assert.equal((await sender.status(id))['state'], 'queued');
  assert.equal((await impostor.ok(['messages', 'list', '--all']))['messages'].length, 0);
  await impostor.stop();
  await receiver.start();
  await sender.untilStatus(id, { state: 'accepted' });
});

test('a copied host key is noticed, and both the copied host and its peer warn of it', async (t) => {
  const own = makeBed(t);
  const [peer, original] = await own.pair('peer', 'original');
  const copy = own.host('copy');
  mkdirSync(copy.stateDir, { recursive: true, mode: 0o700 });
  copyFileSync(join(original.stateDir, 'host.key'), join(copy.stateDir, 'host.key'));
  await copy.start();
  assert.equal(copy.hostId, original.hostId);
  await copy.ok(['host', 'add', 'peer', `${peer.listen[0]}/p2p/${peer.hostId}`]);
  const warnings = async (host: Host): Promise<string> =>
    ((await host.call<{ warnings: string[] }>('daemon.status')).warnings ?? []).join('; ');
  await until(
    'both sides to warn',
    async () => {
      // Each greets the peer again, as it does by itself once a minute and after every reconnect.
      for (const host of [original, copy]) await host.ax(['host', 'ping', 'peer', '--count', '1']);
      const [there, here] = [await warnings(peer), await warnings(original)];
      return /original is alive in two places/.test(there) && /sees this host's own id alive in two places/.test(here)
        ? true
        : `peer: ${there}; original: ${here}`;
    },
    40_000,
  );
  const status = await peer.ok(['daemon', 'status']);
  assert.equal(status['warnings'].length, 1);
  assert.match(
    (await original.ax(['daemon', 'status'])).stdout,
    /warning +peer sees this host's own id alive in two places: the key was copied/,
  );
  assert.equal(
    (await peer.ok(['admin', 'events', '--limit', '500']))['events'].filter((event: Json) => event['type'] === 'host.duplicate_id').length,
    1,
  );
});

/** Every file below a folder with its digest. */
function picture(folder: string): Record<string, string> {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const paths = files.map((entry) => join(entry.parentPath, entry.name)).toSorted();
  return Object.fromEntries(paths.map((path) => [path, createHash('sha256').update(readFileSync(path)).digest('hex')]));
}

function overwrite(path: string, at: number, bytes: Uint8Array): void {
  const fd = openSync(path, 'r+');
  writeSync(fd, bytes, 0, bytes.length, at);
  closeSync(fd);
}

test('a corrupt, cut, foreign or newer store stops the daemon with the reason, and not a byte of it changes', async (t) => {
  const own = makeBed(t);
  const host = await own.running('store');
  const workspace = host.workspace('w');
  for (let i = 0; i < 20; i++)
    await host.call('message.send', {
      host: 'Localhost',
      workspace,
      harness: 'claude',
      kind: 'message',
      body: randomBytes(2000),
      request_id: `m${i}`,
    });
  await host.stop();
  const store = join(host.stateDir, 'store');
  const data = join(store, 'data.mdb');
  const good = readFileSync(data);
  const marker = readFileSync(join(store, 'format'), 'utf8');
  const cases: readonly (readonly [string, RegExp, () => void])[] = [
    ['garbage in place of its header', /data\.mdb/, () => overwrite(data, 0, randomBytes(16_384))],
    ['cut in half', /data\.mdb/, () => truncateSync(data, Math.floor(good.length / 2))],
    ['no format file', /was not made by ax/, () => rmSync(join(store, 'format'))],
    ['a newer schema', /has schema 99/, () => writeFileSync(join(store, 'format'), marker.replace(/"schema":\d+/, '"schema":99'))],
    ['a format file of something else', /is not the mark of an ax store/, () => writeFileSync(join(store, 'format'), '{}')],
    ['the data gone', /is missing/, () => rmSync(data)],
  ];
  for (const [what, reason, spoil] of cases) {
    writeFileSync(data, good);
    writeFileSync(join(store, 'format'), marker);
    spoil();
    const before = picture(store);
    const run = await host.ax(['daemon', 'run', '--listen', '/ip4/127.0.0.1/tcp/0']);
    assert.equal(run.status, 1, `${what}: ${run.stderr}`);
    assert.match(run.stderr, reason, what);
    const start = await host.refused(['daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0'], 'daemon_unavailable', 3);
    assert.match(String(start['message']), reason, what);
    assert.deepEqual(picture(store), before, what);
  }
  writeFileSync(data, good);
  writeFileSync(join(store, 'format'), marker);
  await host.start();
  assert.equal((await host.ok(['messages', 'list', '--all']))['messages'].length, 20);
});

test('two daemons on one state folder: the second one is refused and the first goes on', async () => {
  const second = await a.ax(['daemon', 'run', '--listen', '/ip4/127.0.0.1/tcp/0']);
  assert.equal(second.status, 1);
  assert.match(second.stderr, new RegExp(`another daemon holds this directory \\(process ${a.pid}\\)`));
  assert.equal((await a.ok(['daemon', 'start']))['pid'], a.pid);
});

test('a port that is taken, a key that others can read and a broken config.json are named, with status 1', async (t) => {
  const own = makeBed(t);
  const host = own.host('config');
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  const taken = await host.ax(['daemon', 'run', '--listen', a.listen[0] ?? '']);
  assert.equal(taken.status, 1);
  assert.match(taken.stderr, /cannot listen on .*: the port is taken/);
  writeFileSync(join(host.stateDir, 'config.json'), '{"lisen": []}');
  assert.match((await host.ax(['daemon', 'run'])).stderr, /unknown field "lisen"/);
  writeFileSync(join(host.stateDir, 'config.json'), '{');
  assert.match((await host.ax(['daemon', 'run'])).stderr, /is not JSON/);
  rmSync(join(host.stateDir, 'config.json'));
  spawnSync('chmod', ['644', join(host.stateDir, 'host.key')]);
  assert.match((await host.ax(['daemon', 'run', '--listen', '/ip4/127.0.0.1/tcp/0'])).stderr, /can be read by others/);
});

test('a full disk: nothing new is taken, what is there stays, and both go on by themselves when there is room', async (t) => {
  const own = new Bed();
  const disk = join(own.folder, 'full');
  mkdirSync(disk);
  const isMounted = spawnSync('/bin/mount', ['-t', 'tmpfs', '-o', 'size=80m,mode=700', 'ax-test', disk]).status === 0;
  t.after(async () => {
    if (isMounted) spawnSync('/bin/umount', ['-l', disk]);
    await own.end();
  });
  if (!isMounted) {
    t.diagnostic('no file system can be mounted here: a full disk is shown by the limit on file sizes alone');
    return;
  }
  const sender = await own.running('sender');
  const full = await own.running('full');
  await join2(sender, full);
  const workspace = full.workspace('w');
  const early = String((await sender.ok(toFolder('full', workspace, 'while there is room')))['message_id']);
  await sender.untilStatus(early, { state: 'accepted' });
  const ballast = join(full.home, 'ballast');
  const { bavail, bsize } = statfsSync(full.home);
  writeFileSync(ballast, Buffer.alloc(bavail * bsize - 4 * 1024 * 1024));
  await until('its own sends to be refused', async () => {
    const outcome = await full.ax(['--format', 'json', ...toFolder('sender', workspace, 'x')]);
    return outcome.status === 1 && outcome.json['error']['code'] === 'store_full' ? true : outcome.stdout;
  });
  const late = String((await sender.ok(toFolder('full', workspace, 'no room')))['message_id']);
  const deferred = await sender.untilStatus(late, { state: 'deferred' });
  assert.equal(deferred['cause']['code'], 'store_full');
  const attention = (await full.ok(['admin', 'status']))['attention'] as Json[];
  assert.match(String(attention[0]?.['what']), /bytes are free: nothing new is accepted or queued/);
  assert.equal((await full.ok(['messages', 'list', '--workspace', workspace]))['messages'].length, 1);
  rmSync(ballast);
  await sender.untilStatus(late, { state: 'accepted' });
});

test('a store whose file can grow no more refuses what is new with store_full, and still serves what it holds', async (t) => {
  const own = makeBed(t);
  const host = own.host('limited');
  const script = `trap '' XFSZ; ulimit -f 2048; exec "$0" "$@"`;
  const words = ['--format', 'json', 'daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0'];
  const started = await host.ax(['-c', script, process.execPath, BUNDLE, ...words], { program: ['bash'] });
  assert.equal(started.status, 0, started.stdout);
  host.pid = Number(started.json['pid']);
  const workspace = host.workspace('w');
  let stored = 0;
  await until('a send to be refused', async () => {
    const outcome = await host.ax(['--format', 'json', ...toFolder('Localhost', workspace, '--file', '-')], {
      stdin: randomBytes(500_000),
    });
    if (outcome.status === 0) stored += 1;
    return outcome.status === 1 && outcome.json['error']['code'] === 'store_full' ? true : outcome.stdout;
  });
  assert.equal((await host.ok(['messages', 'list', '--all']))['messages'].length, stored);
  assert.equal((await host.ax(['daemon', 'stop'])).status, 0);
  await until('the daemon to be gone', async () => !isAlive(host.pid) || 'alive');
});
