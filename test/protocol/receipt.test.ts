/**
 * Receipts and cancels: believed only from the host whose word it is, about the message of the host it is told to.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { asFields, decode, encode } from '../../protocol/codec.ts';
import type { Value } from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import { encodeSigned, readSigned, signGroup, signOne } from '../../protocol/hashtree.ts';
import type { Signed } from '../../protocol/hashtree.ts';
import { progressValue, readCancel, readProgress, readReceipt, signCancel, signReceipt } from '../../protocol/receipt.ts';
import type { Receipt } from '../../protocol/receipt.ts';
import { MESSAGE_KINDS, RECEIPT_OUTCOMES, RECEIVER_STATES, WITHHELD_REASONS } from '../../protocol/states.ts';
import { ALICE, AT, BOB, CAROL, counted, flipped, ID, outcome, refusal } from './sample.ts';

const GROUP_ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const receipt: Omit<Receipt, 'receiver'> = {
  outcome: 'accepted',
  id: ID,
  digest: counted(32),
  sender: ALICE.hostId,
  at: AT,
  state: 'available',
  storedAs: 'message',
  liveSession: true,
  certain: false,
};
const signed = signReceipt(BOB, receipt);
const cancel = { id: ID, digest: counted(32), receiver: BOB.hostId, at: AT };
const signedCancel = signCancel(ALICE, cancel);
const again = (change: Record<string, unknown>, by = BOB): Signed =>
  signOne(by, 'ax/1 receipt', encode({ ...asFields(decode(signed.payload), 'it'), ...change }));

function malleated(item: Signed): Signed {
  const s = item.signature.subarray(32).reduceRight((sum, byte) => (sum << 8n) | BigInt(byte), 0n) + GROUP_ORDER;
  return {
    ...item,
    signature: Uint8Array.from(item.signature, (byte, i) => (i < 32 ? byte : Number((s >> BigInt(8 * (i - 32))) & 0xffn))),
  };
}

test('a receipt says what the receiver signed, for every outcome, state and kind', () => {
  for (const said of RECEIPT_OUTCOMES)
    for (const state of RECEIVER_STATES)
      for (const storedAs of MESSAGE_KINDS) {
        const whole = { ...receipt, outcome: said, state, storedAs, certain: said === 'too_late' };
        const back = readSigned(decode(encodeSigned(signReceipt(BOB, whole))), 'it');
        assert.deepEqual(readReceipt(BOB.hostId, ALICE.hostId, back), { ...whole, receiver: BOB.hostId });
      }
});

test('a receipt of another host, or about a message of other hosts, is refused', () => {
  assert.throws(() => readReceipt(CAROL.hostId, ALICE.hostId, signed), refusal('bad_signature'));
  assert.throws(() => readReceipt(BOB.hostId, CAROL.hostId, signed), refusal('wrong_peer'));
  assert.throws(() => readReceipt(ALICE.hostId, BOB.hostId, signed), refusal('bad_signature'));
  const inBobsName = again({ receiver: BOB.hostId }, CAROL);
  assert.throws(() => readReceipt(CAROL.hostId, ALICE.hostId, inBobsName), refusal('wrong_peer'));
  assert.throws(() => readReceipt(BOB.hostId, ALICE.hostId, inBobsName), refusal('bad_signature'));
  const swapped = again({ sender: BOB.hostId, receiver: ALICE.hostId });
  assert.throws(() => readReceipt(BOB.hostId, ALICE.hostId, swapped), refusal('wrong_peer'));
});

test('a cancel is believed only from the host that sent the message, to the host that has it', () => {
  assert.deepEqual(readCancel(ALICE.hostId, BOB.hostId, signedCancel), { ...cancel, sender: ALICE.hostId });
  assert.throws(() => readCancel(CAROL.hostId, BOB.hostId, signedCancel), refusal('bad_signature'));
  assert.throws(() => readCancel(ALICE.hostId, CAROL.hostId, signedCancel), refusal('wrong_peer'));
  const foreign = signOne(CAROL, 'ax/1 cancel', signedCancel.payload);
  assert.throws(() => readCancel(CAROL.hostId, BOB.hostId, foreign), refusal('wrong_peer'));
});

test('a receipt is no cancel, a cancel no receipt, and neither an envelope', () => {
  assert.throws(() => readCancel(BOB.hostId, ALICE.hostId, signed), refusal('bad_signature'));
  assert.throws(() => readReceipt(ALICE.hostId, BOB.hostId, signedCancel), refusal('bad_signature'));
  assert.throws(() => readReceipt(BOB.hostId, ALICE.hostId, signOne(BOB, 'ax/1 envelope', signed.payload)), refusal('bad_signature'));
});

test('a malleated signature and any flipped bit are refused', () => {
  assert.throws(() => readReceipt(BOB.hostId, ALICE.hostId, malleated(signed)), refusal('bad_signature'));
  assert.throws(() => readCancel(ALICE.hostId, BOB.hostId, malleated(signedCancel)), refusal('bad_signature'));
  for (let at = 0; at < 64; at++)
    assert.throws(
      () => readReceipt(BOB.hostId, ALICE.hostId, { ...signed, signature: flipped(signed.signature, at, at % 8) }),
      refusal('bad_signature'),
    );
  for (let at = 0; at < signed.payload.length; at++)
    assert.throws(
      () => readReceipt(BOB.hostId, ALICE.hostId, { ...signed, payload: flipped(signed.payload, at) }),
      refusal('bad_signature'),
    );
});

test('a receipt out of a group is believed alone', () => {
  const [, member] = signGroup(BOB, 'ax/1 receipt', [counted(5), signed.payload, counted(6)]);
  assert.equal(readReceipt(BOB.hostId, ALICE.hostId, member!).outcome, 'accepted');
});

test('a newer field is tolerated, a newer version is update_required, a wrong shape a violation', () => {
  const read = (item: Signed): unknown => readReceipt(BOB.hostId, ALICE.hostId, item);
  assert.equal((read(again({ extra: { a: 1 } })) as Receipt).outcome, 'accepted');
  assert.throws(() => read(again({ v: 2 })), refusal('update_required'));
  const wrong: Record<string, unknown>[] = [
    { v: undefined },
    { id: 'x' },
    { id: undefined },
    { digest: counted(31) },
    { digest: 'x' },
    { outcome: 'lost' },
    { outcome: 'toString' },
    { at: -1 },
    { at: 'now' },
    { state: 'queued' },
    { stored_as: 'job' },
    { live_session: 1 },
    { certain: 'yes' },
  ];
  for (const change of wrong) assert.throws(() => read(again(change)), refusal('protocol_violation'), JSON.stringify(change));
  for (const change of [{ sender: 'alice' }, { receiver: counted(32) }, { sender: undefined }])
    assert.throws(() => read(again(change)), refusal('protocol_violation', 'invalid_argument'));
  for (const payload of [counted(9), encode([]), encode('x')])
    assert.throws(() => read(signOne(BOB, 'ax/1 receipt', payload)), refusal('protocol_violation'));
});

test('why no session is told is one of a few words in a receipt; an older receipt tells none, and any other word tells nothing', () => {
  const told = (reason: unknown): unknown => {
    const { storedAs: _kind, ...rest } = receipt;
    const fields = { v: 1, ...rest, stored_as: 'message', live_session: true, receiver: BOB.hostId, notice_reason: reason };
    return readReceipt(BOB.hostId, receipt.sender, signOne(BOB, 'ax/1 receipt', encode(fields))).noticeReason;
  };
  for (const reason of WITHHELD_REASONS) assert.equal(told(reason), reason);
  for (const reason of [undefined, null, 'toString', 'Quiet', 'quiet\u001b[2J']) assert.equal(told(reason), undefined);
  const quiet = { ...receipt, noticeReason: 'quiet' } as const;
  assert.equal(readReceipt(BOB.hostId, receipt.sender, signReceipt(BOB, quiet)).noticeReason, 'quiet');
});

test('progress comes back as told, its notice visible, and anything else is a violation', () => {
  const progress = { id: ID, state: 'available', at: AT, handedOut: true, liveSession: false, notice: 'held' } as const;
  const told = (change: object): Value => decode(encode({ ...progressValue(progress), ...change }));
  assert.deepEqual(readProgress(decode(encode(progressValue(progress)))), progress);
  const bare = { id: ID, state: 'fetched', at: 1, handedOut: false, liveSession: false } as const;
  assert.deepEqual(readProgress(decode(encode(progressValue(bare)))), bare);
  assert.equal(readProgress(told({ notice: 'a\u001b[2J' })).notice, 'a\ufffd[2J');
  for (const change of [{ id: 'x' }, { state: 'queued' }, { at: -1 }, { handed_out: 1 }, { notice: 'x'.repeat(33) }, { notice: 5 }])
    assert.throws(() => readProgress(told(change)), refusal('protocol_violation'), JSON.stringify(change));
  const withheld = { ...progress, notice: 'withheld', noticeReason: 'quiet' } as const;
  assert.deepEqual(readProgress(decode(encode(progressValue(withheld)))), withheld);
  fc.assert(
    fc.property(fc.anything(), (value) => {
      const result = outcome(() => readProgress(value as never));
      if (result instanceof AxError) assert.equal(result.code, 'protocol_violation');
    }),
  );
});

test('why a notice is withheld is one of a few words: any other, or one without a notice withheld, tells nothing', () => {
  const bare = { id: ID, state: 'available', at: AT, handedOut: false, liveSession: false } as const;
  const told = (change: object): unknown => readProgress(decode(encode({ ...progressValue(bare), ...change }))).noticeReason;
  for (const reason of WITHHELD_REASONS) assert.equal(told({ notice: 'withheld', notice_reason: reason }), reason);
  for (const reason of ['toString', 'Quiet', '', 'quiet\u001b[2J', undefined])
    assert.equal(told({ notice: 'withheld', notice_reason: reason }), undefined);
  assert.equal(told({ notice: 'written', notice_reason: 'quiet' }), undefined);
  assert.equal(told({ notice_reason: 'quiet' }), undefined);
  for (const reason of [5, ['quiet'], 'x'.repeat(33)])
    assert.throws(() => told({ notice: 'withheld', notice_reason: reason }), refusal('protocol_violation'), String(reason));
});
