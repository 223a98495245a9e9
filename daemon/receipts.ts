/**
 * The receipt outbox: signed receipts that the sender's host has not acknowledged yet.
 *
 * Owns the table `receipts`, ordered per host. A row is written in the transaction of the state it tells (pickup, expiry)
 * and removed only when the sender's host has said that it stored it. Acceptance is not here: it is the answer itself.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import { nextSeq, pack, seqKey, under, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface PendingReceipt {
  readonly key: string;
  readonly id: MessageId;
  /** An encoded signed item. */
  readonly signed: Uint8Array;
}

export class Receipts {
  readonly #store: Store;

  constructor(store: Store) {
    this.#store = store;
  }

  add(tx: StoreTransaction, host: HostId, id: MessageId, signed: Uint8Array): void {
    tx.put('receipts', `${host}/${seqKey(nextSeq(tx, 'receipts'))}`, pack({ id, signed }));
  }

  /** The oldest receipts that wait for a host. */
  pending(host: HostId, limit: number, reader: StoreReader = this.#store): PendingReceipt[] {
    return reader
      .range('receipts', { ...under(`${host}/`), limit })
      .map((entry) => ({ key: entry.key, ...unpack<Omit<PendingReceipt, 'key'>>(entry.value) }));
  }

  done(tx: StoreTransaction, receipt: PendingReceipt): void {
    tx.remove('receipts', receipt.key);
  }

  /** Drops what waits for a host that was removed. */
  drop(tx: StoreTransaction, host: HostId): void {
    for (const entry of tx.range('receipts', under(`${host}/`))) tx.remove('receipts', entry.key);
  }
}
