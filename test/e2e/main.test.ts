/**
 * The main job with real processes: a message from one host to a session on another, and what both sides say at each stage.
 *
 * Two daemons with homes of their own, the bundled CLI, stand-in sessions. Each test has workspaces of its own on the two hosts.
 */
import assert from 'node:assert/strict';
import { lstatSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { makeBed, sessionOf, shellOf, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';

const bed = makeBed();
let a: Host;
let b: Host;
before(async () => {
  [a, b] = await bed.pair();
  // Known by hand, and nobody listens there.
  await a.ok(['host', 'add', 'nowhere', '/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGSXjgfvMg8GSAmru5tYiCodRmwZCYfAhbEGi2o2R5dy2']);
});

/** A message from the owner of `a` to a folder on `b`. */
async function toFolder(workspace: string, body = 'hello', ...more: readonly string[]): Promise<string> {
  const queued = await a.ok(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', ...more, '--', body]);
  return String(queued['message_id']);
}

test('a message for a host that is down is queued, says so in words, and moves when that host is back', async () => {
  const workspace = b.workspace('down');
  await b.stop();
  await until('a to see b down', async () => {
    const row = (await a.ok(['host', 'show', 'hostb'])) as { state: string };
    return row.state === 'down' || row.state;
  });
  const queued = await a.ok(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', 'hello']);
  assert.equal(queued['state'], 'queued');
  assert.equal(queued['type'], 'message_queued');
  const id = String(queued['message_id']);
  const words = await a.ax(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', 'again']);
  assert.match(words.stdout, /Stored on this host; nobody has read it\. It goes to hostb as soon as that host answers/);
  const status = await a.status(id);
  assert.deepEqual([status['side'], status['state'], status['uncertain']], ['sender', 'queued', false]);
  assert.equal(status['receiver_state'], undefined);
  const overview = await a.ok(['admin', 'status']);
  assert.equal(overview['outbox']['queued'] >= 2, true, JSON.stringify(overview['outbox']));
  assert.equal(
    overview['attention'].some((row: Json) => /hostb, which is not reachable/.test(String(row['what']))),
    true,
  );
  const sessions = await a.ok(['agent', 'sessions']);
  const rows = Object.fromEntries(sessions['hosts'].map((row: Json) => [row['host'], row['state']]));
  assert.deepEqual([rows['Localhost'], rows['hostb']], ['ok', 'unavailable']);
  await b.start();
  const accepted = await a.untilStatus(id, { state: 'accepted' });
  assert.deepEqual([accepted['receiver_state'], accepted['live_session'], accepted['uncertain']], ['awaiting_setup', false, false]);
  const there = await b.status(id);
  assert.deepEqual([there['side'], there['state'], there['live_session']], ['receiver', 'awaiting_setup', false]);
});

test('first contact: an unknown session is told, sets itself up, fetches and replies, and each side says what it knows', async () => {
  const own = a.workspace('asker');
  const asker = await a.session(own);
  await a.call('agent.setup', { name: 'asker', workspace: own }, sessionOf(asker));
  const workspace = b.workspace('first');
  const session = await b.session(workspace, { reply: 'it is fixed' });
  const queued = await a.ok(['send', '--host', 'hostb', '--session', session.sessionId, '--harness', 'claude', 'it is broken'], {
    cwd: own,
  });
  assert.deepEqual([queued['state'], queued['live_session'], queued['from']], ['forwarding', true, { host: 'hosta', agent: 'asker' }]);
  const id = String(queued['message_id']);
  const fetched = await a.untilStatus(id, { state: 'fetched' });
  assert.deepEqual(
    fetched['history'].map((row: Json) => row['state']).filter((state: string) => state !== 'forwarding'),
    ['queued', 'accepted', 'fetched'],
  );
  const there = await b.status(id);
  const steps = there['history'].map((row: Json) => row['state']);
  for (const [first, second] of [
    ['received', 'notice.attempt'],
    ['notice.attempt', 'available'],
    ['available', 'handed_out'],
    ['handed_out', 'fetched'],
  ]) {
    assert.equal(
      steps.indexOf(first) >= 0 && steps.indexOf(first) < steps.indexOf(second),
      true,
      `${first} before ${second}: ${steps.join(', ')}`,
    );
  }
  assert.equal(there['receiver_notice'], 'written');
  const reply = await asker.until((event) => event.event === 'ran' && event.stdout.includes('it is fixed'));
  assert.equal(reply.event === 'ran' && reply.exit, 0);
  const sent = await b.ok(['messages', 'list', '--sent', '--workspace', workspace]);
  assert.deepEqual([sent['messages'].length, sent['messages'][0]['from'], sent['messages'][0]['to']], [1, 'first@hostb', 'hosta']);
  await b.untilStatus(String(sent['messages'][0]['message_id']), { state: 'fetched' });
});

test('a session that starts later is told by itself, and both sides see that it lives', async () => {
  const workspace = b.workspace('later');
  const id = await toFolder(workspace);
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'awaiting_setup', live_session: false });
  const session = await b.session(workspace, { autorun: false });
  const frame = await session.next('frame');
  assert.match(frame.content, /a message waits for this workspace .* agent setup --name later --workspace /s);
  await b.untilStatus(id, { state: 'awaiting_setup', live_session: true, receiver_notice: 'written' });
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'awaiting_setup', receiver_notice: 'written', live_session: true });
  const setup = await b.ok(['agent', 'setup', '--name', 'later', '--workspace', workspace], { env: shellOf(session), cwd: workspace });
  assert.equal(setup['type'], 'agent_setup');
  assert.deepEqual(setup['waiting'], [{ message_id: id, kind: 'message', bytes: 5 }]);
  await b.untilStatus(id, { state: 'available' });
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'available' });
});

test('a body handed out to a reader that dies is never fetched; the next fetch says that it is one', async () => {
  const workspace = b.workspace('dies');
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name: 'dies', workspace }, sessionOf(session));
  const words = ['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', '--file', '-'];
  const id = String((await a.ok(words, { stdin: 'x'.repeat(600_000) }))['message_id']);
  await a.untilStatus(id, { state: 'accepted', receiver_state: 'available' });
  const env = shellOf(session);
  // The output is more than a socket holds and nobody reads, so the reader stands still in the middle of the body.
  const killed = await b.ax(['messages', 'fetch', id, '--format', 'json'], {
    env,
    cwd: workspace,
    onStart: (child) => {
      child.stdout?.pause();
      child.stdout?.removeAllListeners('data');
      void until('the hand-out', async () =>
        (await b.call('admin.message_status', { id }))['handed_out_at'] === null ? 'not yet' : true,
      ).then(() => child.kill('SIGKILL'));
    },
  });
  const confirmed = (await b.status(id))['state'] === 'fetched';
  assert.equal(killed.signal, 'SIGKILL');
  assert.equal(confirmed, false);
  const unconfirmed = await b.status(id);
  assert.deepEqual([unconfirmed['state'], unconfirmed['fetched_at']], ['available', null]);
  assert.notEqual(unconfirmed['handed_out_at'], null);
  assert.match((await b.ax(['admin', 'status', id])).stdout, /handed out, unconfirmed/);
  await until('the sender to know', async () => ((await a.status(id))['handed_out_at'] === null ? 'not yet' : true));
  assert.equal((await a.status(id))['state'], 'accepted');
  const error = await a.refused(['admin', 'cancel', id], 'too_late');
  assert.equal(error['details']['certain'], false);
  const again = await b.ok(['messages', 'fetch', id], { env, cwd: workspace });
  assert.deepEqual([again['refetch'], again['first_fetched_at'], again['by']], [true, null, 'session']);
  const fetched = await b.status(id);
  assert.equal(fetched['state'], 'fetched');
  const third = await b.ok(['messages', 'fetch', id], { env, cwd: workspace });
  assert.deepEqual([third['refetch'], third['first_fetched_at']], [true, fetched['fetched_at']]);
  await a.untilStatus(id, { state: 'fetched' });
});

test("an owner's read gives the body and changes nothing; a reply to an owner's message is refused", async () => {
  const workspace = b.workspace('owner');
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name: 'owner', workspace }, sessionOf(session));
  const id = await toFolder(workspace, 'for the session');
  await b.untilStatus(id, { state: 'available' });
  const read = await b.ok(['messages', 'fetch', id], { cwd: workspace });
  assert.deepEqual([read['body'], read['by'], read['refetch']], ['for the session', 'owner', false]);
  const status = await b.status(id);
  assert.deepEqual([status['state'], status['handed_out_at']], ['available', null]);
  assert.equal(
    status['history'].some((row: Json) => row['state'] === 'read_by_owner'),
    true,
  );
  const nobody = await b.refused(['messages', 'reply', id, 'thanks'], 'no_reply_address', 1, { env: shellOf(session), cwd: workspace });
  assert.match(String(nobody['fix']), /^write to a session or a folder there, which is listed by: .*agent sessions hosta$/);
  const words = await a.ax(['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude', 'x']);
  assert.match(words.stderr, /sent as the owner of this host.*nobody can reply/);
});

test('a note causes no notice and waits for the next look', async () => {
  const workspace = b.workspace('notes');
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name: 'notes', workspace }, sessionOf(session));
  const note = await toFolder(workspace, 'for later', '--note', '--subject', 'no hurry');
  await a.untilStatus(note, { state: 'accepted', receiver_state: 'available', stored_as: 'note' });
  const message = await toFolder(workspace, 'now');
  const frame = await session.next('frame');
  assert.match(frame.content, new RegExp(`a message waits .*${message}`, 's'));
  assert.equal(
    (await b.status(note))['history'].some((row: Json) => String(row['state']).startsWith('notice')),
    false,
  );
  const { messages } = await b.ok(['messages', 'list', '--workspace', workspace]);
  assert.deepEqual(
    messages.map((row: Json) => [row['message_id'], row['kind'], row['subject']]),
    [
      [message, 'message', null],
      [note, 'note', 'no hurry'],
    ],
  );
  const fetched = await b.ok(['messages', 'fetch', message], { env: shellOf(session), cwd: workspace });
  assert.deepEqual(fetched['waiting'], [{ message_id: note, kind: 'note', bytes: 9 }]);
});

test('a cancel before the message left ends it at once; one after acceptance is decided by the receiver; one after pickup is too late', async () => {
  const never = await a.ok(['send', '--host', 'nowhere', '--destination-workspace', '/srv/x', '--harness', 'claude', 'never']);
  const cancelled = await a.ok(['admin', 'cancel', String(never['message_id'])]);
  assert.deepEqual([cancelled['type'], cancelled['state']], ['message_cancel', 'cancelled']);
  const workspace = b.workspace('cancel');
  const id = await toFolder(workspace);
  await a.untilStatus(id, { state: 'accepted' });
  assert.equal((await a.ok(['admin', 'cancel', id]))['state'], 'cancel_requested');
  await a.untilStatus(id, { state: 'cancelled' });
  assert.equal((await b.status(id))['state'], 'cancelled');
  const session = await b.session(workspace, { autorun: false });
  await b.call('agent.setup', { name: 'cancel', workspace }, sessionOf(session));
  await b.refused(['messages', 'fetch', id], 'invalid_state', 1, { env: shellOf(session), cwd: workspace });
  const taken = await toFolder(workspace);
  await b.untilStatus(taken, { state: 'available' });
  await b.ok(['messages', 'fetch', taken], { env: shellOf(session), cwd: workspace });
  await a.untilStatus(taken, { state: 'fetched' });
  assert.equal((await a.refused(['admin', 'cancel', taken], 'too_late'))['details']['certain'], true);
  assert.equal((await b.refused(['admin', 'cancel', taken], 'invalid_state'))['code'], 'invalid_state');
});

test('to Localhost: one message, one status that says local, the same states; never to the sending session itself', async () => {
  const [from, to] = [a.workspace('local1'), a.workspace('local2')];
  const [sender, reader] = [await a.session(from, { autorun: false }), await a.session(to, { autorun: false })];
  await a.call('agent.setup', { name: 'local1', workspace: from }, sessionOf(sender));
  await a.call('agent.setup', { name: 'local2', workspace: to }, sessionOf(reader));
  const queued = await a.ok(['send', '--to', 'local2@LOCALHOST', 'hi'], { env: shellOf(sender), cwd: from });
  assert.deepEqual([queued['state'], queued['live_session'], queued['from']['agent']], ['available', true, 'local1']);
  const id = String(queued['message_id']);
  await reader.next('frame');
  assert.deepEqual([(await a.status(id))['side'], (await a.status(id))['state']], ['local', 'available']);
  assert.equal((await a.ok(['messages', 'fetch', id], { env: shellOf(reader), cwd: to }))['body'], 'hi');
  assert.deepEqual([(await a.status(id))['side'], (await a.status(id))['state']], ['local', 'fetched']);
  const reply = await a.ok(['messages', 'reply', id, 'ho'], { env: shellOf(reader), cwd: to });
  assert.equal(reply['destination']['workspace'], from);
  await a.refused(['send', '--to', 'local1@Localhost', 'me'], 'invalid_argument', 1, { env: shellOf(sender), cwd: from });
  await a.refused(['send', '--host', 'Localhost', '--session', sender.sessionId, '--harness', 'claude', 'me'], 'invalid_argument', 1, {
    env: shellOf(sender),
    cwd: from,
  });
  const cancelled = await a.ok(['send', '--host', 'Localhost', '--destination-workspace', to, '--harness', 'claude', 'oops'], {
    env: shellOf(sender),
    cwd: from,
  });
  assert.equal((await a.ok(['admin', 'cancel', String(cancelled['message_id'])]))['state'], 'cancelled');
});

test('the beginning of an id is enough while it fits one message, else the candidates are named', async () => {
  const workspace = b.workspace('prefix');
  const ids = await Promise.all([toFolder(workspace, 'one'), toFolder(workspace, 'two')]);
  const error = await a.refused(['admin', 'status', (ids[0] ?? '').slice(0, 5)], 'ambiguous_id');
  assert.equal(
    ids.every((id) => error['details']['candidates'].includes(id)),
    true,
  );
  const found = await a.status((ids[1] ?? '').slice(0, 20));
  assert.equal(found['message_id'], ids[1]);
  await a.refused(['admin', 'status', '0000000000'], 'message_not_found');
});

test('--wait answers at the state, and when the time is over with the present state and a status of its own', async () => {
  const workspace = b.workspace('wait');
  const done = await a.ok([
    'send',
    '--host',
    'hostb',
    '--destination-workspace',
    workspace,
    '--harness',
    'claude',
    '--wait',
    'accepted',
    'x',
  ]);
  assert.equal(done['state'], 'accepted');
  const over = await a.ax([
    'send',
    '--host',
    'hostb',
    '--destination-workspace',
    workspace,
    '--harness',
    'claude',
    '--wait',
    'fetched',
    '--timeout',
    '300ms',
    'x',
  ]);
  assert.equal(over.status, 1);
  assert.match(over.stdout, /^(forwarding|accepted) {2}/m);
  assert.match(over.stderr, /is (forwarding|accepted), not fetched, after 300 ms; it stays on its way\nfix: .* admin status /);
  const session = await b.session(workspace);
  const got = await a.ok(['send', '--host', 'hostb', '--session', session.sessionId, '--harness', 'claude', '--wait', 'fetched', 'x']);
  assert.equal(got['state'], 'fetched');
});

test('a message outlives the restart of both daemons at every stage', async () => {
  const workspace = b.workspace('restart');
  const session = await b.session(workspace, { autorun: false });
  const id = await toFolder(workspace, 'keep me', '--subject', 'kept');
  await a.untilStatus(id, { state: 'accepted' });
  await Promise.all([a.restart(), b.restart()]);
  await a.untilUp(b);
  await b.untilLive(session);
  assert.equal((await a.status(id))['state'], 'accepted');
  await b.ok(['agent', 'setup', '--name', 'restart', '--workspace', workspace], { env: shellOf(session), cwd: workspace });
  const fetched = await b.ok(['messages', 'fetch', id], { env: shellOf(session), cwd: workspace });
  assert.deepEqual([fetched['body'], fetched['subject'], fetched['refetch']], ['keep me', 'kept', false]);
  await a.untilStatus(id, { state: 'fetched' });
  await Promise.all([a.restart(), b.restart()]);
  assert.equal((await a.status(id))['state'], 'fetched');
  assert.equal((await b.status(id))['state'], 'fetched');
  assert.deepEqual((await b.ok(['agent', 'list']))['agents'].filter((row: Json) => row['workspace'] === workspace).length, 1);
});

test('the event log tells each step of a message once and in order, also to a reader that follows', async () => {
  const { events, next_seq: next } = await b.ok(['admin', 'events', '--limit', '500']);
  const seqs = events.map((event: Json) => Number(event['seq']));
  assert.deepEqual(
    seqs,
    seqs.toSorted((x: number, y: number) => x - y),
  );
  assert.equal(new Set(seqs).size, seqs.length);
  const workspace = b.workspace('events');
  const id = await toFolder(workspace);
  await a.untilStatus(id, { state: 'accepted' });
  const later = await b.ok(['admin', 'events', '--since', String(next)]);
  const own = later['events'].filter((event: Json) => event['message_id'] === id);
  assert.deepEqual(
    own.map((event: Json) => event['type']),
    ['message.received'],
  );
  await a.refused(['admin', 'events', '--since', 'x'], 'usage', 2);
});

test('the files of a host are for its owner only', () => {
  for (const name of ['.', 'control.sock', 'daemon.lock', 'host.key', 'ports.json', 'store', join('store', 'data.mdb')]) {
    const found = lstatSync(join(a.stateDir, name));
    assert.equal(found.mode & 0o077, 0, `${name} is ${(found.mode & 0o777).toString(8)}`);
  }
});
