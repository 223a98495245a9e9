/**
 * The event log: one append-only list of everything that happened to messages, notices, agents and hosts.
 *
 * Owns the table `events`: entries by sequence and an index by message. Each entry is written in the transaction of the
 * change it tells, so that log and state never disagree. `changed` wakes those who wait for something new after a commit; a
 * wake is a hint, the log is the truth.
 */
import { AxError } from '../protocol/errors.ts';
import type { EventType } from '../protocol/states.ts';
import type { Clock } from './clock/clock.ts';
import { getRow, lastSeq, nextSeq, NOTHING, pack, seqKey, under, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction, Table } from './store/store.ts';

export interface Event {
  readonly seq: number;
  /** Wall time, ms. */
  readonly at: number;
  readonly type: EventType;
  readonly messageId?: string;
  readonly hostId?: string;
  /** The agent, alias or session it is about. */
  readonly subject?: string;
  readonly state?: string;
  readonly detail?: string;
  /** Running time, ms; for pruning. */
  readonly ran: number;
}

export type NewEvent = Omit<Event, 'seq' | 'at' | 'ran'>;

/** So many of the newest entries are at hand, decoded, for those who follow the log; twice as many before the older ones are let go. */
const TAIL = 512;

export class Events {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #running: () => number;
  #waiters = new Set<() => void>();
  /** Entries that the running write has added. */
  #adding: Event[] = [];
  /** The newest that were added through `watch` and are durable, without a gap. */
  #tail: Event[] = [];
  /** Sequence of the oldest entry, where it is known: forgotten with the tail when some are removed, and known again only while there is one. */
  #oldest: number | undefined;

  constructor(store: Store, clock: Clock, running: () => number) {
    this.#store = store;
    this.#clock = clock;
    this.#running = running;
  }

  /** Adds an entry within a transaction. */
  add(tx: StoreTransaction, event: NewEvent): void {
    const seq = nextSeq(tx, 'events');
    const full: Event = { ...event, seq, at: this.#clock.now(), ran: this.#running() };
    this.#adding.push(full);
    tx.put('events', `e/${seqKey(seq)}`, pack(full));
    if (event.messageId !== undefined) tx.put('events', `m/${event.messageId}/${seqKey(seq)}`, NOTHING);
  }

  /** Entries after `since`, oldest first. AxError `expired` with `details.oldest_seq` when entries after `since` were pruned. */
  list(since: number, limit: number): Event[] {
    const first = since + 1 - (this.#tail[0]?.seq ?? Infinity);
    if (first >= 0 && this.#tail.at(-1)?.seq === this.newest()) return this.#tail.slice(first, first + limit);
    const entries = this.#store.range('events', { start: `e/${seqKey(since + 1)}`, end: 'e/~', limit });
    const rows = entries.map((entry) => unpack<Event>(entry.value));
    if (rows[0]?.seq === since + 1) return rows; // so none between was pruned
    const oldest = this.oldest() || this.newest() + 1; // of nothing kept, what comes next is the oldest
    if (since > 0 && oldest > since + 1) {
      throw new AxError('expired', `events up to ${oldest - 1} are no longer kept`, {
        details: { oldest_seq: oldest },
        fix: `ax admin events --since ${oldest - 1}`,
      });
    }
    return rows;
  }

  /** The newest entries, oldest of them first. */
  latest(limit: number): Event[] {
    const entries = this.#store.range('events', { ...under('e/'), reverse: true, limit });
    return entries.map((entry) => unpack<Event>(entry.value)).toReversed();
  }

  /** One message's history, oldest first, at most `limit` (the newest). */
  of(messageId: string, limit = 200): Event[] {
    const keys = this.#store.range('events', { ...under(`m/${messageId}/`), reverse: true, limit }).toReversed();
    return keys.flatMap((entry) => getRow<Event>(this.#store, 'events', `e/${entry.key.slice(entry.key.lastIndexOf('/') + 1)}`) ?? []);
  }

  /** Sequence of the oldest kept entry; 0 when there is none. */
  oldest(): number {
    if (this.#oldest !== undefined) return this.#oldest;
    const first = this.#store.range('events', { ...under('e/'), limit: 1 })[0];
    const oldest = first === undefined ? 0 : Number(first.key.slice(2));
    // With a tail there is no write under way that removes some: its own entries, and all later ones, come to a tail after it is durable.
    if (oldest > 0 && this.#tail.length > 0) this.#oldest = oldest;
    return oldest;
  }

  /** Sequence of the newest entry there ever was; 0 when there was none. */
  newest(): number {
    return lastSeq(this.#store, 'events');
  }

  /** Removes up to `limit` entries older than `before` (running time). Returns how many. */
  prune(tx: StoreTransaction, before: number, limit: number): number {
    let removed = 0;
    this.#tail = [];
    this.#oldest = undefined;
    for (const entry of (tx as StoreReader).range('events', { ...under('e/'), limit })) {
      const event = unpack<Event>(entry.value);
      if (event.ran >= before) break;
      tx.remove('events', entry.key);
      if (event.messageId !== undefined) tx.remove('events', `m/${event.messageId}/${seqKey(event.seq)}`);
      removed++;
    }
    return removed;
  }

  /** Wakes everyone who waits; called after each commit. */
  changed(): void {
    const waiters = this.#waiters;
    this.#waiters = new Set();
    for (const wake of waiters) wake();
  }

  /** Resolves at the next change or after `timeoutMs`. */
  next(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        cancel();
        this.#waiters.delete(done);
        resolve();
      };
      const cancel = this.#clock.after(timeoutMs, done);
      this.#waiters.add(done);
    });
  }

  /** Has the entries of a write that is durable at hand, and wakes those who wait for them. */
  #keep(added: readonly Event[]): void {
    if (added.length === 0) return;
    if (this.#tail.at(-1)?.seq !== added[0]!.seq - 1) this.#tail = [];
    else if (this.#tail.length >= 2 * TAIL) this.#tail = this.#tail.slice(-TAIL);
    this.#tail.push(...added);
    this.changed();
  }

  /** The same store, whose every write with a new entry wakes those who wait. */
  watch(store: Store): Store {
    return {
      get: (table, key) => store.get(table, key),
      ...(store.shared === undefined ? {} : { shared: (table: Table, key: string) => store.shared?.(table, key) }),
      range: (table, options) => store.range(table, options),
      count: (table, options) => store.count(table, options),
      status: () => store.status(),
      close: () => store.close(),
      write: (decide) => {
        let added: readonly Event[] = [];
        const written = store.write((tx) => {
          this.#adding = [];
          const result = decide(tx);
          added = this.#adding;
          return result;
        });
        // Registered first: whoever waits is woken before the writer goes on. What failed is the writer's to hear.
        written.then(
          () => this.#keep(added),
          () => undefined,
        );
        return written;
      },
    };
  }
}
