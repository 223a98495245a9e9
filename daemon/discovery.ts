/**
 * Discovery: the live sessions of this host over all harnesses, and the lists other hosts give of theirs.
 *
 * Owns no durable state. Local lists come up from the harness adapters; a remote list is asked for with a bound and kept for
 * a minute. Only public facts leave: no sockets, tokens or previews. Lists start and resume nothing.
 */
import type { HarnessName } from '../protocol/address.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { SESSIONS_CACHE_MS } from '../protocol/limits.ts';
import { readSessions, sessionsResult } from '../protocol/wire.ts';
import type { PublicAgent, PublicSession } from '../protocol/wire.ts';
import type { Fields } from '../protocol/codec.ts';
import type { Agents } from './agents.ts';
import type { Clock } from './clock/clock.ts';
import type { Harness, Notice, NoticeResult, Session, SessionClaim } from './harness/harness.ts';
import type { Log } from './log.ts';

export interface HostSessions {
  readonly sessions: readonly PublicSession[];
  readonly agents: readonly PublicAgent[];
}

/** A logical address of this host. */
export interface Address {
  readonly harness: HarnessName;
  readonly workspace: string;
}

export interface DiscoveryDeps {
  readonly harnesses: readonly Harness[];
  readonly agents: Agents;
  readonly clock: Clock;
  readonly log: Log;
  /** Asks a host for its list, bounded in time. */
  readonly ask: (host: HostId) => Promise<Fields>;
  /** Sessions came, went or changed at these addresses. */
  readonly onSessions: (changed: readonly Address[]) => void;
  readonly onNotice: (noticeId: string, result: NoticeResult) => void;
}

const ANSWER_AGE_MS = 1000;

export class Discovery {
  readonly #deps: DiscoveryDeps;
  readonly #local = new Map<string, readonly Session[]>();
  /** Monotonic ms of the last look at the harnesses. */
  #lookedAt = Number.NEGATIVE_INFINITY;
  readonly #cache = new Map<HostId, { readonly at: number; readonly list: HostSessions }>();

  constructor(deps: DiscoveryDeps) {
    this.#deps = deps;
  }

  /** Starts the adapters; one that cannot start is logged and stays out. */
  async start(): Promise<void> {
    for (const harness of this.#deps.harnesses) {
      try {
        await harness.start({
          onSessions: (sessions) => this.#take(harness.kind, sessions),
          onNotice: this.#deps.onNotice,
        });
      } catch (error) {
        this.#deps.log.error('harness adapter did not start', { harness: harness.kind, reason: toAxError(error).message });
      }
    }
  }

  #take(kind: string, sessions: readonly Session[]): void {
    const before = new Map((this.#local.get(kind) ?? []).map((session) => [session.sessionId, session]));
    const after = new Map(sessions.map((session) => [session.sessionId, session]));
    const changed = new Map<string, Address>();
    for (const session of [...before.values(), ...sessions]) {
      const { harness, workspace, sessionId } = session;
      if (JSON.stringify(before.get(sessionId)) !== JSON.stringify(after.get(sessionId)))
        changed.set(`${harness}\0${workspace}`, { harness, workspace });
    }
    this.#local.set(kind, sessions);
    if (changed.size > 0) this.#deps.onSessions([...changed.values()]);
  }

  async stop(): Promise<void> {
    for (const harness of this.#deps.harnesses) await harness.stop();
  }

  sessions(): Session[] {
    return [...this.#local.values()].flat();
  }

  /** Live sessions of one logical address, those that cannot be nudged too. */
  at(harness: string, workspace: string): Session[] {
    return this.sessions().filter((session) => session.harness === harness && session.workspace === workspace);
  }

  /** Is there a session at an address that can be nudged? What senders are told by `live_session`. */
  hasReachable(harness: string, workspace: string): boolean {
    return this.at(harness, workspace).some((session) => session.reachable);
  }

  /** Does this build reach sessions of that harness at all? */
  reaches(kind: string): boolean {
    return this.#deps.harnesses.some((harness) => harness.kind === kind);
  }

  isLive(sessionId: string): boolean {
    return this.sessions().some((session) => session.sessionId === sessionId);
  }

  /** The session a claim names, proved by its harness. AxError `unsupported`, `not_found`, `invalid_state`. */
  async prove(claim: SessionClaim): Promise<Session> {
    return this.#harness(claim.harness).prove(claim);
  }

  /** One attempt to nudge a session. */
  async notify(session: Session, notice: Notice): Promise<NoticeResult> {
    return this.#harness(session.harness).notify(session, notice);
  }

  #harness(kind: HarnessName): Harness {
    const harness = this.#deps.harnesses.find((one) => one.kind === kind);
    if (harness === undefined) throw new AxError('unsupported', `this build of ax does not reach ${kind} sessions`);
    return harness;
  }

  /** This host's public list, looked at afresh. */
  async local(): Promise<HostSessions> {
    for (const harness of this.#deps.harnesses) this.#take(harness.kind, await harness.refresh());
    this.#lookedAt = this.#deps.clock.monotonic();
    return this.#list();
  }

  #list(): HostSessions {
    const agents = this.#deps.agents.all();
    const sessions = this.sessions().map((session): PublicSession => ({
      harness: session.harness,
      sessionId: session.sessionId,
      workspace: session.workspace,
      status: session.status,
      agent: agents.find((agent) => agent.attachments.some((attachment) => attachment.sessionId === session.sessionId))?.name ?? null,
      reachable: session.reachable,
      reason: session.reason ?? null,
      version: session.version,
      startedAt: session.startedAt,
    }));
    return { sessions, agents: agents.map(({ name, harness, workspace }) => ({ name, harness, workspace })) };
  }

  /** The same for another host, encoded; a look younger than a second will do, however often one asks. */
  async localAnswer(): Promise<Uint8Array> {
    const isFresh = this.#deps.clock.monotonic() - this.#lookedAt < ANSWER_AGE_MS;
    const list = isFresh ? this.#list() : await this.local();
    return sessionsResult(list.sessions, list.agents);
  }

  /** Another host's list, at most `maxAgeMs` old, else asked for. AxError as the link and the other host answer. */
  async of(host: HostId, maxAgeMs: number = SESSIONS_CACHE_MS): Promise<HostSessions> {
    const kept = this.cached(host, maxAgeMs);
    if (kept !== undefined) return kept;
    const list = readSessions(await this.#deps.ask(host));
    this.#cache.set(host, { at: this.#deps.clock.monotonic(), list });
    return list;
  }

  /** What this host remembers of another's list, if it is young enough. */
  cached(host: HostId, maxAgeMs: number = SESSIONS_CACHE_MS): HostSessions | undefined {
    const kept = this.#cache.get(host);
    return kept !== undefined && this.#deps.clock.monotonic() - kept.at <= maxAgeMs ? kept.list : undefined;
  }
}
