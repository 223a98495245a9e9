/**
 * Small promises of the wording: fixes that can be run where they are meant, listings that say what they show, help that is whole.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AxError } from '../../protocol/errors.ts';
import { GRANT_ACTIONS, RECEIVER_STATES, SENDER_STATES } from '../../protocol/states.ts';
import { AT, CLAUDE_SHELL, HOST_ID, ID, OTHER_ID, scripted } from './scripted.ts';

const ROW = {
  message_id: ID,
  kind: 'message',
  state: 'queued',
  harness: 'claude',
  workspace: '/srv/app',
  from: 'a@hosta',
  to: 'b@hostb',
  subject: '',
  bytes: 1,
  received_at: null,
  handed_out_at: null,
  fetched_at: null,
};

test('a command for the other host stays plain, one for this host has its path and state folder', async (t) => {
  const rig = await scripted(t, {});
  const here = `/\\S+/bin/ax --state-dir ${rig.stateDir}`;
  for (const [fix, expected] of [
    ['ax messages list', `${here} messages list`],
    ['in the conversation, run: ax agent setup --name x', `in the conversation, run: ${here} agent setup --name x`],
    ['use --name a, or: ax agent rename a b', `use --name a, or: ${here} agent rename a b`],
    ['on that host: ax host add, or pair anew', 'on that host: ax host add, or pair anew'],
    ['ask for a new one: ax host invite', 'ask for a new one: ax host invite'],
    ['wait; there: ax host list', 'wait; there: ax host list'],
  ] as const) {
    rig.answers = { 'host.list': () => Promise.reject(new AxError('invalid_state', 'no', { fix })) };
    assert.match((await rig.ax(['host', 'list'])).stderr, new RegExp(`^ax: no\nfix: ${expected}\n$`), fix);
  }
});

test('of an ambiguous id five candidates are named and the rest counted; JSON has them all', async (t) => {
  const candidates = Array.from({ length: 12 }, (_, i) => `${ID.slice(0, 24)}${String(i).padStart(2, '0')}`);
  const details = { candidates };
  const rig = await scripted(t, {
    'message.show': () => Promise.reject(new AxError('ambiguous_id', '01kb fits 12 messages', { details })),
  });
  const { stderr } = await rig.ax(['messages', 'show', '01kb']);
  assert.equal(stderr, `ax: 01kb fits 12 messages (${candidates.slice(0, 5).join(', ')} and 7 more)\n`);
  assert.deepEqual((await rig.json(['messages', 'show', '01kb'])).value['error'].details.candidates, candidates);
});

test('a listing of sent messages says when they were sent, -a names the workspaces, and the hint of an empty one keeps --sent', async (t) => {
  const rig = await scripted(t, { 'message.list': () => ({ messages: [ROW], scope: 'x' }) });
  const sent = await rig.ax(['messages', 'list', '--sent', '-a']);
  assert.match(
    sent.stdout,
    /^MESSAGE +STATE +TO +SUBJECT +SIZE +SENT +WORKSPACE\n\S+ +queued +b@hostb +- +1 byte +(in )?\d+ .* +\/srv\/app\n$/,
  );
  const arrived = await rig.ax(['messages', 'list', '--workspace', '/srv/app']);
  assert.match(arrived.stdout, /^MESSAGE +STATE +FROM +SUBJECT +SIZE +ARRIVED\n.* -\n$/);
  rig.answers = { 'message.list': () => ({ messages: [], scope: 'x' }) };
  assert.match((await rig.ax(['messages', 'list', '--sent'])).stdout, /^no sent messages from .*; `\S+ .*messages list --sent -a` shows/);
});

test('setup counts what waits beyond the messages it lists', async (t) => {
  const done = {
    agent: { name: 'b', harness: 'claude', workspace: '/w' },
    attachment: { session_id: 'u', state: 'live' },
    waiting: [{ message_id: OTHER_ID, kind: 'message', bytes: 1 }],
    waiting_count: 31,
    warnings: [],
    next: null,
  };
  const rig = await scripted(t, { 'agent.setup': () => done });
  const { stdout } = await rig.ax(['agent', 'setup', '--name', 'b', '--workspace', '/w'], { env: CLAUDE_SHELL });
  assert.match(stdout, new RegExp(`\nwaiting: 31\n {2}${OTHER_ID} {2}message {2}1 byte\n {2}and 30 more\n`));
});

test('csv of the sessions carries why a host could not be asked', async (t) => {
  const error = { code: 'unavailable', message: 'it does not answer', retryable: true };
  const hosts = [{ host: 'hostb', host_id: HOST_ID, state: 'unavailable', error, sessions: [] }];
  const rig = await scripted(t, { 'agent.sessions': () => ({ hosts }) });
  const { stdout } = await rig.ax(['agent', 'sessions', '--format', 'csv']);
  const [head, row] = stdout.split('\r\n').map((line) => line.split(','));
  assert.equal(row?.[head?.indexOf('error') ?? -1], 'unavailable');
});

test('grants without effect in this version say so, and a pairing code is pasted', async (t) => {
  const rig = await scripted(t, {
    'host.join': () => ({ host_id: HOST_ID, name: 'hostb', grants: ['read', 'run', 'exec'] }),
    'host.invite': () => ({ code: 'c', expires_at: AT }),
  });
  const joined = await rig.ax(['host', 'join', '-'], { input: 'code\n' });
  assert.match(joined.stdout, /it may read, run \(no effect in this version\), exec \(no effect in this version\) here\n/);
  assert.match((await rig.ax(['host', 'invite'])).stdout, /paste it at the question of:\n {2}ax host join\n$/);
});

test('help lists what an option takes, works as -h, and its examples are whole', async (t) => {
  const rig = await scripted(t);
  const words = (text: string): string => text.replaceAll(/\s+/g, ' ');
  for (const verb of ['invite', 'join', 'add'])
    assert.ok(words((await rig.ax(['host', verb, '-h'])).stdout).includes(GRANT_ACTIONS.join(', ')), verb);
  const list = words((await rig.ax(['messages', 'list', '-h'])).stdout);
  assert.ok(list.includes(RECEIVER_STATES.join(', ')) && list.includes(SENDER_STATES.join(', ')), list);
  const add = await rig.ax(['host', 'add', '--help']);
  assert.match(add.stdout, /\nExample:\n {2}ax host add hostb \/ip4\/192\.0\.2\.7\/tcp\/19264\/p2p\/12D3KooW[1-9A-HJ-NP-Za-km-z]{44}\n/);
  for (const args of [['-h'], ['host', '-h'], ['help'], ['help', 'host'], ['host', 'help', 'list']]) {
    const { code, stdout } = await rig.ax(args);
    assert.equal(code, 0, args.join(' '));
    assert.doesNotMatch(stdout, /…/);
  }
});

test('help for what is no command says so', async (t) => {
  const rig = await scripted(t);
  assert.deepEqual(await rig.ax(['help', 'nope']), { code: 2, stdout: '', stderr: "ax: unknown command 'nope'\nfix: ax --help\n" });
  assert.deepEqual(await rig.ax(['host', 'help', 'nope']), {
    code: 2,
    stdout: '',
    stderr: "ax: unknown command 'nope'\nfix: ax host --help\n",
  });
});

test('following the events has no limit', async (t) => {
  const rig = await scripted(t);
  assert.match(
    (await rig.ax(['admin', 'events', '--follow', '--limit', '3'])).stderr,
    /^ax: --follow has no end: --limit does not go with it\n/,
  );
});
