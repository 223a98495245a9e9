/** Directed worlds, one rule each: what operators and senders are told, and what lists and ids mean. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Inbox } from '../../daemon/inbox.ts';
import type { Received } from '../../daemon/received-row.ts';
import type { AdminStatus, MessageRow } from '../../protocol/control.ts';
import { makeMessageId } from '../../protocol/ids.ts';
import { attached, inWorld } from './bed.ts';
import type { Bed } from './bed.ts';
import { OWNER } from './fleet.ts';
import type { Host } from './fleet.ts';
import { actorOf } from './reader.ts';

const attention = async (bed: Bed, host: Host): Promise<AdminStatus['attention']> =>
  ((await bed.fleet.call(host, 'admin.status', {})) as unknown as AdminStatus).attention;
const list = async (bed: Bed, host: Host, params: Record<string, unknown>): Promise<string[]> =>
  ((await bed.fleet.call(host, 'message.list', params))['messages'] as MessageRow[]).map((row) => row.message_id);

async function said(bed: Bed, host: Host, what: RegExp, fix: RegExp): Promise<void> {
  const rows = await attention(bed, host);
  const row = rows.find((one) => what.test(one.what));
  assert.ok(row !== undefined, JSON.stringify(rows));
  assert.match(row.fix, fix);
  assert.notEqual(row.since, null);
}

// --- attention ---------------------------------------------------------------------------------------------------------------

test('a message refused for good is named in the overview, with its id and the cause in words', async () => {
  await inWorld(30, async (bed) => {
    const { a, b } = bed;
    const id = await bed.send(a, b, 'k', '/nowhere');
    await bed.until(a, id, 'refused');
    assert.match(String((await bed.status(a, id)).cause?.message), /^there is no folder \/nowhere on .*: .*ax agent sessions/);
    await said(bed, a, new RegExp(`${id} was refused for good: there is no folder /nowhere on ${b.name}`), new RegExp(`status ${id}`));
  });
});

test('what a missing grant defers says who must allow it, and the command to type there', async () => {
  await inWorld(
    31,
    async (bed) => {
      const { a, b } = bed;
      for (const key of ['k1', 'k2']) await bed.until(a, await bed.send(a, b, key), 'deferred');
      await said(
        bed,
        a,
        /does not allow this host .*\(grant_missing\); 2 messages for it wait/,
        /its owner must allow it, on .*: ax host grant HERE write notify/,
      );
    },
    { grants: ['read'], judged: false },
  );
});

test('unread messages that no notice can tell of are named: a harness that is not reached, nobody who can be nudged', async () => {
  await inWorld(32, async (bed) => {
    const { a, b, fleet, checker } = bed;
    b.folders.set('/gamma', '/gamma');
    b.agents.add({ workspace: '/beta', unreachable: 'not interactive' });
    await fleet.sleep(100);
    const alone = await bed.send(a, b, 'alone', '/beta');
    const ask = { key: 'codex', from: a, to: b, workspace: '/gamma', body: new Uint8Array(Buffer.from('codex|')), id: undefined };
    checker.asked(ask);
    const params = { host: b.name, harness: 'codex', workspace: '/gamma', body: ask.body, request_id: 'codex' };
    const codex = String((await fleet.call(a, 'message.send', params))['message_id']);
    checker.sendReturned(ask, codex);
    for (const id of [alone, codex]) await bed.until(a, id, 'accepted');
    await said(bed, b, /for \/gamma wake nobody: this build of ax does not reach codex/, /--workspace \/gamma/);
    await said(bed, b, /for \/beta, where no session can be told \(not interactive\)/, /ax messages list/);
    assert.equal((await bed.status(a, alone)).live_session, false);
    assert.equal((await bed.status(b, alone)).live_session, false);
  });
});

test('unread messages of a folder whose name cannot stand in a notice, taken by an earlier build, are named', async () => {
  await inWorld(
    40,
    async (bed) => {
      const { a, b, fleet } = bed;
      const session = b.agents.add({ workspace: '/a$b' });
      await bed.until(a, await bed.send(a, b, 'k'), 'accepted');
      const inbox = new Inbox(b.life!.store, () => 0);
      const [{ signed, digest }] = inbox.page(undefined, 1) as [Received];
      const old = { signed, digest, sender: a.id, state: 'awaiting_setup', storedAs: 'message', harness: 'claude', hint: null } as const;
      const times = { sentAt: 1, receivedAt: 1, expires: 86_400_000 };
      await b.life!.store.write((tx) =>
        inbox.accept(tx, { ...old, ...times, id: makeMessageId(1, new Uint8Array(10)), workspace: '/a$b', bytes: 1 }, new Uint8Array(1)),
      );
      await said(bed, b, /for \/a\$b wake nobody: a name with/, /ax messages list/);
      await fleet.sleep(10_000);
      assert.equal(session.received.length, 0);
    },
    { judged: false },
  );
});

test('a sender is told of a live session only when one can be nudged', async () => {
  await inWorld(33, async (bed) => {
    const { a, b, fleet } = bed;
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    b.agents.add({ workspace: '/alpha', unreachable: 'not interactive' });
    await fleet.sleep(1000);
    assert.equal((await bed.status(a, id)).live_session, false);
    b.agents.add({ workspace: '/alpha', behaviour: 'drops' });
    await fleet.sleep(1000);
    assert.equal((await bed.status(a, id)).live_session, true);
  });
});

test('attention tells a budget that is used up from several sessions that could be meant', async () => {
  await inWorld(34, async (bed) => {
    const { b, fleet } = bed;
    await bed.send(b, b, 'k');
    const [one, two] = [b.agents.add({ workspace: '/alpha' }), b.agents.add({ workspace: '/alpha' })];
    await fleet.sleep(1000);
    await said(bed, b, /for \/alpha wake nobody: several sessions could be meant/, /in one of them/);
    b.agents.end(two);
    one.behaviour = 'drops';
    for (let cleared = 0; cleared < 12; cleared++) {
      b.agents.clear(one); // each conversation is told anew, until the budget is used up
      await fleet.sleep(3000);
    }
    const last = await bed.send(b, b, 'last', '/alpha');
    await fleet.sleep(5000);
    assert.equal((await bed.status(b, last)).receiver_notice, 'withheld');
    assert.ok((await bed.status(b, last)).history.some((row) => row.detail === "the sender's budget of notices is used up"));
  });
});

// --- counts, lists, ids ------------------------------------------------------------------------------------------------------

test('setup and fetch tell how many wait in all, not only how many they list', async () => {
  await inWorld(35, async (bed) => {
    const { a, b, fleet } = bed;
    const ids = await Promise.all(Array.from({ length: 23 }, (_, index) => bed.send(a, b, `k${index}`)));
    for (const id of ids) await bed.until(a, id, 'accepted');
    const session = b.agents.add({ workspace: '/alpha', behaviour: 'drops' });
    await fleet.sleep(100);
    const setup = await fleet.call(b, 'agent.setup', { name: 'alpha', workspace: '/alpha' }, actorOf(session));
    assert.deepEqual([(setup['waiting'] as unknown[]).length, setup['waiting_count']], [20, 23]);
    const read = await fleet.call(b, 'message.fetch', { id: ids[0] });
    assert.deepEqual([(read['waiting'] as unknown[]).length, read['waiting_count']], [10, 22]);
    await bed.confirm(b, ids[0]!, (await bed.fetch(b, session, ids[0]!)).token, a);
    assert.equal((await fleet.call(b, 'message.fetch', { id: ids[0] }))['waiting_count'], 22);
  });
});

test('the sent list of a workspace holds what its agent sent, not what was sent to a folder of that name', async () => {
  await inWorld(36, async (bed) => {
    const { a, b } = bed;
    const session = await attached(bed, a, '/beta');
    const fromBeta = await bed.send(a, b, 'from', '/alpha', actorOf(session));
    const toBeta = await bed.send(a, b, 'to', '/beta', OWNER);
    for (const id of [fromBeta, toBeta]) await bed.until(a, id, 'accepted');
    assert.deepEqual(await list(bed, a, { sent: true, workspace: '/beta' }), [fromBeta]);
    assert.deepEqual(await list(bed, b, { workspace: '/beta' }), [toBeta]);
    assert.deepEqual(await list(bed, a, { sent: true, state: 'accepted', limit: 1 }), [toBeta]);
    assert.deepEqual(await list(bed, a, { sent: true, before: toBeta }), [fromBeta]);
  });
});

test('a list does not go on before a message of the other list: that is refused, not begun anew', async () => {
  await inWorld(37, async (bed) => {
    const { a, b } = bed;
    const [sent, received] = [await bed.send(a, b, 'sent'), await bed.send(b, a, 'received')];
    await bed.until(a, sent, 'accepted');
    await bed.until(b, received, 'accepted');
    await assert.rejects(list(bed, a, { before: sent }), { code: 'invalid_argument' });
    await assert.rejects(list(bed, a, { sent: true, before: received }), { code: 'invalid_argument' });
  });
});

test('fetching what was sent from here says so, and an id typed in upper case is the same id', async () => {
  await inWorld(38, async (bed) => {
    const { a, b, fleet } = bed;
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    await assert.rejects(fleet.call(a, 'message.fetch', { id }), {
      code: 'message_not_found',
      message: 'that message was sent from here; its body is with its receiver',
      fix: `ax admin status ${id}`,
    });
    assert.equal((await fleet.call(b, 'message.fetch', { id: id.toUpperCase() }))['message_id'], id);
  });
});

// --- agents and pickups ------------------------------------------------------------------------------------------------------

test('an agent removed between hand-out and confirmation does not undo the pickup', async () => {
  await inWorld(39, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const [read, left] = [await bed.send(a, b, 'read'), await bed.send(a, b, 'left')];
    for (const id of [read, left]) await bed.until(a, id, 'accepted');
    const { token } = await bed.fetch(b, session, read);
    assert.equal((await fleet.call(b, 'agent.remove', { name: 'alpha' }))['waiting'], 2);
    assert.equal((await bed.status(b, read)).state, 'awaiting_setup');
    await bed.confirm(b, read, token, a);
    await bed.until(a, read, 'fetched');
    assert.equal((await bed.status(b, left)).state, 'awaiting_setup');
    await assert.rejects(fleet.call(b, 'message.fetch', { id: left }, actorOf(session)), { code: 'invalid_state' });
  });
});
