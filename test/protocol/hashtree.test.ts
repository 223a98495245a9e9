/**
 * Signed payloads: each member of a group verifies alone, and nothing but its own payload, path, context and signer does.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { decode, encode } from '../../protocol/codec.ts';
import type { Value } from '../../protocol/codec.ts';
import { encodeSigned, readSigned, requireSignature, sha256, signedValue, signGroup, signOne } from '../../protocol/hashtree.ts';
import type { Signed } from '../../protocol/hashtree.ts';
import { MAX_SIGNED_BYTES } from '../../protocol/limits.ts';
import { ALICE, BOB, counted, flipped, refusal, utf8 } from './sample.ts';

const CONTEXTS = ['ax/1 envelope', 'ax/1 receipt', 'ax/1 cancel'] as const;
const bad = refusal('bad_signature');
const check = (signed: Signed, context: (typeof CONTEXTS)[number] = 'ax/1 receipt'): void =>
  requireSignature(ALICE.hostId, context, signed);
const group = (count: number): Signed[] =>
  signGroup(
    ALICE,
    'ax/1 receipt',
    Array.from({ length: count }, (_, i) => utf8(`payload ${i}`)),
  );

test('every member of a group of 1 to 40 verifies alone, also after a round trip', () => {
  for (let count = 1; count <= 40; count++) {
    const members = group(count);
    assert.equal(members.length, count);
    for (const [index, member] of members.entries()) {
      assert.deepEqual(member.payload, utf8(`payload ${index}`));
      assert.ok(member.path.length <= Math.ceil(Math.log2(count)));
      check(member);
      const back = readSigned(decode(encodeSigned(member)), 'it');
      assert.deepEqual(back, member);
      check(back);
    }
  }
});

test('a single payload has an empty path', () => {
  assert.deepEqual(signOne(ALICE, 'ax/1 cancel', counted(3)).path, []);
});

test('another context, signer, payload, side, hash, signature or a shortened, lengthened or swapped path is refused', () => {
  const members = group(11);
  for (const member of members) {
    for (const context of CONTEXTS) if (context !== 'ax/1 receipt') assert.throws(() => check(member, context), bad);
    assert.throws(() => requireSignature(BOB.hostId, 'ax/1 receipt', member), bad);
    assert.throws(() => check({ ...member, payload: flipped(member.payload, 0) }), bad);
    assert.throws(() => check({ ...member, path: [...member.path, { left: true, hash: counted(32) }] }), bad);
    for (const [at, step] of member.path.entries()) {
      const replaced = (next: typeof step): Signed => ({ ...member, path: member.path.map((old, i) => (i === at ? next : old)) });
      assert.throws(() => check(replaced({ ...step, left: !step.left })), bad);
      assert.throws(() => check(replaced({ ...step, hash: flipped(step.hash, at) })), bad);
      assert.throws(() => check({ ...member, path: member.path.filter((_, i) => i !== at) }), bad);
    }
    for (let at = 0; at < 64; at += 7) assert.throws(() => check({ ...member, signature: flipped(member.signature, at) }), bad);
  }
  const [first, second] = members;
  assert.throws(() => check({ ...first!, path: second!.path }), bad);
});

test('an inner node cannot be passed off as a payload', () => {
  const [left, right] = group(2);
  const leaf = (payload: Uint8Array): Uint8Array => sha256(Uint8Array.of(0), payload);
  const node = Buffer.concat([leaf(left!.payload), leaf(right!.payload)]);
  for (const payload of [node, Buffer.concat([Uint8Array.of(1), node])])
    assert.throws(() => check({ payload, path: [], signature: left!.signature }), bad);
});

test('a group has 1 to 65,536 payloads, and the largest still verifies with a path of 16', () => {
  const payload = counted(1);
  assert.throws(() => signGroup(ALICE, 'ax/1 receipt', []), RangeError);
  assert.throws(() => signGroup(ALICE, 'ax/1 receipt', Array<Uint8Array>(65_537).fill(payload)), RangeError);
  const largest = signGroup(ALICE, 'ax/1 receipt', Array<Uint8Array>(65_536).fill(payload));
  for (const at of [0, 40_000, 65_535]) {
    assert.equal(largest[at]!.path.length, 16);
    check(readSigned(decode(encodeSigned(largest[at]!)), 'it'));
  }
});

test('a signed item of another shape is a protocol_violation before anything is verified', () => {
  const good = signedValue(group(3)[0]!) as readonly Value[];
  const [payload, path, signature] = good;
  const step = (path as readonly Value[])[0]!;
  const shapes: (Value | undefined)[] = [
    undefined,
    null,
    7,
    'x',
    {},
    counted(64),
    [],
    [payload!],
    [payload!, path!],
    [payload!, path!, signature!, 1],
    [new Uint8Array(0), path!, signature!],
    [new Uint8Array(MAX_SIGNED_BYTES + 1), path!, signature!],
    ['text', path!, signature!],
    [payload!, path!, counted(63)],
    [payload!, path!, counted(65)],
    [payload!, path!, 'x'],
    [payload!, null, signature!],
    [payload!, Array<Value>(17).fill(step), signature!],
    [payload!, [[true, counted(31)]], signature!],
    [payload!, [[1, counted(32)]], signature!],
    [payload!, [[true, counted(32), 1]], signature!],
    [payload!, [[true]], signature!],
    [payload!, [counted(32)], signature!],
  ];
  for (const shape of shapes) assert.throws(() => readSigned(shape, 'it'), refusal('protocol_violation'));
  readSigned([new Uint8Array(MAX_SIGNED_BYTES), Array<Value>(16).fill(step), signature!], 'it');
});

test('whatever is decoded gives a signed item or a protocol_violation', () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.oneof(fc.uint8Array(), fc.array(fc.tuple(fc.boolean(), fc.uint8Array({ minLength: 31, maxLength: 33 }))), fc.constant(null)),
        { maxLength: 4 },
      ),
      (value) => {
        try {
          readSigned(decode(encode(value)), 'it');
        } catch (error) {
          if (!refusal('protocol_violation')(error)) throw error;
        }
      },
    ),
  );
});
