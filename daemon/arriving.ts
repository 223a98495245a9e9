/**
 * Half-arrived messages: of a body in several pieces, what a paired host has handed over so far.
 *
 * Owns the table `arriving`: `r/SENDER/ID` is an envelope that was offered and found good, `m/SENDER/ID/INDEX` says that a piece of it is
 * here. The piece itself is in `inbox_body` under the key it keeps for good, so that taking the message copies nothing. Nothing here is a
 * message yet: it is not counted, listed or told of.
 * Invariants: a piece is kept only for an envelope that names its digest; what one host has here is bounded, and the bound costs only what
 * that host offered longest ago.
 */
import type { Envelope } from '../protocol/envelope.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { ARRIVING_KEPT_MS, MAX_ARRIVING_BYTES_PER_PEER, MAX_ARRIVING_PER_PEER } from '../protocol/limits.ts';
import { bodyKey, getRow, NOTHING, pack, pieceKey, under, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface Begun {
  readonly sender: HostId;
  readonly id: MessageId;
  /** Of the envelope that its pieces are judged by. */
  readonly digest: Uint8Array;
  readonly payload: Uint8Array;
  /** Size of the body, and its number of pieces. */
  readonly bytes: number;
  readonly count: number;
  /** Running time, ms, of the last offer. */
  readonly offered: number;
}

const rowKey = (sender: HostId, id: MessageId): string => `r/${sender}/${id}`;
const markKey = (sender: HostId, id: MessageId, index: number): string => pieceKey(`m/${sender}/${id}`, index);

export class Arriving {
  readonly #store: Store;
  readonly #running: () => number;

  constructor(store: Store, running: () => number) {
    this.#store = store;
    this.#running = running;
  }

  get(sender: HostId, id: MessageId, reader: StoreReader = this.#store): Begun | undefined {
    return getRow<Begun>(reader, 'arriving', rowKey(sender, id));
  }

  /** A host offers a message that is not here: notes its envelope, and tells which pieces are missing. Another envelope under its id begins anew. */
  offer(tx: StoreTransaction, sender: HostId, offered: Envelope, payload: Uint8Array, digest: Uint8Array): number[] {
    const { id, bytes } = offered;
    const old = this.get(sender, id, tx);
    if (old !== undefined && Buffer.compare(old.digest, digest) !== 0) this.drop(tx, sender, id);
    const row: Begun = { sender, id, digest, payload, bytes, count: offered.pieces.length, offered: this.#running() };
    this.#makeRoom(tx, row);
    tx.put('arriving', rowKey(sender, id), pack(row));
    const here = new Set(tx.range('arriving', under(`m/${sender}/${id}/`)).map((entry) => entry.key));
    return Array.from({ length: row.count }, (_, index) => index).filter((index) => !here.has(markKey(sender, id, index)));
  }

  /** Keeps a piece that was checked against `begun`. False when that message is not expected any more; one that is here stays as it is. */
  put(tx: StoreTransaction, begun: Begun, index: number, piece: Uint8Array): boolean {
    const { sender, id } = begun;
    const row = this.get(sender, id, tx);
    if (row === undefined || Buffer.compare(row.digest, begun.digest) !== 0) return false;
    const mark = markKey(sender, id, index);
    if (tx.get('arriving', mark) !== undefined) return true;
    tx.put('arriving', mark, NOTHING);
    tx.put('inbox_body', bodyKey(sender, id, index), piece);
    return true;
  }

  /** The message is taken, in this transaction: its pieces are the inbox's from here on. */
  settle(tx: StoreTransaction, sender: HostId, id: MessageId): void {
    for (const { key } of tx.range('arriving', under(`m/${sender}/${id}/`))) tx.remove('arriving', key);
    tx.remove('arriving', rowKey(sender, id));
  }

  /** The message will not be taken: what is here of it goes. */
  drop(tx: StoreTransaction, sender: HostId, id: MessageId): void {
    const row = this.get(sender, id, tx);
    if (row === undefined) return;
    for (let index = 0; index < row.count; index++) tx.remove('inbox_body', bodyKey(sender, id, index));
    this.settle(tx, sender, id);
  }

  /** Is there something that `prune` would drop? `isPaired`: what a host that was removed has here goes too. */
  isDue(isPaired: (host: HostId) => boolean): boolean {
    return this.#due(this.#store, isPaired).length > 0;
  }

  /** Drops what was not offered for ARRIVING_KEPT_MS; one message at a time. Returns how many. */
  prune(tx: StoreTransaction, isPaired: (host: HostId) => boolean): number {
    const [first] = this.#due(tx, isPaired);
    if (first === undefined) return 0;
    this.drop(tx, first.sender, first.id);
    return 1;
  }

  #due(reader: StoreReader, isPaired: (host: HostId) => boolean): Begun[] {
    const rows = reader.range('arriving', under('r/')).map((entry) => unpack<Begun>(entry.value));
    return rows.filter((row) => row.offered + ARRIVING_KEPT_MS <= this.#running() || !isPaired(row.sender));
  }

  /** Room for one more of a host, made by dropping what it offered longest ago. */
  #makeRoom(tx: StoreTransaction, fresh: Begun): void {
    const others = tx
      .range('arriving', under(`r/${fresh.sender}/`))
      .map((entry) => unpack<Begun>(entry.value))
      .filter((row) => row.id !== fresh.id)
      .toSorted((a, b) => b.offered - a.offered);
    let left = MAX_ARRIVING_BYTES_PER_PEER - fresh.bytes;
    for (const [at, row] of others.entries()) {
      left -= row.bytes;
      if (left < 0 || at >= MAX_ARRIVING_PER_PEER - 1) this.drop(tx, row.sender, row.id);
    }
  }
}
