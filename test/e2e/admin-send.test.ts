// `ax admin send` on a pseudo-terminal between two real hosts, and who a message is from: the owner, the agent of a folder, an agent whose session restarted.
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { KEYS, Terminal } from '../real/terminal.ts';
import { BUNDLE, makeBed, sessionOf, shellOf } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';

const bed = makeBed();
let a: Host;
let b: Host;
before(async () => {
  [a, b] = await bed.pair();
});

test("a person picks a session of another host from any folder, and the owner's message reaches it", async (t) => {
  const workspace = b.workspace('picked');
  const session = await b.session(workspace, { autorun: false });
  const down = await bed.running('hostd');
  const invite = await a.ok(['host', 'invite']);
  await down.ok(['host', 'join', '-'], { stdin: `${String(invite['code'])}\n` });
  await a.untilUp(down);
  await down.stop();
  const terminal = new Terminal(process.execPath, [BUNDLE, 'admin', 'send'], { env: a.env, cwd: '/' });
  t.after(() => terminal.kill());
  const hosts = await terminal.until(/To which host\?[\s\S]*hostb +1 live session\b/);
  assert.match(hosts, /hostd \(unavailable/);
  assert.match(hosts, /no live session: Localhost/);
  terminal.type(KEYS.enter);
  await terminal.until(session.sessionId);
  terminal.type(KEYS.enter);
  await terminal.until('Subject');
  terminal.type(`from a person${KEYS.enter}`);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(`look at the build${KEYS.enter}${KEYS.ctrlD}`);
  await terminal.until('Send it as the owner');
  terminal.type(KEYS.enter);
  assert.equal((await terminal.ended).status, 0, terminal.history());
  const id = /\b[0-9a-z]{26}\b/.exec(terminal.history())?.[0] ?? '';
  await b.untilStatus(id, { state: 'awaiting_setup', receiver_notice: 'written' });
  const frame = await session.next('frame');
  assert.doesNotMatch(frame.content, /look at the build|from a person/);
  await b.call('agent.setup', { name: 'picked', workspace }, sessionOf(session));
  const fetched = await b.ok(['messages', 'fetch', id], { env: shellOf(session), cwd: workspace });
  assert.deepEqual([fetched['body'], fetched['subject'], fetched['from']], ['look at the build', 'from a person', 'hosta']);
  await b.refused(['messages', 'reply', id, 'thanks'], 'no_reply_address', 1, { env: shellOf(session), cwd: workspace });
  assert.deepEqual((await a.ok(['agent', 'list']))['agents'], [], "an owner's message makes no mailbox");
});

test("from a plain shell in an agent's folder the agent sends; the reply goes to its address and waits for its next session", async () => {
  const [own, workspace] = [a.workspace('asking'), b.workspace('answering')];
  const [asker, answerer] = [await a.session(own, { autorun: false }), await b.session(workspace, { autorun: false })];
  await a.call('agent.setup', { name: 'asking', workspace: own }, sessionOf(asker));
  await b.call('agent.setup', { name: 'answering', workspace }, sessionOf(answerer));
  const queued = await a.ok(['send', '--to', 'answering@hostb', 'what now?'], { cwd: own });
  assert.equal(queued['from']['agent'], 'asking');
  const id = String(queued['message_id']);
  await b.untilStatus(id, { state: 'available' });
  const fetched = await b.ok(['messages', 'fetch', id], { env: shellOf(answerer), cwd: workspace });
  assert.equal(fetched['from'], 'asking@hosta');
  await asker.kill();
  await a.stop();
  const reply = await b.ok(['messages', 'reply', id, 'this'], { env: shellOf(answerer), cwd: workspace });
  const { host, harness, workspace: to } = reply['destination'] as Json;
  assert.deepEqual([host, harness, to], ['hosta', 'claude', own]);
  const answer = String(reply['message_id']);
  await a.start();
  await a.untilStatus(answer, { state: 'available', live_session: false });
  const next = await a.session(own, { autorun: false });
  const notice = await next.until((event) => event.event === 'frame' && event.content.includes(answer));
  assert.match(notice.event === 'frame' ? notice.content : '', /ax.* agent setup --name asking/);
  await a.ok(['agent', 'setup', '--name', 'asking', '--workspace', own], { env: shellOf(next), cwd: own });
  const read = await a.ok(['messages', 'fetch', answer], { env: shellOf(next), cwd: own });
  assert.deepEqual([read['body'], read['from'], read['by']], ['this', 'answering@hostb', 'session']);
  await b.untilStatus(answer, { state: 'fetched' });
});
