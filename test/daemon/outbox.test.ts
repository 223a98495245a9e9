/**
 * The outbox over the real store: every step, what the receiver's words may change in which order, and that nothing stays behind.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Outbox } from '../../daemon/outbox.ts';
import type { Cause, NewSent, Sent } from '../../daemon/sent-row.ts';
import type { Origin } from '../../protocol/control.ts';
import { MAX_RETENTION_MS, METADATA_RETENTION_MS } from '../../protocol/limits.ts';
import type { Receipt } from '../../protocol/receipt.ts';
import type { SenderState } from '../../protocol/states.ts';
import { ALICE, AT, BOB, CAROL, counted, refusal, toBob } from '../protocol/sample.ts';
import { DAY, idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const B = BOB.hostId;
const ORIGIN: Origin = { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'cli' };
const cause = (code: string): Cause => ({ code, message: code, at: AT });

class Box {
  readonly bed: Bed;
  readonly outbox: Outbox;

  constructor(bed: Bed) {
    this.bed = bed;
    this.outbox = new Outbox(bed.store, bed.running);
  }

  add(n: number, change: Partial<NewSent> = {}): Promise<Sent> {
    const fresh: NewSent = {
      id: idOf(n),
      host: B,
      to: toBob,
      kind: 'message',
      state: 'queued',
      signed: counted(9, n),
      digest: counted(32, n),
      bytes: 20,
      createdAt: AT,
      createdRan: this.bed.running(),
      deadline: this.bed.running() + 3 * DAY,
      local: false,
      agent: null,
      origin: ORIGIN,
      request: { key: `k${n}`, fingerprint: `f${n}` },
      ...change,
    };
    return this.bed.write((tx) => this.outbox.add(tx, fresh, fresh.local ? null : counted(36, n)));
  }

  row(n: number): Sent {
    const row = this.outbox.get(idOf(n));
    assert.ok(row !== undefined);
    return row;
  }

  /** State of a row, with `?` when it is uncertain and `c` when a cancel is asked. */
  is(n: number): string {
    const row = this.row(n);
    return `${row.state}${row.uncertain ? '?' : ''}${row.cancelRequested ? ' c' : ''}`;
  }

  leave(...all: number[]): Promise<Sent[]> {
    return this.bed.write((tx) =>
      this.outbox.leaving(
        tx,
        all.map((n) => this.outbox.get(idOf(n), tx)!),
      ),
    );
  }

  receipt(n: number, outcome: Receipt['outcome'], change: Partial<Receipt> = {}): Promise<Sent | undefined> {
    const states = {
      accepted: 'available',
      fetched: 'fetched',
      expired: 'expired',
      cancelled: 'cancelled',
      too_late: 'available',
    } as const;
    const receipt: Receipt = {
      outcome,
      id: idOf(n),
      digest: counted(32, n),
      sender: ALICE.hostId,
      receiver: B,
      at: AT + 100,
      state: states[outcome],
      storedAs: 'message',
      liveSession: true,
      certain: false,
      ...change,
    };
    return this.bed.write((tx) => {
      const row = this.outbox.get(receipt.id, tx);
      return row === undefined ? undefined : this.outbox.receipt(tx, row, receipt);
    });
  }

  cancel(n: number): Promise<{ row: Sent; isNew: boolean }> {
    return this.bed.write((tx) => this.outbox.cancel(tx, idOf(n)));
  }

  defer(n: number, certain = true, code = 'busy'): Promise<Sent | undefined> {
    return this.bed.write((tx) => this.outbox.defer(tx, idOf(n), certain, cause(code)));
  }

  refuse(n: number, code = 'not_found'): Promise<Sent | undefined> {
    return this.bed.write((tx) => this.outbox.refuse(tx, idOf(n), cause(code)));
  }

  unanswered(n: number, certain: boolean): Promise<Sent | undefined> {
    return this.bed.write((tx) => this.outbox.unanswered(tx, idOf(n), certain, cause('unavailable')));
  }

  expire(n: number): Promise<Sent | undefined> {
    return this.bed.write((tx) => this.outbox.expire(tx, idOf(n), AT));
  }

  prune(): Promise<number> {
    return this.bed.write((tx) => this.outbox.prune(tx, 1000));
  }

  /** The index keys of a row, without those that only find it. */
  index(): string[] {
    return this.bed
      .keys('outbox_index')
      .filter((key) => !key.startsWith('i/'))
      .map((key) => key.slice(0, 1));
  }
}

const emptyBox = async (): Promise<Box> => new Box(await openBed());

/** Open entries of all hosts. */
function openInAll(outbox: Outbox): number {
  const { queued, forwarding, deferred } = outbox.tally();
  return queued + forwarding + deferred;
}

test('a new entry is found by id, by prefix, by request and as open, with its body', async () => {
  const box = await emptyBox();
  const row = await box.add(1);
  assert.deepEqual(box.row(1), row);
  assert.deepEqual(box.outbox.find(idOf(1).slice(0, 8), 9), [idOf(1)]);
  assert.deepEqual(box.outbox.byRequest('k1'), row);
  assert.equal(box.outbox.byRequest('k2'), undefined);
  assert.deepEqual(box.outbox.open(B, 0, 9), [row]);
  assert.deepEqual(box.outbox.body(idOf(1)), counted(36, 1));
  assert.equal(box.is(1), 'queued');
});

test('an entry that may leave at once says so from the first moment', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  assert.equal(box.is(1), 'forwarding?');
});

test('the straight way: leaving, accepted, fetched; the body goes with the acceptance', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.leave(1);
  assert.equal(box.is(1), 'forwarding?');
  assert.deepEqual(await box.leave(1), [], 'told once');
  await box.receipt(1, 'accepted', { storedAs: 'note' });
  assert.deepEqual(
    [box.is(1), box.row(1).storedAs, box.row(1).acceptedAt, box.outbox.body(idOf(1))],
    ['accepted', 'note', AT + 100, undefined],
  );
  assert.deepEqual([box.outbox.open(B, 0, 9).length, box.outbox.accepted(B, 0, 9).length, box.index().join('')], [0, 1, 'pw']);
  await box.receipt(1, 'fetched', { at: AT + 200 });
  assert.deepEqual(
    [box.is(1), box.row(1).fetchedAt, box.row(1).receiver?.state, box.index().join('')],
    ['fetched', AT + 200, 'fetched', 'ps'],
  );
});

test('pickup told before acceptance is pickup, and the acceptance that comes later takes nothing back', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.leave(1);
  await box.receipt(1, 'fetched', { at: AT + 200 });
  await box.receipt(1, 'accepted', { at: AT + 50 });
  const row = box.row(1);
  assert.deepEqual([box.is(1), row.fetchedAt, row.receiver?.state, row.receiver?.handedOut], ['fetched', AT + 200, 'fetched', true]);
});

test('of all orders of the receiver’s words pickup and cancel are never undone', async () => {
  const box = await emptyBox();
  const words = ['accepted', 'fetched', 'too_late', 'expired', 'cancelled'] as const;
  let n = 0;
  for (const final of ['fetched', 'cancelled'] as const) {
    for (const before of [undefined, 'accepted', 'too_late'] as const)
      for (const after of words) {
        n += 1;
        await box.add(n, { state: 'forwarding' });
        if (before !== undefined) await box.receipt(n, before);
        await box.receipt(n, final);
        await box.receipt(n, after);
        assert.equal(box.is(n), final, `${before ?? '-'}, ${final}, ${after}`);
        assert.equal(box.row(n).receiver?.state, final, `${before ?? '-'}, ${final}, ${after}`);
      }
  }
});

test('a receipt of another host, of an unknown message, or of another content changes nothing', async () => {
  const box = await emptyBox();
  const row = await box.add(1);
  assert.equal(await box.receipt(1, 'accepted', { receiver: CAROL.hostId }), undefined);
  assert.equal(await box.receipt(2, 'accepted'), undefined);
  await assert.rejects(box.receipt(1, 'accepted', { digest: counted(32, 9) }), refusal('key_conflict'));
  await assert.rejects(box.receipt(1, 'accepted', { digest: new Uint8Array(32) }), refusal('key_conflict'));
  assert.deepEqual(box.row(1), row);
});

test('"not now" keeps the entry open with its cause, and the next attempt leaves again', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.leave(1);
  await box.defer(1);
  assert.deepEqual([box.is(1), box.row(1).cause?.code, box.outbox.countOpen(B)], ['deferred', 'busy', 1]);
  await box.leave(1);
  assert.equal(box.is(1), 'forwarding?');
  await box.receipt(1, 'accepted');
  assert.deepEqual([box.is(1), box.row(1).cause], ['accepted', null]);
});

test('"not now" to one attempt does not settle an earlier one that got no answer', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.leave(1);
  await box.unanswered(1, false);
  assert.equal(box.is(1), 'forwarding?');
  await box.defer(1, false);
  assert.equal(box.is(1), 'deferred?');
  const { row } = await box.cancel(1);
  assert.deepEqual([row.state, row.cancelRequested], ['deferred', true]);
});

test('an attempt that never left makes the entry queued and certain again', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.leave(1);
  await box.unanswered(1, true);
  assert.deepEqual([box.is(1), box.row(1).cause?.code], ['queued', 'unavailable']);
});

test('a refusal is for good: no time-out, deferral or expiry overwrites it', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.leave(1);
  await box.refuse(1);
  for (const later of [() => box.unanswered(1, false), () => box.defer(1), () => box.refuse(1, 'expired')]) await later();
  box.bed.clock.pass(4 * DAY);
  await box.expire(1);
  assert.deepEqual([box.is(1), box.row(1).cause?.code, box.outbox.overdue(9)], ['refused', 'not_found', []]);
  await assert.rejects(box.cancel(1), refusal('invalid_state'));
});

test('an acceptance is never overwritten by a refusal, a deferral or the deadline', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.receipt(1, 'accepted');
  box.bed.clock.pass(4 * DAY);
  assert.deepEqual(
    [await box.refuse(1), await box.defer(1), await box.unanswered(1, true), await box.expire(1)],
    [undefined, undefined, undefined, undefined],
  );
  assert.equal(box.is(1), 'accepted');
});

test('the deadline ends what is open: certain when nothing left, uncertain when something may have', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.add(2, { state: 'forwarding' });
  await box.add(3);
  await box.defer(3, true, 'untrusted_peer');
  await box.add(4, { deadline: 9 * DAY });
  assert.equal(await box.expire(1), undefined, 'not before its time');
  box.bed.clock.pass(3 * DAY);
  assert.deepEqual(
    box.outbox.overdue(2).map((row) => row.seq),
    [1, 2],
  );
  assert.deepEqual(
    box.outbox.overdue(9).map((row) => row.seq),
    [1, 2, 3],
  );
  for (const n of [1, 2, 3, 4]) await box.expire(n);
  assert.deepEqual(
    [1, 2, 3, 4].map((n) => box.is(n)),
    ['expired', 'expired?', 'expired', 'queued'],
  );
  assert.equal(box.row(3).cause?.code, 'untrusted_peer');
  assert.equal(openInAll(box.outbox), 1);
});

test('a late acceptance corrects an uncertain expiry, and the entry is kept as long as any accepted one', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  box.bed.clock.pass(3 * DAY);
  await box.expire(1);
  assert.equal(box.is(1), 'expired?');
  box.bed.clock.pass(DAY);
  await box.receipt(1, 'accepted');
  assert.equal(box.is(1), 'accepted');
  box.bed.clock.pass(METADATA_RETENTION_MS);
  await box.prune();
  assert.equal(box.is(1), 'accepted', 'not ended, so not forgotten');
  await box.receipt(1, 'fetched');
  await box.prune();
  assert.equal(box.is(1), 'fetched', 'kept for its time after the end');
  box.bed.clock.pass(METADATA_RETENTION_MS + 1);
  await box.prune();
  assert.equal(box.outbox.get(idOf(1)), undefined);
});

test('an accepted entry whose host never tells more is forgotten long after any retention could have ended', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.receipt(1, 'accepted');
  box.bed.clock.pass(MAX_RETENTION_MS + METADATA_RETENTION_MS - 1);
  await box.prune();
  assert.equal(box.is(1), 'accepted');
  box.bed.clock.pass(2);
  await box.prune();
  assert.deepEqual([box.outbox.get(idOf(1)), box.index()], [undefined, []]);
});

test('what never left is cancelled at once and for good', async () => {
  const box = await emptyBox();
  await box.add(1);
  assert.deepEqual([await box.cancel(1).then(({ isNew }) => isNew), box.is(1), box.outbox.body(idOf(1))], [true, 'cancelled', undefined]);
  assert.equal((await box.cancel(1)).isNew, false);
  assert.deepEqual(await box.leave(), []);
});

test('what may have left asks the receiver, and is not forwarded into the cancel', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.cancel(1);
  assert.equal(box.is(1), 'forwarding? c');
  assert.deepEqual(
    box.outbox.cancels(B, 0, 9).map((row) => row.id),
    [idOf(1)],
  );
  await box.receipt(1, 'cancelled');
  assert.deepEqual([box.is(1), box.row(1).acceptedAt, box.outbox.cancels(B, 0, 9)], ['cancelled', null, []]);
});

test('a cancel that lost the race shows why and leaves the message on its way to pickup', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.receipt(1, 'accepted');
  await box.cancel(1);
  await box.receipt(1, 'too_late', { certain: false });
  assert.deepEqual([box.is(1), box.row(1).cause?.code, box.row(1).receiver?.handedOut], ['accepted', 'too_late', true]);
  await assert.rejects(box.cancel(1), refusal('too_late'));
  await box.receipt(1, 'fetched');
  assert.equal(box.is(1), 'fetched');
  await assert.rejects(box.cancel(1), refusal('too_late'));
});

test('a cancel whose answer never comes stays asked through the deadline and ends expired, uncertain', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.cancel(1);
  box.bed.clock.pass(3 * DAY);
  await box.expire(1);
  assert.deepEqual([box.is(1), box.outbox.cancels(B, 0, 9).length], ['expired? c', 1]);
  const asked = (): number[] => [box.outbox.expiredUncertain(B, 0, 9).length, box.outbox.expiredUncertain(CAROL.hostId, 0, 9).length];
  assert.deepEqual(asked(), [1, 0]);
  await box.receipt(1, 'cancelled');
  assert.equal(box.is(1), 'cancelled');
  assert.deepEqual(asked(), [0, 0]);
});

test('a message that is refused while its cancel is asked counts as cancelled', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.cancel(1);
  await box.refuse(1);
  assert.equal(box.is(1), 'cancelled');
});

test('a cancel the receiver will not take is dropped and the message stays as it is', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.receipt(1, 'accepted');
  await box.cancel(1);
  await box.bed.write((tx) => box.outbox.cancelRefused(tx, idOf(1), cause('key_conflict')));
  assert.deepEqual([box.is(1), box.row(1).cause?.code], ['accepted', 'key_conflict']);
});

test('a cancel of an unknown or surely expired message is refused with its code', async () => {
  const box = await emptyBox();
  await assert.rejects(box.cancel(1), refusal('message_not_found'));
  await box.add(2);
  box.bed.clock.pass(3 * DAY);
  await box.expire(2);
  await assert.rejects(box.cancel(2), refusal('invalid_state'));
});

test('unsigned progress mirrors what is accepted, decides nothing, and tells nothing twice', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  const progress = { id: idOf(1), state: 'available', at: AT + 5, handedOut: true, liveSession: false, notice: 'held' } as const;
  const tell = (host = B, change: object = {}): Promise<Sent | undefined> =>
    box.bed.write((tx) => box.outbox.progress(tx, host, { ...progress, ...change }));
  assert.equal(await tell(), undefined, 'not accepted yet');
  await box.receipt(1, 'accepted');
  assert.equal(await tell(CAROL.hostId), undefined, 'another host');
  assert.deepEqual((await tell())?.receiver, {
    state: 'available',
    at: AT + 5,
    handedOut: true,
    handedOutAt: AT + 5,
    liveSession: false,
    notice: 'held',
    noticeReason: null,
  });
  assert.equal(await tell(), undefined, 'no news');
  const shown = async (change: object): Promise<unknown[]> => {
    const { receiver } = (await tell(B, { notice: undefined, ...change })) ?? box.row(1);
    return [receiver?.notice, receiver?.noticeReason];
  };
  assert.deepEqual(await shown({}), ['held', null], 'a word about a notice that was made stays');
  for (const noticeReason of ['quiet', 'budget'] as const)
    assert.deepEqual(await shown({ notice: 'withheld', noticeReason }), ['withheld', noticeReason]);
  assert.deepEqual(await shown({}), [null, null], 'one that is withheld no longer does not');
  await tell(B, { state: 'fetched' });
  assert.equal(box.is(1), 'accepted', 'only a signed receipt delivers');
  await box.receipt(1, 'fetched');
  assert.equal(await tell(B, { liveSession: true }), undefined);
});

test('of a message that has ended unsigned progress tells what became of its notice, and nothing else', async () => {
  const box = await emptyBox();
  for (const id of [1, 2]) await box.add(id, { state: 'forwarding' });
  await box.receipt(1, 'fetched');
  const ended = box.row(1);
  const tell = (change: object, id = 1): Promise<Sent | undefined> =>
    box.bed.write((tx) =>
      box.outbox.progress(tx, B, {
        id: idOf(id),
        state: 'fetched',
        at: AT + 99,
        handedOut: false,
        liveSession: true,
        notice: 'left_queue',
        ...change,
      }),
    );
  assert.equal(await tell({ state: 'available' }), undefined, 'an older word');
  assert.equal(await tell({ state: 'expired' }), undefined, 'another end');
  assert.deepEqual(await tell({}), { ...ended, receiver: { ...ended.receiver, notice: 'left_queue' } });
  assert.equal(await tell({}), undefined, 'no news');
  assert.equal(await tell({}, 2), undefined, 'not accepted yet');
});

test('a local message has no open index, is settled by its inbox row, and is never forwarded', async () => {
  const box = await emptyBox();
  const here = ALICE.hostId;
  for (const n of [1, 2, 3]) await box.add(n, { local: true, state: 'accepted', host: here });
  assert.deepEqual([box.index().join(''), box.outbox.open(here, 0, 9), box.outbox.accepted(here, 0, 9)], ['pppsss', [], []]);
  await box.bed.write((tx) => {
    box.outbox.settleLocal(tx, idOf(1), 'fetched', AT + 9);
    box.outbox.settleLocal(tx, idOf(2), 'expired', AT + 9);
    box.outbox.settleLocal(tx, idOf(3), 'cancelled', AT + 9);
    box.outbox.settleLocal(tx, idOf(1), 'cancelled', AT + 10);
  });
  assert.deepEqual(
    [1, 2, 3].map((n) => box.is(n)),
    ['fetched', 'expired', 'cancelled'],
  );
  assert.equal(box.row(1).fetchedAt, AT + 9);
});

test('removing a host ends its entries: cancelled when they never left, else expired and uncertain', async () => {
  const box = await emptyBox();
  await box.add(1);
  await box.add(2, { state: 'forwarding' });
  await box.add(3, { state: 'forwarding' });
  await box.receipt(3, 'accepted');
  await box.cancel(3);
  await box.add(4, { host: CAROL.hostId });
  await box.bed.write((tx) => {
    for (const row of box.outbox.allOpen(tx, B)) box.outbox.abandon(tx, row.id);
  });
  assert.deepEqual(
    [1, 2, 3, 4].map((n) => box.is(n)),
    ['cancelled', 'expired?', 'expired?', 'queued'],
  );
  assert.deepEqual([box.outbox.countOpen(B), box.outbox.cancels(B, 0, 9)], [0, []]);
});

test('a list by state holds each entry in that state once, newest first, and costs the straight way one index key at its end', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 9; n++) await box.add(n, n % 3 === 0 ? { host: CAROL.hostId } : {});
  await box.add(10, { local: true, state: 'accepted', host: ALICE.hostId });
  const listed = (state: SenderState, before?: number, limit = 9): number[] =>
    box.outbox.inState(state, before, limit).map((row) => row.seq);
  assert.deepEqual(
    [listed('queued'), listed('queued', 5, 2)],
    [
      [9, 8, 7, 6, 5, 4, 3, 2, 1],
      [4, 3],
    ],
  );
  await box.leave(1, 2, 3, 4, 5, 6);
  assert.deepEqual([listed('queued'), listed('forwarding')], [[9, 8, 7], []], 'what is on its way is found among what is open');
  for (const n of [1, 2, 4]) await box.receipt(n, 'accepted');
  await box.receipt(3, 'accepted', { receiver: CAROL.hostId });
  assert.deepEqual(
    [listed('accepted'), listed('accepted', 4, 2)],
    [
      [10, 4, 3, 2, 1],
      [3, 2],
    ],
  );
  await box.receipt(2, 'fetched');
  await box.receipt(4, 'expired');
  await box.cancel(9);
  await box.refuse(5);
  await box.defer(6);
  const states = ['accepted', 'fetched', 'expired', 'cancelled', 'refused', 'deferred', 'queued'] as const;
  assert.deepEqual(
    states.map((state) => listed(state)),
    [[10, 3, 1], [2], [4], [9], [5], [6], [8, 7]],
  );
});

test('pages and walks give each entry once, newest or oldest first', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 5; n++) await box.add(n);
  assert.deepEqual(
    box.outbox.page(undefined, 2).map((row) => row.seq),
    [5, 4],
  );
  assert.deepEqual(
    box.outbox.page(4, 9).map((row) => row.seq),
    [3, 2, 1],
  );
  assert.deepEqual(
    box.outbox.open(B, 0, 2).map((row) => row.seq),
    [1, 2],
  );
  assert.deepEqual(
    box.outbox.open(B, 2, 9).map((row) => row.seq),
    [3, 4, 5],
  );
  assert.equal(openInAll(box.outbox), 5);
});

test('an entry and its request key live for their time after the end, and then nothing at all is left', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 7; n++) await box.add(n, n === 6 ? { local: true, state: 'accepted' } : {});
  await box.leave(1, 2, 3, 7);
  await box.receipt(1, 'accepted');
  await box.receipt(1, 'fetched');
  await box.refuse(2);
  await box.receipt(3, 'accepted');
  await box.cancel(3);
  await box.receipt(3, 'expired');
  await box.cancel(4);
  await box.bed.write((tx) => box.outbox.settleLocal(tx, idOf(6), 'fetched', AT));
  await box.cancel(7);
  box.bed.clock.pass(3 * DAY);
  await box.expire(5);
  await box.expire(7);
  assert.equal(openInAll(box.outbox), 0);
  box.bed.clock.pass(METADATA_RETENTION_MS - 3 * DAY);
  assert.equal(await box.prune(), 0);
  assert.equal(box.outbox.byRequest('k1')?.id, idOf(1));
  box.bed.clock.pass(3 * DAY + 1);
  assert.equal(await box.prune(), 7);
  assert.equal(box.outbox.byRequest('k1'), undefined);
  assert.deepEqual(Object.keys(box.bed.left()), ['meta']);
});

test('everything is as it was after the store was opened again', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'forwarding' });
  await box.add(2);
  const before = [box.row(1), box.row(2)];
  await box.bed.reopen();
  const again = new Box(box.bed);
  assert.deepEqual([again.row(1), again.row(2)], before);
  assert.equal((await again.add(3)).seq, 3);
});

test('a dead message keeps its body and goes again under its id, and no longer than the cap after its send', async () => {
  const box = await emptyBox();
  const body = (): Uint8Array | undefined => box.outbox.body(idOf(1));
  await box.add(1, { state: 'queued' });
  let tries = 0;
  for (;;) {
    box.bed.clock.pass(3 * DAY + 1);
    await box.bed.write((tx) => box.outbox.expire(tx, idOf(1), AT));
    assert.deepEqual(
      box.outbox.dead(undefined, 10).map((row) => row.state),
      ['expired'],
    );
    assert.ok(body() !== undefined);
    if (!box.outbox.canRetry(box.outbox.get(idOf(1))!)) break;
    const row = await box.bed.write((tx) => box.outbox.retry(tx, idOf(1)));
    assert.deepEqual([row.state, row.cause, box.outbox.dead(undefined, 10).length], ['queued', null, 0]);
    assert.ok(row.deadline <= row.createdRan + 14 * DAY);
    tries++;
  }
  assert.equal(tries, 4);
  await assert.rejects(
    box.bed.write((tx) => box.outbox.retry(tx, idOf(1))),
    refusal('expired'),
  );
  await assert.rejects(
    box.bed.write((tx) => box.outbox.retry(tx, idOf(2))),
    refusal('message_not_found'),
  );
});

test('pruning takes the body of a dead message with it', async () => {
  const box = await emptyBox();
  await box.add(1, { state: 'queued' });
  await box.bed.write((tx) => box.outbox.refuse(tx, idOf(1), cause('not_found')));
  assert.ok(box.outbox.body(idOf(1)) !== undefined);
  box.bed.clock.pass(31 * DAY);
  await box.bed.write((tx) => box.outbox.prune(tx, 10));
  assert.equal(box.outbox.body(idOf(1)), undefined);
  assert.deepEqual(box.outbox.dead(undefined, 10), []);
});
