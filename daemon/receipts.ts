/**
 * The receipt outbox: signed receipts that the sender's host has not acknowledged yet.
 *
 * Owns the table `receipts`: `HOST/SEQ` in order, `i/HOST/ID` to find one. A row is written in the transaction of the state it tells (pickup, expiry)
 * and removed only when the sender's host has said that it stored it. Acceptance is not here: it is the answer itself.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import { nextSeq, NOTHING, pack, seqKey, under, unpack } from './store/rows.ts';
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
    const key = `${host}/${seqKey(nextSeq(tx, 'receipts'))}`;
    tx.put('receipts', key, pack({ id, signed }));
    tx.put('receipts', `i/${host}/${id}`, NOTHING);
  }

  /** A receipt about this message waits for the host. */
  has(host: HostId, id: MessageId, reader: StoreReader = this.#store): boolean {
    return reader.get('receipts', `i/${host}/${id}`) !== undefined;
  }

  /** The oldest receipts that wait for a host. */
  pending(host: HostId, limit: number, reader: StoreReader = this.#store): PendingReceipt[] {
    return reader
      .range('receipts', { ...under(`${host}/`), limit })
      .map((entry) => ({ key: entry.key, ...unpack<Omit<PendingReceipt, 'key'>>(entry.value) }));
  }

  done(tx: StoreTransaction, receipt: PendingReceipt): void {
    tx.remove('receipts', receipt.key);
    tx.remove('receipts', `i/${receipt.key.slice(0, receipt.key.indexOf('/'))}/${receipt.id}`);
  }

  /** Drops what waits for a host that was removed. */
  drop(tx: StoreTransaction, host: HostId): void {
    for (const prefix of [`${host}/`, `i/${host}/`])
      for (const entry of tx.range('receipts', under(prefix))) tx.remove('receipts', entry.key);
  }
}
