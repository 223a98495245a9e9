/**
 * Brings the rows of an older store to the shapes that this code reads: one step for each schema, in order.
 *
 * Owns what changed between two schemas. The store's adapter keeps the old files aside and has the mark of the schema; it knows no record.
 * Each step goes through its rows in small writes and may be begun again at any row: a row that is of the new shape already is left as it
 * is. The mark is raised last, so a crash in between leaves a store that is migrated again. From schema 3 to 4 no row changes: rows may lie in
 * the table `fresh` since, where an older ax would not look for them.
 */
import { MAX_DEADLINE_MS } from '../protocol/limits.ts';
import type { Clock } from './clock/clock.ts';
import type { Log } from './log.ts';
import { addressIndex, endedKeys } from './received-row.ts';
import type { Received } from './received-row.ts';
import { indexKeys, sentFromKeys } from './sent-row.ts';
import type { Sent } from './sent-row.ts';
import { getRow, NOTHING, pack, seqKey, unpack } from './store/rows.ts';
import { STORE_SCHEMA } from './store/store.ts';
import type { OpenedStore, StoreEntry, StoreTransaction, Table } from './store/store.ts';

/** Rows in one write. */
const BATCH = 500;

interface Moment {
  /** Wall time, ms. */
  readonly now: number;
  /** Running time, ms, that the store last noted. */
  readonly ran: number;
}

/** What changes from one schema to the next: every row of one table is looked at, in order. */
interface Step {
  readonly from: number;
  readonly table: Table;
  readonly change: (tx: StoreTransaction, entry: StoreEntry, moment: Moment) => void;
}

const STEPS: readonly Step[] = [
  { from: 1, table: 'outbox', change: outboxTo2 },
  { from: 1, table: 'inbox', change: inboxTo2 },
  { from: 2, table: 'outbox', change: outboxTo3 },
  { from: 2, table: 'inbox', change: inboxTo3 },
];

/** Does nothing to a store of STORE_SCHEMA. Throws what the store does, and leaves the old mark then. */
export async function migrate(store: OpenedStore, clock: Clock, log: Log): Promise<void> {
  const from = store.schema;
  if (from === STORE_SCHEMA) return;
  log.info('the store is of an older schema and is brought to the present one', { from, to: STORE_SCHEMA, kept: store.kept });
  for (let schema = from; schema < STORE_SCHEMA; schema++)
    for (const step of STEPS.filter((one) => one.from === schema)) await walk(store, step, clock.now());
  store.raise();
  log.info('the store was brought to the present schema', { from, to: STORE_SCHEMA, kept: store.kept });
}

async function walk(store: OpenedStore, step: Step, now: number): Promise<void> {
  let after: string | undefined;
  do {
    const start = after;
    after = await store.write((tx) => {
      const moment = { now, ran: getRow<{ ms: number }>(tx, 'meta', 'running')?.ms ?? 0 };
      const rows = tx.range(step.table, { ...(start === undefined ? {} : { start: `${start}\0` }), limit: BATCH });
      for (const row of rows) step.change(tx, row, moment);
      return rows.length < BATCH ? undefined : rows.at(-1)?.key;
    });
  } while (after !== undefined);
}

/** What schema 1 held of a sent message, as far as it changes. */
interface Sent1 extends Pick<Sent, 'seq' | 'origin' | 'agent'> {
  readonly state: string;
  readonly createdAt: number;
  readonly deadline: number;
  readonly createdRan?: number;
}

/**
 * Schema 2: rows know the running time of their send; the refused and the expired ones, and where each was sent from, are indexed. The old rows do
 * not tell that time: the latest that it surely was not before is taken, so that none is tried for longer than it may be.
 */
function outboxTo2(tx: StoreTransaction, entry: StoreEntry, { now, ran }: Moment): void {
  const row = unpack<Sent1>(entry.value);
  if (row.createdRan === undefined) {
    const earliest = Math.max(row.deadline - MAX_DEADLINE_MS, ran - Math.max(0, now - row.createdAt), 0);
    tx.put('outbox', entry.key, pack({ ...row, createdRan: Math.min(earliest, ran, row.deadline) }));
  }
  if (row.state === 'refused' || row.state === 'expired') tx.put('outbox_index', `f/${seqKey(row.seq)}`, NOTHING);
  for (const key of sentFromKeys(row)) tx.put('outbox_index', key, NOTHING);
}

/** Schema 2: what was received is indexed by its address, whether it is unread or not. */
function inboxTo2(tx: StoreTransaction, entry: StoreEntry): void {
  tx.put('inbox_index', addressIndex(unpack<Received>(entry.value)), NOTHING);
}

/** Schema 3: messages are found by their state, and those that expired without an answer by their host. */
function outboxTo3(tx: StoreTransaction, entry: StoreEntry): void {
  for (const key of indexKeys(unpack<Sent>(entry.value))) if (/^[su]\//.test(key)) tx.put('outbox_index', key, NOTHING);
}

/** The same of what was received and is not unread any more. */
function inboxTo3(tx: StoreTransaction, entry: StoreEntry): void {
  for (const key of endedKeys(unpack<Received>(entry.value))) tx.put('inbox_index', key, NOTHING);
}
