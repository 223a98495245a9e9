/**
 * The seam to durable storage: a few tables of ordered string keys and byte values, one writer, atomic writes.
 *
 * Owns the interface only. Real: lmdb.ts. Simulated: an in-memory image plus a flushed image; a crash keeps a prefix of
 * the writes that had not resolved. The same contract suite runs on both.
 * Invariant for callers: read and decide inside the `write` callback; what `get` shows outside of it decides nothing that
 * is promised to anybody.
 */

/** The tables of a daemon; `fresh` is fresh.ts's own. Adding one is a new entry here and nothing else. */
export const TABLES = [
  'meta',
  'peers',
  'invites',
  'outbox',
  'outbox_index',
  'outbox_body',
  'inbox',
  'inbox_index',
  'inbox_body',
  'arriving',
  'seen',
  'receipts',
  'agents',
  'notices',
  'events',
  'requests',
  'fresh',
] as const;

export type Table = (typeof TABLES)[number];

/** The schema of the rows that this code reads and writes; daemon/migration.ts brings an older store to it. */
export const STORE_SCHEMA = 4;

/** The longest key, in bytes of UTF-8. */
export const MAX_KEY_BYTES = 400;

/** How many bytes of UTF-8 a key has. Throws RangeError (a programmer’s error) unless it is 1 to MAX_KEY_BYTES of well-formed text. */
export function checkKey(key: string): number {
  let bytes = key.length;
  for (let i = 0; i < bytes; i++) {
    if (key.charCodeAt(i) < 0x80 && i < MAX_KEY_BYTES) continue;
    if (!key.isWellFormed()) throw new RangeError('a store key is well-formed text; two broken ones would be stored as the same key');
    bytes = Buffer.byteLength(key);
    break;
  }
  if (bytes === 0 || bytes > MAX_KEY_BYTES) throw new RangeError(`a store key has 1 to ${MAX_KEY_BYTES} bytes, not ${bytes}`);
  return bytes;
}

/** The order of the keys' UTF-8 bytes. It differs from that of JavaScript strings only where a surrogate meets a unit above them. */
export function compareKeys(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) return rank(x) - rank(y);
  }
  return a.length - b.length;
}

function rank(unit: number): number {
  return unit >= 0xd800 && unit < 0xe000 ? unit + 0x10000 : unit;
}

/** Bounds of an ordered walk, in the order of the keys' UTF-8 bytes. `start` is included, `end` is not; `reverse` begins below `end`. */
export interface RangeOptions {
  readonly start?: string;
  readonly end?: string;
  readonly reverse?: boolean;
  readonly limit?: number;
}

export interface StoreEntry {
  readonly key: string;
  readonly value: Uint8Array;
}

/** A value whose bytes are made only when they are needed: of a counter that many jobs of a commit change, the last one is written. */
export interface LateValue {
  /** Does not change any more. */
  readonly row: object;
  /** The bytes of the row, at most LATE_BYTES, for reading; never throws. */
  bytes(): Uint8Array;
}

export const LATE_BYTES = 256;

export interface StoreReader {
  /** The value, or undefined. The bytes are the caller's: they stay valid. */
  get(table: Table, key: string): Uint8Array | undefined;
  /** The value as `get` gives it, but what the store has at hand as it was put: nobody changes that. Where it is missing `get` serves. */
  shared?(table: Table, key: string): Uint8Array | LateValue | undefined;
  /** Entries in key order, read at once into an array (never an iterator held over an await). */
  range(table: Table, options?: RangeOptions): StoreEntry[];
  /** How many entries lie within the bounds (`limit` caps the count). */
  count(table: Table, options?: RangeOptions): number;
}

export interface StoreTransaction extends StoreReader {
  /** The bytes are the store's from here on: nobody changes them any more, also where `get` hands them out within the same write. */
  put(table: Table, key: string, value: Uint8Array): void;
  /** A put as any other, of what is put again and again. Where it is missing `put` serves. */
  putLate?(table: Table, key: string, value: LateValue): void;
  remove(table: Table, key: string): void;
}

export interface StoreStatus {
  readonly path: string;
  /** Size of the files. */
  readonly bytes: number;
  /** What the disk still has for this user: the room to grow. Not the reusable pages within the file. */
  readonly freeBytes: number;
  /** What lies in `fresh` over an older row of its table counts twice until it is moved there. */
  readonly entries: number;
  /** Why the store takes no more writes until it is opened again; absent while it takes them. */
  readonly fault?: string;
}

export interface Store extends StoreReader {
  /**
   * Runs `decide` synchronously in one write transaction (soon, not at once) and resolves with its result when everything
   * it wrote is flushed to disk. Writes commit in the order of the calls; a write that read what an earlier one wrote
   * resolves only after that one is flushed too, even if it wrote nothing itself.
   * Keys are 1 to MAX_KEY_BYTES of UTF-8. If `decide` throws, nothing of it is visible, and the promise rejects with what was thrown,
   * likewise only when everything it may have read is flushed. `tx` is dead once `decide` has returned.
   * A failed flush rejects with AxError `store_full` (no space) or `store_corrupt`/`internal` (anything else) and leaves nothing visible.
   * After a failure for want of space the store goes on; after any other it refuses every further write. After `close`: `shutting_down`.
   */
  write<T>(decide: (tx: StoreTransaction) => T): Promise<T>;
  status(): StoreStatus;
  /** Resolves when every earlier write has settled and the files are closed. */
  close(): Promise<void>;
}

/** A store on this host's disk, as it was opened: while `schema` is below STORE_SCHEMA nothing but a migration may use its rows. */
export interface OpenedStore extends Store {
  readonly schema: number;
  /** Folder with the files as they were before the migration that is due, or null. It stays until a person removes it. */
  readonly kept: string | null;
  /** Records durably that every row is of STORE_SCHEMA now; called once all that was written for it has resolved. */
  raise(): void;
  /** Writes what the store holds at one moment to `folder` (new, 0700), as a store of its own, whole and flushed. AxError `store_full`, `internal`. */
  copyTo(folder: string): Promise<void>;
}
