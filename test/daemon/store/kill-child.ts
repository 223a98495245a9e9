/** Run by kill.test.ts: some writers without end; prints the key of each record only after its write has resolved. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { writeSync } from 'node:fs';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';

const [folder, round, writers] = process.argv.slice(2);
const store = await openLmdbStore(folder ?? assert.fail('no folder'));
let next = 0;

async function writer(): Promise<never> {
  for (;;) {
    const key = `${round}-${String(next++).padStart(8, '0')}`;
    const body = Buffer.alloc(200 + ((next * 7919) % 20_000), key);
    await store.write((tx) => {
      tx.put('inbox_body', key, body);
      tx.put('inbox', key, createHash('sha256').update(body).digest());
      tx.put('seen', key, new Uint8Array());
    });
    // Synchronously, so that a printed key is in the pipe before the process can die.
    writeSync(1, `${key}\n`);
  }
}

await Promise.all(Array.from({ length: Number(writers) }, writer));
