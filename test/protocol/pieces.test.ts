/** How bodies are cut: both ends do the same, every byte is in one piece, and no other cut is believed. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MAX_BODY_BYTES, MAX_PIECE_BYTES, MAX_PIECES } from '../../protocol/limits.ts';
import { cutBy, cutInto, growingDigest, spanOf } from '../../protocol/pieces.ts';
import { sha256 } from '../../protocol/hashtree.ts';
import { acceptEnvelope, openEnvelopeBody, openEnvelopePiece, requirePiece, sealMessage } from '../../protocol/envelope.ts';
import { ALICE, aliceKeys, BOB, bobKeys, counted, draft, hex, refusal, sealRandom } from './sample.ts';

const SIZES = [1, 2, 63, 64, 65, 1000, 4097, MAX_PIECE_BYTES - 1, MAX_PIECE_BYTES, MAX_PIECE_BYTES + 1, MAX_BODY_BYTES - 1, MAX_BODY_BYTES];

test('a body is cut into as few pieces as their largest size allows, at most 64, and each byte is in one of them', () => {
  for (const bytes of SIZES) {
    for (const most of [1, 7, 40, 1000, MAX_PIECE_BYTES]) {
      const cut = cutBy(bytes, most);
      assert.ok(cut.count >= 1 && cut.count <= MAX_PIECES && cut.each <= MAX_PIECE_BYTES, `${bytes} by ${most}`);
      if (bytes <= most * MAX_PIECES) assert.ok(cut.each <= most, `${bytes} by ${most}: ${cut.each}`);
      let at = 0;
      for (let index = 0; index < cut.count; index++) {
        const { start, end } = spanOf(cut, index);
        assert.equal(start, at);
        assert.ok(end > start);
        at = end;
      }
      assert.equal(at, bytes);
      assert.deepEqual(cutInto(bytes, cut.count), cut, 'the reader finds the same from size and count');
    }
  }
  assert.equal(cutBy(MAX_PIECE_BYTES).count, 1);
  assert.equal(cutBy(MAX_PIECE_BYTES + 1).count, 2);
  assert.equal(cutBy(MAX_BODY_BYTES).each, MAX_PIECE_BYTES);
});

test('numbers of pieces that no body is cut into are a protocol_violation', () => {
  for (const [bytes, count] of [
    [10, 0],
    [10, 11],
    [10, 65],
    [5, 4],
    [MAX_PIECE_BYTES + 1, 1],
    [MAX_BODY_BYTES, 63],
    [MAX_BODY_BYTES + 1, 64],
    [MAX_BODY_BYTES * 2, 64],
  ] as const)
    assert.throws(() => cutInto(bytes, count), refusal('protocol_violation'), `${bytes} into ${count}`);
});

test('a body in pieces opens piece by piece and whole; a piece opens only in its own place', () => {
  const body = counted(1001, 5);
  const message = sealMessage(ALICE, aliceKeys, { ...draft, body }, sealRandom, 300);
  assert.equal(message.pieces.length, 4);
  const envelope = acceptEnvelope(ALICE.hostId, BOB.hostId, message.signed, message.pieces);
  for (const [keys, self] of [
    [aliceKeys, ALICE.hostId],
    [bobKeys, BOB.hostId],
  ] as const)
    assert.equal(hex(openEnvelopeBody(keys, self, envelope, message.pieces)), hex(body));
  const opened = message.pieces.map((piece, index) => openEnvelopePiece(bobKeys, BOB.hostId, envelope, index, piece));
  assert.deepEqual(
    opened.map((piece) => piece.length),
    [251, 251, 251, 248],
  );
  assert.throws(() => openEnvelopePiece(bobKeys, BOB.hostId, envelope, 1, message.pieces[0]!), refusal('bad_signature'));
  assert.throws(
    () => openEnvelopePiece(bobKeys, BOB.hostId, { ...envelope, pieces: envelope.pieces.slice(1) }, 0, message.pieces[0]!),
    refusal('bad_signature'),
  );
  assert.throws(() => requirePiece(envelope, 4, message.pieces[0]!), refusal('protocol_violation'));
  assert.throws(() => openEnvelopeBody(bobKeys, BOB.hostId, envelope, message.pieces.slice(1)), refusal('protocol_violation'));
  for (const pieces of [[], message.pieces.slice(1), message.pieces.toReversed(), [...message.pieces, message.pieces[0]!]])
    assert.throws(() => acceptEnvelope(ALICE.hostId, BOB.hostId, message.signed, pieces), refusal('protocol_violation'));
});

test('a digest that grows is that of the whole', () => {
  const digest = growingDigest();
  for (const part of [counted(10), counted(0), counted(300, 4)]) digest.update(part);
  assert.equal(hex(digest.end()), hex(sha256(new Uint8Array(Buffer.concat([counted(10), counted(300, 4)])))));
});
