/**
 * A small table in front of the large ones: what few write at a time is put there, and from there in bulk to where it stays.
 *
 * A commit writes every page on the way to each key that it changes, all over the file, and a message has a dozen keys in as many places, each
 * as deep as its table is large. In the table `fresh` they lie together, in a few pages however much the store holds; and what is gone soon (the
 * marks of what is on its way, a body that was taken) never gets further. What many write at the same time shares its pages and goes straight
 * to its place.
 * Invariants: what `fresh` has under a key counts, whatever its table has; what is removed is removed from both. Both change in the same
 * transactions of the store below, so nothing can be lost or half moved here; what this object remembers only spares looks.
 */
import { merged } from './lmdb-walk.ts';
import { MAX_KEY_BYTES } from './store.ts';
import type { LateValue, OpenedStore, RangeOptions, StoreEntry, StoreReader, StoreStatus, StoreTransaction, Table } from './store.ts';

/** The tables that grow with the messages, and the letter before their keys in `fresh`. */
const LETTERS: Readonly<Partial<Record<Table, string>>> = {
  outbox: 'a',
  outbox_index: 'b',
  outbox_body: 'c',
  inbox: 'd',
  inbox_index: 'e',
  inbox_body: 'f',
  seen: 'g',
  events: 'h',
  requests: 'i',
};
/** Larger values go straight to their place. */
const MAX_VALUE_BYTES = 2048;
/** So many keys of one job at most: a migration or a round of retention shares its pages with itself. */
const MAX_PUTS = 40;
/** More jobs than this that wait at the same time are a crowd. */
const FEW = 2;
/** After so many puts `fresh` is emptied: more of them would lie in more pages, and fewer would be moved too often. */
const MOVED_AT = 64;

/** Of UTF-8, for one unit of a JavaScript string. */
const MAX_UNIT_BYTES = 3;

/** Puts `fresh` in front of a store that is open; what it keeps as a Store is what the store below keeps. */
export class FreshFirst implements OpenedStore {
  readonly kept: string | null;
  readonly #below: OpenedStore;
  /** Puts into `fresh` that were not moved from there yet, also those that were undone or removed; 0: there is nothing in it. */
  #puts: number;
  #isMoving = false;
  /** At more puts than this `fresh` is emptied. After one that failed only at twice as many: each may take other writes with it. */
  #movedAt = MOVED_AT;
  /** Jobs that have not begun. Too high when some were refused before that: then all goes straight to its place. */
  #waiting = 0;
  /** Of a crowd that waited at the same time, those that have not begun; and as many jobs after it, for under load some come alone too. */
  #crowd = 0;

  constructor(below: OpenedStore) {
    this.kept = below.kept;
    this.#below = below;
    this.#puts = below.count('fresh');
  }

  get schema(): number {
    return this.#below.schema;
  }

  raise(): void {
    this.#below.raise();
  }

  copyTo(folder: string): Promise<void> {
    return this.#below.copyTo(folder);
  }

  status(): StoreStatus {
    return this.#below.status();
  }

  close(): Promise<void> {
    return this.#below.close();
  }

  get(table: Table, key: string): Uint8Array | undefined {
    return this.#puts === 0 ? this.#below.get(table, key) : get(this.#below, table, key);
  }

  shared(table: Table, key: string): Uint8Array | LateValue | undefined {
    return this.#puts === 0 ? share(this.#below, table, key) : shared(this.#below, table, key);
  }

  range(table: Table, options?: RangeOptions): StoreEntry[] {
    return this.#puts === 0 ? this.#below.range(table, options) : range(this.#below, table, options);
  }

  count(table: Table, options?: RangeOptions): number {
    return this.#puts === 0 ? this.#below.count(table, options) : count(this.#below, table, options);
  }

  write<T>(decide: (tx: StoreTransaction) => T): Promise<T> {
    this.#waiting += 1;
    return this.#below.write((tx) => {
      if (this.#waiting > FEW) this.#crowd = Math.max(this.#crowd, 2 * this.#waiting);
      const isCrowd = this.#crowd > 0;
      if (isCrowd) this.#crowd -= 1;
      this.#waiting -= 1;
      if (isCrowd && this.#puts === 0) return decide(tx);
      const result = decide(new Transaction(tx, isCrowd ? 0 : MAX_PUTS, () => void (this.#puts += 1)));
      if (this.#puts > (isCrowd && this.#movedAt === MOVED_AT ? 0 : this.#movedAt)) this.#move();
      return result;
    });
  }

  /** Has what is in `fresh` put where it stays, soon. If that fails (there is no room), it stays in `fresh`, and counts as before. */
  #move(): void {
    if (this.#isMoving) return;
    this.#isMoving = true;
    let then = 0;
    const moved = this.#below.write((tx) => {
      for (const { key, value } of tx.range('fresh')) {
        const table = TABLE_OF.get(key.charAt(0));
        if (table !== undefined) tx.put(table, key.slice(1), value);
        tx.remove('fresh', key);
      }
      then = this.#puts;
    });
    moved.then(
      () => {
        this.#isMoving = false;
        this.#puts -= then;
        this.#movedAt = MOVED_AT;
      },
      () => {
        this.#isMoving = false;
        this.#movedAt = this.#puts * 2;
      },
    );
  }
}

const TABLE_OF = new Map(Object.entries(LETTERS).map(([table, letter]) => [letter, table as Table]));

/** Where a key would lie in `fresh`; undefined when it is never put there. */
function freshKey(table: Table, key: string): string | undefined {
  const letter = LETTERS[table];
  if (letter === undefined || key === '' || key.length >= MAX_KEY_BYTES) return undefined;
  return key.length * MAX_UNIT_BYTES < MAX_KEY_BYTES || Buffer.byteLength(key) < MAX_KEY_BYTES ? letter + key : undefined;
}

function get(reader: StoreReader, table: Table, key: string): Uint8Array | undefined {
  const at = freshKey(table, key);
  return (at === undefined ? undefined : reader.get('fresh', at)) ?? reader.get(table, key);
}

function share(reader: StoreReader, table: Table, key: string): Uint8Array | LateValue | undefined {
  return reader.shared === undefined ? reader.get(table, key) : reader.shared(table, key);
}

function shared(reader: StoreReader, table: Table, key: string): Uint8Array | LateValue | undefined {
  const at = freshKey(table, key);
  return (at === undefined ? undefined : share(reader, 'fresh', at)) ?? share(reader, table, key);
}

/** What `fresh` has within the bounds, by the keys of its table. */
function freshWithin(reader: StoreReader, table: Table, options: RangeOptions): Map<string, Uint8Array> | undefined {
  const letter = LETTERS[table];
  if (letter === undefined) return undefined;
  const { start = '', end } = options;
  const last = end === undefined ? String.fromCharCode(letter.charCodeAt(0) + 1) : letter + end;
  const found = reader.range('fresh', { ...options, start: letter + start, end: last });
  return found.length === 0 ? undefined : new Map(found.map(({ key, value }) => [key.slice(1), value]));
}

function range(reader: StoreReader, table: Table, options: RangeOptions = {}): StoreEntry[] {
  const fresh = freshWithin(reader, table, options);
  const below = reader.range(table, options);
  return fresh === undefined ? below : merged(below, fresh, { reverse: options.reverse ?? false, limit: options.limit ?? Infinity });
}

function count(reader: StoreReader, table: Table, options: RangeOptions = {}): number {
  const { limit = Infinity } = options;
  let n = reader.count(table, options);
  for (const key of freshWithin(reader, table, options)?.keys() ?? []) if (n < limit && reader.get(table, key) === undefined) n++;
  return n;
}

/** A transaction of the store below, of which the first `room` puts go to `fresh`. */
class Transaction implements StoreTransaction {
  readonly #tx: StoreTransaction;
  readonly #onPut: () => void;
  #room: number;

  constructor(tx: StoreTransaction, room: number, onPut: () => void) {
    this.#tx = tx;
    this.#room = room;
    this.#onPut = onPut;
  }

  get(table: Table, key: string): Uint8Array | undefined {
    return get(this.#tx, table, key);
  }

  shared(table: Table, key: string): Uint8Array | LateValue | undefined {
    return shared(this.#tx, table, key);
  }

  range(table: Table, options?: RangeOptions): StoreEntry[] {
    return range(this.#tx, table, options);
  }

  count(table: Table, options?: RangeOptions): number {
    return count(this.#tx, table, options);
  }

  put(table: Table, key: string, value: Uint8Array): void {
    const at = freshKey(table, key);
    if (at !== undefined && value.length <= MAX_VALUE_BYTES && this.#room > 0) {
      this.#room -= 1;
      this.#onPut();
      return this.#tx.put('fresh', at, value);
    }
    this.#tx.put(table, key, value); // first: if it is refused, what is in front stays
    if (at !== undefined) this.#tx.remove('fresh', at);
  }

  putLate(table: Table, key: string, value: LateValue): void {
    if (LETTERS[table] !== undefined || this.#tx.putLate === undefined) return this.put(table, key, value.bytes());
    this.#tx.putLate(table, key, value);
  }

  remove(table: Table, key: string): void {
    const at = freshKey(table, key);
    if (at !== undefined) this.#tx.remove('fresh', at);
    this.#tx.remove(table, key);
  }
}
