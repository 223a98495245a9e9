/**
 * The matrix of Claude Code, second half: which genuine sessions ax finds, and what becomes of a message when they come, go, or are two.
 *
 * In every cell the message comes from host A by `ax send`, the sessions are those of host B, and what A's `ax admin status` says is the
 * truth.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { noticeLine } from '../../daemon/harness/claude-socket.ts';
import { LAUNCHER, until } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import type { ClaudeSession } from './claude.ts';
import { obedient } from './claude-model.ts';
import { WORLD, type ClaudeWorld } from './claude-world.ts';
import { matrix } from './matrix.ts';

const cell = matrix('claude', import.meta.filename, WORLD);
/** What a user allows so that reading needs no prompt. */
const settings = { permissions: { allow: [`Bash(${LAUNCHER} messages fetch:*)`, `Bash(${LAUNCHER} agent setup:*)`] } };

interface Attachment {
  readonly session_id: string;
  readonly state: string;
}

/** The attachments of the one agent of a folder of B. */
async function attachments(world: ClaudeWorld, workspace: string): Promise<readonly Attachment[]> {
  const { agents } = await world.b.ok(['agent', 'list']);
  const mine = (agents as Json[]).filter((agent) => agent['workspace'] === workspace);
  assert.ok(mine.length <= 1, 'one agent for a folder');
  return (mine[0]?.['attachments'] ?? []) as Attachment[];
}

/** The first message to a session that obeys: it is set up, attached, and has fetched. */
async function setUp(world: ClaudeWorld, session: ClaudeSession, ran: string[] = []): Promise<string> {
  world.model.script(session.sessionId, obedient(ran));
  const id = await world.send(session.cwd);
  await world.status(id, { state: 'fetched' });
  await session.untilStatus('idle');
  return id;
}

cell('after /clear the attachment has ended, and the new conversation is asked to set up', async (world, { t }) => {
  const session = await world.session('clear', { settings });
  t.after(() => session.end());
  const before = session.sessionId;
  await setUp(world, session);
  const after = await session.clear();
  await world.untilUnlisted(before);
  await world.untilListed(after, { reachable: true });
  assert.ok((await attachments(world, session.cwd)).every((one) => one.session_id !== before || one.state !== 'live'));
  const turns = world.model.of(before).length;
  const id = await world.send(session.cwd);
  await world.untilTold(after, id);
  const notice = world.model.of(after).find((turn) => turn.news.includes(id))?.news ?? '';
  assert.match(notice, / agent setup --name /);
  assert.doesNotMatch(notice, / messages fetch /);
  assert.equal(world.model.of(before).length, turns, 'the old conversation was told nothing');
  await world.status(id, { state: 'accepted', receiver_notice: 'written' });
  // Even one that was under way when its user cleared: the frame names the old conversation.
  const late = noticeLine({ id: randomUUID(), text: 'too late' }, before, undefined);
  connect(session.record.messagingSocketPath ?? '')
    .end(late)
    .resume();
  await until('the late notice to be dropped', async () =>
    session.debugLog.includes('session_id mismatch') ? true : session.debugLog.slice(-2000),
  );
  assert.equal(world.model.count(after, 'too late'), 0);
  return 'a new session id in the same process; the notice there is the setup line again';
});

cell('a resumed session is the same agent, and reads what came while it was away', async (world, { t }) => {
  const session = await world.session('resume', { settings });
  t.after(() => session.end());
  const { sessionId, cwd } = session;
  await setUp(world, session);
  await session.end();
  await world.untilUnlisted(sessionId);
  const id = await world.send(cwd);
  const away = await world.status(id, { state: 'accepted', receiver_state: 'available' });
  assert.equal(away['live_session'], false);
  assert.equal(away['receiver_notice'] ?? null, null);
  const again = await world.home.session({ cwd, settings, resume: sessionId });
  t.after(() => again.end());
  assert.equal(again.sessionId, sessionId);
  await world.status(id, { state: 'fetched' });
  const live = (await attachments(world, cwd)).filter((one) => one.state === 'live');
  assert.deepEqual(
    live.map((one) => one.session_id),
    [sessionId],
  );
  return 'the message waited unnoticed; the resumed session, a new process, was told and fetched it';
});

cell('a fork that is set up too makes the folder ambiguous', async (world, { t }) => {
  const session = await world.session('fork', { settings });
  t.after(() => session.end());
  const { sessionId, cwd } = session;
  await setUp(world, session);
  const fork = await world.home.session({ cwd, settings, resume: sessionId, fork: true });
  t.after(() => fork.end());
  await until('the id of the fork', async () => (fork.sessionId === sessionId ? fork.terminal.screen() : true));
  const forkId = fork.sessionId;
  await world.untilListed(forkId, { reachable: true });
  world.model.script(forkId, ({ results }) => (results.length === 0 ? { run: setupOf(cwd) } : { say: 'ok' }));
  await fork.say('set up');
  await until('two attachments', async () => {
    const live = (await attachments(world, cwd)).filter((one) => one.state === 'live');
    return live.length === 2 ? true : JSON.stringify(live);
  });
  const turns = [world.model.of(sessionId).length, world.model.of(forkId).length];
  const id = await world.send(cwd);
  await world.status(id, { state: 'accepted', receiver_notice: 'withheld' });
  const named = await world.sendTo(forkId);
  await world.untilTold(forkId, named);
  assert.equal(world.model.of(sessionId).length, turns[0], 'the first was told nothing');
  return 'withheld while both are attached; a message that named the fork was told to the fork alone';
});

/** What a person may tell a session to run. */
function setupOf(workspace: string): string {
  return `${LAUNCHER} agent setup --name ${workspace.slice(workspace.lastIndexOf('/') + 1)} --workspace ${workspace}`;
}

cell('two sessions in one folder that nobody set up get no notice, and one that is named gets it', async (world, { t }) => {
  const one = await world.session('two');
  t.after(() => one.end());
  const other = await world.home.session({ cwd: one.cwd });
  t.after(() => other.end());
  await world.untilListed(other.sessionId, { reachable: true });
  const id = await world.send(one.cwd);
  await world.status(id, { state: 'accepted', receiver_notice: 'withheld' });
  const named = await world.sendTo(other.sessionId);
  await world.untilTold(other.sessionId, named);
  assert.equal(world.model.of(one.sessionId).length, 0);
  assert.equal(world.model.count(other.sessionId, id), 0);
  return 'withheld; the message that named one of them was told to that one alone';
});

cell('a session killed with -9 is not live, though its files stay', async (world, { t }) => {
  const session = await world.session('killed');
  t.after(() => session.end());
  const { sessionId, pid, cwd } = session;
  const { messagingSocketPath } = session.record;
  await session.kill9();
  await world.untilUnlisted(sessionId);
  assert.ok(existsSync(join(world.home.configDir, 'sessions', `${pid}.json`)), 'its record is there');
  assert.ok(existsSync(messagingSocketPath ?? ''), 'its socket file is there');
  const id = await world.send(cwd);
  const status = await world.status(id, { state: 'accepted' });
  assert.equal(status['live_session'], false);
  assert.equal(status['receiver_notice'] ?? null, null);
  const next = await world.home.session({ cwd });
  t.after(() => next.end());
  await world.untilTold(next.sessionId, id);
  return 'record and socket were left behind; it left the list, no notice was tried; the next session there was told';
});

cell('a -p session is listed, not reachable, and never told', async (world, { t }) => {
  const cwd = world.workspace('script');
  const script = await world.home.script(cwd);
  t.after(() => script.end());
  const scriptId = script.record()?.sessionId ?? '';
  await world.untilListed(scriptId, { reachable: false, reason: 'script session' });
  const early = await world.send(cwd);
  assert.equal((await world.status(early, { state: 'accepted' }))['live_session'], false);
  const session = await world.home.session({ cwd });
  t.after(() => session.end());
  await world.untilTold(session.sessionId, early);
  assert.equal(world.model.of(scriptId).length, 0);
  return 'listed as "script session"; the terminal session beside it was told, it was not';
});

cell('a session without a socket is listed as not reachable, with the reason', async (world, { t }) => {
  const cwd = world.workspace('bare');
  const session = world.home.launch({ cwd, args: ['--bare'] });
  t.after(() => session.end());
  await until('a record', async () => (world.home.record(session.pid) === undefined ? session.terminal.screen() : true));
  await world.untilListed(session.sessionId, { reachable: false, reason: 'messaging off or too old' });
  const id = await world.send(cwd);
  const status = await world.status(id, { state: 'accepted' });
  assert.equal(status['live_session'], false);
  assert.equal(status['receiver_notice'] ?? null, null);
  return '`--bare`: listed with "messaging off or too old", and nothing was tried';
});

cell("ax lists the sessions that the program's own `claude agents --json` lists", async (world, { t }) => {
  const idle = await world.session('agree');
  t.after(() => idle.end());
  const waiting = await world.session('agree');
  t.after(() => waiting.end());
  world.model.script(waiting.sessionId, () => ({ run: 'touch made-it' }));
  await waiting.say('make it');
  await waiting.untilStatus('waiting');
  const script = await world.home.script(world.workspace('agree'));
  t.after(() => script.end());
  const dead = await world.session('agree');
  await dead.kill9();
  await world.untilUnlisted(dead.home.record(dead.pid)?.sessionId ?? '');
  await world.untilListed(waiting.sessionId, { status: 'waiting' });
  await world.untilListed(script.record()?.sessionId ?? '');
  const outcome = await world.home.run(['agents', '--json'], world.b.home);
  const theirs = (JSON.parse(outcome.stdout) as { sessionId: string; cwd: string; status?: string }[]).map((one) => ({
    session_id: one.sessionId,
    workspace: one.cwd,
    status: one.status ?? 'unknown',
  }));
  const ours = (await world.listed()).map(({ session_id, workspace, status }) => ({ session_id, workspace, status }));
  const byId = (list: typeof ours): typeof ours => list.toSorted((one, other) => (one.session_id < other.session_id ? -1 : 1));
  assert.deepEqual(byId(ours), byId(theirs));
  assert.equal(ours.length, 3);
  return 'the same ids, folders and states, of an idle, a waiting and a -p session; the killed one in neither list';
});
