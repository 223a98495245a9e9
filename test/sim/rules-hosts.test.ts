/** Directed worlds, one rule each: what a host does towards one that is full, does not know it, or knows too much. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { attached, inWorld } from './bed.ts';
import type { HostRow } from '../../protocol/control.ts';
import { readRequest } from '../../protocol/wire.ts';
import type { Bed } from './bed.ts';
import type { Host } from './fleet.ts';

const addressOf = (bed: Bed, host: Host): string => `${bed.fleet.network.addressOf(host.id)}/p2p/${host.id}`;
const hostsOf = async (bed: Bed, host: Host): Promise<{ name: string; state: string; grants: string[] }[]> =>
  (await bed.fleet.call(host, 'host.list', {}))['hosts'] as { name: string; state: string; grants: string[] }[];

test('however many cancels wait, all of them are decided when the host is back', async () => {
  await inWorld(21, async (bed) => {
    const { a, b, fleet } = bed;
    const ids: string[] = [];
    for (let n = 0; n < 100; n++) ids.push(await bed.send(a, b, `k${n}`));
    for (const id of ids) await bed.until(a, id, 'accepted');
    fleet.network.partition(a.id, b.id);
    for (const id of ids) assert.equal((await fleet.call(a, 'admin.cancel', { id }))['state'], 'cancel_requested');
    fleet.network.healAll();
    for (const id of ids) await bed.until(a, id, 'cancelled');
  });
});

test('a host that takes no message now still takes receipts and cancels', async () => {
  await inWorld(22, async (bed) => {
    const { a, b, fleet, world } = bed;
    const accepted = await bed.send(a, b, 'first');
    await bed.until(a, accepted, 'accepted');
    b.machine.freeBytes = 0;
    await fleet.sleep(6000); // the look at the free space is believed for some seconds
    const refused = await bed.send(a, b, 'second');
    await bed.until(a, refused, 'deferred');
    const before = world.time;
    assert.equal((await fleet.call(a, 'admin.cancel', { id: accepted }))['state'], 'cancel_requested');
    await bed.until(a, accepted, 'cancelled');
    assert.ok(world.time - before < 2000, `the cancel took ${world.time - before} ms`);
    b.machine.freeBytes = 2 ** 40;
    await bed.until(a, refused, 'accepted');
  });
});

test('what cannot leave now is queued and certain, and is cancelled at once', async () => {
  await inWorld(23, async (bed) => {
    const { a, b, fleet } = bed;
    b.machine.freeBytes = 0;
    await fleet.sleep(6000);
    const first = await bed.send(a, b, 'first');
    await bed.until(a, first, 'deferred');
    const second = await bed.send(a, b, 'second');
    const { state, uncertain } = await bed.status(a, second);
    assert.deepEqual([state, uncertain], ['queued', false]);
    assert.equal((await fleet.call(a, 'admin.cancel', { id: second }))['state'], 'cancelled');
    b.machine.freeBytes = 2 ** 40;
    await bed.until(a, first, 'accepted');
  });
});

test('a host that does not know this one is sent no bodies, and what waits says why', async () => {
  await inWorld(
    24,
    async (bed) => {
      const { a, b, fleet } = bed;
      await fleet.call(a, 'host.add', { name: b.name, address: addressOf(bed, b) });
      await fleet.sleep(2000);
      let deliveries = 0;
      bed.checker.onMoment = (host, what) => {
        if (host === b && what === 'accepted') deliveries++;
      };
      const ids: string[] = [];
      for (let n = 0; n < 20; n++) ids.push(await bed.send(a, b, `k${n}`));
      await fleet.sleep(30 * 60_000);
      for (const id of ids) {
        const { state, cause, uncertain } = await bed.status(a, id);
        assert.deepEqual([state, cause?.code, uncertain], ['deferred', 'untrusted_peer', false]);
      }
      assert.equal((await hostsOf(bed, a))[0]?.state, 'untrusted');
      assert.equal(deliveries, 0);
      assert.equal((await fleet.call(a, 'admin.cancel', { id: ids[0] }))['state'], 'cancelled');
      await fleet.call(b, 'host.add', { name: a.name, address: addressOf(bed, a) });
      for (const id of ids.slice(1)) await bed.until(a, id, 'accepted');
    },
    { grants: null },
  );
});

test('a used code, given again, brings back no right that was taken since', async () => {
  await inWorld(
    25,
    async (bed) => {
      const { a, b, fleet } = bed;
      const { code } = await fleet.call(b, 'host.invite', {});
      await fleet.call(a, 'host.join', { code, name: b.name });
      const known = (await hostsOf(bed, b))[0]!;
      await fleet.call(b, 'host.add', { name: known.name, address: addressOf(bed, a), grants: ['read'] });
      await fleet.call(a, 'host.join', { code });
      assert.deepEqual((await hostsOf(bed, b))[0]?.grants, ['read']);
    },
    { grants: null, judged: false },
  );
});

test('adding a known host by hand changes neither its name nor, unless told, its rights', async () => {
  await inWorld(
    26,
    async (bed) => {
      const { a, b, fleet } = bed;
      await fleet.call(a, 'host.add', { name: 'bee', address: addressOf(bed, b), grants: ['read'] });
      await assert.rejects(fleet.call(a, 'host.add', { name: 'other', address: addressOf(bed, b) }), /already known as bee/);
      await fleet.call(a, 'host.add', { name: 'bee', address: addressOf(bed, b) });
      assert.deepEqual(
        (await hostsOf(bed, a)).map((host) => [host.name, host.grants]),
        [['bee', ['read']]],
      );
    },
    { grants: null, judged: false },
  );
});

test('a folder in which no session can be set up is refused, here at once and there for good', async () => {
  await inWorld(
    27,
    async (bed) => {
      const { a, b, fleet } = bed;
      for (const host of [a, b]) host.folders.set('/odd$x', '/odd$x');
      for (const host of ['Localhost', b.name]) {
        const params = { host, harness: 'claude', workspace: '/odd$x', body: new Uint8Array([1]), request_id: host };
        await assert.rejects(fleet.call(a, 'message.send', params), /must not contain/);
      }
      b.folders.set('/alias', '/odd$x');
      const sent = await fleet.call(a, 'message.send', {
        host: b.name,
        harness: 'claude',
        workspace: '/alias',
        body: new Uint8Array([1]),
        request_id: 'k',
      });
      await bed.until(a, String(sent['message_id']), 'refused');
      assert.equal((await bed.status(a, String(sent['message_id']))).cause?.code, 'invalid_argument');
    },
    { judged: false },
  );
});

test('a request repeated from another folder is the same request', async () => {
  await inWorld(
    28,
    async (bed) => {
      const { a, b, fleet } = bed;
      const params = { host: b.name, harness: 'claude', workspace: '/alpha', body: new Uint8Array([1]), request_id: 'k' };
      const first = await fleet.call(a, 'message.send', { ...params, local_workspace: '/alpha' });
      const again = await fleet.call(a, 'message.send', { ...params, local_workspace: '/beta' });
      assert.deepEqual([again['message_id'], again['replayed']], [first['message_id'], true]);
    },
    { judged: false },
  );
});

test('trouble with a host is shown for a while after its last sign, and then the host is simply down', async () => {
  await inWorld(
    29,
    async (bed) => {
      const { a, b, fleet } = bed;
      await fleet.call(a, 'host.add', { name: 'bee', address: addressOf(bed, b) });
      await fleet.sleep(2000);
      assert.equal((await hostsOf(bed, a))[0]?.state, 'untrusted');
      fleet.crash(b);
      await fleet.sleep(10 * 60_000);
      assert.equal((await hostsOf(bed, a))[0]?.state, 'down');
      await fleet.boot(b);
    },
    { grants: null, judged: false },
  );
});

test('a waiting client is answered when the daemon stops', async () => {
  await inWorld(30, async (bed) => {
    const { a, b, fleet } = bed;
    fleet.network.partition(a.id, b.id);
    const id = await bed.send(a, b, 'k');
    const waiting = fleet.call(a, 'message.wait', { id, until: 'fetched', timeout_ms: 20_000 });
    await fleet.sleep(100);
    a.life!.daemon.drain();
    await assert.rejects(waiting, /stopping/);
    fleet.crash(a);
    await fleet.boot(a);
    fleet.network.healAll();
    await bed.until(a, id, 'accepted');
  });
});

test('a code that is pasted again undoes no revoke, on either side, and renames nothing; a grant that is typed with it counts', async () => {
  await inWorld(33, async (bed) => {
    const { a, b, fleet } = bed;
    const mine = async (): Promise<string[]> => (await hostsOf(bed, a)).find((row) => row.name === b.name)!.grants;
    const join = (more: object = {}): Promise<Record<string, unknown>> => fleet.call(a, 'host.join', { code, ...more });
    const { code } = await fleet.call(b, 'host.invite', {});
    const folder = { host: b.id, actions: ['write'], workspace: '/alpha' };
    await fleet.call(a, 'host.revoke', { host: b.id, actions: ['write', 'notify'] });
    await fleet.call(a, 'host.grant', folder);
    for (let n = 0; n < 2; n++) {
      const again = await join(n === 0 ? {} : { name: b.name });
      assert.deepEqual([again['already_paired'], again['name'], again['grants']], [true, b.name, ['read']]);
    }
    assert.deepEqual(await mine(), ['read']);
    const { host } = (await fleet.call(a, 'host.show', { host: b.id })) as unknown as { host: HostRow };
    assert.deepEqual(
      host.grant_rules.map((rule) => [rule.action, rule.workspace]),
      [['write', '/alpha']],
      'a right for one workspace stays too',
    );
    await assert.rejects(join({ name: 'other' }), /is already known as/);
    await fleet.call(b, 'host.revoke', { host: a.id, actions: ['notify'] });
    assert.deepEqual((await join())['granted'], ['read', 'write'], 'what the other allows now, not what the code once gave');
    assert.deepEqual((await join({ grants: ['read', 'notify'] }))['grants'], ['read', 'notify']);
    assert.deepEqual(await mine(), ['read', 'notify']);
  });
});

test('a message of a host that was removed since is still read by its id and its sender', async () => {
  await inWorld(
    31,
    async (bed) => {
      const { a, b, fleet } = bed;
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'accepted');
      await fleet.call(b, 'host.remove', { host: a.id });
      const read = await fleet.call(b, 'message.fetch', { id: `${id}@${a.id}` });
      assert.equal(Buffer.from(read['body'] as Uint8Array).toString(), 'k|body');
      await assert.rejects(fleet.call(b, 'message.fetch', { id: `${id}@${b.id}` }), /there is no message/);
    },
    { judged: false },
  );
});

test('what its retention has ended is neither fetched nor cancelled any more, before any round has swept it', async () => {
  await inWorld(
    32,
    async (bed) => {
      const { a, b, fleet } = bed;
      const params = { host: b.name, harness: 'claude', workspace: '/alpha', body: new Uint8Array([1]), retention_ms: 1000 };
      await fleet.sleep(61_500); // just after a round
      const sent = await fleet.call(a, 'message.send', { ...params, request_id: 'k' });
      const id = String(sent['message_id']);
      await bed.until(a, id, 'accepted');
      await fleet.sleep(1500);
      await assert.rejects(fleet.call(b, 'message.fetch', { id }), /retention of this message has ended/);
      await bed.until(a, id, 'expired');
      assert.equal((await bed.status(b, id)).state, 'expired');
      assert.equal((await bed.status(b, id)).remaining_ms, null);
    },
    { judged: false },
  );
});

test('what a host does not take of news now is told it again together and once in a while, however often it was refused', async () => {
  await inWorld(64, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    let updates = 0;
    const carry = fleet.network.carry.bind(fleet.network);
    fleet.network.carry = (wire, flight) => {
      if (flight.channel === 'wire' && flight.to.hostId === a.id && readRequest(flight.bytes).type === 'update') updates++;
      carry(wire, flight);
    };
    a.life!.store.failing('store_full');
    for (let n = 0; n < 50; n++) {
      await bed.fetch(b, session, id);
      await fleet.sleep(100);
    }
    assert.ok(updates <= 55, `${updates} while it changed`);
    updates = 0;
    await fleet.sleep(10 * 60_000);
    assert.ok(updates > 0 && updates <= 70, `${updates} in ten minutes`);
    a.life!.store.failing(undefined);
    await fleet.sleep(60_000);
    assert.notEqual((await bed.status(a, id)).handed_out_at, null);
    updates = 0;
    await fleet.sleep(10 * 60_000);
    assert.ok(updates <= 3, `${updates} once it has all of them: of reminders`);
  });
});
