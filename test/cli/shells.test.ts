/**
 * Whose shell a command runs in: a session of Claude Code, a thread of Codex, one inside the other, or nobody's.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AxError } from '../../protocol/errors.ts';
import { CLAUDE_SHELL, ID, scripted, SOURCES } from './scripted.ts';

const THREAD = '0190aaaa-0000-7000-8000-000000000001';

test('a Codex shell is known by its thread id, needs no process or socket, and is shown the rules of Codex', async (t) => {
  const agent = { name: 'builder', harness: 'codex', workspace: '/srv/app' };
  const result = { agent, attachment: { session_id: THREAD, state: 'live' }, waiting: [], warnings: [], next: null };
  const rig = await scripted(t, { 'agent.setup': () => result });
  const args = ['agent', 'setup', '--name', 'builder', '--workspace', '.'];
  const human = await rig.ax(args, { env: { CODEX_THREAD_ID: THREAD, CODEX_CI: '1', CODEX_HOME: '/cx', TMPDIR: SOURCES } });
  assert.deepEqual(rig.take('agent.setup').actor.session, {
    harness: 'codex',
    session_id: THREAD,
    pid: null,
    socket: null,
    config_dir: '/cx',
  });
  assert.doesNotMatch(human.stdout, /Bash\(/);
  // An agent may change this ax: the rules are data, not put into anybody's hand.
  assert.match(human.stdout, /\n`ax agent allow-rules` would refuse: \/\S+ lies in \/\S+, where agents may write/);
  const { value } = await rig.json(args, { env: { CODEX_THREAD_ID: THREAD } });
  const own = (verb: string): string => `^prefix_rule\\(pattern=\\["/\\S+/bin/ax", "--state-dir", "\\S+", ${verb}\\], decision="allow"\\)$`;
  assert.match(
    value['allow_rules'].join('|'),
    new RegExp(`${own('"messages", "fetch"').slice(0, -1)}\\|${own('"agent", "setup"').slice(1)}`),
  );
  rig.asked.length = 0;
  await rig.ax(args, { env: { CODEX_THREAD_ID: THREAD } });
  assert.equal(rig.take('agent.setup').actor.session?.config_dir, null);
});

test('a shell with the variables of both harnesses acts for neither until the caller names one', async (t) => {
  const rig = await scripted(t, {
    'agent.setup': () => ({
      agent: { name: 'b', harness: 'codex', workspace: '/w' },
      attachment: { session_id: THREAD, state: 'live' },
      waiting: [],
      warnings: [],
      next: null,
    }),
    'agent.list': () => ({ agents: [] }),
    'message.send': () => Promise.reject(new AxError('host_not_found', 'no such host')),
  });
  const env = { ...CLAUDE_SHELL, CODEX_THREAD_ID: THREAD };
  const lines = [
    ['agent', 'setup', '--name', 'b', '--workspace', '/w'],
    ['messages', 'fetch', ID, '--workspace', '/w'],
    ['messages', 'reply', ID, 'hi'],
    ['send', '--to', 'b@hostb', 'hi'],
    ['send', '--host', 'hostb', '--destination-workspace', '/w', '--harness', 'codex', 'hi'],
  ];
  for (const line of lines) {
    const { code, value } = await rig.json(line, { env });
    assert.deepEqual([code, value['error'].code], [1, 'invalid_state'], line.join(' '));
    assert.match(value['error'].message, /does not guess/);
    assert.match(value['error'].fix, /--harness claude or --harness codex/);
  }
  // A session of Claude Code that cannot be reached is a nested shell all the same, and a trust verb stays refused.
  assert.equal((await rig.json(lines[0]!, { env: { CLAUDECODE: '1', CODEX_THREAD_ID: THREAD } })).value['error'].code, 'invalid_state');
  assert.equal((await rig.json(['host', 'invite'], { env })).value['error'].code, 'invalid_state');
  assert.equal((await rig.ax(['agent', 'list'], { env })).code, 0);
  assert.deepEqual(
    rig.asked.splice(0).map((one) => one.method),
    ['agent.list'],
  );
  for (const [more, named, harness] of [
    [['--harness', 'codex'], {}, 'codex'],
    [['--harness', 'claude'], {}, 'claude'],
    [[], { AX_HARNESS: 'codex' }, 'codex'],
    [['--harness', 'claude'], { AX_HARNESS: 'codex' }, 'claude'],
  ] as const) {
    await rig.ax([...lines[0]!, ...more], { env: { ...env, ...named } });
    assert.equal(rig.take('agent.setup').actor.session?.harness, harness);
  }
  await rig.ax(['--harness', 'codex', ...lines[3]!], { env });
  assert.equal(rig.take('message.send').actor.session?.session_id, THREAD);
  await rig.ax(['send', '--to', 'b@hostb', '--agent', 'b', 'hi'], { env });
  assert.equal(rig.take('message.send').actor.session, null, 'who sends was said');
  // What a person may export everywhere makes no shell of Codex, and a variable alone chooses nothing.
  await rig.ax(lines[0]!, { env: { ...CLAUDE_SHELL, CODEX_HOME: '/c', CODEX_API_KEY: 'k', AX_HARNESS: 'codex' } });
  assert.equal(rig.take('agent.setup').actor.session?.harness, 'claude');
});

test("an agent's shell without a session that is known changes nothing of an agent's, unless told that the owner said so", async (t) => {
  const agent = { name: 'b', harness: 'claude', workspace: '/w', attachments: [], waiting: 0, quiet: false, quiet_until: null };
  const rig = await scripted(t, {
    'agent.quiet': () => ({ agent: { ...agent, quiet: true } }),
    'agent.unquiet': () => ({ agent, was_quiet: true }),
    'admin.cancel': () => ({ message_id: ID, state: 'cancelled' }),
    'admin.retry': () => ({ message_id: ID, state: 'queued', to: 'hostb' }),
  });
  const lines = [
    ['agent', 'quiet', 'b'],
    ['agent', 'unquiet', 'b'],
    ['admin', 'cancel', ID],
    ['admin', 'retry', ID],
  ];
  for (const line of lines) {
    for (const env of [{ CLAUDECODE: '1' }, { CODEX_CI: '1' }]) {
      const refused = await rig.json(line, { env });
      assert.deepEqual([refused.code, refused.value['error'].code], [1, 'invalid_state'], line.join(' '));
      assert.match(refused.value['error'].message, /no session is known here/);
    }
    const nested = await rig.json(line, { env: { ...CLAUDE_SHELL, CODEX_THREAD_ID: THREAD } });
    assert.match(nested.value['error'].message, /does not guess/, line.join(' '));
    assert.deepEqual(rig.asked, [], 'none of it reached the daemon, which takes a shell without a session for the owner');
    assert.equal((await rig.ax([...line, '--as-owner'], { env: { CLAUDECODE: '1' } })).code, 0);
    assert.equal((await rig.ax(line, { env: CLAUDE_SHELL })).code, 0, 'a known session is judged by the daemon');
    assert.equal((await rig.ax(line)).code, 0, 'a person in their own terminal');
    rig.asked.length = 0;
  }
});
