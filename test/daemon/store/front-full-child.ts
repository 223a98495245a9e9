/** Run by fresh.test.ts under a file size limit: fills the store row by row, then prints how many of 40 tiny writes, one at a time, find no room. */
import assert from 'node:assert/strict';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';

const store = await openLmdbStore(process.argv[2] ?? assert.fail('no folder'));
let rows = 0;
/** Neighbours lie far apart, so that what is moved changes a page for each. */
const next = (): string => String((rows++ * 7919) % 100_003).padStart(6, '0');
const row = new Uint8Array(700);
for (let batch = 0; batch < 10; batch++)
  await store.write((tx) => {
    for (let i = 0; i < 100; i++) tx.put('outbox', next(), row);
  });
for (let isFull = false; !isFull;)
  await store
    .write((tx) => tx.put('outbox', next(), row))
    .catch((error: unknown) => {
      assert.equal((error as { code?: unknown }).code, 'store_full');
      isFull = true;
    });
let refused = 0;
for (let i = 0; i < 40; i++) await store.write((tx) => tx.put('meta', 'tiny', Uint8Array.of(i))).catch(() => void refused++);
const first = store.range('outbox', { limit: 1 })[0]!;
for (let i = 0; i < 400; i++)
  await store.write((tx) => tx.remove('outbox', store.range('outbox', { limit: 1 })[0]!.key)).catch(() => undefined);
for (let i = 0; i < 300; i++) await store.write((tx) => tx.put('seen', String(i), Uint8Array.of(i)));
assert.ok(store.range('fresh').length <= 64 + 1, 'with room what lies in front is moved again');
assert.notDeepEqual(store.range('outbox', { limit: 1 })[0], first);
await store.close();
console.log(`refused ${refused}`);
