/**
 * The writes of one commit: each key with the last value it got, and which of them LMDB does not have yet.
 *
 * Owns their undoing (a job that throws leaves nothing). A row that many jobs of a commit change, a counter for one, is written once.
 * Knows nothing of LMDB: the store looks here first, and puts what `drain` hands out.
 * Invariant: what a job wrote is seen by that job at once, and by later jobs only when it has ended well.
 */
import type { LateValue, Table } from './store.ts';

/** A value that was put, or null: the key was removed. */
export type Written = Uint8Array | LateValue | null;

/** One key of a table. Undefined: nothing was written, the store below decides. */
interface Entry {
  readonly key: string;
  written: Written | undefined;
  /** The running job has written it; `before` is what it was. */
  isOfJob: boolean;
  before: Written | undefined;
  /** The store below does not have it. */
  isPending: boolean;
}

interface Layer {
  readonly entries: Map<string, Entry>;
  pending: Entry[];
}

export class Overlay {
  readonly #layers = new Map<Table, Layer>();
  /** What the running job has written. */
  readonly #job: Entry[] = [];

  /** What was written under a key; undefined when nothing was and the store below decides. */
  get(table: Table, key: string): Written | undefined {
    return this.#layers.get(table)?.entries.get(key)?.written;
  }

  set(table: Table, key: string, written: Written): void {
    let layer = this.#layers.get(table);
    if (layer === undefined) this.#layers.set(table, (layer = { entries: new Map(), pending: [] }));
    let entry = layer.entries.get(key);
    if (entry === undefined) {
      entry = { key, written: undefined, isOfJob: false, before: undefined, isPending: false };
      layer.entries.set(key, entry);
    }
    if (!entry.isPending) layer.pending.push(entry);
    if (!entry.isOfJob) this.#job.push(entry);
    if (!entry.isOfJob) entry.before = entry.written;
    entry.isPending = true;
    entry.isOfJob = true;
    entry.written = written;
  }

  /** The job has ended: what it wrote counts from now on, or is forgotten. */
  endJob(isKept: boolean): void {
    for (const entry of this.#job) {
      if (!isKept) entry.written = entry.before;
      entry.before = undefined;
      entry.isOfJob = false;
    }
    this.#job.length = 0;
  }

  /** Hands what ended jobs wrote to the store below, of one table or of all. */
  drain(write: (table: Table, key: string, written: Written) => void, only?: Table): void {
    for (const [table, layer] of this.#layers) {
      if (only !== undefined && table !== only) continue;
      for (const entry of layer.pending) {
        if (entry.isOfJob) continue;
        if (entry.written !== undefined) write(table, entry.key, entry.written);
        entry.isPending = false;
      }
      layer.pending = layer.pending.filter((entry) => entry.isPending);
    }
  }

  /** What the running job wrote in a table that was drained. */
  *ofJob(table: Table): Iterable<readonly [string, Written]> {
    for (const { key, written } of this.#layers.get(table)?.pending ?? []) if (written !== undefined) yield [key, written];
  }

  /** All that was written in the commit. */
  forEach(call: (table: Table, key: string, written: Written) => void): void {
    for (const [table, { entries }] of this.#layers)
      for (const { key, written } of entries.values()) if (written !== undefined) call(table, key, written);
  }
}
