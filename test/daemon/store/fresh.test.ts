/** The table in front of the large ones: read as if all lay in its place, emptied in time, and a small write changes few pages. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';
import type { LmdbOptions } from '../../../daemon/store/lmdb.ts';
import { seqKey } from '../../../daemon/store/rows.ts';
import { compareKeys, MAX_KEY_BYTES } from '../../../daemon/store/store.ts';
import type { OpenedStore, RangeOptions, StoreTransaction, Table } from '../../../daemon/store/store.ts';

const PAGE = 8192;
/** More at the same time than go by way of `fresh`. */
const CROWD = 3;

const base = mkdtempSync(join(tmpdir(), 'ax-fresh-'));
after(() => rmSync(base, { recursive: true, force: true }));
let made = 0;

async function opened(options: LmdbOptions = {}): Promise<{ readonly folder: string; readonly store: OpenedStore }> {
  const folder = join(base, String(made++));
  return { folder, store: await openLmdbStore(folder, options) };
}

const value = (fill: number, size = 20): Uint8Array => new Uint8Array(size).fill(fill);
const inFront = (store: OpenedStore): string[] => store.range('fresh').map(({ key }) => key);
const keysOf = (store: OpenedStore, table: Table, options?: RangeOptions): string[] => store.range(table, options).map(({ key }) => key);

/** Writes as one of many at the same time. */
async function among(store: OpenedStore, decide: (tx: StoreTransaction) => void): Promise<void> {
  await Promise.all([store.write(decide), ...Array.from({ length: CROWD }, () => store.write(() => undefined))]);
}

/** Resolves when whatever moves by itself has moved, and no crowd is remembered. */
async function settled(store: OpenedStore): Promise<void> {
  for (let turn = 0; turn < CROWD + 3; turn++) await store.write(() => undefined);
}

test('what few write lies in front and is read as in its place, also by the next life', async () => {
  const { folder, store } = await opened();
  await store.write((tx) => ['b', 'a', 'c'].forEach((key, i) => tx.put('outbox', key, value(i))));
  assert.deepEqual(inFront(store).length, 3);
  const look = (one: OpenedStore): unknown => [
    one.get('outbox', 'a'),
    one.range('outbox', { reverse: true, limit: 2 }),
    one.count('outbox', { start: 'b' }),
    one.get('inbox', 'a'),
    one.range('inbox'),
  ];
  const seen = [
    value(1),
    [
      { key: 'c', value: value(2) },
      { key: 'b', value: value(0) },
    ],
    2,
    undefined,
    [],
  ];
  assert.deepEqual(look(store), seen);
  await store.close();
  const again = await openLmdbStore(folder);
  assert.deepEqual([inFront(again).length, look(again)], [3, seen]);
  await again.close();
});

test('what many write at the same time goes straight to its place, and what lay in front is moved there', async () => {
  const { store } = await opened();
  await store.write((tx) => tx.put('events', 'alone', value(1)));
  assert.equal(inFront(store).length, 1);
  await among(store, (tx) => tx.put('events', 'together', value(2)));
  await settled(store);
  assert.deepEqual([inFront(store), keysOf(store, 'events')], [[], ['alone', 'together']]);
  await store.close();
});

test('after a crowd as many more go straight to their place, for under load some come alone too', async () => {
  const { store } = await opened();
  await among(store, () => undefined);
  const found: number[] = [];
  for (let n = 0; n <= CROWD + 1; n++) {
    await store.write((tx) => tx.put('events', String(n), value(n)));
    found.push(inFront(store).length);
  }
  assert.deepEqual(found, [...Array.from({ length: CROWD + 1 }, () => 0), 1]);
  await store.close();
});

test('the front never holds many keys, and a large job or a large value does not go there', async () => {
  const { store } = await opened();
  let most = 0;
  for (let n = 0; n < 300; n++) {
    await store.write((tx) => tx.put('inbox', seqKey(n), value(n)));
    most = Math.max(most, inFront(store).length);
  }
  assert.equal(most > 10 && most < 100, true, String(most));
  await among(store, () => undefined);
  await settled(store);
  await store.write((tx) => tx.put('inbox_body', 'large', value(1, 5000)));
  assert.deepEqual(inFront(store), []);
  await store.write((tx) => {
    for (let n = 0; n < 500; n++) tx.put('requests', seqKey(n), value(n));
  });
  assert.equal(inFront(store).length < 100, true);
  assert.deepEqual([store.count('inbox'), store.count('requests')], [300, 500]);
  await store.close();
});

test('what lies in front counts over what lies behind, and what is removed is gone from both', async () => {
  const { folder, store } = await opened();
  await among(store, (tx) => ['a', 'b', 'c'].forEach((key) => tx.put('seen', key, value(1))));
  await settled(store);
  await store.write((tx) => {
    tx.put('seen', 'a', value(2));
    tx.put('seen', 'b', value(2));
    assert.deepEqual([tx.get('seen', 'a'), tx.count('seen'), tx.range('seen', { limit: 1 })[0]?.value], [value(2), 3, value(2)]);
  });
  assert.deepEqual([inFront(store).length, store.count('seen')], [2, 3]);
  await store.write((tx) => tx.remove('seen', 'a'));
  assert.deepEqual([store.get('seen', 'a'), keysOf(store, 'seen'), inFront(store).length], [undefined, ['b', 'c'], 1]);
  // A write among many overwrites what lies in front as well.
  await among(store, (tx) => tx.put('seen', 'b', value(3)));
  await settled(store);
  await store.close();
  const again = await openLmdbStore(folder);
  assert.deepEqual(
    again.range('seen').map((entry) => [entry.key, entry.value[0]]),
    [
      ['b', 3],
      ['c', 1],
    ],
  );
  await again.close();
});

test('a job that throws leaves nothing in front and takes nothing from there', async () => {
  const { store } = await opened();
  await store.write((tx) => tx.put('outbox', 'kept', value(1)));
  await assert.rejects(
    store.write((tx) => {
      tx.put('outbox', 'new', value(2));
      tx.put('outbox', 'kept', value(2));
      tx.remove('outbox', 'kept');
      throw new Error('no');
    }),
    /no/,
  );
  assert.deepEqual([store.range('outbox'), inFront(store).length], [[{ key: 'kept', value: value(1) }], 1]);
  await store.close();
});

test('a key of any length and any text is found again', async () => {
  const { store } = await opened();
  const keys = [1, 132, 133, 134, 398, 399, 400].flatMap((length) => ['x'.repeat(length), 'é'.repeat(Math.ceil(length / 2))]);
  for (const key of keys.filter((one) => Buffer.byteLength(one) <= MAX_KEY_BYTES))
    await store.write((tx) => tx.put('outbox_index', key, value(key.length)));
  for (const key of keys.filter((one) => Buffer.byteLength(one) <= MAX_KEY_BYTES))
    assert.deepEqual(store.get('outbox_index', key), value(key.length), String(key.length));
  for (const bad of ['', '\ud800', 'x'.repeat(401)]) {
    assert.throws(() => store.get('outbox', bad), RangeError);
    await assert.rejects(
      store.write((tx) => tx.put('outbox', bad, value(1))),
      RangeError,
    );
  }
  await store.close();
});

test('a store at its limit still lets go of what lies in front', async () => {
  const { store } = await opened({ sizeLimitBytes: 400_000 });
  const stored: string[] = [];
  const put = async (): Promise<void> => {
    for (;;) {
      const key = seqKey(stored.length);
      await store.write((tx) => tx.put('inbox_body', key, value(1, 2000)));
      stored.push(key);
    }
  };
  await assert.rejects(put(), { code: 'store_full' });
  assert.equal(stored.length > 50, true);
  for (const key of stored) await store.write((tx) => tx.remove('inbox_body', key));
  assert.deepEqual([store.count('inbox_body'), inFront(store)], [0, []]);
  await store.close();
});

/** The pages of a file that differ from what it was. */
function changedPages(before: Buffer, now: Buffer): number {
  let changed = 0;
  for (let at = 0; at < now.length; at += PAGE)
    if (Buffer.compare(before.subarray(at, at + PAGE), now.subarray(at, at + PAGE)) !== 0) changed++;
  return changed;
}

test('a write of a few keys in many places changes few pages, however large the tables are', async () => {
  const { folder, store } = await opened();
  const prefixes = Array.from({ length: 10 }, (_, n) => `${n}/${'k'.repeat(80)}/`);
  for (let from = 0; from < 3000; from += 500)
    await among(store, (tx) => {
      for (let n = from; n < from + 500; n++) for (const prefix of prefixes) tx.put('outbox_index', `${prefix}${seqKey(n)}`, value(n));
    });
  const file = (): Buffer => readFileSync(join(folder, 'data.mdb'));
  const changedBy = async (write: (decide: (tx: StoreTransaction) => void) => Promise<unknown>, n: number): Promise<number> => {
    const before = file();
    await write((tx) => prefixes.forEach((prefix) => tx.put('outbox_index', `${prefix}${seqKey(n)}`, value(n))));
    return changedPages(before, file());
  };
  await settled(store);
  const alone = await changedBy((decide) => store.write(decide), 9000);
  const crowd = await changedBy((decide) => among(store, decide), 9001);
  assert.equal(alone <= 6, true, `${alone} pages`);
  assert.equal(crowd >= 10, true, `${crowd} pages`);
  await store.close();
});

const TEXT = fc.constantFrom('a', 'a/1', 'a/2', 'b', 'b/1', 'b/é', 'c', '\uffff', '\u{10000}');
const PUT = fc.tuple(fc.constantFrom<Table>('outbox', 'outbox_index', 'meta'), TEXT, fc.option(fc.nat(250)));
const JOB = fc.record({ puts: fc.array(PUT, { maxLength: 6 }), isAlone: fc.boolean(), throws: fc.boolean() });
const LOOK = fc.record({
  start: fc.option(TEXT, { nil: undefined }),
  end: fc.option(TEXT, { nil: undefined }),
  reverse: fc.boolean(),
  limit: fc.constantFrom(1, 2, 3, Infinity),
});

test('whatever is written, by few or many, reads as if there were no front', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(JOB, { maxLength: 12 }), fc.array(LOOK, { minLength: 3, maxLength: 6 }), async (jobs, looks) => {
      const { store } = await opened();
      const model = new Map<string, number>();
      for (const { puts, isAlone, throws } of jobs) {
        const decide = (tx: StoreTransaction): void => {
          for (const [table, key, fill] of puts) {
            if (fill === null) tx.remove(table, key);
            else tx.put(table, key, value(fill));
            assert.deepEqual(tx.get(table, key), fill === null ? undefined : value(fill));
          }
          if (throws) throw new Error('no');
        };
        if (isAlone) await settled(store);
        await (isAlone ? store.write(decide) : among(store, decide)).catch((error: Error) => assert.equal(error.message, 'no'));
        if (throws) continue;
        for (const [table, key, fill] of puts) {
          if (fill === null) model.delete(`${table} ${key}`);
          else model.set(`${table} ${key}`, fill);
        }
      }
      for (const table of ['outbox', 'outbox_index', 'meta'] as const)
        for (const { start, end, reverse, limit } of looks) {
          const all = [...model]
            .filter(([name]) => name.startsWith(`${table} `))
            .map(([name, fill]) => [name.slice(table.length + 1), fill] as const);
          const isIn = (key: string): boolean =>
            (start === undefined || compareKeys(start, key) <= 0) && (end === undefined || compareKeys(key, end) < 0);
          const within = all.filter(([key]) => isIn(key)).toSorted(([a], [b]) => (reverse ? compareKeys(b, a) : compareKeys(a, b)));
          const options = { ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }), reverse, limit };
          assert.deepEqual(
            store.range(table, options).map((entry) => [entry.key, entry.value[0]]),
            within.slice(0, limit),
          );
          assert.equal(store.count(table, options), Math.min(within.length, limit));
        }
      await store.close();
    }),
    { numRuns: 60 },
  );
});

test('a put that is refused leaves what lies in front', async () => {
  const { store } = await opened({ sizeLimitBytes: 400_000 });
  await store.write((tx) => tx.put('outbox', 'a', value(1)));
  await store.write((tx) => assert.throws(() => tx.put('outbox', 'a', value(2, 500_000)), { code: 'store_full' }));
  assert.deepEqual(store.get('outbox', 'a'), value(1));
  await store.close();
});

test('on a full disk what lies in front is rarely tried to be moved, so that other writes fit; with room it is moved again', () => {
  const script = join(import.meta.dirname, 'front-full-child.ts');
  const child = spawnSync('sh', ['-c', 'ulimit -S -f 5000; exec "$0" "$@"', process.execPath, script, join(base, 'full')], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  assert.equal(child.status, 0, child.stderr);
  const refused = Number(/^refused (\d+)\n$/.exec(child.stdout)?.[1]);
  assert.ok(refused <= 4, child.stdout);
});
