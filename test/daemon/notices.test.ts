/**
 * Notices over the real store: an attempt is known before it is made, what stands towards a session, and budgets in running time.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Notices } from '../../daemon/notices.ts';
import type { Attempt } from '../../daemon/notices.ts';
import { Uptime } from '../../daemon/uptime.ts';
import { DEFAULT_LIMITS, METADATA_RETENTION_MS, NOTICE_BURST, NOTICES_PER_HOUR } from '../../protocol/limits.ts';
import type { Limits } from '../../protocol/limits.ts';
import type { NoticeOutcome } from '../../protocol/states.ts';
import { ALICE, AT, BOB } from '../protocol/sample.ts';
import { DAY, idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const A = ALICE.hostId;
const HOUR = 3_600_000;

class Box {
  readonly bed: Bed;
  readonly notices: Notices;

  constructor(bed: Bed, limits?: Limits) {
    this.bed = bed;
    this.notices = new Notices(bed.store, bed.running, limits);
  }

  begin(id: string, session = 's1', attempts = 1, told = 5): Promise<void> {
    const attempt: Omit<Attempt, 'outcome'> = {
      id,
      session,
      harness: 'claude',
      workspace: '/w',
      messages: [{ sender: A, id: idOf(1) }],
      at: AT,
      ran: this.bed.running(),
      paidBy: A,
    };
    return this.bed.write((tx) => this.notices.begin(tx, attempt, attempts, told));
  }

  settle(id: string, outcome: NoticeOutcome): Promise<Attempt | undefined> {
    return this.bed.write((tx) => this.notices.settle(tx, id, outcome));
  }

  async spend(times: number, sender = A, workspace = '/w'): Promise<number> {
    let paid = 0;
    await this.bed.write((tx) => {
      for (let n = 0; n < times; n++) if (this.notices.spend(tx, sender, 'claude', workspace)) paid += 1;
    });
    return paid;
  }
}

const emptyBox = async (): Promise<Box> => new Box(await openBed());

test('an attempt is unverified from the moment it begins, also after a crash', async () => {
  const box = await emptyBox();
  await box.begin('n1', 's1', 2, 7);
  const again = new Notices(await box.bed.reopen(), box.bed.running);
  assert.equal(again.attempt('n1')?.outcome, 'unverified');
  assert.deepEqual(again.standing('s1'), { noticeId: 'n1', outcome: 'unverified', attempts: 2, failures: 0, told: 7, at: AT, ran: 0 });
  assert.deepEqual(again.counts(), {});
});

test('an outcome is kept with its attempt, shown in what stands, and counted', async () => {
  const box = await emptyBox();
  await box.begin('n1');
  await box.settle('n1', 'held');
  assert.deepEqual([box.notices.attempt('n1')?.outcome, box.notices.standing('s1')?.outcome], ['held', 'held']);
  assert.equal((await box.settle('n1', 'approved'))?.outcome, 'approved');
  assert.deepEqual(box.notices.counts(), { held: 1, approved: 1 });
});

test('an attempt that reached nothing is no attempt: it is counted apart and given back to the budget that paid for it', async () => {
  const box = await emptyBox();
  assert.equal(await box.spend(NOTICE_BURST), NOTICE_BURST);
  const shown = (): unknown[] => {
    const standing = box.notices.standing('s1');
    return [standing?.attempts, standing?.failures, box.notices.untilBudget(A, 'claude', '/w') === 0];
  };
  await box.begin('n1');
  await box.settle('n1', 'failed');
  assert.deepEqual(shown(), [0, 1, true]);
  await box.settle('n1', 'failed');
  assert.deepEqual([...shown(), await box.spend(5)], [0, 1, true, 1]);
  await box.begin('n2', 's1', 1);
  await box.settle('n2', 'failed');
  assert.deepEqual(shown(), [0, 2, true]);
  await box.begin('n3', 's1', 1);
  await box.settle('n3', 'written');
  assert.deepEqual(shown(), [1, 0, true]);
});

test('a budget given back is never more than the burst', async () => {
  const box = await emptyBox();
  await box.spend(1);
  await box.begin('n1');
  await box.begin('n2');
  await box.settle('n1', 'failed');
  await box.settle('n2', 'failed');
  assert.equal(await box.spend(NOTICE_BURST + 5), NOTICE_BURST);
});

test('a late outcome of an earlier attempt does not change what stands now', async () => {
  const box = await emptyBox();
  await box.begin('n1');
  await box.begin('n2', 's1', 2);
  await box.settle('n1', 'denied');
  assert.deepEqual(
    [box.notices.attempt('n1')?.outcome, box.notices.standing('s1')?.noticeId, box.notices.standing('s1')?.outcome],
    ['denied', 'n2', 'unverified'],
  );
});

test('an outcome of an attempt nobody knows is dropped and not counted', async () => {
  const box = await emptyBox();
  assert.equal(await box.settle('nobody', 'held'), undefined);
  assert.deepEqual(box.bed.left(), {});
});

test('a session that asked by itself has nothing outstanding', async () => {
  const box = await emptyBox();
  await box.begin('n1');
  box.bed.clock.pass(1000);
  await box.bed.write((tx) => box.notices.toldBySelf(tx, 's1', 9, AT + 1));
  assert.deepEqual(box.notices.standing('s1'), {
    noticeId: null,
    outcome: 'approved',
    attempts: 1,
    failures: 0,
    told: 9,
    at: AT + 1,
    ran: 1000,
  });
  await box.settle('n1', 'denied');
  assert.equal(box.notices.standing('s1')?.outcome, 'approved');
});

test('a budget is a burst of ten, then thirty an hour of running time', async () => {
  const box = await emptyBox();
  assert.equal(box.notices.untilBudget(A, 'claude', '/w'), 0);
  assert.equal(await box.spend(NOTICE_BURST + 5), NOTICE_BURST);
  const wait = box.notices.untilBudget(A, 'claude', '/w');
  assert.ok(wait > 0 && wait <= HOUR / NOTICES_PER_HOUR, String(wait));
  box.bed.clock.pass(wait - 1);
  assert.equal(await box.spend(1), 0);
  box.bed.clock.pass(1);
  assert.equal(await box.spend(2), 1);
  let inAnHour = 0;
  for (let minute = 0; minute < 60; minute++) {
    box.bed.clock.pass(60_000);
    inAnHour += await box.spend(5);
  }
  assert.ok(inAnHour >= NOTICES_PER_HOUR - 1 && inAnHour <= NOTICES_PER_HOUR, String(inAnHour));
});

test('the budget is the one that config.json gives', async () => {
  const box = await emptyBox();
  const limits = { ...DEFAULT_LIMITS, noticeBurst: 2, noticesPerHour: 6 };
  const small = new Box(box.bed, limits);
  assert.equal(await small.spend(5), 2);
  assert.equal(small.notices.untilBudget(A, 'claude', '/w'), 10 * 60_000);
  box.bed.clock.pass(10 * HOUR);
  assert.equal(await small.spend(5), 2);
});

test('what a pause begins with is durable together with the running time it begins at', async () => {
  const box = await emptyBox();
  const kept = (): number => new Uptime(box.bed.store, box.bed.clock).now();
  box.bed.clock.pass(30_000);
  await box.begin('n1');
  assert.equal(kept(), 30_000);
  box.bed.clock.pass(1000);
  await box.settle('n1', 'approved');
  assert.equal(kept(), 31_000);
  box.bed.clock.pass(1000);
  await box.bed.write((tx) => box.notices.toldBySelf(tx, 's1', 9, AT));
  assert.equal(kept(), 32_000);
});

test('an idle week saves up no more than the burst', async () => {
  const box = await emptyBox();
  await box.spend(3);
  box.bed.clock.pass(7 * DAY);
  assert.equal(await box.spend(NOTICE_BURST + 5), NOTICE_BURST);
});

test('budgets of other senders and other workspaces are their own', async () => {
  const box = await emptyBox();
  await box.spend(NOTICE_BURST);
  assert.deepEqual([await box.spend(1), await box.spend(1, BOB.hostId), await box.spend(1, A, '/other')], [0, 1, 1]);
});

test('running time that fell back after a crash gives no budget away and takes at most its minute', async () => {
  const box = await emptyBox();
  box.bed.clock.pass(10 * 60_000);
  await box.spend(NOTICE_BURST);
  box.bed.clock.ran -= 60_000;
  assert.equal(await box.spend(1), 0);
  assert.ok(box.notices.untilBudget(A, 'claude', '/w') <= HOUR / NOTICES_PER_HOUR + 60_000);
});

test('attempts are forgotten after their time, and what stands towards a session with them', async () => {
  const box = await emptyBox();
  await box.begin('n1', 's1');
  box.bed.clock.pass(DAY);
  await box.begin('n2', 's2');
  box.bed.clock.pass(METADATA_RETENTION_MS - DAY + 1);
  assert.equal(await box.bed.write((tx) => box.notices.prune(tx, 9)), 1);
  assert.deepEqual([box.notices.attempt('n1'), box.notices.standing('s1')], [undefined, undefined]);
  assert.notEqual(box.notices.standing('s2'), undefined);
  box.bed.clock.pass(DAY);
  await box.bed.write((tx) => box.notices.prune(tx, 9));
  assert.deepEqual(box.bed.keys('notices'), []);
});

test('pruning an old attempt leaves what stands by a newer one', async () => {
  const box = await emptyBox();
  await box.begin('n1');
  box.bed.clock.pass(DAY);
  await box.begin('n2');
  box.bed.clock.pass(METADATA_RETENTION_MS - DAY + 1);
  await box.bed.write((tx) => box.notices.prune(tx, 9));
  assert.equal(box.notices.standing('s1')?.noticeId, 'n2');
});

test('what stands towards a session that only asked by itself, and full budgets, are forgotten as well', async () => {
  const box = await emptyBox();
  await box.begin('n1', 's1');
  await box.bed.write((tx) => box.notices.toldBySelf(tx, 's1', 9, AT));
  await box.bed.write((tx) => box.notices.toldBySelf(tx, 's2', 9, AT));
  await box.spend(1);
  box.bed.clock.pass(METADATA_RETENTION_MS + 1);
  for (let round = 0; round < 3; round++) await box.bed.write((tx) => box.notices.prune(tx, 9));
  assert.deepEqual(box.bed.keys('notices'), []);
});

test('a code opens what it was made for and what was told since, the newest 200, and leaves nothing behind after 30 days', async () => {
  const box = await emptyBox();
  const [code, other] = ['1'.repeat(32), '2'.repeat(32)];
  const told = (from: number, count: number): { sender: typeof A; id: ReturnType<typeof idOf> }[] =>
    Array.from({ length: count }, (_, n) => ({ sender: A, id: idOf(from + n) }));
  const pass = { session: 's1', harness: 'claude', workspace: '/w' };
  await box.bed.write((tx) => box.notices.allow(tx, code, { ...pass, messages: told(1, 1) }));
  assert.deepEqual(box.notices.pass(code), { ...pass, messages: told(1, 1), ran: 0 });
  assert.equal(box.notices.pass(other), undefined);
  await box.bed.write((tx) => {
    box.notices.extend(tx, code, [...told(1, 2), { sender: BOB.hostId, id: idOf(1) }]);
    box.notices.extend(tx, other, told(1, 2));
  });
  assert.deepEqual(box.notices.pass(code)?.messages, [...told(1, 2), { sender: BOB.hostId, id: idOf(1) }]);
  assert.equal(box.notices.pass(other), undefined);
  await box.bed.write((tx) => box.notices.extend(tx, code, told(10, 300)));
  assert.deepEqual(box.notices.pass(code)?.messages, told(110, 200));
  box.bed.clock.pass(METADATA_RETENTION_MS + 1);
  await box.bed.write((tx) => box.notices.prune(tx, 9));
  assert.deepEqual(box.bed.keys('notices'), []);
});
