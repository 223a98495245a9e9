/** The LMDB store: the contract, and what only real files can show (privacy, foreign and damaged files, schema, size). */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';
import { STORE_SCHEMA } from '../../../daemon/store/store.ts';
import { storeContract } from '../../contract/store.ts';

const base = mkdtempSync(join(tmpdir(), 'ax-lmdb-'));
after(() => rmSync(base, { recursive: true, force: true }));
let made = 0;
const freshFolder = (): string => join(base, String(made++));

storeContract('lmdb', async () => {
  const folder = freshFolder();
  let store = await openLmdbStore(folder);
  return {
    store,
    wait: (promise) => promise,
    reopen: async () => (store = await openLmdbStore(folder)),
    end: async () => {
      await store.close();
      rmSync(folder, { recursive: true });
    },
  };
});

const value = (fill: number, size = 100): Uint8Array => new Uint8Array(size).fill(fill);

/** A closed store with records in several tables, among them some larger than a page. */
async function filledFolder(records = 200): Promise<string> {
  const folder = freshFolder();
  const store = await openLmdbStore(folder);
  await store.write((tx) => {
    for (let i = 0; i < records; i++) tx.put('events', `e${String(i).padStart(6, '0')}`, value(i));
    for (let i = 0; i < 5; i++) tx.put('inbox_body', `b${i}`, value(i, 50_000));
  });
  await store.close();
  return folder;
}

function snapshot(folder: string): Record<string, string> {
  return Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name)).toString('base64')]));
}

async function assertRefused(folder: string, code: string, message: RegExp): Promise<void> {
  const before = snapshot(folder);
  await assert.rejects(openLmdbStore(folder), (error: Error & { code?: string }) => {
    assert.equal(error.code, code, error.message);
    assert.match(error.message, message);
    assert.doesNotMatch(error.message, /\n/);
    return true;
  });
  assert.deepEqual(snapshot(folder), before, 'a refused store is left as it was');
}

test('the folder is 0700 and every file 0600, whatever the umask and whatever they were', async () => {
  for (const umask of [0o000, 0o777]) {
    const folder = freshFolder();
    mkdirSync(folder, { mode: 0o755 });
    const old = process.umask(umask);
    try {
      await (await openLmdbStore(folder)).close();
      chmodSync(join(folder, 'data.mdb'), 0o644);
      const store = await openLmdbStore(folder);
      await store.write((tx) => tx.put('meta', 'a', value(1)));
      assert.equal(statSync(folder).mode & 0o777, 0o700);
      for (const name of readdirSync(folder)) assert.equal(statSync(join(folder, name)).mode & 0o777, 0o600, name);
      assert.deepEqual(readdirSync(folder).sort(), ['data.mdb', 'format', 'lock.mdb']);
      await store.close();
    } finally {
      process.umask(old);
    }
  }
});

test('a data file without our mark is refused as foreign, and nothing is touched', async () => {
  const folder = await filledFolder();
  rmSync(join(folder, 'format'));
  await assertRefused(folder, 'store_corrupt', /data\.mdb was not made by ax/);
  const other = freshFolder();
  mkdirSync(other);
  writeFileSync(join(other, 'data.mdb'), 'something else');
  await assertRefused(other, 'store_corrupt', /data\.mdb was not made by ax/);
});

test('a store of a newer schema is refused with update_required and left untouched', async () => {
  const folder = await filledFolder();
  writeFileSync(join(folder, 'format'), JSON.stringify({ store: 'ax-store', schema: STORE_SCHEMA + 1, state: 'later' }));
  await assertRefused(folder, 'update_required', new RegExp(`schema ${STORE_SCHEMA + 1}, this ax knows ${STORE_SCHEMA}`));
});

test('a damaged mark, a mark that is a link, and a vanished data file are refused by name', async () => {
  const folder = await filledFolder();
  for (const text of [
    '',
    'null',
    '{}',
    '{"store":"ax-store","schema":0,"state":"ready"}',
    '{"store":"ax-store","schema":1}',
    'x'.repeat(5000),
  ]) {
    writeFileSync(join(folder, 'format'), text);
    await assertRefused(folder, 'store_corrupt', /format (cannot be read as|is not) the mark/);
  }
  rmSync(join(folder, 'format'));
  symlinkSync(join(folder, 'lock.mdb'), join(folder, 'format'));
  await assertRefused(folder, 'store_corrupt', /format is not a regular file/);
  const gone = await filledFolder();
  rmSync(join(gone, 'data.mdb'));
  await assertRefused(gone, 'store_corrupt', /data\.mdb is missing/);
});

test('a making that was interrupted is taken up again', async () => {
  const marker = JSON.stringify({ store: 'ax-store', schema: 1, state: 'creating' });
  for (const prepare of [
    (folder: string) => writeFileSync(join(folder, 'format'), marker),
    (folder: string) => [writeFileSync(join(folder, 'format'), marker), writeFileSync(join(folder, 'data.mdb'), '')],
  ]) {
    const folder = freshFolder();
    mkdirSync(folder);
    prepare(folder);
    const store = await openLmdbStore(folder);
    await store.write((tx) => tx.put('meta', 'a', value(1)));
    await store.close();
    assert.match(readFileSync(join(folder, 'format'), 'utf8'), /"ready"/);
  }
});

test('a data file that is empty, cut short anywhere, or with mangled pages is refused before LMDB maps it', async () => {
  const folder = await filledFolder();
  const data = join(folder, 'data.mdb');
  const good = `${folder}.good`;
  copyFileSync(data, good);
  const size = statSync(good).size;
  for (const cut of [0, 1, 100, 4096, 8192, 8300, 16384, 24576, size >> 1, size - 8192, size - 1]) {
    copyFileSync(good, data);
    truncateSync(data, cut);
    await assertRefused(folder, 'store_corrupt', /data\.mdb is (cut short|damaged|no store)/);
  }
  const mangle = async (at: number, bytes: Uint8Array): Promise<void> => {
    const whole = readFileSync(good);
    whole.set(bytes, at);
    writeFileSync(data, whole);
    await assertRefused(folder, 'store_corrupt', /data\.mdb is (damaged|no store|cut short)/);
  };
  for (const page of [0, 8192]) {
    await mangle(page + 24, value(0, 4));
    await mangle(page + 28, value(9, 4));
    await mangle(page + 48, value(0xff, 4));
    await mangle(page, value(0, 8192));
  }
  const meta = readFileSync(good);
  const newest = meta.readBigUInt64LE(152) > meta.readBigUInt64LE(8192 + 152) ? 0 : 8192;
  await mangle(newest + 96 + 40, value(0x7f, 8));
  await mangle(newest + 144, value(0xff, 8));
  const root = Number(meta.readBigUInt64LE(newest + 96 + 40)) * 8192;
  await mangle(root, value(0, 8192));
  await mangle(root + 24, value(0xff, 2));
  copyFileSync(good, data);
  const store = await openLmdbStore(folder);
  assert.equal(store.count('events'), 200);
  await store.close();
});

test('a file that ends before a last page nobody uses is opened', async () => {
  const folder = await filledFolder();
  const data = join(folder, 'data.mdb');
  const whole = readFileSync(data);
  const newest = whole.readBigUInt64LE(152) > whole.readBigUInt64LE(8192 + 152) ? 0 : 8192;
  whole.writeBigUInt64LE(BigInt(whole.length / 8192), newest + 144);
  writeFileSync(data, whole);
  const store = await openLmdbStore(folder);
  await store.write((tx) => tx.put('meta', 'a', value(1, 20_000)));
  assert.equal(store.count('events'), 200);
  await store.close();
});

test('at its size limit the store refuses puts with store_full, still removes, and takes puts again', async () => {
  const folder = freshFolder();
  const store = await openLmdbStore(folder, { sizeLimitBytes: 2_000_000 });
  const stored: string[] = [];
  const fill = async (): Promise<void> => {
    for (let i = 0; i < 100; i++) {
      await store.write((tx) => tx.put('inbox_body', `k${i}`, value(i, 100_000)));
      stored.push(`k${i}`);
    }
  };
  await assert.rejects(fill(), { code: 'store_full' });
  assert.ok(stored.length >= 15 && stored.length <= 20, String(stored.length));
  assert.deepEqual(
    store.range('inbox_body').map((entry) => entry.key),
    stored.toSorted(),
  );
  const { bytes } = store.status();
  assert.ok(bytes <= 2_200_000, String(bytes));
  await store.write((tx) => stored.splice(0, 10).forEach((key) => tx.remove('inbox_body', key)));
  for (let i = 0; i < 9; i++) await store.write((tx) => tx.put('inbox_body', `again${i}`, value(i, 100_000)));
  assert.ok(store.status().bytes <= bytes + 300_000, 'what was removed is used again');
  await store.close();
});

test('the status names the folder, the size of the file, and what the disk has left', async () => {
  const folder = await filledFolder();
  const store = await openLmdbStore(folder);
  const { path, bytes, freeBytes, entries } = store.status();
  assert.deepEqual([path, bytes, entries], [folder, statSync(join(folder, 'data.mdb')).size, 205]);
  const disk = statfsSync(folder);
  assert.ok(freeBytes > 0 && freeBytes <= disk.blocks * disk.bsize);
  await store.close();
});

test('writes of one turn share one commit', async () => {
  const store = await openLmdbStore(freshFolder());
  const transaction = await store.write(() => 0).then(() => lastTransaction(store.status().path));
  await Promise.all(Array.from({ length: 500 }, (_, i) => store.write((tx) => tx.put('events', `k${i}`, value(1)))));
  assert.equal(lastTransaction(store.status().path) - transaction, 1n);
  await store.close();
});

function lastTransaction(folder: string): bigint {
  const bytes = readFileSync(join(folder, 'data.mdb'));
  const [first, second] = [bytes.readBigUInt64LE(152), bytes.readBigUInt64LE(8192 + 152)];
  return first > second ? first : second;
}

test('a row that was just put is handed out as it was put, until another write changes or removes it; get gives a copy', async () => {
  const store = await openLmdbStore(freshFolder());
  const row = value(1);
  const late = { row: { n: 1 }, bytes: () => value(3, 5) };
  const shared = (key: string): unknown => store.shared?.('meta', key);
  await store.write((tx) => {
    tx.put('meta', 'row', row);
    tx.putLate?.('meta', 'late', late);
    assert.deepEqual([tx.shared?.('meta', 'row'), tx.shared?.('meta', 'late')], [row, late]);
    assert.deepEqual(tx.range('meta'), [
      { key: 'late', value: value(3, 5) },
      { key: 'row', value: row },
    ]);
  });
  assert.ok(shared('row') === row && shared('late') === late);
  for (const key of ['row', 'late']) store.get('meta', key)?.fill(9);
  assert.deepEqual([store.get('meta', 'row'), store.get('meta', 'late'), row], [value(1), value(3, 5), value(1)]);
  await assert.rejects(
    store.write((tx) => [tx.put('meta', 'row', value(2)), tx.remove('meta', 'late'), assert.fail('no')]),
    { message: 'no' },
  );
  assert.ok(shared('row') === row && shared('late') === late);
  await store.write((tx) => [tx.put('meta', 'row', value(4)), tx.remove('meta', 'late')]);
  assert.deepEqual([shared('row'), shared('late'), store.count('meta')], [value(4), undefined, 1]);
  await store.close();
  assert.throws(() => shared('row'), { code: 'shutting_down' });
});

test('while a commit is on its way to the disk, what is read outside is all from before it or all from after it', async () => {
  const store = await openLmdbStore(freshFolder());
  await store.write((tx) => [tx.put('meta', 'a', value(1)), tx.put('meta', 'b', value(1))]);
  const read = (): unknown => [store.get('meta', 'a'), store.get('meta', 'b'), store.get('meta', 'c'), store.count('meta')];
  let between: unknown;
  await store.write((tx) => {
    tx.put('meta', 'a', value(2));
    tx.remove('meta', 'b');
    tx.put('meta', 'c', value(2));
    queueMicrotask(() => (between = read()));
  });
  const [old, fresh] = [
    [value(1), value(1), undefined, 2],
    [value(2), undefined, value(2), 2],
  ];
  assert.ok([old, fresh].some((all) => isDeepStrictEqual(between, all)));
  assert.deepEqual(read(), fresh);
  await store.close();
});

test('what was put is found however much was put after it', async () => {
  const folder = freshFolder();
  const store = await openLmdbStore(folder);
  for (let round = 0; round < 5; round++)
    await store.write((tx) => {
      for (let i = 0; i < 200; i++) tx.put('meta', `${round}/${i}`, value(round));
      if (round > 0) tx.remove('meta', `${round - 1}/0`);
    });
  for (let round = 0; round < 5; round++)
    for (let i = 0; i < 200; i++)
      assert.deepEqual(store.get('meta', `${round}/${i}`), round < 4 && i === 0 ? undefined : value(round), `${round}/${i}`);
  await store.close();
});

test('a full file refuses with store_full, shows nothing of it, raises nothing unhandled, and goes on when there is room', () => {
  const folder = freshFolder();
  const script = join(import.meta.dirname, 'full-child.ts');
  // The soft file size limit stands for a full disk: the kernel refuses the write in the same place (in units of 512 bytes).
  const child = spawnSync('sh', ['-c', 'ulimit -S -f 4000; exec "$0" "$@"', process.execPath, script, folder], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  assert.equal(child.status, 0, child.stderr);
  assert.equal(child.stdout, 'full 3\nsmall ok\nroom ok\n');
  assert.ok(!existsSync(join(folder, 'space.tmp')));
});

test('a copy of a store in use is a whole store of what was there at one moment, private, and the store goes on', async () => {
  const folder = freshFolder();
  const store = await openLmdbStore(folder);
  await store.write((tx) => {
    for (let i = 0; i < 2000; i++) tx.put('events', `e${String(i).padStart(6, '0')}`, value(0));
  });
  const target = freshFolder();
  // Each write changes every tenth record: a copy that mixed two moments would hold two values.
  let round = 1;
  const writing = (async () => {
    for (; round <= 10; round++)
      await store.write((tx) => {
        for (let i = 0; i < 2000; i += 10) tx.put('events', `e${String(i).padStart(6, '0')}`, value(round));
      });
  })();
  await Promise.all([store.copyTo(target), writing]);
  assert.deepEqual(readdirSync(target).toSorted(), ['data.mdb', 'format']);
  for (const name of ['.', 'data.mdb', 'format']) assert.equal(statSync(join(target, name)).mode & 0o077, 0, name);
  const copy = await openLmdbStore(target);
  const marks = new Set(copy.range('events').flatMap(({ value: bytes }, i) => (i % 10 === 0 ? [bytes[0]] : [])));
  assert.equal(copy.count('events'), 2000);
  assert.equal(marks.size, 1);
  await copy.close();
  assert.equal(store.get('events', 'e000000')?.[0], 10);
  await assert.rejects(store.copyTo(target), /cannot copy the store/); // never into what is there
  await store.close();
  assert.equal(existsSync(join(target, 'data.mdb')), true);
});

test('close waits for a copy under way', async () => {
  const folder = await filledFolder(20_000);
  const store = await openLmdbStore(folder);
  const target = freshFolder();
  const copying = store.copyTo(target);
  await store.close();
  await copying;
  const copy = await openLmdbStore(target);
  assert.equal(copy.count('events'), 20_000);
  await copy.close();
});
