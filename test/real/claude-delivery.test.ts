/**
 * The matrix of Claude Code, first half: a notice from another host at a genuine session, in every state such a session can be in.
 *
 * In every cell the message comes from host A by `ax send`, the session is one of host B, and what A's `ax admin status` says is the truth.
 */
import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname, join } from 'node:path';
import { LAUNCHER, until } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import { obedient } from './claude-model.ts';
import { WORLD } from './claude-world.ts';
import { matrix } from './matrix.ts';

const cell = matrix('claude', import.meta.filename, WORLD);
/** What a user allows so that reading needs no prompt. */
const ALLOWED = { permissions: { allow: [`Bash(${LAUNCHER} messages fetch:*)`, `Bash(${LAUNCHER} agent setup:*)`] } };
/** Runs until a file `go` is there. */
const WAITS = 'while [ ! -e go ]; do sleep 0.05; done; echo has finished\n';
/** 20 commands, one after the other, each its own process in the harness's shell. */
const MANY_LIMIT_MS = 80_000;
const DIALOG = 'Held message from another session';
const PROMPT = 'Do you want to proceed?';

cell('an idle session starts a turn with the notice', async (world, { t }) => {
  const session = await world.session('idle');
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  await world.untilTold(session.sessionId, id);
  const status = await world.status(id, { receiver_notice: 'written' });
  assert.equal(status['state'], 'accepted');
  assert.equal(status['receiver_state'], 'awaiting_setup');
  assert.equal(world.model.of(session.sessionId).length, 1);
  await session.terminal.until('Message from @ax');
  return 'a turn began with the notice; the sender sees accepted, notice written';
});

cell('a session that does what the notices say fetches the message', async (world, { t }) => {
  const session = await world.session('obeys', { settings: ALLOWED });
  t.after(() => session.end());
  const ran: string[] = [];
  world.model.script(session.sessionId, obedient(ran));
  const id = await world.send(session.cwd);
  const status = await world.status(id, { state: 'fetched' });
  assert.deepEqual(
    ran.map((command) => command.split(' ').slice(1, 3).join(' ')),
    ['agent setup', 'messages fetch'],
  );
  assert.ok(ran[1]?.includes(id));
  assert.notEqual(status['fetched_at'], null);
  await until('the body in the tool result', async () =>
    world.model.of(session.sessionId).some((turn) => turn.results.some((result) => result.includes('hello'))) ? true : 'not yet',
  );
  return 'its Bash tool ran `ax agent setup` and `ax messages fetch` without a prompt; the sender sees fetched';
});

cell('a session without allow rules asks its user before each command of ax', async (world, { t }) => {
  const session = await world.session('asks');
  t.after(() => session.end());
  const ran: string[] = [];
  world.model.script(session.sessionId, obedient(ran));
  const id = await world.send(session.cwd);
  for (const command of ['agent setup', 'messages fetch']) {
    await session.untilStatus('waiting');
    await session.terminal.until(command);
    assert.equal((await world.a.status(id))['state'], 'accepted');
    await session.answer(PROMPT, /Yes$/);
  }
  await world.status(id, { state: 'fetched' });
  return 'a prompt with the whole command, twice; after two times yes the sender sees fetched';
});

cell('a busy session reads the notice after its tool, which is not interrupted', async (world, { t }) => {
  const session = await world.session('busy', { settings: { permissions: { allow: ['Bash(sh wait.sh)'] } } });
  t.after(() => session.end());
  writeFileSync(join(session.cwd, 'wait.sh'), WAITS);
  world.model.script(session.sessionId, ({ results }) => (results.length === 0 ? { run: 'sh wait.sh' } : { say: 'ok' }));
  await session.say('run it');
  await session.untilStatus('busy');
  await until('the tool to run', async () => (world.model.of(session.sessionId).length > 0 ? true : 'no turn'));
  const id = await world.send(session.cwd);
  await world.status(id, { receiver_notice: 'written' });
  assert.equal(world.model.count(session.sessionId, id), 0);
  writeFileSync(join(session.cwd, 'go'), '');
  await world.untilTold(session.sessionId, id);
  const turn = world.model.of(session.sessionId).at(1);
  assert.match(turn?.results[0] ?? '', /has finished/);
  assert.ok(turn?.news.includes(id), 'the request with the result of the tool brings the notice');
  return 'the tool ran to its end; its result and the notice came in one request';
});

cell('an open permission prompt stays, and the notice waits behind it', async (world, { t }) => {
  const session = await world.session('prompt');
  t.after(() => session.end());
  world.model.script(session.sessionId, ({ results }) => (results.length === 0 ? { run: 'touch made-it' } : { say: 'ok' }));
  await session.say('make it');
  await session.untilStatus('waiting');
  const prompt = await session.terminal.until(PROMPT);
  const id = await world.send(session.cwd);
  await world.status(id, { receiver_notice: 'written' });
  await world.untilListed(session.sessionId, { status: 'waiting' });
  assert.ok(session.terminal.screen().includes(PROMPT), prompt);
  assert.equal(world.model.count(session.sessionId, id), 0);
  await session.answer(PROMPT, /Yes$/);
  await world.untilTold(session.sessionId, id);
  assert.ok(existsSync(join(session.cwd, 'made-it')));
  return 'the prompt stood until its user answered; then the command ran and the notice was read';
});

cell('plan mode takes the notice as manual mode does', async (world, { t }) => {
  const session = await world.session('plan', { mode: 'plan' });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  await world.untilTold(session.sessionId, id);
  await world.status(id, { state: 'accepted', receiver_notice: 'written' });
  await session.terminal.until('plan mode on');
  return 'a turn began with the notice; the session stayed in plan mode';
});

cell('a bypass session holds the notice until its user approves', async (world, { t }) => {
  const session = await world.session('approve', { mode: 'bypassPermissions' });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  const held = await world.status(id, { receiver_notice: 'held' });
  assert.equal(held['state'], 'accepted');
  await session.terminal.until(DIALOG);
  assert.equal(world.model.count(session.sessionId, id), 0);
  await session.answer(DIALOG, /Deliver this message/);
  await world.status(id, { receiver_notice: 'approved' });
  await world.untilTold(session.sessionId, id);
  return 'a dialog; the sender saw held, then approved, and the model read the notice';
});

cell('a bypass session whose user denies never reads the notice', async (world, { t }) => {
  const session = await world.session('deny', { mode: 'bypassPermissions' });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  await world.status(id, { receiver_notice: 'held' });
  await session.answer(DIALOG, /Deny/);
  const status = await world.status(id, { receiver_notice: 'denied' });
  assert.equal(status['state'], 'accepted');
  await session.untilStatus('idle');
  assert.equal(world.model.count(session.sessionId, id), 0);
  return 'the sender saw held, then denied; the message still waits, the model read nothing';
});

cell('a bypass session whose user does not answer lets the notice lapse', async (world, { t }) => {
  const session = await world.session('lapse', { mode: 'bypassPermissions', env: { CLAUDE_CODE_USER_DIALOG_TIMEOUT_MS: '2000' } });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  const status = await world.status(id, { receiver_notice: 'lapsed' });
  assert.equal(status['state'], 'accepted');
  // It is held for 2 s, and a sender that is slow to hear of that hears of the end only: the receiver knows both.
  const steps = ((await world.b.status(id))['history'] as Json[]).map((row) => String(row['state']));
  assert.deepEqual(steps.filter((step) => step.startsWith('notice.outcome')).slice(-2), ['notice.outcome held', 'notice.outcome lapsed']);
  assert.equal(world.model.count(session.sessionId, id), 0);
  return 'held, then lapsed, which the sender saw; the message still waits, the model read nothing';
});

cell('crossSessionInbound accept lets a bypass session take the notice unasked', async (world, { t }) => {
  const session = await world.session('accept', { mode: 'bypassPermissions', settings: { crossSessionInbound: 'accept' } });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  await world.untilTold(session.sessionId, id);
  await world.status(id, { receiver_notice: 'written' });
  return 'no dialog; a turn began with the notice';
});

cell('crossSessionInbound hold holds the notice without a dialog', async (world, { t }) => {
  const session = await world.session('hold', { settings: { crossSessionInbound: 'hold' } });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  const status = await world.status(id, { receiver_notice: 'held' });
  assert.equal(status['state'], 'accepted');
  assert.ok(!session.terminal.screen().includes(DIALOG));
  assert.equal(world.model.count(session.sessionId, id), 0);
  await session.end();
  await world.status(id, { receiver_notice: 'lapsed' });
  return 'the sender saw held; when the session ended with it, lapsed';
});

cell('a held notice goes through when its user changes hold to accept', async (world, { t }) => {
  const before = world.home.settings({ crossSessionInbound: 'hold' });
  t.after(() => world.home.settings(before));
  const session = await world.session('change');
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  await world.status(id, { receiver_notice: 'held' });
  assert.equal(world.model.count(session.sessionId, id), 0);
  world.home.settings({ crossSessionInbound: 'accept' });
  await world.untilTold(session.sessionId, id);
  await world.status(id, { receiver_notice: 'approved' });
  return 'the running session took the new setting; the sender saw held, then approved';
});

cell('crossSessionInbound refuse shows as blocked', async (world, { t }) => {
  const session = await world.session('refuse', { settings: { crossSessionInbound: 'refuse' } });
  t.after(() => session.end());
  const id = await world.send(session.cwd);
  const status = await world.status(id, { receiver_notice: 'blocked' });
  assert.equal(status['state'], 'accepted');
  assert.equal(world.model.count(session.sessionId, id), 0);
  return 'the sender sees blocked; the message still waits, the model read nothing';
});

cell('a notice that the session drops without a word never becomes fetched', async (world, { t }) => {
  const session = await world.session('drops', { settings: { permissions: { allow: ['Bash(sh wait.sh)'] } } });
  t.after(() => session.end());
  writeFileSync(join(session.cwd, 'wait.sh'), WAITS);
  world.model.script(session.sessionId, ({ results }) => (results.length === 0 ? { run: 'sh wait.sh' } : { say: 'ok' }));
  await session.say('run it');
  await until('the tool to run', async () => (world.model.of(session.sessionId).length > 0 ? true : 'no turn'));
  await fill(session.record.messagingSocketPath ?? '');
  await until('its inbox to be full', async () => (session.debugLog.includes('queue-full') ? true : 'not full'));
  const id = await world.send(session.cwd);
  await world.status(id, { receiver_notice: 'written' });
  // By the socket that it came with: drops of the noise may still be written to the log.
  await until('the notice to be dropped', async () =>
    /\[peer-guard\] drop \S+ from uds:\S+\/ax-\d+\.sock/.test(session.debugLog) ? true : session.debugLog.slice(-3000),
  );
  writeFileSync(join(session.cwd, 'go'), '');
  await until('the turn to end', async () => (world.model.of(session.sessionId).length > 1 ? true : 'no turn'));
  await session.untilStatus('idle');
  assert.equal(world.model.count(session.sessionId, id), 0);
  const status = await world.a.status(id);
  assert.equal(status['state'], 'accepted');
  assert.equal(status['receiver_notice'], 'written');
  assert.equal(status['fetched_at'], null);
  return 'its guard dropped the notice, and nobody was told; the sender sees accepted, written, unread';
});

cell(
  '20 messages at once make few notices, and all are fetched',
  async (world, { t }) => {
    const session = await world.session('many', { settings: ALLOWED });
    t.after(() => session.end());
    world.model.script(session.sessionId, obedient());
    const ids = await Promise.all(Array.from({ length: 20 }, (_, number) => world.sendQuickly(session.cwd, `message ${number}`)));
    await Promise.all(ids.map((id) => world.a.untilStatus(id, { state: 'fetched' }, MANY_LIMIT_MS)));
    await session.untilStatus('idle');
    const notices = world.model.count(session.sessionId, '<cross-session-message from-name="ax">');
    assert.ok(notices >= 1 && notices <= 6, `${notices} notices`);
    return 'at most 6 notices; the model fetched all 20, one after the other';
  },
  { timeoutMs: 2 * MANY_LIMIT_MS },
);

/** Fills a session's inbox as other local programs would, until it takes no more. */
async function fill(socketPath: string): Promise<void> {
  for (const sender of ['one', 'two', 'three']) {
    const from = `uds:${join(dirname(socketPath), `${sender}.sock`)}`;
    const lines = Array.from({ length: 25 }, (_, number) => {
      const content = `<cross-session-message from-name="${sender}">\nnoise ${sender} ${number}\n</cross-session-message>`;
      return `${JSON.stringify({ type: 'user', from, message: { role: 'user', content } })}\n`;
    });
    await new Promise<void>((resolve, reject) => {
      const socket = connect(socketPath, () => socket.end(lines.join('')));
      socket.once('close', () => resolve());
      socket.once('error', reject);
      socket.resume();
    });
  }
}
