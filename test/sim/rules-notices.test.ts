/** Directed worlds, one rule each: when a session is told again. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { attached, holdAnswer, inWorld, seeds } from './bed.ts';

const MINUTE = 60_000;

test('nothing is sent while a notice is held; one held before a restart is sent again 16 min after it, not sooner', async () => {
  await inWorld(50, async (bed) => {
    const { a, b, fleet } = bed;
    const session = b.agents.add({ workspace: '/alpha', behaviour: 'holds' });
    await fleet.sleep(100);
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    await fleet.sleep(3 * 60 * MINUTE);
    assert.equal(session.received.length, 1);
    await bed.send(a, b, 'other');
    await fleet.sleep(3 * 60 * MINUTE);
    assert.equal(session.received.length, 1, 'held, and this daemon can still hear what becomes of it');
  });
  await inWorld(51, async (bed) => {
    const { a, b, fleet } = bed;
    const session = b.agents.add({ workspace: '/alpha', behaviour: 'holds' });
    await fleet.sleep(100);
    await bed.until(a, await bed.send(a, b, 'k'), 'accepted');
    await fleet.sleep(1000);
    fleet.crash(b);
    await fleet.boot(b);
    await fleet.sleep(15 * MINUTE);
    assert.equal(session.received.length, 1);
    await fleet.sleep(2 * MINUTE);
    assert.equal(session.received.length, 2);
  });
});

test('a session that no notice reached for hours is told soon after it can be reached again, and its sender has a budget left', async () => {
  await inWorld(52, async (bed) => {
    const { a, b, fleet } = bed;
    const session = b.agents.add({ workspace: '/alpha', behaviour: 'drops' });
    await fleet.sleep(100);
    session.unreachable = 'its socket takes nothing'; // listed as reachable all the while
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    await fleet.sleep(4 * 60 * MINUTE);
    assert.equal(session.received.length, 0);
    assert.equal((await bed.status(a, id)).receiver_notice, 'failed');
    assert.ok((fleet.counts.get('notify') ?? 0) > 20, String(fleet.counts.get('notify')));
    session.unreachable = undefined;
    await fleet.sleep(9 * MINUTE);
    assert.ok(session.received.length >= 1);
    assert.doesNotMatch(session.received[0]!.text, /reminder/);
  });
});

test('what becomes of a notice before its message is known as accepted is known with the acceptance, however late that comes', async () => {
  for (const heldMs of [0, 200, 3000])
    await inWorld(53, async (bed) => {
      const { a, b, fleet } = bed;
      await attached(bed, b);
      await fleet.sleep(3000); // two words to a session are 2 s apart, and setup was one
      if (heldMs > 0) holdAnswer(bed, heldMs);
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'accepted');
      await fleet.sleep(1000);
      const { receiver_notice, live_session } = await bed.status(a, id);
      assert.deepEqual([receiver_notice, live_session], ['written', true], `an answer held for ${heldMs} ms`);
    });
});

test('what became of a notice before the sender ended without its answer is told again with the next', async () => {
  await inWorld(55, async (bed) => {
    const { a, b, fleet } = bed;
    await attached(bed, b);
    await fleet.sleep(3000);
    holdAnswer(bed, 3000);
    const id = await bed.send(a, b, 'k');
    await fleet.sleep(500); // told, and heard of
    fleet.crash(a);
    await fleet.boot(a);
    await bed.until(a, id, 'accepted');
    await fleet.sleep(1000);
    assert.equal((await bed.status(a, id)).receiver_notice, 'written');
  });
});

test('what becomes of a notice while the sender is not greeted yet is told once it is', async () => {
  for (const gapMs of [0, 200, 500, 900])
    await inWorld(
      54,
      async (bed) => {
        const { a, b, fleet } = bed;
        await attached(bed, b);
        await fleet.sleep(3000);
        const grants = ['read', 'write', 'notify'];
        const add = (at: typeof a, other: typeof a): Promise<unknown> =>
          fleet.call(at, 'host.add', { name: other.name, address: `${fleet.network.addressOf(other.id)}/p2p/${other.id}`, grants });
        await add(b, a);
        await fleet.sleep(gapMs); // b has greeted in vain, and waits a second before it greets again
        await add(a, b);
        const id = await bed.send(a, b, 'k');
        await bed.until(a, id, 'accepted');
        await fleet.sleep(3000);
        assert.equal((await bed.status(a, id)).receiver_notice, 'written', `known there ${gapMs} ms later`);
      },
      { grants: null },
    );
});

test('what became of a notice while nothing got through is told again, also over a connection that outlived that', async () => {
  for (const seed of seeds(12))
    await inWorld(seed, async (bed) => {
      const { a, b, fleet } = bed;
      b.agents.add({ workspace: '/alpha', behaviour: 'denies' });
      await fleet.sleep(100);
      const id = await bed.send(a, b, 'k');
      while ((await bed.status(a, id)).receiver_notice !== 'held') await fleet.sleep(10);
      fleet.network.partition(a.id, b.id);
      while ((await bed.status(b, id)).receiver_notice !== 'denied') await fleet.sleep(100);
      await fleet.sleep(1000);
      fleet.network.heal(a.id, b.id);
      await fleet.sleep(2 * MINUTE);
      assert.equal((await bed.status(a, id)).receiver_notice, 'denied', `seed ${seed}`);
    });
});
