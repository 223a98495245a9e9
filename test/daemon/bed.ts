/**
 * A real store in a temporary folder, and a running time that only the test moves: the bed of the state owners' tests.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import type { Clock } from '../../daemon/clock/clock.ts';
import { openLmdbStore } from '../../daemon/store/lmdb.ts';
import type { Store, StoreTransaction, Table } from '../../daemon/store/store.ts';
import { TABLES } from '../../daemon/store/store.ts';
import { makeMessageId } from '../../protocol/ids.ts';
import type { MessageId } from '../../protocol/ids.ts';

export const DAY = 86_400_000;

/** Wall and running time that move when told to. */
export class HandClock implements Clock {
  wall = 1_790_000_000_000;
  ran = 0;
  readonly #timers = new Set<{ readonly due: number; readonly run: () => void }>();

  now(): number {
    return this.wall;
  }

  monotonic(): number {
    return this.ran;
  }

  after(delayMs: number, run: () => void): () => void {
    const timer = { due: this.ran + delayMs, run };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  get pending(): number {
    return this.#timers.size;
  }

  pass(ms: number): void {
    this.ran += ms;
    this.wall += ms;
    const due = Array.from(this.#timers).filter((timer) => timer.due <= this.ran);
    for (const timer of due) if (this.#timers.delete(timer)) timer.run();
  }
}

export interface Bed {
  store: Store;
  readonly clock: HandClock;
  readonly running: () => number;
  write<T>(decide: (tx: StoreTransaction) => T): Promise<T>;
  /** Closes the store and opens its files again. */
  reopen(): Promise<Store>;
  keys(table: Table): string[];
  /** Every table that holds something, with its keys. */
  left(): Partial<Record<Table, string[]>>;
}

const folder = mkdtempSync(join(tmpdir(), 'axs-'));
let opened: Store | undefined;
after(async () => {
  await opened?.close();
  rmSync(folder, { recursive: true });
});

/** An empty bed. Opening costs far more than emptying, so all tests of a file share one store, one after the other. */
export async function openBed(): Promise<Bed> {
  opened ??= await openLmdbStore(folder);
  await opened.write((tx) => {
    for (const table of TABLES) for (const { key } of tx.range(table)) tx.remove(table, key);
  });
  const clock = new HandClock();
  const bed: Bed = {
    store: opened,
    clock,
    running: () => clock.ran,
    write: (decide) => bed.store.write(decide),
    reopen: async () => {
      await bed.store.close();
      opened = undefined;
      bed.store = opened = await openLmdbStore(folder);
      return bed.store;
    },
    keys: (table) => bed.store.range(table).map((entry) => entry.key),
    left: () =>
      Object.fromEntries(
        // What lies in `fresh` is shown under its table.
        TABLES.filter((table) => table !== 'fresh')
          .map((table) => [table, bed.keys(table)] as const)
          .filter(([, keys]) => keys.length > 0),
      ),
  };
  return bed;
}

/** The n-th message id of a test; they sort by n. */
export function idOf(n: number): MessageId {
  return makeMessageId(
    1_790_000_000_000 + n,
    Uint8Array.from({ length: 10 }, (_, i) => (n + i) & 0xff),
  );
}
