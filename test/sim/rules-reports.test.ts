/** Directed worlds for what others' users have reported (docs/reliability.md): equal bodies, sleep, wrong clocks, other builds, failed disks, silence. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AdminStatus, MessageRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { PEER_PROTOCOL } from '../../protocol/version.ts';
import { attached, holdAnswer, inWorld, seeds } from './bed.ts';
import type { Bed } from './bed.ts';
import type { Host } from './fleet.ts';

const HOUR = 3_600_000;
const YEAR = 365 * 24 * HOUR;

const attention = async (bed: Bed, host: Host): Promise<string> =>
  JSON.stringify(((await bed.fleet.call(host, 'admin.status', {})) as unknown as AdminStatus).attention);

async function restart(bed: Bed, host: Host): Promise<void> {
  await bed.fleet.stop(host);
  await bed.fleet.boot(host);
}

test('two equal bodies are two messages: what is known already is known by its id, never by its body', async () => {
  await inWorld(
    401,
    async ({ fleet, a, b, until }) => {
      const params = {
        host: b.name,
        harness: 'claude',
        workspace: '/alpha',
        body: new Uint8Array(Buffer.from('the same')),
        subject: 'same',
      };
      const ids = [];
      for (let n = 0; n < 5; n++) ids.push(String((await fleet.call(a, 'message.send', { ...params, request_id: `k${n}` }))['message_id']));
      for (const id of ids) await until(a, id, 'accepted');
      const rows = (await fleet.call(b, 'message.list', { limit: 50 }))['messages'] as MessageRow[];
      assert.deepEqual(rows.map((row) => row.message_id).toSorted(), ids.toSorted());
    },
    { judged: false },
  );
});

for (const kind of ['suspended', 'stopped'] as const)
  test(`a machine that was ${kind} for ten hours ends nothing by that, finds its peers again, and gets what waited`, async () => {
    await inWorld(402, async (bed) => {
      const { a, b, fleet, world } = bed;
      const before = await bed.send(a, b, 'before', '/alpha');
      await bed.until(a, before, 'accepted');
      const own = await bed.send(b, a, 'own', '/alpha'); // on its way while the lid closes
      b.machine.sleep(kind);
      const during = await bed.send(a, b, 'during', '/alpha');
      await fleet.sleep(10 * HOUR);
      assert.notEqual((await bed.status(a, during)).state, 'expired');
      b.machine.wake();
      const woke = world.time;
      await bed.until(a, during, 'accepted');
      await bed.until(b, own, 'accepted');
      assert.ok(world.time - woke < 6 * 60_000, `it took ${world.time - woke} ms to come back`);
      const session = await attached(bed, b);
      for (const id of [before, during]) await bed.confirm(b, id, (await bed.fetch(b, session, id)).token, a);
      await bed.until(a, during, 'fetched');
    });
  });

test('hosts whose clocks are years apart, and are set again meanwhile, end nothing early and list by arrival', async () => {
  await inWorld(403, async (bed) => {
    const { a, b, fleet } = bed;
    a.machine.skewMs = -3 * YEAR;
    b.machine.skewMs = 5 * YEAR;
    const ids = [await bed.send(a, b, 'first')];
    await bed.until(a, ids[0]!, 'accepted');
    b.machine.skewMs = -8 * YEAR;
    ids.push(await bed.send(a, b, 'second'));
    await bed.until(a, ids[1]!, 'accepted');
    a.machine.skewMs = 20 * YEAR;
    await fleet.sleep(HOUR);
    const rows = (await fleet.call(b, 'message.list', {}))['messages'] as MessageRow[];
    assert.deepEqual(
      rows.map((row) => [row.message_id, row.state]),
      ids.toReversed().map((id) => [id, 'awaiting_setup']),
    );
    for (const id of ids) assert.ok(Number((await bed.status(a, id)).state === 'accepted'));
  });
});

for (const by of [1, -1])
  test(`a host that comes back as ${by > 0 ? 'a newer' : 'an older'} build without a common protocol is told so, and what waits arrives after the update`, async () => {
    await inWorld(404, async (bed) => {
      const { a, b, fleet } = bed;
      b.machine.protocol = { min: PEER_PROTOCOL.min + by, max: PEER_PROTOCOL.max + by };
      await restart(bed, b);
      await fleet.sleep(5000);
      const id = await bed.send(a, b, 'k');
      await fleet.sleep(HOUR);
      assert.equal((await bed.status(a, id)).state, 'queued');
      assert.match(await attention(bed, a), /without a common protocol/);
      assert.match(await attention(bed, b), /without a common protocol/);
      await assert.rejects(
        fleet.call(a, 'host.ping', { host: b.name }),
        (error) => error instanceof AxError && error.code === 'update_required',
      );
      b.machine.protocol = PEER_PROTOCOL;
      await restart(bed, b);
      await bed.until(a, id, 'accepted');
    });
  });

test('what was about to leave when its host went away waits for a greeting, whatever answers there then', async () => {
  for (const seed of seeds(12))
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, world } = bed;
      const sends = Array.from({ length: 6 }, (_, n) => bed.send(a, b, `k${n}`));
      await fleet.sleep(world.between(0, 40));
      fleet.crash(b);
      fleet.network.reset(a.id, b.id);
      b.machine.protocol = { min: PEER_PROTOCOL.min + 1, max: PEER_PROTOCOL.max + 1 };
      await fleet.boot(b);
      await fleet.sleep(10_000);
      b.machine.protocol = PEER_PROTOCOL;
      await restart(bed, b);
      for (const id of await Promise.all(sends)) await bed.until(a, id, 'accepted');
    });
});

test('a disk that fails under the receiver: nothing is acknowledged, it says so, and after a restart everything arrives once', async () => {
  await inWorld(405, async (bed) => {
    const { a, b, fleet } = bed;
    const before = await bed.send(a, b, 'before');
    await bed.until(a, before, 'accepted');
    b.life!.store.failing('internal');
    const id = await bed.send(a, b, 'k');
    await fleet.sleep(HOUR);
    assert.notEqual((await bed.status(a, id)).state, 'accepted');
    await assert.rejects(fleet.call(b, 'agent.remove', { name: 'nobody' }), AxError);
    fleet.crash(b);
    await fleet.boot(b);
    await bed.until(a, id, 'accepted');
    const rows = (await fleet.call(b, 'message.list', {}))['messages'] as MessageRow[];
    assert.deepEqual(rows.map((row) => row.message_id).toSorted(), [before, id].toSorted());
  });
});

test('a session that was told and never looked is named after a while, with its folder and since when', async () => {
  await inWorld(406, async (bed) => {
    const { a, b, fleet } = bed;
    await attached(bed, b); // it drops every notice
    await bed.send(a, b, 'k');
    await fleet.sleep(5 * 60_000);
    assert.doesNotMatch(await attention(bed, b), /has not fetched/);
    await fleet.sleep(5 * HOUR);
    assert.match(await attention(bed, b), /a session in \/alpha was told of unread messages and has not fetched them/);
  });
});

test('a message for which there is no room keeps none behind it waiting, also where its workspace was over its rate', async () => {
  await inWorld(
    407,
    async (bed) => {
      const { a, b, fleet, checker } = bed;
      const large = {
        key: 'large',
        from: a,
        to: b,
        workspace: '/alpha',
        body: new Uint8Array(Buffer.from(`large|${'x'.repeat(5000)}`)),
        id: undefined,
      };
      checker.asked(large);
      const params = { host: b.name, harness: 'claude', workspace: '/alpha', body: large.body, request_id: 'large' };
      const first = String((await fleet.call(a, 'message.send', params))['message_id']);
      checker.sendReturned(large, first);
      const small = await Promise.all(['s1', 's2', 's3', 's4'].map((key) => bed.send(a, b, key)));
      for (const id of small) await bed.until(a, id, 'accepted');
      assert.equal((await bed.status(a, first)).cause?.code, 'limit');
    },
    { limits: { waitingBytes: 1000, messageBurst: 2, messagesPerMinute: 6 } },
  );
});

test('a sender that missed how its message ended, being a stranger there then, asks until it is told, also over a bad network', async () => {
  for (const seed of seeds(12))
    await inWorld(seed, async (bed) => {
      const { a, b, fleet, checker } = bed;
      const ask = {
        key: 'k',
        from: a,
        to: b,
        workspace: '/alpha',
        body: new Uint8Array(Buffer.from('k|')),
        id: undefined,
        retentionMs: 5000,
      };
      checker.asked(ask);
      const params = { host: b.name, harness: 'claude', workspace: '/alpha', body: ask.body, request_id: 'k', retention_ms: 5000 };
      const id = String((await fleet.call(a, 'message.send', params))['message_id']);
      checker.sendReturned(ask, id);
      await bed.until(a, id, 'accepted');
      await fleet.call(b, 'host.remove', { host: a.name });
      await fleet.sleep(60_000);
      const address = `${fleet.network.addressOf(a.id)}/p2p/${a.id}`;
      await fleet.call(b, 'host.add', { name: a.name, address });
      Object.assign(fleet.network.faults, { loseRequest: 0.6 });
      await fleet.sleep(30_000);
      Object.assign(fleet.network.faults, { loseRequest: 0 });
      await bed.until(a, id, 'expired');
    });
});

test('a message that had expired with its cancel unanswered expires once in the log, also when its host is removed then', async () => {
  await inWorld(409, async (bed) => {
    const { a, b, fleet } = bed;
    holdAnswer(bed, 60_000);
    const params = { host: b.name, harness: 'claude', workspace: '/alpha', body: new Uint8Array(Buffer.from('k|body')), deadline_ms: 5000 };
    bed.checker.asked({ key: 'k', from: a, to: b, workspace: '/alpha', body: params.body, id: undefined, deadlineMs: 5000 });
    const id = String((await fleet.call(a, 'message.send', { ...params, request_id: 'k' }))['message_id']);
    await fleet.sleep(100);
    fleet.crash(b);
    await fleet.call(a, 'admin.cancel', { id });
    await bed.until(a, id, 'expired');
    await fleet.call(a, 'host.remove', { host: b.name, cancel_pending: true });
    const { events } = await fleet.call(a, 'admin.events', { since: 0, limit: 500 });
    const ends = (events as { type: string; message_id: string | null }[]).filter(
      (one) => one.message_id === id && one.type === 'message.expired',
    );
    assert.equal(ends.length, 1);
    await fleet.boot(b);
  });
});

test('two spellings that a file system takes for one folder are one address, and two where it does not: its real path decides', async () => {
  await inWorld(229, async (bed) => {
    const { a, b, fleet } = bed;
    for (const path of ['/mnt/c/Work', '/MNT/C/WORK']) b.folders.set(path, '/mnt/c/Work'); // folds case
    for (const path of ['/srv/Work', '/srv/work']) b.folders.set(path, path); // keeps it
    const to = async (path: string): Promise<string> => {
      const id = await bed.send(a, b, path.replaceAll('/', '.'), path);
      await bed.until(a, id, 'accepted');
      return id;
    };
    const [one, two, three, four] = [await to('/mnt/c/Work'), await to('/MNT/C/WORK'), await to('/srv/Work'), await to('/srv/work')];
    const listed = async (workspace: string): Promise<string[]> =>
      ((await fleet.call(b, 'message.list', { workspace }))['messages'] as MessageRow[]).map((row) => row.message_id);
    assert.deepEqual(
      [await listed('/mnt/c/Work'), await listed('/MNT/C/WORK')],
      [
        [two, one],
        [two, one],
      ],
    );
    assert.deepEqual([await listed('/srv/Work'), await listed('/srv/work')], [[three], [four]]);
  });
});
