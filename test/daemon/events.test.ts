/**
 * The event log over the real store: appended once, in order, told from a number on, honest about what is no longer kept.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Events } from '../../daemon/events.ts';
import type { NewEvent } from '../../daemon/events.ts';
import { AxError } from '../../protocol/errors.ts';
import type { RangeOptions, Table } from '../../daemon/store/store.ts';
import { idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

class Box {
  readonly bed: Bed;
  readonly events: Events;

  constructor(bed: Bed) {
    this.bed = bed;
    this.events = new Events(bed.store, bed.clock, bed.running);
  }

  add(...types: readonly NewEvent['type'][]): Promise<void> {
    return this.bed.write((tx) => types.forEach((type) => this.events.add(tx, { type, messageId: idOf(1) })));
  }

  prune(before: number, limit = 100): Promise<number> {
    return this.bed.write((tx) => this.events.prune(tx, before, limit));
  }

  seqs(since: number, limit = 100): number[] {
    return this.events.list(since, limit).map((event) => event.seq);
  }
}

const emptyBox = async (): Promise<Box> => new Box(await openBed());

function goneSince(oldest: number): (error: unknown) => boolean {
  return (error) => error instanceof AxError && error.code === 'expired' && error.details?.['oldest_seq'] === oldest;
}

test('events are numbered from 1 without gap and told in order from a number on', async () => {
  const box = await emptyBox();
  assert.deepEqual([box.seqs(0), box.events.oldest(), box.events.newest()], [[], 0, 0]);
  await box.add('message.queued', 'message.accepted');
  await box.add('message.fetched');
  assert.deepEqual([box.seqs(0), box.seqs(1), box.seqs(0, 2), box.seqs(3), box.seqs(99)], [[1, 2, 3], [2, 3], [1, 2], [], []]);
  assert.deepEqual(
    box.events.latest(2).map((event) => event.seq),
    [2, 3],
  );
  assert.deepEqual([box.events.oldest(), box.events.newest()], [1, 3]);
});

test('an event carries wall time for people and running time for pruning', async () => {
  const box = await emptyBox();
  box.bed.clock.pass(500);
  box.bed.clock.wall += 1_000_000;
  await box.add('daemon.started');
  const [event] = box.events.list(0, 1);
  assert.deepEqual(event, { seq: 1, type: 'daemon.started', messageId: idOf(1), at: 1_790_000_000_000 + 500 + 1_000_000, ran: 500 });
});

test('an event of a transaction that is rolled back never was, and takes no number', async () => {
  const box = await emptyBox();
  await assert.rejects(
    box.bed.write((tx) => {
      box.events.add(tx, { type: 'message.queued' });
      throw new Error('undo');
    }),
    /undo/,
  );
  await box.add('message.queued');
  assert.deepEqual(box.seqs(0), [1]);
});

test('the history of one message holds its events alone, oldest first, the newest when there are many', async () => {
  const box = await emptyBox();
  await box.add('message.queued');
  await box.bed.write((tx) => box.events.add(tx, { type: 'message.queued', messageId: idOf(2) }));
  await box.bed.write((tx) => box.events.add(tx, { type: 'daemon.started' }));
  await box.add('message.accepted', 'message.fetched');
  assert.deepEqual(
    box.events.of(idOf(1)).map((event) => event.type),
    ['message.queued', 'message.accepted', 'message.fetched'],
  );
  assert.deepEqual(
    box.events.of(idOf(1), 2).map((event) => event.type),
    ['message.accepted', 'message.fetched'],
  );
  assert.deepEqual(box.events.of(idOf(3)), []);
});

test('pruning takes the old ones in steps and leaves the young ones, with their place in histories', async () => {
  const box = await emptyBox();
  await box.add('message.queued', 'message.forwarding', 'message.accepted');
  box.bed.clock.pass(1000);
  await box.add('message.fetched');
  assert.equal(await box.prune(1000, 2), 2);
  assert.equal(await box.prune(1000, 2), 1);
  assert.equal(await box.prune(1000), 0);
  assert.deepEqual([box.seqs(0), box.events.of(idOf(1)).map((event) => event.seq)], [[4], [4]]);
  await box.prune(5000);
  assert.deepEqual(Object.keys(box.bed.left()), ['meta']);
});

test('asking for events that are no longer kept is an error with the oldest kept number', async () => {
  const box = await emptyBox();
  await box.add('message.queued', 'message.forwarding');
  box.bed.clock.pass(1000);
  await box.add('message.accepted');
  await box.prune(1000);
  assert.throws(() => box.seqs(1), goneSince(3));
  assert.deepEqual([box.seqs(2), box.seqs(3), box.seqs(0)], [[3], [], [3]]);
});

test('it is an error as well when nothing at all is kept any more, and numbers go on behind', async () => {
  const box = await emptyBox();
  await box.add('message.queued', 'message.forwarding', 'message.accepted');
  await box.prune(1000);
  assert.throws(() => box.seqs(1), goneSince(4));
  assert.deepEqual([box.seqs(3), box.seqs(0)], [[], []]);
  await box.add('message.fetched');
  assert.deepEqual(box.seqs(3), [4]);
});

test('everybody who waits is woken by the next entry through the watched store, once, and leaves no timer', async () => {
  const box = await emptyBox();
  const watched = box.events.watch(box.bed.store);
  const woken: string[] = [];
  const waiting = ['a', 'b'].map((name) => box.events.next(25_000).then(() => woken.push(name)));
  assert.equal(box.bed.clock.pending, 2);
  assert.equal(await watched.write((tx) => (box.events.add(tx, { type: 'daemon.started' }), 'result')), 'result');
  await Promise.all(waiting);
  assert.deepEqual([woken, box.bed.clock.pending], [['a', 'b'], 0]);
});

test('a write that adds no entry wakes nobody', async () => {
  const box = await emptyBox();
  let isOver = false;
  const waiting = box.events.next(25_000).then(() => (isOver = true));
  const watched = box.events.watch(box.bed.store);
  await watched.write((tx) => tx.put('meta', 'other', new Uint8Array(1)));
  await Promise.resolve();
  assert.equal(isOver, false);
  await watched.write((tx) => box.events.add(tx, { type: 'daemon.started' }));
  await waiting;
  assert.equal(box.bed.clock.pending, 0);
});

test('a wait ends at its time when nothing happens, and a failed write wakes nobody', async () => {
  const box = await emptyBox();
  let isOver = false;
  const waiting = box.events.next(25_000).then(() => (isOver = true));
  const watched = box.events.watch(box.bed.store);
  await assert.rejects(
    watched.write(() => {
      throw new Error('no');
    }),
  );
  box.bed.clock.pass(24_999);
  await box.bed.write(() => undefined);
  assert.equal(isOver, false);
  box.bed.clock.pass(1);
  await waiting;
  assert.equal(box.bed.clock.pending, 0);
});

test('what is at hand of the log is what the store holds, from every number on, whatever was written in between', async () => {
  const box = await emptyBox();
  const watched = box.events.watch(box.bed.store);
  const add = (...types: readonly NewEvent['type'][]): Promise<void> =>
    watched.write((tx) => types.forEach((type) => box.events.add(tx, { type, messageId: idOf(1), state: 'queued' })));
  /** As a daemon that begins now tells it. */
  const isTrue = (upTo: number): void => {
    const fresh = new Events(box.bed.store, box.bed.clock, box.bed.running);
    for (let since = 0; since <= upTo; since++)
      for (const limit of [1, 2, 100]) {
        const told = (events: Events): unknown => {
          try {
            return events.list(since, limit);
          } catch (error) {
            return error;
          }
        };
        assert.deepEqual(told(box.events), told(fresh), `${limit} after ${since}`);
      }
  };
  await add('message.queued', 'message.forwarding');
  await Promise.all([add('message.accepted'), add('message.fetched')]);
  isTrue(5);
  await assert.rejects(
    watched.write((tx) => {
      box.events.add(tx, { type: 'message.queued' });
      throw new Error('undo');
    }),
  );
  isTrue(5);
  await add('message.queued');
  await box.add('message.forwarding'); // past those who watch
  isTrue(7);
  await add('message.accepted');
  box.bed.clock.pass(1000);
  await add('message.fetched');
  isTrue(9);
  await watched.write((tx) => (box.events.prune(tx, 1000, 4), box.events.add(tx, { type: 'daemon.started' })));
  isTrue(10);
  await box.prune(2000);
  isTrue(10);
  for (let more = 0; more < 1300; more++) await watched.write((tx) => box.events.add(tx, { type: 'daemon.started' }));
  isTrue(1312);
});

/** A box whose looks at the table of events are counted, with entries by many writes. */
async function counted(entries: number): Promise<{ readonly events: Events; readonly bed: Bed; looks(run: () => unknown): number }> {
  const bed = await openBed();
  let looks = 0;
  const { store } = bed;
  const counting = {
    get: store.get.bind(store),
    range: (table: Table, options?: RangeOptions) => ((looks += table === 'events' ? 1 : 0), store.range(table, options)),
    count: store.count.bind(store),
    write: store.write.bind(store),
    status: store.status.bind(store),
    close: store.close.bind(store),
  };
  const events = new Events(counting, bed.clock, bed.running);
  const watched = events.watch(counting);
  for (let n = 0; n < entries; n += 100)
    await watched.write((tx) => {
      for (let one = 0; one < 100; one++) events.add(tx, { type: 'daemon.started' });
    });
  return { events, bed, looks: (run) => ((looks = 0), run(), looks) };
}

test('the newest entries are told from memory, and what is older from the store, so that memory stays bounded', async () => {
  const { events, looks } = await counted(1500);
  assert.equal(
    looks(() => assert.equal(events.list(1490, 100).length, 10)),
    0,
  );
  assert.equal(
    looks(() => assert.equal(events.list(100, 10)[0]?.seq, 101)),
    1,
  );
});

test('the oldest entry is looked for once, and again when some were removed', async () => {
  const { events, bed, looks } = await counted(100);
  const oldest = (seq: number) => () => assert.equal(events.oldest(), seq);
  assert.deepEqual([looks(oldest(1)), looks(oldest(1))], [1, 0]);
  bed.clock.pass(1000);
  await bed.write((tx) => events.prune(tx, 1000, 30));
  assert.equal(looks(oldest(31)), 1);
  // Removing is undone with its write.
  await assert.rejects(
    bed.write((tx) => {
      events.prune(tx, 1000, 30);
      oldest(31)();
      throw new Error('undo');
    }),
  );
  oldest(31)();
});
