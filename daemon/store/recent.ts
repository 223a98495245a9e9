/**
 * What commits put last, as it was put: a row that is read soon after it was written needs neither LMDB nor a decoding.
 *
 * Owns what is kept of it and for how long: small values, some hundreds a table. There is one writer, so nothing here is ever out of date.
 * Invariant: it holds nothing that is not on disk. What a commit writes is forgotten before it is, and taken once it is flushed.
 */
import type { Written } from './overlay.ts';
import type { LateValue, Table } from './store.ts';

/** Of a table are kept this many, up to twice as many. */
const KEPT = 256;
const MAX_BYTES = 2048;
/** Of these what was just written is soon read again. */
const TABLES: readonly Table[] = ['meta', 'peers', 'agents', 'outbox', 'outbox_index', 'outbox_body', 'inbox', 'inbox_index', 'fresh'];

type Values = Map<string, Uint8Array | LateValue>;

export class Recent {
  readonly #tables = new Map(TABLES.map((table): [Table, { young: Values; old: Values }] => [table, { young: new Map(), old: new Map() }]));

  get(table: Table, key: string): Uint8Array | LateValue | undefined {
    const kept = this.#tables.get(table);
    return kept === undefined ? undefined : (kept.young.get(key) ?? kept.old.get(key));
  }

  forget(table: Table, key: string): void {
    const kept = this.#tables.get(table);
    kept?.young.delete(key);
    kept?.old.delete(key);
  }

  /** It is on disk from now on. */
  take(table: Table, key: string, written: Written): void {
    if (written === null || (written instanceof Uint8Array && (written.length === 0 || written.length > MAX_BYTES))) return;
    const kept = this.#tables.get(table);
    if (kept === undefined) return;
    if (kept.young.size >= KEPT) {
      kept.old = kept.young;
      kept.young = new Map();
    }
    kept.young.set(key, written);
  }
}
