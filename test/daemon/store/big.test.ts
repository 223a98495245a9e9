/**
 * What a command reads of a large store: counted in rows through the store seam, so that no clock is asked.
 *
 * A daemon of the real core over LMDB, with no host in reach and no session, filled with 200 and with 5000 messages: status, lists and
 * fetch read as many rows of the one as of the other. `make test-big` measures times with a million.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { systemClock, systemRandom } from '../../../daemon/clock/system.ts';
import { createDaemon } from '../../../daemon/daemon.ts';
import type { Daemon } from '../../../daemon/daemon.ts';
import { Inbox } from '../../../daemon/inbox.ts';
import type { Link } from '../../../daemon/link/link.ts';
import { silentLog } from '../../../daemon/log.ts';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';
import type { Store, StoreReader, StoreTransaction } from '../../../daemon/store/store.ts';
import type { AdminStatus } from '../../../protocol/control.ts';
import { hostKeyFromSeed } from '../../../protocol/identity.ts';
import { RECEIVER_STATES, SENDER_STATES } from '../../../protocol/states.ts';
import { bigId, fill, folderOf, FOLDERS } from '../../big/fill.ts';
import { counted } from '../../protocol/sample.ts';

const folder = mkdtempSync(join(tmpdir(), 'axb-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const BASE = '/base';

/** The same store; `reads` counts every row and key that is read through it. */
function counting(store: Store, reads: { n: number }): Store {
  const reader = (inner: StoreReader): StoreReader => ({
    get: (table, key) => ((reads.n += 1), inner.get(table, key)),
    range: (table, options) => {
      const found = inner.range(table, options);
      reads.n += found.length + 1;
      return found;
    },
    count: (table, options) => {
      const found = inner.count(table, options);
      reads.n += found + 1;
      return found;
    },
  });
  return {
    ...reader(store),
    write: (decide) =>
      store.write((tx) => {
        const seen: StoreTransaction = {
          ...reader(tx),
          put: (table, key, value) => tx.put(table, key, value),
          remove: (table, key) => tx.remove(table, key),
        };
        return decide(seen);
      }),
    status: () => store.status(),
    close: () => store.close(),
  };
}

const nobody: Link = {
  start: async () => undefined,
  stop: async () => undefined,
  request: () => Promise.reject(new Error('nobody is in reach')),
  learn: () => undefined,
  nudge: () => undefined,
  status: () => ({ listen: [], connected: [] }),
};

interface Large {
  readonly daemon: Daemon;
  readonly store: Store;
  /** Rows read by one call. */
  reads(method: string, params: Record<string, unknown>): Promise<number>;
  readonly startReads: number;
}

async function large(messages: number): Promise<Large> {
  const inner = await openLmdbStore(join(folder, String(messages)));
  const key = hostKeyFromSeed(counted(32, 5));
  await fill(inner, key, BASE, messages);
  const reads = { n: 0 };
  let soon = 0;
  const inTurn = (run: () => void): (() => void) => {
    soon += 1;
    return systemClock.after(0, () => {
      soon -= 1;
      run();
    });
  };
  const daemon = createDaemon(
    {
      // Nothing runs by the clock in between: what is read is read for the one who asks.
      clock: { ...systemClock, after: (ms, run) => (ms === 0 ? inTurn(run) : () => undefined) },
      random: systemRandom,
      store: counting(inner, reads),
      link: nobody,
      harnesses: [],
      files: { canonicalFolder: async (path) => path },
      log: silentLog,
      key,
    },
    { name: 'large', announce: [], ax: { program: 'ax' }, control: '', pid: 1, onStop: () => undefined },
  );
  await daemon.start();
  // What a start sets going (a look at each address with unread messages) belongs to it.
  for (let before = -1; before !== reads.n || soon > 0; await new Promise((resolve) => void setImmediate(resolve))) before = reads.n;
  const startReads = reads.n;
  const origin = { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'test' } as never;
  return {
    daemon,
    store: inner,
    startReads,
    reads: async (method, params) => {
      const before = reads.n;
      await daemon.call(method, params, { origin, session: null });
      return reads.n - before;
    },
  };
}

test('a start, status, lists and fetch read as few rows of five thousand messages as of two hundred', async (t) => {
  const small = await large(200);
  const big = await large(5000);
  t.after(() => Promise.all([small.daemon.stop(), big.daemon.stop()]));
  // For each address with unread messages the oldest and the newest are looked at, however many lie between.
  const addresses = FOLDERS / 2 + 1;
  assert.ok(big.startReads <= addresses * 250, `start: ${big.startReads} rows for ${addresses} addresses`);
  const asked: readonly (readonly [string, Record<string, unknown>])[] = [
    ['admin.status', {}],
    ['message.list', { limit: 20 }],
    ['message.list', { sent: true, limit: 20 }],
    ...RECEIVER_STATES.map((state) => ['message.list', { state, limit: 10 }] as const),
    ...RECEIVER_STATES.map((state) => ['message.list', { state, workspace: folderOf(BASE, 7), limit: 4 }] as const),
    ...SENDER_STATES.map((state) => ['message.list', { sent: true, state, limit: 10 }] as const),
    ['message.list', { workspace: folderOf(BASE, 7), limit: 4 }],
    ['message.list', { workspace: folderOf(BASE, 0), limit: 20 }],
    ['message.fetch', { id: bigId(0) }],
    ['message.fetch', { id: bigId(8) }],
    ['admin.message_status', { id: bigId(100) }],
    ['host.show', { host: 'away' }],
    ['agent.list', {}],
  ];
  for (const [method, params] of asked) {
    const [few, many] = [await small.reads(method, params), await big.reads(method, params)];
    assert.ok(many <= few * 1.2, `${method} ${JSON.stringify(params)}: ${few} and ${many} rows`);
  }
  const { inbox, outbox } = (await big.daemon.call('admin.status', {}, { session: null } as never)) as unknown as AdminStatus;
  const first = new Inbox(big.store, () => 0).find(bigId(0), 1)[0];
  assert.deepEqual(inbox, { awaiting_setup: 5000, available: 0, handed_out: 0, oldest_at: first?.receivedAt });
  assert.equal(typeof outbox.oldest_at, 'number');
});

test('what a setup makes available is moved in small writes, goes on after a crash, and is handed out meanwhile', async () => {
  const at = join(folder, 'moved');
  let store = await openLmdbStore(at);
  await fill(store, hostKeyFromSeed(counted(32, 5)), BASE, 1100);
  const all = folderOf(BASE, 0);
  const states = (): string[] => new Inbox(store, () => 0).unread('claude', all, 1000).map((row) => row.state);
  const first = await store.write((tx) => new Inbox(store, () => 0).setAvailable(tx, 'claude', all, true));
  assert.equal(first.length, 200);
  await store.close(); // a life ends in between
  store = await openLmdbStore(at);
  const inbox = new Inbox(store, () => 0);
  assert.deepEqual(
    inbox.moving().map(({ harness, workspace }) => [harness, workspace]),
    [['claude', all]],
  );
  const late = inbox.unread('claude', all, 1000).at(-1)!;
  assert.equal(late.state, 'awaiting_setup');
  const handed = await store.write((tx) => inbox.handOut(tx, late.sender, late.id, { token: 't', at: 1, session: 's' }));
  assert.equal(handed.state, 'available');
  const moved: number[] = [];
  while (inbox.isMoving('claude', all)) moved.push((await store.write((tx) => inbox.moveOn(tx, 'claude', all))).length);
  assert.deepEqual([moved, new Set(states())], [[200, 149], new Set(['available'])]);
  assert.deepEqual(inbox.tally(), { awaiting_setup: 550, available: 549, handed_out: 1 });
  const back = await store.write((tx) => inbox.setAvailable(tx, 'claude', all, false));
  await store.write((tx) => inbox.setAvailable(tx, 'claude', all, true)); // set up again before the rest went back
  while (inbox.isMoving('claude', all)) await store.write((tx) => inbox.moveOn(tx, 'claude', all));
  assert.deepEqual([back.length, new Set(states())], [200, new Set(['available'])]);
  await store.close();
});

test('a count that was never kept is walked once, and is right from then on', async () => {
  const store = await openLmdbStore(join(folder, 'older'));
  await fill(store, hostKeyFromSeed(counted(32, 5)), BASE, 100);
  const inbox = new Inbox(store, () => 0);
  const before = [inbox.tally(), inbox.countUnread('claude', folderOf(BASE, 0))];
  await store.write((tx) => {
    for (const { key } of tx.range('meta')) if (/^(count|tally)\//.test(key)) tx.remove('meta', key);
  });
  assert.deepEqual([inbox.tally(), inbox.countUnread('claude', folderOf(BASE, 0))], before);
  const first = inbox.find(bigId(0), 1)[0]!;
  await store.write((tx) => inbox.cancel(tx, first.sender, first.id, first.digest));
  assert.deepEqual([inbox.tally().awaiting_setup, inbox.countUnread('claude', folderOf(BASE, 0))], [99, 49]);
  await store.close();
});
