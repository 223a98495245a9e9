/**
 * The genuine Codex, end to end: `ax send` on one host, a notice in the queue of a genuine thread on another, and what came of it.
 *
 * Cells of threads that are loaded: idle, busy, waiting, interrupted, left out, several in one folder. Threads that come and go are in
 * codex-life.test.ts, its sandbox in codex-sandbox.test.ts.
 */
import assert from 'node:assert/strict';
import { until } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import { CodexBed, triggers } from './codex-bed.ts';
import { matrix } from './matrix.ts';

const cell = matrix<CodexBed>('codex', import.meta.filename, { make: (installed) => CodexBed.make(installed), end: (bed) => bed.end() });

const NOTICE = /^ax on this host: a message waits/;

cell('an idle thread is told at once, sets itself up and fetches through its own shell tool', async (bed, { installed }) => {
  const { workspace, thread } = await bed.thread('idle');
  bed.model.obeying.add(thread);
  await bed.untilListed(thread, 'idle');
  const { hosts } = await bed.a.ok(['agent', 'sessions', 'hostb']);
  const row = (hosts[0]['sessions'] as Json[]).find((one) => one['session_id'] === thread) as Json;
  assert.deepEqual(
    [row['harness'], row['workspace'], row['status'], row['reachable'], row['version'], row['agent']],
    ['codex', workspace, 'idle', true, installed.version, null],
  );
  const id = await bed.send(workspace, 'a body for the idle one');
  await bed.a.untilStatus(id, { state: 'fetched', receiver_notice: 'left_queue' });
  const status = await bed.a.status(id);
  assert.deepEqual([status['state'], status['receiver_state']], ['fetched', 'fetched']);
  const turns = await bed.untilTurns(thread, 2);
  assert.deepEqual(triggers(turns), ['user', 'queue']);
  assert.match(turns[1]?.text ?? '', NOTICE);
  assert.equal(turns[1]?.text.includes('a body for the idle one'), false, 'no byte of the message is in the notice');
  const [setup, fetch, ...more] = bed.model.runs.filter((run) => run.thread === thread);
  assert.match(setup?.command ?? '', / agent setup --name \S+ --workspace /);
  assert.match(fetch?.command ?? '', new RegExp(` messages fetch ${id} `));
  assert.match(fetch?.output ?? '', /a body for the idle one/);
  assert.deepEqual(more, []);
  const [agent] = ((await bed.b.ok(['agent', 'list']))['agents'] as Json[]).filter((one) => one['workspace'] === workspace);
  assert.deepEqual(
    agent?.['attachments'].map((one: Json) => [one['session_id'], one['state']]),
    [[thread, 'live']],
  );
  return 'one turn of its own (trigger queue); setup and fetch ran in its shell tool; the sender reads fetched';
});

cell('a thread without any turn yet is told, and the notice is its first turn', async (bed) => {
  const workspace = bed.b.workspace('fresh');
  const thread = await bed.owner.startThread(workspace);
  await bed.untilListed(thread, 'idle');
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { state: 'accepted', receiver_notice: 'left_queue' });
  const turns = await bed.untilTurns(thread, 1);
  assert.deepEqual(triggers(turns), ['queue']);
  assert.equal((await bed.a.status(id))['fetched_at'] ?? null, null, 'a turn that fetched nothing is no delivery');
  return 'listed as idle; its first turn is the notice; left_queue, not fetched, as the model did not fetch';
});

cell('a busy thread is neither interrupted nor steered: the notice waits and gets a turn of its own', async (bed) => {
  const { workspace, thread } = await bed.thread('busy');
  bed.model.obeying.add(thread);
  const turn = await bed.busyTurn(thread);
  await bed.untilListed(thread, 'busy');
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { state: 'accepted', receiver_notice: 'in_queue' });
  const second = await bed.send(workspace, 'a second one');
  await bed.a.untilStatus(second, { state: 'accepted' });
  assert.equal((await bed.ours(thread)).length, 1, 'one notice waits, however many messages do');
  // The running turn goes on over a tool boundary, where a steered text would come in.
  bed.model.script(thread, { say: 'done with the long task' });
  bed.model.release(thread, { run: 'echo still at it' });
  assert.equal(await bed.owner.turnEnd(thread, turn), 'completed');
  await bed.a.untilStatus(id, { state: 'fetched', receiver_notice: 'left_queue' });
  const turns = await bed.untilTurns(thread, 3);
  assert.deepEqual(triggers(turns).slice(0, 3), ['user', 'user', 'queue']);
  const during = bed.model.of(thread).filter((request) => request.turnId === turn);
  assert.equal(during.length, 2);
  for (const request of during) assert.equal(request.users.at(-1), 'a long task', 'the running turn never saw the notice');
  return 'status busy; in_queue while the turn ran; the turn completed untouched; then one turn of its own (trigger queue): fetched';
});

cell('a thread that waits on an approval is not answered for: the notice comes after the turn', async (bed) => {
  const { workspace, thread } = await bed.thread('approval', { approvalPolicy: 'on-request', sandbox: 'read-only' });
  bed.model.script(thread, { run: 'touch made', escalate: 'to make a file' }, { say: 'made it' });
  const turn = await bed.owner.startTurn(thread, 'make a file');
  await bed.owner.untilStatus(thread, 'active', 'waitingOnApproval');
  await bed.untilListed(thread, 'waiting');
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { state: 'accepted', receiver_notice: 'in_queue' });
  assert.equal((await bed.owner.status(thread))['activeFlags'][0], 'waitingOnApproval');
  const asked = await bed.owner.approve(thread);
  assert.match(String(asked['command']), /touch made/);
  assert.equal(await bed.owner.turnEnd(thread, turn), 'completed');
  await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
  assert.deepEqual(triggers(await bed.untilTurns(thread, 3)), ['user', 'user', 'queue']);
  return 'status waiting; the question stays open for its user; in_queue, then a turn of its own after the answer';
});

cell('after an interrupt the queue is paused, the sender is told so, and it goes on after the next turn of the user', async (bed) => {
  const { workspace, thread } = await bed.thread('paused');
  const turn = await bed.busyTurn(thread);
  await bed.owner.call('turn/interrupt', { threadId: thread, turnId: turn });
  assert.equal(await bed.owner.turnEnd(thread, turn), 'interrupted');
  await bed.untilListed(thread, 'idle');
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { state: 'accepted', receiver_notice: 'queue_paused' });
  assert.equal((await bed.a.status(id))['receiver_notice'], 'queue_paused');
  assert.equal((await bed.ours(thread)).length, 1);
  assert.equal(bed.model.turns(thread).length, 2, "the user's pause holds");
  assert.equal(await bed.owner.runTurn(thread, 'go on'), 'completed');
  await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
  assert.deepEqual(triggers(await bed.untilTurns(thread, 4)), ['user', 'user', 'user', 'queue']);
  return "idle, yet the notice stays: queue_paused at the sender; taken after the user's next turn";
});

cell('a notice whose turn fails is gone from the queue and is no delivery; the thread takes the next one all the same', async (bed) => {
  const { workspace, thread } = await bed.thread('fails');
  bed.model.script(thread, { fail: 'overloaded' });
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { state: 'accepted', receiver_notice: 'left_queue' });
  await bed.untilTurns(thread, 2);
  assert.deepEqual(await bed.owner.status(thread), { type: 'systemError' });
  const row = await bed.untilListed(thread, 'idle');
  assert.equal(row['reachable'], true, 'a failed turn is over: the thread takes the next one');
  const status = await bed.a.status(id);
  assert.deepEqual([status['state'], status['receiver_state']], ['accepted', 'awaiting_setup']);
  bed.model.script(thread, { fail: 'still overloaded' });
  assert.equal(await bed.owner.runTurn(thread, 'are you there'), 'failed');
  const input = [{ type: 'text', text: 'by hand' }];
  await bed.owner.call('thread/queue/add', { threadId: thread, clientUserMessageId: 'by-hand', input });
  assert.deepEqual(triggers(await bed.untilTurns(thread, 4)), ['user', 'queue', 'user', 'queue']);
  return 'left_queue and still accepted; the thread says systemError, is listed as idle, and takes the next item at once';
});

cell('an ephemeral thread is left out', async (bed) => {
  const workspace = bed.b.workspace('ephemeral');
  const thread = await bed.owner.startThread(workspace, { ephemeral: true });
  const { thread: neighbour } = await bed.thread('neighbour');
  await bed.untilListed(neighbour, 'idle');
  assert.equal(await bed.row(thread), undefined);
  const id = await bed.send(workspace);
  const status = await bed.a.untilStatus(id, { state: 'accepted', live_session: false });
  assert.equal(status['receiver_notice'], null);
  assert.deepEqual(bed.model.turns(thread), []);
  return 'not listed; the message waits for a session that lasts';
});

cell('a sub-agent in the same folder is left out: its parent is the one candidate and is told', async (bed) => {
  const { workspace, thread } = await bed.thread('parent');
  bed.model.script('subagent', { hold: true });
  bed.model.script(thread, { call: 'spawn_agent', namespace: 'multi_agent_v1', args: { message: 'help' } }, { say: 'spawned' });
  assert.equal(await bed.owner.runTurn(thread, 'get help'), 'completed');
  let helper = '';
  await until('the sub-agent to be at work', async () => {
    helper = bed.model.requests.find((request) => request.source === 'subagent')?.thread ?? '';
    return bed.model.isHolding(helper) || 'no request yet';
  });
  const { data } = await bed.owner.call('thread/loaded/list');
  assert.ok((data as string[]).includes(helper), 'it is loaded');
  const known = (await bed.owner.call('thread/read', { threadId: helper }))['thread'] as Json;
  assert.deepEqual([known['parentThreadId'], known['cwd']], [thread, workspace]);
  await bed.untilListed(thread, 'idle');
  assert.deepEqual(
    (await bed.listed()).filter((row) => row['workspace'] === workspace).map((row) => row['session_id']),
    [thread],
  );
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
  const told = await bed.untilTurns(thread, 3);
  assert.equal(told.at(-1)?.trigger, 'queue');
  assert.deepEqual(await bed.owner.queue(helper), []);
  bed.model.release(helper);
  return 'loaded and at work in the same folder, never listed, never told; its parent is told';
});

cell('with two threads in one folder a message that names none is withheld, and one that names one wakes that one', async (bed) => {
  const { workspace, thread: first } = await bed.thread('two');
  await bed.untilListed(first, 'idle'); // what the sender remembers from here on: one
  const second = await bed.owner.startThread(workspace);
  await until('both to be seen', async () => {
    const { hosts } = await bed.b.call<{ hosts: { sessions: Json[] }[] }>('agent.sessions', { host: 'Localhost' });
    const ids = hosts.flatMap((host) => host.sessions).map((row) => row['session_id']);
    return (ids.includes(first) && ids.includes(second)) || JSON.stringify(ids);
  });
  const unnamed = await bed.send(workspace);
  await bed.a.untilStatus(unnamed, { state: 'accepted', receiver_notice: 'withheld' });
  await bed.untilListed(second, 'idle');
  const named = await bed.a.ok(['send', '--host', 'hostb', '--session', second, '--harness', 'codex', 'for you']);
  assert.deepEqual([named['destination']['session_id'], named['destination']['workspace']], [second, workspace]);
  await bed.a.untilStatus(String(named['message_id']), { receiver_notice: 'left_queue' });
  const told = await bed.untilTurns(second, 1);
  assert.match(told[0]?.text ?? '', new RegExp(String(named['message_id'])));
  assert.equal(bed.model.turns(first).length, 1, 'the other one heard nothing');
  const error = await bed.a.refused(
    ['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'codex', 'which?'],
    'ambiguous_destination',
  );
  for (const one of [first, second]) assert.match(error['details']['candidates'].join(' '), new RegExp(one));
  return 'withheld without a name; refused with both named where the sender can see it; --session wakes that one only';
});

cell('what others put into the queue is neither read nor deleted, and keeps its place', async (bed) => {
  const { workspace, thread } = await bed.thread('foreign');
  const turn = await bed.busyTurn(thread);
  const input = [{ type: 'text', text: 'words of the user, for later' }];
  await bed.owner.call('thread/queue/add', { threadId: thread, clientUserMessageId: 'mine', input });
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { receiver_notice: 'in_queue' });
  const marks = (await bed.owner.queue(thread)).map((item) => item.mark);
  assert.equal(marks.length, 2);
  assert.equal(marks[0], 'mine');
  assert.match(marks[1] ?? '', /^ax-/);
  bed.model.release(thread);
  assert.equal(await bed.owner.turnEnd(thread, turn), 'completed');
  const turns = await bed.untilTurns(thread, 4);
  assert.deepEqual(triggers(turns), ['user', 'user', 'queue', 'queue']);
  assert.equal(turns[2]?.text, 'words of the user, for later');
  assert.match(turns[3]?.text ?? '', NOTICE);
  await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
  assert.equal(bed.b.log.includes('words of the user'), false);
  return "the user's item stays first and gets its turn; ax's comes after it";
});
