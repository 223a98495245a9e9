/** Directed worlds, one rule each: what the sending host promises, and cancels. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inWorld, seeds } from './bed.ts';
import { Gone, OWNER } from './fleet.ts';
import type { Host } from './fleet.ts';

// --- sending -----------------------------------------------------------------------------------------------------------------

test('a message leaves only when its own outbox row is durable, also while others are on their way', async () => {
  for (const seed of seeds(12)) {
    await inWorld(seed, async (bed) => {
      const { world, a, b, fleet } = bed;
      const sends = Array.from({ length: 12 }, async (_, index) => {
        await fleet.sleep(world.between(0, 60));
        return bed.send(a, b, `k${index}`);
      });
      for (const id of await Promise.all(sends)) await bed.until(a, id, 'accepted');
    });
  }
});

test('the same request, repeated while the first is being stored, is answered only when that is durable', async () => {
  let repeated = 0;
  for (const seed of seeds(20)) {
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, world } = bed;
      await bed
        .send(a, b, 'k', '/alpha', OWNER, world.between(1, 4))
        .catch((error: Error) => (error instanceof Gone ? repeated++ : Promise.reject(error)));
      const id = await bed.send(a, b, 'k');
      fleet.crash(a);
      await fleet.boot(a);
      assert.equal(await bed.send(a, b, 'k'), id);
      await bed.until(a, id, 'accepted');
    });
  }
  assert.ok(repeated >= 10, `${repeated}`);
});

test('the same request after a crash before its flush makes one message at the receiver', async () => {
  for (const seed of seeds(20)) {
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, world } = bed;
      const busy = bed.send(a, b, 'other').catch(() => 'lost');
      const first = bed.send(a, b, 'k').catch(() => 'lost');
      await fleet.sleep(world.random() * 40);
      fleet.crash(a);
      await Promise.all([busy, first]);
      await fleet.boot(a);
      const id = await bed.send(a, b, 'k');
      await bed.send(a, b, 'other');
      await bed.until(a, id, 'accepted');
    });
  }
});

test('an answer to one attempt does not settle an earlier one: the cancel is decided by the receiver', async () => {
  await inWorld(3, async (bed) => {
    const { a, b, fleet } = bed;
    fleet.network.faults.loseAnswer = 1;
    const id = await bed.send(a, b, 'k');
    await bed.until(b, id, 'awaiting_setup');
    b.life!.store.failing('store_full');
    fleet.network.faults.loseAnswer = 0;
    await bed.until(a, id, 'deferred');
    assert.equal((await bed.status(a, id)).uncertain, true);
    assert.equal((await fleet.call(a, 'admin.cancel', { id }))['state'], 'cancel_requested');
    b.life!.store.failing(undefined);
    await bed.until(a, id, 'cancelled');
    assert.equal((await bed.status(b, id)).state, 'cancelled');
  });
});

test('trusting the peer later delivers what waits, without a new send', async () => {
  await inWorld(
    4,
    async (bed) => {
      const { a, b, fleet } = bed;
      const address = (host: Host): string => `${fleet.network.addressOf(host.id)}/p2p/${host.id}`;
      await fleet.call(a, 'host.add', { name: b.name, address: address(b) });
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'deferred');
      assert.equal((await bed.status(a, id)).cause?.code, 'untrusted_peer');
      await fleet.call(b, 'host.add', { name: a.name, address: address(a) });
      await bed.until(a, id, 'accepted');
    },
    { grants: null },
  );
});

test('a grant given later delivers what was refused for now, within the longest pause', async () => {
  await inWorld(
    5,
    async (bed) => {
      const { a, b, fleet, world } = bed;
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'deferred');
      assert.equal((await bed.status(a, id)).cause?.code, 'grant_missing');
      const address = `${fleet.network.addressOf(a.id)}/p2p/${a.id}`;
      await fleet.call(b, 'host.add', { name: a.name, address, grants: ['read', 'write', 'notify'] });
      const from = world.time;
      await bed.until(a, id, 'accepted');
      assert.ok(world.time - from <= 301_000, `${world.time - from} ms`);
    },
    { grants: ['read'] },
  );
});

// --- cancel ------------------------------------------------------------------------------------------------------------------

test('a cancel that overtakes its message leaves a tombstone that answers the late copy', async () => {
  await inWorld(9, async (bed) => {
    const { a, b, fleet } = bed;
    Object.assign(fleet.network.faults, { minDelayMs: 5000, maxDelayMs: 5000 });
    const id = await bed.send(a, b, 'k');
    await fleet.sleep(200);
    Object.assign(fleet.network.faults, { minDelayMs: 1, maxDelayMs: 5 });
    assert.equal((await fleet.call(a, 'admin.cancel', { id }))['state'], 'cancel_requested');
    await bed.until(a, id, 'cancelled');
    await fleet.sleep(10_000);
    assert.equal(fleet.counts.get('tombstone answered'), 1);
    assert.equal((await bed.status(a, id)).state, 'cancelled');
    await assert.rejects(bed.status(b, id), { code: 'message_not_found' });
  });
});

test('a cancel asked again is one event, at both ends and on this host', async () => {
  await inWorld(10, async (bed) => {
    const { a, b, fleet } = bed;
    const [remote, local] = [await bed.send(a, b, 'remote'), await bed.send(a, a, 'local')];
    await bed.until(a, remote, 'accepted');
    for (const id of [remote, remote, local, local]) await fleet.call(a, 'admin.cancel', { id });
    await bed.until(a, remote, 'cancelled');
    await fleet.call(a, 'admin.cancel', { id: remote });
    for (const [host, id] of [
      [a, remote],
      [b, remote],
      [a, local],
    ] as const) {
      const states = (await bed.status(host, id)).history.map((row) => row.state);
      assert.equal(states.filter((state) => state === 'cancelled').length, 1, states.join());
      assert.ok(states.filter((state) => state === 'cancel_requested').length <= 1, states.join());
    }
  });
});

test('a cancel that a crash takes back was not told to the receiver', async () => {
  for (const seed of seeds(20)) {
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, world } = bed;
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'accepted');
      const busy = [1, 2, 3].map((index) => bed.send(a, b, `other${index}`).catch(() => 'lost'));
      await fleet.sleep(world.between(20, 90)); // the others are on their way: each answer wakes what waits for that host
      const cancel = fleet.call(a, 'admin.cancel', { id }).catch(() => 'lost');
      await fleet.sleep(world.random() * 40);
      fleet.crash(a);
      await Promise.all([cancel, ...busy]);
      await fleet.boot(a);
      await fleet.sleep(60_000);
    });
  }
});

// --- forgetting a host -------------------------------------------------------------------------------------------------------

test('removing a host with queued mail is refused; told to cancel it, what never left is cancelled, what may have left is uncertain', async () => {
  await inWorld(15, async ({ a, b, fleet, send, until, status }) => {
    fleet.network.faults.loseAnswer = 1;
    const left = await send(a, b, 'left');
    await until(b, left, 'awaiting_setup');
    fleet.network.partition(a.id, b.id);
    fleet.network.reset(a.id, b.id);
    await fleet.sleep(60_000);
    const kept = await send(a, b, 'kept');
    await assert.rejects(fleet.call(a, 'host.remove', { host: b.name }), { code: 'invalid_state' });
    await fleet.call(a, 'host.remove', { host: b.name, cancel_pending: true });
    const told = async (id: string): Promise<unknown[]> => [(await status(a, id)).state, (await status(a, id)).uncertain];
    assert.deepEqual(await told(left), ['expired', true]);
    assert.deepEqual(await told(kept), ['cancelled', false]);
  });
});
