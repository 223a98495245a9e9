/**
 * Peers that attack below and around the requests: the muxer, the size of frames, the number of connections.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import { test } from 'node:test';
import type { Connection, Stream } from '@libp2p/interface';
import { PROTOCOLS } from '../../../daemon/link/connection.ts';
import type { Link } from '../../../daemon/link/link.ts';
import { startNode } from '../../../daemon/link/node.ts';
import { channelFrameHeader, MAX_HELLO_BYTES, MAX_STRANGER_BYTES } from '../../../protocol/channel.ts';
import type { AxError } from '../../../protocol/errors.ts';
import { hostKeyFromSeed } from '../../../protocol/identity.ts';
import { bytesOf, introduce, never, pair, recordingHost, refusal, textOf } from '../../contract/link.ts';
import type { LinkHost } from '../../contract/link.ts';
import { ManualClock, rule, turns, until } from './bed.ts';
import type { RealBed } from './bed.ts';
import { addressesOf, foreign, forgiving, muxerFrame, portOf, sendBelow } from './foreign.ts';
import type { Foreign } from './foreign.ts';

type Standing = 'stranger' | 'named peer';
const STANDINGS: readonly Standing[] = ['stranger', 'named peer'];

/** A pair and a foreign node that is connected to its second host. */
async function attacked(bed: RealBed, cleanUp: (run: () => unknown) => void, standing: Standing): Promise<Attack> {
  const [a, b] = await pair(bed);
  const rude = await foreign();
  cleanUp(() => rude.node.stop());
  if (standing === 'named peer')
    b.link.learn(
      new Map([
        [a.id, []],
        [rude.id, []],
      ]),
    );
  const connection = await rude.dial(b);
  forgiving(connection);
  await until(() => b.link.status().connected.includes(rude.id), 'the connection');
  return { a, b, rude, connection };
}

interface Attack {
  readonly a: LinkHost;
  readonly b: LinkHost;
  readonly rude: Foreign;
  readonly connection: Connection;
}

async function cutOff({ a, b, rude, connection }: Attack): Promise<void> {
  await until(() => connection.status !== 'open' && b.troubles.length === 1, 'the end');
  assert.deepEqual([b.troubles[0]?.peer, b.troubles[0]?.code], [rude.id, 'protocol_violation']);
  await assert.rejects(rude.open(b));
  assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('fine'), never())), 'fine');
}

const PING = muxerFrame(2, 1, 0, 7);
const opening = (n: number): Buffer => Buffer.concat([muxerFrame(1, 1, 1001 + 2 * n, 0), muxerFrame(1, 8, 1001 + 2 * n, 0)]);

for (const standing of STANDINGS) {
  rule(`a ${standing} that pings without end is cut off at once`, async (bed, cleanUp) => {
    const attack = await attacked(bed, cleanUp, standing);
    for (let n = 0; n < 60; n++) sendBelow(attack.connection, PING);
    await turns(100);
    assert.equal(attack.connection.status, 'open');
    sendBelow(attack.connection, Buffer.concat(Array.from({ length: 5000 }, () => PING)));
    await cutOff(attack);
  });

  rule(`a ${standing} that opens and resets streams without end is cut off at once`, async (bed, cleanUp) => {
    const attack = await attacked(bed, cleanUp, standing);
    for (let n = 0; n < 60; n++) sendBelow(attack.connection, opening(n));
    await turns(100);
    assert.equal(attack.connection.status, 'open');
    sendBelow(attack.connection, Buffer.concat(Array.from({ length: 10 }, (_, n) => opening(60 + n))));
    await cutOff(attack);
  });

  rule(`a ${standing} that announces a frame of the muxer longer than any window is cut off after one window`, async (bed, cleanUp) => {
    const attack = await attacked(bed, cleanUp, standing);
    sendBelow(attack.connection, muxerFrame(0, 1, 1001, 0xffffffff));
    let sent = 0;
    while (sent < 64 * 1024 * 1024 && sendBelow(attack.connection, new Uint8Array(64 * 1024))) {
      sent += 64 * 1024;
      await turns(5);
    }
    // A window, and what was on its way in buffers when it was full.
    assert.ok(sent < 8 * 1024 * 1024, `${sent} bytes were taken`);
    await cutOff(attack);
  });
}

rule('a peer that pings and opens streams now and then stays for good', async (bed, cleanUp) => {
  const { b, connection } = await attacked(bed, cleanUp, 'named peer');
  for (let round = 0; round < 4; round++) {
    for (let n = 0; n < 40; n++) sendBelow(connection, Buffer.concat([PING, opening(40 * round + n)]));
    await turns(100);
    await bed.pass(10_000);
  }
  assert.deepEqual([connection.status, b.troubles], ['open', []]);
});

rule('frames without content end the connection of a stranger after some thousands, not that of a named peer', async (bed, cleanUp) => {
  const updates = Buffer.concat(Array.from({ length: 5000 }, () => muxerFrame(1, 0, 9, 1)));
  const named = await attacked(bed, cleanUp, 'named peer');
  sendBelow(named.connection, updates);
  await turns(200);
  assert.deepEqual([named.connection.status, named.b.troubles], ['open', []]);
  for (let n = 0; n < 50; n++) sendBelow(named.connection, updates);
  await cutOff(named);
  const unknown = await attacked(bed, cleanUp, 'stranger');
  sendBelow(unknown.connection, updates);
  await cutOff(unknown);
});

/** A request or an answer whose payload is `bytes` zeros. */
function requestOf(bytes: number, kind = 1): Buffer {
  const frame = Buffer.alloc(4 + 5 + bytes);
  frame.writeUInt32BE(5 + bytes, 0);
  frame[4] = kind;
  frame.writeUInt32BE(1, 5);
  return frame;
}

rule('a stranger may send 16 KiB on the wire; one byte more is a violation before any of it is handled', async (bed, cleanUp) => {
  const attack = await attacked(bed, cleanUp, 'stranger');
  const stream = await attack.connection.newStream(PROTOCOLS.wire);
  stream.send(requestOf(MAX_STRANGER_BYTES));
  await until(() => attack.b.seen.length === 1, 'the request');
  stream.send(requestOf(MAX_STRANGER_BYTES + 1).subarray(0, 9));
  await cutOff(attack);
  assert.equal(attack.b.seen.filter(({ peer }) => peer === attack.rude.id).length, 1);
});

for (const standing of STANDINGS) {
  rule(`a ${standing} may say 4 KiB on hello; one byte more is a violation`, async (bed, cleanUp) => {
    const attack = await attacked(bed, cleanUp, standing);
    const stream = await attack.connection.newStream(PROTOCOLS.hello);
    stream.send(requestOf(MAX_HELLO_BYTES));
    await until(() => attack.b.seen.length === 1, 'the hello');
    stream.send(requestOf(MAX_HELLO_BYTES + 1).subarray(0, 9));
    await cutOff(attack);
  });
}

rule('an answer to a hello over 4 KiB is a violation, and a longer hello is not sent', async (bed, cleanUp) => {
  const a = await bed.host();
  const liar = await foreign({
    [PROTOCOLS.hello]: (stream) => stream.addEventListener('message', () => void stream.send(requestOf(MAX_HELLO_BYTES + 1, 2))),
  });
  cleanUp(() => liar.node.stop());
  a.link.learn(new Map([[liar.id, addressesOf(liar.node)]]));
  const long = new Uint8Array(MAX_HELLO_BYTES + 1);
  await assert.rejects(a.link.request(liar.id, 'hello', long, never()), refusal('too_large', { sent: false, limit: MAX_HELLO_BYTES }));
  await assert.rejects(a.link.request(liar.id, 'hello', bytesOf('who'), never()), refusal('unavailable', { sent: true }));
  assert.equal(a.troubles.length, 1);
});

rule('a stranger that becomes known while connected sends whole messages on the stream it already has', async (bed) => {
  const [a, b] = [await bed.host({ dialable: false }), await bed.host()];
  introduce(b, a);
  assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('let me in'), never())), 'let me in');
  introduce(a, b, []);
  for (let n = 0; n < 8; n++) await a.link.request(b.id, 'wire', new Uint8Array(1024 * 1024), never());
  assert.deepEqual([b.troubles, b.peers.length], [[], 1]);
});

/** A way to a host that can stop carrying what the host says. */
async function valve(host: LinkHost, cleanUp: (run: () => unknown) => void): Promise<{ port: number; shut: () => void }> {
  const sockets: Socket[] = [];
  const server = createServer((client) => {
    const upstream = connect({ port: portOf(host), host: '127.0.0.1' });
    sockets.push(upstream, client);
    client.on('data', (bytes) => void upstream.write(bytes));
    upstream.on('data', (bytes) => void client.write(bytes));
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      socket.on('close', () => other.destroy());
      socket.on('error', () => other.destroy());
    }
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanUp(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, shut: () => void sockets[0]?.pause() };
}

rule(
  'a peer that opens its windows wide and reads nothing is sent little, and let go when it gives no sign of life',
  async (bed, cleanUp) => {
    const a = await bed.host();
    const { port, shut } = await valve(a, cleanUp);
    const deaf = await foreign({ [PROTOCOLS.wire]: (stream) => stream.addEventListener('message', () => undefined) });
    cleanUp(() => deaf.node.stop());
    a.link.learn(new Map([[deaf.id, []]]));
    const connection = await deaf.dial(a, port);
    await until(() => a.link.status().connected.includes(deaf.id), 'the connection');
    const ends = Array.from({ length: 60 }, () =>
      a.link.request(deaf.id, 'wire', new Uint8Array(1024 * 1024), never()).catch((error: AxError) => error.details?.['sent']),
    );
    await until(() => connection.streams.length > 0, 'the first request');
    shut();
    const [stream] = connection.streams;
    for (let n = 0; n < 200; n++) {
      sendBelow(connection, muxerFrame(1, 0, Number(stream?.id), 1024 * 1024));
      await turns(5);
    }
    await bed.pass(70_000);
    const left = (await Promise.all(ends)).filter((sent) => sent === true).length;
    assert.ok(left <= 12, `${left} requests left this host`);
  },
);

test('libp2p: a connection ends when more than some MiB wait for a peer that does not read', { timeout: 60_000 }, async () => {
  const last: (() => unknown)[] = [];
  const faults: string[] = [];
  const key = hostKeyFromSeed(randomBytes(32));
  const ignore = (): void => undefined;
  const node = await startNode(key, ['/ip4/127.0.0.1/tcp/0'], new ManualClock(), {
    opened: ignore,
    closed: ignore,
    incoming: ignore,
    refuses: () => false,
    trusts: () => true,
    faulted: (error) => assert.fail(error),
    violated: (_connection, error) => void faults.push(error.code),
  });
  const peer = await foreign();
  try {
    const { host } = recordingHost(key.hostId, { status: () => ({ listen: addressesOf(node), connected: [] }) } as unknown as Link);
    const { port, shut } = await valve(host, (run) => last.push(run));
    await peer.dial(host, port);
    await until(() => node.getConnections().length === 1, 'the connection');
    const [connection] = node.getConnections() as [Connection];
    shut();
    let sent = 0;
    // Answers to pings, as many as no peer may ask for: the muxer says them whether or not there is room.
    const answers = new Uint8Array(Buffer.concat(Array.from({ length: 5000 }, () => muxerFrame(2, 2, 0, 7))));
    for (; sent < 256 * 1024 * 1024 && sendBelow(connection, answers); sent += answers.length) await turns(1);
    assert.ok(sent < 32 * 1024 * 1024, `${sent} bytes were taken`);
    await until(() => faults.length === 1, 'the report');
    assert.deepEqual(faults, ['protocol_violation']);
  } finally {
    for (const run of last) await run();
    await peer.node.stop();
    await node.stop();
  }
});

// Only Linux lets a socket speak from any address of 127/8.
rule(
  'an address that connects without end and says nothing holds few handshakes, and other addresses get in',
  async (bed, cleanUp) => {
    const b = await bed.host();
    const open = new Set<Socket>();
    const silent = Array.from({ length: 600 }, () => {
      const socket = connect({ port: portOf(b), host: '127.0.0.1', localAddress: '127.0.0.2' });
      socket.on('error', () => undefined);
      socket.on('connect', () => open.add(socket));
      socket.on('close', () => open.delete(socket));
      return socket;
    });
    cleanUp(() => silent.forEach((socket) => socket.destroy()));
    await until(() => silent.every((socket) => !socket.connecting), 'the connections');
    await until(() => open.size <= 70, `the refusals`);
    const friend = await bed.host({ dialable: false });
    introduce(friend, b, []);
    introduce(b, friend);
    assert.equal(textOf(await friend.link.request(b.id, 'wire', bytesOf('hi'), never())), 'hi');
  },
  process.platform !== 'linux',
);

rule('the violations of ever new strangers do not fill the log', async (bed, cleanUp) => {
  const b = await bed.host();
  for (let n = 0; n < 9; n++) {
    const rude = await foreign();
    cleanUp(() => rude.node.stop());
    (await rude.open(b)).send(Buffer.alloc(4));
    await until(() => rude.node.getConnections().length === 0, 'the close');
  }
  assert.equal(bed.logged.filter((line) => line.startsWith('link.violation')).length, 4);
  assert.equal(b.troubles.length, 4);
});

rule('a host that answers a request before it has left is cut off', async (bed, cleanUp) => {
  const b = await bed.host();
  let answering: Stream | undefined;
  const rude = await foreign({
    [PROTOCOLS.wire]: (stream) => {
      stream.pause(); // takes no more than the first window
      answering = stream;
    },
  });
  cleanUp(() => rude.node.stop());
  b.link.learn(new Map([[rude.id, addressesOf(rude.node)]]));
  const asked = Array.from({ length: 100 }, () => b.link.request(rude.id, 'wire', new Uint8Array(64 * 1024), never()));
  const all = Promise.allSettled(asked);
  await until(() => answering !== undefined, 'the stream');
  await turns(50);
  answering!.send(Buffer.concat([channelFrameHeader('answer', 99, 1), Buffer.of(1)]));
  await until(() => b.troubles.length === 1, 'the end');
  assert.deepEqual([b.troubles[0]?.peer, b.troubles[0]?.code], [rude.id, 'protocol_violation']);
  assert.ok((await all).every((one) => one.status === 'rejected'));
});
