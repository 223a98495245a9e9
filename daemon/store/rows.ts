/**
 * How rows and ordered keys look in the store: CBOR records and zero-padded sequence numbers.
 *
 * Owns the encoding only; each table's rows belong to the one state owner that writes them. Records are ax's own bytes, so
 * their shape is trusted after decoding; a record that does not decode is a corrupt store.
 */
import { createHash } from 'node:crypto';
import { decode, encode } from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import type { StoreReader, StoreTransaction, Table } from './store.ts';

const DIGITS = 15;
export const NOTHING = new Uint8Array(0);

/** A whole number as a key that sorts by its value. */
export function seqKey(seq: number): string {
  return String(seq).padStart(DIGITS, '0');
}

export function pack(row: object): Uint8Array {
  return encode(row);
}

export function unpack<T>(bytes: Uint8Array): T {
  try {
    return decode(bytes) as T;
  } catch (error) {
    throw new AxError('store_corrupt', 'a record of the store cannot be read', { cause: error });
  }
}

export function getRow<T>(reader: StoreReader, table: Table, key: string): T | undefined {
  const bytes = reader.get(table, key);
  return bytes === undefined ? undefined : unpack<T>(bytes);
}

/** The next number of a named sequence, from 1; taken for good when the transaction commits. */
export function nextSeq(tx: StoreTransaction, name: string): number {
  const next = lastSeq(tx, name) + 1;
  tx.put('meta', `seq/${name}`, pack({ last: next }));
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
  tx.put('meta', 'running', pack({ ms }));
}

/** Keys that begin with `prefix`, as bounds for a range. */
export function under(prefix: string): { readonly start: string; readonly end: string } {
  return { start: prefix, end: `${prefix}\uffff` };
}

/** The key of a logical address (harness and canonical workspace); paths may be longer than a key, so they are hashed. */
export function addressKey(harness: string, workspace: string): string {
  return createHash('sha256').update(`${harness}\0${workspace}`).digest('hex').slice(0, 40);
}
