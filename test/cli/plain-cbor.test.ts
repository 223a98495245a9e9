/**
 * The small codec, frame and hash of a command against those of the daemon: the same values, and the same refusals.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { test } from 'node:test';
import fc from 'fast-check';
import { frameOf, readFrame } from '../../cli/one-frame.ts';
import * as plain from '../../cli/plain-cbor.ts';
import { SHORT_BYTES, sha256 } from '../../cli/sha256.ts';
import * as codec from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import { encodeFrame } from '../../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import { readFrames } from '../framing.ts';

const numRuns = 500;

const leaf = fc.oneof(
  fc.constantFrom(null, true, false, 0, 23, 24, 255, 256, 65_535, 65_536, 0xffffffff, 0x100000000, -1, -24, -25, -256, -257),
  fc.maxSafeInteger(),
  fc.string({ unit: 'grapheme', maxLength: 300 }),
  fc.constantFrom('\ufeffx', '\ufffd', 'a\ufffdb', '\u0000'),
  fc.uint8Array({ maxLength: 300 }),
);
const key = fc.string({ maxLength: 12 }).filter((word) => word !== '__proto__');
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof({ maxDepth: 4 }, leaf, fc.array(tie('value'), { maxLength: 30 }), fc.dictionary(key, tie('value'), { maxKeys: 6 })),
}));

/** Without the prototype that a generated map may lack. */
const normal = (found: unknown): unknown => codec.decode(codec.encode(found));

function outcome(decode: (bytes: Uint8Array) => unknown, bytes: Uint8Array): { value: unknown } | 'refused' {
  try {
    return { value: decode(bytes) };
  } catch (error) {
    assert.ok(error instanceof AxError && error.code === 'protocol_violation', String(error));
    return 'refused';
  }
}

test('each codec reads what the other has written', () => {
  fc.assert(
    fc.property(value, (found) => {
      assert.deepEqual(codec.decode(plain.encode(found)), normal(found));
      assert.deepEqual(plain.decode(codec.encode(found)), normal(found));
    }),
    { numRuns },
  );
  for (const fraction of [0.5, -1.25, 1e300, 3.1415926, 5.960464477539063e-8, 65_504])
    assert.equal(plain.decode(codec.encode(fraction)), fraction);
  assert.deepEqual(plain.encode({ a: undefined, b: 1 }), plain.encode({ b: 1 }));
  assert.throws(() => plain.encode(0.5), TypeError);
});

test('bytes that are broken or loose are refused by both or read alike by both', () => {
  const broken = fc.tuple(value, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 3 }), fc.nat(4)).map(([found, changes, cut]) => {
    const bytes = Uint8Array.from(codec.encode(found));
    for (const [at, byte] of changes) bytes[at % bytes.length] = byte;
    return bytes.subarray(0, bytes.length - Math.min(cut, bytes.length));
  });
  fc.assert(
    fc.property(fc.oneof(broken, fc.uint8Array({ maxLength: 40 })), (bytes) => {
      assert.deepEqual(outcome(plain.decode, bytes), outcome(codec.decode, bytes), Buffer.from(bytes).toString('hex'));
    }),
    { numRuns: numRuns * 10 },
  );
  const deep = (levels: number): string => '81'.repeat(levels) + '00';
  const words = `1800 190001 1a00000001 1b0000000000000001 1b0020000000000000 3b001fffffffffffff 3b0020000000000000 f7 f97e00 f97c00
    fb7ff0000000000000 f8ff c000 9fff 5f4100ff 0000 a10000 a2616100616100 a161 62c328 63efbbbf 7bffffffffffffffff 9bffffffffffffffff
    9a0002ffff 8080`.split(/\s+/);
  for (const hex of ['', ...words, deep(16), deep(17), `${'81'.repeat(16)}80`]) {
    const bytes = Buffer.from(hex, 'hex');
    assert.deepEqual(outcome(plain.decode, bytes), outcome(codec.decode, bytes), hex);
  }
  assert.equal(outcome(plain.decode, codec.encode(JSON.parse('{"__proto__":{"a":1}}'))), 'refused');
});

test('too many values are refused by both', () => {
  const list = (length: number): Uint8Array => codec.encode(Array.from({ length }, () => 0));
  for (const length of [131_071, 131_072])
    assert.equal(outcome(plain.decode, list(length)) === 'refused', outcome(codec.decode, list(length)) === 'refused');
});

test('one frame is written as the daemon writes it, and read however it is cut', async () => {
  for (const length of [1, 2, 70_000]) {
    const payload = new Uint8Array(length).fill(7);
    assert.deepEqual(frameOf(payload), encodeFrame(payload));
    const frame = frameOf(payload);
    for (const cut of [1, 3, 4, 5, frame.length]) {
      const parts = [frame.subarray(0, cut), frame.subarray(cut)].filter((part) => part.length > 0);
      assert.deepEqual(await readFrame(Readable.from(parts, { objectMode: false })), payload);
    }
  }
  assert.throws(() => frameOf(new Uint8Array(MAX_FRAME_BYTES + 1)), { code: 'too_large' });
});

test('a frame that is empty, over the limit or cut off is refused as the daemon refuses it', async () => {
  const asMany = async (source: Readable): Promise<unknown> => (await readFrames(source)[Symbol.asyncIterator]().next()).value;
  for (const hex of ['', '00000000', 'ffffffff', '00', '000000', '00000002', '0000000201']) {
    const source = (): Readable => Readable.from(hex === '' ? [] : [Buffer.from(hex, 'hex')], { objectMode: false });
    const told = async (reading: Promise<unknown>): Promise<unknown> =>
      reading.then(
        (found) => ({ found }),
        (error: AxError) => [error.code, error.message],
      );
    assert.deepEqual(await told(readFrame(source())), await told(asMany(source())), hex);
  }
});

test('the hash of a body of any length is SHA-256', () => {
  for (const length of [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1, 70_000]) {
    const bytes = Uint8Array.from({ length }, (_, i) => (i * 31 + length) & 0xff);
    assert.equal(sha256(bytes), createHash('sha256').update(bytes).digest('hex'), `${length} bytes`);
  }
});
