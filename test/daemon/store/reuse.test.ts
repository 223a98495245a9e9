/**
 * Freed space is used again: 100,000 messages are stored as the inbox stores them, forgotten in the small steps of retention, and as many
 * again go into the same file.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';
import { NOTHING, seqKey } from '../../../daemon/store/rows.ts';
import type { StoreTransaction, Table } from '../../../daemon/store/store.ts';

const MESSAGES = 100_000;
const AT_ONCE = 1000;

/** The entries of one message: its row, its body, and where the indexes find it. */
function entriesOf(n: number): readonly (readonly [Table, string, number])[] {
  const seq = seqKey(n);
  return [
    ['inbox', seq, 700],
    ['inbox_body', seq, 300],
    ['inbox_index', `i/01m8mhegnfnzbrv${seq}/12D3KooWGSXjgfvMg8GSAmru5tYiCodRmwZCYfAhbEGi2o2R5dy2`, 12],
    ['inbox_index', `x/${seq}/${seq}`, 0],
  ];
}

test('a store that held 100,000 messages and pruned them takes as many again without growing', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'ax-reuse-'));
  const store = await openLmdbStore(join(folder, 'store'));
  t.after(async () => {
    await store.close();
    rmSync(folder, { recursive: true });
  });
  const each = async (from: number, change: (tx: StoreTransaction, table: Table, key: string, bytes: number) => void): Promise<void> => {
    for (let at = from; at < from + MESSAGES; at += AT_ONCE)
      await store.write((tx) => {
        for (let n = at; n < at + AT_ONCE; n++) for (const [table, key, bytes] of entriesOf(n)) change(tx, table, key, bytes);
      });
  };
  const take = (from: number): Promise<void> =>
    each(from, (tx, table, key, bytes) => tx.put(table, key, bytes === 0 ? NOTHING : new Uint8Array(bytes).fill(from & 0xff)));
  const forget = (from: number): Promise<void> => each(from, (tx, table, key) => tx.remove(table, key));
  await take(0);
  const { bytes: full } = store.status();
  await forget(0);
  assert.equal(store.status().entries, 0);
  const { bytes: empty } = store.status();
  await take(MESSAGES);
  const { bytes: again } = store.status();
  assert.equal(store.count('inbox'), MESSAGES);
  t.diagnostic(`${Math.round(full / 1e6)} MB full, ${Math.round(empty / 1e6)} MB pruned, ${Math.round(again / 1e6)} MB full again`);
  assert.equal(again <= full * 1.05, true, `${full} bytes became ${again}`);
});
