/**
 * The inbox over the real store: each message once, the first copy decides, pickup only after a confirmed hand-out.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Inbox } from '../../daemon/inbox.ts';
import type { Admission } from '../../daemon/inbox.ts';
import type { HandOut, NewReceived, Received } from '../../daemon/received-row.ts';
import { pack } from '../../daemon/store/rows.ts';
import type { ReceiverState } from '../../protocol/states.ts';
import { MAX_TOMBSTONES_PER_PEER, MAX_WAITING_BYTES_PER_PEER, MAX_WAITING_PER_PEER, METADATA_RETENTION_MS } from '../../protocol/limits.ts';
import { ALICE, AT, BOB, counted, refusal, SESSION } from '../protocol/sample.ts';
import { DAY, idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const A = ALICE.hostId;
const B = BOB.hostId;
const W = '/home/bob/app';

class Box {
  readonly bed: Bed;
  readonly inbox: Inbox;

  constructor(bed: Bed) {
    this.bed = bed;
    this.inbox = new Inbox(bed.store, bed.running);
  }

  fresh(n: number, change: Partial<NewReceived> = {}): NewReceived {
    return {
      id: idOf(n),
      sender: A,
      state: 'available',
      storedAs: 'message',
      signed: counted(9, n),
      digest: counted(32, n),
      bytes: 100,
      harness: 'claude',
      workspace: W,
      hint: null,
      sentAt: AT,
      receivedAt: AT + n,
      expires: this.bed.running() + 7 * DAY,
      ...change,
    };
  }

  accept(n: number, change: Partial<NewReceived> = {}): Promise<Admission> {
    return this.bed.write((tx) => this.inbox.accept(tx, this.fresh(n, change), counted(20, n)));
  }

  async taken(n: number, change: Partial<NewReceived> = {}): Promise<Received> {
    const admission = await this.accept(n, change);
    assert.ok(admission.kind === 'new');
    return admission.row;
  }

  handOut(n: number, token = `t${n}`): Promise<Received> {
    const handOut: HandOut = { token, at: AT + 50, session: SESSION };
    return this.bed.write((tx) => this.inbox.handOut(tx, A, idOf(n), handOut));
  }

  confirm(n: number, token = `t${n}`): Promise<{ row: Received; first: boolean }> {
    return this.bed.write((tx) => this.inbox.confirm(tx, A, idOf(n), token, AT + 60));
  }

  cancel(n: number, digest = counted(32, n), sender = A): ReturnType<Inbox['cancel']> extends infer R ? Promise<R> : never {
    return this.bed.write((tx) => this.inbox.cancel(tx, sender, idOf(n), digest));
  }

  retire(): Promise<Received[]> {
    return this.bed.write((tx) => this.inbox.retire(tx, 100));
  }

  prune(): Promise<number> {
    return this.bed.write((tx) => this.inbox.prune(tx, 1000));
  }

  unread(workspace = W): number[] {
    const rows = this.inbox.unread('claude', workspace, 100);
    assert.equal(this.inbox.countUnread('claude', workspace), rows.length);
    return rows.map((row) => row.seq);
  }
}

const emptyBox = async (): Promise<Box> => new Box(await openBed());

test('a new message is stored with its body and is unread under its address', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  assert.deepEqual(box.inbox.get(A, idOf(1)), row);
  assert.deepEqual(box.inbox.body(row), counted(20, 1));
  assert.deepEqual(box.unread(), [row.seq]);
  assert.deepEqual(box.unread('/home/bob'), [], 'an ancestor is another address');
  assert.deepEqual(box.unread('/home/bob/app/x'), [], 'a nested folder is another address');
  assert.deepEqual([row.state, row.handedOutAt, row.fetchedAt, row.bodyKept], ['available', null, null, true]);
});

test('the same message again is a duplicate of the first copy, whatever the second copy says besides its digest', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  const again = await box.accept(1, { workspace: '/elsewhere', storedAs: 'note', expires: 5 });
  assert.deepEqual(again, { kind: 'duplicate', row });
  assert.equal(box.bed.keys('inbox').length, 1);
  assert.deepEqual(box.unread(), [row.seq]);
});

test('the same id with other content is a conflict and changes nothing', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  await assert.rejects(box.accept(1, { digest: counted(32, 99) }), refusal('key_conflict'));
  assert.deepEqual(box.inbox.get(A, idOf(1)), row);
});

test('two hosts may use the same id, and both messages are found under it', async () => {
  const box = await emptyBox();
  const one = await box.taken(1);
  const two = await box.taken(1, { sender: B, digest: counted(32, 77) });
  assert.notEqual(one.seq, two.seq);
  assert.deepEqual(
    box.inbox
      .find(idOf(1).slice(0, 12), 10)
      .map((row) => row.sender)
      .sort(),
    [A, B].sort(),
  );
  assert.deepEqual(box.inbox.find(idOf(1), 1).length, 1);
  assert.equal(box.inbox.get(B, idOf(1))?.seq, two.seq);
});

test('a duplicate is known after a restart', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await box.bed.reopen();
  const again = new Box(box.bed);
  assert.equal((await again.accept(1)).kind, 'duplicate');
});

test('a message for an address without an agent waits for setup and cannot be handed out before', async () => {
  const box = await emptyBox();
  const row = await box.taken(1, { state: 'awaiting_setup' });
  await box.taken(2, { state: 'awaiting_setup', workspace: '/other' });
  await assert.rejects(box.handOut(1), refusal('invalid_state'));
  const opened = await box.bed.write((tx) => box.inbox.setAvailable(tx, 'claude', W, true));
  assert.deepEqual(
    opened.map((one) => [one.seq, one.state]),
    [[row.seq, 'available']],
  );
  assert.equal(box.inbox.get(A, idOf(2))?.state, 'awaiting_setup');
  assert.deepEqual(await box.bed.write((tx) => box.inbox.setAvailable(tx, 'claude', W, true)), []);
  const back = await box.bed.write((tx) => box.inbox.setAvailable(tx, 'claude', W, false));
  assert.deepEqual(
    back.map((one) => one.state),
    ['awaiting_setup'],
  );
  assert.deepEqual(box.unread(), [row.seq]);
});

test('a hand-out is no pickup; only its confirmation is, and it counts once', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  const handed = await box.handOut(1);
  assert.deepEqual([handed.state, handed.handedOutAt, handed.fetchedAt], ['available', AT + 50, null]);
  assert.deepEqual(box.unread(), [row.seq], 'still unread');
  const first = await box.confirm(1);
  assert.deepEqual([first.first, first.row.state, first.row.fetchedAt], [true, 'fetched', AT + 60]);
  assert.deepEqual(box.unread(), []);
  const second = await box.confirm(1);
  assert.deepEqual([second.first, second.row.fetchedAt], [false, AT + 60]);
});

test('a fetched message is handed out again and stays fetched', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await box.handOut(1, 'a');
  await box.confirm(1, 'a');
  const again = await box.handOut(1, 'b');
  assert.deepEqual([again.state, again.handedOutAt, again.handOuts.map((one) => one.token)], ['fetched', AT + 50, ['a', 'b']]);
  assert.equal((await box.confirm(1, 'b')).first, false);
});

test('a confirmation with a token that was never given out is refused', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await assert.rejects(box.confirm(1, 'guess'), refusal('invalid_argument'));
  await box.handOut(1, 'real');
  await assert.rejects(box.confirm(1, 'guess'), refusal('invalid_argument'));
  await assert.rejects(box.confirm(2, 'real'), refusal('message_not_found'));
  assert.equal(box.inbox.get(A, idOf(1))?.state, 'available');
});

test('of many hand-outs the newest eight may be confirmed', async () => {
  const box = await emptyBox();
  await box.taken(1);
  for (let n = 0; n < 10; n++) await box.handOut(1, `t${n}`);
  await assert.rejects(box.confirm(1, 't1'), refusal('invalid_argument'));
  assert.equal((await box.confirm(1, 't2')).first, true);
});

test('a cancel before the hand-out wins: no body, no hand-out, and a late copy is answered cancelled state', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  const decided = await box.cancel(1);
  assert.deepEqual([decided.outcome, decided.row?.state], ['cancelled', 'cancelled']);
  assert.equal(box.inbox.body(row), undefined);
  assert.deepEqual(box.unread(), []);
  await assert.rejects(box.handOut(1), refusal('invalid_state'));
  assert.equal((await box.cancel(1)).outcome, 'cancelled');
  const late = await box.accept(1);
  assert.deepEqual([late.kind, late.kind === 'duplicate' && late.row?.state], ['duplicate', 'cancelled']);
});

test('a cancel after the hand-out is too late, certain or not', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await box.handOut(1);
  const unsure = await box.cancel(1);
  assert.deepEqual([unsure.outcome, unsure.row?.state], ['too_late', 'available']);
  await box.confirm(1);
  const sure = await box.cancel(1);
  assert.deepEqual([sure.outcome, sure.row?.state], ['too_late', 'fetched']);
});

test('a cancel of another content under the id is a conflict', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await assert.rejects(box.cancel(1, counted(32, 50)), refusal('key_conflict'));
  assert.equal(box.inbox.get(A, idOf(1))?.state, 'available');
});

test('a cancel reaches only messages of the host that asks', async () => {
  const box = await emptyBox();
  await box.taken(1);
  assert.deepEqual(await box.cancel(1, counted(32, 1), B).then((decided) => [decided.outcome, decided.row]), ['cancelled', undefined]);
  assert.equal(box.inbox.get(A, idOf(1))?.state, 'available');
});

test('a cancel that overtakes its message leaves a tombstone that answers the late copy, also after a restart', async () => {
  const box = await emptyBox();
  assert.deepEqual(await box.cancel(1).then((decided) => [decided.outcome, decided.row]), ['cancelled', undefined]);
  assert.equal((await box.cancel(1)).outcome, 'cancelled');
  assert.equal((await box.accept(1)).kind, 'cancelled');
  await box.bed.reopen();
  const again = new Box(box.bed);
  assert.equal((await again.accept(1)).kind, 'cancelled');
  assert.deepEqual(again.bed.keys('inbox'), []);
});

test('tombstones are bounded per host, and pruning makes room', async () => {
  const box = await emptyBox();
  await box.cancel(1);
  await box.bed.write((tx) => tx.put('meta', `tombstones/${A}`, pack({ count: MAX_TOMBSTONES_PER_PEER })));
  await assert.rejects(box.cancel(2), refusal('limit'));
  assert.equal((await box.cancel(2, counted(32), B)).outcome, 'cancelled');
  assert.equal((await box.cancel(1)).outcome, 'cancelled', 'a known tombstone needs no room');
  box.bed.clock.pass(METADATA_RETENTION_MS + 1);
  assert.equal(await box.prune(), 2);
  assert.equal((await box.cancel(2)).outcome, 'cancelled');
});

test('the count of what waits from a host is bounded; a pickup makes room, a duplicate needs none', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await box.bed.write((tx) => tx.put('meta', `waiting/${A}`, pack({ messages: MAX_WAITING_PER_PEER, bytes: 100 })));
  await assert.rejects(box.accept(2), refusal('limit'));
  assert.equal((await box.accept(1)).kind, 'duplicate');
  await box.taken(3, { sender: B });
  await box.handOut(1);
  await box.confirm(1);
  await box.taken(2);
});

test('the bytes that wait from a host are bounded', async () => {
  const box = await emptyBox();
  await box.bed.write((tx) => tx.put('meta', `waiting/${A}`, pack({ messages: 5, bytes: MAX_WAITING_BYTES_PER_PEER - 99 })));
  await assert.rejects(box.accept(1), refusal('limit'));
  await box.taken(1, { bytes: 99 });
});

test('what was refused for a limit is not remembered and is taken later', async () => {
  const box = await emptyBox();
  await box.bed.write((tx) => tx.put('meta', `waiting/${A}`, pack({ messages: MAX_WAITING_PER_PEER, bytes: 0 })));
  await assert.rejects(box.accept(1), refusal('limit'));
  assert.deepEqual([box.bed.keys('seen'), box.bed.keys('inbox')], [[], []]);
  await box.bed.write((tx) => tx.remove('meta', `waiting/${A}`));
  await box.taken(1);
});

test('the waiting count comes back to zero on every way out', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 3; n++) await box.taken(n);
  await box.handOut(1);
  await box.confirm(1);
  await box.cancel(2);
  box.bed.clock.pass(8 * DAY);
  await box.retire();
  await box.bed.write((tx) => assert.deepEqual(tx.get('meta', `waiting/${A}`), pack({ messages: 0, bytes: 0 })));
});

test('retention ends an unread message for good and takes its body, not a minute early', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  box.bed.clock.pass(7 * DAY);
  assert.deepEqual(await box.retire(), []);
  box.bed.clock.pass(1);
  const [ended] = await box.retire();
  assert.deepEqual([ended?.state, ended?.bodyKept, box.inbox.body(row)], ['expired', false, undefined]);
  assert.deepEqual(box.unread(), []);
  await assert.rejects(box.handOut(1), refusal('expired'));
  assert.equal((await box.cancel(1)).outcome, 'expired');
  assert.equal((await box.accept(1)).kind, 'duplicate');
  assert.deepEqual(await box.retire(), []);
});

test('retention takes the body of a fetched message and leaves it fetched', async () => {
  const box = await emptyBox();
  const row = await box.taken(1);
  await box.handOut(1);
  await box.confirm(1);
  box.bed.clock.pass(7 * DAY + 1);
  const [ended] = await box.retire();
  assert.deepEqual([ended?.state, ended?.bodyKept, box.inbox.body(row)], ['fetched', false, undefined]);
  await assert.rejects(box.handOut(1), refusal('expired'));
  assert.equal((await box.confirm(1)).first, false);
});

test('a confirmation after retention has ended is refused', async () => {
  const box = await emptyBox();
  await box.taken(1);
  await box.handOut(1);
  box.bed.clock.pass(7 * DAY + 1);
  await box.retire();
  await assert.rejects(box.confirm(1), refusal('invalid_state'));
});

test('after retention and pruning nothing at all is left, whatever became of the messages', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 4; n++) await box.taken(n, n === 4 ? { state: 'awaiting_setup', workspace: '/other' } : {});
  await box.handOut(1);
  await box.confirm(1);
  await box.cancel(2);
  await box.cancel(9);
  box.bed.clock.pass(7 * DAY + 1);
  assert.equal((await box.retire()).length, 4);
  assert.equal(await box.prune(), 0, 'metadata lives on');
  assert.notEqual(box.inbox.get(A, idOf(1)), undefined);
  box.bed.clock.pass(METADATA_RETENTION_MS + 1);
  await box.prune();
  const left = box.bed.left();
  assert.deepEqual(Object.keys(left), ['meta']);
  await box.bed.write((tx) => {
    assert.deepEqual(tx.get('meta', `waiting/${A}`), pack({ messages: 0, bytes: 0 }));
    assert.deepEqual(tx.get('meta', `tombstones/${A}`), pack({ count: 0 }));
  });
});

test('an id stays known as long as its row, however long the receiver keeps it', async () => {
  const box = await emptyBox();
  await box.taken(1, { expires: 30 * DAY });
  for (let day = 0; day < 59; day++) {
    box.bed.clock.pass(DAY);
    await box.bed.write((tx) => [box.inbox.retire(tx, 9), box.inbox.prune(tx, 9)]);
    if (box.inbox.get(A, idOf(1)) !== undefined && day > 31) assert.equal((await box.accept(1)).kind, 'duplicate', `day ${day}`);
  }
});

test('retiring and pruning work in steps of their limit', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 5; n++) await box.taken(n);
  box.bed.clock.pass(7 * DAY + 1);
  const sizes: number[] = [];
  for (let round = 0; round < 4; round++) sizes.push((await box.bed.write((tx) => box.inbox.retire(tx, 2))).length);
  assert.deepEqual(sizes, [2, 2, 1, 0]);
});

test('pages go from the newest to the oldest without gap or repeat', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 5; n++) await box.taken(n);
  const seen: number[] = [];
  let before: number | undefined;
  for (;;) {
    const page = box.inbox.page(before, 2);
    if (page.length === 0) break;
    seen.push(...page.map((row) => row.seq));
    before = page.at(-1)!.seq;
  }
  assert.deepEqual(seen, [5, 4, 3, 2, 1]);
});

test('a list by state holds each message in that state once, newest first, of all folders or of one, also while they are moved', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 9; n++) await box.taken(n, n % 3 === 0 ? { workspace: '/other', state: 'awaiting_setup' } : {});
  const listed = (state: ReceiverState, workspace?: string, before?: number, limit = 9): number[] =>
    box.inbox.inState(state, before, limit, workspace).map((row) => row.seq);
  assert.deepEqual([listed('available'), listed('awaiting_setup'), listed('awaiting_setup', W)], [[8, 7, 5, 4, 2, 1], [9, 6, 3], []]);
  assert.deepEqual([listed('available', W, 7, 2), listed('available', '/other')], [[5, 4], []]);
  for (const n of [1, 8]) {
    await box.handOut(n);
    await box.confirm(n);
  }
  await box.cancel(3);
  assert.deepEqual(
    [listed('fetched'), listed('fetched', W, 8), listed('fetched', '/other'), listed('cancelled'), listed('available')],
    [[8, 1], [1], [], [3], [7, 5, 4, 2]],
  );
  await box.bed.write((tx) => box.inbox.setAvailable(tx, 'claude', W, false));
  assert.deepEqual([listed('awaiting_setup'), listed('available')], [[9, 7, 6, 5, 4, 2], []]);
  const many = Array.from({ length: 300 }, (_, n) => 20 + n);
  for (const n of many) await box.taken(n, { workspace: '/many', state: 'awaiting_setup' });
  await box.bed.write((tx) => box.inbox.setAvailable(tx, 'claude', '/many', true)); // 200 of them: the others wait for the next write
  const both = [...listed('available', '/many', undefined, 999), ...listed('awaiting_setup', '/many', undefined, 999)];
  assert.deepEqual([both.length, new Set(both).size], [600, 300], 'who asks for one state looks through both meanwhile');
  box.bed.clock.pass(7 * DAY + 1);
  await box.retire();
  assert.equal(listed('expired', undefined, undefined, 999).length, 97, 'of a hundred that are over, three had ended');
});

test('unread messages are told oldest first, each address once, and counted by what they wait for', async () => {
  const box = await emptyBox();
  for (let n = 1; n <= 6; n++) await box.taken(n, n % 2 === 0 ? { workspace: '/other', state: 'awaiting_setup' } : {});
  await box.handOut(1);
  assert.deepEqual(box.unread(), [1, 3, 5]);
  assert.deepEqual(box.unread('/other'), [2, 4, 6]);
  const [one, other] = box.inbox.unreadAddresses(9);
  assert.deepEqual(new Set([one?.workspace, other?.workspace]), new Set([W, '/other']));
  assert.deepEqual(
    [box.inbox.unreadAddresses(1), box.inbox.unreadAddresses(9, one), box.inbox.unreadAddresses(9, other)],
    [[one], [other], []],
  );
  assert.deepEqual(box.inbox.tally(), { awaiting_setup: 3, available: 2, handed_out: 1 });
  await box.confirm(1);
  assert.deepEqual(box.inbox.tally(), { awaiting_setup: 3, available: 2, handed_out: 0 });
});

test('a notice outcome is kept on the row and changes no state', async () => {
  const box = await emptyBox();
  await box.taken(1);
  const row = await box.bed.write((tx) => box.inbox.setNotice(tx, A, idOf(1), { outcome: 'held', at: AT }));
  assert.deepEqual([row?.state, row?.notice], ['available', { outcome: 'held', at: AT }]);
  assert.equal(await box.bed.write((tx) => box.inbox.setNotice(tx, A, idOf(9), { outcome: 'held', at: AT })), undefined);
});

test('a hand-out of a message nobody has is message_not_found', async () => {
  const box = await emptyBox();
  await assert.rejects(box.handOut(1), refusal('message_not_found'));
});
