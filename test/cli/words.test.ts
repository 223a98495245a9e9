/**
 * Small promises of the wording: fixes that can be run where they are meant, listings that say what they show, help that is whole.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readyFix } from '../../cli/failure.ts';
import { explain } from '../../daemon/causes.ts';
import { AxError, ERROR_TABLE } from '../../protocol/errors.ts';
import { GRANT_ACTIONS, NOTICE_OUTCOMES, RECEIVER_STATES, SENDER_STATES } from '../../protocol/states.ts';
import { AT, AT_TEXT, CLAUDE_SHELL, HOST_ID, ID, OTHER_ID, scripted } from './scripted.ts';
import type { Json } from './scripted.ts';

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

const STATUS = {
  message_id: ID,
  side: 'sender',
  state: 'deferred',
  uncertain: true,
  cancel_requested: false,
  receiver_state: null,
  receiver_at: null,
  receiver_notice: null,
  handed_out_at: null,
  fetched_at: null,
  stored_as: null,
  live_session: null,
  cause: { code: 'untrusted_peer', message: 'hostb does not know this host', at: AT },
  destination: { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app', session_id: null },
  from: 'builder',
  subject: 'red \u001b[31m',
  bytes: 12,
  remaining_ms: 259_200_000,
  history: [{ seq: 4, at: AT, state: 'queued', detail: null }],
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

test('a join says what either host may do at the other, and of one that was paired before that nothing changed; none is sent to look where it may not', async (t) => {
  let more: object = {};
  const rig = await scripted(t, { 'host.join': () => ({ host_id: HOST_ID, name: 'hosta', grants: ['read'], ...more }) });
  const join = async (change: object, ...args: string[]): Promise<string> => {
    more = change;
    return (await rig.ax(['host', 'join', '-', ...args], { input: 'ax1-code' })).stdout;
  };
  const first = await join({ already_paired: false, granted: ['read', 'write'] });
  assert.match(
    first,
    /^paired with hosta \(.*\); it may read here\nthis host may read, write there, says hosta\nnext: .*agent sessions hosta\n$/,
  );
  const again = await join({ already_paired: true, granted: ['read'] });
  assert.match(again, /^already paired with hosta .*; it may read here; that stays as it was\n/);
  assert.doesNotMatch(await join({ already_paired: true, granted: ['read'] }, '--grant', 'read'), /stays as it was/);
  const nothing = await join({ already_paired: false, granted: [] });
  assert.match(nothing, /this host may nothing there, says hosta\nnext: its owner allows this host something; there: /);
  assert.doesNotMatch(nothing, /agent sessions/);
  assert.match(await join({}), /^paired with hosta .*\nnext: .*agent sessions hosta\n$/, 'an older daemon');
});

test('a daemon that takes the connection and says nothing is given up after 10 s where it has nobody to ask, with where to look', async (t) => {
  const rig = await scripted(t, { 'host.list': () => new Promise<never>(() => undefined) });
  const began = performance.now();
  const { code, stderr } = await rig.ax(['host', 'list']);
  assert.equal(code, 3);
  assert.match(stderr, /ax: the daemon gave no answer in 10 s\nfix: \S+ --state-dir \S+ doctor\n$/);
  assert.ok(performance.now() - began >= 10_000);
});

test('help for a verb is that of the verb, wherever the word help stands', async (t) => {
  const rig = await scripted(t);
  for (const [args, usage] of [
    [['help', 'messages', 'fetch'], /^Usage: ax messages fetch /],
    [['help', 'host', 'grant'], /^Usage: ax host grant /],
    [['host', 'help', 'grant'], /^Usage: ax host grant /],
    [['help', 'send'], /^Usage: ax send /],
    [['help', 'host'], /^Usage: ax host \[/],
  ] as const) {
    const { code, stdout, stderr } = await rig.ax(args);
    assert.deepEqual([code, stderr], [0, ''], args.join(' '));
    assert.match(stdout, usage);
    assert.match(stdout, /\nExample:\n/);
  }
});

test('help for what is no command says so', async (t) => {
  const rig = await scripted(t);
  const called = `${process.cwd()}/bin/ax --state-dir ${rig.stateDir}`;
  assert.deepEqual(await rig.ax(['help', 'nope']), { code: 2, stdout: '', stderr: `ax: unknown command 'nope'\nfix: ${called} --help\n` });
  for (const args of [
    ['host', 'help', 'nope'],
    ['help', 'host', 'nope'],
  ])
    assert.deepEqual(await rig.ax(args), { code: 2, stdout: '', stderr: `ax: unknown command 'nope'\nfix: ${called} host --help\n` });
});

test('following the events has no limit', async (t) => {
  const rig = await scripted(t);
  assert.match(
    (await rig.ax(['admin', 'events', '--follow', '--limit', '3'])).stderr,
    /^ax: --follow has no end: --limit does not go with it\n/,
  );
});

test('what a notice came to is said in words, one meaning for every outcome, and an unknown one stands as it is', async (t) => {
  const status = (outcome: string | null): object => ({ ...STATUS, receiver_notice: outcome });
  let outcome: string | null = null;
  const rig = await scripted(t, { 'admin.message_status': () => status(outcome) });
  const said = new Set<string>();
  for (outcome of [...NOTICE_OUTCOMES, 'gone_fishing', null]) {
    const { stdout } = await rig.ax(['admin', 'status', ID]);
    const line = stdout.split('\n').find((one) => one.startsWith('  notice: '));
    if (outcome === null) assert.equal(line, undefined);
    else if (outcome === 'gone_fishing') assert.equal(line, '  notice: gone_fishing');
    else {
      assert.match(line ?? '', new RegExp(`^ {2}notice: ${outcome}: [a-z]`));
      said.add((line ?? '').slice(`  notice: ${outcome}: `.length));
    }
  }
  assert.equal(said.size, NOTICE_OUTCOMES.length);
  outcome = 'in_queue';
  assert.equal((await rig.json(['admin', 'status', ID])).value['receiver_notice'], 'in_queue', 'machine formats keep the word alone');
});

test('the list of sessions says since when, what is old, and what the owner of a host that tells nothing may type', async (t) => {
  const row = {
    harness: 'codex',
    session_id: 'u',
    workspace: '/w',
    status: 'idle',
    agent: null,
    reachable: true,
    reason: null,
    version: '1',
  };
  const sessions = [
    { ...row, started_at: AT, status_since: AT },
    { ...row, started_at: 0, status_since: null, quiet: true, quiet_until: null },
  ];
  const error = {
    code: 'grant_missing',
    message: 'hostc does not allow it',
    retryable: true,
    fix: 'owner',
    details: { command: 'ax host grant X read' },
  };
  const hosts = [
    { host: 'hostb', host_id: HOST_ID, state: 'ok', error: null, sessions, warnings: ['claude gave no answer there'] },
    { host: 'hostc', host_id: HOST_ID, state: 'unavailable', error, sessions: [], warnings: [] },
  ];
  const rig = await scripted(t, { 'agent.sessions': () => ({ hosts }) });
  const { code, stdout } = await rig.ax(['agent', 'sessions']);
  assert.equal(code, 0, 'also when a host tells nothing');
  assert.match(stdout, /idle, (in )?[^\n]*codex|codex[^\n]*idle, /);
  assert.match(stdout, / reachable [^\n]*\n.* quiet, until unquiet /, 'an agent that is quiet shows as that');
  assert.match(stdout, /\n {2}warning: claude gave no answer there\n/);
  assert.match(stdout, /\nhostc: unavailable: hostc does not allow it; its owner may type there: ax host grant X read\n/);
  const { value } = await rig.json(['agent', 'sessions']);
  assert.deepEqual(
    value['hosts'][0].sessions.map((one: Json) => one['status_since']),
    [AT_TEXT, null],
  );
  assert.equal(value['hosts'][1].error.code, 'grant_missing');
});

test('a command for the other host stays as it is, one for this host gets the path and the state folder', () => {
  const called = '/opt/ax --state-dir /x';
  const commands: Record<string, string[]> = {};
  for (const code of Object.keys(ERROR_TABLE)) {
    const { next } = explain({ code, message: '', at: AT }, 'host-b.2', '/srv/app');
    const found = readyFix(next, called).match(/(?:\/opt\/ax --state-dir \/x|\bax) (?:daemon|host|agent|send|messages|admin) [a-z]+/g);
    if (found !== null) commands[code] = found;
  }
  assert.deepEqual(commands, {
    not_found: [`${called} agent sessions`],
    untrusted_peer: ['ax host invite', `${called} host join`],
    grant_missing: ['ax host grant'],
    invalid_argument: [`${called} host show`],
  });
  for (const there of [
    'on that host: ax host add, or pair anew',
    'ask for a new one: ax host invite',
    'on hostb: ax host grant HERE write',
  ])
    assert.equal(readyFix(there, called), there);
  assert.equal(readyFix('ax host list; then: ax agent list', called), `${called} host list; then: ${called} agent list`);
});
