/**
 * The encrypted records: the same on the wire as the plain library's, one per turn, and the end of the connection when one was touched.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { channelFrameHeader, parseChannelFrame } from '../../../protocol/channel.ts';
import { FrameReader } from '../../../protocol/frame.ts';
import { pass, releaseFrame } from '../../../protocol/memory.ts';
import { bytesOf, introduce, isUp, never, pair, refusal, textOf } from '../../contract/link.ts';
import type { LinkHost } from '../../contract/link.ts';
import { rule, turns, until } from './bed.ts';
import type { RealBed } from './bed.ts';
import { Proxy, foreign, portOf } from './foreign.ts';

/** Two hosts, the first of which dials the second through a proxy. */
async function throughProxy(
  bed: RealBed,
  cleanUp: (run: () => unknown) => void,
  alter?: Proxy['alter'],
): Promise<{ a: LinkHost; b: LinkHost; proxy: Proxy }> {
  const [a, b] = [await bed.host({ dialable: false }), await bed.host()];
  const proxy = new Proxy(portOf(b));
  if (alter !== undefined) proxy.alter = alter;
  cleanUp(() => proxy.close());
  b.link.learn(new Map([[a.id, []]]));
  introduce(b, a, [await proxy.listen()]);
  await until(() => isUp(a, b) && isUp(b, a), 'the connection');
  return { a, b, proxy };
}

/** Around the bounds of a record, of what is joined and of the muxer's window. */
const SIZES = [1, 100, 1200, 16_384, 65_000, 65_498, 65_519, 65_520, 131_072, 262_144, 1_048_576];

rule('payloads of every size pass whole, both ways, between this link and the plain library', async (bed, cleanUp) => {
  const b = await bed.host();
  const plain = await foreign();
  cleanUp(() => plain.node.stop());
  b.link.learn(new Map([[plain.id, []]]));
  const stream = await plain.open(b);
  const reader = new FrameReader(2 * 1024 * 1024);
  const answers: Uint8Array[] = [];
  stream.addEventListener('message', ({ data }) => {
    reader.push(data.subarray());
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) answers.push(parseChannelFrame(frame, 'answer').payload);
  });
  for (const [n, size] of SIZES.entries()) {
    const payload = randomBytes(size);
    stream.send(Buffer.concat([channelFrameHeader('request', n + 1, size), payload]));
    await until(() => answers.length === n + 1, `the answer of ${size} bytes`);
    assert.ok(payload.equals(answers[n]!), `${size} bytes`);
  }
});

rule('records are read the same however the network cuts them, from the first byte of the connection', async (bed, cleanUp) => {
  let seed = 1;
  const cut = (bytes: Buffer): Buffer[] => {
    const parts: Buffer[] = [];
    for (let at = 0, next = 0; at < bytes.length; at = next) {
      seed = (seed * 48_271) % 2_147_483_647;
      next = at + (bytes.length > 4096 ? 1 + (seed % 2000) : 1);
      parts.push(bytes.subarray(at, next));
    }
    return parts;
  };
  const { a, b } = await throughProxy(bed, cleanUp, cut);
  for (const size of SIZES) {
    const payload = randomBytes(size);
    assert.ok(payload.equals(await a.link.request(b.id, 'wire', payload, never())), `${size} bytes`);
  }
});

rule('a record with one bit changed ends the connection, and nothing of it is handled', async (bed, cleanUp) => {
  let touch = false;
  const { a, b } = await throughProxy(bed, cleanUp, (bytes, towards) => {
    if (touch && towards === 'host') bytes[bytes.length - 20]! ^= 1;
    return [bytes];
  });
  assert.equal(textOf(await a.link.request(b.id, 'wire', bytesOf('untouched'), never())), 'untouched');
  touch = true;
  await assert.rejects(a.link.request(b.id, 'wire', bytesOf('a request that is changed on its way'), never()), refusal('unavailable'));
  await until(() => b.peers.at(-1)?.up === false, 'the end');
  assert.deepEqual(
    b.seen.map(({ bytes }) => textOf(bytes)),
    ['untouched'],
  );
});

rule('a record that is repeated ends the connection', async (bed, cleanUp) => {
  let twice = false;
  const { a, b } = await throughProxy(bed, cleanUp, (bytes, towards) => (twice && towards === 'host' ? [bytes, bytes] : [bytes]));
  await a.link.request(b.id, 'wire', bytesOf('once'), never());
  twice = true;
  await a.link.request(b.id, 'wire', bytesOf('again'), never()).catch(refusal('unavailable'));
  await until(() => b.peers.at(-1)?.up === false, 'the end');
  assert.equal(b.seen.filter(({ bytes }) => textOf(bytes) === 'again').length <= 1, true);
});

rule('a small request costs one record each way and no word on the window', async (bed, cleanUp) => {
  const { a, b, proxy } = await throughProxy(bed, cleanUp);
  // The muxer measures the round trip at first, and the stream is opened.
  await a.link.request(b.id, 'wire', bytesOf('first'), never());
  await turns(100);
  const before = proxy.bytes;
  for (let n = 0; n < 50; n++) await a.link.request(b.id, 'wire', new Uint8Array(100), never());
  // A record's length and tag, the muxer's header, the frame's and the channel's.
  assert.equal(proxy.bytes - before, 50 * 2 * (2 + 16 + 12 + 4 + 5 + 100));
});

rule('requests that come in one chunk are handled in one turn, and their answers leave in one record', async (bed, cleanUp) => {
  const b = await bed.host();
  const plain = await foreign();
  cleanUp(() => plain.node.stop());
  b.link.learn(new Map([[plain.id, []]]));
  let turn = 0;
  const begun: number[] = [];
  b.answer = (_peer, _channel, bytes) => {
    begun.push(turn);
    setImmediate(() => void (turn += 1));
    return Promise.resolve(bytes);
  };
  const stream = await plain.open(b);
  const got: number[] = [];
  stream.addEventListener('message', ({ data }) => void got.push(data.byteLength));
  stream.send(
    Buffer.concat(Array.from({ length: 20 }, (_, n) => Buffer.concat([channelFrameHeader('request', n + 1, 7), bytesOf('request')]))),
  );
  await until(() => got.length > 0, 'the answers');
  assert.deepEqual([begun, got], [Array.from({ length: 20 }, () => 0), [20 * (4 + 5 + 7)]]);
});

rule('a stream that is opened gets a full house of large requests through, and its window does not run dry', async (bed) => {
  const [a, b] = await pair(bed);
  const payload = randomBytes(700_000);
  const answers = await Promise.all(Array.from({ length: 40 }, () => a.link.request(b.id, 'wire', payload, never())));
  assert.ok(answers.every((answer) => payload.equals(answer)));
});

rule('the memory of large payloads is given back as they pass, before any collection of garbage', async (bed) => {
  const [a, b] = await pair(bed);
  b.keepsSeen = false;
  b.answer = async (_peer, _channel, bytes) => (releaseFrame(bytes), bytesOf('here'));
  const used = (): number => process.memoryUsage().arrayBuffers;
  const before = used();
  let most = 0;
  for (let n = 0; n < 100; n++) {
    await a.link.request(b.id, 'wire', pass(new Uint8Array(512 * 1024)), never());
    most = Math.max(most, used() - before);
  }
  assert.ok(most < 1024 * 1024, `${most} bytes`);
});

rule('large payloads of many requests at the same time arrive whole over one connection, each of them once', async (bed) => {
  const [a, b] = await pair(bed);
  let handled = 0;
  b.answer = async (_peer, _channel, bytes) => ((handled += 1), bytes);
  // More than the windows of stream and socket hold, of sizes around those whose memory is given back, so that they leave in parts.
  const sizes = Array.from({ length: 300 }, (_none, n) => [200, 9000, 20_000, 131_072, 262_144, 400_000][n % 6]! + n);
  await Promise.all(
    sizes.map(async (size) => {
      const payload = randomBytes(size);
      const answer = await a.link.request(b.id, 'wire', pass(Uint8Array.from(payload)), never());
      assert.ok(payload.equals(answer), `${size} bytes`);
    }),
  );
  assert.deepEqual([handled, a.peers.length, b.peers.length], [sizes.length, 1, 1], 'no connection ended');
});

rule('a connection that ends for a mistake of this host is in its log', async (bed) => {
  const [a, b] = await pair(bed);
  await a.link.request(b.id, 'wire', bytesOf('the stream is open'), never());
  const payload = new Uint8Array(1024 * 1024);
  const asked = a.link.request(b.id, 'wire', payload, never());
  await turns(1); // the first of it has left, the rest waits for the window
  payload.buffer.transfer(0);
  await assert.rejects(asked, refusal('unavailable'));
  await until(() => bed.logged.length > 0, 'the line in the log');
  assert.match(String(bed.logged), /^link\.internal .*LinkFault: a record has another length/);
});
