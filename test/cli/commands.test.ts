/**
 * Every command but send and fetch: what it asks, what it prints for people and machines, how it ends.
 */
import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import type { HostRow, MessageStatus } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { AT, AT_TEXT, CLAUDE_SHELL, HOST_ID, ID, OTHER_ID, outcomeOf, scripted, SOURCES } from './scripted.ts';
import type { Answers } from './scripted.ts';

const HOST: HostRow = {
  host_id: HOST_ID,
  name: 'hostb',
  addresses: ['/ip4/192.0.2.7/tcp/19264'],
  grant_rules: [],
  grants: ['read', 'write'],
  state: 'up',
  last_seen_at: AT,
  rtt_ms: 1.25,
  version: '0.1.0',
};
const STATUS: MessageStatus = {
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
const DAEMON = {
  running: true,
  pid: 77,
  version: AX_VERSION,
  protocol: CONTROL_PROTOCOL,
  host_id: HOST_ID,
  name: 'hosta',
  uptime_ms: 61_000,
  listen: ['/ip4/0.0.0.0/tcp/19264'],
  control: '/s',
  warnings: [],
};

interface Case {
  readonly args: readonly string[];
  readonly method: string;
  readonly params: Record<string, unknown>;
  readonly result: object;
  /** The envelope's type and the fields that differ from the result. */
  readonly type: string;
  readonly fields?: Record<string, unknown>;
  readonly human: RegExp;
}

const HOST_JSON = { ...HOST, last_seen_at: AT_TEXT };
const CASES: readonly Case[] = [
  {
    args: ['host', 'id'],
    method: 'host.id',
    params: {},
    result: { host_id: HOST_ID, name: 'hosta', fingerprint: 'ab:cd', addresses: ['/x'] },
    type: 'host_identity',
    human: /name +hosta\nhost id +12D3/,
  },
  {
    args: ['host', 'invite', '--grant', 'read,notify', '--ttl', '2h'],
    method: 'host.invite',
    params: { grants: ['read', 'notify'], ttl_ms: 7_200_000 },
    result: { code: 'axi1-abc', expires_at: AT },
    type: 'host_invite',
    fields: { expires_at: AT_TEXT },
    human: /^axi1-abc\n[^]*ax host join/,
  },
  {
    args: ['host', 'join', '-', '--name', 'hostb'],
    method: 'host.join',
    params: { code: 'axi1-xyz', name: 'hostb' },
    result: { host_id: HOST_ID, name: 'hostb', grants: ['read'] },
    type: 'host_joined',
    human: /paired with hostb/,
  },
  {
    args: ['host', 'add', 'hostb', `/ip4/192.0.2.7/tcp/1/p2p/${HOST_ID}`, '--grant', 'read', '--grant', 'write'],
    method: 'host.add',
    params: { name: 'hostb', address: `/ip4/192.0.2.7/tcp/1/p2p/${HOST_ID}`, grants: ['read', 'write'] },
    result: { host: HOST },
    type: 'host_added',
    fields: { host: undefined, ...HOST_JSON },
    human: /added hostb/,
  },
  {
    args: ['host', 'list'],
    method: 'host.list',
    params: {},
    result: { hosts: [HOST] },
    type: 'host_list',
    fields: { hosts: [HOST_JSON] },
    human: /^HOST +STATE +RTT[^]*hostb +up +1\.3 ms/,
  },
  {
    args: ['host', 'show', 'hostb'],
    method: 'host.show',
    params: { host: 'hostb' },
    result: { host: HOST, fingerprint: 'ab:cd', pending: 2 },
    type: 'host',
    fields: { host: undefined, ...HOST_JSON },
    human: /fingerprint +ab:cd/,
  },
  {
    args: ['host', 'rename', 'hostb', 'b2'],
    method: 'host.rename',
    params: { host: 'hostb', name: 'b2' },
    result: { host_id: HOST_ID, name: 'b2' },
    type: 'host_renamed',
    human: /is now b2/,
  },
  {
    args: ['host', 'remove', 'hostb', '--cancel-pending'],
    method: 'host.remove',
    params: { host: 'hostb', cancel_pending: true },
    result: { host_id: HOST_ID, name: 'hostb', cancelled: 3, warnings: ['1 open pairing code is void now'] },
    type: 'host_removed',
    human: /removed hostb .*3 waiting.*\nnote: 1 open pairing code is void now/,
  },
  {
    args: ['host', 'ping', 'hostb', '--count', '2'],
    method: 'host.ping',
    params: { host: 'hostb', count: 2 },
    result: { host_id: HOST_ID, name: 'hostb', rtt_ms: [1, 2.5], version: '0.1.0' },
    type: 'host_ping',
    human: /hostb answers in 1\.0 ms, 2\.5 ms/,
  },
  {
    args: ['agent', 'list'],
    method: 'agent.list',
    params: {},
    result: {
      agents: [
        {
          name: 'builder',
          harness: 'claude',
          workspace: '/srv/app',
          attachments: [{ session_id: 's', state: 'live', attached_at: AT }],
          waiting: 2,
          quiet_until: null,
        },
      ],
    },
    type: 'agent_list',
    fields: {
      agents: [
        {
          name: 'builder',
          harness: 'claude',
          workspace: '/srv/app',
          attachments: [{ session_id: 's', state: 'live', attached_at: AT_TEXT }],
          waiting: 2,
          quiet_until: null,
        },
      ],
    },
    human: /builder +claude +live +2 +\/srv\/app/,
  },
  {
    args: ['agent', 'rename', 'builder', 'nightly'],
    method: 'agent.rename',
    params: { name: 'builder', new_name: 'nightly' },
    result: { agent: { name: 'nightly' } },
    type: 'agent_renamed',
    human: /builder is now nightly/,
  },
  {
    args: ['agent', 'remove', 'builder'],
    method: 'agent.remove',
    params: { name: 'builder' },
    result: { name: 'builder', waiting: 1 },
    type: 'agent_removed',
    human: /removed builder; 1 unread/,
  },
  {
    args: ['agent', 'sessions', 'hostb'],
    method: 'agent.sessions',
    params: { host: 'hostb' },
    result: {
      hosts: [
        {
          host: 'hostb',
          host_id: HOST_ID,
          state: 'ok',
          error: null,
          sessions: [
            {
              harness: 'claude',
              session_id: 'u-1',
              workspace: '/srv/\u202eapp',
              status: 'idle',
              agent: null,
              reachable: true,
              reason: null,
              version: '2.1',
              started_at: AT,
            },
          ],
        },
        {
          host: 'c',
          host_id: HOST_ID,
          state: 'unavailable',
          error: { code: 'unavailable', message: 'c does not answer', retryable: true },
          sessions: [],
        },
      ],
    },
    type: 'session_list',
    fields: {
      hosts: [
        {
          host: 'hostb',
          host_id: HOST_ID,
          state: 'ok',
          sessions: [
            {
              harness: 'claude',
              session_id: 'u-1',
              workspace: '/srv/\u202eapp',
              status: 'idle',
              agent: null,
              reachable: true,
              version: '2.1',
              started_at: AT_TEXT,
            },
          ],
        },
        {
          host: 'c',
          host_id: HOST_ID,
          state: 'unavailable',
          error: { code: 'unavailable', message: 'c does not answer', retryable: true },
          sessions: [],
        },
      ],
    },
    human: /hostb:\nSESSION[^]*\/srv\/\\u\{202e\}app\nc: unavailable: c does not answer/,
  },
  {
    args: ['messages', 'list', '-a', '--sent', '--state', 'queued', '--limit', '5', '--before', OTHER_ID],
    method: 'message.list',
    params: { sent: true, state: 'queued', limit: 5, before: OTHER_ID },
    result: {
      messages: [
        {
          message_id: ID,
          kind: 'message',
          state: 'available',
          harness: 'claude',
          workspace: '/w',
          from: 'a',
          to: 'b@hostb',
          subject: null,
          bytes: 2048,
          received_at: AT,
          handed_out_at: AT,
          fetched_at: null,
        },
      ],
      scope: null,
    },
    type: 'message_list',
    fields: {
      messages: [
        {
          message_id: ID,
          kind: 'message',
          state: 'available',
          harness: 'claude',
          workspace: '/w',
          from: 'a',
          to: 'b@hostb',
          subject: null,
          bytes: 2048,
          received_at: AT_TEXT,
          handed_out_at: AT_TEXT,
          fetched_at: null,
        },
      ],
    },
    human: /MESSAGE +STATE +TO[^]*handed out, unconfirmed +b@hostb/,
  },
  {
    args: ['messages', 'show', ID],
    method: 'message.show',
    params: { id: ID },
    result: STATUS,
    type: 'message',
    fields: {
      cause: { code: 'untrusted_peer', message: 'hostb does not know this host', at: AT_TEXT },
      destination: { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app' },
      history: [{ seq: 4, at: AT_TEXT, state: 'queued', detail: null }],
      receiver_state: undefined,
      receiver_at: undefined,
      receiver_notice: undefined,
      stored_as: undefined,
    },
    human:
      /deferred \(outcome of the last attempt unknown\)[^]*subject: red \\x1b\[31m[^]*cause: hostb does not know this host \(untrusted_peer\)/,
  },
  {
    args: ['admin', 'status', ID],
    method: 'admin.message_status',
    params: { id: ID },
    result: { ...STATUS, cause: null, history: [], receiver_state: 'available', receiver_at: AT },
    type: 'message_status',
    fields: {
      cause: undefined,
      destination: { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app' },
      receiver_at: AT_TEXT,
      receiver_notice: undefined,
      stored_as: undefined,
    },
    human: /there: available/,
  },
  {
    args: ['admin', 'status'],
    method: 'admin.status',
    params: {},
    result: {
      daemon: DAEMON,
      hosts: [HOST],
      outbox: { queued: 1, forwarding: 0, deferred: 2, uncertain: 0 },
      inbox: { awaiting_setup: 0, available: 3, handed_out: 0 },
      notices: { held: 1 },
      store: { path: '/s/store', bytes: 1024, free_bytes: 4096, entries: 9 },
      attention: [
        { what: 'hostb refuses', since: AT, fix: 'ax host list' },
        { what: 'the grant is missing', since: null, fix: 'its owner must allow it, on hostb: ax host grant HERE write' },
      ],
    },
    type: 'admin_status',
    fields: {
      hosts: [HOST_JSON],
      attention: [
        { what: 'hostb refuses', since: AT_TEXT, fix: 'CALLED host list' },
        { what: 'the grant is missing', since: null, fix: 'its owner must allow it, on hostb: ax host grant HERE write' },
      ],
    },
    human:
      /outbox +1 queued, 0 forwarding, 2 deferred[^]*! hostb refuses[^]*fix: \S+\/bin\/ax --state-dir \S+ host list\n! the grant[^]*fix: .*, on hostb: ax host grant HERE write$/m,
  },
  {
    args: ['admin', 'cancel', ID],
    method: 'admin.cancel',
    params: { id: ID },
    result: { message_id: ID, state: 'cancel_requested' },
    type: 'message_cancel',
    human: /is not cancelled yet/,
  },
  {
    args: ['admin', 'events', '--since', '3', '--limit', '10'],
    method: 'admin.events',
    params: { since: 3, limit: 10 },
    result: {
      events: [{ seq: 3, at: AT, type: 'message.queued', message_id: ID, host_id: null, subject: null, state: 'queued', detail: null }],
      next_seq: 4,
      oldest_seq: 1,
    },
    type: 'event_list',
    fields: {
      events: [
        { seq: 3, at: AT_TEXT, type: 'message.queued', message_id: ID, host_id: null, subject: null, state: 'queued', detail: null },
      ],
    },
    human: /message\.queued/,
  },
  { args: ['daemon', 'status'], method: 'daemon.status', params: {}, result: DAEMON, type: 'daemon_status', human: /running, pid 77/ },
];

test('every command asks exactly what it was told and prints it for people and as JSON', async (t) => {
  const hello = { version: AX_VERSION, protocol: CONTROL_PROTOCOL, host_id: HOST_ID, pid: 77 };
  const rig = await scripted(t, { 'daemon.hello': () => hello });
  const check = async (entry: Case): Promise<void> => {
    const name = entry.args.join(' ');
    rig.answers = { ...rig.answers, [entry.method]: () => entry.result };
    rig.asked.length = 0;
    const human = await rig.ax(entry.args, { input: 'axi1-xyz\n' });
    assert.deepEqual([human.code, human.stderr], [0, ''], name);
    assert.match(human.stdout, entry.human, name);
    assert.doesNotMatch(human.stdout, /\x1b|\u202e/, name); // eslint-disable-line no-control-regex
    // How this ax is called depends on where it lies.
    const called = /fix: (.*) host list$/m.exec(human.stdout)?.[1] ?? '';
    const asked = rig.take(entry.method);
    assert.deepEqual(asked.params, entry.params, name);
    assert.deepEqual(asked.actor, {
      origin: { harness: null, harness_version: null, session_id: null, workspace: rig.workspace, integration: 'cli' },
      session: null,
    });
    const { code, value, stderr } = await rig.json(entry.args, { input: 'axi1-xyz\n' });
    const expected = { schema_version: '1', ok: true, ...entry.result, ...entry.fields, type: entry.type };
    assert.deepEqual([code, value, stderr], [0, JSON.parse(JSON.stringify(expected).replaceAll('CALLED', called)), ''], name);
  };
  for (const entry of CASES) await check(entry);
});

test('lists have the same fields in csv and tsv, and `ls` is `list`', async (t) => {
  const rig = await scripted(t, { 'host.list': () => ({ hosts: [HOST] }) });
  const csv = await rig.ax(['host', 'ls', '--format', 'csv']);
  assert.equal(
    csv.stdout,
    `host_id,name,addresses,grants,state,last_seen_at,rtt_ms,version,grant_rules\r\n${HOST_ID},hostb,/ip4/192.0.2.7/tcp/19264,read write,up,${AT_TEXT},1.25,0.1.0,\r\n`,
  );
  const tsv = await rig.ax(['--format', 'tsv', 'host', 'ls']);
  assert.equal(tsv.stdout.split('\r\n')[0], 'host_id\tname\taddresses\tgrants\tstate\tlast_seen_at\trtt_ms\tversion\tgrant_rules');
});

test('a listing is of the local workspace unless it is widened', async (t) => {
  const rig = await scripted(t, { 'message.list': () => ({ messages: [], scope: 'x' }) });
  const { stdout } = await rig.ax(['messages', 'ls']);
  assert.equal(rig.take('message.list').params['workspace'], rig.workspace);
  assert.match(stdout, new RegExp(`no messages for ${rig.workspace}; .*messages list -a`));
  await rig.ax(['messages', 'list', '--local-workspace', '/']);
  assert.equal(rig.take('message.list').params['workspace'], '/');
});

test('origin comes from the AX variables, a flag beats its variable, and nothing is guessed', async (t) => {
  const rig = await scripted(t, { 'host.id': () => ({ host_id: HOST_ID, name: 'a', fingerprint: 'f', addresses: [] }) });
  await rig.ax(['host', 'id'], { env: CLAUDE_SHELL });
  const guessed = rig.take('host.id').actor;
  assert.equal(guessed.origin.harness, null);
  assert.deepEqual(guessed.session, {
    harness: 'claude',
    session_id: CLAUDE_SHELL.CLAUDE_CODE_SESSION_ID,
    pid: 4242,
    socket: CLAUDE_SHELL.CLAUDE_CODE_MESSAGING_SOCKET,
    config_dir: null,
  });
  const env = { AX_HARNESS: 'one', AX_HARNESS_VERSION: '1', AX_HARNESS_SESSION: 's', AX_LOCAL_WORKSPACE: '/', AX_FORMAT: 'json' };
  const { stdout } = await rig.ax(['--harness', 'two', 'host', '--harness-version', '3', 'id', '--harness-session', 't'], { env });
  assert.equal((JSON.parse(stdout) as { type: string }).type, 'host_identity');
  assert.deepEqual(rig.take('host.id').actor.origin, {
    harness: 'two',
    harness_version: '3',
    session_id: 't',
    workspace: '/',
    integration: 'cli',
  });
});

test('--state-dir stands before the noun only, also as a link, and --profile is reserved', async (t) => {
  const rig = await scripted(t, { 'host.list': () => ({ hosts: [] }) });
  symlinkSync(rig.stateDir, join(rig.folder, 'link'));
  const elsewhere = { AX_STATE_DIR: join(rig.folder, 'none') };
  assert.equal((await rig.ax(['--state-dir', join(rig.folder, 'link'), 'host', 'list'], { env: elsewhere })).code, 0);
  const after = await rig.ax(['host', 'list', '--state-dir', rig.stateDir]);
  assert.deepEqual([after.code, after.stdout], [2, '']);
  assert.match(
    after.stderr,
    /^ax: unknown option '--state-dir'; it stands before `host` only\nfix: \S+\/ax --state-dir \S+ host list --help\n$/,
  );
  for (const args of [
    ['--profile', 'x', 'host', 'list'],
    ['host', 'list'],
  ]) {
    const { code, stdout } = await rig.ax(args, { env: { AX_PROFILE: 'x', AX_FORMAT: 'json' } });
    assert.equal(code, 2);
    assert.match((JSON.parse(stdout) as { error: { message: string } }).error.message, /--profile is reserved/);
  }
});

test('a long state folder is reached through its owner-only folder under /tmp', async (t) => {
  const rig = await scripted(t);
  const deep = join(rig.folder, 'd'.repeat(60), 'e'.repeat(60));
  mkdirSync(deep, { recursive: true, mode: 0o700 });
  const { code, value } = await rig.json(['--state-dir', deep, 'host', 'list']);
  assert.equal(code, 3);
  assert.match(String(value['error'].details.socket), /^\/tmp\/ax-\d+-[0-9a-f]{16}\/control\.sock$/);
});

test('without a daemon the socket tried and the command that starts one are named, with status 3', async (t) => {
  const rig = await scripted(t);
  const human = await rig.ax(['messages', 'list']);
  assert.deepEqual([human.code, human.stdout], [3, '']);
  assert.match(
    human.stderr,
    new RegExp(`^ax: no daemon answers at ${rig.stateDir}/control.sock\nfix: \\S+ --state-dir ${rig.stateDir} daemon start\n$`),
  );
  const json = await rig.json(['messages', 'list']);
  assert.deepEqual([json.code, json.value['error'].code, json.value['ok'], json.stderr], [3, 'daemon_unavailable', false, '']);
  const status = await rig.json(['daemon', 'status']);
  assert.deepEqual([status.code, status.value['type'], status.value['running']], [3, 'daemon_status', false]);
  const stop = await rig.json(['daemon', 'stop']);
  assert.deepEqual([stop.code, stop.value['running']], [0, false]);
});

test('a refusal is one line and its fix on stderr, or the envelope on stdout, and the exit status of its code', async (t) => {
  const refusal = (): never => {
    throw new AxError('ambiguous_id', 'several messages begin so', { fix: 'ax messages list', details: { candidates: [ID, OTHER_ID] } });
  };
  const rig = await scripted(t, { 'message.show': refusal, 'host.list': () => Promise.reject(new Error('boom')) });
  const human = await rig.ax(['messages', 'show', '01kb']);
  assert.deepEqual([human.code, human.stdout], [1, '']);
  const fix = /^ax: several messages begin so \((.*)\)\nfix: (\S+\/bin\/ax --state-dir \S+ messages list)\n$/.exec(human.stderr);
  assert.equal(fix?.[1], `${ID}, ${OTHER_ID}`, 'the fix is ready to run: with the program and the state folder of this line');
  const json = await rig.json(['messages', 'show', '01kb']);
  assert.deepEqual(json, {
    code: 1,
    stderr: '',
    value: {
      schema_version: '1',
      ok: false,
      type: 'error',
      error: {
        code: 'ambiguous_id',
        message: 'several messages begin so',
        retryable: false,
        fix: fix?.[2],
        details: { candidates: [ID, OTHER_ID] },
      },
    },
  });
  const internal = await rig.json(['host', 'list']);
  assert.deepEqual([internal.code, internal.value['error'].code], [1, 'internal']);
});

test('a daemon of another version is told with both versions, the command that mends it, and status 3; a peer of another version with 1', async (t) => {
  const details = { daemon_version: '9.9.9', daemon_protocol: 7, request_protocol: 1 };
  const rig = await scripted(t, {
    'host.list': () => Promise.reject(new AxError('update_required', 'old', { details })),
    'host.ping': () => Promise.reject(new AxError('update_required', 'hostb speaks protocol 2 to 3, this host 1 to 1')),
  });
  const { code, stderr } = await rig.ax(['host', 'list']);
  assert.equal(code, 3);
  assert.match(
    stderr,
    new RegExp(`${AX_VERSION}, control protocol ${CONTROL_PROTOCOL}; .*9\\.9\\.9, control protocol 7.*\nfix: .*daemon restart\n`),
  );
  assert.equal((await rig.ax(['host', 'ping', 'hostb'])).code, 1);
});

test('verbs that change trust refuse inside an agent shell without --as-owner, reading ones do not', async (t) => {
  const rig = await scripted(t, { 'host.invite': () => ({ code: 'c', expires_at: AT }), 'host.list': () => ({ hosts: [] }) });
  const lines = [['invite'], ['join', 'c'], ['add', 'b', '/x'], ['rename', 'a', 'b'], ['remove', 'a']];
  for (const [i, line] of lines.entries()) {
    const { code, value } = await rig.json(['host', ...line], { env: i % 2 === 0 ? CLAUDE_SHELL : { CODEX_THREAD_ID: 'x' } });
    assert.deepEqual([code, value['error'].code], [1, 'invalid_state'], line[0]);
  }
  assert.equal(rig.asked.length, 0);
  assert.equal((await rig.ax(['host', 'invite', '--as-owner'], { env: CLAUDE_SHELL })).code, 0);
  assert.equal((await rig.ax(['host', 'list'], { env: CLAUDE_SHELL })).code, 0);
  assert.equal((await rig.ax(['host', 'invite'], { env: { CODEX_HOME: '/c', CLAUDE_CONFIG_DIR: '/d' } })).code, 0);
});

test('setup hands over the session that the shell exports and shows what to do next; outside a session it refuses', async (t) => {
  const next = `ax messages fetch ${ID} --workspace /srv/app`;
  const result = {
    agent: { name: 'builder', harness: 'claude', workspace: '/srv/app' },
    attachment: { session_id: 'u', state: 'live' },
    waiting: [{ message_id: ID, kind: 'message', bytes: 5 }],
    warnings: ['a second session lives here'],
    next,
  };
  const rig = await scripted(t, { 'agent.setup': () => result });
  const args = ['agent', 'setup', '--name', 'builder', '--workspace', '.'];
  const human = await rig.ax(args, { env: { ...CLAUDE_SHELL, CLAUDE_CONFIG_DIR: '/conf', TMPDIR: SOURCES } });
  const asked = rig.take('agent.setup');
  assert.deepEqual(asked.params, { name: 'builder', workspace: rig.workspace });
  assert.deepEqual(asked.actor.session, {
    harness: 'claude',
    session_id: CLAUDE_SHELL.CLAUDE_CODE_SESSION_ID,
    pid: 4242,
    socket: CLAUDE_SHELL.CLAUDE_CODE_MESSAGING_SOCKET,
    config_dir: '/conf',
  });
  assert.equal(human.stderr, 'ax: warning: a second session lives here\n');
  assert.match(
    human.stdout,
    /\n`ax agent allow-rules` would refuse: \/\S+ lies in \/\S+, where agents may write\.\nnext: ax messages fetch/,
  );
  const json = await rig.json(args, { env: CLAUDE_SHELL });
  assert.deepEqual(
    [json.value['type'], json.value['waiting'], json.value['attachment']],
    ['agent_setup', result.waiting, result.attachment],
  );
  for (const env of [{}, { CLAUDECODE: '1' }]) assert.equal((await rig.json(args, { env })).value['error'].code, 'invalid_state');
  assert.equal((await rig.json(args, { env: { CODEX_CI: '1' } })).value['error'].code, 'invalid_state', 'no thread id');
});

test('usage errors have status 2 and the code usage; help has status 0 and an example', async (t) => {
  const rig = await scripted(t);
  for (const args of [
    ['bogus'],
    ['host', 'bogus'],
    ['host', 'show'],
    ['host', 'list', 'extra'],
    ['host', 'list', '--bogus'],
    ['host'],
    [],
  ]) {
    const { code, value } = await rig.json(args);
    assert.deepEqual([code, value['error'].code], [2, 'usage'], args.join(' '));
  }
  const xml = await rig.ax(['host', 'list', '--format', 'xml']);
  assert.deepEqual([xml.code, xml.stdout], [2, '']);
  for (const args of [['--help'], ['send', '--help'], ['messages', 'fetch', '--help'], ['host', '--help']]) {
    const { code, stdout } = await rig.ax(args);
    assert.equal(code, 0);
    assert.match(stdout, /\nExample:\n {2}ax /);
  }
  assert.deepEqual(await rig.ax(['--version']), { code: 0, stdout: `${AX_VERSION}\n`, stderr: '' });
});

test('one send has one destination: an option that takes one value and is given two is refused, and nothing is sent to either', async (t) => {
  const rig = await scripted(t, { 'message.send': () => assert.fail('sent'), 'message.list': () => assert.fail('listed') });
  for (const args of [
    ['send', '--to', 'one@hostb', '--to', 'two@hostb', 'hello'],
    ['send', '--host', 'hostb', '--host=hostc', '--harness', 'claude', '--destination-workspace', '/srv', 'hello'],
    ['send', '--host', 'hostb', '--harness', 'claude', '--destination-workspace', '/one', '--destination-workspace', '/two', 'hello'],
    ['send', '--to', 'one@hostb', '--message', 'this', '--message', 'that'],
    ['messages', 'list', '--state', 'available', '--state', 'fetched'],
  ]) {
    const { code, value } = await rig.json(args);
    assert.deepEqual([code, value['error'].code], [2, 'usage'], args.join(' '));
    assert.match(value['error'].message, /^--[a-z-]+ is given more than once, and takes one value$/);
  }
});

test('following the events asks on from where it was and prints one JSON object a line', async (t) => {
  const event = (seq: number): object => ({
    seq,
    at: AT,
    type: 'message.queued',
    message_id: ID,
    host_id: null,
    subject: null,
    state: 'queued',
    detail: null,
  });
  const answers: Answers = {
    'admin.events': (_params, nth) => {
      if (nth === 2) throw new AxError('shutting_down', 'the daemon stops');
      return { events: nth === 0 ? [event(5), event(6)] : [event(7)], next_seq: nth === 0 ? 7 : 8, oldest_seq: 1 };
    },
  };
  const rig = await scripted(t, answers);
  const { code, stdout } = await rig.ax(['admin', 'events', '--follow', '--since', '5', '--format', 'json']);
  assert.equal(code, 3, "the daemon that ended is this host's own");
  const lines = stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as { type: string; event?: { seq: number } });
  assert.deepEqual(
    lines.map((line) => line.event?.seq ?? line.type),
    [5, 6, 7, 'error'],
  );
  assert.deepEqual(
    rig.asked.map((entry) => entry.params['since']),
    [5, 7, 8],
  );
  assert.ok(Number(rig.asked[0]!.params['wait_ms']) > 0);
});

test('a command that waits says after 2 s what for, on stderr', async (t) => {
  const said = Promise.withResolvers<void>();
  const pinged = { host_id: HOST_ID, name: 'hostb', rtt_ms: [1], version: '0.1.0' };
  const rig = await scripted(t, { 'host.ping': () => said.promise.then(() => pinged) });
  const child = rig.start(['host', 'ping', 'hostb']);
  child.stderr!.once('data', () => said.resolve());
  const { code, stderr } = await outcomeOf(child);
  assert.deepEqual([code, stderr], [0, 'ax: waiting for hostb to answer …\n']);
});

test('a daemon that answers garbage or nothing is an error with the retry line, not a crash', async (t) => {
  for (const [bytes, code, exit] of [
    [new TextEncoder().encode('HTTP/1.1 400 Bad Request\r\n\r\n'), 'protocol_violation', 1],
    [new Uint8Array(0), 'daemon_unavailable', 3],
  ] as const) {
    const rig = await scripted(t);
    const server = createServer((socket) => void socket.once('data', () => socket.end(bytes))).listen(join(rig.stateDir, 'control.sock'));
    rig.ends.push(async () => server.close());
    const sent = await rig.json(['send', '--to', 'b@hostb', 'hi']);
    assert.deepEqual([sent.code, sent.value['error'].code], [exit, code]);
    assert.match(String(sent.value['error'].details.retry), /--request-id/);
  }
});
