/**
 * The real link over loopback: the contract, and what only real connections can show.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { Limit } from '../../../daemon/clock/within.ts';
import { PROTOCOLS } from '../../../daemon/link/connection.ts';
import { createLibp2pLink, networkOf } from '../../../daemon/link/libp2p.ts';
import { silentLog } from '../../../daemon/log.ts';
import type { AxError } from '../../../protocol/errors.ts';
import { hostKeyFromSeed } from '../../../protocol/identity.ts';
import { MAX_REQUESTS_PER_PEER } from '../../../protocol/limits.ts';
import { bytesOf, held, introduce, isUp, linkContract, never, pair, recordingHost, refusal, textOf } from '../../contract/link.ts';
import type { LinkHost } from '../../contract/link.ts';
import { ManualClock, realBed, rule, turns, until } from './bed.ts';
import type { RealBed } from './bed.ts';
import { Proxy, addressesOf, foreign, portOf } from './foreign.ts';

linkContract('libp2p', realBed);

async function proxied(host: LinkHost, cleanUp: (run: () => unknown) => void): Promise<[Proxy, string]> {
  const proxy = new Proxy(portOf(host));
  cleanUp(() => proxy.close());
  return [proxy, await proxy.listen()];
}

rule('a hundred requests make one dial', async (bed, cleanUp) => {
  const [a, b] = [await bed.host({ dialable: false }), await bed.host()];
  const [proxy, address] = await proxied(b, cleanUp);
  introduce(b, a, [address]);
  for (let n = 0; n < 100; n++) assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf(`${n}`), never())), `${n}`);
  assert.equal(proxy.accepted, 1);
});

rule('of two connections from simultaneous dials the one the lower id dialled is left', async (bed, cleanUp) => {
  const hosts = [await bed.host(), await bed.host()].toSorted((x, y) => (x.id < y.id ? -1 : 1)) as [LinkHost, LinkHost];
  const [[toLower, lowerAddress], [toHigher, higherAddress]] = [await proxied(hosts[0], cleanUp), await proxied(hosts[1], cleanUp)];
  introduce(hosts[0], hosts[1], [lowerAddress]);
  introduce(hosts[1], hosts[0], [higherAddress]);
  await until(() => toLower.sockets.size === 1 && toHigher.sockets.size === 1, 'both dials');
  await until(() => isUp(hosts[0], hosts[1]) && isUp(hosts[1], hosts[0]), 'both sides');
  await turns(200);
  const inFlight = held<Uint8Array>();
  hosts[1].answer = () => inFlight.promise;
  const asked = hosts[0].link.request(hosts[1].id, 'wire', bytesOf('under way'), never());
  await until(() => hosts[1].seen.length === 1, 'the request');
  for (let step = 0; step < 90 && toLower.sockets.size > 0; step++) await bed.pass(1000);
  await until(() => toLower.sockets.size === 0, 'the second connection to close');
  assert.equal(toHigher.sockets.size, 1);
  inFlight.release(bytesOf('done'));
  assert.equal(textOf(await asked), 'done');
  assert.deepEqual(
    [...hosts[0].peers, ...hosts[1].peers].map(({ up }) => up),
    [true, true],
  );
});

rule('a connection that dies while idle is noticed by both sides and dialled again', async (bed, cleanUp) => {
  const [a, b] = [await bed.host({ dialable: false }), await bed.host()];
  const [proxy, address] = await proxied(b, cleanUp);
  introduce(a, b, []);
  introduce(b, a, [address]);
  await until(() => isUp(a, b) && isUp(b, a), 'the connection');
  await bed.pass(300_000);
  assert.equal(proxy.accepted, 1, 'an idle connection is kept');
  proxy.silent = true;
  for (let seconds = 0; seconds < 90; seconds++) await bed.pass(1000);
  await until(() => a.peers.some(({ up }) => !up) && b.peers.some(({ up }) => !up), 'both to notice');
  proxy.silent = false;
  // A dial that began in the silence ends by the clock before the next begins: time goes on while one waits.
  for (let step = 0; step < 120 && !(isUp(a, b) && isUp(b, a)); step++) await bed.pass(1000);
  await until(() => isUp(a, b) && isUp(b, a), 'the new connection');
  assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('back'), never())), 'back');
});

/** A connection from `b` to `a` through a proxy that has just gone silent. */
async function silenced(bed: RealBed, cleanUp: (run: () => unknown) => void): Promise<[LinkHost, LinkHost]> {
  const [a, b] = [await bed.host(), await bed.host()];
  const [proxy, address] = await proxied(a, cleanUp);
  introduce(b, a, []);
  introduce(a, b, [address]);
  await until(() => isUp(a, b) && isUp(b, a), 'the connection');
  await bed.pass(2000);
  proxy.silent = true;
  return [a, b];
}

rule('a request that nothing answers makes the link find out whether the connection lives', async (bed, cleanUp) => {
  const [a, b] = await silenced(bed, cleanUp);
  const gaveUp = new Limit();
  const refused = assert.rejects(b.link.request(a.id, 'wire', bytesOf('lost'), gaveUp), refusal('timeout'));
  await bed.pass(1000);
  gaveUp.end();
  await refused;
  assert.equal(b.peers.at(-1)?.up, true);
  await bed.pass(16_000); // far less than an idle connection may be silent
  assert.equal(b.peers.at(-1)?.up, false);
});

rule(
  'a machine that loses an address of its own asks at once who still answers, and nothing of it is seen on the wire before',
  async (bed, cleanUp) => {
    const own = new Set(['192.0.2.1', '192.0.2.2']);
    const [a, b] = [await bed.host(), await bed.host({ ownAddresses: () => new Set(own) })];
    const [proxy, address] = await proxied(a, cleanUp);
    introduce(b, a, []);
    introduce(a, b, [address]);
    await until(() => isUp(a, b) && isUp(b, a), 'the connection');
    await bed.pass(2000);
    const atRest = proxy.bytes;
    own.add('192.0.2.3');
    await bed.pass(20_000);
    assert.equal(proxy.bytes, atRest, 'neither the looks nor an address that came send anything');
    own.delete('192.0.2.1');
    await bed.pass(6000);
    assert.ok(proxy.bytes > atRest && isUp(b, a), 'a connection that lives on is asked and kept');
    proxy.silent = true;
    own.delete('192.0.2.2');
    await bed.pass(6000);
    proxy.silent = false;
    for (let seconds = 0; seconds < 14 && b.peers.length < 3; seconds++) await bed.pass(1000);
    assert.deepEqual(
      b.peers.map(({ up }) => up),
      [true, false, true],
      'within 20 s it is dialled again',
    );
  },
);

rule('a new address of a host whose connection is dead is dialled as soon as that is known', async (bed, cleanUp) => {
  const [a, b] = await silenced(bed, cleanUp);
  introduce(a, b);
  for (let seconds = 0; seconds < 20 && b.peers.length < 3; seconds++) await bed.pass(1000);
  assert.deepEqual(
    b.peers.map(({ up }) => up),
    [true, false, true],
  );
  assert.equal(textOf(await b.link.request(a.id, 'wire', bytesOf('back'), never())), 'back');
});

rule('a receiver that never answers stops a polite sender at its bound, and serves the rest afterwards', async (bed) => {
  const [a, b] = await pair(bed);
  const gate = held<void>();
  b.answer = async (_peer, _channel, bytes) => {
    await gate.promise;
    return bytes.subarray(0, 4);
  };
  const body = new Uint8Array(64 * 1024);
  const asked = Array.from({ length: 400 }, () => a.link.request(b.id, 'wire', body, never()));
  await until(() => b.seen.length >= MAX_REQUESTS_PER_PEER, 'the bound');
  await turns(300);
  assert.equal(b.seen.length, MAX_REQUESTS_PER_PEER);
  gate.release();
  assert.equal((await Promise.all(asked)).length, 400);
});

rule('a receiver that never answers takes no more from a sender that does not care', async (bed, cleanUp) => {
  const b = await bed.host();
  b.answer = () => new Promise(() => undefined);
  const rude = await foreign();
  cleanUp(() => rude.node.stop());
  b.link.learn(new Map([[rude.id, []]]));
  const stream = await rude.open(b);
  const frame = new Uint8Array(4 + 5 + 32 * 1024);
  frame.set([0, 0, 0x80, 5, 1, 0, 0, 0, 1]);
  let frames = 0;
  let idle = 0;
  while (idle < 500 && frames < 10_000) {
    if (stream.writableNeedsDrain) idle += 1;
    else {
      idle = 0;
      frames += 1;
      stream.send(frame);
    }
    await turns(1);
  }
  assert.equal(b.seen.length, MAX_REQUESTS_PER_PEER);
  // In hand, one window in each buffer on the way, and what the sockets hold.
  const taken = frames * frame.length;
  assert.ok(taken < MAX_REQUESTS_PER_PEER * frame.length + 8 * 1024 * 1024, `${taken} bytes were taken`);
  assert.equal(stream.status, 'open');
});

rule('a peer that does not read is sent no more than its window; what never left says so when given up', async (bed, cleanUp) => {
  const a = await bed.host();
  let got = 0;
  const deaf = await foreign({
    [PROTOCOLS.wire]: (stream) => {
      stream.addEventListener('message', (event) => {
        got += event.data.byteLength;
        stream.pause();
      });
    },
  });
  cleanUp(() => deaf.node.stop());
  a.link.learn(new Map([[deaf.id, addressesOf(deaf.node)]]));
  const callers = Array.from({ length: 20 }, () => new Limit());
  const ends = callers.map((caller) =>
    a.link.request(deaf.id, 'wire', new Uint8Array(1024 * 1024), caller).catch((error: AxError) => error.details?.['sent']),
  );
  await until(() => got > 0, 'the first bytes');
  await turns(500);
  for (const caller of callers) caller.end();
  // One frame fills the window; a second may have been begun.
  const left = (await Promise.all(ends)).filter((sent) => sent === true).length;
  assert.ok(left >= 1 && left <= 2, `${left} requests left`);
  assert.ok(got <= 512 * 1024, `${got} bytes arrived`);
});

rule('twenty hosts that dial at once are all served', async (bed) => {
  const b = await bed.host();
  const others = await Promise.all(Array.from({ length: 20 }, () => bed.host({ dialable: false })));
  b.link.learn(new Map(others.map((other) => [other.id, []])));
  const answers = others.map((other, n) => {
    introduce(b, other);
    return other.link.request(b.id, 'wire', bytesOf(`host ${n}`), never());
  });
  assert.deepEqual(
    (await Promise.all(answers)).map(textOf),
    others.map((_, n) => `host ${n}`),
  );
});

rule('eight strangers of one address and sixteen in all, and no more; named peers still get in from any', async (bed, cleanUp) => {
  const b = await bed.host();
  const strangersFrom = async (from: string | undefined, count: number): Promise<void> => {
    const proxy = new Proxy(portOf(b), from);
    cleanUp(() => proxy.close());
    const port = Number((await proxy.listen()).split('/').at(-1));
    const strangers = await Promise.all(Array.from({ length: count }, () => foreign()));
    for (const { node } of strangers) cleanUp(() => node.stop());
    for (const stranger of strangers) await stranger.open(b, PROTOCOLS.hello, port).catch(() => undefined);
  };
  const connected = (): number => b.link.status().connected.length;
  await strangersFrom(undefined, 10);
  assert.equal(connected(), 8);
  // Only Linux lets a socket speak from any address of 127/8.
  const others = process.platform === 'linux' ? ['127.0.0.2', '127.0.0.3'] : [];
  for (const from of others) await strangersFrom(from, 5);
  assert.equal(connected(), others.length === 0 ? 8 : 16);
  const friend = await bed.host({ dialable: false });
  introduce(friend, b, []);
  introduce(b, friend);
  assert.equal(textOf(await friend.link.request(b.id, 'wire', bytesOf('hi'), never())), 'hi');
  await bed.pass(10_100);
  await until(() => connected() === 1, 'the strangers to be cut off');
});

test('libp2p: a line with its own IPv6 network counts as one address, however it is written', () => {
  const same = ['/ip6/2001:db8::1/tcp/1', '/ip6/2001:DB8:0:0:ffff::2/tcp/2', '/ip6/2001:0db8:0000:0000:1:2:3:4/tcp/3'];
  assert.deepEqual(same.map(networkOf), ['2001:db8:0:0', '2001:db8:0:0', '2001:db8:0:0']);
  assert.notEqual(networkOf('/ip6/2001:db8:0:1::1/tcp/1'), networkOf(same[0]!));
  assert.deepEqual(['/ip4/192.0.2.1/tcp/1', '/ip6/::ffff:192.0.2.1/tcp/9', '/ip6/::1/tcp/1'].map(networkOf), [
    '192.0.2.1',
    '192.0.2.1',
    '0:0:0:0',
  ]);
});

rule('raw garbage and silent connections on the port disturb nobody', async (bed, cleanUp) => {
  const [a, b] = await pair(bed);
  const sockets = Array.from({ length: 24 }, (_, n) => {
    const socket = connect(portOf(b), '127.0.0.1');
    socket.on('error', () => undefined);
    if (n % 4 === 1) socket.write(randomBytes(100_000));
    if (n % 4 === 2) socket.write('GET / HTTP/1.1\r\n\r\n');
    if (n % 4 === 3) socket.write('\u0013/multistream/1.0.0\n\u0007/noise\n' + '\uffff'.repeat(5000));
    return socket;
  });
  cleanUp(() => sockets.forEach((socket) => socket.destroy()));
  await Promise.all(sockets.map((socket) => once(socket, 'connect')));
  for (let n = 0; n < 50; n++) assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf(`${n}`), never())), `${n}`);
  const late = await bed.host({ dialable: false });
  introduce(late, b, []);
  introduce(b, late);
  assert.equal(textOf(await late.link.request(b.id, 'wire', bytesOf('late'), never())), 'late');
  assert.deepEqual(b.troubles, []);
});

const GARBAGE: Record<string, Buffer> = {
  'a frame of no bytes': Buffer.from('00000000', 'hex'),
  'an oversized length': Buffer.from('7fffffff', 'hex'),
  'an endless frame one byte over the limit': Buffer.concat([Buffer.from('00004006', 'hex'), Buffer.alloc(5000)]),
  'a frame without a header': Buffer.from('0000000101', 'hex'),
  'an unknown kind': Buffer.from('000000060900000001aa', 'hex'),
  'an answer on a stream of requests': Buffer.from('000000060200000001aa', 'hex'),
  'request number zero': Buffer.from('000000060100000000aa', 'hex'),
  'random bytes': Buffer.concat([Buffer.from('ff', 'hex'), randomBytes(4000)]),
};

for (const [what, bytes] of Object.entries(GARBAGE)) {
  rule(`${what}: the connection closes, it is reported, the peer is refused for 30 s, others go on`, async (bed, cleanUp) => {
    const [a, b] = await pair(bed);
    const rude = await foreign();
    cleanUp(() => rude.node.stop());
    (await rude.open(b)).send(bytes);
    await until(() => b.troubles.length === 1 && rude.node.getConnections().length === 0, 'the close');
    assert.deepEqual([b.troubles[0]?.peer, b.troubles[0]?.code], [rude.id, 'protocol_violation']);
    await assert.rejects(rude.open(b));
    assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('fine'), never())), 'fine');
    assert.deepEqual(
      b.seen.map((seen) => seen.peer),
      [a.id],
    );
    await bed.pass(30_000);
    await rude.open(b);
  });
}

rule('an end inside a frame is a violation; a connection lost inside a frame is not', async (bed, cleanUp) => {
  const b = await bed.host();
  for (const orderly of [false, true]) {
    const rude = await foreign();
    cleanUp(() => rude.node.stop());
    const stream = await rude.open(b);
    stream.send(Buffer.from('0000000901000000', 'hex'));
    await turns(50);
    if (orderly) await stream.close();
    else for (const connection of rude.node.getConnections()) connection.abort(new Error('pulled out'));
    await until(() => b.peers.at(-1)?.up === false, 'the end');
    assert.equal(b.troubles.length, orderly ? 1 : 0);
  }
});

rule('an answer that belongs to no request is a violation of the answering peer', async (bed, cleanUp) => {
  const a = await bed.host();
  const liar = await foreign({
    [PROTOCOLS.wire]: (stream) => {
      stream.addEventListener('message', () => void stream.send(Buffer.from('000000060200000063aa', 'hex')));
    },
  });
  cleanUp(() => liar.node.stop());
  a.link.learn(new Map([[liar.id, addressesOf(liar.node)]]));
  await assert.rejects(a.link.request(liar.id, 'wire', bytesOf('x'), never()), refusal('unavailable', { sent: true }));
  assert.deepEqual(
    a.troubles.map((trouble) => [trouble.peer, trouble.code]),
    [[liar.id, 'protocol_violation']],
  );
});

rule('a peer that speaks hello but not this wire is update_required, and hello still works', async (bed, cleanUp) => {
  const a = await bed.host();
  const later = await foreign({
    [PROTOCOLS.hello]: (stream) => {
      stream.addEventListener('message', (event) => {
        const frame = event.data.subarray();
        stream.send(Buffer.concat([frame.subarray(0, 4), Buffer.from([2]), frame.subarray(5)]));
      });
    },
  });
  cleanUp(() => later.node.stop());
  a.link.learn(new Map([[later.id, addressesOf(later.node)]]));
  await assert.rejects(a.link.request(later.id, 'wire', bytesOf('x'), never()), refusal('update_required', { sent: false }));
  assert.equal(textOf(await a.link.request(later.id, 'hello', bytesOf('who'), never())), 'who');
});

rule('a handler that fails for a reason of its own ends the connection without blaming the peer', async (bed) => {
  const [a, b] = await pair(bed);
  b.answer = async () => {
    throw new Error('a fault of this host');
  };
  await assert.rejects(a.link.request(b.id, 'wire', bytesOf('x'), never()), refusal('unavailable', { sent: true }));
  assert.deepEqual(b.troubles, []);
  assert.match(bed.logged.join(), /link\.request_failed.*a fault of this host/);
  b.answer = async (_peer, _channel, bytes) => bytes;
  assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('retry'), never())), 'retry');
});

rule('an address of a peer that is no address, or dead, does not keep the good one from being tried', async (bed) => {
  const [a, b] = [await bed.host({ dialable: false }), await bed.host()];
  introduce(b, a, ['nonsense', '/ip4/127.0.0.1/tcp/1', '/ip4/300.0.0.1/tcp/7', '/dns4/host/udp/9', ...b.link.status().listen]);
  assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('x'), never())), 'x');
  introduce(b, a, ['nonsense', '/ip4/127.0.0.1/tcp/1']);
  await b.link.stop();
  await assert.rejects(a.link.request(b.id, 'wire', bytesOf('x'), never()), refusal('unavailable'));
});

test('libp2p: an address that cannot be listened on is unavailable and named', async () => {
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  const busy = `/ip4/127.0.0.1/tcp/${(taken.address() as AddressInfo).port}`;
  try {
    for (const listen of [busy, '/ip4/192.0.2.1/tcp/4001', 'nonsense']) {
      const link = createLibp2pLink({ key: hostKeyFromSeed(randomBytes(32)), listen: [listen], clock: new ManualClock(), log: silentLog });
      const { start } = recordingHost(hostKeyFromSeed(randomBytes(32)).hostId, link);
      await assert.rejects(start(), (error: Error) => refusal('unavailable')(error) && error.message.includes(listen));
      await link.stop();
    }
  } finally {
    taken.close();
  }
});

test('libp2p: a wildcard address is listed as the addresses of the interfaces', async () => {
  const key = hostKeyFromSeed(randomBytes(32));
  const { host, start } = recordingHost(
    key.hostId,
    createLibp2pLink({ key, listen: ['/ip4/0.0.0.0/tcp/0'], clock: new ManualClock(), log: silentLog }),
  );
  await start();
  try {
    const { listen } = host.link.status();
    assert.ok(
      listen.some((address) => /^\/ip4\/127\.0\.0\.1\/tcp\/[1-9]\d*$/.test(address)),
      listen.join(),
    );
    assert.ok(
      listen.every((address) => !address.includes('0.0.0.0') && !address.includes('/p2p/')),
      listen.join(),
    );
  } finally {
    await host.link.stop();
  }
});

test('libp2p: nothing keeps a process alive after stop', { timeout: 60_000 }, async () => {
  const url = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href);
  const script = `
    import { realBed } from ${url('./bed.ts')};
    import { pair, never } from ${url('../../contract/link.ts')};
    const bed = realBed();
    const [a, b] = await pair(bed);
    await a.link.request(b.id, 'wire', new Uint8Array(1000), never());
    a.link.learn(new Map([[b.id, ['/ip4/127.0.0.1/tcp/1']]]));
    await bed.close();
    process.stdout.write(process.getActiveResourcesInfo().includes('TCPSocketWrap') ? 'sockets are left' : 'no socket is left');
  `;
  const child = spawn(process.execPath, ['--input-type=module', '--no-warnings', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  const output: Buffer[] = [];
  child.stdout.on('data', (bytes: Buffer) => output.push(bytes));
  // Ends by itself: nobody kills it. (The library's own timers keep it for up to a second.)
  const [code] = (await once(child, 'close')) as [number | null];
  assert.deepEqual([code, Buffer.concat(output).toString()], [0, 'no socket is left']);
});
