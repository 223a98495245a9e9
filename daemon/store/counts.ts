/**
 * Counts: how many entries stand under a prefix of an index, and how many rows are in which state, without walking them.
 *
 * Owns the keys `count/TABLE/PREFIX` and `tally/NAME` in the table `meta`; whoever puts or removes the entries says so here in the same
 * transaction, before it does. A count that is not kept (none there yet, or an older store) is walked once and kept from then on.
 */
import { getRow, putNumbers, under } from './rows.ts';
import type { StoreReader, StoreTransaction, Table } from './store.ts';

/** How many entries of `table` begin with `prefix`. */
export function counted(reader: StoreReader, table: Table, prefix: string): number {
  return getRow<{ n: number }>(reader, 'meta', countKey(table, prefix))?.n ?? reader.count(table, under(prefix));
}

/**
 * Says that an entry under `prefix` is about to be put (1) or removed (-1). None is not kept, so that what once had entries leaves nothing
 * behind, unless `keepsNone`: for few prefixes that have one entry and none by turns.
 */
export function count(tx: StoreTransaction, table: Table, prefix: string, by: 1 | -1, keepsNone = false): void {
  const n = counted(tx, table, prefix) + by;
  if (n > 0 || keepsNone) putNumbers(tx, 'meta', countKey(table, prefix), { n });
  else tx.remove('meta', countKey(table, prefix));
}

function countKey(table: Table, prefix: string): string {
  return `count/${table}/${prefix}`;
}

/** Numbers by state. */
export type Tally<State extends string> = Readonly<Record<State, number>>;

/** A tally as it is kept, or as `walk` finds it. */
export function tallied<State extends string>(reader: StoreReader, name: string, walk: () => Tally<State>): Tally<State> {
  return getRow<Tally<State>>(reader, 'meta', `tally/${name}`) ?? walk();
}

/** Says that a row is about to leave the states `from` and be in `to`. */
export function tally<State extends string>(
  tx: StoreTransaction,
  name: string,
  from: readonly State[],
  to: readonly State[],
  walk: () => Tally<State>,
): void {
  const left = from.filter((state) => !to.includes(state));
  const entered = to.filter((state) => !from.includes(state));
  if (left.length + entered.length === 0) return;
  const next: Record<State, number> = { ...tallied(tx, name, walk) };
  for (const state of left) next[state] = Math.max(0, next[state] - 1);
  for (const state of entered) next[state] += 1;
  putNumbers(tx, 'meta', `tally/${name}`, next);
}
