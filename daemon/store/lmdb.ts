/**
 * The real store: LMDB, one named database per table, one write transaction for all writes that wait at the same moment.
 *
 * Owns the order of writes, the group commit, the roll-back of a write that throws, and the translation of LMDB's failures.
 * It does not own the meaning of any record, nor the lock that keeps other processes out (the caller holds it).
 * Invariant: a promise of `write` settles only after the commit that holds it, and everything it read, is on disk; bytes that
 * leave here are copies, but for what `shared` gives. `overlappingSync` is off, so `get` never shows what is not on disk.
 */
import { open, type RootDatabase } from 'lmdb';
import { mkdirSync, rmSync, statfsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { closedError, commitCause, isDiskFault, spaceError, storeError } from './lmdb-errors.ts';
import { finishCopy, finishStore, prepareStore } from './lmdb-file.ts';
import type { Prepared } from './lmdb-file.ts';
import { boundsOf, FORMAT, isWithin, merged, Walks } from './lmdb-walk.ts';
import type { Bounds, Db } from './lmdb-walk.ts';
import { Job, Transaction } from './lmdb-job.ts';
import type { Put } from './lmdb-job.ts';
import { FreshFirst } from './fresh.ts';
import { Overlay } from './overlay.ts';
import type { Written } from './overlay.ts';
import { Recent } from './recent.ts';
import {
  checkKey,
  STORE_SCHEMA,
  TABLES,
  type LateValue,
  type OpenedStore,
  type RangeOptions,
  type StoreEntry,
  type StoreStatus,
  type StoreTransaction,
  type Table,
} from './store.ts';

export interface LmdbOptions {
  /** A `put` that would take the pages in use past this many bytes throws `store_full`; removing stays possible. Default: no limit. */
  readonly sizeLimitBytes?: number;
}

/** A commit ends after this much, so that one flush stays short and LMDB's list of changed pages cannot run over. */
const MAX_COMMIT_BYTES = 32 * 1024 * 1024;

/**
 * Opens or makes the store in `folder` (0700, files 0600). The caller holds the directory's lock. Throws AxError `store_corrupt`
 * (a foreign or damaged file, named), `update_required` (made by a newer ax), both leaving everything untouched; `store_full`, `internal`.
 * One of an older schema is copied aside and opened as it is: see OpenedStore.
 */
export async function openLmdbStore(folder: string, options: LmdbOptions = {}): Promise<OpenedStore> {
  try {
    const prepared = prepareStore(folder);
    const store = new LmdbStore(folder, options, prepared);
    if (prepared.isNew) finishStore(folder);
    return new FreshFirst(store);
  } catch (error) {
    throw storeError(error, `cannot open the store in ${folder}`);
  }
}

interface OpenTable {
  readonly db: Db;
  readonly walks: Walks;
}

class LmdbStore implements OpenedStore {
  readonly kept: string | null;
  #schema: number;
  readonly #folder: string;
  readonly #sizeLimitBytes: number;
  readonly #root: RootDatabase<Uint8Array, Uint8Array>;
  readonly #tables: ReadonlyMap<Table, OpenTable>;
  readonly #recent = new Recent();
  #queue: Job[] = [];
  readonly #copies = new Set<Promise<void>>();
  #pumping: Promise<void> | undefined;
  #state: 'open' | 'closing' | 'closed' = 'open';
  /** Set by a failure that was not want of space: LMDB may then be unable to begin a transaction at all, and would never answer. */
  #broken: AxError | undefined;
  #commitBytes = 0;
  #usedBytes = 0;
  /** Only while the jobs of a commit run. */
  #overlay: Overlay | undefined;
  #drainFault: Error | undefined;

  constructor(folder: string, options: LmdbOptions, found: Prepared) {
    this.kept = found.kept;
    this.#schema = found.schema;
    this.#folder = folder;
    this.#sizeLimitBytes = options.sizeLimitBytes ?? Infinity;
    // eventTurnBatching makes a promise per turn that nobody can catch; the queue below does its work.
    const settings = {
      path: folder,
      noSubdir: false,
      maxDbs: TABLES.length + 8,
      pageSize: 8192,
      overlappingSync: false,
      eventTurnBatching: false,
    };
    this.#root = open<Uint8Array, Uint8Array>({ ...settings, encoding: 'binary', keyEncoding: 'binary' });
    this.#tables = new Map(
      TABLES.map((name) => {
        const db: Db = this.#root.openDB({ name, ...FORMAT });
        return [name, { db, walks: new Walks(db) }];
      }),
    );
  }

  get schema(): number {
    return this.#schema;
  }

  raise(): void {
    finishStore(this.#folder);
    this.#schema = STORE_SCHEMA;
  }

  async copyTo(folder: string): Promise<void> {
    if (this.#state !== 'open') throw closedError();
    if (this.#schema !== STORE_SCHEMA) throw new Error('a store is copied when its rows are of the present schema');
    const copying = this.#copy(folder);
    this.#copies.add(copying);
    try {
      await copying;
    } finally {
      this.#copies.delete(copying);
    }
  }

  async #copy(folder: string): Promise<void> {
    try {
      mkdirSync(folder, { mode: 0o700 });
    } catch (error) {
      throw storeError(error, `cannot copy the store to ${folder}`);
    }
    try {
      await this.#root.backup(folder, true);
      finishCopy(folder);
    } catch (error) {
      rmSync(folder, { recursive: true, force: true });
      throw storeError(error, `cannot copy the store to ${folder}`);
    }
  }

  // Within a commit all look at what it has written so far, also when they are not called through the transaction.

  get(table: Table, key: string): Uint8Array | undefined {
    const value = this.shared(table, key);
    if (value === undefined) return undefined;
    if (!(value instanceof Uint8Array)) return new Uint8Array(value.bytes());
    return value === this.#recent.get(table, key) ? new Uint8Array(value) : value;
  }

  shared(table: Table, key: string): Uint8Array | LateValue | undefined {
    const written = this.#overlay?.get(table, key);
    if (written !== undefined) return written ?? undefined;
    const { db } = this.#open(table);
    const recent = this.#recent.get(table, key);
    if (recent !== undefined) return recent;
    checkKey(key);
    try {
      return db.get(key);
    } catch (error) {
      throw this.#useError(error);
    }
  }

  range(table: Table, options: RangeOptions = {}): StoreEntry[] {
    const bounds = boundsOf(options);
    if (bounds === undefined) return [];
    const own = this.#ownEntries(table, bounds);
    const entries: StoreEntry[] = [];
    this.#walk(table, 'entries', bounds, bounds.limit + (own?.size ?? 0), (entry) => void entries.push(entry as StoreEntry));
    return own === undefined ? entries : merged(entries, own, bounds);
  }

  count(table: Table, options: RangeOptions = {}): number {
    const bounds = boundsOf({ ...options, reverse: false });
    if (bounds === undefined) return 0;
    // One key only: what the running job wrote under others does not matter.
    const written =
      options.start !== undefined && options.end === `${options.start}\0` ? this.#overlay?.get(table, options.start) : undefined;
    if (written !== undefined) return written === null ? 0 : 1;
    if (this.#ownEntries(table, bounds) !== undefined) return this.range(table, options).length;
    return this.#walk(table, 'keys', bounds, bounds.limit);
  }

  #walk(table: Table, what: 'entries' | 'keys', bounds: Bounds, limit: number, take?: (item: unknown) => void): number {
    const { inside, outside } = this.#open(table).walks;
    try {
      return (this.#overlay === undefined ? outside : inside)[what].run(bounds, limit, take);
    } catch (error) {
      throw this.#useError(error);
    }
  }

  /** Lets LMDB have what ended jobs wrote in a table, since it is to be walked; returns what the running one wrote within the bounds, if anything. */
  #ownEntries(table: Table, bounds: Bounds): Map<string, Uint8Array | undefined> | undefined {
    if (this.#overlay === undefined) return undefined;
    this.#drain(this.#overlay, table);
    let own: Map<string, Uint8Array | undefined> | undefined;
    for (const [key, written] of this.#overlay.ofJob(table))
      if (isWithin(key, bounds)) (own ??= new Map()).set(key, written === null ? undefined : bytesOf(written));
    return own;
  }

  write<T>(decide: (tx: StoreTransaction) => T): Promise<T> {
    if (this.#state !== 'open') return Promise.reject(closedError());
    if (this.#broken !== undefined) return Promise.reject(this.#broken);
    return new Promise<T>((resolve, reject) => {
      this.#queue.push(new Job(decide, resolve as (value: unknown) => void, reject));
      this.#pumping ??= this.#pump();
    });
  }

  status(): StoreStatus {
    const file = statSync(join(this.#folder, 'data.mdb'));
    const disk = statfsSync(this.#folder);
    let entries = 0;
    for (const table of TABLES) entries += statOf(this.#open(table).db).entryCount;
    const fault = this.#broken === undefined ? {} : { fault: this.#broken.message };
    return { path: this.#folder, bytes: file.size, freeBytes: disk.bavail * disk.bsize, entries, ...fault };
  }

  async close(): Promise<void> {
    if (this.#state !== 'open') return;
    this.#state = 'closing';
    await this.#pumping;
    await Promise.allSettled(this.#copies); // LMDB must not be closed under its own copying thread
    this.#state = 'closed';
    await this.#root.close();
  }

  /** One commit after the other: what arrives while one is being flushed goes into the next, together. */
  async #pump(): Promise<void> {
    while (this.#queue.length > 0) await this.#commit();
    this.#pumping = undefined;
  }

  async #commit(): Promise<void> {
    let batch: Job[] = [];
    const overlay = new Overlay();
    try {
      await this.#root.transaction(() => {
        batch = this.#queue.slice();
        // A transaction of its own inside: lmdb commits what an outer one wrote before it threw.
        void this.#root.childTransaction(() => this.#runQueue(batch, overlay));
      });
      overlay.forEach((table, key, written) => this.#recent.take(table, key, written));
      for (const job of batch) job.settle();
    } catch (error) {
      const cause = await commitCause(error);
      const failure = this.#panicError() ?? this.#explain(cause);
      if (failure.code !== 'store_full') this.#broken = failure;
      // A store that cannot commit for another reason, or not even begin, answers all that waits instead of letting it wait for ever.
      const fallen = this.#broken === undefined && batch.length > 0 ? batch : [...batch, ...this.#queue.splice(0)];
      for (const job of fallen) job.fail(failure);
    }
  }

  /** Inside the transaction: runs what waits, as much as one commit may hold, and leaves in `batch` what it ran. A throw undoes all of it. */
  #runQueue(batch: Job[], overlay: Overlay): void {
    this.#commitBytes = 0;
    this.#usedBytes = this.#sizeLimitBytes === Infinity ? 0 : this.#countUsedBytes();
    this.#overlay = overlay;
    this.#drainFault = undefined;
    const put: Put = (table, key, written, size) => this.#put(overlay, table, key, written, size);
    let taken = 0;
    try {
      while (taken < batch.length && this.#commitBytes < MAX_COMMIT_BYTES) {
        const tx = new Transaction(this, put);
        overlay.endJob(batch[taken++]!.run(tx));
        tx.end();
      }
      this.#drain(overlay);
    } finally {
      this.#overlay = undefined;
      batch.length = taken;
      this.#queue.splice(0, taken);
    }
  }

  /** Lets LMDB have what ended jobs wrote, in one table or in all. Once that fails the commit is lost, whatever a job makes of the error. */
  #drain(overlay: Overlay, only?: Table): void {
    if (this.#drainFault !== undefined) throw this.#drainFault;
    try {
      overlay.drain((table, key, written) => {
        this.#recent.forget(table, key);
        const { db } = this.#open(table);
        void (written === null ? db.remove(key) : db.put(key, bytesOf(written)));
      }, only);
    } catch (error) {
      this.#drainFault = this.#useError(error);
      throw this.#drainFault;
    }
  }

  #put(overlay: Overlay, table: Table, key: string, written: Written, size: number): void {
    const bytes = size + checkKey(key);
    if (written !== null && this.#usedBytes + this.#commitBytes + bytes > this.#sizeLimitBytes) {
      throw new AxError('store_full', `the store in ${this.#folder} is at its limit of ${this.#sizeLimitBytes} bytes`, {
        details: { limit_bytes: this.#sizeLimitBytes },
      });
    }
    overlay.set(table, key, written);
    if (written !== null) this.#commitBytes += bytes;
  }

  #open(table: Table): OpenTable {
    if (this.#state === 'closed') throw closedError();
    const found = this.#tables.get(table);
    if (found === undefined) throw new TypeError(`there is no table ${table}`);
    return found;
  }

  #useError(error: unknown): AxError {
    return storeError(error, `cannot use the store in ${this.#folder}`);
  }

  #countUsedBytes(): number {
    const stats = Array.from(this.#tables.values(), ({ db }) => statOf(db));
    const { free, root, pageSize } = stats[0]!;
    const pages = [free, root, ...stats].reduce(
      (sum, tree) => sum + tree.treeBranchPageCount + tree.treeLeafPageCount + tree.overflowPages,
      2,
    );
    return pages * pageSize;
  }

  /**
   * A failed write of LMDB's meta page, even for want of space, makes the environment refuse every further transaction: a read
   * says so at once, whereas the next write would never be answered.
   */
  #panicError(): AxError | undefined {
    try {
      this.#root.resetReadTxn();
      this.#root.get(Uint8Array.of(0));
      return undefined;
    } catch (error) {
      return storeError(error, `the store in ${this.#folder} can no longer be used until the daemon is started again`);
    }
  }

  /** Why a commit failed. LMDB turns a write that ended half-way into an I/O error, so the file system is asked for the reason. */
  #explain(cause: unknown): AxError {
    const error = storeError(cause, `cannot write to the store in ${this.#folder}`);
    if (!isDiskFault(cause)) return error;
    const reason = spaceError(this.#folder, Math.max(this.#commitBytes * 2, 64 * 1024));
    return reason === undefined ? error : storeError(reason, `cannot write to the store in ${this.#folder}`);
  }
}

function bytesOf(value: Uint8Array | LateValue): Uint8Array {
  return value instanceof Uint8Array ? value : value.bytes();
}

interface TreeStat {
  readonly pageSize: number;
  readonly entryCount: number;
  readonly treeBranchPageCount: number;
  readonly treeLeafPageCount: number;
  readonly overflowPages: number;
}

function statOf(db: Db): TreeStat & { readonly root: TreeStat; readonly free: TreeStat } {
  return db.getStats() as TreeStat & { readonly root: TreeStat; readonly free: TreeStat };
}
