/**
 * Framing and the channel header: every way of cutting the bytes gives the same frames, every fault is a protocol_violation.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { channelHeader, parseChannelFrame } from '../../protocol/channel.ts';
import { AxError } from '../../protocol/errors.ts';
import { FRAME_HEADER_BYTES, encodeFrame, frameHeader, readFrames } from '../../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';

const refusal = (code: string) => (error: unknown) => error instanceof AxError && error.code === code;

async function* pieces(bytes: Uint8Array, cuts: readonly number[]): AsyncGenerator<Uint8Array> {
  let at = 0;
  for (const cut of cuts) {
    const next = Math.min(bytes.length, at + cut);
    if (next > at) yield bytes.subarray(at, next);
    at = next;
  }
  if (at < bytes.length) yield bytes.subarray(at);
}

async function all(source: AsyncIterable<Uint8Array>, max?: number): Promise<Buffer[]> {
  const frames: Buffer[] = [];
  for await (const frame of readFrames(source, max)) frames.push(Buffer.from(frame));
  return frames;
}

test('frames come out as they went in, however the bytes are cut', async () => {
  const payloads = fc.array(fc.uint8Array({ minLength: 1, maxLength: 40 }), { maxLength: 8 });
  await fc.assert(
    fc.asyncProperty(payloads, fc.array(fc.integer({ min: 0, max: 30 }), { maxLength: 30 }), async (list, cuts) => {
      const bytes = Buffer.concat(list.map((payload) => encodeFrame(payload)));
      assert.deepEqual(
        await all(pieces(bytes, cuts)),
        list.map((payload) => Buffer.from(payload)),
      );
    }),
  );
});

test('an end inside a frame is a violation at every byte, an end between frames is not', async () => {
  const bytes = Buffer.concat([encodeFrame(Uint8Array.of(1, 2, 3)), encodeFrame(Uint8Array.of(4))]);
  for (let length = 0; length <= bytes.length; length++) {
    const run = all(pieces(bytes.subarray(0, length), []));
    if ([0, 7, 12].includes(length)) await run;
    else await assert.rejects(run, refusal('protocol_violation'), `cut at ${length}`);
  }
});

test('any bytes give frames or a protocol_violation and nothing else', async () => {
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 64 }), async (bytes) => {
      try {
        await all(pieces(bytes, [3, 5, 1]), 16);
      } catch (error) {
        if (!refusal('protocol_violation')(error)) throw error;
      }
    }),
  );
});

test('a length of zero is refused', async () => {
  await assert.rejects(all(pieces(Buffer.from('0000000001', 'hex'), [])), refusal('protocol_violation'));
});

test('an oversized length is refused when its four bytes are there, before another byte is pulled', async () => {
  let pulled = 0;
  const source = (async function* (): AsyncGenerator<Uint8Array> {
    for (const byte of [0x00, 0x11, 0x00, 0x01]) yield Uint8Array.of(byte);
    for (;;) {
      pulled += 1;
      yield new Uint8Array(65536);
    }
  })();
  await assert.rejects(all(source), refusal('protocol_violation'));
  assert.equal(pulled, 0);
});

test('a frame of exactly the limit passes, one byte more cannot be written or read', async () => {
  const largest = new Uint8Array(MAX_FRAME_BYTES).fill(7);
  const [back] = await all(pieces(encodeFrame(largest), [100, 70_000]));
  assert.equal(back?.length, MAX_FRAME_BYTES);
  assert.throws(() => encodeFrame(new Uint8Array(MAX_FRAME_BYTES + 1)), refusal('too_large'));
  assert.throws(() => frameHeader(0), refusal('invalid_argument'));
  const header = frameHeader(MAX_FRAME_BYTES + 1, MAX_FRAME_BYTES + 1);
  assert.equal(header.length, FRAME_HEADER_BYTES);
  await assert.rejects(all(pieces(header, [])), refusal('protocol_violation'));
});

test('the source is pulled no further than the frames asked for', async () => {
  let pulled = 0;
  const source = (async function* (): AsyncGenerator<Uint8Array> {
    for (;;) {
      pulled += 1;
      yield encodeFrame(Uint8Array.of(pulled));
    }
  })();
  const frames = readFrames(source);
  await frames.next();
  await frames.next();
  assert.equal(pulled, 2);
  await frames.return();
});

test('an error of the source passes through untouched', async () => {
  const broken = new Error('reset');
  const source = (async function* (): AsyncGenerator<Uint8Array> {
    yield Uint8Array.of(0, 0);
    throw broken;
  })();
  await assert.rejects(all(source), (error) => error === broken);
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
