/**
 * Sealing: two hosts agree on one key and nobody else does; a changed byte or another place never opens.
 */
import assert from 'node:assert/strict';
import { createPrivateKey, createPublicKey, diffieHellman, hkdfSync } from 'node:crypto';
import type { KeyObject } from 'node:crypto';
import { test } from 'node:test';
import { ed25519 } from '@noble/curves/ed25519.js';
import fc from 'fast-check';
import nacl from 'tweetnacl';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import {
  openHeaders,
  openPiece,
  SEAL_OVERHEAD,
  SEAL_RANDOM_BYTES,
  sealHeaders,
  SealKeys,
  sealPiece,
  unwrapKey,
  WRAP_BYTES,
  wrapKey,
} from '../../protocol/seal.ts';
import type { SealPlace } from '../../protocol/seal.ts';
import {
  ALICE,
  aliceKeys,
  BOB,
  bobKeys,
  CAROL,
  carolKeys,
  counted,
  flipped,
  fromHex,
  hex,
  ID,
  OTHER_ID,
  refusal,
  sealRandom,
  utf8,
} from './sample.ts';

const bad = refusal('bad_signature');
const place: SealPlace = { id: ID, from: ALICE.hostId, to: BOB.hostId, count: 1 };
const pair = aliceKeys.with(BOB.hostId);
const { contentKey, wrap } = wrapKey(pair, sealRandom);
const seed = fc.uint8Array({ minLength: 32, maxLength: 32 });

const secretObject = (raw: Uint8Array): KeyObject =>
  createPrivateKey({ key: Buffer.concat([Buffer.from('302e020100300506032b656e04220420', 'hex'), raw]), format: 'der', type: 'pkcs8' });
const publicObject = (raw: Uint8Array): KeyObject =>
  createPublicKey({ key: Buffer.concat([Buffer.from('302a300506032b656e032100', 'hex'), raw]), format: 'der', type: 'spki' });

test('both hosts of a pair derive one key, and every other pair another', () => {
  assert.equal(hex(bobKeys.with(ALICE.hostId)), hex(pair));
  assert.equal(aliceKeys.with(BOB.hostId), pair);
  const keys = [pair, aliceKeys.with(CAROL.hostId), bobKeys.with(CAROL.hostId), aliceKeys.with(ALICE.hostId)].map(hex);
  assert.equal(new Set(keys).size, 4);
});

test('the pair key is what X25519 of node:crypto and of tweetnacl give for the mapped keys', () => {
  fc.assert(
    fc.property(seed, seed, (a, b) => {
      const ours = hostKeyFromSeed(a);
      const theirs = hostKeyFromSeed(b);
      const secret = ed25519.utils.toMontgomerySecret(ours.seed);
      const point = ed25519.utils.toMontgomery(theirs.publicKey);
      const shared = nacl.scalarMult(secret, point);
      assert.equal(hex(diffieHellman({ privateKey: secretObject(secret), publicKey: publicObject(point) })), hex(shared));
      // The map of the public key is the public key of the mapped secret.
      assert.equal(hex(nacl.scalarMult.base(ed25519.utils.toMontgomerySecret(theirs.seed))), hex(point));
      const before = nacl.box.before(point, secret);
      const derived = new Uint8Array(hkdfSync('sha256', before, new Uint8Array(0), 'ax/1 seal wrap', 32));
      assert.equal(hex(new SealKeys(ours).with(theirs.hostId)), hex(derived));
    }),
    { numRuns: 15 },
  );
});

test('the vectors of RFC 7748 hold for the X25519 in use', () => {
  const scalar = fromHex('a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4');
  const point = fromHex('e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c');
  assert.equal(hex(nacl.scalarMult(scalar, point)), 'c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552');
});

test('headers and a piece come back as they were, of any size', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (plain) => {
      const piece = sealPiece(contentKey, place, 0, plain);
      assert.equal(piece.length, plain.length + SEAL_OVERHEAD);
      assert.equal(hex(openPiece(contentKey, place, 0, piece)), hex(plain));
      assert.equal(hex(openHeaders(contentKey, place, sealHeaders(contentKey, place, plain))), hex(plain));
    }),
  );
});

test('a content key comes out of its wrap for the pair alone, and any changed byte closes it', () => {
  assert.equal(wrap.length, WRAP_BYTES);
  assert.equal(hex(unwrapKey(bobKeys.with(ALICE.hostId), wrap)), hex(contentKey));
  for (const other of [carolKeys.with(ALICE.hostId), carolKeys.with(BOB.hostId), aliceKeys.with(ALICE.hostId)])
    assert.throws(() => unwrapKey(other, wrap), bad);
  for (let at = 0; at < wrap.length; at++) assert.throws(() => unwrapKey(pair, flipped(wrap, at)), bad, `byte ${at}`);
  for (const length of [0, 24, WRAP_BYTES - 1]) assert.throws(() => unwrapKey(pair, wrap.subarray(0, length)), bad);
  assert.throws(() => unwrapKey(pair, Uint8Array.of(...wrap, 0)), bad);
});

test('a piece does not open with any byte changed, cut or added', () => {
  const piece = sealPiece(contentKey, place, 0, utf8('body'));
  for (let at = 0; at < piece.length; at++) assert.throws(() => openPiece(contentKey, place, 0, flipped(piece, at)), bad);
  for (let length = 0; length < piece.length; length++)
    assert.throws(() => openPiece(contentKey, place, 0, piece.subarray(0, length)), bad);
  assert.throws(() => openPiece(contentKey, place, 0, Uint8Array.of(...piece, 0)), bad);
  assert.throws(() => openPiece(flipped(contentKey, 31), place, 0, piece), bad);
});

test('a piece opens only in its place: id, both hosts, index and count are part of it, and headers are no piece', () => {
  const piece = sealPiece(contentKey, place, 0, utf8('body'));
  const places: SealPlace[] = [
    { ...place, id: OTHER_ID },
    { ...place, from: CAROL.hostId },
    { ...place, to: CAROL.hostId },
    { ...place, from: BOB.hostId, to: ALICE.hostId },
    { ...place, count: 2 },
  ];
  for (const other of places) assert.throws(() => openPiece(contentKey, other, 0, piece), bad);
  assert.throws(() => openPiece(contentKey, place, 1, piece), bad);
  assert.throws(() => openHeaders(contentKey, place, piece), bad);
  assert.throws(() => openPiece(contentKey, place, 0, sealHeaders(contentKey, place, utf8('body'))), bad);
});

test('sealing takes exactly its randomness and uses all of it', () => {
  assert.throws(() => wrapKey(pair, counted(SEAL_RANDOM_BYTES - 1)), RangeError);
  for (const at of [0, 31, 32, 55]) assert.notEqual(hex(wrapKey(pair, flipped(sealRandom, at)).wrap), hex(wrap));
});
