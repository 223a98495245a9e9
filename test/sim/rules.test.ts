/** Directed worlds, one rule each: what the receiving host promises, and reading. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AxError } from '../../protocol/errors.ts';
import { attached, holdAnswer, inWorld, seeds } from './bed.ts';
import type { Bed } from './bed.ts';
import type { Ask } from './checker.ts';
import type { Host } from './fleet.ts';
import { actorOf } from './reader.ts';

// --- accepting ---------------------------------------------------------------------------------------------------------------

test('a duplicate is acknowledged only after the first copy is durable', async () => {
  for (const seed of seeds(20)) {
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, checker } = bed;
      fleet.network.faults.duplicate = 1;
      checker.onMoment = (host, what) => {
        if (what === 'accepted' && host === b && host.lives === 1) fleet.world.after(0, () => fleet.crash(b));
      };
      const id = await bed.send(a, b, 'k');
      while (b.life !== undefined) await fleet.sleep(5);
      await fleet.boot(b);
      await bed.until(a, id, 'accepted');
      assert.equal((await bed.status(b, id)).state, 'awaiting_setup');
    });
  }
});

test('a message without notify is stored as a note and causes no notice, however long it waits', async () => {
  await inWorld(
    6,
    async (bed) => {
      const { a, b, fleet } = bed;
      const session = b.agents.add({ workspace: '/alpha' });
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'accepted');
      await fleet.sleep(3 * 3_600_000);
      assert.equal(session.received.length, 0);
      assert.equal(fleet.counts.get('notify'), undefined);
      assert.equal((await bed.status(a, id)).stored_as, 'note');
    },
    { grants: ['read', 'write'] },
  );
});

test('of several sessions only the one that the send named is notified', async () => {
  await inWorld(7, async (bed) => {
    const { a, b, fleet, checker } = bed;
    const [one, two] = [
      b.agents.add({ workspace: '/alpha', behaviour: 'drops' }),
      b.agents.add({ workspace: '/alpha', behaviour: 'drops' }),
    ];
    await fleet.sleep(100);
    const plain = await bed.send(a, b, 'plain');
    await bed.until(a, plain, 'accepted');
    await fleet.sleep(1000);
    assert.equal(one.received.length + two.received.length, 0);
    assert.equal((await bed.status(a, plain)).receiver_notice, 'withheld');
    const ask: Ask = { key: 'named', from: a, to: b, workspace: '/alpha', body: new Uint8Array(Buffer.from('named|')), id: undefined };
    checker.asked(ask);
    const sent = await fleet.call(a, 'message.send', {
      host: b.name,
      harness: 'claude',
      session: two.sessionId,
      body: ask.body,
      request_id: ask.key,
    });
    checker.sendReturned(ask, String(sent['message_id']));
    await fleet.sleep(1000);
    assert.deepEqual([one.received.length, two.received.length], [0, 1]);
  });
});

test('a full disk breaks no greeting: the hosts find each other and deliver once there is room', async () => {
  await inWorld(8, async (bed) => {
    const { a, b, fleet } = bed;
    fleet.crash(a);
    b.life!.store.failing('store_full');
    b.machine.skewMs = 3_600_000; // so that b wants to store when it last saw a
    await fleet.boot(a);
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'deferred');
    assert.equal((await bed.status(a, id)).cause?.code, 'store_full');
    b.life!.store.failing(undefined);
    await bed.until(a, id, 'accepted');
  });
});

test('an acceptance that the pickup receipt overtook changes nothing of what is known', async () => {
  await inWorld(13, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    holdAnswer(bed, 8000);
    const id = await bed.send(a, b, 'k');
    await bed.until(b, id, 'available');
    await bed.confirm(b, id, (await bed.fetch(b, session, id)).token, a);
    await bed.until(a, id, 'fetched');
    await fleet.sleep(10_000);
    const now = await bed.status(a, id);
    assert.deepEqual([now.state, now.receiver_state], ['fetched', 'fetched']);
  });
});

test('an acceptance that the expiry receipt overtook does not bring a message back', async () => {
  await inWorld(14, async (bed) => {
    const { a, b, fleet, world, checker } = bed;
    await fleet.sleep(50_000 - world.time);
    holdAnswer(bed, 15_000);
    const ask: Ask = {
      key: 'k',
      from: a,
      to: b,
      workspace: '/alpha',
      body: new Uint8Array(Buffer.from('k|')),
      id: undefined,
      retentionMs: 5000,
    };
    checker.asked(ask);
    const { message_id: id } = await fleet.call(a, 'message.send', {
      host: b.name,
      harness: 'claude',
      workspace: '/alpha',
      body: ask.body,
      request_id: ask.key,
      retention_ms: 5000,
    });
    checker.sendReturned(ask, String(id));
    await bed.until(b, String(id), 'expired');
    await bed.until(a, String(id), 'expired');
    await fleet.sleep(20_000);
    assert.deepEqual([(await bed.status(a, String(id))).state, (await bed.status(a, String(id))).uncertain], ['expired', false]);
  });
});

// --- reading -----------------------------------------------------------------------------------------------------------------

test('a reader that dies between hand-out and confirm leaves no pickup, and the next hand-out says refetch', async () => {
  await inWorld(11, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const id = await bed.send(a, b, 'k');
    await bed.until(b, id, 'available');
    const first = await bed.fetch(b, session, id);
    assert.equal(first.refetch, false);
    fleet.crash(b);
    await fleet.boot(b);
    assert.equal((await bed.status(b, id)).state, 'available');
    assert.notEqual((await bed.status(b, id)).handed_out_at, null);
    const told = await fleet.call(a, 'admin.cancel', { id }).then(
      (answer) => answer['state'],
      (error: Error) => (error instanceof AxError ? error.code : Promise.reject(error)),
    );
    assert.ok(told === 'too_late' || told === 'cancel_requested', String(told));
    const second = await bed.fetch(b, session, id);
    assert.equal(second.refetch, true);
    await bed.confirm(b, id, second.token, a);
    await bed.until(a, id, 'fetched');
  });
});

test('a pickup receipt leaves only when the pickup is durable', async () => {
  for (const seed of seeds(20)) {
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, world } = bed;
      const session = await attached(bed, b);
      const ids = await Promise.all([1, 2, 3, 4, 5].map((index) => bed.send(a, b, `k${index}`)));
      for (const id of ids) await bed.until(a, id, 'accepted');
      const read = async (id: string): Promise<void> => {
        await fleet.sleep(world.between(0, 80));
        const { token } = await bed.fetch(b, session, id);
        await bed.confirm(b, id, token, a);
      };
      const reading = ids.map((id) => read(id).catch(() => undefined));
      await fleet.sleep(world.between(40, 160));
      fleet.crash(b);
      await Promise.all(reading);
      await fleet.boot(b);
      for (const id of ids) {
        if ((await bed.status(b, id)).state !== 'fetched') await read(id);
        await bed.until(a, id, 'fetched');
      }
    });
  }
});

test('an owner reads along and changes no state; a session that is not attached gets no body', async () => {
  await inWorld(12, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const stranger = b.agents.add({ workspace: '/beta' });
    const id = await bed.send(a, b, 'k');
    await bed.until(b, id, 'available');
    const read = await fleet.call(b, 'message.fetch', { id });
    assert.deepEqual([read['by'], read['refetch']], ['owner', false]);
    await assert.rejects(fleet.call(b, 'message.fetch', { id }, actorOf(stranger)), { code: 'invalid_state' });
    assert.equal((await bed.status(b, id)).handed_out_at, null);
    const { token, refetch } = await bed.fetch(b, session, id);
    assert.equal(refetch, false);
    await bed.confirm(b, id, token, a);
    await bed.until(a, id, 'fetched');
  });
});

test('a receipt that went with a removed host is told again when the sender asks, once they know each other again', async () => {
  await inWorld(16, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    fleet.crash(a);
    await bed.confirm(b, id, (await bed.fetch(b, session, id)).token, a);
    await fleet.call(b, 'host.remove', { host: a.name });
    await fleet.boot(a);
    await fleet.call(b, 'host.add', { name: a.name, address: `${fleet.network.addressOf(a.id)}/p2p/${a.id}` });
    await bed.until(a, id, 'fetched');
  });
});

/** A message of a that b took and a session there read, while a was down and had no answer; b has removed a since, and with it the receipt. */
async function readUnanswered(bed: Bed): Promise<string> {
  const { a, b, fleet, checker } = bed;
  const session = await attached(bed, b);
  checker.onMoment = (host, what) => {
    if (host === b && what === 'accepted' && a.life !== undefined && a.lives === 1) fleet.world.after(0, () => fleet.crash(a));
  };
  const id = await bed.send(a, b, 'k');
  await bed.until(b, id, 'available');
  while (a.life !== undefined) await fleet.sleep(5);
  await bed.confirm(b, id, (await bed.fetch(b, session, id)).token, a);
  await fleet.call(b, 'host.remove', { host: a.name });
  return id;
}

/** `at` gets to know `other`. */
async function know({ fleet }: Bed, at: Host, other: Host): Promise<void> {
  await fleet.call(at, 'host.add', { name: other.name, address: `${fleet.network.addressOf(other.id)}/p2p/${other.id}` });
}

test('a late copy of what was read is answered with that, though the receipt of it went with a removed host', async () => {
  await inWorld(17, async (bed) => {
    const { a, b, fleet } = bed;
    const id = await readUnanswered(bed);
    await know(bed, b, a);
    await fleet.boot(a);
    await bed.until(a, id, 'fetched');
  });
});

test('who cancels what was read learns that it was, though the receipt of it went with a removed host', async () => {
  await inWorld(18, async (bed) => {
    const { a, b, fleet } = bed;
    const id = await readUnanswered(bed);
    fleet.network.partition(a.id, b.id);
    await fleet.boot(a);
    assert.equal((await fleet.call(a, 'admin.cancel', { id }))['state'], 'cancel_requested');
    await know(bed, b, a);
    fleet.network.heal(a.id, b.id);
    await bed.until(a, id, 'fetched');
  });
});

test('what expired without an answer and was read all the same is known as read, though the receipt of it went with a removed host', async () => {
  await inWorld(19, async (bed) => {
    const { a, b, fleet } = bed;
    const id = await readUnanswered(bed);
    await fleet.boot(a);
    await fleet.call(a, 'host.remove', { host: b.name, cancel_pending: true });
    const { state, uncertain } = await bed.status(a, id);
    assert.deepEqual([state, uncertain], ['expired', true]);
    await know(bed, a, b);
    await know(bed, b, a);
    await bed.until(a, id, 'fetched');
  });
});
