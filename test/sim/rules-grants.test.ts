/** Directed worlds, one rule each: a host gets exactly what it was granted, a change counts at once, and both owners see what is missing. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AxError } from '../../protocol/errors.ts';
import { inWorld } from './bed.ts';
import type { Bed } from './bed.ts';
import type { Host } from './fleet.ts';

type Overview = { attention: { what: string; fix: string }[] };
const attention = async (bed: Bed, host: Host): Promise<Overview['attention']> =>
  ((await bed.fleet.call(host, 'admin.status', {})) as unknown as Overview).attention;
const change = (bed: Bed, method: 'host.grant' | 'host.revoke', params: object): Promise<Record<string, unknown>> =>
  bed.fleet.call(bed.b, method, { host: bed.a.name, ...params });

test('a message without the right to leave it waits, both owners see why, and a grant lets it through without a new send', async () => {
  await inWorld(
    71,
    async (bed) => {
      const { a, b, world } = bed;
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'deferred');
      assert.equal((await bed.status(a, id)).cause?.code, 'grant_missing');
      assert.match(JSON.stringify(await attention(bed, a)), /does not allow this host to leave messages.*ax host grant HERE write notify/);
      const [row] = (await attention(bed, b)).filter((one) => one.what.includes('was refused'));
      assert.match(row?.fix ?? '', new RegExp(`^if it should: ax host grant ${a.name} write; otherwise nothing need be done$`));
      const before = world.time;
      await change(bed, 'host.grant', { actions: ['write'] });
      await bed.until(a, id, 'accepted');
      assert.ok(world.time - before < 15_000, `the grant took effect after ${world.time - before} ms`);
      assert.deepEqual(
        (await attention(bed, b)).filter((one) => one.what.includes('was refused')),
        [],
      );
    },
    { grants: ['read'] },
  );
});

test('without notify a message is kept as a note, wakes nobody, and both sides say so', async () => {
  await inWorld(
    72,
    async (bed) => {
      const { a, b, fleet } = bed;
      const session = b.agents.add({ workspace: '/alpha' });
      await fleet.sleep(2000);
      const id = await bed.send(a, b, 'k');
      await bed.until(a, id, 'accepted');
      await fleet.sleep(3_600_000);
      assert.equal(session.received.length, 0);
      assert.equal((await bed.status(a, id)).stored_as, 'note');
      const [row] = (await attention(bed, b)).filter((one) => one.what.includes('kept as notes'));
      assert.equal(row, undefined, 'an hour later it is no news');
      await bed.send(a, b, 'k2');
      await fleet.sleep(2000);
      const fresh = (await attention(bed, b)).filter((one) => one.what.includes('kept as notes'));
      assert.equal(fresh[0]?.fix, `if it should: ax host grant ${a.name} notify --workspace /alpha; otherwise nothing need be done`);
    },
    { grants: ['read', 'write'] },
  );
});

test('a right that is taken back counts at once on the open connection: the next message waits, and what lies unread wakes nobody', async () => {
  await inWorld(73, async (bed) => {
    const { a, b, fleet } = bed;
    const first = await bed.send(a, b, 'first');
    await bed.until(a, first, 'accepted');
    await change(bed, 'host.revoke', { actions: ['write', 'notify'] });
    const second = await bed.send(a, b, 'second');
    await bed.until(a, second, 'deferred');
    const session = b.agents.add({ workspace: '/alpha' });
    await fleet.sleep(600_000);
    assert.equal(session.received.length, 0);
    await change(bed, 'host.grant', { actions: ['write', 'notify'] });
    await bed.until(a, second, 'accepted');
    await fleet.sleep(60_000);
    assert.ok(session.received.length > 0, 'with the right back, it is told');
  });
});

test('what a host left unread before it was removed is told of once it is paired again', async () => {
  await inWorld(77, async (bed) => {
    const { a, b, fleet } = bed;
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    await fleet.call(b, 'host.remove', { host: a.name });
    const session = b.agents.add({ workspace: '/alpha' });
    await fleet.sleep(60_000);
    assert.equal(session.received.length, 0);
    await fleet.call(b, 'host.add', { name: a.name, address: `${fleet.network.addressOf(a.id)}/p2p/${a.id}` });
    await fleet.sleep(10_000);
    assert.ok(session.received.length > 0, 'it is told without waiting for something else to happen there');
  });
});

test('a grant for one workspace lets messages into that one only, and lists the sessions of that one only', async () => {
  await inWorld(
    74,
    async (bed) => {
      const { a, b, fleet } = bed;
      b.agents.add({ workspace: '/alpha' });
      b.agents.add({ workspace: '/beta' });
      await fleet.sleep(2000);
      await assert.rejects(sessionsOf(bed), /grant_missing/);
      await change(bed, 'host.grant', { actions: ['read', 'write', 'notify'], workspace: '/alpha' });
      const into = await bed.send(a, b, 'into', '/alpha');
      const beside = await bed.send(a, b, 'beside', '/beta');
      await bed.until(a, into, 'accepted');
      await bed.until(a, beside, 'deferred');
      assert.deepEqual(await sessionsOf(bed), ['/alpha']);
      assert.equal((await fleet.call(a, 'admin.cancel', { id: beside }))['state'], 'cancelled');
    },
    { grants: [] },
  );
});

test('a host that may write to one folder only is told the same of a folder that is not granted and of one that is not there', async () => {
  await inWorld(
    77,
    async (bed) => {
      const { a, b } = bed;
      await change(bed, 'host.grant', { actions: ['write'], workspace: '/alpha' });
      const ids: string[] = [];
      const told = async (workspace: string, state = 'deferred'): Promise<unknown> => {
        const id = await bed.send(a, b, `to${workspace.replaceAll('/', '-')}`, workspace);
        await bed.until(a, id, state);
        ids.push(id);
        return (await bed.status(a, id)).cause?.code;
      };
      assert.deepEqual([await told('/beta'), await told('/nowhere')], ['grant_missing', 'grant_missing']);
      await change(bed, 'host.grant', { actions: ['write'] });
      assert.equal(await told('/nowhere/else', 'refused'), 'not_found', 'whoever may write everywhere is told');
      await bed.until(a, ids[0]!, 'accepted');
      await bed.until(a, ids[1]!, 'refused');
    },
    { grants: [] },
  );
});

test('a grant that expires ends by itself', async () => {
  await inWorld(
    75,
    async (bed) => {
      const { a, b, fleet } = bed;
      await change(bed, 'host.grant', { actions: ['write'], expires_ms: 3_600_000 });
      const first = await bed.send(a, b, 'first');
      await bed.until(a, first, 'accepted');
      await fleet.sleep(3_600_000);
      const second = await bed.send(a, b, 'second');
      await bed.until(a, second, 'deferred');
      assert.equal((await bed.status(a, second)).cause?.code, 'grant_missing');
      assert.equal((await fleet.call(a, 'admin.cancel', { id: second }))['state'], 'cancelled');
    },
    { grants: ['read'] },
  );
});

test('a right to cause notices that ends by itself is missed within a second: what lies unread says so on both hosts, and wakes nobody', async () => {
  await inWorld(
    78,
    async (bed) => {
      const { a, b, fleet } = bed;
      await change(bed, 'host.grant', { actions: ['notify'], expires_ms: 600_000 });
      const quiet = await bed.send(a, b, 'quiet', '/beta');
      const id = await bed.send(a, b, 'k');
      for (const one of [id, quiet]) await bed.until(a, one, 'accepted');
      await fleet.sleep(590_000);
      assert.notEqual((await bed.status(b, id)).receiver_notice_reason, 'no_right');
      await fleet.sleep(11_000);
      for (const one of [id, quiet])
        for (const host of [a, b]) assert.equal((await bed.status(host, one)).receiver_notice_reason, 'no_right', `${one} at ${host.name}`);
      assert.match(JSON.stringify(await attention(bed, b)), /for \/alpha wake nobody: that host may cause no notices here any more/);
      const session = b.agents.add({ workspace: '/alpha' });
      await fleet.sleep(600_000);
      assert.equal(session.received.length, 0);
      await change(bed, 'host.grant', { actions: ['notify'] });
      await fleet.sleep(10_000);
      assert.ok(session.received.length > 0, 'with the right back, it is told');
    },
    { grants: ['read', 'write'] },
  );
});

test('a change of grants names a known action and a paired host, or changes nothing', async () => {
  await inWorld(76, async (bed) => {
    const refusals: [object, string][] = [
      [{ actions: [] }, 'invalid_argument'],
      [{ actions: ['fly'] }, 'invalid_argument'],
      [{ actions: ['read'], expires_ms: 5 }, 'invalid_argument'],
      [{ actions: ['exec'], workspace: '/nowhere' }, 'not_found'],
      [{ actions: ['exec'], workspace: 'relative' }, 'invalid_argument'],
      [{ actions: ['exec'], host: 'Localhost' }, 'invalid_argument'],
      [{ actions: ['exec'], host: 'nobody' }, 'host_not_found'],
    ];
    const before = await bed.fleet.call(bed.b, 'host.list', {});
    for (const [params, code] of refusals)
      await assert.rejects(
        change(bed, 'host.grant', params),
        (error) => error instanceof AxError && error.code === code,
        JSON.stringify(params),
      );
    const grantsOf = (list: Record<string, unknown>): unknown => (list['hosts'] as { grants: string[] }[]).map((host) => host.grants);
    assert.deepEqual(grantsOf(await bed.fleet.call(bed.b, 'host.list', {})), grantsOf(before));
  });
});

test('of two revokes of the same right at the same time only one is a change', async () => {
  await inWorld(
    77,
    async (bed) => {
      const asked = [1, 2].map(() => change(bed, 'host.revoke', { actions: ['write'], workspace: null }));
      const [one, other] = await Promise.all(asked);
      assert.equal(one?.['revision'], other?.['revision']);
      const log = (await bed.fleet.call(bed.b, 'admin.events', {}))['events'] as { type: string }[];
      assert.equal(log.filter((event) => event.type === 'host.revoked').length, 1);
    },
    { grants: ['read', 'write'] },
  );
});

/** The workspaces of the sessions that host b lists to host a; rejects with the code when it lists none. */
async function sessionsOf(bed: Bed): Promise<string[]> {
  const answer = await bed.fleet.call(bed.a, 'agent.sessions', { host: bed.b.name });
  const [row] = answer['hosts'] as { error: { code: string } | null; sessions: { workspace: string }[] }[];
  if (row?.error !== null && row?.error !== undefined) throw new Error(row.error.code);
  return (row?.sessions ?? []).map((session) => session.workspace);
}
