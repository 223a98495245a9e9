/** Directed worlds, one rule each: notices in the queue of a Codex thread. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { attached, inWorld } from './bed.ts';
import type { Bed } from './bed.ts';
import type { SimSession } from './harness.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const toCodex = (bed: Bed, key: string): Promise<string> => bed.send(bed.a, bed.b, key, '/alpha', undefined, undefined, 'codex');
const shown = async (bed: Bed, id: string): Promise<string | null> => (await bed.status(bed.a, id)).receiver_notice;

/** A message for a thread of b, accepted there. */
async function told(bed: Bed, key = 'k'): Promise<string> {
  const id = await toCodex(bed, key);
  await bed.until(bed.a, id, 'accepted');
  await bed.fleet.sleep(3000); // two words to a session are 2 s apart, and setup was one
  return id;
}

async function restart(bed: Bed): Promise<void> {
  bed.fleet.crash(bed.b);
  await bed.fleet.boot(bed.b);
  await bed.fleet.sleep(1000);
}

const codex = { codex: true } as const;

test('a notice in the queue of a busy thread is the only one, however long it waits and whatever else comes', async () => {
  await inWorld(
    60,
    async (bed) => {
      const thread = await attached(bed, bed.b, '/alpha', bed.b.threads);
      bed.b.threads.setStatus(thread, 'busy');
      const id = await told(bed);
      assert.equal(await shown(bed, id), 'in_queue');
      await bed.fleet.sleep(3 * HOUR);
      await told(bed, 'other');
      await bed.fleet.sleep(3 * HOUR);
      assert.equal(thread.received.length, 1);
      assert.equal(await shown(bed, id), 'in_queue');
      bed.b.threads.setStatus(thread, 'idle');
      await bed.fleet.sleep(2000);
      assert.equal(await shown(bed, id), 'left_queue');
      assert.equal((await bed.status(bed.a, id)).state, 'accepted', 'a queue that let it go is no pickup');
    },
    codex,
  );
});

test('what becomes of a notice after its message was fetched reaches the sender, also when the two could not speak meanwhile', async () => {
  for (const apart of [false, true])
    await inWorld(
      67,
      async (bed) => {
        const { a, b, fleet } = bed;
        const thread = await attached(bed, b, '/alpha', b.threads);
        b.threads.setStatus(thread, 'busy');
        const id = await told(bed);
        assert.equal(await shown(bed, id), 'in_queue');
        if (apart) fleet.network.partition(a.id, b.id);
        await bed.confirm(b, id, (await bed.fetch(b, thread, id)).token, a);
        if (!apart) await bed.until(a, id, 'fetched');
        b.threads.setStatus(thread, 'idle');
        await fleet.sleep(2000);
        if (apart) fleet.network.heal(a.id, b.id);
        await bed.until(a, id, 'fetched');
        await fleet.sleep(2000);
        assert.equal(await shown(bed, id), 'left_queue');
      },
      codex,
    );
});

test('a thread that asked by itself is told of the next message no sooner than 2 s after it took the notice that had waited', async () => {
  await inWorld(
    68,
    async (bed) => {
      const { a, b, fleet } = bed;
      const thread = await attached(bed, b, '/alpha', b.threads);
      b.threads.setStatus(thread, 'busy');
      const id = await told(bed);
      bed.checker.touching(thread.sessionId);
      await bed.confirm(b, id, (await bed.fetch(b, thread, id)).token, a);
      bed.checker.touched(thread.sessionId);
      await fleet.sleep(MINUTE);
      b.threads.setStatus(thread, 'idle');
      await fleet.sleep(500);
      await bed.until(b, await toCodex(bed, 'next'), 'available');
      assert.equal(thread.received.length, 1);
      await fleet.sleep(3000);
      assert.equal(thread.received.length, 2);
    },
    codex,
  );
});

test('a notice that left the queue and was not acted on is sent again when the thread sat idle through the whole pause, with growing pauses', async () => {
  await inWorld(
    61,
    async (bed) => {
      const { fleet, b } = bed;
      const thread = await attached(bed, b, '/alpha', b.threads);
      b.threads.setStatus(thread, 'busy');
      await told(bed);
      await fleet.sleep(HOUR);
      b.threads.setStatus(thread, 'idle'); // the pause begins here, not an hour ago
      await fleet.sleep(1.5 * MINUTE);
      assert.equal(thread.received.length, 1);
      await fleet.sleep(MINUTE);
      assert.equal(thread.received.length, 2);
      await fleet.sleep(3 * MINUTE);
      assert.equal(thread.received.length, 2);
      b.threads.setStatus(thread, 'busy');
      await fleet.sleep(HOUR);
      assert.equal(thread.received.length, 2, 'a busy thread is left alone');
      b.threads.setStatus(thread, 'idle');
      await fleet.sleep(10_000);
      assert.equal(thread.received.length, 3);
      await fleet.sleep(12 * HOUR);
      assert.equal(thread.received.length, 4, 'and no more than four times');
    },
    codex,
  );
});

test('a paused queue is shown as that and gets nothing more; it is told when its user goes on', async () => {
  await inWorld(
    62,
    async (bed) => {
      const { fleet, b } = bed;
      const thread = await attached(bed, b, '/alpha', b.threads);
      b.threads.interrupt(thread);
      const id = await told(bed);
      assert.equal(await shown(bed, id), 'queue_paused');
      await fleet.sleep(5 * HOUR);
      assert.equal(thread.received.length, 1);
      const { attention } = (await fleet.call(b, 'admin.status', {})) as { attention: { what: string; fix: string }[] };
      assert.ok(
        attention.some((row) => /user of a Codex thread in \/alpha interrupted it/.test(row.what) && /goes on/.test(row.fix)),
        JSON.stringify(attention),
      );
      b.threads.goOn(thread);
      await fleet.sleep(2000);
      assert.equal(await shown(bed, id), 'left_queue');
      assert.equal(thread.received.length, 1);
    },
    codex,
  );
});

test('a notice that an earlier life of the daemon queued is looked after 16 min later, and adds nothing beside the one that waits', async () => {
  await inWorld(
    63,
    async (bed) => {
      const { fleet, b } = bed;
      const thread = await attached(bed, b, '/alpha', b.threads);
      b.threads.interrupt(thread);
      const id = await told(bed);
      await restart(bed);
      const before = fleet.counts.get('notify') ?? 0;
      await fleet.sleep(14 * MINUTE);
      assert.equal(fleet.counts.get('notify') ?? 0, before);
      await fleet.sleep(3 * MINUTE);
      assert.equal(fleet.counts.get('notify'), before + 1);
      await fleet.sleep(12 * HOUR);
      assert.equal(fleet.counts.get('notify'), before + 1);
      assert.equal(thread.received.length, 1);
      assert.equal(await shown(bed, id), 'queue_paused', 'what became of the old item is told of the new attempt');
      b.threads.goOn(thread);
      await fleet.sleep(2000);
      assert.equal(await shown(bed, id), 'left_queue');
    },
    codex,
  );
  await inWorld(
    64,
    async (bed) => {
      const { fleet, b } = bed;
      const thread = await attached(bed, b, '/alpha', b.threads);
      b.threads.setStatus(thread, 'busy');
      await told(bed);
      fleet.crash(b);
      b.threads.setStatus(thread, 'idle'); // taken while no daemon looked: nobody will ever say so
      await fleet.boot(b);
      await fleet.sleep(15 * MINUTE);
      assert.equal(thread.received.length, 1);
      await fleet.sleep(2 * MINUTE);
      assert.equal(thread.received.length, 2, 'a lost word silences a thread not for ever');
    },
    codex,
  );
});

test('a thread that unloads with a notice in its queue is not told again when it is resumed', async () => {
  await inWorld(
    65,
    async (bed) => {
      const { fleet, b } = bed;
      const thread = await attached(bed, b, '/alpha', b.threads);
      thread.behaviour = 'unloads';
      thread.decideMs = 6 * HOUR;
      const id = await told(bed);
      const away = await bed.status(bed.a, id);
      assert.deepEqual([away.receiver_notice, away.live_session], ['in_queue', false]);
      await fleet.sleep(6 * HOUR + MINUTE);
      assert.equal(thread.received.length, 1);
      assert.equal(await shown(bed, id), 'left_queue');
    },
    codex,
  );
});

test('a notice of which nobody knows whether it was queued is shown as that, and sent again like one that was written', async () => {
  const results = new Set<string>();
  for (let seed = 70; seed < 80; seed++)
    await inWorld(
      seed,
      async (bed) => {
        const { fleet, b } = bed;
        const thread = await attached(bed, b, '/alpha', b.threads);
        thread.behaviour = 'unsure';
        const id = await toCodex(bed, 'k');
        await bed.until(bed.a, id, 'accepted');
        await fleet.sleep(2200); // the connection is not back yet
        assert.equal(await shown(bed, id), 'unverified');
        results.add(thread.received.length === 0 ? 'never stored' : 'stored');
        thread.behaviour = 'drops';
        const first = thread.received.length;
        await fleet.sleep(1.5 * MINUTE);
        assert.equal(thread.received.length, first);
        await fleet.sleep(MINUTE);
        assert.equal(thread.received.length, first + 1);
      },
      codex,
    );
  assert.deepEqual([...results].toSorted(), ['never stored', 'stored']);
});

test('Claude Code and Codex in one folder are two addresses: each is told of its own, and each has its agent', async () => {
  await inWorld(
    66,
    async (bed) => {
      const { a, b, fleet } = bed;
      const session = b.agents.add({ workspace: '/alpha', behaviour: 'drops' });
      const thread = b.threads.add({ workspace: '/alpha', behaviour: 'drops' });
      await fleet.sleep(100);
      const [forClaude, forCodex] = [await bed.send(a, b, 'one'), await toCodex(bed, 'two')];
      await fleet.sleep(3000);
      const texts = (one: SimSession): boolean[] => [forClaude, forCodex].map((id) => one.received.some(({ text }) => text.includes(id)));
      assert.deepEqual(
        [texts(session), texts(thread)],
        [
          [true, false],
          [false, true],
        ],
      );
      assert.deepEqual([await shown(bed, forClaude), await shown(bed, forCodex)], ['written', 'left_queue']);
    },
    codex,
  );
});
