/** Directed worlds, one rule each: how many notices and messages one host may cause at another, and that nobody else pays for it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AdminStatus, MessageRow } from '../../protocol/control.ts';
import { NOTICE_BURST, NOTICES_PER_HOUR } from '../../protocol/limits.ts';
import { attached, inWorld } from './bed.ts';
import type { Bed } from './bed.ts';
import type { Host } from './fleet.ts';
import type { SimSession } from './harness.ts';
import { actorOf } from './reader.ts';

const HOUR = 3_600_000;
const HOURS = 10;

const unread = async (bed: Bed, host: Host): Promise<string[]> =>
  ((await bed.fleet.call(host, 'message.list', { state: 'available', limit: 500 }))['messages'] as MessageRow[]).map(
    (row) => row.message_id,
  );

/** Reads everything that waits when its turn begins, as an agent does that goes by its list. */
async function readAll(bed: Bed, host: Host, session: SimSession): Promise<number> {
  const { checker } = bed;
  const ids = await unread(bed, host);
  const from = host === bed.a ? bed.b : bed.a;
  for (const id of ids.toReversed()) {
    checker.touching(session.sessionId);
    const { token } = await bed.fetch(host, session, id);
    checker.touched(session.sessionId);
    await bed.confirm(host, id, token, from);
  }
  return ids.length;
}

test('two agents that answer each other at once, all night, stay within the budget of notices; nothing is lost, and both sides see why it is slow', async () => {
  let sent = 0;
  const say = async (bed: Bed, host: Host, session: SimSession): Promise<string> =>
    bed.send(host, host === bed.a ? bed.b : bed.a, `m${sent++}`, '/alpha', actorOf(session));
  await inWorld(
    320,
    async (bed) => {
      const { a, b, fleet, checker } = bed;
      const pairs: [Host, SimSession][] = [
        [a, await attached(bed, a)],
        [b, await attached(bed, b)],
      ];
      for (const [, session] of pairs) session.behaviour = 'acts';
      await say(bed, a, pairs[0]![1]);
      await fleet.sleep(HOURS * HOUR);
      for (const [host, session] of pairs) {
        const count = session.received.length;
        const most = NOTICE_BURST + NOTICES_PER_HOUR * HOURS + 1;
        assert.ok(count <= most, `${count} notices in ${HOURS} h at ${host.name}, at most ${most}`);
        assert.ok(count >= NOTICES_PER_HOUR * HOURS, `${count}: the budget is used, not cut`);
      }
      await waitsForBudget(bed);
      assert.ok(sent > 2 * NOTICES_PER_HOUR * HOURS);
      for (const ask of checker.asks.values()) assert.equal((await bed.status(ask.to, ask.id!)).message_id, ask.id);
    },
    {
      onAct: async (bed, host, session) => {
        for (let count = await readAll(bed, host, session); count > 0; count--) await say(bed, host, session);
      },
    },
  );
});

/** Within some minutes a message waits for the budget at the slower of the two, and both its sender and its receiver are told so. */
async function waitsForBudget(bed: Bed): Promise<void> {
  const seen: unknown[] = [];
  for (let tries = 0; tries < 60; tries++) {
    for (const [host, sender] of [
      [bed.a, bed.b],
      [bed.b, bed.a],
    ] as const) {
      const [waiting] = await unread(bed, host);
      if (waiting === undefined) continue;
      const { receiver_notice: outcome, receiver_notice_reason: reason } = await bed.status(sender, waiting);
      const overview = (await bed.fleet.call(host, 'admin.status', {})) as unknown as AdminStatus;
      const isTold = JSON.stringify(overview.attention).includes("wake nobody for now: the sender's budget of notices is used up");
      if (isTold && outcome === 'withheld' && reason === 'budget') return;
      seen.push([host.name, outcome, reason, isTold]);
    }
    await bed.fleet.sleep(5000);
  }
  assert.fail(JSON.stringify(seen));
}

test('twenty messages within a second cause a few notices, not twenty', async () => {
  await inWorld(
    321,
    async (bed) => {
      const { a, b, fleet } = bed;
      const session = await attached(bed, b);
      session.behaviour = 'acts';
      for (let n = 0; n < 20; n++) {
        await bed.send(a, b, `k${n}`);
        await fleet.sleep(40);
      }
      await fleet.sleep(10 * 60_000);
      assert.ok(session.received.length >= 1 && session.received.length <= 3, String(session.received.length));
      assert.deepEqual(await unread(bed, b), []);
    },
    { onAct: async (bed, host, session) => void (await readAll(bed, host, session)) },
  );
});

test('who is over the rate for a workspace is told when to come back and loses nothing; other workspaces and other hosts wait for none of it', async () => {
  await inWorld(
    322,
    async (bed) => {
      const { a, b, fleet, world } = bed;
      const c = fleet.hosts[2]!;
      const { code } = await fleet.call(b, 'host.invite', {});
      await fleet.call(c, 'host.join', { code, name: b.name });
      await fleet.sleep(1000);
      const flood: string[] = [];
      for (let n = 0; n < 120; n++) flood.push(await bed.send(a, b, `flood${n}`));
      await fleet.sleep(1000);
      const late = (await bed.status(a, flood.at(-1)!)).state;
      assert.ok(late === 'queued' || late === 'deferred', late);
      const shown = await Promise.all(flood.map((id) => bed.status(a, id)));
      const throttled = shown.filter((one) => one.state === 'deferred');
      assert.ok(throttled.length > 0);
      for (const { cause } of throttled) {
        assert.equal(cause?.code, 'throttled');
        assert.ok(cause.retry_after_ms! >= 1000 && cause.retry_after_ms! < 60_000, String(cause.retry_after_ms));
      }
      const began = world.time;
      const beside = await bed.send(a, b, 'beside', '/beta');
      const other = await bed.send(c, b, 'other');
      await bed.until(a, beside, 'accepted');
      await bed.until(c, other, 'accepted');
      assert.ok(world.time - began < 2000, `${world.time - began} ms`);
      const seen = await bed.status(a, flood.at(-1)!);
      assert.notEqual(seen.state, 'accepted', 'all the while the flood waits');
      for (const id of flood) await bed.until(a, id, 'accepted');
      const minutes = (world.time - began) / 60_000;
      assert.ok(minutes > 1 && minutes < 4, `${minutes} min for 120 messages at 60 a minute`);
    },
    { hosts: 3, limits: { messagesPerMinute: 60, messageBurst: 20 } },
  );
});
