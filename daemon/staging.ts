/**
 * Pieces of a message that is being stored for sending: each is durable by itself before the message is there.
 *
 * Owns the marks `s/ID` in the table `arriving`; a mark is there as long as the message is not. One large transaction would hold up
 * everything that is committed with it. A crash in between leaves pieces without a message: `prune` finds them by their mark.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import { AxError } from '../protocol/errors.ts';
import { STAGED_KEPT_MS } from '../protocol/limits.ts';
import { bodyKey, pack, pieceKey, under, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

/** A message that is being stored; `local` is the id of this host when the message stays here. */
export interface Staged {
  readonly id: MessageId;
  readonly count: number;
  readonly local: HostId | null;
}

const PREFIX = 's/';

export class Staging {
  readonly #store: Store;
  readonly #running: () => number;

  constructor(store: Store, running: () => number) {
    this.#store = store;
    this.#running = running;
  }

  /** Stores one piece; the first is stored before the others. */
  put(tx: StoreTransaction, staged: Staged, index: number, piece: Uint8Array): void {
    if (index === 0) tx.put('arriving', `${PREFIX}${staged.id}`, pack({ ...staged, ran: this.#running() }));
    const [table, key] = placeOf(staged, index);
    tx.put(table, key, piece);
  }

  /** The message is stored, in this transaction. AxError `busy` when its pieces were taken for left over meanwhile. */
  settle(tx: StoreTransaction, staged: Staged): void {
    if (tx.get('arriving', `${PREFIX}${staged.id}`) === undefined) throw new AxError('busy', 'storing the message took too long');
    tx.remove('arriving', `${PREFIX}${staged.id}`);
  }

  /** The message will not be stored. */
  drop(tx: StoreTransaction, staged: Staged): void {
    for (let index = 0; index < staged.count; index++) {
      const [table, key] = placeOf(staged, index);
      tx.remove(table, key);
    }
    tx.remove('arriving', `${PREFIX}${staged.id}`);
  }

  isDue(): boolean {
    return this.#due(this.#store).length > 0;
  }

  /** Removes the pieces of one message that nobody stores any more. Returns how many messages. */
  prune(tx: StoreTransaction): number {
    const [first] = this.#due(tx);
    if (first === undefined) return 0;
    this.drop(tx, first);
    return 1;
  }

  #due(reader: StoreReader): Staged[] {
    const rows = reader.range('arriving', under(PREFIX)).map((entry) => unpack<Staged & { readonly ran: number }>(entry.value));
    return rows.filter((row) => row.ran + STAGED_KEPT_MS <= this.#running());
  }
}

function placeOf({ id, local }: Staged, index: number): ['inbox_body' | 'outbox_body', string] {
  return local === null ? ['outbox_body', pieceKey(id, index)] : ['inbox_body', bodyKey(local, id, index)];
}
