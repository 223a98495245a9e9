/** Directed worlds, one rule each: an agent that is quiet, a right to notify that was taken back, and a crash just after a session was told. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AdminStatus, AgentRow, MessageStatus, SessionHost } from '../../protocol/control.ts';
import { attached, inWorld } from './bed.ts';
import type { Bed } from './bed.ts';
import type { Host } from './fleet.ts';
import { actorOf } from './reader.ts';

const [SECOND, MINUTE, HOUR] = [1000, 60_000, 3_600_000];

const attention = async (bed: Bed, host: Host): Promise<AdminStatus['attention']> =>
  ((await bed.fleet.call(host, 'admin.status', {})) as unknown as AdminStatus).attention;
const LOCAL = { host: 'Localhost', harness: 'claude', workspace: '/alpha', body: new Uint8Array([1]) };
const agent = async (bed: Bed, host: Host): Promise<AgentRow> =>
  ((await bed.fleet.call(host, 'agent.list', {}))['agents'] as AgentRow[])[0]!;
const notice = ({ receiver_notice, receiver_notice_reason }: MessageStatus): unknown[] => [receiver_notice, receiver_notice_reason];

test('an agent that made itself quiet gets no notice until its time is over, over restarts too; its sender sees why, and it is told at once then', async () => {
  await inWorld(300, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const began = fleet.world.time;
    const answer = await fleet.call(b, 'agent.quiet', { for_ms: 8 * HOUR }, actorOf(session));
    assert.equal((answer['agent'] as AgentRow).name, 'alpha');
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    await fleet.sleep(SECOND);
    assert.deepEqual(notice(await bed.status(a, id)), ['withheld', 'quiet']);
    assert.deepEqual(notice(await bed.status(b, id)), ['withheld', 'quiet']);
    const [row] = (await attention(bed, b)).filter((one) => one.what.includes('/alpha'));
    assert.match(row?.what ?? '', /^unread messages for \/alpha wait: its agent alpha is quiet until 20\d\d-.*Z$/);
    assert.match(row?.fix ?? '', /^nothing need be done.*ax agent unquiet alpha$/);
    fleet.crash(b);
    await fleet.boot(b);
    const listed = await agent(bed, b);
    assert.deepEqual([listed.quiet, listed.waiting], [true, 1]);
    assert.ok(Math.abs(listed.quiet_until! - (1_790_000_000_000 + began + 8 * HOUR)) < 5 * SECOND, String(listed.quiet_until));
    await fleet.sleep(began + 8 * HOUR - MINUTE - fleet.world.time);
    assert.equal(session.received.length, 0);
    await fleet.sleep(MINUTE + 5 * SECOND);
    assert.equal(session.received.length, 1);
    assert.deepEqual(notice(await bed.status(a, id)), ['written', null]);
    assert.deepEqual([(await agent(bed, b)).quiet, (await agent(bed, b)).quiet_until], [false, null]);
  });
});

test('a session that quiets its agent while the agent gets another name quiets that agent', async () => {
  await inWorld(307, async (bed) => {
    const { b, fleet } = bed;
    const session = await attached(bed, b);
    await Promise.all([
      fleet.call(b, 'agent.rename', { name: 'alpha', new_name: 'beta' }),
      fleet.call(b, 'agent.quiet', { for_ms: HOUR }, actorOf(session)),
    ]);
    assert.deepEqual([(await agent(bed, b)).name, (await agent(bed, b)).quiet], ['beta', true]);
  });
});

test('the acceptance itself says that the agent is quiet, to another host, to this one and in the list of sessions; what waited before says nothing of it', async () => {
  await inWorld(306, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    const rows = async (): Promise<unknown[]> => {
      const { hosts } = (await fleet.call(a, 'agent.sessions', { host: b.name })) as unknown as { hosts: SessionHost[] };
      return hosts[0]!.sessions.map((row) => [row.quiet, row.quiet_until === null]);
    };
    assert.deepEqual(await rows(), [[false, true]]);
    await fleet.call(b, 'agent.quiet', { name: 'alpha', for_ms: HOUR });
    await fleet.sleep(2 * MINUTE);
    assert.deepEqual(await rows(), [[true, false]]);
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    assert.deepEqual(notice(await bed.status(a, id)), ['withheld', 'quiet'], 'at the first sight of the acceptance');
    const own = await fleet.call(b, 'message.send', { ...LOCAL, request_id: 'own' });
    assert.equal(own['receiver_notice_reason'], 'quiet');
    await fleet.call(b, 'agent.unquiet', { name: 'alpha' });
    await fleet.sleep(5 * SECOND);
    assert.deepEqual(notice(await bed.status(a, id)), ['written', null]);
    assert.equal(session.received.length > 0, true);
  });
});

test('a quiet without an end lasts until unquiet, which tells at once; a message can be fetched all the while, and a machine tells the three apart', async () => {
  await inWorld(301, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    await fleet.call(b, 'agent.quiet', { name: 'alpha' });
    const [first, second] = [await bed.send(a, b, 'first'), await bed.send(a, b, 'second')];
    for (const id of [first, second]) await bed.until(a, id, 'accepted');
    await fleet.sleep((40 * HOUR) / 4);
    assert.equal(session.received.length, 0);
    const listed = await agent(bed, b);
    assert.deepEqual([listed.quiet, listed.quiet_until], [true, null]);
    assert.match(JSON.stringify(await attention(bed, b)), /agent alpha is quiet until it is unquiet/);
    await bed.confirm(b, first, (await bed.fetch(b, session, first)).token, a);
    await bed.until(a, first, 'fetched');
    assert.equal((await fleet.call(b, 'agent.unquiet', {}, actorOf(session)))['was_quiet'], true);
    const third = await bed.send(a, b, 'third');
    await bed.until(a, third, 'accepted');
    await fleet.sleep(5 * SECOND);
    assert.equal(session.received.length, 1);
    assert.equal((await fleet.call(b, 'agent.unquiet', { name: 'alpha' }))['was_quiet'], false, 'what is not quiet is no error');
    assert.equal((await agent(bed, b)).quiet, false);
  });
});

test('a quiet that ends while no session is there leaves no false reason behind', async () => {
  await inWorld(302, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    b.agents.end(session);
    await fleet.sleep(SECOND);
    await fleet.call(b, 'agent.quiet', { name: 'alpha', for_ms: HOUR });
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    await fleet.sleep(SECOND);
    assert.deepEqual(notice(await bed.status(a, id)), ['withheld', 'quiet']);
    await fleet.sleep(HOUR);
    assert.deepEqual(notice(await bed.status(a, id)), [null, null]);
    assert.match(JSON.stringify(await attention(bed, b)), /where no claude session is live/);
  });
});

test('a wall clock that passed the end ends a quiet too, and one set back prolongs none', async () => {
  await inWorld(303, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    await fleet.call(b, 'agent.quiet', { name: 'alpha', for_ms: 8 * HOUR });
    await bed.until(a, await bed.send(a, b, 'k'), 'accepted');
    await fleet.sleep(MINUTE);
    assert.equal(session.received.length, 0);
    b.machine.skewMs = 9 * HOUR; // a laptop that slept through it
    await fleet.sleep(2 * MINUTE);
    assert.equal(session.received.length, 1);
    await fleet.call(b, 'agent.quiet', { name: 'alpha', for_ms: HOUR });
    b.machine.skewMs = 0;
    await fleet.sleep(HOUR + SECOND);
    assert.equal((await agent(bed, b)).quiet, false);
  });
});

test('which agent is made quiet is never guessed, a session quiets its own only, and an agent removed is quiet no longer', async () => {
  await inWorld(
    304,
    async (bed) => {
      const { b, fleet } = bed;
      const session = await attached(bed, b);
      const other = await attached(bed, b, '/beta');
      const refused: [object, string][] = [
        [{ name: 'nobody' }, 'not_found'],
        [{ local_workspace: '/gamma' }, 'not_found'],
        [{}, 'invalid_argument'],
        [{ name: 'alpha', for_ms: 5 }, 'invalid_argument'],
        [{ name: 'alpha', for_ms: 400 * 24 * HOUR }, 'invalid_argument'],
        [{ name: 'alpha', for_ms: '8h' }, 'invalid_argument'],
      ];
      for (const [params, code] of refused)
        await assert.rejects(fleet.call(b, 'agent.quiet', { ...params }), { code }, JSON.stringify(params));
      await assert.rejects(fleet.call(b, 'agent.quiet', { name: 'alpha' }, actorOf(other)), { code: 'invalid_state', fix: /--as-owner/ });
      await fleet.call(b, 'agent.quiet', { name: 'alpha', as_owner: true }, actorOf(other));
      assert.equal((await agent(bed, b)).quiet, true);
      const setup = await fleet.call(b, 'agent.setup', { name: 'alpha', workspace: '/alpha' }, actorOf(session));
      assert.match(JSON.stringify(setup['warnings']), /alpha is quiet: no notice comes/);
      await fleet.call(b, 'agent.rename', { name: 'alpha', new_name: 'omega' });
      await fleet.call(b, 'agent.unquiet', { name: 'omega' });
      assert.equal((await fleet.call(b, 'agent.quiet', { local_workspace: '/alpha' }))['agent'] !== undefined, true);
      await fleet.call(b, 'agent.remove', { name: 'omega' });
      await fleet.call(b, 'agent.setup', { name: 'alpha', workspace: '/alpha' }, actorOf(session));
      assert.equal((await agent(bed, b)).quiet, false);
      const thread = b.threads.add({ workspace: '/alpha' });
      await fleet.sleep(SECOND);
      await fleet.call(b, 'agent.setup', { name: 'delta', workspace: '/alpha' }, actorOf(thread));
      await assert.rejects(fleet.call(b, 'agent.quiet', { local_workspace: '/alpha' }), {
        code: 'ambiguous_destination',
        details: { candidates: ['alpha (claude)', 'delta (codex)'] },
      });
    },
    { codex: true },
  );
});

test('a right to notify that is taken back withholds what lies unread, its sender sees why, and the right given back takes that off', async () => {
  await inWorld(305, async (bed) => {
    const { a, b, fleet } = bed;
    const change = (method: string): Promise<unknown> => fleet.call(b, method, { host: a.name, actions: ['notify'] });
    const id = await bed.send(a, b, 'k');
    await bed.until(a, id, 'accepted');
    assert.deepEqual(notice(await bed.status(a, id)), [null, null]);
    await change('host.revoke');
    await fleet.sleep(SECOND);
    assert.deepEqual(notice(await bed.status(a, id)), ['withheld', 'no_right']);
    const [row] = (await attention(bed, b)).filter((one) => one.what.includes('may cause no notices'));
    assert.equal(row?.fix, `ax host grant ${a.name} notify --workspace /alpha`);
    const session = b.agents.add({ workspace: '/alpha', behaviour: 'drops' });
    await fleet.sleep(HOUR);
    assert.equal(session.received.length, 0);
    b.agents.end(session);
    await fleet.sleep(SECOND);
    await change('host.grant');
    await fleet.sleep(SECOND);
    assert.deepEqual(notice(await bed.status(a, id)), [null, null], 'nobody is there to be told, and no right is missing');
    const next = b.agents.add({ workspace: '/alpha', behaviour: 'drops' });
    await fleet.sleep(SECOND);
    assert.equal(next.received.length, 1);
    assert.deepEqual(notice(await bed.status(a, id)), ['written', null]);
    assert.deepEqual(
      (await bed.status(b, id)).history.flatMap((one) => (one.state.startsWith('notice.outcome') ? [one.detail] : [])),
      ["the sender's host may cause no notices here", null],
    );
  });
});

test('a crash just after a session was told does not hold up its next notice', async () => {
  await inWorld(306, async (bed) => {
    const { a, b, fleet } = bed;
    const session = await attached(bed, b);
    await fleet.sleep(115 * SECOND); // the running time is flushed each minute: the last one is almost over
    await fleet.call(b, 'agent.setup', { name: 'alpha', workspace: '/alpha' }, actorOf(session)); // told that nothing waits
    fleet.crash(b);
    await fleet.boot(b);
    await bed.until(a, await bed.send(a, b, 'k'), 'accepted');
    await fleet.sleep(5 * SECOND);
    assert.equal(session.received.length, 1, 'spaced 2 s from the last word to it, not more');
    fleet.crash(b);
    await fleet.boot(b);
    await fleet.sleep(2 * MINUTE + 10 * SECOND);
    assert.equal(session.received.length, 2, 'and its reminder comes after 2 min');
  });
});
