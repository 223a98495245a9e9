/**
 * What one simulated disk holds, read row by row as the checker asks: the outbox, inbox, ids seen, peers and events of a host.
 *
 * Owns the way from an id to its row in a flushed image; decides nothing. Rows are decoded only when they are looked at.
 */
import type { Event } from '../../daemon/events.ts';
import type { Received } from '../../daemon/received-row.ts';
import type { Attempt } from '../../daemon/notices.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import type { Peer } from '../../daemon/peers.ts';
import { seqKey, unpack } from '../../daemon/store/rows.ts';
import type { StoreEntry, Table } from '../../daemon/store/store.ts';
import type { StoreImage } from './store.ts';

export class Disk {
  readonly #image: StoreImage | undefined;

  constructor(image: StoreImage | undefined) {
    this.#image = image;
  }

  sent(id: string): Sent | undefined {
    const pointer = this.row<{ seq: number }>('outbox_index', `i/${id}`);
    return pointer === undefined ? undefined : this.row<Sent>('outbox', seqKey(pointer.seq));
  }

  received(sender: string, id: string): Received | undefined {
    const pointer = this.row<{ seq: number }>('inbox_index', `i/${id}/${sender}`);
    return pointer === undefined ? undefined : this.row<Received>('inbox', seqKey(pointer.seq));
  }

  seen(sender: string, id: string): { readonly tombstone: boolean } | undefined {
    return this.row('seen', `${sender}/${id}`);
  }

  peer(host: string): Peer | undefined {
    return this.row('peers', host);
  }

  allSent(): Sent[] {
    return this.#all<Sent>('outbox');
  }

  allReceived(): Received[] {
    return this.#all<Received>('inbox');
  }

  attempts(): Attempt[] {
    const entries = this.#image?.get('notices')?.range({ start: 'a/', end: 'a/~' }) ?? [];
    return entries.map((entry) => unpack<Attempt>(entry.value));
  }

  events(): Event[] {
    const entries = this.#image?.get('events')?.range({ start: 'e/', end: 'e/~' }) ?? [];
    return entries.map((entry) => unpack<Event>(entry.value));
  }

  /** How often a host was removed here; it may have been added again. */
  removals(host: string): number {
    return this.events().filter((event) => event.type === 'host.removed' && event.hostId === host).length;
  }

  has(table: Table, key: string): boolean {
    return this.#image?.get(table)?.get(key) !== undefined;
  }

  /** The entries whose keys begin with `start`. */
  entries(table: Table, start: string): readonly StoreEntry[] {
    return this.#image?.get(table)?.range({ start, end: `${start}\uffff` }) ?? [];
  }

  count(table: Table, start: string): number {
    return this.#image?.get(table)?.keys({ start, end: `${start}\uffff` }).length ?? 0;
  }

  row<T>(table: Table, key: string): T | undefined {
    const bytes = this.#image?.get(table)?.get(key);
    return bytes === undefined ? undefined : unpack<T>(bytes);
  }

  #all<T>(table: Table): T[] {
    return (this.#image?.get(table)?.range({}) ?? []).map((entry) => unpack<T>(entry.value));
  }
}
