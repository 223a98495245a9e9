/** Memory given back: at once, and never that of bytes that somebody else may look at. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pass, release, releaseFrame, releasePassed, unfilled } from '../../protocol/memory.ts';

const LARGE = 64 * 1024;

test('large bytes of their own are given back at once, also with the head of the frame that they came in', () => {
  const whole = new Uint8Array(LARGE);
  const frame = new Uint8Array(LARGE + 100);
  const inFrame = frame.subarray(90, 90 + LARGE);
  const buffer = Buffer.alloc(LARGE);
  for (const bytes of [whole, buffer]) release(bytes);
  releaseFrame(inFrame);
  assert.deepEqual(
    [whole, inFrame, frame, buffer].map((bytes) => bytes.length),
    [0, 0, 0, 0],
  );
});

test('what shares its memory with other bytes, or is small, stays as it is', () => {
  const many = new Uint8Array(4 * LARGE);
  const shared = new Uint8Array(new SharedArrayBuffer(LARGE));
  const chunk = new Uint8Array(LARGE);
  for (const bytes of [many.subarray(0, 2 * LARGE), chunk.subarray(LARGE / 2), new Uint8Array(8192), Buffer.from('pooled'), shared]) {
    const { length } = bytes;
    release(bytes);
    releaseFrame(bytes);
    assert.equal(bytes.length, length);
  }
  assert.equal(many.length, 4 * LARGE);
});

test('the beginning of a frame that is more than the half of it takes the rest along only when it is released as a frame', () => {
  const chunk = new Uint8Array(2 * LARGE);
  const most = chunk.subarray(1);
  release(most);
  assert.equal(chunk.length, 2 * LARGE);
  releaseFrame(most);
  assert.equal(chunk.length, 0);
});

test('bytes behind a head are all of their memory only when they begin right behind it and nothing follows', () => {
  const [behind, further, before] = [new Uint8Array(LARGE), new Uint8Array(LARGE), new Uint8Array(LARGE)];
  release(behind.subarray(12), 12);
  release(further.subarray(13), 12);
  release(before.subarray(12, LARGE - 1), 12);
  assert.deepEqual(
    [behind, further, before].map((bytes) => bytes.length),
    [0, LARGE, LARGE],
  );
});

test('bytes are released once or twice with the same outcome', () => {
  const bytes = new Uint8Array(LARGE);
  release(bytes);
  release(bytes);
  assert.equal(bytes.length, 0);
});

test('bytes that were passed on are given back with the last of them that is written out, when that call is over, and no others are', async () => {
  const [passed, own, small] = [pass(new Uint8Array(LARGE)), new Uint8Array(LARGE), pass(new Uint8Array(100))];
  for (const bytes of [passed.subarray(0, LARGE - 1), own, small]) releasePassed(bytes);
  assert.deepEqual(
    [passed, own, small].map((bytes) => bytes.length),
    [LARGE, LARGE, 100],
  );
  const last = passed.subarray(LARGE - 1);
  for (let n = 0; n < 2; n++) releasePassed(last);
  assert.deepEqual([passed.length, last.length], [LARGE, 1]);
  await Promise.resolve();
  assert.deepEqual([passed.length, last.length], [0, 0]);
});

test('memory that is to be filled is all of its own, whatever its size, so that it can be given back', () => {
  for (const size of [1, 8192, 8193, LARGE]) {
    const bytes = unfilled(size);
    assert.deepEqual([bytes.constructor, bytes.length, bytes.buffer.byteLength], [Uint8Array, size, size]);
  }
});
