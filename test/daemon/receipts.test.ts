/**
 * The receipt outbox over the real store: kept per host in order until acknowledged.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Receipts } from '../../daemon/receipts.ts';
import { ALICE, BOB, counted } from '../protocol/sample.ts';
import { idOf, openBed } from './bed.ts';

const A = ALICE.hostId;
const B = BOB.hostId;

test('receipts wait per host, oldest first, until each is done; then nothing is left but the count', async () => {
  const bed = await openBed();
  const receipts = new Receipts(bed.store);
  await bed.write((tx) => {
    for (let n = 1; n <= 5; n++) receipts.add(tx, n % 2 === 0 ? B : A, idOf(n), counted(9, n));
  });
  assert.deepEqual(
    receipts.pending(A, 9).map((one) => one.id),
    [idOf(1), idOf(3), idOf(5)],
  );
  assert.deepEqual(
    receipts.pending(B, 1).map((one) => [one.id, one.signed]),
    [[idOf(2), counted(9, 2)]],
  );
  const [first] = receipts.pending(A, 9);
  await bed.write((tx) => receipts.done(tx, first!));
  await bed.write((tx) => receipts.done(tx, first!));
  assert.deepEqual(
    receipts.pending(A, 9).map((one) => one.id),
    [idOf(3), idOf(5)],
  );
  for (const host of [A, B]) for (const one of receipts.pending(host, 9)) await bed.write((tx) => receipts.done(tx, one));
  assert.deepEqual(Object.keys(bed.left()), ['meta']);
});

test('two receipts of one message both wait, in their order', async () => {
  const bed = await openBed();
  const receipts = new Receipts(bed.store);
  await bed.write((tx) => receipts.add(tx, A, idOf(1), counted(3)));
  await bed.write((tx) => receipts.add(tx, A, idOf(1), counted(4)));
  assert.deepEqual(
    receipts.pending(A, 9).map((one) => one.signed.length),
    [3, 4],
  );
});

test('what waits for a removed host is dropped, and for no other', async () => {
  const bed = await openBed();
  const receipts = new Receipts(bed.store);
  await bed.write((tx) => [A, B].forEach((host) => receipts.add(tx, host, idOf(1), counted(3))));
  await bed.write((tx) => receipts.drop(tx, A));
  assert.deepEqual([receipts.pending(A, 9).length, receipts.pending(B, 9).length], [0, 1]);
});

test('receipts wait through a restart', async () => {
  const bed = await openBed();
  await bed.write((tx) => new Receipts(bed.store).add(tx, A, idOf(1), counted(3)));
  assert.equal(new Receipts(await bed.reopen()).pending(A, 9).length, 1);
});
