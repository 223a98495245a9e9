/**
 * Envelopes: taken only from the host that signed them, for this host, whole; checked in the order signature, shape, policy.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { decode, encode } from '../../protocol/codec.ts';
import type { Fields } from '../../protocol/codec.ts';
import { acceptEnvelope, openEnvelopeBody, openEnvelopeHeaders, readEnvelope, sealMessage } from '../../protocol/envelope.ts';
import type { Headers } from '../../protocol/envelope.ts';
import { AxError } from '../../protocol/errors.ts';
import { sha256, signGroup, signOne } from '../../protocol/hashtree.ts';
import type { Signed } from '../../protocol/hashtree.ts';
import { MAX_BODY_BYTES, MAX_RETENTION_MS } from '../../protocol/limits.ts';
import { SEAL_OVERHEAD, sealHeaders, wrapKey } from '../../protocol/seal.ts';
import {
  ALICE,
  aliceKeys,
  BOB,
  bobKeys,
  CAROL,
  carolKeys,
  counted,
  draft,
  flipped,
  hex,
  ID,
  OTHER_ID,
  outcome,
  refusal,
  sealed,
  sealRandom,
  toBob,
  utf8,
} from './sample.ts';

const message = sealed();
const accept = (signed: Signed, pieces: readonly Uint8Array[] = message.pieces): unknown =>
  acceptEnvelope(ALICE.hostId, BOB.hostId, signed, pieces);
const fields = decode(message.signed.payload) as Fields;
/** The envelope's payload with other fields, signed by Alice as it then is. */
const signedWith = (change: Record<string, unknown>): Signed => signOne(ALICE, 'ax/1 envelope', encode({ ...fields, ...change }));
const code = (run: () => unknown): string => {
  const result = outcome(run);
  return result instanceof AxError ? result.code : 'taken';
};

test('the receiver reads what the sender wrote, and so does the sender itself', () => {
  const envelope = acceptEnvelope(ALICE.hostId, BOB.hostId, message.signed, message.pieces);
  for (const [keys, self] of [
    [bobKeys, BOB.hostId],
    [aliceKeys, ALICE.hostId],
  ] as const) {
    assert.deepEqual(openEnvelopeHeaders(keys, self, envelope), draft.headers);
    assert.equal(hex(openEnvelopeBody(keys, self, envelope, message.pieces)), hex(draft.body));
  }
  assert.deepEqual(
    {
      id: envelope.id,
      kind: envelope.kind,
      from: envelope.from,
      to: envelope.to,
      sentAt: envelope.sentAt,
      retentionMs: envelope.retentionMs,
      bytes: envelope.bytes,
    },
    {
      id: ID,
      kind: 'message',
      from: ALICE.hostId,
      to: toBob,
      sentAt: draft.sentAt,
      retentionMs: draft.retentionMs,
      bytes: draft.body.length,
    },
  );
  assert.equal(hex(message.digest), hex(sha256(message.signed.payload)));
});

test('any body and headers survive sealing, absent headers stay absent', () => {
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 1, maxLength: 200 }), fc.boolean(), fc.boolean(), (body, hasSubject, isReply) => {
      const headers: Headers = { ...(hasSubject ? { subject: 'Zürich ✔\ufe0f' } : {}), ...(isReply ? { replyTo: OTHER_ID } : {}) };
      const made = sealed({ body, headers });
      const envelope = readEnvelope(made.signed.payload);
      assert.deepEqual(openEnvelopeHeaders(bobKeys, BOB.hostId, envelope), headers);
      assert.equal(hex(openEnvelopeBody(bobKeys, BOB.hostId, envelope, made.pieces)), hex(body));
    }),
    { numRuns: 30 },
  );
});

test('a third host opens neither headers nor body', () => {
  for (const self of [CAROL.hostId, BOB.hostId, ALICE.hostId]) {
    assert.throws(() => openEnvelopeHeaders(carolKeys, self, message.envelope), refusal('bad_signature'));
    assert.throws(() => openEnvelopeBody(carolKeys, self, message.envelope, message.pieces), refusal('bad_signature'));
  }
});

test('nothing that only the reader sees is in the clear', () => {
  const clear = Buffer.concat([message.signed.payload, ...message.pieces]).toString('latin1');
  for (const secret of ['please run the tests', 'the build', 'alice', '/home/alice/app', OTHER_ID])
    assert.equal(clear.includes(secret), false, secret);
});

test('the signature is checked before a byte of the payload is decoded', () => {
  const garbage: Signed = { payload: counted(40), path: [], signature: counted(64) };
  assert.equal(
    code(() => accept(garbage)),
    'bad_signature',
  );
  assert.equal(
    code(() => accept(signOne(ALICE, 'ax/1 envelope', counted(40)))),
    'protocol_violation',
  );
  for (let at = 0; at < message.signed.payload.length; at += 5)
    assert.equal(
      code(() => accept({ ...message.signed, payload: flipped(message.signed.payload, at) })),
      'bad_signature',
    );
  assert.equal(
    code(() => accept(signOne(ALICE, 'ax/1 receipt', message.signed.payload))),
    'bad_signature',
  );
});

test('an envelope is taken only from the host that signed it and names itself as its sender', () => {
  assert.throws(() => acceptEnvelope(CAROL.hostId, BOB.hostId, message.signed, message.pieces), refusal('bad_signature'));
  assert.equal(
    code(() => accept(signedWith({ from: CAROL.hostId }))),
    'wrong_peer',
  );
  const resigned = signOne(CAROL, 'ax/1 envelope', message.signed.payload);
  assert.throws(() => acceptEnvelope(CAROL.hostId, BOB.hostId, resigned, message.pieces), refusal('wrong_peer'));
});

test('an envelope for another host is refused', () => {
  assert.throws(() => acceptEnvelope(ALICE.hostId, CAROL.hostId, message.signed, message.pieces), refusal('wrong_peer'));
});

test('a member of a group is taken like a single one', () => {
  const signed = signGroup(ALICE, 'ax/1 envelope', [counted(3), message.signed.payload, counted(9)])[1]!;
  assert.equal(
    code(() => accept(signed)),
    'taken',
  );
});

test('pieces of another number, size or digest are refused', () => {
  const [piece] = message.pieces;
  for (const pieces of [[], [piece!, piece!], [piece!.subarray(1)], [Uint8Array.of(...piece!, 0)], [flipped(piece!, 3)]])
    assert.equal(
      code(() => accept(message.signed, pieces)),
      'protocol_violation',
    );
  assert.equal(
    code(() => accept(signedWith({ pieces: [] }))),
    'protocol_violation',
  );
  assert.equal(
    code(() => accept(signedWith({ bytes: draft.body.length + 1 }))),
    'protocol_violation',
  );
});

test('a body of exactly the limit passes and a larger one cannot be announced', () => {
  const largest = sealed({ body: new Uint8Array(MAX_BODY_BYTES) });
  assert.equal(
    code(() => accept(largest.signed, largest.pieces)),
    'taken',
  );
  assert.equal(
    code(() => accept(signedWith({ bytes: MAX_BODY_BYTES + 1 }))),
    'protocol_violation',
  );
  assert.equal(
    code(() => accept(signedWith({ bytes: 0 }))),
    'protocol_violation',
  );
});

test('fields of a newer sender are tolerated, a newer version is told as update_required', () => {
  const to = { ...(fields['to'] as Fields), shard: 3 };
  assert.equal(
    code(() => accept(signedWith({ priority: 'high', parts: [{ a: 1 }], to }))),
    'taken',
  );
  assert.equal(
    code(() => accept(signedWith({ v: 2 }))),
    'update_required',
  );
});

test('a missing or mistyped field is refused as violation or invalid_argument', () => {
  const to = fields['to'] as Fields;
  const wrong: Record<string, unknown>[] = [
    ...Object.keys(fields)
      .filter((key) => key !== 'retention_ms')
      .map((key) => ({ [key]: undefined })),
    { v: '1' },
    { v: 0.5 },
    { id: ID.toUpperCase() },
    { id: 5 },
    { id: `${ID}0` },
    { kind: 'job' },
    { kind: 'toString' },
    { from: 'alice' },
    { from: counted(32) },
    { to: [] },
    { to: 'x' },
    { to: { ...to, host: 'bob' } },
    { to: { ...to, harness: 'vim' } },
    { to: { ...to, workspace: 'relative' } },
    { to: { ...to, workspace: '/a\nb' } },
    { to: { ...to, workspace: `/${'x'.repeat(5000)}` } },
    { to: { ...to, session: 'not-a-uuid' } },
    { to: { ...to, session: 5 } },
    { sent_at: -1 },
    { sent_at: '0' },
    { sent_at: 1.5 },
    { retention_ms: 0 },
    { retention_ms: MAX_RETENTION_MS + 1 },
    { wrap: counted(71) },
    { wrap: 'x' },
    { headers: counted(SEAL_OVERHEAD - 1) },
    { headers: counted(8193) },
    { bytes: '20' },
    { pieces: {} },
    { pieces: [counted(31)] },
    { pieces: ['x'] },
    { pieces: [counted(32), counted(32)] },
  ];
  for (const change of wrong) {
    const got = code(() => accept(signedWith(change)));
    assert.ok(
      got === 'protocol_violation' || got === 'invalid_argument' || (got === 'too_large' && 'to' in change),
      `${JSON.stringify(change)}: ${got}`,
    );
  }
});

test('headers that decode to something else are refused when they are opened', () => {
  const { contentKey, wrap } = wrapKey(aliceKeys.with(BOB.hostId), sealRandom);
  const place = { id: ID, from: ALICE.hostId, to: BOB.hostId, count: 1 };
  const open = (headers: unknown): string =>
    code(() =>
      openEnvelopeHeaders(bobKeys, BOB.hostId, {
        ...message.envelope,
        wrap,
        headers: sealHeaders(contentKey, place, headers instanceof Uint8Array ? headers : encode(headers)),
      }),
    );
  assert.equal(open({}), 'taken');
  assert.equal(open({ subject: 'x', later: [1] }), 'taken');
  const from = { name: 'a', harness: 'claude', workspace: '/w' };
  const wrong = [
    counted(9),
    [],
    'x',
    { subject: 5 },
    { subject: 'x'.repeat(201) },
    { subject: 'a\u001b[2J' },
    { subject: 'a\u202eb' },
    { subject: '\u{e0041}' },
    { reply_to: 'x' },
    { reply_to: 5 },
    { from: [] },
    { from: { ...from, name: 'a b' } },
    { from: { ...from, name: 'localhost' } },
    { from: { ...from, harness: 'x' } },
    { from: { ...from, workspace: 'w' } },
    { from: {} },
  ];
  for (const headers of wrong) assert.notEqual(open(headers), 'taken', JSON.stringify(headers));
});

test('a message to the own host opens for it', () => {
  const own = sealMessage(ALICE, aliceKeys, { ...draft, to: { ...toBob, host: ALICE.hostId } }, sealRandom);
  const envelope = acceptEnvelope(ALICE.hostId, ALICE.hostId, own.signed, own.pieces);
  assert.equal(hex(openEnvelopeBody(aliceKeys, ALICE.hostId, envelope, own.pieces)), hex(utf8('please run the tests')));
});
