/** The simulated store: the contract, and what only it can show (crashes at chosen moments, flushes that fail). */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Store } from '../../daemon/store/store.ts';
import { storeContract } from '../contract/store.ts';
import { SimStore, type StoreImage } from './store.ts';
import { World } from './world.ts';

const bytes = (...values: number[]): Uint8Array => Uint8Array.from(values);

async function passing<T>(world: World, promise: Promise<T>): Promise<T> {
  let settled = false;
  const mark = (): void => void (settled = true);
  promise.then(mark, mark);
  assert.equal(await world.run(() => settled, 60_000), 'done');
  return promise;
}

let seed = 1;
storeContract('simulated', async () => {
  const world = new World(seed++);
  let store = new SimStore(world);
  return {
    store,
    wait: <T>(promise: Promise<T>) => passing(world, promise),
    reopen: async (): Promise<Store> => (store = new SimStore(world, store.image())),
    end: async () => {
      await passing(world, store.close());
    },
  };
});

/** Ten writes k0..k9 in one turn, a crash `afterMs` later; what was resolved, and what a reopened store shows. */
async function crashed(world: World, afterMs: number): Promise<{ resolved: string[]; found: string[]; image: StoreImage }> {
  const store = new SimStore(world);
  const resolved: string[] = [];
  const write = (i: number): void => {
    const written = store.write((tx) => {
      tx.put('inbox', `k${i}`, bytes(i));
      tx.put('seen', `k${i}`, bytes(i));
    });
    void written.then(() => resolved.push(`k${i}`));
  };
  for (let i = 0; i < 10; i++) world.after(i * 5, () => write(i));
  await world.run(() => false, afterMs);
  const image = store.crash();
  const before = resolved.length;
  await world.run(() => false, 1_000);
  assert.equal(resolved.length, before, 'nothing resolves after a crash');
  const again = new SimStore(world, image);
  const found = again.range('inbox').map((entry) => entry.key);
  assert.deepEqual(
    again.range('seen').map((entry) => entry.key),
    found,
    'each write is kept whole or not at all',
  );
  return { resolved, found, image };
}

test('a crash keeps every resolved write and a prefix of the others, and over the seeds every kind of prefix occurs', async () => {
  const reached = { nothingExtra: 0, answerLost: 0, everything: 0, neverRan: 0 };
  for (let run = 0; run < 300; run++) {
    const { resolved, found } = await crashed(new World(run), 1 + (run % 60));
    const all = Array.from({ length: 10 }, (_, i) => `k${i}`);
    assert.deepEqual(found, all.slice(0, found.length));
    assert.deepEqual(resolved, all.slice(0, resolved.length));
    assert.ok(found.length >= resolved.length);
    if (found.length > resolved.length) reached.answerLost++;
    else reached.nothingExtra++;
    if (found.length === 10) reached.everything++;
    if (found.length === 0) reached.neverRan++;
  }
  for (const [kind, count] of Object.entries(reached)) assert.ok(count > 0, kind);
});

test('the same seed gives the same crash', async () => {
  const first = await crashed(new World(7), 33);
  const second = await crashed(new World(7), 33);
  assert.deepEqual([first.resolved, first.found], [second.resolved, second.found]);
});

test('what a write put is visible before it is durable, on purpose', async () => {
  const world = new World(3);
  const store = new SimStore(world);
  let resolved = false;
  void store.write((tx) => tx.put('inbox', 'a', bytes(1))).then(() => (resolved = true));
  await world.run(() => store.get('inbox', 'a') !== undefined, 2);
  assert.equal(resolved, false);
  assert.equal(new SimStore(world, store.image()).get('inbox', 'a'), undefined);
});

test('a failing flush rejects everything that ran since the last one, leaves nothing of it, and later writes succeed', async () => {
  const world = new World(5);
  const store = new SimStore(world);
  await passing(
    world,
    store.write((tx) => tx.put('inbox', 'a', bytes(1))),
  );
  store.failing('store_full');
  const ends = await passing(
    world,
    Promise.allSettled([
      store.write((tx) => tx.put('inbox', 'a', bytes(2))),
      store.write((tx) => tx.get('inbox', 'a')),
      store.write((tx) => tx.remove('inbox', 'a')),
    ]),
  );
  for (const end of ends) assert.ok(end.status === 'rejected' && end.reason.code === 'store_full');
  assert.deepEqual(store.get('inbox', 'a'), bytes(1));
  store.failing(undefined);
  await passing(
    world,
    store.write((tx) => tx.put('inbox', 'b', bytes(3))),
  );
  assert.deepEqual(
    store.range('inbox').map((entry) => entry.key),
    ['a', 'b'],
  );
});

test('a flush that fails for another reason breaks the store for good: everything waiting and later is refused', async () => {
  const world = new World(6);
  const store = new SimStore(world);
  store.failing('internal');
  const ends = await passing(
    world,
    Promise.allSettled(Array.from({ length: 20 }, (_, i) => store.write((tx) => tx.put('inbox', `k${i}`, bytes(i))))),
  );
  for (const end of ends) assert.ok(end.status === 'rejected' && end.reason.code === 'internal');
  store.failing(undefined);
  await assert.rejects(
    store.write(() => 1),
    { code: 'internal' },
  );
  assert.equal(store.count('inbox'), 0);
  await passing(world, store.close());
});

test('an image does not change with the stores that were opened from it', async () => {
  const world = new World(9);
  const first = new SimStore(world);
  await passing(
    world,
    first.write((tx) => tx.put('inbox', 'a', bytes(1))),
  );
  const image = first.image();
  const second = new SimStore(world, image);
  await passing(
    world,
    second.write((tx) => tx.remove('inbox', 'a')),
  );
  assert.deepEqual(new SimStore(world, image).get('inbox', 'a'), bytes(1));
});
