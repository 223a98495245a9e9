/** The Codex adapter keeps the rules of the harness seam and of the queue, against a stand-in of the shared daemon in its own process. */
import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { harnessContract, type HarnessRig, type RigSession, type RigTraits } from '../../contract/harness.ts';
import type { ThreadOptions } from '../../standin-codex/options.ts';
import type { StandInCodex } from '../../standin-codex/spawn.ts';
import { CodexRig, noticeId, TEXT, withCodex } from './codex-rig.ts';
import { realClock } from './rig.ts';

const TRAITS: RigTraits = { taken: 'in_queue', afterwards: ['left_queue'], hasReceipts: false, hasClear: false, exports: [] };

function sessionOf(daemon: StandInCodex, thread: string, workspace: string): RigSession {
  return {
    workspace,
    processKey: `codex:${thread}`,
    sessionId: () => thread,
    claim: () => ({ harness: 'codex', sessionId: thread }),
    received: async () => {
      await daemon.send({ cmd: 'state' }); // its answer comes after every event before it
      return daemon.all('turn').flatMap((turn) => (turn.thread === thread && turn.trigger === 'queue' ? [turn.text] : []));
    },
    setStatus: async (status) => {
      const { threads } = await daemon.send({ cmd: 'state' });
      const isRunning = threads.find((one) => one.id === thread)?.running === true;
      if (status === 'idle') return void (isRunning && (await daemon.send({ cmd: 'end_turn', thread })));
      if (!isRunning) await daemon.send({ cmd: 'turn', thread });
      await daemon.send({ cmd: 'flags', thread, flags: status === 'waiting' ? ['waitingOnApproval'] : [] });
    },
    clear: () => Promise.reject(new Error('a thread cannot be cleared')),
    end: async () => void (await daemon.send({ cmd: 'unload', thread })),
    crash: () => daemon.kill(),
  };
}

harnessContract('Codex adapter', TRAITS, async (): Promise<HarnessRig> => {
  const rig = new CodexRig();
  const daemon = await rig.daemon({ socketRoot: join(rig.dir, 'r') });
  await rig.start();
  await rig.until(() => rig.state() === 'connected', 'the adapter is connected');
  return {
    harness: rig.harness,
    lists: rig.lists,
    notices: rig.notices,
    add: async () => {
      const workspace = rig.workspace();
      return sessionOf(daemon, await daemon.thread({ cwd: workspace }), workspace);
    },
    until: (check, what) => rig.until(check, what),
    drive: (work) => work,
    stop: () => rig.stop(),
  };
});

test('only loaded threads of people are sessions; one that cannot be nudged is listed with the reason', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon({ pageSize: 2 });
    const cwd = rig.workspace();
    const parent = await daemon.thread({ cwd });
    const none: Partial<ThreadOptions>[] = [{ ephemeral: 'title' }, { ephemeral: true }, { parent }, { loaded: false }, { archived: true }];
    for (const options of [...none, { embedded: true }]) await daemon.thread({ cwd, ...options });
    const turnless = await daemon.thread({ cwd, turnless: true });
    const closed = await daemon.thread({ cwd, direct: false });
    const broken = await daemon.thread({ cwd });
    await daemon.send({ cmd: 'system_error', thread: broken, on: true });
    await rig.until(() => rig.find(broken) !== undefined, 'the adapter is connected'); // a look waits for that 1.5 s at most
    const live = await rig.harness.refresh();
    const listed = live.map((one) => [one.sessionId, one.reachable, one.reason] as const);
    const expected = [
      [parent, true, undefined],
      [turnless, true, undefined],
      [closed, false, 'takes no input from outside'],
      [broken, true, undefined],
    ] as const;
    assert.deepEqual(new Map(listed.map(([id, ...how]) => [id, how])), new Map(expected.map(([id, ...how]) => [id, how])));
    for (const session of live.filter((one) => !one.reachable)) assert.equal((await rig.notify(session, 1)).outcome, 'failed');
    assert.equal(daemon.all('queued').length, 0);
  });
});

test('a working folder is known by its real path, follows a move, and a notice for the old one is not added', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const [first, second] = [rig.workspace(), rig.workspace()];
    symlinkSync(first, join(rig.dir, 'link'));
    const session = await rig.see(daemon, { cwd: join(rig.dir, 'link') });
    assert.equal(session.workspace, first);
    await daemon.send({ cmd: 'cd', thread: session.sessionId, cwd: second });
    const { outcome, detail } = await rig.notify(session, 1);
    assert.deepEqual([outcome, detail], ['failed', 'thread has moved to another folder']);
    assert.equal(rig.find(session.sessionId)?.workspace, second);
    assert.equal((await daemon.queued(session.sessionId)).length, 0);
  });
});

test('a busy thread is not touched: what is added waits for the end of its turn, and only the first of several notices is added', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const session = await rig.see(daemon);
    const thread = session.sessionId;
    await daemon.send({ cmd: 'turn', thread });
    assert.deepEqual(await rig.notify(session, 1), { outcome: 'in_queue' });
    assert.equal((await rig.notify(session, 2)).outcome, 'in_queue');
    const items = await daemon.queued(thread);
    assert.deepEqual(
      items.map((item) => [item.clientId, item.text]),
      [[`ax-${noticeId(1)}`, TEXT]],
    );
    const state = await daemon.send({ cmd: 'state' });
    assert.deepEqual([state.threads[0]?.running, daemon.all('turn_end').length, rig.said(1)], [true, 0, []]);
    await daemon.send({ cmd: 'end_turn', thread });
    await rig.until(() => rig.said(1).length > 0 && rig.said(2).length > 0, 'both notices are told of');
    assert.deepEqual([rig.said(1), rig.said(2)], [['left_queue'], ['left_queue']]);
    assert.equal(daemon.all('turn').filter((turn) => turn.trigger === 'queue').length, 1);
  });
});

test('a queue that its user has paused is told as paused, stays so, and goes on with the user', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const session = await rig.see(daemon);
    const thread = session.sessionId;
    await daemon.send({ cmd: 'turn', thread });
    await daemon.send({ cmd: 'end_turn', thread, how: 'interrupted' });
    assert.equal((await rig.notify(session, 1)).outcome, 'in_queue');
    await rig.until(() => rig.said(1).includes('queue_paused'), 'the pause is told');
    assert.equal((await rig.notify(session, 2)).outcome, 'in_queue');
    assert.deepEqual(await daemon.pending(thread), [`ax-${noticeId(1)}`]);
    await daemon.send({ cmd: 'turn', thread });
    await daemon.send({ cmd: 'end_turn', thread });
    await rig.until(() => rig.said(1).at(-1) === 'left_queue' && rig.said(2).at(-1) === 'left_queue', 'it went on');
    assert.equal(rig.said(1)[0], 'queue_paused');
  });
});

test('an item of an earlier life that still waits is found, followed, and not doubled; those of others do not count', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const session = await rig.see(daemon, { paused: true, filled: 30 });
    assert.deepEqual(await rig.notify(session, 1), { outcome: 'in_queue' });
    await rig.harness.stop();
    const next = await rig.another();
    const result = await rig.notify(session, 2, next);
    assert.equal(result.outcome, 'in_queue');
    assert.equal((await daemon.queued(session.sessionId)).length, 1);
    await daemon.send({ cmd: 'drop_items', thread: session.sessionId }); // its user threw the whole queue away
    await rig.until(() => rig.said(1).includes('left_queue') && rig.said(2).includes('left_queue'), 'both are told of');
  });
});

test('a thread that is unloaded while a notice waits keeps it, and says when it took it', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const session = await rig.see(daemon);
    const thread = session.sessionId;
    await daemon.send({ cmd: 'turn', thread });
    await rig.notify(session, 1);
    await daemon.send({ cmd: 'unload', thread });
    await rig.until(() => rig.find(thread) === undefined, 'the thread is gone');
    assert.equal((await rig.notify(session, 2)).outcome, 'failed');
    assert.deepEqual(await daemon.pending(thread), [`ax-${noticeId(1)}`]);
    await daemon.send({ cmd: 'resume', thread });
    await rig.until(() => rig.said(1).includes('left_queue'), 'it was taken');
    assert.equal((await daemon.queued(thread)).length, 1);
  });
});

test('what Codex refuses has failed, in words of ax, and nothing is stored', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const full = await rig.see(daemon, { paused: true, filled: 100 });
    assert.deepEqual(await rig.notify(full, 1), { outcome: 'failed', detail: 'queue is full' });
    const session = await rig.see(daemon);
    const refuse = async (code: number, message: string): Promise<string | undefined> => {
      await daemon.fault('thread/queue/add', { kind: 'error', code, message });
      const { outcome, detail } = await rig.notify(session, 2);
      assert.equal(outcome, 'failed');
      return detail;
    };
    assert.equal(await refuse(-32001, 'busy'), 'Codex is overloaded');
    assert.equal(await refuse(-32600, `session ID is archived. Run PRIVATE to unarchive it first.`), 'thread is archived');
    assert.equal(await refuse(-32603, 'PRIVATE words \u001b[31m of its own'), 'Codex refused');
    assert.equal(daemon.all('queued').length, 0);
    await daemon.fault('thread/queue/add', { kind: 'unknown_variant' });
    assert.deepEqual(await rig.notify(session, 3), { outcome: 'failed', detail: 'unsupported Codex version 0.171.0' });
    const after = rig.find(session.sessionId);
    assert.deepEqual([after?.reachable, after?.reason], [false, 'unsupported Codex version 0.171.0']);
  });
});

test('a lost answer is looked into: in the queue when it stands there, else unverified, never added twice, never called failed', async () => {
  await withCodex(
    async (rig) => {
      const daemon = await rig.daemon();
      for (const [kind, isBusy, outcome] of [
        ['drop_before', true, 'unverified'],
        ['drop_after', true, 'in_queue'],
        ['drop_after', false, 'either'], // an idle thread may have taken it by the time it is looked for
        ['silent_before', false, 'unverified'],
        ['silent_after', true, 'in_queue'],
      ] as const) {
        const session = await rig.see(daemon);
        const thread = session.sessionId;
        if (isBusy) await daemon.send({ cmd: 'turn', thread });
        await daemon.fault('thread/queue/add', { kind });
        const before = rig.notices.length;
        const result = await rig.notify(session, 1);
        const expected: readonly string[] = outcome === 'either' ? ['in_queue', 'unverified'] : [outcome];
        assert.equal(expected.includes(result.outcome), true, `${kind} ${isBusy}: ${result.outcome}`);
        const items = await daemon.queued(thread);
        assert.equal(items.length, kind.endsWith('after') ? 1 : 0, kind);
        if (outcome !== 'in_queue') continue;
        await rig.until(() => rig.find(thread)?.status === 'busy', 'the connection is back');
        assert.equal((await rig.notify(session, 2)).outcome, 'in_queue');
        assert.equal((await daemon.queued(thread)).length, 1, 'a second notice finds the first');
        await daemon.send({ cmd: 'end_turn', thread });
        await rig.until(() => rig.notices.length >= before + 2, 'both are told of');
      }
    },
    { clock: realClock(10) },
  );
});

test('a claim is proved in any home that is known or named; a helper thread is refused and says why', async () => {
  await withCodex(async (rig) => {
    const [daemon, other] = [await rig.daemon(), await rig.daemon({ name: 'other' })];
    const cwd = rig.workspace();
    const parent = await daemon.thread({ cwd });
    const elsewhere = await other.thread({ cwd });
    const claim = (sessionId: string, configDir?: string) =>
      rig.harness.prove({ harness: 'codex', sessionId, ...(configDir === undefined ? {} : { configDir }) });
    assert.deepEqual([(await claim(parent)).workspace, (await claim(parent, rig.home())).harness], [cwd, 'codex']);
    await assert.rejects(claim(await daemon.thread({ cwd, parent })), { code: 'invalid_state', message: /sub-agent/ });
    await assert.rejects(claim(await daemon.thread({ cwd, ephemeral: true })), { code: 'invalid_state', message: /ephemeral/ });
    await assert.rejects(claim(await daemon.thread({ cwd, embedded: true })), { code: 'not_found' });
    await assert.rejects(claim('PRIVATE not an id'), { code: 'not_found', message: /^(?!.*PRIVATE)/ });
    await assert.rejects(claim(elsewhere), { code: 'not_found' });
    await assert.rejects(claim(elsewhere, 'relative'), { code: 'not_found' });
    mkdirSync(join(rig.dir, 'empty'));
    await assert.rejects(claim(elsewhere, join(rig.dir, 'empty')), { code: 'not_found' });
    assert.equal(rig.harness.homes().length, 1);
    assert.equal((await claim(elsewhere, rig.home('other'))).sessionId, elsewhere);
    await other.send({ cmd: 'turn', thread: elsewhere });
    await rig.until(() => rig.find(elsewhere)?.status === 'busy', 'the added home is followed');
  });
});

test('a claim that fails takes away no home in which another proves its thread meanwhile', async () => {
  await withCodex(async (rig) => {
    const other = await rig.daemon({ name: 'other' });
    const thread = await other.thread({ cwd: rig.workspace() });
    const claim = (sessionId: string) => rig.harness.prove({ harness: 'codex', sessionId, configDir: rig.home('other') });
    const [failed, proved] = await Promise.allSettled([claim(noticeId(1)), claim(thread)]);
    assert.deepEqual([failed.status, proved.status], ['rejected', 'fulfilled']);
    assert.equal(rig.find(thread)?.sessionId, thread);
    await assert.rejects(claim(noticeId(2)), { code: 'not_found' });
    assert.equal(rig.state('other'), 'connected');
    await Promise.allSettled([3, 4].map((n) => rig.harness.prove({ harness: 'codex', sessionId: noticeId(n), configDir: rig.dir })));
    assert.equal(rig.harness.homes().length, 2, 'a home in which nothing was proved is gone with the last claim');
  });
});

test('several homes are one list; a home may come later, and one under two names is one', async () => {
  await withCodex(
    async (rig) => {
      const first = await rig.see(await rig.daemon());
      const later = await rig.see(await rig.daemon({ name: 'later' }));
      const daemon = await rig.daemon({ name: 'added' });
      rig.harness.addHome(rig.home('added'));
      const added = await rig.see(daemon);
      symlinkSync(rig.home(), join(rig.dir, 'twin'));
      rig.harness.addHome(join(rig.dir, 'twin'));
      const live = (await rig.harness.refresh()).map((session) => session.sessionId).toSorted();
      assert.deepEqual(live, [first, later, added].map((session) => session.sessionId).toSorted());
      assert.equal(rig.harness.homes().length, 3);
    },
    { homes: ['codex', 'later'] },
  );
});
