// Completion: what may stand where is read off the command tree; values come from the daemon, quickly or not at all, and never act on a shell.
import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import type { Command } from 'commander';
import { behindBreaks, splitLine } from '../../cli/completion/bash-line.ts';
import { positionOf, type Position } from '../../cli/completion/position.ts';
import { isPlain } from '../../cli/completion/values.ts';
import { commandTree } from '../../cli/program.ts';
import { shellQuote } from '../../protocol/paths.ts';
import { AT, HOST_ID, ID, OTHER_ID, scripted, type Answers, type Json, type Scripted } from './scripted.ts';

const tree = (): Command => commandTree({ writeOut: () => undefined, writeErr: () => undefined });
const at = (...words: readonly string[]): Position => positionOf(tree(), words, { action: ['read', 'write'], state: ['queued'] });
const fixed = (...words: readonly string[]): string[] => at(...words).fixed.map((one) => one.value);

// --- positions -----------------------------------------------------------------------------------------------------------

test('every command and every shown option of the tree is offered where it may stand, and nothing else', () => {
  const visit = (command: Command, path: readonly string[]): number => {
    const shown = command.commands.filter((one) => !one.name().startsWith('__'));
    assert.deepEqual(
      fixed(...path, '').filter(() => shown.length > 0),
      shown.map((one) => one.name()),
      path.join(' '),
    );
    const options = command.options.filter((one) => !one.hidden).map((one) => one.long);
    assert.deepEqual(fixed(...path, '--'), [...options, '--help'], path.join(' '));
    return shown.reduce((sum, one) => sum + visit(one, [...path, one.name()]), 1);
  };
  assert.ok(visit(tree(), []) > 35);
});

test('a value is completed by what its option or argument is, not offered as a command', () => {
  const kinds: readonly (readonly [words: string, kind: Position['kind']])[] = [
    ['send --to |', 'addresses'],
    ['send --host |', 'hosts'],
    ['send --node |', 'hosts'],
    ['send --session |', 'sessions'],
    ['send --agent |', 'agents'],
    ['send --reply-to |', 'messages'],
    ['send --file |', 'files'],
    ['send --message |', 'none'],
    ['send hello |', 'none'],
    ['host show |', 'hosts'],
    ['host rename hostb |', 'none'],
    ['host grant |', 'hosts'],
    ['host ls |', 'none'],
    ['agent rename |', 'agents'],
    ['agent sessions |', 'hosts'],
    ['messages fetch |', 'received'],
    ['messages reply |', 'received'],
    ['messages show |', 'messages'],
    ['messages list --workspace |', 'folders'],
    ['messages fetch --output |', 'files'],
    ['admin cancel |', 'messages'],
    ['--state-dir |', 'folders'],
    ['--format json messages fetch |', 'received'],
    ['--format=json --state-dir /x messages fetch |', 'received'],
    ['messages fetch -- |', 'received'],
    ['nonsense |', 'none'],
    ['messages fetch ID |', 'none'],
  ];
  for (const [line, kind] of kinds) assert.equal(at(...line.replace('|', '').split(' ')).kind, kind, line);
});

test('choices are offered as they are declared, also behind an equals sign', () => {
  assert.deepEqual(fixed('send', '--wait', ''), ['accepted', 'fetched']);
  assert.deepEqual(fixed('send', '--harness', 'co'), ['codex']);
  assert.deepEqual(fixed('completion', ''), ['bash', 'zsh', 'fish']);
  assert.deepEqual(fixed('agent', 'sandbox-fetch', 'o'), ['on', 'off']);
  assert.deepEqual(fixed('host', 'grant', 'hostb', 'read', ''), ['read', 'write']);
  const joined = at('--format=j');
  assert.deepEqual([joined.before, joined.typed, joined.fixed.map((one) => one.value)], ['--format=', 'j', ['json']]);
});

test('the state folder and the host of the line are known where a value depends on them', () => {
  const position = at('--state-dir', '/srv/ax', 'send', '--host=hostb', '--session', 'ab');
  assert.deepEqual([position.stateDir, position.host, position.kind, position.typed], ['/srv/ax', 'hostb', 'sessions', 'ab']);
});

test('no line makes the walk fail', () => {
  const word = fc.oneof(fc.constantFrom('send', 'host', '--host', '--format=', '--', '-', '--to', 'ls', 'grant', ''), fc.string());
  fc.assert(fc.property(fc.array(word, { maxLength: 8 }), (words) => void at(...words)));
});

// --- bash's line ---------------------------------------------------------------------------------------------------------

test('a line of bash is cut as bash would, whatever quotes its words have', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: 'binary' }), { minLength: 1 }), (words) => {
      assert.deepEqual(splitLine(words.map(shellQuote).join(' ')).words, words);
    }),
  );
  assert.deepEqual(splitLine('ax send ').words, ['ax', 'send', '']);
  assert.deepEqual(splitLine('ax "half open').words, ['ax', 'half open']);
  assert.deepEqual(splitLine('ax "a\\b\\"c" d\\ e').words, ['ax', 'a\\b"c', 'd e']);
});

test('of a word that bash has cut only the last piece is replaced', () => {
  const breaks = ' \t\n"\'@><=;|&(:';
  assert.equal(behindBreaks('builder@hostb', 'builder@ho', breaks), '@hostb');
  assert.equal(behindBreaks('builder@hostb', 'bui', breaks), 'builder@hostb');
  assert.equal(behindBreaks('--format=json', '--format=j', breaks), 'json');
  assert.equal(behindBreaks('builder@hostb', '"builder@ho', breaks), 'builder@hostb');
  assert.equal(behindBreaks('builder@hostb', 'builder@ho', ' \t\n'), 'builder@hostb');
});

// --- values --------------------------------------------------------------------------------------------------------------

const session = (id: string, agent: string | null, workspace = '/srv/app'): Json => ({
  harness: 'claude',
  session_id: id,
  workspace,
  status: 'idle',
  agent,
  reachable: true,
  reason: null,
  version: '1',
  started_at: AT,
});
const SESSION = '3f0a7f53-2f5d-4a39-8d44-0f2ab47a4d11';

function answers(more: Answers = {}): Answers {
  return {
    'host.list': () => ({
      hosts: [
        { host_id: HOST_ID, name: 'hostb', state: 'up' },
        { host_id: 'x', name: 'hostc', state: 'down' },
      ],
    }),
    'agent.list': () => ({ agents: [{ name: 'builder', harness: 'claude', workspace: '/srv/app' }] }),
    'agent.sessions': ({ host }) => ({
      hosts: [
        {
          host: host === 'Localhost' ? 'Localhost' : 'hostb',
          host_id: HOST_ID,
          state: 'ok',
          error: null,
          sessions: host === 'Localhost' ? [] : [session(SESSION, 'tester')],
        },
      ],
    }),
    'message.list': ({ sent }) => ({
      messages: [{ message_id: sent === true ? OTHER_ID : ID, state: 'available', from: 'a@hostb', to: 'hosta' }],
    }),
    ...more,
  };
}

/** The values that `__complete` prints for zsh, which takes them whole. */
async function complete(rig: Scripted, ...words: readonly string[]): Promise<string[]> {
  const { code, stdout, stderr } = await rig.ax(['__complete', 'zsh', '--', ...words]);
  assert.deepEqual([code, stderr], [0, ''], words.join(' '));
  return stdout
    .split('\n')
    .slice(0, -1)
    .map((line) => line.slice(0, line.indexOf('\t')));
}

test('hosts, agents, addresses, sessions and ids are asked of the daemon, and only those that begin as typed are given', async (t) => {
  const rig = await scripted(t, answers());
  assert.deepEqual(await complete(rig, 'host', 'show', ''), ['hostb', 'hostc', 'Localhost']);
  assert.deepEqual(await complete(rig, 'host', 'show', 'hostc'), ['hostc']);
  assert.deepEqual(await complete(rig, 'agent', 'rename', ''), ['builder']);
  assert.deepEqual(await complete(rig, 'send', '--to', ''), ['builder@Localhost', 'tester@hostb']);
  assert.deepEqual(await complete(rig, 'send', '--to=tes'), ['--to=tester@hostb']);
  assert.deepEqual(await complete(rig, 'messages', 'fetch', ''), [ID]);
  assert.deepEqual(await complete(rig, 'admin', 'cancel', ''), [ID, OTHER_ID]);
  rig.asked.splice(0);
  assert.deepEqual(await complete(rig, 'send', '--host', 'hostb', '--session', '3f'), [SESSION]);
  assert.deepEqual(
    rig.asked.map(({ method, params }) => [method, params['host']]),
    [['agent.sessions', 'hostb']],
  );
  const shown = await rig.ax(['__complete', 'fish', '--', 'send', '--session', '']);
  assert.equal(shown.stdout, `${SESSION}\tclaude in /srv/app on hostb\n`);
});

test('what a peer named so that a shell would act on it is left out, and never escapes its line', async (t) => {
  const evil = [
    '$(touch pwned)',
    '`touch pwned`',
    'a b',
    '-rf',
    "a'b",
    'a"b',
    'a;b',
    'a\nb',
    'a\tb',
    'x\x1b[2J',
    'a\u202eb',
    'a\\b',
    '*',
    '~',
    'a|b',
    '',
    '!x',
    '#x',
    '=x',
  ];
  const rig = await scripted(
    t,
    answers({
      'host.list': () => ({ hosts: [...evil, 'good'].map((name) => ({ host_id: 'x', name, state: `up\nevil\t${name}` })) }),
      'message.list': () => ({ messages: evil.map((message_id) => ({ message_id, state: 'x', from: 'x', to: 'x' })) }),
    }),
  );
  assert.deepEqual(await complete(rig, 'host', 'show', ''), ['good', 'Localhost']);
  assert.deepEqual(await complete(rig, 'admin', 'status', ''), []);
  for (const name of evil) assert.equal(isPlain(name), false, name);
  fc.assert(fc.property(fc.string({ unit: 'binary' }), (text) => !isPlain(text) || shellQuote(text) === text));
});

test('without a daemon nothing is printed, nothing is made and nothing is started', async (t) => {
  const rig = await scripted(t);
  const before = readdirSync(rig.stateDir);
  for (const words of [
    ['host', 'show', ''],
    ['send', '--to', ''],
    ['--state-dir', '/nonexistent/ax', 'messages', 'fetch', ''],
    ['--profile', 'x', 'host', 'show', ''],
  ])
    assert.deepEqual(await complete(rig, ...words), []);
  assert.deepEqual(readdirSync(rig.stateDir), before);
  assert.equal(existsSync('/nonexistent'), false);
  assert.equal(existsSync(join(rig.folder, '.local')), false);
});

test('a daemon or a host that does not answer is not waited for, and takes nothing from the others', async (t) => {
  const { promise: never } = Promise.withResolvers<object>();
  const rig = await scripted(
    t,
    answers({
      'message.list': () => never,
      'agent.sessions': ({ host }) => (host === 'Localhost' ? never : answers()['agent.sessions']!({ host }, 0)),
    }),
  );
  const began = performance.now();
  assert.deepEqual(await complete(rig, 'messages', 'fetch', ''), []);
  assert.ok(performance.now() - began < 5000);
  assert.deepEqual(await complete(rig, 'send', '--to', ''), ['builder@Localhost', 'tester@hostb']);
});

test('an answer that is no answer, and a shell nobody knows, give nothing and no error', async (t) => {
  const rig = await scripted(t, { 'host.list': () => ({ hosts: 7 }) });
  assert.deepEqual(await complete(rig, 'host', 'show', ''), []);
  const unknown = await rig.ax(['__complete', 'tcsh', '--', 'host', '']);
  assert.deepEqual(unknown, { code: 0, stdout: '', stderr: '' });
});

// --- the command ---------------------------------------------------------------------------------------------------------

test('a script is printed for each shell and for no other; the hidden command is in no help', async (t) => {
  const rig = await scripted(t);
  for (const shell of ['bash', 'zsh', 'fish']) {
    const { code, stdout } = await rig.ax(['completion', shell]);
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`ax __complete ${shell} -- `));
    assert.equal((await rig.json(['completion', shell])).value['script'], stdout);
  }
  const wrong = await rig.json(['completion', 'tcsh']);
  assert.deepEqual([wrong.code, wrong.value['error']['code']], [2, 'usage']);
  assert.doesNotMatch((await rig.ax(['--help'])).stdout, /__complete/);
});
