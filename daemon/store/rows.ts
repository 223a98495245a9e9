/**
 * How rows and ordered keys look in the store: CBOR records and zero-padded sequence numbers; and how an index of them is read.
 *
 * Owns the encoding only; each table's rows belong to the one state owner that writes them. Records are ax's own bytes, so
 * their shape is trusted after decoding; a record that does not decode is a corrupt store.
 */
import { createHash } from 'node:crypto';
import { decode, encode, encodePassing } from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import { LATE_BYTES } from './store.ts';
import type { LateValue, StoreReader, StoreTransaction, Table } from './store.ts';

const DIGITS = 15;
export const NOTHING = new Uint8Array(0);

/** A whole number as a key that sorts by its value. */
export function seqKey(seq: number): string {
  return String(seq).padStart(DIGITS, '0');
}

/**
 * The newest rows and the bytes made of them: what a commit reads back of its own, counters for the most part, is not decoded. A fixed
 * number of places: a weak map of all costs more than the decoding, and one that is emptied leaves its rows to the slow garbage collection.
 */
const NEWEST = 64;
const newestBytes: (Uint8Array | undefined)[] = Array.from({ length: NEWEST }, () => undefined);
const newestRows: (object | undefined)[] = Array.from({ length: NEWEST }, () => undefined);
const NEWEST_BYTES = 4096;
let newest = 0;

/** The row must not change any more. The bytes are for the store, which keeps some hundreds of the newest and lets the others go. */
export function pack(row: object): Uint8Array {
  const bytes = encodePassing(row);
  if (bytes.length <= NEWEST_BYTES) {
    newest = (newest + 1) % NEWEST;
    newestBytes[newest] = bytes;
    newestRows[newest] = row;
  }
  return bytes;
}

export function unpack<T>(bytes: Uint8Array): T {
  for (let i = newest; i >= 0; i--) if (newestBytes[i] === bytes) return newestRows[i] as T;
  for (let i = NEWEST - 1; i > newest; i--) if (newestBytes[i] === bytes) return newestRows[i] as T;
  try {
    return decode(bytes) as T;
  } catch (error) {
    throw new AxError('store_corrupt', 'a record of the store cannot be read', { cause: error });
  }
}

export function getRow<T>(reader: StoreReader, table: Table, key: string): T | undefined {
  const value = reader.shared === undefined ? reader.get(table, key) : reader.shared(table, key);
  if (value === undefined) return undefined;
  return value instanceof Uint8Array ? unpack<T>(value) : (value.row as T);
}

/** A row of a few numbers, encoded only if it is written. */
class Counter implements LateValue {
  readonly row: Numbers;
  #bytes: Uint8Array | undefined;

  constructor(row: Numbers) {
    this.row = row;
  }

  bytes(): Uint8Array {
    return (this.#bytes ??= encode(this.row));
  }
}

export type Numbers = Readonly<Record<string, number>>;

/** Puts a row of whole numbers that write after write changes: it must not change any more, and has few and short names. */
export function putNumbers(tx: StoreTransaction, table: Table, key: string, row: Numbers): void {
  if (tx.putLate === undefined) return tx.put(table, key, pack(row));
  let bytes = 1;
  for (const name in row) {
    if (!Number.isSafeInteger(row[name])) throw new TypeError(`${name} of ${key} is no whole number`);
    bytes += name.length + 10;
  }
  if (bytes > LATE_BYTES) throw new TypeError(`${key} has too many numbers`);
  tx.putLate(table, key, new Counter(row));
}

/** Rows kept decoded by their keys. */
const KEPT_ROWS = 256;

/** Decoded rows of a table that are read more often than they change. What counts is always the bytes that the store gives now. */
export class KnownRows<T extends object> {
  readonly #known = new Map<string, { readonly bytes: Uint8Array; readonly row: T }>();
  readonly #most: number;

  /** `most`: how many are kept; of more, the ones longest here are decoded again. */
  constructor(most: number = KEPT_ROWS) {
    this.#most = most;
  }

  /** The bytes of a row that is about to be stored under `key`. The row must not change any more. */
  pack(key: string, row: T): Uint8Array {
    const bytes = pack(row);
    this.#keep(key, bytes, row);
    return bytes;
  }

  /** The row under `key`, or undefined. */
  get(reader: StoreReader, table: Table, key: string): T | undefined {
    const value = reader.shared === undefined ? reader.get(table, key) : reader.shared(table, key);
    if (value === undefined) return undefined;
    return this.read(key, value instanceof Uint8Array ? value : value.bytes());
  }

  /** The row in these bytes, which stand under `key`. */
  read(key: string, bytes: Uint8Array): T {
    const known = this.#known.get(key);
    if (known !== undefined && (known.bytes === bytes || Buffer.compare(known.bytes, bytes) === 0)) return known.row;
    const row = unpack<T>(bytes);
    this.#keep(key, bytes, row);
    return row;
  }

  #keep(key: string, bytes: Uint8Array, row: T): void {
    this.#known.delete(key);
    if (this.#known.size >= this.#most)
      for (const oldest of this.#known.keys()) if (this.#known.size >= this.#most) this.#known.delete(oldest);
    this.#known.set(key, { bytes, row });
  }
}

/** The next number of a named sequence, from 1; taken for good when the transaction commits. */
export function nextSeq(tx: StoreTransaction, name: string): number {
  const next = lastSeq(tx, name) + 1;
  putNumbers(tx, 'meta', `seq/${name}`, { last: next });
  return next;
}

/** The last number taken of a named sequence; 0 when none was. */
export function lastSeq(reader: StoreReader, name: string): number {
  return getRow<{ last: number }>(reader, 'meta', `seq/${name}`)?.last ?? 0;
}

/** The running time that is durable, ms; 0 before the first. */
export function keptRunning(reader: StoreReader): number {
  return getRow<{ ms: number }>(reader, 'meta', 'running')?.ms ?? 0;
}

/** Makes the running time durable together with what is counted in it: after a crash it begins behind nothing of that. */
export function keepRunning(tx: StoreTransaction, ms: number): void {
  putNumbers(tx, 'meta', 'running', { ms });
}

/** Keys that begin with `prefix`, as bounds for a range. */
export function under(prefix: string): { readonly start: string; readonly end: string } {
  return { start: prefix, end: `${prefix}\uffff` };
}

/** The prefixes `PREFIX X/` under which an index has keys, each once, at most `limit`, however many keys there are; behind `after`, one of them. */
export function groupsUnder(reader: StoreReader, table: Table, prefix: string, limit = Infinity, after?: string): string[] {
  const groups: string[] = [];
  for (let start = after === undefined ? prefix : `${after}~`; groups.length < limit;) {
    const [entry] = reader.range(table, { start, end: `${prefix}~`, limit: 1 });
    if (entry === undefined) break;
    const group = entry.key.slice(0, entry.key.indexOf('/', prefix.length) + 1);
    groups.push(group);
    start = `${group}~`;
  }
  return groups;
}

/** Of the keys `PREFIX SEQ` under some prefixes of an index: the highest sequences below `before`, highest first, each once. */
export function newestUnder(
  reader: StoreReader,
  table: Table,
  prefixes: readonly string[],
  before: number | undefined,
  limit: number,
): string[] {
  const end = before === undefined ? '~' : seqKey(before);
  let newest: string[] = [];
  for (const prefix of prefixes) {
    // Once there are enough, only what is newer than the oldest of them is of interest.
    const start = newest.length < limit ? prefix : `${prefix}${newest.at(-1)}`;
    const found = reader.range(table, { start, end: `${prefix}${end}`, reverse: true, limit }).map(({ key }) => key.slice(prefix.length));
    if (found.length > 0) newest = [...new Set([...newest, ...found])].toSorted().toReversed().slice(0, limit);
  }
  return newest;
}

/** Of the keys `PREFIX X/SEQ` of an index: the lowest sequence. */
export function oldestUnder(reader: StoreReader, table: Table, prefix: string): string | undefined {
  const firsts = groupsUnder(reader, table, prefix).flatMap((group) => reader.range(table, { ...under(group), limit: 1 }));
  return firsts.map(({ key }) => key.slice(key.lastIndexOf('/') + 1)).toSorted()[0];
}

/** The key of one of several pieces of a body under `prefix`; they sort by index. */
export function pieceKey(prefix: string, index: number): string {
  return `${prefix}/${String(index).padStart(3, '0')}`;
}

/**
 * Where one of several pieces of a received body lies in `inbox_body`. Not under its row's number: pieces come before there is a row, and
 * stay where they are when there is one.
 */
export function bodyKey(sender: string, id: string, index: number): string {
  return pieceKey(`p/${sender}/${id}`, index);
}

/** The key of a logical address (harness and canonical workspace); paths may be longer than a key, so they are hashed. */
export function addressKey(harness: string, workspace: string): string {
  const address = `${harness}\0${workspace}`;
  let key = addressKeys.get(address);
  if (key === undefined) {
    key = createHash('sha256').update(address).digest('hex').slice(0, 40);
    if (addressKeys.size >= KEPT_ROWS) addressKeys.clear();
    addressKeys.set(address, key);
  }
  return key;
}

const addressKeys = new Map<string, string>();
