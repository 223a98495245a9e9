/**
 * The receipt of an end: what the receiver's host signs when a message was picked up, has expired or was cancelled.
 *
 * Owns one shape, so that pickup, retention and the answer to a sender that asks again all say the same. Signs; stores nothing.
 */
import { encodeSigned } from '../protocol/hashtree.ts';
import type { HostKey } from '../protocol/identity.ts';
import { signReceipt } from '../protocol/receipt.ts';
import type { Received } from './received-row.ts';

/** The encoded, signed receipt of a row as it stands; `now` is wall time, ms. A row that has not ended gives an acceptance. */
export function endReceipt(key: HostKey, row: Received, now: number): Uint8Array {
  const { id, digest, sender, storedAs, state } = row;
  const outcome = state === 'awaiting_setup' || state === 'available' ? 'accepted' : state;
  const at = row.fetchedAt ?? now;
  return encodeSigned(signReceipt(key, { outcome, id, digest, sender, at, state, storedAs, liveSession: false, certain: true }));
}
