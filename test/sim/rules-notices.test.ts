/** Directed worlds, one rule each: when a session is told again. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inWorld } from './bed.ts';

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
