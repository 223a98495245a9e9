// `ax admin send` on a pseudo-terminal, against a control socket whose answers a test writes: what is asked, what is shown, what is sent.
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { AxError } from '../../protocol/errors.ts';
import { KEYS, Terminal } from '../real/terminal.ts';
import { AT, CLAUDE_SHELL, HOST_ID, ID, MAIN, scripted, type Answers, type Json, type Scripted } from './scripted.ts';

const SELF_ID = '12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo';
const SESSION = '3f0a7f53-2f5d-4a39-8d44-0f2ab47a4d11';
const OTHER = '9d3c1f0e-7b6a-4c5d-8e9f-1a2b3c4d5e6f';

function session(id: string, more: Json = {}): Json {
  return {
    harness: 'claude',
    session_id: id,
    workspace: '/srv/app',
    status: 'idle',
    agent: 'builder',
    reachable: true,
    reason: null,
    version: '2.1.332',
    started_at: AT,
    ...more,
  };
}

const host = (name: string, id: string, sessions: readonly Json[]): Json => ({
  host: name,
  host_id: id,
  state: 'ok',
  error: null,
  sessions,
});

const DOWN = {
  host: 'hostc',
  host_id: 'x',
  state: 'unavailable',
  error: { code: 'unavailable', message: 'hostc does not answer', retryable: true },
  sessions: [],
};

const QUEUED = {
  message_id: ID,
  destination: { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app', session_id: SESSION },
  kind: 'message',
  state: 'queued',
  stored_as: null,
  live_session: true,
  from: { host: 'hosta', agent: null },
  replayed: false,
  notes: [],
};

function answers(hosts: readonly Json[], more: Answers = {}): Answers {
  return {
    'host.list': () => ({ hosts: [{ name: 'hostb' }, { name: 'hostc' }] }),
    'agent.sessions': () => ({ hosts }),
    'message.send': () => QUEUED,
    ...more,
  };
}

const USUAL = [
  host('Localhost', SELF_ID, []),
  host('hostb', HOST_ID, [session(SESSION), session(OTHER, { workspace: '/srv/web', agent: null, status: 'busy' })]),
  DOWN,
];

function open(t: TestContext, rig: Scripted, args: readonly string[] = [], env: Record<string, string> = {}): Terminal {
  const terminal = new Terminal(process.execPath, [MAIN, ...args, 'admin', 'send'], {
    env: {
      PATH: process.env['PATH'],
      HOME: rig.folder,
      TMPDIR: join(rig.folder, 'tmp'),
      AX_STATE_DIR: rig.stateDir,
      NODE_COMPILE_CACHE: join(rig.folder, 'cache'),
      LANG: 'C.UTF-8',
      ...env,
    },
    cwd: rig.workspace,
  });
  mkdirSync(join(rig.folder, 'tmp'), { recursive: true });
  t.after(() => terminal.kill());
  return terminal;
}

const sends = (rig: Scripted): Json[] => rig.asked.filter((entry) => entry.method === 'message.send').map((entry) => entry.params);

/** An editor that does what `script` says; $1 is the file. */
function editor(rig: Scripted, script: string): string {
  const path = join(rig.folder, 'edit');
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
  return path;
}

async function toBody(terminal: Terminal, subject = ''): Promise<void> {
  await terminal.until('To which host?');
  terminal.type(KEYS.enter);
  await terminal.until('To which session there?');
  terminal.type(KEYS.enter);
  await terminal.until('Subject');
  terminal.type(`${subject}${KEYS.enter}`);
}

async function leftWithNothing(terminal: Terminal, rig: Scripted): Promise<void> {
  await terminal.until(/nothing was sent/);
  assert.deepEqual(await terminal.ended, { status: 1, signal: undefined }, terminal.history());
  assert.deepEqual(sends(rig), []);
}

test('what was picked and typed goes out as one message of the owner, whatever agent the folder has', async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const terminal = open(t, rig);
  // What is drawn last: a terminal is read in pieces, and a question may be there before its choices.
  const first = await terminal.until(/To which host\?[\s\S]*hostb +2 live sessions/);
  assert.doesNotMatch(first, /Localhost +\d/);
  assert.match(first, /hostc \(unavailable: hostc does not answer\)/);
  assert.match(first, /no live session: Localhost/);
  terminal.type(KEYS.enter);
  const second = await terminal.until(/To which session there\?[\s\S]*claude +no agent +busy +started .* ago +\/srv\/web/);
  assert.match(second, /claude +builder +idle +started .* ago +\/srv\/app/);
  terminal.type(KEYS.down);
  await terminal.until(OTHER);
  terminal.type(KEYS.enter);
  await terminal.until('Subject');
  terminal.type(`the build${KEYS.enter}`);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(`it is 😀red${KEYS.enter}${KEYS.enter}again`);
  await terminal.until('again');
  terminal.type(`${KEYS.enter}${KEYS.ctrlD}`);
  const last = await terminal.until('Send it as the owner');
  assert.match(last, /to no agent yet: claude in \/srv\/web on hostb/);
  assert.match(last, /subject: the build/);
  assert.match(last, /3 lines/);
  assert.deepEqual(sends(rig), []);
  terminal.type(KEYS.enter);
  assert.deepEqual(await terminal.ended, { status: 0, signal: undefined }, terminal.history());
  assert.match(terminal.history(), new RegExp(`queued +${ID}`));
  assert.match(terminal.history(), /nobody can reply/);
  const [sent, ...more] = sends(rig);
  assert.equal(more.length, 0);
  const { body, request_id: requestId, ...rest } = sent ?? {};
  assert.equal(Buffer.from(body as Uint8Array).toString('utf8'), 'it is 😀red\n\nagain');
  assert.match(String(requestId), /^[0-9a-f-]{36}$/);
  assert.deepEqual(rest, { host: HOST_ID, session: OTHER, harness: 'claude', kind: 'message', subject: 'the build' });
});

test('Esc and Ctrl-C leave at every step with status 1, and nothing is sent', async (t) => {
  const steps: readonly (readonly [wait: string, keys: string])[] = [
    ['To which host?', KEYS.enter],
    ['To which session there?', KEYS.enter],
    ['Subject', KEYS.enter],
    ['type it here', KEYS.enter],
    ['Ctrl-D on an empty line ends it', `hello${KEYS.enter}${KEYS.ctrlD}`],
    ['Send it as the owner', ''],
  ];
  for (const [leavesAt] of steps.entries()) {
    const rig = await scripted(t, answers(USUAL));
    const terminal = open(t, rig, [], { EDITOR: 'true' });
    for (const [wait, keys] of steps.slice(0, leavesAt)) {
      await terminal.until(wait);
      terminal.type(keys);
    }
    await terminal.until(steps[leavesAt]?.[0] ?? '');
    terminal.type(leavesAt % 2 === 0 ? KEYS.escape : KEYS.ctrlC);
    await leftWithNothing(terminal, rig);
  }
});

test('Ctrl-C and Esc leave the text and the last question as well', async (t) => {
  for (const [key, isLast] of [
    [KEYS.ctrlC, false],
    [KEYS.escape, true],
    ['n', true],
  ] as const) {
    const rig = await scripted(t, answers(USUAL));
    const terminal = open(t, rig);
    await toBody(terminal);
    await terminal.until('Ctrl-D on an empty line ends it');
    if (isLast) {
      terminal.type(`hello${KEYS.enter}${KEYS.ctrlD}`);
      await terminal.until('Send it as the owner');
    } else {
      terminal.type('half a line');
      await terminal.until('half a line');
    }
    terminal.type(key);
    await leftWithNothing(terminal, rig);
  }
});

test('while hosts are asked it says which, and both keys leave at once', async (t) => {
  const { promise: never } = Promise.withResolvers<object>();
  for (const [key, method, told] of [
    [KEYS.escape, 'agent.sessions', 'asking this host, hostb, hostc for their sessions'],
    [KEYS.ctrlC, 'agent.sessions', 'asking this host, hostb, hostc for their sessions'],
    [KEYS.ctrlC, 'host.list', 'asking the daemon which hosts it knows'],
  ] as const) {
    const rig = await scripted(t, answers([], { [method]: () => never }));
    const terminal = open(t, rig);
    await terminal.until(told);
    terminal.type(key);
    await leftWithNothing(terminal, rig);
  }
});

test('with no live session anywhere nothing is asked, and every host is named with its cause', async (t) => {
  const rig = await scripted(t, answers([host('Localhost', SELF_ID, []), DOWN]));
  const terminal = open(t, rig);
  assert.deepEqual(await terminal.ended, { status: 1, signal: undefined });
  const told = terminal.history().replaceAll('\n', '');
  assert.match(told, /no live session on Localhost/);
  assert.match(told, /hostc \(unavailable: hostc does not answer\)/);
  assert.match(told, /--destination-workspace DIR/);
  assert.doesNotMatch(told, /To which host/);
});

test('an empty message is not sent', async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const terminal = open(t, rig);
  await toBody(terminal);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(`  ${KEYS.enter}${KEYS.ctrlD}`);
  await leftWithNothing(terminal, rig);
});

test('a subject that is too long or cannot be seen is asked for again', async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const terminal = open(t, rig);
  await toBody(terminal, 'x'.repeat(201));
  await terminal.until('at most 200 are allowed');
  terminal.type(`${KEYS.backspace}${KEYS.enter}`);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(KEYS.escape);
  await leftWithNothing(terminal, rig);
});

test('the editor writes in a private file that is gone afterwards, and its bytes are the body', async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const facts = join(rig.folder, 'facts');
  const path = editor(rig, `stat -c '%a' "$2" "$(dirname "$2")" >'${facts}'; printf 'one\\n\\n  two\\n' >"$2"; touch "$2~"`);
  const terminal = open(t, rig, [], { VISUAL: `${path} --wait`, EDITOR: 'false' });
  await toBody(terminal);
  await terminal.until('type it here');
  terminal.type(`${KEYS.down}${KEYS.enter}`);
  await terminal.until('Send it as the owner');
  terminal.type(KEYS.enter);
  assert.equal((await terminal.ended).status, 0, terminal.history());
  assert.equal(Buffer.from(sends(rig)[0]?.['body'] as Uint8Array).toString('utf8'), 'one\n\n  two\n');
  assert.equal(readFileSync(facts, 'utf8'), '600\n700\n');
  assert.deepEqual(readdirSync(join(rig.folder, 'tmp')), []);
});

test('an editor that fails, or leaves nothing, sends nothing and leaves no file', async (t) => {
  for (const [script, told] of [
    ['echo hello >"$1"; exit 3', 'ended with status 3'],
    ['rm "$1"', 'left no file that can be read'],
    [':', 'the message is empty'],
  ] as const) {
    const rig = await scripted(t, answers(USUAL));
    const terminal = open(t, rig, [], { EDITOR: editor(rig, script) });
    await toBody(terminal);
    await terminal.until('type it here');
    terminal.type(`${KEYS.down}${KEYS.enter}`);
    await terminal.until(told);
    await leftWithNothing(terminal, rig);
    assert.deepEqual(readdirSync(join(rig.folder, 'tmp')), []);
  }
});

test('ended while the editor is open, it leaves no file and sends nothing', async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const pid = join(rig.folder, 'pid');
  const terminal = open(t, rig, [], { EDITOR: editor(rig, `echo half >"$1"; echo $$ >'${pid}'; exec cat "${join(rig.folder, 'fifo')}"`) });
  const { execFileSync } = await import('node:child_process');
  execFileSync('mkfifo', [join(rig.folder, 'fifo')]);
  await toBody(terminal);
  await terminal.until('type it here');
  terminal.type(`${KEYS.down}${KEYS.enter}`);
  await terminal.untilScreen(() => existsSync(pid) && readFileSync(pid, 'utf8') !== '', 'the editor to run');
  terminal.signal('SIGTERM');
  await terminal.ended;
  assert.deepEqual(readdirSync(join(rig.folder, 'tmp')), []);
  assert.deepEqual(sends(rig), []);
});

test("a peer's names neither act on the terminal nor pose as ax", async (t) => {
  const evil = 'x\x1b[2J\x1b]0;own\x07\r\nax: done\u202e';
  const rig = await scripted(
    t,
    answers([
      host(`h${evil}`, HOST_ID, [
        session(SESSION, { workspace: `/srv/${'w'.repeat(3000)}${evil}`, agent: evil, status: evil, harness: 'claude' }),
      ]),
      { ...DOWN, host: evil, error: { ...DOWN.error, message: evil } },
    ]),
  );
  const terminal = open(t, rig);
  await toBody(terminal);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(`hi${KEYS.enter}${KEYS.ctrlD}`);
  await terminal.until('Send it as the owner');
  const shown = terminal.history();
  assert.match(shown, /To which host\?/); // an erased screen would have lost it
  assert.match(shown, /\\x1b\[2J/);
  assert.doesNotMatch(shown, /^ax: done/m);
  assert.doesNotMatch(shown, /\u202e/);
  terminal.type(KEYS.escape);
  await leftWithNothing(terminal, rig);
});

test('when the answer is lost the same request is repeated on demand, under the same request id', async (t) => {
  const busy = new AxError('busy', 'the daemon is busy');
  const rig = await scripted(
    t,
    answers(USUAL, {
      'message.send': (_params, nth) => {
        if (nth === 0) throw busy;
        return QUEUED;
      },
    }),
  );
  const terminal = open(t, rig);
  await toBody(terminal);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(`hi${KEYS.enter}${KEYS.ctrlD}`);
  await terminal.until('Send it as the owner');
  terminal.type(KEYS.enter);
  await terminal.until('Try again?');
  terminal.type(KEYS.enter);
  assert.equal((await terminal.ended).status, 0, terminal.history());
  const [first, second] = sends(rig);
  assert.deepEqual(second, first);
});

test('without a terminal it is refused with the line to use instead', async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const { code, value } = await rig.json(['admin', 'send']);
  assert.equal(code, 2);
  assert.equal(value['error']['code'], 'usage');
  assert.match(value['error']['fix'], /ax.* send --host HOST --session UUID --harness claude --message TEXT$/);
  assert.deepEqual(rig.asked, []);
});

test("inside an agent's shell it is refused, and with --as-owner it sends as the owner, not as the session", async (t) => {
  const rig = await scripted(t, answers(USUAL));
  const refused = open(t, rig, [], CLAUDE_SHELL);
  await refused.until('as the owner of this host, which an agent is not');
  assert.equal((await refused.ended).status, 1);
  assert.match(refused.history(), /--as-owner/);
  assert.deepEqual(rig.asked, []);
  const terminal = new Terminal(process.execPath, [MAIN, 'admin', 'send', '--as-owner'], {
    env: { PATH: process.env['PATH'], HOME: rig.folder, AX_STATE_DIR: rig.stateDir, ...CLAUDE_SHELL },
    cwd: rig.workspace,
  });
  t.after(() => terminal.kill());
  await toBody(terminal);
  await terminal.until('Ctrl-D on an empty line ends it');
  terminal.type(`hi${KEYS.enter}${KEYS.ctrlD}`);
  await terminal.until('Send it as the owner');
  terminal.type(KEYS.enter);
  assert.equal((await terminal.ended).status, 0, terminal.history());
  assert.equal(rig.take('message.send').actor.session, null);
});
