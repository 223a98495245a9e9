/**
 * Framing and the channel header: every way of cutting the bytes gives the same frames, every fault is a protocol_violation.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { channelFrameHeader, channelHeader, parseChannelFrame } from '../../protocol/channel.ts';
import { AxError } from '../../protocol/errors.ts';
import { FRAME_HEADER_BYTES, FrameReader, encodeFrame, frameHeader } from '../../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import { cutByLibrary, cutByReader } from '../framing.ts';

const refusal = (code: string) => (error: unknown) => error instanceof AxError && error.code === code;

function pieces(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const list: Uint8Array[] = [];
  let at = 0;
  for (const cut of cuts) {
    const next = Math.min(bytes.length, at + cut);
    if (next > at) list.push(bytes.subarray(at, next));
    at = next;
  }
  if (at < bytes.length) list.push(bytes.subarray(at));
  return list;
}

const plain = (payload: Uint8Array): Uint8Array => Uint8Array.from(payload);
const cutting = fc.array(fc.integer({ min: 0, max: 30 }), { maxLength: 30 });

test('frames come out as they went in, however the bytes are cut', () => {
  const payloads = fc.array(fc.uint8Array({ minLength: 1, maxLength: 40 }), { maxLength: 8 });
  fc.assert(
    fc.property(payloads, cutting, (list, cuts) => {
      const bytes = Buffer.concat(list.map((payload) => encodeFrame(payload)));
      assert.deepEqual(cutByReader(pieces(bytes, cuts)), { frames: list.map(plain), refused: undefined });
    }),
  );
});

test('any bytes give the frames and the refusal that it-length-prefixed gives, cut as they may be', async () => {
  const some = fc.oneof(
    fc.uint8Array({ maxLength: 64 }),
    fc
      .tuple(fc.array(fc.uint8Array({ minLength: 1, maxLength: 20 }), { maxLength: 5 }), fc.uint8Array({ maxLength: 8 }))
      .map(([list, tail]) => new Uint8Array(Buffer.concat([...list.map((payload) => encodeFrame(payload)), tail]))),
  );
  await fc.assert(
    fc.asyncProperty(some, cutting, async (bytes, cuts) => {
      const [own, second] = [cutByReader(pieces(bytes, cuts), 16), await cutByLibrary(pieces(bytes, cuts), 16)];
      assert.deepEqual(
        [own.frames, own.refused?.code, own.refused?.message],
        [second.frames, second.refused?.code, second.refused?.message],
      );
    }),
    { numRuns: 500 },
  );
});

test('a frame that comes in 200,000 chunks at once is put together within a second', () => {
  const payload = Uint8Array.from({ length: 200_000 }, (_, at) => at);
  const reader = new FrameReader();
  for (const byte of encodeFrame(payload)) reader.push(Uint8Array.of(byte));
  const from = process.cpuUsage();
  assert.deepEqual(reader.next(), payload);
  assert.ok(process.cpuUsage(from).user < 1_000_000, 'it moves what is left with every chunk');
});

test('an end inside a frame is a violation at every byte, an end between frames is not', () => {
  const bytes = Buffer.concat([encodeFrame(Uint8Array.of(1, 2, 3)), encodeFrame(Uint8Array.of(4))]);
  for (let length = 0; length <= bytes.length; length++) {
    for (const cuts of [[], [1, 2, 3, 1, 1, 1]]) {
      const { refused } = cutByReader(pieces(bytes.subarray(0, length), cuts));
      assert.equal(refused?.code, [0, 7, 12].includes(length) ? undefined : 'protocol_violation', `cut at ${length}`);
    }
  }
});

test('a length of zero is refused', () => {
  assert.equal(cutByReader([Buffer.from('0000000001', 'hex')]).refused?.code, 'protocol_violation');
});

test('an oversized length is refused when its four bytes are there, before any payload is kept', () => {
  const reader = new FrameReader();
  for (const byte of [0x00, 0x11, 0x00]) {
    reader.push(Uint8Array.of(byte));
    assert.equal(reader.next(), undefined);
  }
  reader.push(Uint8Array.of(0x01));
  assert.throws(() => reader.next(), refusal('protocol_violation'));
  assert.equal(reader.heldBytes, 0);
});

test('a limit that changes counts at each length, and frames not asked for yet are not judged', () => {
  let limit = 4;
  const reader = new FrameReader(() => limit);
  reader.push(Buffer.concat([encodeFrame(new Uint8Array(4)), encodeFrame(new Uint8Array(8)), encodeFrame(new Uint8Array(8))]));
  assert.equal(reader.next()?.length, 4);
  limit = 8;
  assert.equal(reader.next()?.length, 8);
  limit = 4;
  assert.throws(() => reader.next(), refusal('protocol_violation'));
});

test('a frame that lies in one chunk is not copied, and what is held is known to the byte', () => {
  const reader = new FrameReader();
  const chunk = Buffer.concat([encodeFrame(new Uint8Array(10)), encodeFrame(new Uint8Array(20)).subarray(0, 14)]);
  reader.push(chunk);
  assert.equal(reader.next()?.buffer, chunk.buffer);
  assert.equal(reader.heldBytes, 14);
  assert.equal(reader.next(), undefined);
  assert.equal(reader.heldBytes, 10);
  reader.push(new Uint8Array(10));
  assert.equal(reader.next()?.length, 20);
  assert.equal(reader.heldBytes, 0);
});

test('memory that is given back is never that of a frame handed out', () => {
  const sizes = (max: number): fc.Arbitrary<number[]> => fc.array(fc.integer({ min: 1, max }), { minLength: 1, maxLength: 12 });
  let given = 0;
  fc.assert(
    fc.property(sizes(40_000), sizes(30_000), (lengths, cuts) => {
      const payloads = lengths.map((length, n) => new Uint8Array(length).fill(n + 1));
      const bytes = Buffer.concat(payloads.map((payload) => encodeFrame(payload)));
      // Each chunk in memory of its own, as sockets and ciphers hand them over.
      const chunks = pieces(bytes, [...cuts, ...cuts, ...cuts]).map((piece) => Uint8Array.from(piece));
      const reader = new FrameReader();
      const frames: Uint8Array[] = [];
      for (const chunk of chunks) {
        reader.push(chunk);
        for (let frame = reader.next(); frame !== undefined; frame = reader.next()) frames.push(frame);
      }
      given += chunks.filter((chunk) => chunk.length === 0).length;
      assert.deepEqual(frames, payloads);
    }),
  );
  assert.ok(given > 0);
});

test('a frame of exactly the limit passes, one byte more cannot be written or read', () => {
  const largest = new Uint8Array(MAX_FRAME_BYTES).fill(7);
  const { frames } = cutByReader(pieces(encodeFrame(largest), [100, 70_000]));
  assert.deepEqual(frames, [largest]);
  assert.throws(() => encodeFrame(new Uint8Array(MAX_FRAME_BYTES + 1)), refusal('too_large'));
  assert.throws(() => frameHeader(0), refusal('invalid_argument'));
  const header = frameHeader(MAX_FRAME_BYTES + 1, MAX_FRAME_BYTES + 1);
  assert.equal(header.length, FRAME_HEADER_BYTES);
  assert.equal(cutByReader([header]).refused?.code, 'protocol_violation');
});

test('the header of a channel frame is both headers, one behind the other', () => {
  for (const [kind, number, bytes] of [
    ['request', 1, 0],
    ['answer', 0xffffffff, MAX_FRAME_BYTES],
  ] as const) {
    const separate = Buffer.concat([frameHeader(5 + bytes, 5 + bytes), channelHeader(kind, number)]);
    assert.deepEqual(Buffer.from(channelFrameHeader(kind, number, bytes)), separate);
  }
  assert.throws(() => channelFrameHeader('answer', 1, MAX_FRAME_BYTES + 1), refusal('too_large'));
});

test('a channel header carries kind and number and refuses the wrong direction', () => {
  for (const kind of ['request', 'answer'] as const) {
    for (const number of [1, 255, 65_536, 0xffffffff]) {
      const frame = Buffer.concat([channelHeader(kind, number), Buffer.from('abc')]);
      const parsed = parseChannelFrame(frame, kind);
      assert.equal(parsed.number, number);
      assert.equal(Buffer.from(parsed.payload).toString(), 'abc');
      assert.throws(() => parseChannelFrame(frame, kind === 'request' ? 'answer' : 'request'), refusal('protocol_violation'));
    }
  }
  const bad = ['', '01', '01000000', '0100000000', '0300000001', '0000000001'];
  for (const hex of bad) assert.throws(() => parseChannelFrame(Buffer.from(hex, 'hex'), 'request'), refusal('protocol_violation'), hex);
});

test('a large chunk is given back when all of it was copied, and never while a payload is a view on it', () => {
  const [head, rest] = [new Uint8Array(20_000), new Uint8Array(20_000)];
  head.set(frameHeader(100));
  head.set(frameHeader(FRAME_HEADER_BYTES), 104);
  head.set(frameHeader(30_000), 112);
  const reader = new FrameReader();
  reader.push(head);
  const [first, second] = [reader.next()!, reader.next()!];
  assert.equal(reader.next(), undefined);
  assert.deepEqual([first.length, second.length, head.length, reader.heldBytes], [100, FRAME_HEADER_BYTES, 20_000, 19_884]);
  reader.push(rest.slice(0, 10_116));
  assert.equal(reader.next()!.length, 30_000);

  const whole = new Uint8Array(20_000);
  whole.set(frameHeader(30_000));
  reader.push(whole);
  reader.push(rest);
  assert.equal(reader.next()!.length, 30_000);
  assert.deepEqual([whole.length, rest.length], [0, 20_000], 'the end of the second belongs to the next frame');
});
