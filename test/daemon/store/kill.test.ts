/** A process that dies by SIGKILL loses no acknowledged record and leaves none half-written. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';
import type { Store } from '../../../daemon/store/store.ts';

const folder = mkdtempSync(join(tmpdir(), 'ax-kill-'));
after(() => rmSync(folder, { recursive: true, force: true }));

/** Starts so many writers in one process, kills it when it has acknowledged `killAt` records, and returns all keys it acknowledged. */
async function killedWriter(round: number, killAt: number, writers: number): Promise<string[]> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'kill-child.ts'), folder, String(round), String(writers)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let text = '';
  child.stdout.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk;
    if (text.length > killAt * 11) child.kill('SIGKILL');
  });
  const [, signal] = await once(child, 'close');
  assert.equal(signal, 'SIGKILL');
  return text.split('\n').slice(0, -1);
}

/** Every record present is whole: its digest and its seen row are there and fit. Returns the keys found. */
function wholeRecords(store: Store): Set<string> {
  const bodies = store.range('inbox_body');
  for (const { key, value } of bodies) {
    assert.deepEqual(store.get('inbox', key), new Uint8Array(createHash('sha256').update(value).digest()), key);
    assert.deepEqual(store.get('seen', key), new Uint8Array(), key);
  }
  assert.equal(store.count('inbox'), bodies.length);
  assert.equal(store.count('seen'), bodies.length);
  return new Set(bodies.map((entry) => entry.key));
}

test('after kill -9 at random points every acknowledged record is there, whole, and none is half-written', async (t) => {
  let acknowledged = 0;
  for (let round = 0; round < 8; round++) {
    const killAt = 1 + Math.floor(Math.random() * 1_500);
    const keys = await killedWriter(round, killAt, round % 2 === 0 ? 64 : 2); // what few write goes by way of `fresh`
    const store = await openLmdbStore(folder);
    const found = wholeRecords(store);
    const lost = keys.filter((key) => !found.has(key));
    assert.deepEqual(lost, [], `round ${round}, killed at ${killAt}`);
    acknowledged += keys.length;
    // What the earlier rounds left is taken away, so that later ones write into reused pages.
    await store.write((tx) =>
      [...found].forEach((key) => (['inbox_body', 'inbox', 'seen'] as const).forEach((table) => tx.remove(table, key))),
    );
    await store.close();
  }
  t.diagnostic(`${acknowledged} acknowledged records, none lost`);
  assert.ok(acknowledged >= 5);
});
