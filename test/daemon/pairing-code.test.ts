/**
 * Pairing codes and grants as people type them: a whole code is read, everything else is invalid_argument and nothing else.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { parseGrants } from '../../daemon/granting.ts';
import { readCode } from '../../daemon/pairing.ts';
import { encode } from '../../protocol/codec.ts';
import { DEFAULT_GRANTS, GRANT_ACTIONS } from '../../protocol/states.ts';
import { BOB, counted, refusal } from '../protocol/sample.ts';

const invalid = refusal('invalid_argument');
const FIELDS = { h: BOB.hostId, a: ['/ip4/192.0.2.7/tcp/19264', '/dns4/host.example/tcp/1'], i: 'AAECAwQFBgcI', s: counted(32) };
const codeOf = (value: unknown): string => `ax1-${Buffer.from(encode(value)).toString('base64url')}`;

test('a whole code gives host, addresses, invite and secret, also with white space around it and fields of a newer ax', () => {
  const read = { host: BOB.hostId, addresses: FIELDS.a, invite: FIELDS.i, secret: FIELDS.s };
  assert.deepEqual(readCode(codeOf(FIELDS)), read);
  assert.deepEqual(readCode(`  ${codeOf({ ...FIELDS, later: 1 })}\n`), read);
  assert.deepEqual(readCode(codeOf({ ...FIELDS, a: [] })).addresses, []);
});

test('a code with any character missing, and any code of another shape, is refused', () => {
  const code = codeOf(FIELDS);
  for (let length = 0; length < code.length; length++) assert.throws(() => readCode(code.slice(0, length)), invalid, String(length));
  const wrong: unknown[] = [
    null,
    undefined,
    7,
    {},
    '',
    'ax1-',
    'ax2-' + code.slice(4),
    code.toUpperCase(),
    `${code}=`,
    `${code} x`,
    `x${code}`,
    'a'.repeat(10_000),
    codeOf([]),
    codeOf('x'),
    codeOf({}),
    ...[
      { h: 'bob' },
      { h: counted(32) },
      { a: 'x' },
      { a: ['x'] },
      { a: ['/ip4/999.0.0.1/tcp/1'] },
      { a: Array(17).fill(FIELDS.a[0]) },
      { i: 5 },
      { i: 'x'.repeat(65) },
      { s: counted(31) },
      { s: 'x' },
    ].map((change) => codeOf({ ...FIELDS, ...change })),
  ];
  for (const value of wrong) assert.throws(() => readCode(value), invalid, String(value).slice(0, 60));
});

test('any text after the prefix gives a code or invalid_argument', () => {
  fc.assert(
    fc.property(
      fc.oneof(
        fc.base64String(),
        fc.string({ unit: 'binary' }),
        fc.uint8Array().map((bytes) => Buffer.from(bytes).toString('base64url')),
      ),
      (tail) => {
        try {
          readCode(`ax1-${tail}`);
        } catch (error) {
          if (!invalid(error)) throw error;
        }
      },
    ),
  );
});

test('grants are some of the known actions, each once; none given means what a pairing gives', () => {
  assert.deepEqual(parseGrants(undefined), DEFAULT_GRANTS);
  assert.deepEqual(parseGrants(null), DEFAULT_GRANTS);
  assert.deepEqual(parseGrants([]), []);
  assert.deepEqual(parseGrants(['read', 'read', 'exec']), ['read', 'exec']);
  assert.deepEqual(parseGrants([...GRANT_ACTIONS]), GRANT_ACTIONS);
  for (const value of ['read', {}, ['admin'], ['toString'], [5], Array(17).fill('read'), 0])
    assert.throws(() => parseGrants(value), invalid);
});
