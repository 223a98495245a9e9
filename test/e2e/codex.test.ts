/**
 * Codex end to end: two ax daemons, each with a stand-in of Codex's shared daemon beside it, and models that do what a notice says.
 *
 * What is proved here is the whole way: a send, the queue of a thread, the commands its model runs in the environment of its shell, and
 * what the sender is told. Nothing of it may touch a running turn or lift a person's pause.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { StandInCodex } from '../standin-codex/spawn.ts';
import { LAUNCHER, makeBed, until } from './hosts.ts';
import type { Host } from './hosts.ts';

const bed = makeBed();
let a: Host;
let b: Host;
let codexA: StandInCodex;
let codexB: StandInCodex;
before(async () => {
  [a, b] = await bed.pair();
  [codexA, codexB] = await Promise.all([a.codex(), b.codex()]);
});
after(() => {
  for (const codex of [codexA, codexB]) assert.deepEqual(codex.trespasses, [], 'nothing steers');
});

/** A thread of b that the daemon of b sees. */
async function threadOnB(name: string): Promise<{ readonly thread: string; readonly workspace: string }> {
  const workspace = b.workspace(name);
  const thread = await codexB.thread({ cwd: workspace });
  await b.untilLive({ sessionId: thread });
  return { thread, workspace };
}

async function send(workspace: string, body = 'hello'): Promise<string> {
  const queued = await a.ok(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'codex', body]);
  return String(queued['message_id']);
}

const commandsOf = (codex: StandInCodex, word: string): string[] =>
  codex.all('ran').flatMap((ran) => (ran.command.includes(word) && ran.exit === 0 ? [ran.command] : []));

test('an idle thread is told in a turn of its own, sets itself up, fetches, and the sender sees it fetched', async () => {
  const { thread, workspace } = await threadOnB('idle');
  const queued = await a.ok(['send', '--host', 'hostb', '--session', thread, '--harness', 'codex', 'hello codex']);
  const id = String(queued['message_id']);
  await a.untilStatus(id, { state: 'fetched' });
  const turns = codexB.all('turn').filter((turn) => turn.thread === thread);
  assert.match(turns[0]?.text ?? '', /this session is not set up to read it/);
  assert.match(turns[0]?.clientId ?? '', /^ax-/);
  assert.equal(commandsOf(codexB, `agent setup --name idle --workspace ${workspace}`).length, 1);
  // The pickup is confirmed a little before the command itself has ended.
  const fetched = (): string | undefined => codexB.all('ran').find((ran) => ran.command.includes(`messages fetch ${id}`))?.stdout;
  await until('the fetch to end', async () => fetched() !== undefined || 'it runs');
  assert.match(fetched() ?? '', /hello codex/);
  const { agents } = await b.ok(['agent', 'list']);
  const [agent] = (agents as { name: string; harness: string; attachments: { session_id: string; state: string }[] }[]).filter(
    (row) => row.name === 'idle',
  );
  assert.deepEqual([agent?.harness, agent?.attachments.map((row) => [row.session_id, row.state])], ['codex', [[thread, 'live']]]);
  const { hosts } = await a.ok(['agent', 'sessions', 'hostb']);
  const row = hosts[0]['sessions'].find((one: { session_id: string }) => one.session_id === thread);
  assert.deepEqual([row['harness'], row['workspace'], row['reachable']], ['codex', workspace, true]);
  assert.doesNotMatch(JSON.stringify(hosts), /PRIVATE/);
});

test('one thread writes to another across hosts, and the answer comes back to the first', async () => {
  const workspace = a.workspace('asks');
  const asking = await codexA.thread({ cwd: workspace });
  await a.untilLive({ sessionId: asking });
  const there = await threadOnB('answers');
  const run = async (command: string): Promise<string> => {
    const since = codexA.events.length;
    await codexA.send({ cmd: 'run', thread: asking, command: `${LAUNCHER} ${command}` });
    const ran = await codexA.next('ran', since);
    assert.equal(ran.exit, 0, `${ran.stdout}${ran.stderr}`);
    return ran.stdout;
  };
  await run(`agent setup --name asks --workspace ${workspace}`);
  const sent = JSON.parse(await run(`--format json send --host hostb --session ${there.thread} --harness codex ping`));
  await b.untilStatus(sent['message_id'], { state: 'fetched' });
  const since = codexB.events.length;
  const reply = `${LAUNCHER} --format json messages reply ${sent['message_id']} pong`;
  await codexB.send({ cmd: 'run', thread: there.thread, command: reply });
  // The fetch that made it `fetched` may end after that: what is waited for is the reply's own end.
  const isReply = (event: (typeof codexB.events)[number]): boolean => event.event === 'ran' && event.command === reply;
  const replied = await codexB.until(isReply, since);
  assert.ok(replied.event === 'ran');
  assert.equal(replied.exit, 0, `${replied.stdout}${replied.stderr}`);
  const back = String(JSON.parse(replied.stdout)['message_id']);
  await b.untilStatus(back, { state: 'fetched' });
  await codexA.until((event) => event.event === 'ran' && event.command.includes(`messages fetch ${back}`) && event.stdout.includes('pong'));
});

test('a busy thread is not interrupted: the notice waits in its queue, and the message is read after the turn', async () => {
  const { thread, workspace } = await threadOnB('busy');
  await codexB.send({ cmd: 'turn', thread });
  const id = await send(workspace);
  await a.untilStatus(id, { state: 'accepted', receiver_notice: 'in_queue' });
  const [state] = (await codexB.send({ cmd: 'state' })).threads.filter((one) => one.id === thread);
  assert.deepEqual([state?.running, state?.queue.length], [true, 1]);
  assert.equal(
    codexB.all('turn_end').some((end) => end.thread === thread),
    false,
  );
  await codexB.send({ cmd: 'end_turn', thread });
  await a.untilStatus(id, { state: 'fetched' });
  const turns = codexB.all('turn').filter((turn) => turn.thread === thread);
  assert.deepEqual(
    turns.map((turn) => turn.trigger),
    ['user', 'queue'],
  );
});

test('a queue that its user has paused is told to the sender, and left alone until the user goes on', async () => {
  const { thread, workspace } = await threadOnB('paused');
  await codexB.send({ cmd: 'turn', thread });
  await codexB.send({ cmd: 'end_turn', thread, how: 'interrupted' });
  const id = await send(workspace);
  await a.untilStatus(id, { receiver_notice: 'queue_paused' });
  const status = await a.status(id);
  assert.deepEqual([status['state'], status['receiver_notice']], ['accepted', 'queue_paused']);
  assert.match((await a.ax(['admin', 'status', id])).stdout, /paused/);
  assert.equal((await codexB.pending(thread)).length, 1);
  await codexB.send({ cmd: 'turn', thread });
  await codexB.send({ cmd: 'end_turn', thread });
  await a.untilStatus(id, { state: 'fetched' });
});

test('for a thread that is not loaded the message waits, with nothing in its queue, until somebody opens it', async () => {
  const workspace = b.workspace('closed');
  const thread = await codexB.thread({ cwd: workspace, loaded: false });
  const id = await send(workspace);
  const status = await a.untilStatus(id, { state: 'accepted', live_session: false });
  assert.equal(status['receiver_notice'], null);
  assert.deepEqual(await codexB.pending(thread), []);
  await codexB.send({ cmd: 'resume', thread });
  await a.untilStatus(id, { state: 'fetched' });
});

test('the helpers of a thread in the same folder are no second candidates', async () => {
  const { thread, workspace } = await threadOnB('helped');
  const helpers = [await codexB.thread({ cwd: workspace, parent: thread }), await codexB.thread({ cwd: workspace, ephemeral: 'title' })];
  const id = await send(workspace);
  await a.untilStatus(id, { state: 'fetched' });
  for (const helper of helpers) assert.deepEqual(await codexB.queued(helper), []);
});

test('messages outlive a restart of the Codex daemon, and the thread that comes back is told', async () => {
  const { thread, workspace } = await threadOnB('restarted');
  await codexB.send({ cmd: 'turn', thread });
  const id = await send(workspace);
  await a.untilStatus(id, { receiver_notice: 'in_queue' });
  await codexB.stop();
  assert.deepEqual(codexB.trespasses, []);
  codexB = await b.codex();
  await a.untilStatus(id, { state: 'accepted', live_session: false });
  await codexB.send({ cmd: 'resume', thread });
  await a.untilStatus(id, { state: 'fetched' });
  assert.equal((await codexB.queued(thread)).length <= 1, true, 'at most one more notice: the first may be what was read');
});
