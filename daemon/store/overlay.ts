/**
 * The writes of one commit that LMDB does not have yet: each key with the last value it got.
 *
 * Owns their undoing (a job that throws leaves nothing) and their order on the way to LMDB. A row that many jobs of a commit change, a
 * counter for one, is written once. Knows nothing of LMDB: the store looks here first, and puts what `drain` hands out.
 * Invariant: what a job wrote is seen by that job at once, and by later jobs only when it has ended well.
 */
import type { Table } from './store.ts';

/** A value that was put, or null: the key was removed. */
export type Written = Uint8Array | null;
type Layer = Map<Table, Map<string, Written>>;

export class Overlay {
  /** Of the jobs that have ended well. */
  #kept: Layer = new Map();
  /** Of the job that runs. */
  #job: Layer = new Map();

  /** What was written under a key; undefined when nothing was and the store below decides. */
  get(table: Table, key: string): Written | undefined {
    const own = this.#job.get(table)?.get(key);
    return own === undefined ? this.#kept.get(table)?.get(key) : own;
  }

  set(table: Table, key: string, value: Written): void {
    put(this.#job, table, key, value);
  }

  /** The job has ended: what it wrote counts from now on, or is forgotten. */
  endJob(isKept: boolean): void {
    if (isKept) for (const [table, entries] of this.#job) for (const [key, value] of entries) put(this.#kept, table, key, value);
    this.#job = new Map();
  }

  /** Hands what ended jobs wrote to the store below, of one table or of all, in the order of the keys; it is forgotten here. */
  drain(write: (table: Table, key: string, value: Written) => void, only?: Table): void {
    for (const [table, entries] of this.#kept) {
      if (only !== undefined && table !== only) continue;
      for (const key of Array.from(entries.keys()).sort()) write(table, key, entries.get(key)!);
      this.#kept.delete(table);
    }
  }

  /** What the running job wrote in a table. */
  ofJob(table: Table): ReadonlyMap<string, Written> {
    return this.#job.get(table) ?? NOTHING;
  }
}

const NOTHING: ReadonlyMap<string, Written> = new Map();

function put(layer: Layer, table: Table, key: string, value: Written): void {
  const entries = layer.get(table);
  if (entries === undefined) layer.set(table, new Map([[key, value]]));
  else entries.set(key, value);
}
