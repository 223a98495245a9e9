/**
 * The simulated store: an applied image, a flushed image, and the world's chance between them.
 *
 * Owns when a write runs (in the order of the calls), when it is flushed and what a crash keeps. On purpose more pessimistic
 * than LMDB: what a write put is visible to `get` before it is durable, so a caller that promises on a `get` is found out.
 * Invariant: a promise resolves only when the write is in the flushed image; after a crash no promise of the dead store settles.
 */
import { AxError } from '../../protocol/errors.ts';
import {
  checkKey,
  compareKeys,
  TABLES,
  type RangeOptions,
  type Store,
  type StoreEntry,
  type StoreStatus,
  type StoreTransaction,
  type Table,
} from '../../daemon/store/store.ts';
import type { World } from './world.ts';

/** What is on the simulated disk; hand it to a new SimStore to reopen it. Not to be changed by its holder. */
export type StoreImage = ReadonlyMap<Table, SimTable>;

interface Change {
  readonly table: Table;
  readonly key: string;
  /** Undefined removes. */
  readonly value: Uint8Array | undefined;
}

interface Write {
  readonly decide: (tx: StoreTransaction) => unknown;
  readonly resolve: (value: never) => void;
  readonly reject: (error: unknown) => void;
  changes: Change[];
  outcome: { readonly value: unknown } | { readonly thrown: unknown } | undefined;
}

export class SimStore implements Store {
  /** What `status` says the disk has left; only `failing` makes flushes fail. */
  freeBytes = 2 ** 40;
  /** Hears of every change as a transaction makes it, before it is known whether the transaction stands. */
  onChange: (table: Table, key: string, before: Uint8Array | undefined, after: Uint8Array | undefined) => void = () => undefined;
  readonly #world: World;
  readonly #name: string;
  #applied: Map<Table, SimTable>;
  #flushed: Map<Table, SimTable>;
  /** Asked for, not yet run. */
  #waiting: Write[] = [];
  /** Run, in order, not yet flushed. */
  #unflushed: Write[] = [];
  #isFlushing = false;
  #failure: 'store_full' | 'internal' | undefined;
  #broken: AxError | undefined;
  #state: 'open' | 'closing' | 'closed' | 'crashed' = 'open';
  #whenIdle: (() => void)[] = [];

  constructor(world: World, image?: StoreImage, name = 'store') {
    this.#world = world;
    this.#name = name;
    this.#flushed = copyImage(image);
    this.#applied = copyImage(image);
  }

  get(table: Table, key: string): Uint8Array | undefined {
    return this.#table(table).get(key);
  }

  range(table: Table, options: RangeOptions = {}): StoreEntry[] {
    return this.#table(table).range(options);
  }

  count(table: Table, options: RangeOptions = {}): number {
    return this.#table(table).keys(options).length;
  }

  write<T>(decide: (tx: StoreTransaction) => T): Promise<T> {
    if (this.#state === 'crashed') return new Promise(() => undefined);
    if (this.#state !== 'open') return Promise.reject(closedError());
    if (this.#broken !== undefined) return Promise.reject(this.#broken);
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ decide, resolve, reject, changes: [], outcome: undefined });
      // Each event runs the oldest write, whichever call made it: the delays differ, the order does not.
      this.#world.after(this.#world.random() * 2, () => this.#runNext());
    });
  }

  status(): StoreStatus {
    let entries = 0;
    for (const table of TABLES) entries += this.count(table);
    return { path: this.#name, bytes: 0, freeBytes: this.freeBytes, entries };
  }

  async close(): Promise<void> {
    if (this.#state !== 'open') return;
    this.#state = 'closing';
    while (this.#waiting.length + this.#unflushed.length > 0) await new Promise<void>((resolve) => this.#whenIdle.push(resolve));
    if (this.#state === 'closing') this.#state = 'closed';
  }

  /**
   * The next flushes fail with this code: their writes reject and leave nothing visible. Undefined: space is back; a store that
   * failed with `internal` stays broken, as LMDB's does.
   */
  failing(code: 'store_full' | 'internal' | undefined): void {
    this.#failure = code;
  }

  /** The disk failed: nothing is written any more. */
  get isBroken(): boolean {
    return this.#broken !== undefined;
  }

  /** What is on disk now; the store lives on. */
  image(): StoreImage {
    return copyImage(this.#flushed);
  }

  /**
   * Ends the store as a power cut or kill -9 does and returns what the disk holds: everything flushed and a seed-chosen number
   * of the oldest writes that had run but not resolved ("on disk, answer lost"). No pending promise settles any more.
   */
  crash(): StoreImage {
    const kept = this.#world.between(0, this.#unflushed.length);
    this.#world.note(`${this.#name} crash: keeps ${kept} of ${this.#unflushed.length} unflushed writes, ${this.#waiting.length} never ran`);
    for (const write of this.#unflushed.slice(0, kept)) apply(this.#flushed, write.changes);
    this.#state = 'crashed';
    this.#waiting = [];
    this.#unflushed = [];
    return copyImage(this.#flushed);
  }

  #runNext(): void {
    const write = this.#waiting.shift();
    if (write === undefined || this.#state === 'crashed') return;
    this.#run(write);
    this.#unflushed.push(write);
    if (!this.#isFlushing) this.#beginFlush();
  }

  #run(write: Write): void {
    const undo: Change[] = [];
    let live = true;
    const check = (): void => {
      if (!live) throw new Error('this store transaction has ended');
    };
    const change = (table: Table, key: string, value: Uint8Array | undefined): void => {
      check();
      checkKey(key);
      const kept = value === undefined ? undefined : new Uint8Array(value);
      undo.push({ table, key, value: this.get(table, key) });
      write.changes.push({ table, key, value: kept });
      this.#table(table).set(key, kept);
      this.onChange(table, key, undo.at(-1)?.value, kept);
    };
    const tx: StoreTransaction = {
      get: (table, key) => (check(), this.get(table, key)),
      range: (table, options) => (check(), this.range(table, options)),
      count: (table, options) => (check(), this.count(table, options)),
      put: (table, key, value) => change(table, key, value),
      remove: (table, key) => change(table, key, undefined),
    };
    try {
      const value = write.decide(tx);
      if (value instanceof Promise) throw new TypeError('a store write is decided synchronously; its callback returned a promise');
      write.outcome = { value };
    } catch (thrown) {
      write.outcome = { thrown };
      write.changes = [];
      apply(this.#applied, undo.reverse());
    } finally {
      live = false;
    }
  }

  /** A flush covers what had run when it began and, by chance, some of what ran meanwhile. */
  #beginFlush(): void {
    this.#isFlushing = true;
    const atLeast = this.#unflushed.length;
    this.#world.after(0.2 + this.#world.random() * 29.8, () => {
      if (this.#state === 'crashed') return;
      this.#isFlushing = false;
      if (this.#failure === undefined) this.#endFlush(this.#unflushed.splice(0, this.#world.between(atLeast, this.#unflushed.length)));
      else this.#failFlush(this.#failure);
      if (this.#unflushed.length > 0) this.#beginFlush();
      if (this.#waiting.length + this.#unflushed.length === 0) for (const idle of this.#whenIdle.splice(0)) idle();
    });
  }

  #endFlush(done: readonly Write[]): void {
    for (const write of done) apply(this.#flushed, write.changes);
    for (const { outcome, resolve, reject } of done) {
      if (outcome !== undefined && 'thrown' in outcome) reject(outcome.thrown);
      else resolve(outcome?.value as never);
    }
  }

  /** Everything that ran since the last flush falls: what came later may have read what is now undone. */
  #failFlush(code: 'store_full' | 'internal'): void {
    const error = new AxError(code, `the flush of ${this.#name} failed`);
    if (code === 'internal') this.#broken = error;
    const fallen = this.#unflushed.splice(0);
    if (this.#broken !== undefined) fallen.push(...this.#waiting.splice(0));
    this.#world.note(`${this.#name} flush of ${fallen.length} writes fails: ${code}`);
    this.#applied = copyImage(this.#flushed);
    for (const write of fallen) write.reject(error);
  }

  #table(name: Table): SimTable {
    if (this.#state === 'closed') throw closedError();
    const table = this.#applied.get(name);
    if (table === undefined) throw new TypeError(`there is no table ${name}`);
    return table;
  }
}

/** One table: its values and its keys in order. */
class SimTable {
  #values: Map<string, Uint8Array>;
  #keys: string[];
  /** A copy has the same map and keys: whoever changes first takes its own. */
  #isShared = false;

  constructor(values: Map<string, Uint8Array> = new Map(), keys: string[] = []) {
    this.#values = values;
    this.#keys = keys;
  }

  /** Values are never changed in place, so that a copy may share them. */
  copy(): SimTable {
    const copy = new SimTable(this.#values, this.#keys);
    this.#isShared = true;
    copy.#isShared = true;
    return copy;
  }

  get(key: string): Uint8Array | undefined {
    checkKey(key);
    const value = this.#values.get(key);
    return value === undefined ? undefined : new Uint8Array(value);
  }

  set(key: string, value: Uint8Array | undefined): void {
    if (this.#isShared) {
      this.#values = new Map(this.#values);
      this.#keys = [...this.#keys];
      this.#isShared = false;
    }
    const known = this.#values.has(key);
    if (value !== undefined) this.#values.set(key, value);
    else this.#values.delete(key);
    if (known !== (value !== undefined)) this.#keys.splice(this.#position(key), known ? 1 : 0, ...(known ? [] : [key]));
  }

  keys({ start = '', end, reverse = false, limit = Infinity }: RangeOptions): string[] {
    const from = this.#position(start);
    const to = end === undefined ? this.#keys.length : this.#position(end);
    const count = Math.max(0, Math.min(to - from, limit));
    return reverse ? this.#keys.slice(to - count, to).reverse() : this.#keys.slice(from, from + count);
  }

  range(options: RangeOptions): StoreEntry[] {
    return this.keys(options).map((key) => ({ key, value: new Uint8Array(this.#values.get(key)!) }));
  }

  /** Where the first key not below `key` stands. */
  #position(key: string): number {
    let low = 0;
    for (let high = this.#keys.length; low < high;) {
      const middle = (low + high) >> 1;
      if (compareKeys(this.#keys[middle]!, key) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

function copyImage(image?: StoreImage): Map<Table, SimTable> {
  return new Map(TABLES.map((name) => [name, image?.get(name)?.copy() ?? new SimTable()]));
}

function apply(image: Map<Table, SimTable>, changes: readonly Change[]): void {
  for (const { table, key, value } of changes) image.get(table)!.set(key, value);
}

function closedError(): AxError {
  return new AxError('shutting_down', 'the store is closed');
}
