/**
 * One waiting write of the real store, and the transaction that its callback is given.
 *
 * Owns what becomes of the callback's promise, and that a transaction is dead once its job has ended. What is written goes to the store.
 */
import type { AxError } from '../../protocol/errors.ts';
import type { Written } from './overlay.ts';
import { LATE_BYTES } from './store.ts';
import type { LateValue, RangeOptions, StoreEntry, StoreReader, StoreTransaction, Table } from './store.ts';

/** One waiting write. `run` calls its callback inside the transaction, then exactly one of `settle` and `fail` ends it. */
export class Job {
  readonly #decide: (tx: StoreTransaction) => unknown;
  readonly #resolve: (value: unknown) => void;
  readonly #reject: (error: unknown) => void;
  #value: unknown;
  /** Set when it threw: what the promise rejects with, as it is. */
  #thrown: { readonly error: unknown } | undefined;

  constructor(decide: (tx: StoreTransaction) => unknown, resolve: (value: unknown) => void, reject: (error: unknown) => void) {
    this.#decide = decide;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  /** Does what it wrote count? */
  run(tx: StoreTransaction): boolean {
    try {
      this.#value = this.#decide(tx);
      if (isThenable(this.#value)) throw new TypeError('a store write is decided synchronously; its callback returned a promise');
      return true;
    } catch (error) {
      this.#thrown = { error };
      return false;
    }
  }

  settle(): void {
    if (this.#thrown === undefined) this.#resolve(this.#value);
    else this.#reject(this.#thrown.error);
  }

  fail(error: AxError): void {
    this.#reject(error);
  }
}

function isThenable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';
}

type Reader = StoreReader & Required<Pick<StoreReader, 'shared'>>;

/** Takes what a job writes; `size` is how many bytes the value has at most. */
export type Put = (table: Table, key: string, written: Written, size: number) => void;

/** What a job is given; dead once the job has ended. */
export class Transaction implements StoreTransaction {
  readonly #store: Reader;
  #put: Put | undefined;

  constructor(store: Reader, put: Put) {
    this.#store = store;
    this.#put = put;
  }

  end(): void {
    this.#put = undefined;
  }

  #live(): Put {
    if (this.#put === undefined) throw new Error('this store transaction has ended');
    return this.#put;
  }

  get(table: Table, key: string): Uint8Array | undefined {
    this.#live();
    return this.#store.get(table, key);
  }

  shared(table: Table, key: string): Uint8Array | LateValue | undefined {
    this.#live();
    return this.#store.shared(table, key);
  }

  range(table: Table, options?: RangeOptions): StoreEntry[] {
    this.#live();
    return this.#store.range(table, options);
  }

  count(table: Table, options?: RangeOptions): number {
    this.#live();
    return this.#store.count(table, options);
  }

  put(table: Table, key: string, value: Uint8Array): void {
    this.#live()(table, key, value, value.length);
  }

  putLate(table: Table, key: string, value: LateValue): void {
    this.#live()(table, key, value, LATE_BYTES);
  }

  remove(table: Table, key: string): void {
    this.#live()(table, key, null, 0);
  }
}
