/**
 * The local API: every method name and the function that answers it, without any transport.
 *
 * Owns parameter checks that belong to no other part, and the shapes of answers (protocol/control.ts). Reading methods change
 * nothing. Waiting methods answer within MAX_POLL_MS, so that a client that is gone is noticed.
 */
import { METHODS } from '../../protocol/control.ts';
import type { AdminStatus, DaemonBackup, DaemonStatus, Method, SessionHost } from '../../protocol/control.ts';
import { AxError, errorBody, toAxError } from '../../protocol/errors.ts';
import { fingerprint } from '../../protocol/identity.ts';
import type { HostId } from '../../protocol/ids.ts';
import { MAX_LIST_ROWS, MAX_POLL_MS, SESSIONS_TIMEOUT_MS } from '../../protocol/limits.ts';
import type { AxCommand } from '../../protocol/notice.ts';
import { RECEIVER_ENDS, SENDER_ENDS } from '../../protocol/states.ts';
import type { ReceiverState, SenderState } from '../../protocol/states.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../protocol/version.ts';
import type { Actor } from '../addressing.ts';
import type { Agents } from '../agents.ts';
import { explain } from '../causes.ts';
import type { Clock } from '../clock/clock.ts';
import { LATE, unlessLate } from '../clock/within.ts';
import type { Discovery, HostSessions } from '../discovery.ts';
import type { Events } from '../events.ts';
import type { Exchange } from '../exchange.ts';
import type { Granting } from '../granting.ts';
import type { Greeting } from '../greeting.ts';
import type { Inbox } from '../inbox.ts';
import type { Link } from '../link/link.ts';
import type { Naming, ResolvedHost } from '../naming.ts';
import type { Outbox } from '../outbox.ts';
import type { Pairing } from '../pairing.ts';
import type { Peers } from '../peers.ts';
import type { Pickup } from '../pickup.ts';
import type { Quieting } from '../quieting.ts';
import type { Registration } from '../registration.ts';
import type { Router } from '../router.ts';
import type { Uploads } from '../uploads.ts';
import type { SandboxFetch } from '../sandbox-fetch.ts';
import { eventRow } from '../status.ts';
import { cancel, retry } from './methods-ending.ts';
import type { Backups } from '../backup/backup.ts';
import type { Status } from '../status.ts';
import type { Store } from '../store/store.ts';

export type Params = Readonly<Record<string, unknown>>;
type Handler = (params: Params, actor: Actor) => Promise<Record<string, unknown>>;

export interface MethodDeps {
  readonly clock: Clock;
  readonly self: HostId;
  readonly ax: AxCommand;
  readonly store: Store;
  readonly link: Link;
  readonly naming: Naming;
  readonly greeting: Greeting;
  readonly peers: Peers;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
  readonly events: Events;
  readonly discovery: Discovery;
  readonly agents: Agents;
  readonly pairing: Pairing;
  readonly granting: Granting;
  readonly registration: Registration;
  readonly quieting: Quieting;
  readonly pickup: Pickup;
  readonly router: Router;
  readonly uploads: Uploads;
  readonly status: Status;
  readonly exchange: Exchange;
  readonly sandboxFetch: SandboxFetch;
  /** Where others are told to dial this host. */
  readonly ownAddresses: () => readonly string[];
  readonly daemonStatus: () => DaemonStatus;
  /** False once the daemon is about to stop. */
  readonly isOpen: () => boolean;
  readonly onStop: () => void;
  readonly backups?: Backups | undefined;
}

/** Builds the table; its keys are exactly METHODS. */
export function makeMethods(deps: MethodDeps): Record<Method, Handler> {
  const { registration, pickup, router, status, pairing, granting, naming, daemonStatus } = deps;
  const table: Record<Method, Handler> = {
    'daemon.hello': async () => ({ version: AX_VERSION, protocol: CONTROL_PROTOCOL, host_id: deps.self, pid: daemonStatus().pid }),
    'daemon.stop': async () => {
      deps.onStop();
      return { stopping: true };
    },
    'daemon.status': async () => ({ ...daemonStatus() }),
    'daemon.backup': (params, actor) => backup(deps, params, actor),
    'host.id': async () => ({
      host_id: deps.self,
      name: daemonStatus().name,
      fingerprint: fingerprint(deps.self),
      addresses: deps.ownAddresses().map((address) => `${address}/p2p/${deps.self}`),
    }),
    'host.invite': (params) => pairing.invite({ grants: params['grants'], ttlMs: params['ttl_ms'] }),
    'host.join': (params) => pairing.join({ code: params['code'], name: params['name'], grants: params['grants'] }),
    'host.add': async (params) => ({
      host: status.host(await pairing.add({ name: params['name'], address: params['address'], grants: params['grants'] })),
    }),
    'host.list': async () => ({ hosts: status.hosts() }),
    'host.show': async (params) => {
      const host = naming.host(params['host']);
      if (host.local) throw new AxError('invalid_argument', 'for this host itself: ax host id');
      return { host: status.host(host.peer), fingerprint: fingerprint(host.id), pending: deps.outbox.countOpen(host.id) };
    },
    'host.rename': async (params) => {
      const peer = await pairing.rename({ host: params['host'], name: params['name'] });
      return { host_id: peer.hostId, name: peer.name };
    },
    'host.remove': (params) => pairing.remove({ host: params['host'], cancelPending: params['cancel_pending'] }),
    'host.ping': (params) => pairing.ping({ host: params['host'], count: params['count'] }),
    'host.grant': async (params) => ({
      ...(await granting.grant({
        host: params['host'],
        actions: params['actions'],
        workspace: params['workspace'],
        expiresMs: params['expires_ms'],
      })),
    }),
    'host.revoke': async (params) => ({
      ...(await granting.revoke({ host: params['host'], actions: params['actions'], workspace: params['workspace'] })),
    }),
    'agent.setup': async (params, actor) => ({
      ...(await registration.setup({ name: params['name'], workspace: params['workspace'] }, actor.session)),
    }),
    'agent.list': async () => ({ agents: registration.list() }),
    'agent.rename': async (params) => ({ agent: await registration.rename(params['name'], params['new_name']) }),
    'agent.remove': (params) => registration.remove(params['name']),
    'agent.quiet': (params, actor) => deps.quieting.quiet(params, actor),
    'agent.unquiet': (params, actor) => deps.quieting.unquiet(params, actor),
    'agent.sessions': (params) => sessions(deps, params),
    'agent.sandbox_fetch': (params, actor) => sandboxFetch(deps, params, actor),
    'message.send': async (params, actor) => ({ ...(await router.send(params, actor)) }),
    'message.reply': async (params, actor) => ({ ...(await router.reply(params, actor)) }),
    'message.upload': async (params) => ({ bytes: deps.uploads.add(params['upload'], params['index'], params['body']) }),
    'message.list': (params) => status.list(params),
    'message.show': async (params) => ({ ...status.message(params['id']) }),
    'message.fetch': async (params, actor) => ({
      ...(await pickup.fetch({ id: params['id'], workspace: params['workspace'] }, actor.session)),
    }),
    'message.part': async (params) => ({
      ...pickup.part({ id: params['id'], fromHost: params['from_host'], handOut: params['hand_out'], index: params['index'] }),
    }),
    'message.confirm': (params) => pickup.confirm({ id: params['id'], handOut: params['hand_out'] }),
    'message.wait': (params) => wait(deps, params),
    'admin.status': async () => ({ ...(status.overview() satisfies AdminStatus) }),
    'admin.message_status': async (params) => ({ ...status.message(params['id']) }),
    'admin.cancel': (params, actor) => cancel(deps, params, actor),
    'admin.dead': async (params) => ({ ...status.dead(params) }),
    'admin.retry': (params, actor) => retry(deps, params, actor),
    'admin.events': (params) => events(deps, params),
  };
  if (Object.keys(table).length !== METHODS.length) throw new Error('a method is missing from the table');
  return table;
}

/** A copy of all that this host holds: its owner's, not a session's. */
async function backup(deps: MethodDeps, params: Params, actor: Actor): Promise<Record<string, unknown>> {
  const folder = params['path'];
  if (typeof folder !== 'string' || folder.includes('\0')) throw new AxError('invalid_argument', 'a backup goes to an absolute path');
  if (actor.session !== null && params['as_owner'] !== true)
    throw new AxError('invalid_state', "a backup holds every message of this host and is its owner's to make", {
      fix: 'the owner of the host runs it in a terminal of theirs',
    });
  if (deps.backups === undefined) throw new AxError('unsupported', 'this daemon makes no backups');
  return { ...((await deps.backups.make(folder, params['with_key'] === true)) satisfies DaemonBackup) };
}

/** Session lists of one host or of all: asked side by side, each answering on its own; a host that is down is a row, not an error. */
async function sessions(deps: MethodDeps, params: Params): Promise<Record<string, unknown>> {
  const { naming, peers } = deps;
  const one = params['host'] === undefined || params['host'] === null ? undefined : naming.host(params['host']);
  const wanted = one === undefined ? [naming.host('Localhost'), ...peers.all().map((peer) => naming.host(peer.hostId))] : [one];
  return { hosts: await Promise.all(wanted.map((host) => sessionsOf(deps, host))) };
}

/** One host's row within SESSIONS_TIMEOUT_MS, whatever becomes of the link: who hangs delays no other row. */
async function sessionsOf(deps: MethodDeps, host: ResolvedHost): Promise<SessionHost> {
  const { discovery, clock, self } = deps;
  const head = { host: host.name, host_id: host.local ? self : host.id };
  try {
    const list = await unlessLate(clock, SESSIONS_TIMEOUT_MS, host.local ? discovery.local() : discovery.of(host.id, 0));
    if (list === LATE) throw new AxError('timeout', `${host.name} gave no answer within ${SESSIONS_TIMEOUT_MS / 1000} s`);
    const warnings = list.silent.map((harness) => `${harness} gave no answer there: what is listed of it is what was last seen`);
    return { ...head, state: 'ok', error: null, sessions: list.sessions.map(sessionRow), warnings };
  } catch (error) {
    const failed = unlisted(toAxError(error), host.name, self);
    const state = failed.code === 'update_required' || failed.code === 'unsupported' ? failed.code : 'unavailable';
    return { ...head, state, error: errorBody(failed), sessions: [], warnings: [] };
  }
}

/** Why a host told no list, in words: of a refusal only the code came. A missing right is told with what its owner would type there. */
function unlisted(error: AxError, host: string, self: HostId): AxError {
  const refused = error.details?.['refused'] !== undefined;
  if (error.code === 'grant_missing')
    return new AxError('grant_missing', `${host} does not allow this host to list its sessions`, {
      fix: 'owner',
      details: { command: `ax host grant ${self} read` },
    });
  if (!refused) return error;
  const { what } = explain({ code: error.code, message: error.message, at: 0 }, host, '');
  return new AxError(error.code, what, { ...(error.fix === undefined ? {} : { fix: error.fix }), details: { ...error.details } });
}

function sessionRow(session: HostSessions['sessions'][number]): SessionHost['sessions'][number] {
  return {
    harness: session.harness,
    session_id: session.sessionId,
    workspace: session.workspace,
    status: session.status,
    agent: session.agent,
    reachable: session.reachable,
    reason: session.reason,
    version: session.version,
    started_at: session.startedAt,
    status_since: session.statusSince,
    quiet: session.quiet,
    quiet_until: session.quietUntil,
  };
}

/** Waits until a message has reached a state, or can no longer, or for the time given (at most MAX_POLL_MS). */
async function wait(deps: MethodDeps, params: Params): Promise<Record<string, unknown>> {
  const { status, events, clock } = deps;
  const until = params['until'];
  if (until !== 'accepted' && until !== 'fetched') throw new AxError('invalid_argument', 'wait for accepted or fetched');
  const asked = params['timeout_ms'];
  if (typeof asked !== 'number' || !Number.isFinite(asked) || asked < 0) throw new AxError('invalid_argument', 'a wait has a time');
  const end = clock.monotonic() + Math.min(asked, MAX_POLL_MS);
  for (;;) {
    const now = status.message(params['id']);
    const accepted =
      now.side === 'local'
        ? !RECEIVER_ENDS.has(now.state as ReceiverState) || now.state === 'fetched'
        : now.state === 'accepted' || now.state === 'fetched';
    const reached = until === 'accepted' ? accepted : now.state === 'fetched';
    const over = !reached && SENDER_ENDS.has(now.state as SenderState);
    const left = end - clock.monotonic();
    if (reached || over || left <= 0) return { ...now, reached };
    await events.next(left);
    requireOpen(deps);
  }
}

/** The event log after `since` (or its newest entries), waiting up to `wait_ms` for something new. */
async function events(deps: MethodDeps, params: Params): Promise<Record<string, unknown>> {
  const limit = numberOf(params['limit'], 'a limit', 1, MAX_LIST_ROWS, 100);
  const waitMs = numberOf(params['wait_ms'], 'a wait', 0, MAX_POLL_MS, 0);
  const log = deps.events;
  if (params['since'] === undefined || params['since'] === null) {
    const rows = log.latest(limit);
    return { events: rows.map(eventRow), next_seq: rows.at(-1)?.seq ?? 0, oldest_seq: log.oldest() };
  }
  const since = numberOf(params['since'], 'a sequence', 0, Number.MAX_SAFE_INTEGER, 0);
  const end = deps.clock.monotonic() + waitMs;
  for (;;) {
    const rows = log.list(since, limit);
    const left = end - deps.clock.monotonic();
    if (rows.length > 0 || left <= 0) return { events: rows.map(eventRow), next_seq: rows.at(-1)?.seq ?? since, oldest_seq: log.oldest() };
    await log.next(left);
    requireOpen(deps);
  }
}

/** Ends a long poll when the daemon is about to stop. */
function requireOpen(deps: MethodDeps): void {
  if (!deps.isOpen()) throw new AxError('shutting_down', 'the daemon is stopping');
}

function numberOf(value: unknown, what: string, min: number, max: number, fallback: number): number {
  if (value === undefined || value === null) return fallback;
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < min || value > max)
    throw new AxError('invalid_argument', `${what} is a whole number from ${min} to ${max}`);
  return value;
}

/** Shows the channel for sandboxed sessions, or turns it `on` or `off`: that is a person's, never a session's. */
async function sandboxFetch(deps: MethodDeps, params: Params, actor: Actor): Promise<Record<string, unknown>> {
  const set = params['set'];
  if (set === undefined || set === null) return { ...deps.sandboxFetch.state() };
  if (set !== 'on' && set !== 'off') throw new AxError('invalid_argument', 'the channel for sandboxed sessions is set to on or off');
  if (actor.session !== null)
    throw new AxError('invalid_state', 'the channel for sandboxed sessions is turned on and off by a person, not from a session', {
      fix: 'the owner of the host runs it in a terminal of theirs',
    });
  return { ...(await deps.sandboxFetch.set(set === 'on')) };
}
