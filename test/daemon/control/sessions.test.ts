/**
 * `agent.sessions`: every host answers for itself, in time, with its state and the cause, and only public facts.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { makeMethods } from '../../../daemon/control/methods.ts';
import type { MethodDeps, Params } from '../../../daemon/control/methods.ts';
import type { HostSessions } from '../../../daemon/discovery.ts';
import type { SessionHost } from '../../../protocol/control.ts';
import { AxError } from '../../../protocol/errors.ts';
import type { ErrorCode } from '../../../protocol/errors.ts';
import { SESSIONS_TIMEOUT_MS } from '../../../protocol/limits.ts';
import { encodeRefusal, readAnswer, readSessions, sessionsResult } from '../../../protocol/wire.ts';
import type { PublicSession } from '../../../protocol/wire.ts';
import { OWNER } from '../../sim/fleet.ts';
import { ALICE, AT } from '../../protocol/sample.ts';
import { HandClock } from '../bed.ts';

const SELF = ALICE.hostId;
const session = (harness: 'claude' | 'codex', change: Partial<PublicSession> = {}): PublicSession => ({
  harness,
  sessionId: '11111111-2222-4333-8444-555555555555',
  workspace: '/w',
  status: 'idle',
  agent: null,
  reachable: true,
  reason: null,
  version: '1',
  startedAt: AT,
  statusSince: AT + 1,
  quiet: false,
  quietUntil: null,
  ...change,
});
const list = (...sessions: PublicSession[]): HostSessions => ({ sessions, agents: [], silent: [] });

/** What the exchange makes of a refusal that came over the wire. */
function refused(code: ErrorCode): Promise<never> {
  const answer = readAnswer(encodeRefusal(new AxError(code, 'a local sentence that never leaves')));
  assert.ok(!answer.ok);
  return Promise.reject(
    new AxError(answer.refusal.code, `the other host answered ${code}`, { details: { refused: answer.refusal.class } }),
  );
}

/** The method over hosts that answer as scripted; `now` lets time pass once all were asked. */
async function ask(answers: Record<string, () => Promise<HostSessions>>, ms: number, params: Params = {}): Promise<SessionHost[]> {
  const clock = new HandClock();
  const peers = Object.keys(answers).filter((name) => name !== 'Localhost');
  const host = (name: string) => ({ local: name === 'Localhost', id: name === 'Localhost' ? SELF : name, name });
  const asked: [string, number | undefined][] = [];
  const deps = {
    clock,
    self: SELF,
    naming: { host },
    peers: { all: () => peers.map((hostId) => ({ hostId })) },
    discovery: {
      local: () => answers['Localhost']!(),
      of: (id: string, maxAgeMs?: number) => {
        asked.push([id, maxAgeMs]);
        return answers[id]!();
      },
    },
  } as unknown as MethodDeps;
  const work = makeMethods(deps)['agent.sessions'](params, OWNER);
  await new Promise((resolve) => void setImmediate(resolve));
  if (params['host'] === undefined)
    assert.deepEqual(
      asked,
      peers.map((id) => [id, 0]),
      'all are asked anew, before the first has answered',
    );
  clock.pass(ms);
  const { hosts } = await work;
  assert.equal(clock.pending, 0);
  return hosts as SessionHost[];
}

test('each host has its own row: sessions, none, or why it told nothing', async () => {
  const codes: readonly (readonly [ErrorCode, SessionHost['state'], RegExp])[] = [
    ['grant_missing', 'unavailable', /^peer does not allow this host to list its sessions$/],
    ['untrusted_peer', 'unavailable', /^peer does not know this host$/],
    ['internal', 'unavailable', /^peer is busy$/],
    ['shutting_down', 'unavailable', /^ax on peer is starting or stopping$/],
    ['unsupported', 'unsupported', /^ax on peer does not serve that/],
  ];
  for (const [code, state, message] of codes) {
    const [here, row] = await ask({ Localhost: async () => list(session('codex')), peer: () => refused(code) }, 0);
    assert.deepEqual([here?.state, here?.sessions.length, here?.error], ['ok', 1, null]);
    assert.deepEqual([row?.state, row?.sessions], [state, []], code);
    assert.match(row?.error?.message ?? '', message);
    assert.doesNotMatch(JSON.stringify(row), /local sentence/);
  }
  const [, right] = await ask({ Localhost: async () => list(), peer: () => refused('grant_missing') }, 0);
  assert.deepEqual(
    [right?.error?.code, right?.error?.fix, right?.error?.details?.['command']],
    ['grant_missing', 'owner', `ax host grant ${SELF} read`],
  );
  const fails: readonly (readonly [AxError, SessionHost['state']])[] = [
    [new AxError('update_required', 'peer speaks protocol 2 to 3, this host 1 to 1'), 'update_required'],
    [new AxError('unavailable', 'no connection to peer'), 'unavailable'],
    [new AxError('protocol_violation', 'a list of garbage'), 'unavailable'],
  ];
  for (const [error, state] of fails) {
    const [, row] = await ask({ Localhost: async () => list(), peer: () => Promise.reject(error) }, 0);
    assert.deepEqual([row?.state, row?.error?.code, row?.error?.message], [state, error.code, error.message]);
  }
  const [empty] = await ask({ Localhost: async () => list() }, 0);
  assert.deepEqual(empty, { host: 'Localhost', host_id: SELF, state: 'ok', error: null, sessions: [], warnings: [] });
});

test('a host that hangs, or whose own look hangs, delays the rows of the others by no more than the bound', async () => {
  const never = (): Promise<HostSessions> => new Promise(() => undefined);
  const rows = await ask(
    { Localhost: async () => list(session('claude')), b: never, c: async () => list(session('codex')) },
    SESSIONS_TIMEOUT_MS,
  );
  assert.deepEqual(
    rows.map((row) => [row.host, row.state, row.sessions.length, row.error?.code ?? null]),
    [
      ['Localhost', 'ok', 1, null],
      ['b', 'unavailable', 0, 'timeout'],
      ['c', 'ok', 1, null],
    ],
  );
  const [here, b] = await ask({ Localhost: never, b: async () => list() }, SESSIONS_TIMEOUT_MS);
  assert.deepEqual([here?.state, here?.error?.code, b?.state], ['unavailable', 'timeout', 'ok']);
  const [one] = await ask({ b: never, c: never }, SESSIONS_TIMEOUT_MS, { host: 'b' });
  assert.deepEqual([one?.host, one?.error?.code], ['b', 'timeout']);
});

test('a row has public facts of both harnesses, reachable or why not, quiet or not, since when, and which harness was silent', async () => {
  const sessions = [
    session('claude', { agent: 'builder' }),
    session('codex', { reachable: false, reason: 'archived', statusSince: null, quiet: true, quietUntil: AT + 9 }),
  ];
  const answer = readAnswer(sessionsResult(sessions, [], ['codex']));
  assert.ok(answer.ok);
  const [, row] = await ask({ Localhost: async () => list(), peer: async () => readSessions(answer.fields) }, 0);
  assert.deepEqual(row?.warnings, ['codex gave no answer there: what is listed of it is what was last seen']);
  const shared = { session_id: sessions[0]!.sessionId, workspace: '/w', status: 'idle', version: '1', started_at: AT };
  assert.deepEqual(row?.sessions, [
    {
      ...shared,
      harness: 'claude',
      agent: 'builder',
      reachable: true,
      reason: null,
      status_since: AT + 1,
      quiet: false,
      quiet_until: null,
    },
    {
      ...shared,
      harness: 'codex',
      agent: null,
      reachable: false,
      reason: 'archived',
      status_since: null,
      quiet: true,
      quiet_until: AT + 9,
    },
  ]);
});
