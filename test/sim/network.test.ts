/**
 * The simulated network is a Link like the real one, and its faults are what they are called.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Limit } from '../../daemon/clock/within.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import { bytesOf, introduce, isUp, linkContract, never, pair, recordingHost, refusal, textOf } from '../contract/link.ts';
import type { LinkBed, LinkHost } from '../contract/link.ts';
import { SimNetwork } from './network.ts';
import { World } from './world.ts';

interface SimBed extends LinkBed {
  readonly world: World;
  readonly network: SimNetwork;
}

function simBed(seed = 1): SimBed {
  const world = new World(seed);
  const network = new SimNetwork(world);
  let made = 0;
  const run = async <T>(promise: Promise<T>): Promise<T> => {
    let settled = false;
    const watched = promise.finally(() => {
      settled = true;
    });
    watched.catch(() => undefined);
    assert.equal(await world.run(() => settled, 600_000), 'done', 'the promise did not settle');
    return watched;
  };
  const start = async (id: LinkHost['id'], dialable: boolean): Promise<LinkHost> => {
    network.addressOf(id);
    const { host, start: go } = recordingHost(id, network.link(id, { dialable }));
    await go();
    return host;
  };
  return {
    world,
    network,
    run,
    host: (options = {}) => start(hostKeyFromSeed(new Uint8Array(32).fill(++made)).hostId, options.dialable ?? true),
    restart: (host) => start(host.id, true),
    until: async (condition, what) => assert.equal(await world.run(condition, 600_000), 'done', what),
    pass: async (ms) => {
      let over = false;
      world.after(ms, () => {
        over = true;
      });
      await world.run(() => over, ms);
    },
    close: async () => undefined,
  };
}

linkContract('simulated', () => simBed());

/** Sends `count` requests, each with a limit of 20 s; tells how each ended. */
async function sendMany(bed: SimBed, from: LinkHost, to: LinkHost, count: number): Promise<Map<string, number>> {
  const ends = new Map<string, number>();
  for (let n = 0; n < count; n++) {
    const limit = new Limit();
    const cancel = bed.world.after(20_000, () => limit.end());
    const end = await bed.run(
      from.link.request(to.id, 'wire', bytesOf(`${n}`), limit).then(
        (answer) => (textOf(answer) === `${n}` ? 'answered' : 'changed'),
        (error: { code: string }) => error.code,
      ),
    );
    cancel();
    ends.set(end, (ends.get(end) ?? 0) + 1);
  }
  return ends;
}

test('the same seed gives the same trace, another seed another', async () => {
  const traceOf = async (seed: number): Promise<string> => {
    const bed = simBed(seed);
    Object.assign(bed.network.faults, { loseRequest: 0.2, loseAnswer: 0.2, duplicate: 0.2 });
    const [a, b] = await pair(bed);
    const ends = await sendMany(bed, a, b, 30);
    return JSON.stringify([[...ends], bed.world.trace, bed.world.time, bed.network.counts]);
  };
  assert.equal(await traceOf(7), await traceOf(7));
  assert.notEqual(await traceOf(7), await traceOf(8));
});

test('a lost request was not seen, a lost answer was; both end as timeout or unavailable', async () => {
  for (const fault of ['loseRequest', 'loseAnswer'] as const) {
    const bed = simBed(3);
    const [a, b] = await pair(bed);
    bed.network.faults[fault] = 1;
    const ends = await sendMany(bed, a, b, 40);
    assert.deepEqual([...ends.keys()].toSorted(), ['timeout', 'unavailable']);
    assert.equal(b.seen.length, fault === 'loseRequest' ? 0 : 40);
  }
});

test('a duplicated request is seen twice and answered once', async () => {
  const bed = simBed(4);
  const [a, b] = await pair(bed);
  bed.network.faults.duplicate = 1;
  assert.deepEqual([...(await sendMany(bed, a, b, 10))], [['answered', 10]]);
  await bed.pass(1000);
  assert.equal(b.seen.length, 20);
});

test('requests sent in order may arrive in another', async () => {
  const bed = simBed(5);
  const [a, b] = await pair(bed);
  bed.network.faults.maxDelayMs = 500;
  await bed.run(Promise.all(Array.from({ length: 20 }, (_, n) => a.link.request(b.id, 'wire', Uint8Array.of(n + 1), never()))));
  const order = b.seen.map((seen) => seen.bytes[0]!);
  assert.notDeepEqual(
    order,
    order.toSorted((x, y) => x - y),
  );
});

test('a partition silences requests at once and ends the connection when it is noticed; healing brings it back', async () => {
  for (const oneWay of [false, true]) {
    const bed = simBed(6);
    const [a, b] = await pair(bed);
    bed.network.partition(a.id, b.id, oneWay);
    const ends = await sendMany(bed, a, b, 1);
    assert.deepEqual([...ends.keys()].length, 1);
    assert.equal(ends.has('answered'), false);
    await bed.pass(70_000);
    assert.equal(isUp(a, b) || isUp(b, a), false);
    bed.network.heal(a.id, b.id);
    await bed.until(() => isUp(a, b) && isUp(b, a), 'the connection to come back');
  }
});

test('one way means one way: the request arrives, its answer does not', async () => {
  const bed = simBed(7);
  const [a, b] = await pair(bed);
  bed.network.partition(b.id, a.id, true);
  await sendMany(bed, a, b, 1);
  assert.equal(b.seen.length, 1);
});

test('a reset rejects what is under way and both sides are told', async () => {
  const bed = simBed(8);
  const [a, b] = await pair(bed);
  b.answer = () => new Promise(() => undefined);
  const asked = a.link.request(b.id, 'wire', bytesOf('x'), never());
  await bed.until(() => b.seen.length === 1, 'the request');
  bed.network.reset(a.id, b.id);
  await assert.rejects(bed.run(asked), refusal('unavailable', { sent: true }));
  assert.deepEqual(
    [a, b].map((host) => host.peers.map(({ up }) => up)),
    [
      [true, false],
      [true, false],
    ],
  );
});

test('a crashed host hears nothing more, others notice, and its next life is reached again', async () => {
  for (const seed of [1, 2, 3, 4, 5, 6]) {
    const bed = simBed(seed);
    const [a, b] = await pair(bed);
    b.answer = () => new Promise(() => undefined);
    const asked = a.link.request(b.id, 'wire', bytesOf('x'), never());
    await bed.until(() => b.seen.length === 1, 'the request');
    bed.network.detach(b.id);
    const again = await bed.restart(b);
    introduce(a, again, []);
    await assert.rejects(bed.run(asked), refusal('unavailable', { sent: true }));
    for (let seconds = 0; !isUp(again, a) && seconds < 120; seconds++) await bed.pass(1000);
    assert.equal(textOf(await bed.run(a.link.request(b.id, 'wire', bytesOf('again'), never()))), 'again');
    assert.deepEqual([b.seen.length, b.peers.length], [1, 1], 'the dead process was told nothing');
  }
});

test('mutated bytes differ from those sent', async () => {
  const bed = simBed(9);
  const [a, b] = await pair(bed);
  bed.network.faults.mutate = 1;
  await sendMany(bed, a, b, 5);
  assert.equal(
    b.seen.every((seen, n) => textOf(seen.bytes) !== `${n}`),
    true,
  );
});
