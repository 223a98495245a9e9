/**
 * Golden vectors: what this build computes is byte for byte what was agreed on, and what was agreed on is still read.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { readCode } from '../../daemon/pairing.ts';
import { readRequest as readControlRequest } from '../../daemon/control/request.ts';
import { asFields, decode } from '../../protocol/codec.ts';
import { acceptEnvelope, openEnvelopeBody, openEnvelopeHeaders } from '../../protocol/envelope.ts';
import { readSigned, requireSignature } from '../../protocol/hashtree.ts';
import { readCancel, readReceipt } from '../../protocol/receipt.ts';
import { readAnswer, readHello, readHelloAnswer, readRequest } from '../../protocol/wire.ts';
import { ALICE, BOB, bobKeys, counted, draft, fromHex, hex, ID, SESSION } from './sample.ts';
import { computeVectors } from './vectors.ts';

const golden = JSON.parse(readFileSync(new URL('./vectors.json', import.meta.url), 'utf8')) as Record<string, Record<string, never>>;
const bytes = (group: string, name: string): Uint8Array => fromHex(golden[group]![name]!);

for (const [group, computed] of Object.entries(computeVectors())) {
  test(`the vectors of ${group} are what this build computes`, () => {
    assert.deepEqual(JSON.parse(JSON.stringify(computed)), golden[group]);
  });
}

test('no vector was lost', () => {
  assert.deepEqual(Object.keys(golden).sort(), Object.keys(computeVectors()).sort());
});

test('the agreed envelope, receipt and cancel are still believed and opened', () => {
  const request = readRequest(bytes('wire', 'deliver'));
  assert.ok(request.type === 'deliver');
  const envelope = acceptEnvelope(ALICE.hostId, BOB.hostId, request.envelope, request.pieces);
  assert.deepEqual(openEnvelopeHeaders(bobKeys, BOB.hostId, envelope), draft.headers);
  assert.equal(hex(openEnvelopeBody(bobKeys, BOB.hostId, envelope, request.pieces)), hex(draft.body));
  assert.equal(readReceipt(BOB.hostId, ALICE.hostId, readSigned(decode(bytes('signed', 'receipt')), 'it')).outcome, 'accepted');
  assert.equal(readCancel(ALICE.hostId, BOB.hostId, readSigned(decode(bytes('signed', 'cancel')), 'it')).id, ID);
  requireSignature(ALICE.hostId, 'ax/1 receipt', readSigned(decode(bytes('hashtree', 'second_member_encoded')), 'it'));
});

test('the agreed hello, answers, pairing code and control request are still read', () => {
  assert.deepEqual(readHello(bytes('wire', 'hello')).range, { min: 1, max: 1 });
  assert.equal(readHelloAnswer(bytes('wire', 'hello_answer')).known, true);
  assert.deepEqual(readAnswer(bytes('wire', 'refusal')), {
    ok: false,
    refusal: { code: 'throttled', class: 'deferred', retryAfterMs: 5000 },
  });
  assert.deepEqual(readCode(golden['wire']!['pairing_code']), {
    host: BOB.hostId,
    addresses: ['/ip4/192.0.2.7/tcp/19264'],
    invite: 'AAECAwQFBgcI',
    secret: counted(32),
  });
  const fields = asFields(decode(bytes('control', 'request_frame').subarray(4)), 'it');
  const request = readControlRequest(7, fields);
  assert.deepEqual([request.method, request.params, request.actor.session?.session_id], ['message.fetch', { id: ID }, SESSION]);
});
