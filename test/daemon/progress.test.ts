/**
 * Progress news over the real store: gathered for a moment, told once, and nothing is read after the stop.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Inbox } from '../../daemon/inbox.ts';
import { ProgressNews } from '../../daemon/progress.ts';
import type { Progress } from '../../protocol/receipt.ts';
import { MAX_PROGRESS_IDS } from '../../protocol/wire.ts';
import { ALICE, AT, counted } from '../protocol/sample.ts';
import { DAY, idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const A = ALICE.hostId;

async function newsOf(bed: Bed, count: number): Promise<{ news: ProgressNews; inbox: Inbox }> {
  const inbox = new Inbox(bed.store, bed.running);
  for (let n = 1; n <= count; n++)
    await bed.write((tx) =>
      inbox.accept(
        tx,
        {
          id: idOf(n),
          sender: A,
          state: 'available',
          storedAs: 'message',
          signed: counted(9, n),
          digest: counted(32, n),
          bytes: 100,
          harness: 'claude',
          workspace: '/w',
          hint: null,
          sentAt: AT,
          receivedAt: AT,
          expires: DAY,
        },
        counted(20, n),
      ),
    );
  return { news: new ProgressNews(bed.clock, inbox, () => true), inbox };
}

test('changes within a moment travel together, each message once', async () => {
  const bed = await openBed();
  const { news } = await newsOf(bed, 2);
  const told: Progress[][] = [];
  for (const n of [1, 2, 1]) news.add(A, idOf(n), (items) => void told.push(items));
  bed.clock.pass(50);
  assert.deepEqual(
    told.map((items) => items.map((item) => item.id)),
    [[idOf(1), idOf(2)]],
  );
});

test('of more changes than one word has room for the others come with the next', async () => {
  const bed = await openBed();
  const { news } = await newsOf(bed, MAX_PROGRESS_IDS + 1);
  const told: number[] = [];
  for (let n = 1; n <= MAX_PROGRESS_IDS + 1; n++) news.add(A, idOf(n), (items) => void told.push(items.length));
  bed.clock.pass(50);
  assert.deepEqual(told, [MAX_PROGRESS_IDS]);
  bed.clock.pass(50);
  assert.deepEqual([told, bed.clock.pending], [[MAX_PROGRESS_IDS, 1], 0]);
});

test('after the stop nothing is told, nothing is read, and no timer is left', async () => {
  const bed = await openBed();
  const { news } = await newsOf(bed, 1);
  const told: Progress[][] = [];
  news.add(A, idOf(1), (items) => void told.push(items));
  news.stop();
  news.add(A, idOf(1), (items) => void told.push(items));
  assert.equal(bed.clock.pending, 0);
  await bed.reopen();
  bed.clock.pass(1000);
  assert.deepEqual(told, []);
});
