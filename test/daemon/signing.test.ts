/** Signing in groups: who shares a signature, and that each member verifies alone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { requireSignature } from '../../protocol/hashtree.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import { GroupSigner } from '../../daemon/signing.ts';

const KEY = hostKeyFromSeed(new Uint8Array(32).fill(7));
const payload = (n: number): Uint8Array => Buffer.from(`payload ${n}`);

test('what came before the first was asked for shares its signature, and each member verifies alone', () => {
  const signer = new GroupSigner(KEY, 'ax/1 receipt');
  const members = [1, 2, 3].map((n) => signer.enlist(payload(n)));
  const signed = members.map((member) => member());
  assert.equal(new Set(signed.map((one) => Buffer.from(one.signature).toString('hex'))).size, 1);
  for (const [index, one] of signed.entries()) {
    assert.deepEqual(one.payload, payload(index + 1));
    requireSignature(KEY.hostId, 'ax/1 receipt', one);
    assert.throws(() => requireSignature(KEY.hostId, 'ax/1 envelope', one), { code: 'bad_signature' });
    assert.throws(() => requireSignature(KEY.hostId, 'ax/1 receipt', { ...one, payload: payload(9) }), { code: 'bad_signature' });
  }
  const next = signer.enlist(payload(5))();
  assert.notDeepEqual(next.signature, signed[0]!.signature);
  assert.deepEqual(next.path, []);
});

test('a group has 256 members at most, and the next begins another', () => {
  const signer = new GroupSigner(KEY, 'ax/1 envelope');
  const all = Array.from({ length: 300 }, (_, n) => signer.enlist(payload(n))).map((member) => member());
  assert.equal(new Set(all.map((one) => Buffer.from(one.signature).toString('hex'))).size, 2);
  for (const one of all) requireSignature(KEY.hostId, 'ax/1 envelope', one);
});

test('a signature found good for one member is not taken for another tree, signer or context', () => {
  const signer = new GroupSigner(KEY, 'ax/1 receipt');
  const [one, two] = [signer.enlist(payload(1)), signer.enlist(payload(2))].map((member) => member());
  requireSignature(KEY.hostId, 'ax/1 receipt', one!);
  const other = hostKeyFromSeed(new Uint8Array(32).fill(8));
  assert.throws(() => requireSignature(other.hostId, 'ax/1 receipt', one!), { code: 'bad_signature' });
  assert.throws(() => requireSignature(KEY.hostId, 'ax/1 receipt', { ...one!, path: two!.path }), { code: 'bad_signature' });
  const broken = Uint8Array.from(two!.signature);
  broken[3]! ^= 1;
  assert.throws(() => requireSignature(KEY.hostId, 'ax/1 receipt', { ...two!, signature: broken }), { code: 'bad_signature' });
});
