/**
 * Weights: how much of the store each peer takes, counted where it is written.
 *
 * Owns the keys `waiting/HOST` (unread messages and their bodies) and `kept/HOST` (everything of a peer that is stored, read or ended
 * too) in the table `meta`, and their bounds. Counted in the transaction of the change, so that a bound holds over crashes.
 */
import { AxError } from '../../protocol/errors.ts';
import { RETRY_CAP_MS } from '../../protocol/limits.ts';
import type { Limits } from '../../protocol/limits.ts';
import { SEAL_OVERHEAD } from '../../protocol/seal.ts';
import { getRow, putNumbers } from './rows.ts';
import type { StoreReader, StoreTransaction } from './store.ts';

/** Adds to what a peer takes, or takes away from it. AxError `limit` when an addition would pass a bound. */
export function weigh(tx: StoreTransaction, limits: Limits, what: 'waiting' | 'kept', host: string, messages: number, bytes: number): void {
  putNumbers(tx, 'meta', `${what}/${host}`, weighed(tx, limits, what, host, messages, bytes));
}

/** What `weigh` would put, or throw; changes nothing. */
export function weighed(
  reader: StoreReader,
  limits: Limits,
  what: 'waiting' | 'kept',
  host: string,
  messages: number,
  bytes: number,
): { readonly messages: number; readonly bytes: number } {
  const bound =
    what === 'waiting'
      ? { messages: limits.waitingMessages, bytes: limits.waitingBytes, words: 'are unread here' }
      : { messages: limits.keptMessages, bytes: limits.keptBytes, words: 'are kept here' };
  const old = getRow<{ messages: number; bytes: number }>(reader, 'meta', `${what}/${host}`) ?? { messages: 0, bytes: 0 };
  const next = { messages: Math.max(0, old.messages + messages), bytes: Math.max(0, old.bytes + bytes) };
  const over = next.messages > bound.messages ? bound.messages : next.bytes > bound.bytes ? bound.bytes : undefined;
  if (over !== undefined && messages > 0) {
    throw new AxError('limit', `${old.messages} messages with ${old.bytes} bytes from that host ${bound.words}; the bound is ${over}`, {
      details: { limit: over, retry_after_ms: RETRY_CAP_MS },
    });
  }
  return next;
}

/** What a message weighs on the disk beside its body, bytes: the envelope, and about as much as row, indexes and events take. */
export function weightOf(signed: Uint8Array): number {
  return signed.length + 1024;
}

interface Weighed {
  readonly signed: Uint8Array;
  readonly bytes: number;
  readonly pieces?: number;
}

/** Size of a sealed body, bytes. */
export function sealedBytes({ bytes, pieces = 1 }: Pick<Weighed, 'bytes' | 'pieces'>): number {
  return bytes + pieces * SEAL_OVERHEAD;
}

/** What a message weighs: as one that is unread, and as one that is kept, bytes. */
export function weightsOf(row: Weighed): readonly (readonly ['waiting' | 'kept', number])[] {
  return [
    ['waiting', row.bytes],
    ['kept', weightOf(row.signed) + sealedBytes(row)],
  ];
}
