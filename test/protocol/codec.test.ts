/**
 * The codec: what goes in comes out, and foreign bytes give a plain value or a protocol_violation, within bounds of depth, time and memory.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import * as codec from '../../protocol/codec.ts';
import { asFields, decode, encode } from '../../protocol/codec.ts';
import type { Fields } from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import { counted, fromHex, hex, outcome, refusal, utf8 } from './sample.ts';

const violation = refusal('protocol_violation');
const scalar = fc.oneof(
  fc.constant(null),
  fc.boolean(),
  fc.maxSafeInteger(),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => (Object.is(value, -0) ? 0 : value)),
  fc.string({ unit: 'binary' }),
  fc.uint8Array({ maxLength: 40 }),
);
const { value: anyValue } = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 5, withCrossShrink: true },
    scalar,
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom('__proto__', 'constructor', 'toString')), tie('value'), {
      maxKeys: 4,
      noNullPrototype: true,
    }),
  ),
}));

function onlyViolation(bytes: Uint8Array): void {
  const result = outcome(() => decode(bytes));
  if (result instanceof AxError) assert.equal(result.code, 'protocol_violation');
}

/** The head of a value: major type and length, in its shortest form. */
function head(major: number, length: number): number[] {
  if (length < 24) return [(major << 5) | length];
  if (length < 256) return [(major << 5) | 24, length];
  if (length < 65_536) return [(major << 5) | 25, length >> 8, length & 255];
  return [(major << 5) | 26, length >>> 24, (length >> 16) & 255, (length >> 8) & 255, length & 255];
}

test('every value comes back as it was, text with a byte order mark and keys like __proto__ too', () => {
  fc.assert(
    fc.property(anyValue, (value) => {
      assert.deepEqual(decode(encode(value)), value);
    }),
    { numRuns: 400 },
  );
  for (const text of ['\ufeffx', '\ufeff', 'x\ufeff', '\ufffd', 'é'.repeat(40), '\ufeff' + 'long'.repeat(20)])
    assert.equal(decode(encode(text)), text);
});

test('encoding is the same bytes again after decoding', () => {
  fc.assert(
    fc.property(anyValue, (value) => {
      const bytes = encode(value);
      assert.equal(hex(encode(decode(bytes))), hex(bytes));
    }),
    { numRuns: 200 },
  );
});

test('a key whose value is undefined is left out, and a Buffer is written as bytes', () => {
  assert.deepEqual(decode(encode({ a: undefined, b: { c: undefined, d: 1 } })), { b: { d: 1 } });
  const back = decode(encode({ body: Buffer.from('abc') }));
  assert.deepEqual(back, { body: utf8('abc') });
});

test('arbitrary bytes give a value or a protocol_violation and nothing else', () => {
  fc.assert(fc.property(fc.uint8Array({ maxLength: 80 }), onlyViolation), { numRuns: 2000 });
});

test('a flipped bit gives a value or a protocol_violation, a missing end always a protocol_violation', () => {
  fc.assert(
    fc.property(anyValue, fc.nat(), fc.nat(7), (value, where, bit) => {
      const bytes = encode(value);
      const at = where % bytes.length;
      const bent = Uint8Array.from(bytes);
      bent[at]! ^= 1 << bit;
      onlyViolation(bent);
      assert.throws(() => decode(bytes.subarray(0, at)), violation);
      assert.throws(() => decode(Uint8Array.of(...bytes, 0)), violation);
    }),
    { numRuns: 400 },
  );
});

test('nesting of 16 is taken and of 17 refused, through lists, maps and both, and before anything is built', () => {
  const list = (depth: number): Uint8Array => Uint8Array.from([...Array<number>(depth).fill(0x81), 0]);
  const map = (depth: number): Uint8Array => Uint8Array.from([...Array.from({ length: depth }, () => [0xa1, 0x60]).flat(), 0]);
  const mixed = (depth: number): Uint8Array =>
    Uint8Array.from([...Array.from({ length: depth }, (_, i) => (i % 2 === 0 ? [0x82, 0] : [0xa1, 0x60])).flat(), 0]);
  for (const nest of [list, map, mixed]) {
    assert.ok(decode(nest(16)) !== undefined);
    assert.throws(() => decode(nest(17)), violation);
    assert.throws(() => decode(nest(500_000)), violation);
  }
  const sideBySide = decode(Uint8Array.from([...head(4, 300), ...Array.from({ length: 300 }, () => [0x81, 0x80]).flat()]));
  assert.equal((sideBySide as unknown[]).length, 300);
});

test('tags, bignums, undefined, NaN, infinities, simple values, indefinite and wasteful lengths are refused', () => {
  const bad = {
    empty: '',
    tag: 'c101',
    bignum: 'c249010000000000000000',
    undefined: 'f7',
    NaN: 'f97e00',
    infinity: 'f97c00',
    'negative infinity (64 bits)': 'fbfff0000000000000',
    'simple value': 'e0',
    'simple value in two bytes': 'f820',
    'indefinite bytes': '5f4100ff',
    'indefinite text': '7f6161ff',
    'indefinite list': '9f00ff',
    'indefinite map': 'bf616100ff',
    'a break alone': 'ff',
    'reserved length': '1c',
    'whole number in two bytes that fits one': '1801',
    'length in two bytes that fits one': '58010a',
    'whole number past 2^53': '1b0020000000000000',
    'largest unsigned': '1bffffffffffffffff',
    'smallest signed': '3bffffffffffffffff',
    'two values': '0000',
    'broken UTF-8': '62c328',
    'broken UTF-8 in a key': 'a162c32800',
    'a surrogate written as UTF-8': '63eda080',
    'a number as key': 'a10000',
    'bytes as key': 'a1416100',
    'a list as key': 'a18000',
    'the same key twice': 'a2616101616102',
    '__proto__ twice': `a2695f5f70726f746f5f5fa0695f5f70726f746f5f5fa0`,
  };
  for (const [what, bytes] of Object.entries(bad)) assert.throws(() => decode(fromHex(bytes)), violation, what);
});

test('a key with a byte order mark is another key than the one without', () => {
  assert.deepEqual(decode(fromHex('a261610164efbbbf6102')), { a: 1, '\ufeffa': 2 });
});

test('a foreign __proto__ is a field like any other and changes no prototype', () => {
  const fields = asFields(
    decode(encode(JSON.parse('{"__proto__":{"t":"pair","polluted":true},"constructor":{"prototype":{"polluted":true}}}'))),
    'it',
  );
  assert.equal(Object.getPrototypeOf(fields), Object.prototype);
  assert.equal(Object.hasOwn(fields, '__proto__'), true);
  assert.throws(() => codec.text(fields, 't', 9), violation);
  assert.equal(codec.flag(fields, 'polluted'), false);
  assert.equal(({} as { polluted?: boolean }).polluted, undefined);
  const inherited = asFields(decode(encode({})), 'it');
  for (const key of ['toString', 'constructor', '__proto__', 'hasOwnProperty'])
    assert.equal(codec.optionalText(inherited, key, 99), undefined);
});

test('an announced length costs nothing before its bytes are there', () => {
  const before = process.memoryUsage().rss;
  const huge = [
    '9affffffff',
    '9b001fffffffffffff',
    'baffffffff',
    'bb001fffffffffffff',
    '5affffffff',
    '5b001fffffffffffff',
    '7affffffff',
    '7b001fffffffffffff',
    'da00ffffff',
    '9a7fffffff00',
    'a1616' + '15affffffff',
  ];
  for (let round = 0; round < 20; round++) for (const bytes of huge) assert.throws(() => decode(fromHex(bytes)), violation);
  assert.ok(process.memoryUsage().rss - before < 64 * 1024 * 1024);
});

test('a frame full of tiny values is refused by their number, in a few milliseconds', () => {
  const full = (fill: readonly number[]): Uint8Array => {
    const count = Math.floor((MAX_FRAME_BYTES - 5) / fill.length);
    return Uint8Array.from([
      0x9a,
      count >>> 24,
      (count >> 16) & 255,
      (count >> 8) & 255,
      count & 255,
      ...Array<readonly number[]>(count).fill(fill).flat(),
    ]);
  };
  for (const fill of [[0], [0x80], [0xa0], [0x60], [0x61, 0x61], [0x82, 0, 0]]) {
    const bytes = full(fill);
    let fastestMs = Infinity; // of five: a busy machine is no fault
    for (let attempt = 0; attempt < 5; attempt++) {
      const start = performance.now();
      assert.throws(() => decode(bytes), violation);
      fastestMs = Math.min(fastestMs, performance.now() - start);
    }
    assert.ok(fastestMs < 100, `${fill.join()}: ${fastestMs} ms`);
  }
});

test('131,072 values are taken and one more is not', () => {
  const zeros = (count: number): Uint8Array => Uint8Array.from([...head(4, count), ...new Uint8Array(count)]);
  assert.equal((decode(zeros(131_071)) as unknown[]).length, 131_071);
  assert.throws(() => decode(zeros(131_072)), violation);
});

test('a reader takes the field it names in its bounds and throws protocol_violation for everything else', () => {
  const fields: Fields = { n: 7, f: 1.5, neg: -1, t: 'abc', b: counted(4), yes: true, no: false, nil: null, list: [1, 2], map: {} };
  assert.equal(codec.whole(fields, 'n'), 7);
  assert.equal(codec.whole(fields, 'neg', -5), -1);
  assert.equal(codec.text(fields, 't', 3), 'abc');
  assert.equal(codec.flag(fields, 'yes'), true);
  assert.equal(codec.flag(fields, 'nil'), false);
  assert.equal(codec.flag(fields, 'none'), false);
  assert.equal(codec.optionalText(fields, 'nil', 1), undefined);
  assert.equal(codec.optionalWhole(fields, 'none'), undefined);
  assert.equal(codec.oneOf(fields, 't', ['abc']), 'abc');
  assert.equal(codec.bytes(fields, 'b', 4, 4).length, 4);
  const bad: (() => unknown)[] = [
    () => codec.whole(fields, 'f'),
    () => codec.whole(fields, 'neg'),
    () => codec.whole(fields, 'n', 8),
    () => codec.whole(fields, 'n', 0, 6),
    () => codec.whole(fields, 'none'),
    () => codec.whole(fields, 't'),
    () => codec.whole({ n: 2 ** 53 }, 'n'),
    () => codec.optionalWhole(fields, 't'),
    () => codec.text(fields, 't', 2),
    () => codec.text(fields, 'n', 9),
    () => codec.optionalText(fields, 'n', 9),
    () => codec.shown(fields, 't', 2),
    () => codec.flag(fields, 'n'),
    () => codec.bytes(fields, 'b', 3),
    () => codec.bytes(fields, 'b', 9, 5),
    () => codec.bytes(fields, 't', 9),
    () => codec.oneOf(fields, 't', ['x']),
    () => codec.oneOf(fields, 'n', ['7']),
    () => codec.asList(fields['list'], 'it', 1),
    () => codec.asList(fields['map'], 'it', 1),
    ...[null, 1, 'x', [], counted(1), undefined].map((value) => () => asFields(value, 'it')),
  ];
  for (const run of bad) assert.throws(run, violation, run.toString());
});

test('text for people shows no character that hides or turns what stands around it', () => {
  const fields: Fields = { t: 'a\u001b[31mb\u202ec\u200bd\u{e0041}e', ok: 'Zürich ✔\ufe0f 東京' };
  assert.equal(codec.shown(fields, 't', 99), 'a\ufffd[31mb\ufffdc\ufffdd\ufffde');
  assert.equal(codec.optionalShown(fields, 'ok', 99), fields['ok']);
  assert.equal(codec.optionalShown(fields, 'none', 99), undefined);
});

test('maps whose keys are numbers take no more memory than others', () => {
  // A list of 20,000 maps, {"1016": 1} each.
  const bytes = Uint8Array.from(Buffer.concat([fromHex('994e20'), ...Array.from({ length: 20_000 }, () => fromHex('a1643130313601'))]));
  const before = process.memoryUsage().heapUsed;
  const decoded = decode(bytes);
  const grown = process.memoryUsage().heapUsed - before;
  assert.deepEqual((decoded as readonly Fields[])[19_999], { '1016': 1 });
  assert.ok(grown < 50e6, `the heap grew by ${grown} bytes`);
});

test('an encoding for which there is no memory leaves nothing in the next one', (t) => {
  const large = new Uint8Array(20_000).fill(7);
  const failing = t.mock.method(Buffer, 'allocUnsafeSlow', () => {
    throw new RangeError('Array buffer allocation failed');
  });
  assert.throws(() => encode({ a: large }), RangeError);
  failing.mock.restore();
  assert.equal(hex(encode({ b: 1 })), 'a1616201');
});
