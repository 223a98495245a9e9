/**
 * Sessions with real processes: what a notice comes to, several sessions in one folder, cleared and restarted ones, renamed and removed agents.
 *
 * The sessions are stand-ins; what they are told comes over their real sockets, and what a harness's shell exports is theirs.
 */
import assert from 'node:assert/strict';
import { renameSync, symlinkSync } from 'node:fs';
import { before, test } from 'node:test';
import { makeBed, sessionOf, shellOf, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';
import type { StandIn } from '../standin/spawn.ts';

const bed = makeBed();
let a: Host;
let b: Host;
before(async () => {
  [a, b] = await bed.pair();
});

async function toFolder(workspace: string, ...more: readonly string[]): Promise<string> {
  const queued = await a.ok(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', ...more, 'hello']);
  return String(queued['message_id']);
}

/** A session on b that is attached to the agent of its folder and types nothing by itself. */
async function attached(name: string): Promise<{ workspace: string; session: StandIn }> {
  const workspace = b.workspace(name);
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name, workspace }, sessionOf(session));
  return { workspace, session };
}

test('a held notice is told as held, and as approved once its user approves it', async () => {
  const workspace = b.workspace('held');
  const session = await b.session(workspace, { mode: 'bypass', autorun: false });
  const id = await toFolder(workspace);
  await b.untilStatus(id, { receiver_notice: 'held' });
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'awaiting_setup', receiver_notice: 'held' });
  const attention = (await b.ok(['admin', 'status']))['attention'] as Json[];
  assert.equal(
    attention.some((row) => String(row['what']).includes('holds notices')),
    true,
    JSON.stringify(attention),
  );
  await session.send({ cmd: 'approve' });
  await a.untilStatus(id, { receiver_notice: 'approved' });
});

test('a denied notice is told as denied, and the message stays where it is', async () => {
  const workspace = b.workspace('denied');
  await b.session(workspace, { mode: 'bypass', decides: 'deny', autorun: false });
  const id = await toFolder(workspace);
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'awaiting_setup', receiver_notice: 'denied' });
  await b.untilStatus(id, { state: 'awaiting_setup', receiver_notice: 'denied' });
});

test('a session that refuses messages is told as blocked', async () => {
  const workspace = b.workspace('blocked');
  const session = await b.session(workspace, { inbound: 'refuse', autorun: false });
  const id = await toFolder(workspace);
  await a.untilStatus(id, { state: 'accepted', receiver_notice: 'blocked' });
  assert.equal(session.all('frame').length, 1);
  const counts = (await b.ok(['admin', 'status']))['notices'] as Json;
  assert.equal(Number(counts['blocked']) >= 1, true, JSON.stringify(counts));
});

test('a session that cannot be reached is listed with the reason and never told', async () => {
  const workspace = b.workspace('mute');
  const session = await b.session(workspace, { entrypoint: 'sdk-cli', autorun: false });
  const { hosts } = await a.ok(['agent', 'sessions', 'hostb']);
  const row = hosts[0]['sessions'].find((one: Json) => one['session_id'] === session.sessionId) as Json;
  assert.equal(row['reachable'], false);
  assert.equal(typeof row['reason'], 'string');
  const id = await toFolder(workspace);
  const status = await a.untilStatus(id, { state: 'accepted', live_session: false });
  assert.equal(status['receiver_notice'], null);
  assert.equal(session.all('frame').length, 0);
});

test('with two sessions in one folder a message that names none wakes none, and one that names one wakes that one', async () => {
  const workspace = b.workspace('two');
  const first = await b.session(workspace, { autorun: false });
  await a.ok(['agent', 'sessions', 'hostb']); // what a remembers from here on: one session
  const second = await b.session(workspace, { autorun: false });
  const unnamed = await toFolder(workspace);
  await a.untilStatus(unnamed, { state: 'accepted', receiver_notice: 'withheld' });
  await b.untilStatus(unnamed, { receiver_notice: 'withheld' });
  const named = await a.ok(['send', '--host', 'hostb', '--session', second.sessionId, '--harness', 'claude', 'for you']);
  assert.equal(named['destination']['session_id'], second.sessionId);
  const frame = await second.next('frame');
  assert.match(frame.content, new RegExp(String(named['message_id'])));
  assert.equal(first.all('frame').length, 0);
  await a.ok(['agent', 'sessions', 'hostb']);
  const error = await a.refused(
    ['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', 'which?'],
    'ambiguous_destination',
  );
  for (const session of [first, second]) assert.match(error['details']['candidates'].join(' '), new RegExp(session.sessionId));

  const setup = await b.ok(['agent', 'setup', '--name', 'two', '--workspace', workspace], { env: shellOf(first), cwd: workspace });
  assert.equal(setup['waiting'].length, 2);
  const refusal = await b.refused(['messages', 'fetch', unnamed], 'invalid_state', 1, { env: shellOf(second), cwd: workspace });
  assert.match(refusal['fix'], /ax agent setup --name two --workspace /);
  const both = await b.ok(['agent', 'setup', '--name', 'two', '--workspace', workspace], { env: shellOf(second), cwd: workspace });
  assert.match(both['warnings'].join(' '), /1 other live session is attached/);
  const fetched = await b.ok(['messages', 'fetch', unnamed], { env: shellOf(second), cwd: workspace });
  assert.deepEqual([fetched['body'], fetched['by']], ['hello', 'session']);
  const [agent] = (await b.ok(['agent', 'list']))['agents'].filter((row: Json) => row['name'] === 'two') as Json[];
  assert.deepEqual(
    agent?.['attachments'].map((row: Json) => row['state']),
    ['live', 'live'],
  );
});

test('a session of another folder can neither set up nor fetch there', async () => {
  const { workspace } = await attached('mine');
  const other = await b.session(b.workspace('other'), { autorun: false });
  const id = await toFolder(workspace);
  await b.untilStatus(id, { state: 'available' });
  const env = shellOf(other);
  const setup = await b.refused(['agent', 'setup', '--name', 'x', '--workspace', workspace], 'invalid_argument', 1, { env });
  assert.equal(setup['details']['session_workspace'], other.options.cwd);
  await b.refused(['messages', 'fetch', id, '--workspace', workspace], 'invalid_state', 1, { env });
  await b.refused(['agent', 'setup', '--name', 'x', '--workspace', workspace], 'invalid_state', 1); // no session at all
  const forged = { ...env, CLAUDE_CODE_SESSION_ID: '11111111-2222-4333-8444-555555555555' };
  await b.refused(['messages', 'fetch', id], 'invalid_state', 1, { env: forged });
  assert.equal((await b.status(id))['handed_out_at'], null);
});

test('after /clear the next notice is the setup line again, and the message waits under the same address', async () => {
  const { workspace, session } = await attached('cleared');
  const before = await toFolder(workspace);
  await b.untilStatus(before, { state: 'available', receiver_notice: 'written' });
  const old = shellOf(session);
  await session.send({ cmd: 'clear' });
  await b.untilLive(session);
  const next = await toFolder(workspace);
  await b.untilStatus(next, { state: 'available' }); // the notice may be for the one before
  const frame = await session.until((event) => event.event === 'frame' && event.content.includes('agent setup --name cleared'));
  assert.match(frame.event === 'frame' ? frame.content : '', /this session is not set up to read/);
  await b.refused(['messages', 'fetch', before], 'invalid_state', 1, { env: old, cwd: workspace });
  const setup = await b.ok(['agent', 'setup', '--name', 'cleared', '--workspace', workspace], { env: shellOf(session), cwd: workspace });
  assert.deepEqual(
    setup['waiting'].map((row: Json) => row['message_id']),
    [before, next],
  );
  assert.equal((await b.ok(['messages', 'fetch', before], { env: shellOf(session), cwd: workspace }))['body'], 'hello');
  await a.untilStatus(before, { state: 'fetched' });
});

test('a session killed between notice and fetch loses nothing: the resumed one finds the message under the same address', async () => {
  const { workspace, session } = await attached('killed');
  const id = await toFolder(workspace);
  await session.next('frame');
  await session.kill();
  const resumed = await b.session(workspace, { autorun: false });
  await resumed.until((event) => event.event === 'frame' && event.content.includes(id));
  const { messages } = await b.ok(['messages', 'list', '--workspace', workspace]);
  assert.deepEqual(
    messages.map((row: Json) => [row['message_id'], row['state']]),
    [[id, 'available']],
  );
  await b.ok(['agent', 'setup', '--name', 'killed', '--workspace', workspace], { env: shellOf(resumed), cwd: workspace });
  const fetched = await b.ok(['messages', 'fetch', id], { env: shellOf(resumed), cwd: workspace });
  assert.deepEqual([fetched['body'], fetched['refetch']], ['hello', false]);
});

test('a session that ends with nobody left turns live_session false on both sides, and the message stays available', async () => {
  const { workspace, session } = await attached('gone');
  const id = await toFolder(workspace);
  await a.untilStatus(id, { receiver_state: 'available', live_session: true });
  await session.stop();
  await b.untilStatus(id, { state: 'available', live_session: false });
  const rows = (await b.ok(['agent', 'list']))['agents'] as Json[];
  assert.deepEqual(
    rows.find((row) => row['name'] === 'gone')?.['attachments'].map((row: Json) => row['state']),
    ['ended'],
  );
  await a.untilStatus(id, { receiver_state: 'available', live_session: false });
});

test('an agent that is renamed keeps its messages, under the new name only', async () => {
  const { workspace, session } = await attached('oldname');
  const id = await toFolder(workspace);
  await b.untilStatus(id, { state: 'available' });
  await b.ok(['agent', 'rename', 'oldname', 'newname']);
  await b.refused(['agent', 'setup', '--name', 'oldname', '--workspace', workspace], 'invalid_state', 1, {
    env: shellOf(session),
    cwd: workspace,
  });
  const sent = await a.ok(['send', '--to', 'newname@hostb', 'to the new name']);
  assert.equal(sent['destination']['workspace'], workspace);
  await b.untilStatus(String(sent['message_id']), { state: 'available' });
  assert.equal((await b.ok(['messages', 'list', '--workspace', workspace]))['messages'].length, 2);
  await a.ok(['agent', 'sessions', 'hostb']);
  await a.refused(['send', '--to', 'oldname@hostb', 'x'], 'not_found');
  await b.refused(['agent', 'rename', 'oldname', 'x'], 'not_found');
});

test("a removed agent's unread messages wait for a new setup, and both sides say so", async () => {
  const { workspace, session } = await attached('removed');
  const id = await toFolder(workspace);
  await a.untilStatus(id, { receiver_state: 'available' });
  const removed = await b.ok(['agent', 'remove', 'removed']);
  assert.equal(removed['waiting'], 1);
  await b.untilStatus(id, { state: 'awaiting_setup' });
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'awaiting_setup' });
  await b.refused(['messages', 'fetch', id], 'invalid_state', 1, { env: shellOf(session), cwd: workspace });
  await b.ok(['agent', 'setup', '--name', 'again', '--workspace', workspace], { env: shellOf(session), cwd: workspace });
  await a.untilStatus(id, { receiver_state: 'available' });
});

test('many messages at once make few notices, and a reader that fetches one is told of the rest', async () => {
  const { workspace, session } = await attached('many');
  const ids = await Promise.all(Array.from({ length: 12 }, () => toFolder(workspace)));
  await Promise.all(ids.map((id) => b.untilStatus(id, { state: 'available' })));
  await session.next('frame');
  const first = await b.ok(['messages', 'fetch', ids[0] ?? ''], { env: shellOf(session), cwd: workspace });
  assert.equal(first['waiting'].length, 10);
  assert.equal(session.all('frame').length <= 2, true, `${session.all('frame').length} notices`);
});

test('a daemon that starts finds the sessions that run and tells the one for which something waits', async () => {
  const workspace = b.workspace('running');
  const id = await toFolder(workspace);
  await a.untilStatus(id, { state: 'accepted' });
  await b.stop();
  const session = await b.session(workspace, { autorun: false });
  await b.start();
  const frame = await session.next('frame');
  assert.match(frame.content, new RegExp(id));
  await a.untilStatus(id, { live_session: true, receiver_notice: 'written' });
});

test('a link, a trailing slash, double slashes and .. are one address, kept as the real path; a nested folder is another', async () => {
  const { workspace, session } = await attached('spelled');
  const nested = b.workspace('spelled/nested');
  const link = `${workspace}-link`;
  symlinkSync(workspace, link);
  const spellings = [`${workspace}/`, link, `${link}/nested/..`, `${nested}/..`, workspace.replaceAll('/', '//'), `${workspace}/./`];
  for (const spelling of spellings) {
    const status = await b.untilStatus(await toFolder(spelling), { state: 'available' });
    assert.equal(status['destination']['workspace'], workspace, spelling);
  }
  const below = await toFolder(nested);
  const status = await b.untilStatus(below, { state: 'awaiting_setup' });
  assert.deepEqual([status['destination']['workspace'], status['live_session'], status['receiver_notice']], [nested, false, null]);
  await b.refused(['messages', 'fetch', below], 'invalid_state', 1, { env: shellOf(session), cwd: workspace });
  const linked = await b.ok(['agent', 'setup', '--name', 'spelled', '--workspace', `${link}/`], { env: shellOf(session), cwd: link });
  assert.deepEqual([linked['agent']['workspace'], linked['waiting_count']], [workspace, spellings.length]);
});

test('a folder moved under a live session: nothing goes to the wrong place, and everybody is told why', async () => {
  const { workspace, session } = await attached('moving');
  const waiting = await toFolder(workspace);
  await b.untilStatus(waiting, { state: 'available', receiver_notice: 'written' });
  const moved = `${workspace}-moved`;
  renameSync(workspace, moved);
  const { hosts } = await a.ok(['agent', 'sessions', 'hostb']);
  const row = hosts[0]['sessions'].find((one: Json) => one['session_id'] === session.sessionId) as Json;
  assert.deepEqual([row['workspace'], row['reachable'], row['reason']], [workspace, false, 'its folder is gone or was moved']);
  const sent = await a.ok(['send', '--host', 'hostb', '--session', session.sessionId, '--harness', 'claude', 'hello']);
  const refused = await a.untilStatus(String(sent['message_id']), { state: 'refused' });
  assert.match(String(refused['cause']['message']), /there is no folder .*: look where its sessions work \(ax agent sessions hostb\)/);
  await b.refused(['send', '--host', 'Localhost', '--session', session.sessionId, '--harness', 'claude', 'hello'], 'not_found');
  const setup = await b.refused(['agent', 'setup', '--name', 'moving', '--workspace', moved], 'invalid_state', 1, {
    env: shellOf(session),
    cwd: moved,
  });
  assert.match(String(setup['fix']), /start or resume a session in .*-moved/);
  await b.untilStatus(await toFolder(moved), { state: 'awaiting_setup', live_session: false });
  const fetched = await b.ok(['messages', 'fetch', waiting], { env: shellOf(session), cwd: moved });
  assert.deepEqual([fetched['body'], fetched['by']], ['hello', 'session'], 'what was at the old address is still its');
});

test('a session resumed in the same folder attaches again by setup: the same agent and history, and what ended is shown as ended', async () => {
  const { workspace, session } = await attached('resumed');
  const first = await toFolder(workspace);
  await b.untilStatus(first, { state: 'available' });
  await b.ok(['messages', 'fetch', first], { env: shellOf(session), cwd: workspace });
  await session.kill();
  const states = async (): Promise<string[]> => {
    const rows = (await b.ok(['agent', 'list']))['agents'] as Json[];
    return rows.find((row) => row['name'] === 'resumed')?.['attachments'].map((row: Json) => String(row['state']));
  };
  await until('the dead attachment to be seen', async () => ((await states()).join() === 'ended' ? true : (await states()).join()));
  const waiting = await toFolder(workspace);
  await a.untilStatus(waiting, { state: 'accepted', receiver_state: 'available', live_session: false });
  const again = await b.session(workspace, { autorun: false, sessionId: session.sessionId });
  const env = shellOf(again);
  await b.refused(['messages', 'fetch', waiting], 'invalid_state', 1, { env: { ...env, CLAUDE_PID: String(session.pid) }, cwd: workspace });
  const setup = await b.ok(['agent', 'setup', '--name', 'resumed', '--workspace', workspace], { env, cwd: workspace });
  assert.deepEqual(
    setup['waiting'].map((row: Json) => row['message_id']),
    [waiting],
  );
  assert.deepEqual(await states(), ['live'], 'the same conversation, in its new process');
  assert.equal((await b.ok(['messages', 'fetch', waiting], { env, cwd: workspace }))['body'], 'hello');
  const { messages } = await b.ok(['messages', 'list', '--workspace', workspace]);
  assert.deepEqual(messages.map((row: Json) => row['message_id']).toSorted(), [first, waiting].toSorted());
  await again.stop();
  const fresh = await b.session(workspace, { autorun: false });
  await b.ok(['agent', 'setup', '--name', 'resumed', '--workspace', workspace], { env: shellOf(fresh), cwd: workspace });
  assert.deepEqual(await states(), ['ended', 'live']);
});
