/** Run by lmdb.test.ts under a file size limit of about 2 MB: fills the store, fails, and goes on. Ends with 1 at anything unhandled. */
import assert from 'node:assert/strict';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';

const store = await openLmdbStore(process.argv[2] ?? assert.fail('no folder'));
const big = (fill: number): Uint8Array => new Uint8Array(700_000).fill(fill);
await store.write((tx) => {
  tx.put('inbox_body', 'first', big(1));
  tx.put('meta', 'state', Uint8Array.of(1));
});

let full = 0;
for (let round = 0; round < 3; round++) {
  const both = [
    store.write((tx) => {
      tx.put('inbox_body', 'second', big(2).fill(round));
      tx.put('meta', 'state', Uint8Array.of(2));
      tx.put('meta', 'new', Uint8Array.of(2));
    }),
    store.write((tx) => tx.put('inbox_body', 'third', new Uint8Array(1_500_000))),
  ];
  const ends = await Promise.allSettled(both);
  for (const end of ends) assert.ok(end.status === 'rejected' && end.reason.code === 'store_full', JSON.stringify(end));
  assert.equal(store.get('inbox_body', 'second'), undefined);
  assert.equal(store.count('inbox_body'), 1);
  assert.deepEqual([store.get('meta', 'state'), store.get('meta', 'new')], [Uint8Array.of(1), undefined]);
  full++;
}
console.log(`full ${full}`);

await store.write((tx) => tx.put('inbox', 'small', Uint8Array.of(1)));
assert.deepEqual(store.get('inbox', 'small'), Uint8Array.of(1));
console.log('small ok');

await store.write((tx) => tx.remove('inbox_body', 'first'));
for (let i = 0; i < 3; i++) await store.write((tx) => tx.put('events', `e${i}`, new Uint8Array(100)));
await store.write((tx) => tx.put('inbox_body', 'second', big(2)));
await store.close();

const again = await openLmdbStore(process.argv[2] ?? '');
assert.deepEqual(
  again.range('inbox_body').map((entry) => entry.key),
  ['second'],
);
assert.equal(again.count('events'), 3);
await again.close();
console.log('room ok');
