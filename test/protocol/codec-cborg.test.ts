/**
 * The codec against the library it replaced: the same bytes for every value, and for all bytes the same value or the same refusal.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { decode, encode, encodePassing } from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import * as cborg from './cborg-codec.ts';
import { fromHex, hex } from './sample.ts';

const edges = [0, 23, 24, 255, 256, 65_535, 65_536, 0xffffffff, 0x100000000, Number.MAX_SAFE_INTEGER, 2 ** 53, 2 ** 60, 2 ** 64, 1e300];
const halves = fc.integer({ min: 0, max: 0xffff }).map((bits) => {
  const size = (bits >> 10) & 31 ? (1024 + (bits & 1023)) * 2 ** (((bits >> 10) & 31) - 25) : (bits & 1023) * 2 ** -24;
  return bits & 0x8000 ? -size : size;
});
const lengths = fc.constantFrom(
  0,
  1,
  15,
  16,
  17,
  22,
  23,
  24,
  25,
  31,
  32,
  33,
  34,
  63,
  64,
  65,
  66,
  255,
  256,
  4096,
  4097,
  16_383,
  16_384,
  70_000,
);
const text = fc.oneof(
  fc.string({ maxLength: 40 }),
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.string({ unit: fc.integer({ min: 0, max: 0xffff }).map((code) => String.fromCharCode(code)), maxLength: 8 }),
  fc
    .tuple(lengths, fc.constantFrom('', 'é', '\ufeff', '\ufffd', '東', '😀', '\ud800', '\udc00'))
    .map(([length, odd]) => 'x'.repeat(length) + odd),
);
const number = fc.oneof(
  fc.maxSafeInteger(),
  fc.integer({ min: -300, max: 300 }),
  fc.double(),
  fc.float(),
  halves,
  fc.constantFrom(
    ...edges,
    ...edges.map((edge) => -edge),
    ...edges.map((edge) => edge - 1),
    ...edges.map((edge) => -1 - edge),
    -0,
    5e-324,
    NaN,
  ),
);
const bytesValue = fc.oneof(
  fc.uint8Array({ maxLength: 80 }),
  lengths.map((length) => new Uint8Array(length).fill(7)),
  fc.uint8Array({ maxLength: 9 }).map((bytes) => Buffer.from(bytes)),
);
const key = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.constantFrom('id', 'to', 'seq', 'host', 'kind', 'state', 'digest', 'signed', 'createdAt', '__proto__', 'constructor'),
  },
  { weight: 2, arbitrary: fc.string({ maxLength: 5 }) },
  { weight: 1, arbitrary: text },
  { weight: 1, arbitrary: fc.nat(99).map(String) },
);
const { value: anyValue } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 5 },
    { weight: 1, arbitrary: fc.constantFrom(null, undefined, true, false) },
    { weight: 2, arbitrary: number },
    { weight: 3, arbitrary: text },
    { weight: 2, arbitrary: bytesValue },
    { weight: 2, arbitrary: fc.array(tie('value'), { maxLength: 30 }) },
    { weight: 3, arbitrary: fc.dictionary(key, tie('value'), { maxKeys: 30 }) },
  ),
}));

/** Both tell the same of these bytes. */
function bothDecode(bytes: Uint8Array): void {
  let expected: unknown;
  try {
    expected = cborg.decode(bytes);
  } catch {
    assert.throws(
      () => decode(bytes),
      (error) => error instanceof AxError && error.code === 'protocol_violation',
      hex(bytes),
    );
    return;
  }
  const found = decode(bytes);
  assert.deepEqual(found, expected, hex(bytes));
  const keys = (value: unknown): unknown[] =>
    typeof value !== 'object' || value === null || value instanceof Uint8Array
      ? []
      : Object.entries(value).map(([name, inner]) => [name, keys(inner)]);
  assert.deepEqual(keys(found), keys(expected), 'the order of the keys');
}

test('every value is written as the library writes it, into memory of its own', () => {
  fc.assert(
    fc.property(anyValue, (value) => {
      const bytes = encode(value);
      assert.equal(hex(bytes), hex(cborg.encode(value)));
      assert.equal(hex(encodePassing(value)), hex(bytes));
      assert.ok(bytes.constructor === Uint8Array && bytes.buffer.byteLength === bytes.length);
    }),
    { numRuns: 1500, seed: 1 },
  );
});

test('what was handed out never changes, however much is encoded after it', () => {
  fc.assert(
    fc.property(fc.array(anyValue, { minLength: 2, maxLength: 6 }), (values) => {
      const all = values.flatMap((value) => [encodePassing(value), encode(value), encodePassing([value, value])]);
      const expected = values.flatMap((value) => [cborg.encode(value), cborg.encode(value), cborg.encode([value, value])]);
      assert.deepEqual(all.map(hex), expected.map(hex));
    }),
    { numRuns: 150, seed: 2 },
  );
});

test('whole, bent, cut and random bytes are read or refused as by the library', () => {
  const bent = fc.tuple(anyValue, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 3 }), fc.nat(3)).map(([value, changes, cut]) => {
    const bytes = encode(value);
    for (const [at, byte] of changes) bytes[at % bytes.length] = byte;
    return bytes.subarray(0, Math.max(1, bytes.length - cut));
  });
  fc.assert(
    fc.property(anyValue, (value) => bothDecode(encode(value))),
    { numRuns: 500, seed: 3 },
  );
  fc.assert(fc.property(bent, bothDecode), { numRuns: 4000, seed: 4 });
  fc.assert(fc.property(fc.uint8Array({ maxLength: 40 }), bothDecode), { numRuns: 3000, seed: 5 });
});

test('numbers of every width and bytes are read or refused as by the library', () => {
  const heads = [0x18, 0x38, 0x58, 0x78, 0x98, 0xb8, 0xd8, 0xf8];
  const numbers = fc
    .tuple(fc.constantFrom(...heads), fc.nat(7), fc.uint8Array({ minLength: 8, maxLength: 8 }), fc.nat(8))
    .map(([head, width, bytes, zeros]) =>
      Uint8Array.of(head + width, ...bytes.fill(0, 0, zeros).subarray(0, [1, 2, 4, 8, 0, 0, 0, 0][width])),
    );
  fc.assert(fc.property(numbers, bothDecode), { numRuns: 3000, seed: 6 });
  for (let bits = 0; bits < 0x10000; bits += 5) bothDecode(Uint8Array.of(0xf9, bits >> 8, bits & 255));
});

test('maps with keys out of order, twice, long or odd are read or refused as by the library, also when their keys are known', () => {
  const names = [
    'a',
    'b',
    'c',
    'id',
    'to',
    'é',
    'x'.repeat(31),
    'x'.repeat(32),
    'x'.repeat(33),
    'y'.repeat(300),
    '__proto__',
    'constructor',
  ];
  const map = fc
    .array(fc.tuple(fc.constantFrom(...names), fc.constantFrom(1, [{ a: 1 }], { b: 1, a: 2 })), { maxLength: 6 })
    .map((fields) => {
      const parts = fields.flatMap(([name, inner]) => [encode(name), encode(inner)]);
      return new Uint8Array(Buffer.concat([Uint8Array.of(0xa0 + fields.length), ...parts]));
    });
  fc.assert(fc.property(map, bothDecode), { numRuns: 3000, seed: 7 });
});

test('bytes that are no UTF-8 are refused also where a text of the same length and characters was read before', () => {
  // Texts that take the same places in the table of known texts, as far as there are collisions among so many.
  const latin = (codes: readonly number[]): Uint8Array => Uint8Array.of(0x60 + codes.length, ...codes);
  for (let first = 0x80; first < 0x100; first += 3) {
    for (let second = 0x20; second < 0x100; second++) {
      decode(encode(String.fromCharCode(first, second)));
      bothDecode(latin([first, second]));
      bothDecode(Uint8Array.of(0xa1, ...latin([first, second]), 0));
    }
  }
});

test('more keys and shapes than are remembered change nothing', () => {
  for (let round = 0; round < 6000; round++) {
    const wide = Object.fromEntries(Array.from({ length: round % 70 }, (_, i) => [`k${(round * 7919 + i * 31) % 100_003}`, i]));
    const value = { [`key${round}`]: round, known: { [`inner${round}`]: `text${round}` }, ...(round % 10 === 0 ? { wide } : {}) };
    const bytes = encode(value);
    if (round % 10 === 0) assert.equal(hex(bytes), hex(cborg.encode(value)));
    assert.deepEqual(decode(bytes), value);
  }
});

test('long keys of strangers are forgotten at once', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const held = (): number => (collect(), collect(), process.memoryUsage().heapUsed);
  const before = held();
  for (let i = 0; i < 1000; i++) decode(encode({ [`${i}${'x'.repeat(20_000)}`]: 0 }));
  const kept = held() - before;
  assert.ok(kept < 8_000_000, `${kept} bytes kept`);
});

test('what cannot be encoded is refused, and the next encoding is whole', () => {
  const self: unknown[] = [];
  self.push({ self });
  for (const bad of [self, new Date(0), new Map(), new Uint16Array(1), 1n, Symbol('x'), () => 1]) {
    assert.throws(() => encode({ big: new Uint8Array(20_000), a: [1, bad] }), { code: 'internal' });
    assert.equal(hex(encode({ b: 2, a: 1 })), hex(cborg.encode({ b: 2, a: 1 })));
  }
  class Row {
    b = 1;
    a = 2;
  }
  assert.equal(hex(encode(new Row())), hex(cborg.encode({ b: 1, a: 2 })));
});

test('bytes that were decoded do not change with the message, unless they are most of it and share its memory', () => {
  for (const [length, padding] of [
    [10, 0],
    [64, 0],
    [200, 300],
    [20_000, 30_000],
  ] as const) {
    const message = encode([new Uint8Array(length).fill(1), new Uint8Array(padding)]);
    const [found] = decode(message) as [Uint8Array];
    assert.ok(found.constructor === Uint8Array && found.buffer.byteLength === length);
    message.fill(9);
    assert.ok(found.every((byte) => byte === 1));
  }
  for (const length of [70, 20_000]) {
    const message = encode([new Uint8Array(length).fill(1), 5]);
    for (const form of [message, Buffer.from(message.buffer)]) {
      const [found] = decode(form) as [Uint8Array];
      assert.ok(found.constructor === Uint8Array && found.buffer === message.buffer && found.length === length);
    }
    // A message in the midst of more memory than itself is copied from.
    const [copied] = decode(Buffer.concat([message, message, message]).subarray(0, message.length)) as [Uint8Array];
    assert.equal(copied.buffer.byteLength, length);
  }
  assert.deepEqual(decode(fromHex('8240f6')), [new Uint8Array(0), null]);
});
