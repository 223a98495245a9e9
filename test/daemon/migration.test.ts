/**
 * From a store of an older schema to the present one. The fixtures are a sender's store with a message in each state, and its receiver's:
 * those of schema 1 were written by the last ax of that schema, those of schemas 2 and 3 are the same, brought there by the last ax of each.
 * What is large is built by hand in the same shapes.
 */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import type { Log } from '../../daemon/log.ts';
import { silentLog } from '../../daemon/log.ts';
import { migrate } from '../../daemon/migration.ts';
import { Inbox } from '../../daemon/inbox.ts';
import { Outbox } from '../../daemon/outbox.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import { openLmdbStore } from '../../daemon/store/lmdb.ts';
import { getRow, NOTHING, pack, seqKey, unpack } from '../../daemon/store/rows.ts';
import { STORE_SCHEMA } from '../../daemon/store/store.ts';
import type { OpenedStore, StoreTransaction } from '../../daemon/store/store.ts';
import type { MessageId } from '../../protocol/ids.ts';
import { MAX_DEADLINE_MS, METADATA_RETENTION_MS } from '../../protocol/limits.ts';
import { RECEIVER_STATES, SENDER_STATES } from '../../protocol/states.ts';
import { HandClock } from './bed.ts';

const fixture = (name: string): Buffer => gunzipSync(readFileSync(join(import.meta.dirname, 'store', 'fixtures', name)));
const DATA = fixture('schema-1.mdb.gz');
const MARK_1 = '{"store":"ax-store","schema":1,"state":"ready"}\n';
const IDS = {
  accepted: '01m8mhegnfnzbrvsmh55nqg72f',
  fetched: '01m8mhehxqj0dn9arq6rj5vt8h',
  refused: '01m8mhemh9g84v2f6h4af0qe5a',
  queued: '01m8mhemxwbkaz03h1hjrjncm8',
  expired: '01m8mhenf5bpzmjwacw4v4b84a',
  cancelled: '01m8mheqgcjzwjk9eqykkhv9cp',
  long: '01m8mher47nh64v3fs83j1kawr',
} as const;

const base = mkdtempSync(join(tmpdir(), 'ax-mig-'));
after(() => rmSync(base, { recursive: true, force: true }));
let made = 0;

/** A state folder with the store of schema 1. */
function oldState(data = DATA): { readonly state: string; readonly folder: string } {
  const state = join(base, String(made++));
  const folder = join(state, 'store');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'data.mdb'), data);
  writeFileSync(join(folder, 'format'), MARK_1);
  return { state, folder };
}

function markOf(folder: string): { schema: number; kept?: string } {
  return JSON.parse(readFileSync(join(folder, 'format'), 'utf8')) as { schema: number; kept?: string };
}

/** What schema 2 asks of every row, over the whole store. */
function requireNew(store: OpenedStore, rows: number): void {
  const ran = getRow<{ ms: number }>(store, 'meta', 'running')?.ms ?? 0;
  const all = store.range('outbox').map((entry) => unpack<Sent>(entry.value));
  assert.equal(all.length, rows);
  for (const row of all) {
    assert.equal(Number.isSafeInteger(row.createdRan), true, row.id);
    assert.equal(
      row.createdRan >= Math.max(0, row.deadline - MAX_DEADLINE_MS) && row.createdRan <= Math.min(ran, row.deadline),
      true,
      row.id,
    );
  }
  const dead = all.filter((row) => row.state === 'refused' || row.state === 'expired').map((row) => `f/${seqKey(row.seq)}`);
  assert.deepEqual(
    store.range('outbox_index', { start: 'f/', end: 'f/~' }).map((entry) => entry.key),
    dead,
  );
}

test('a store of schema 1 opens as one of the present schema, with every message in its state', async () => {
  const { state, folder } = oldState();
  const said: (readonly [string, object | undefined])[] = [];
  const log: Log = { ...silentLog, info: (event, fields) => void said.push([event, fields]) };
  const store = await openLmdbStore(folder);
  assert.equal(store.schema, 1);
  const clock = new HandClock();
  await migrate(store, clock, log);
  assert.equal(store.schema, STORE_SCHEMA);
  requireNew(store, Object.keys(IDS).length);
  const outbox = new Outbox(store, () => 10_000);
  for (const [name, id] of Object.entries(IDS)) assert.equal(outbox.get(id as MessageId)?.state, name === 'long' ? 'queued' : name, name);
  assert.deepEqual(
    outbox.dead(undefined, 10).map((row) => row.id),
    [IDS.expired, IDS.refused],
  );
  assert.equal(said.length, 2);
  assert.deepEqual(said[0]?.[1], { from: 1, to: STORE_SCHEMA, kept: join(state, 'store.schema-1') });
  await store.close();
  assert.deepEqual(markOf(folder), { store: 'ax-store', schema: STORE_SCHEMA, state: 'ready' });
});

test("a sender's and a receiver's messages are found by their folder as new ones are, and the counts are right", async () => {
  const { folder } = oldState(fixture('schema-1-receiver.mdb.gz'));
  const store = await openLmdbStore(folder);
  await migrate(store, new HandClock(), silentLog);
  const inbox = new Inbox(store, () => 10_000);
  const all = inbox.page(undefined, 10);
  assert.deepEqual(
    all.map((row) => [row.id, row.state]),
    [
      [IDS.fetched, 'fetched'],
      [IDS.accepted, 'available'],
    ],
  );
  const workspace = all[0]?.workspace ?? '';
  assert.deepEqual(inbox.page(undefined, 10, workspace), all);
  assert.equal(inbox.countUnread('claude', workspace), 1);
  assert.deepEqual(inbox.tally(), { awaiting_setup: 0, available: 1, handed_out: 0 });
  await store.close();
  const sender = await openLmdbStore(oldState().folder);
  await migrate(sender, new HandClock(), silentLog);
  const outbox = new Outbox(sender, () => 10_000);
  const sent = outbox.page(undefined, 10);
  const from = sent[0]?.origin.workspace ?? '';
  assert.deepEqual(outbox.page(undefined, 10, { workspace: from, agents: [] }), sent);
  await sender.close();
});

for (const schema of [2, 3])
  test(`a store of schema ${schema} opens as one of the present schema, and its messages are found by their state`, async () => {
    const listed = async (name: string, list: (store: OpenedStore) => string[][]): Promise<string[][]> => {
      const { state, folder } = oldState(fixture(name));
      writeFileSync(join(folder, 'format'), MARK_1.replace('1', String(schema)));
      const store = await openLmdbStore(folder);
      assert.equal(store.schema, schema);
      await migrate(store, new HandClock(), silentLog);
      const found = list(store);
      await store.close();
      assert.deepEqual([markOf(folder).schema, readdirSync(state).toSorted()], [STORE_SCHEMA, ['store', `store.schema-${schema}`]]);
      return found;
    };
    const sent = await listed(`schema-${schema}.mdb.gz`, (store) =>
      SENDER_STATES.map((state) => new Outbox(store, () => 10_000).inState(state, undefined, 10).map((row) => row.id)),
    );
    const { long, queued, accepted, fetched, refused, expired, cancelled } = IDS;
    assert.deepEqual(sent, [[long, queued], [], [], [accepted], [fetched], [refused], [expired], [cancelled]]);
    const received = await listed(`schema-${schema}-receiver.mdb.gz`, (store) =>
      RECEIVER_STATES.map((state) => new Inbox(store, () => 10_000).inState(state, undefined, 10).map((row) => row.id)),
    );
    assert.deepEqual(received, [[], [accepted], [fetched], [], []]);
  });

test('what expired without an answer at an older ax is asked after like what does so now', async () => {
  const { state, folder } = oldState();
  const old = await openLmdbStore(folder);
  const rows = old.range('outbox').map((entry) => unpack<Sent>(entry.value));
  const { seq, host } = rows.find((row) => row.id === IDS.expired)!;
  await old.write((tx) => {
    for (const row of rows) if (row.seq === seq) tx.put('outbox', seqKey(seq), pack({ ...row, uncertain: true }));
  });
  await old.close();
  rmSync(join(state, 'store.schema-1'), { recursive: true });
  writeFileSync(join(folder, 'format'), MARK_1);
  const store = await openLmdbStore(folder);
  await migrate(store, new HandClock(), silentLog);
  const asked = new Outbox(store, () => 10_000).expiredUncertain(host, 0, 9);
  assert.deepEqual(
    asked.map((row) => row.id),
    [IDS.expired],
  );
  await store.close();
});

test('the files as they were are kept beside the store, byte for byte and for this user only, and no later start touches them', async () => {
  const { state, folder } = oldState();
  const store = await openLmdbStore(folder);
  await migrate(store, new HandClock(), silentLog);
  await store.close();
  const again = await openLmdbStore(folder);
  assert.deepEqual([again.schema, again.kept], [STORE_SCHEMA, null]);
  await migrate(again, new HandClock(), silentLog);
  await again.close();
  assert.deepEqual(readdirSync(state).toSorted(), ['store', 'store.schema-1']);
  assert.deepEqual(readFileSync(join(state, 'store.schema-1', 'data.mdb')), DATA);
  assert.equal(readFileSync(join(state, 'store.schema-1', 'format'), 'utf8'), MARK_1);
  const kept = await openLmdbStore(join(state, 'store.schema-1'));
  assert.equal(kept.schema, 1); // it can be put back whole
  await kept.close();
});

test('a second old store at the same place is kept under another name', async () => {
  const { state, folder } = oldState();
  await openLmdbStore(folder).then(async (store) => {
    await migrate(store, new HandClock(), silentLog);
    await store.close();
  });
  writeFileSync(join(folder, 'data.mdb'), DATA);
  writeFileSync(join(folder, 'format'), MARK_1);
  const store = await openLmdbStore(folder);
  assert.equal(store.kept, join(state, 'store.schema-1-2'));
  await store.close();
});

test('what a migrated row leaves in the indexes goes with it when it is pruned', async () => {
  const { folder } = oldState();
  const store = await openLmdbStore(folder);
  await migrate(store, new HandClock(), silentLog);
  const outbox = new Outbox(store, () => 10 * METADATA_RETENTION_MS);
  await store.write((tx) => outbox.prune(tx, 100));
  const ended = [IDS.fetched, IDS.refused, IDS.expired, IDS.cancelled, IDS.accepted];
  assert.deepEqual(
    ended.map((id) => outbox.get(id as MessageId)),
    ended.map(() => undefined),
  );
  assert.deepEqual(store.range('outbox_index', { start: 'f/', end: 'f/~' }), []);
  await store.close();
});

test('an id that schema 3 would forget by its time stays known as long as its row, and goes with it', async () => {
  const { folder } = oldState(fixture('schema-3-receiver.mdb.gz'));
  writeFileSync(join(folder, 'format'), MARK_1.replace('1', '3'));
  const store = await openLmdbStore(folder);
  await migrate(store, new HandClock(), silentLog);
  let ran = 10 * METADATA_RETENTION_MS;
  const inbox = new Inbox(store, () => ran);
  const ids = inbox.page(undefined, 10).map((row) => `${row.sender}/${row.id}`);
  const known = (): string[] => store.range('seen').map(({ key }) => key);
  assert.deepEqual(known(), [...ids.toReversed(), ...known().filter((key) => key.startsWith('~/'))]);
  assert.equal(known().length, 2 * ids.length);
  await store.write((tx) => inbox.prune(tx, 100));
  assert.deepEqual(known(), ids.toReversed());
  await store.write((tx) => inbox.retire(tx, 100));
  ran += METADATA_RETENTION_MS + 1;
  await store.write((tx) => inbox.prune(tx, 100));
  assert.deepEqual([known(), inbox.page(undefined, 10)], [[], []]);
  await store.close();
});

test('the time of a send is never taken for later than it can have been, whatever the clock says', async () => {
  for (const now of [0, 1_790_000_000_000, 4_000_000_000_000]) {
    const { folder } = oldState();
    const store = await openLmdbStore(folder);
    await migrate(store, Object.assign(new HandClock(), { wall: now, now: () => now }), silentLog);
    requireNew(store, Object.keys(IDS).length);
    await store.close();
  }
});

const MANY = 1700;

/** A schema-1 store with many rows; every third was refused. */
async function manyRows(): Promise<{ readonly state: string; readonly folder: string }> {
  const { state, folder } = oldState();
  const store = await openLmdbStore(folder);
  await store.write((tx) => {
    const sample = unpack<Record<string, unknown>>(tx.range('outbox', { limit: 1 })[0]?.value ?? NOTHING);
    assert.equal('createdRan' in sample, false);
    for (const { key } of tx.range('outbox')) tx.remove('outbox', key);
    for (let seq = 1; seq <= MANY; seq++)
      tx.put('outbox', seqKey(seq), pack({ ...sample, seq, id: `m${seq}`, state: seq % 3 === 0 ? 'refused' : 'queued' }));
  });
  await store.close();
  rmSync(join(state, 'store.schema-1'), { recursive: true });
  writeFileSync(join(folder, 'format'), MARK_1);
  return { state, folder };
}

test('a migration that ends anywhere is begun again and ends in the same rows, with one copy of what was there first', async () => {
  for (const writes of [0, 1, 2, 3]) {
    const { state, folder } = await manyRows();
    const before = readFileSync(join(folder, 'data.mdb'));
    const first = await openLmdbStore(folder);
    let left = writes;
    const dying = Object.create(first, {
      schema: { value: 1 },
      write: {
        value: (decide: (tx: StoreTransaction) => unknown) =>
          left-- > 0 ? first.write(decide) : Promise.reject(new Error('the process ends here')),
      },
      raise: { value: () => assert.fail('raised before all was written') },
    }) as OpenedStore;
    await assert.rejects(migrate(dying, new HandClock(), silentLog), /ends here/);
    await first.close();
    assert.deepEqual(markOf(folder), { store: 'ax-store', schema: 1, state: 'ready', kept: 'store.schema-1' });
    const second = await openLmdbStore(folder);
    assert.equal(second.schema, 1);
    await migrate(second, new HandClock(), silentLog);
    requireNew(second, MANY);
    await second.close();
    assert.deepEqual(readdirSync(state).toSorted(), ['store', 'store.schema-1']);
    assert.deepEqual(readFileSync(join(state, 'store.schema-1', 'data.mdb')), before);
  }
});

test('a copy that was cut off counts for nothing and is made anew', async () => {
  const { state, folder } = oldState();
  mkdirSync(join(state, 'store.schema-1.part'));
  writeFileSync(join(state, 'store.schema-1.part', 'data.mdb'), 'half');
  const store = await openLmdbStore(folder);
  await store.close();
  assert.equal(existsSync(join(state, 'store.schema-1.part')), false);
  assert.deepEqual(readFileSync(join(state, 'store.schema-1', 'data.mdb')), DATA);
});
