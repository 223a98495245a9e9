/**
 * The local API: every method name and the function that answers it, without any transport.
 *
 * Owns parameter checks that belong to no other part, and the shapes of answers (protocol/control.ts). Reading methods change
 * nothing. Waiting methods answer within MAX_POLL_MS, so that a client that is gone is noticed.
 */
import { METHODS } from '../../protocol/control.ts';
import type { AdminStatus, DaemonStatus, Method, SessionHost } from '../../protocol/control.ts';
import { AxError, errorBody, toAxError } from '../../protocol/errors.ts';
import { fingerprint } from '../../protocol/identity.ts';
import type { HostId } from '../../protocol/ids.ts';
import { MAX_LIST_ROWS, MAX_POLL_MS } from '../../protocol/limits.ts';
import type { AxCommand } from '../../protocol/notice.ts';
import { RECEIVER_ENDS, SENDER_ENDS } from '../../protocol/states.ts';
import type { ReceiverState, SenderState } from '../../protocol/states.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../protocol/version.ts';
import type { Actor } from '../addressing.ts';
import type { Agents } from '../agents.ts';
import type { Clock } from '../clock/clock.ts';
import type { Discovery, HostSessions } from '../discovery.ts';
import type { Events } from '../events.ts';
import type { Exchange } from '../exchange.ts';
import type { Greeting } from '../greeting.ts';
import type { Inbox } from '../inbox.ts';
import type { Link } from '../link/link.ts';
import type { Naming } from '../naming.ts';
import type { Outbox } from '../outbox.ts';
import type { Pairing } from '../pairing.ts';
import type { Peers } from '../peers.ts';
import type { Pickup } from '../pickup.ts';
import type { Registration } from '../registration.ts';
import type { Router } from '../router.ts';
import { eventRow } from '../status.ts';
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
  readonly registration: Registration;
  readonly pickup: Pickup;
  readonly router: Router;
  readonly status: Status;
  readonly exchange: Exchange;
  /** Where others are told to dial this host. */
  readonly ownAddresses: () => readonly string[];
  readonly daemonStatus: () => DaemonStatus;
  /** False once the daemon is about to stop. */
  readonly isOpen: () => boolean;
  readonly onStop: () => void;
}

/** Builds the table; its keys are exactly METHODS. */
export function makeMethods(deps: MethodDeps): Record<Method, Handler> {
  const { registration, pickup, router, status, pairing, naming, daemonStatus } = deps;
  const table: Record<Method, Handler> = {
    'daemon.hello': async () => ({ version: AX_VERSION, protocol: CONTROL_PROTOCOL, host_id: deps.self, pid: daemonStatus().pid }),
    'daemon.stop': async () => {
      deps.onStop();
      return { stopping: true };
    },
    'daemon.status': async () => ({ ...daemonStatus() }),
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
    'agent.setup': async (params, actor) => ({
      ...(await registration.setup({ name: params['name'], workspace: params['workspace'] }, actor.session)),
    }),
    'agent.list': async () => ({ agents: registration.list() }),
    'agent.rename': async (params) => ({ agent: await registration.rename(params['name'], params['new_name']) }),
    'agent.remove': (params) => registration.remove(params['name']),
    'agent.sessions': (params) => sessions(deps, params),
    'message.send': async (params, actor) => ({ ...(await router.send(params, actor)) }),
    'message.reply': async (params, actor) => ({ ...(await router.reply(params, actor)) }),
    'message.list': (params) => status.list(params),
    'message.show': async (params) => ({ ...status.message(params['id']) }),
    'message.fetch': async (params, actor) => ({
      ...(await pickup.fetch({ id: params['id'], workspace: params['workspace'] }, actor.session)),
    }),
    'message.confirm': (params) => pickup.confirm({ id: params['id'], handOut: params['hand_out'] }),
    'message.wait': (params) => wait(deps, params),
    'admin.status': async () => ({ ...(status.overview() satisfies AdminStatus) }),
    'admin.message_status': async (params) => ({ ...status.message(params['id']) }),
    'admin.cancel': (params, actor) => cancel(deps, params, actor),
    'admin.events': (params) => events(deps, params),
  };
  if (Object.keys(table).length !== METHODS.length) throw new Error('a method is missing from the table');
  return table;
}

/** Session lists of one host or of all: asked side by side, each answering on its own; a host that is down is a row, not an error. */
async function sessions(deps: MethodDeps, params: Params): Promise<Record<string, unknown>> {
  const { naming, discovery, peers, self } = deps;
  const one = params['host'] === undefined || params['host'] === null ? undefined : naming.host(params['host']);
  const wanted = one === undefined ? [naming.host('Localhost'), ...peers.all().map((peer) => naming.host(peer.hostId))] : [one];
  const hosts = await Promise.all(
    wanted.map(async (host): Promise<SessionHost> => {
      const head = { host: host.name, host_id: host.local ? self : host.id };
      try {
        const list = host.local ? await discovery.local() : await discovery.of(host.id, 0);
        return { ...head, state: 'ok', error: null, sessions: list.sessions.map(sessionRow) };
      } catch (error) {
        const failed = toAxError(error);
        const state = failed.code === 'update_required' ? 'update_required' : failed.code === 'unsupported' ? 'unsupported' : 'unavailable';
        return { ...head, state, error: errorBody(failed), sessions: [] };
      }
    }),
  );
  return { hosts };
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

/** Withdraws a message. `cancelled`, `cancel_requested`, or AxError `too_late`. */
async function cancel(deps: MethodDeps, params: Params, actor: Actor): Promise<Record<string, unknown>> {
  const { naming, outbox, inbox, store, events, exchange, self } = deps;
  const found = naming.message(params['id'], 'any');
  if (found.sent === undefined)
    throw new AxError('invalid_state', 'only its sender can cancel a message; it was received here', {
      fix: 'ask on the host that sent it',
    });
  requireOwnMessage(deps, found.sent.agent, params, actor);
  const { id, host, local } = found.sent;
  const result = await store.write((tx) => {
    if (!local) {
      const { row, isNew } = outbox.cancel(tx, id);
      if (isNew)
        events.add(tx, {
          type: row.state === 'cancelled' ? 'message.cancelled' : 'message.cancel_requested',
          messageId: id,
          hostId: host,
          state: row.state,
        });
      return row.state === 'cancelled' ? 'cancelled' : 'cancel_requested';
    }
    const decided = inbox.cancel(tx, self, id, found.sent!.digest);
    if (decided.outcome === 'too_late')
      throw new AxError('too_late', decided.row?.state === 'fetched' ? 'the message was picked up' : 'the body was handed out', {
        details: { at: decided.row?.fetchedAt ?? decided.row?.handedOutAt ?? null, certain: decided.row?.state === 'fetched' },
      });
    if (decided.outcome === 'expired') throw new AxError('expired', 'the message has expired; there is nothing to cancel');
    outbox.settleLocal(tx, id, 'cancelled', 0);
    if (decided.isNew) events.add(tx, { type: 'message.cancelled', messageId: id, hostId: self, state: 'cancelled' });
    return 'cancelled';
  });
  if (!local) exchange.wake(host);
  return { message_id: id, state: result };
}

/** A guard-rail: a session's shell cancels what its own agent sent, and more only when told that it acts for the owner. */
function requireOwnMessage(deps: MethodDeps, sender: string | null, params: Params, actor: Actor): void {
  if (actor.session === null || params['as_owner'] === true) return;
  const own = deps.agents.ofSession(actor.session.session_id)?.name;
  if (own !== undefined && own === sender) return;
  throw new AxError('invalid_state', 'the message was not sent by the agent of this session', {
    fix: 'its sender or the owner of the host cancels it; add --as-owner when the owner told you to',
  });
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
