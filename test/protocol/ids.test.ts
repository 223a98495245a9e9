/**
 * Identifiers: one grammar each, made and read in one file, and nothing invisible in a name or a label.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import * as ids from '../../protocol/ids.ts';
import { MAX_LABEL_BYTES, MAX_NAME_CHARS } from '../../protocol/limits.ts';
import { counted, ID, outcome, refusal } from './sample.ts';
import { AxError } from '../../protocol/errors.ts';

const invalid = refusal('invalid_argument');
const UNSAFE_SAMPLES = [
  '\0',
  '\n',
  '\r',
  '\t',
  '\u001b',
  '\u007f',
  '\u0085',
  '\u009b',
  '\u00ad',
  '\u034f',
  '\u061c',
  '\u115f',
  '\u180e',
  '\u200b',
  '\u200c',
  '\u200d',
  '\u200e',
  '\u200f',
  '\u2028',
  '\u2029',
  '\u202a',
  '\u202e',
  '\u2060',
  '\u2064',
  '\u2066',
  '\u2069',
  '\u3164',
  '\ufeff',
  '\uffa0',
  '\ufff9',
  '\u{e0001}',
  '\u{e0041}',
  '\u{e007f}',
  '\u{e0100}',
  '\ud800',
  '\udfff',
];

test('a message id is 26 characters of its grammar and comes back from every parser', () => {
  fc.assert(
    fc.property(fc.nat({ max: 2 ** 48 - 1 }), fc.uint8Array({ minLength: 10, maxLength: 10 }), (now, random) => {
      const id = ids.makeMessageId(now, random);
      assert.match(id, /^[0-7][0-9a-hjkmnp-tv-z]{25}$/);
      assert.equal(ids.parseMessageId(id), id);
      assert.equal(ids.parseMessageIdPrefix(id), id);
      assert.equal(ids.isMessageId(id), true);
    }),
  );
  assert.throws(() => ids.makeMessageId(1, counted(9)), RangeError);
});

test('message ids sort by their time, whatever their randomness', () => {
  const time = fc.nat({ max: 2 ** 48 - 1 });
  const random = fc.uint8Array({ minLength: 10, maxLength: 10 });
  fc.assert(
    fc.property(time, time, random, random, (a, b, x, y) => {
      if (a === b) return;
      assert.equal(ids.makeMessageId(a, x) < ids.makeMessageId(b, y), a < b);
    }),
  );
  assert.equal(ids.makeMessageId(-5, counted(10)), ids.makeMessageId(0, counted(10)));
  assert.equal(ids.makeMessageId(2 ** 60, counted(10)), ids.makeMessageId(2 ** 48 - 1, counted(10)));
});

test('message ids of the same time differ in every bit of their randomness', () => {
  const seen = new Set<string>();
  for (let at = 0; at < 10; at++)
    for (let bit = 0; bit < 8; bit++) {
      const random = new Uint8Array(10);
      random[at] = 1 << bit;
      seen.add(ids.makeMessageId(7, random));
    }
  assert.equal(seen.size, 80);
});

test('a message id of another length, case or alphabet is refused, and a prefix under four characters too', () => {
  const wrong: unknown[] = [
    '',
    ID.slice(1),
    `${ID}0`,
    ID.toUpperCase(),
    `8${ID.slice(1)}`,
    `${ID}\n`,
    ID.replace('k', 'l'),
    ID.replace('k', 'i'),
    ID.replace('k', 'u'),
    ID.replace('k', 'o'),
    7,
    null,
    undefined,
    [ID],
    {},
  ];
  for (const value of wrong) assert.throws(() => ids.parseMessageId(value), invalid);
  for (let length = 0; length <= 26; length++) {
    if (length < 4) assert.throws(() => ids.parseMessageIdPrefix(ID.slice(0, length)), invalid);
    else assert.equal(ids.parseMessageIdPrefix(ID.slice(0, length)), ID.slice(0, length));
  }
  for (const value of ['06c1~', '06c1/', '06c1\uffff', '8000', '\u212a6c1', null, 4])
    assert.throws(() => ids.parseMessageIdPrefix(value), invalid);
  assert.throws(() => ids.parseMessageIdPrefix('8000'), /the first one 0-7/);
});

test('an id typed in upper case is read as the same id', () => {
  assert.equal(ids.parseMessageIdPrefix(ID.toUpperCase()), ID);
  assert.equal(ids.parseMessageIdPrefix('06C1'), '06c1');
});

test('a UUID made here is of version 4 and is read as a session id', () => {
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 16, maxLength: 16 }), (random) => {
      const uuid = ids.makeUuid(random);
      assert.match(uuid, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
      assert.equal(ids.parseSessionId(uuid), uuid);
    }),
  );
  assert.throws(() => ids.makeUuid(counted(15)), RangeError);
  for (const value of [
    '',
    '11111111-2222-4333-8444-55555555555',
    '11111111-2222-4333-8444-55555555555G',
    '11111111-2222-4333-8444-55555555555A',
    null,
  ])
    assert.throws(() => ids.parseSessionId(value), invalid);
});

test('a request key is 1 to 64 characters of its alphabet', () => {
  for (const key of ['a', 'A.b_c:d-9', 'x'.repeat(64)]) assert.equal(ids.parseRequestKey(key), key);
  for (const key of ['', 'x'.repeat(65), 'a b', 'a/b', 'é', 'a\n', 5, null]) assert.throws(() => ids.parseRequestKey(key), invalid);
});

test('a name begins with a letter or digit, has at most 64 characters, and is never Localhost', () => {
  for (const name of ['a', '0', 'Alice.b_c-9', 'x'.repeat(MAX_NAME_CHARS), 'localhost2']) assert.equal(ids.parseName(name, 'it'), name);
  const wrong = [
    '',
    '-a',
    '.a',
    '_a',
    'a b',
    'a@b',
    'a/b',
    'x'.repeat(MAX_NAME_CHARS + 1),
    'é',
    'a\n',
    'localhost',
    'LOCALHOST',
    'LocalHost',
    3,
    null,
    undefined,
    ['a'],
  ];
  for (const name of wrong) assert.throws(() => ids.parseName(name, 'it'), invalid, String(name));
});

test('a name made out of whatever a peer calls itself is a name', () => {
  fc.assert(
    fc.property(
      fc.oneof(fc.string({ unit: 'binary', maxLength: 100 }), fc.constantFrom('Localhost', 'my host', '../x', '', 5, null)),
      (foreign) => {
        const name = ids.nameFrom(foreign, 'fallback');
        assert.equal(ids.parseName(name, 'it'), name);
      },
    ),
  );
  assert.equal(ids.nameFrom('my host!', 'x'), 'my-host-');
  assert.equal(ids.nameFrom('localhost', 'x'), 'x');
});

test('no control, bidirectional, zero-width, tag or filler character and no half surrogate is safe', () => {
  for (const bad of UNSAFE_SAMPLES) {
    assert.equal(ids.hasUnsafeCharacters(`a${bad}b`), true, `U+${bad.codePointAt(0)?.toString(16)}`);
    assert.equal(ids.hasUnsafeCharacters(`a${bad}b`), true, 'the same answer when asked again');
    assert.equal(ids.visibleText(`a${bad}b`), 'a\ufffdb');
    assert.throws(() => ids.parseLabel(`a${bad}`, 'it'), invalid);
  }
  for (const good of ['plain', 'Zürich', '東京', '😀', '✔\ufe0f', 'שלום', 'مرحبا', 'a b', "it's", '\ufffd']) {
    assert.equal(ids.hasUnsafeCharacters(good), false, good);
    assert.equal(ids.visibleText(good), good);
  }
});

test('text made visible is safe, and safe text stays as it is', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      const shown = ids.visibleText(text);
      assert.equal(ids.hasUnsafeCharacters(shown), false);
      if (!ids.hasUnsafeCharacters(text)) assert.equal(shown, text);
    }),
  );
});

test('a label is bounded in bytes of UTF-8, not in characters', () => {
  assert.equal(ids.parseLabel('é'.repeat(128), 'it'), 'é'.repeat(128));
  assert.throws(() => ids.parseLabel('é'.repeat(129), 'it'), refusal('too_large'));
  assert.throws(() => ids.parseLabel('x'.repeat(MAX_LABEL_BYTES + 1), 'it'), refusal('too_large'));
  assert.throws(() => ids.parseLabel('abc', 'it', 2), refusal('too_large'));
  for (const value of ['', 5, null, undefined, {}]) assert.throws(() => ids.parseLabel(value, 'it'), invalid);
});

test('every parser answers anything with its value or an AxError', () => {
  const parsers = [
    ids.parseMessageId,
    ids.parseMessageIdPrefix,
    ids.parseSessionId,
    ids.parseRequestKey,
    (v: unknown) => ids.parseName(v, 'it'),
    (v: unknown) => ids.parseLabel(v, 'it'),
  ];
  fc.assert(
    fc.property(fc.oneof(fc.anything(), fc.string({ unit: 'binary' })), (value) => {
      for (const parse of parsers) {
        const result = outcome(() => parse(value));
        if (!(result instanceof AxError)) assert.equal(result, value);
      }
    }),
  );
});
