/** Bodies handed over in parts: in order, bounded, forgotten when nobody comes back; and the pieces that wait for their message in the store. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sealToStore, forgetSealed, settleSealed } from '../../daemon/sealing.ts';
import { Staging } from '../../daemon/staging.ts';
import { Body, Uploads } from '../../daemon/uploads.ts';
import { pieceKey } from '../../daemon/store/rows.ts';
import { readEnvelope } from '../../protocol/envelope.ts';
import { sha256 } from '../../protocol/hashtree.ts';
import { CUT_BYTES, MAX_BODY_BYTES, MAX_PIECE_BYTES, MAX_UPLOADS_BYTES, STAGED_KEPT_MS, UPLOAD_PAUSE_MS } from '../../protocol/limits.ts';
import { SEAL_OVERHEAD } from '../../protocol/seal.ts';
import { ALICE, aliceKeys, counted, draft, hex, refusal, sealRandom } from '../protocol/sample.ts';
import { HandClock, idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const NAME = 'a'.repeat(32);
const PART = new Uint8Array(MAX_PIECE_BYTES);

test('parts are taken in order, and the body is there once', async () => {
  const uploads = new Uploads(new HandClock());
  assert.equal(uploads.add(NAME, 0, PART), PART.length);
  for (const wrong of [0, 2, '1', null]) assert.throws(() => uploads.add(NAME, wrong, counted(1)), refusal('invalid_state'));
  assert.equal(uploads.add(NAME, 1, counted(5, 3)), PART.length + 5);
  assert.throws(() => uploads.add(NAME, 2, counted(1)), refusal('invalid_argument'), 'every part but the last is whole');
  const body = uploads.take(NAME);
  assert.equal(hex(body.slice(PART.length - 2, body.bytes)), `0000${hex(counted(5, 3))}`);
  assert.throws(() => uploads.take(NAME), refusal('busy'));
});

test('what is no upload is refused', () => {
  const uploads = new Uploads(new HandClock());
  for (const name of [undefined, '', 'x', 'A'.repeat(32), `${NAME}0`, 5])
    assert.throws(() => uploads.add(name, 0, counted(1)), refusal('invalid_argument'));
  for (const part of [undefined, 'x', new Uint8Array(0), new Uint8Array(MAX_PIECE_BYTES + 1)])
    assert.throws(() => uploads.add(NAME, 0, part), refusal('invalid_argument'));
  for (const name of [undefined, null, 5, NAME]) assert.throws(() => uploads.take(name), refusal('busy'));
});

test('a body over the limit and more bodies than memory is given to are refused; one that is taken makes room', () => {
  const uploads = new Uploads(new HandClock());
  const fill = (name: string): void => {
    for (let index = 0; index * MAX_PIECE_BYTES < MAX_BODY_BYTES; index++) uploads.add(name, index, PART);
  };
  fill(NAME);
  assert.throws(() => uploads.add(NAME, 64, counted(1)), refusal('too_large'));
  for (let n = 1; n * MAX_BODY_BYTES < MAX_UPLOADS_BYTES; n++) fill(String(n).padStart(32, '0'));
  assert.throws(() => uploads.add('f'.repeat(32), 0, counted(1)), refusal('limit'));
  assert.equal(uploads.take(NAME).bytes, MAX_BODY_BYTES);
  assert.equal(uploads.add('f'.repeat(32), 0, counted(1)), 1);
});

test('no more than 8 bodies are on their way in at the same time', () => {
  const uploads = new Uploads(new HandClock());
  for (let n = 0; n < 8; n++) uploads.add(String(n).padStart(32, '0'), 0, counted(1));
  assert.throws(() => uploads.add('f'.repeat(32), 0, counted(1)), refusal('limit'));
  uploads.take('0'.repeat(32));
  assert.equal(uploads.add('f'.repeat(32), 0, counted(1)), 1);
});

test('an upload whose command went quiet is forgotten', () => {
  const clock = new HandClock();
  const uploads = new Uploads(clock);
  uploads.add(NAME, 0, PART);
  clock.pass(UPLOAD_PAUSE_MS - 1);
  uploads.add(NAME, 1, PART);
  clock.pass(UPLOAD_PAUSE_MS - 1);
  uploads.add(NAME, 2, counted(1));
  clock.pass(UPLOAD_PAUSE_MS);
  assert.throws(() => uploads.take(NAME), refusal('busy'));
  assert.equal(uploads.add(NAME, 0, counted(1)), 1);
});

test('a body in parts is sliced across them, and digested as one', async () => {
  const clock = new HandClock();
  const body = new Body([counted(3), counted(4, 50), counted(5, 100)]);
  const whole = Buffer.concat([counted(3), counted(4, 50), counted(5, 100)]);
  for (let start = 0; start < 12; start++)
    for (let end = start + 1; end <= 12; end++) assert.equal(hex(body.slice(start, end)), hex(whole.subarray(start, end)));
  const digest = body.digest({ now: () => 0, monotonic: () => 0, after: (_, run) => (queueMicrotask(run), () => undefined) });
  assert.equal(hex(await digest), hex(sha256(new Uint8Array(whole))));
  assert.equal(clock.pending, 0);
});

test('parts that were sealed are given back, and what lies in one that goes on stays', () => {
  const parts = [new Uint8Array(MAX_PIECE_BYTES).fill(1), new Uint8Array(MAX_PIECE_BYTES).fill(2), counted(3)];
  const body = new Body(parts);
  body.dropTo(MAX_PIECE_BYTES - 1);
  assert.equal(parts[0]!.length, MAX_PIECE_BYTES);
  body.dropTo(MAX_PIECE_BYTES + 5);
  assert.deepEqual([parts[0]!.length, parts[1]!.length], [0, MAX_PIECE_BYTES]);
  assert.deepEqual([body.bytes, hex(body.slice(MAX_PIECE_BYTES + 5, MAX_PIECE_BYTES + 7))], [2 * MAX_PIECE_BYTES + 3, '0202']);
  assert.equal(hex(body.slice(2 * MAX_PIECE_BYTES - 1, body.bytes)), `02${hex(counted(3))}`);
});

// --- pieces before their message -----------------------------------------------------------------------------------------

const store = async (): Promise<{ bed: Bed; staging: Staging }> => {
  const bed = await openBed();
  return { bed, staging: new Staging(bed.store, bed.running) };
};
const seal = ({ bed, staging }: { bed: Bed; staging: Staging }, isLocal = false) =>
  sealToStore(
    { store: bed.store, staging, self: ALICE.hostId, sealKeys: aliceKeys, pieceBytes: 100 },
    { ...draft, id: idOf(1) },
    new Body([counted(250)]),
    isLocal,
    sealRandom,
  );

test('pieces are durable before their message, and stay when it is stored', async () => {
  const place = await store();
  const sealed = await seal(place);
  assert.deepEqual([sealed.piece, sealed.staged?.count], [null, 3]);
  assert.deepEqual(place.bed.left(), { outbox_body: [0, 1, 2].map((n) => `${idOf(1)}/00${n}`), arriving: [`s/${idOf(1)}`] });
  await place.bed.write((tx) => settleSealed(place.staging, tx, sealed));
  place.bed.clock.pass(STAGED_KEPT_MS * 2);
  assert.equal(place.staging.isDue(), false);
  assert.equal(place.bed.keys('outbox_body').length, 3);
});

test('pieces whose message never came are removed: at once when it could not be stored, after an hour when a crash came between', async () => {
  for (const isLocal of [false, true]) {
    const place = await store();
    const { bed, staging } = place;
    const sealed = await seal(place, isLocal);
    assert.equal(bed.keys(isLocal ? 'inbox_body' : 'outbox_body').length, 3);
    await forgetSealed(bed.store, staging, sealed.staged);
    assert.deepEqual(bed.left(), {});
    const left = await seal(place, isLocal);
    bed.clock.pass(STAGED_KEPT_MS - 1);
    assert.equal(staging.isDue(), false);
    bed.clock.pass(1);
    assert.equal(staging.isDue(), true);
    assert.equal(await bed.write((tx) => staging.prune(tx)), 1);
    assert.deepEqual(bed.left(), {});
    await assert.rejects(
      bed.write((tx) => settleSealed(staging, tx, left)),
      refusal('busy'),
      'too late: it would be a message without a body',
    );
  }
});

test('a body of one piece is stored with its message alone', async () => {
  const { bed, staging } = await store();
  const deps = { store: bed.store, staging, self: ALICE.hostId, sealKeys: aliceKeys, pieceBytes: 100 };
  const sealed = await sealToStore(deps, { ...draft, id: idOf(1) }, new Body([counted(100)]), false, sealRandom);
  assert.deepEqual([sealed.piece?.length, sealed.staged, bed.left()], [116, undefined, {}]);
});

test('a body that goes with its message is one piece; a larger one is cut finer, so that nothing waits long for one of them', async () => {
  for (const [bytes, count] of [
    [MAX_PIECE_BYTES, 1],
    [MAX_PIECE_BYTES + 1, 5],
    [64 * CUT_BYTES + 1, 64],
  ] as const) {
    const { bed, staging } = await store();
    const deps = { store: bed.store, staging, self: ALICE.hostId, sealKeys: aliceKeys, pieceBytes: MAX_PIECE_BYTES };
    const body = new Body([new Uint8Array(bytes)]);
    const sealed = await sealToStore(deps, { ...draft, id: idOf(1) }, body, false, sealRandom);
    const lengths = readEnvelope(sealed.payload).pieces.map((_, index) => bed.store.get('outbox_body', pieceKey(idOf(1), index))?.length);
    assert.equal(lengths.length, count);
    if (count > 1)
      assert.equal(
        lengths.reduce((sum: number, length = 0) => sum + length - SEAL_OVERHEAD, 0),
        bytes,
      );
  }
});
