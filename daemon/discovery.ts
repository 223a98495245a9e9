/**
 * Discovery: the live sessions of this host over all harnesses, and the lists other hosts give of theirs.
 *
 * Owns no durable state. Local lists come up from the harness adapters; a remote list is asked for with a bound and kept for
 * a minute. Only public facts leave: no sockets, tokens or previews. Lists start and resume nothing. Each adapter is waited for with a
 * bound of its own, so that one that hangs or fails delays neither a start, nor a list, nor the sessions of the others.
 */
import type { HarnessName } from '../protocol/address.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { HARNESS_LOOK_MS, HARNESS_STEP_MS, SESSIONS_CACHE_MS } from '../protocol/limits.ts';
import { readSessions, sessionsResult } from '../protocol/wire.ts';
import type { PublicAgent, PublicSession } from '../protocol/wire.ts';
import type { Fields } from '../protocol/codec.ts';
import type { Agents } from './agents.ts';
import type { Clock } from './clock/clock.ts';
import type { Files } from './files/files.ts';
import { LATE, unlessLate } from './clock/within.ts';
import type { Harness, Notice, NoticeResult, Session, SessionClaim } from './harness/harness.ts';
import type { Log } from './log.ts';

export interface HostSessions {
  readonly sessions: readonly PublicSession[];
  readonly agents: readonly PublicAgent[];
  /** Harnesses that gave no answer: what is listed of them is what was last seen. */
  readonly silent: readonly HarnessName[];
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
  readonly files: Files;
  /** For how many ms the agent of an address is quiet still, Infinity until told otherwise; 0: not, or there is none. */
  readonly quietMs: (harness: string, workspace: string) => number;
  /** Asks a host for its list, bounded in time. */
  readonly ask: (host: HostId) => Promise<Fields>;
  /** Sessions came, went or changed at these addresses. */
  readonly onSessions: (changed: readonly Address[]) => void;
  readonly onNotice: (noticeId: string, result: NoticeResult) => void;
}

const ANSWER_AGE_MS = 1000;
/** Why a session whose folder was moved under it is listed as one that cannot be sent to. */
const MOVED = 'its folder is gone or was moved';

export class Discovery {
  readonly #deps: DiscoveryDeps;
  readonly #local = new Map<string, readonly Session[]>();
  /** Monotonic ms of the last look at the harnesses. */
  #lookedAt = Number.NEGATIVE_INFINITY;
  /** Harnesses whose last look failed or hangs; those that hang still. */
  readonly #silent = new Set<HarnessName>();
  readonly #hung = new Set<HarnessName>();
  /** Folders of sessions that were not there at the last look: no message is taken for them. */
  #gone: ReadonlySet<string> = new Set();
  readonly #cache = new Map<HostId, { readonly at: number; readonly list: HostSessions }>();

  constructor(deps: DiscoveryDeps) {
    this.#deps = deps;
  }

  /** Starts the adapters; one that cannot start is logged and stays out, one that is not ready in time comes in when it is. */
  async start(): Promise<void> {
    await Promise.all(this.#deps.harnesses.map((harness) => this.#begin(harness)));
  }

  async #begin(harness: Harness): Promise<void> {
    const { clock, log, onNotice } = this.#deps;
    try {
      const started = harness.start({ onSessions: (sessions) => this.#take(harness.kind, sessions), onNotice });
      if ((await unlessLate(clock, HARNESS_LOOK_MS, started)) !== LATE) return;
      log.warn('harness adapter is slow to start', { harness: harness.kind });
      started.catch((error: unknown) =>
        log.error('harness adapter did not start', { harness: harness.kind, reason: toAxError(error).message }),
      );
    } catch (error) {
      log.error('harness adapter did not start', { harness: harness.kind, reason: toAxError(error).message });
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

  /** Stops the adapters; one that does not come to its end in time is left behind. */
  async stop(): Promise<void> {
    const { clock, harnesses, log } = this.#deps;
    await Promise.all(
      harnesses.map(async (harness) => {
        if ((await unlessLate(clock, HARNESS_LOOK_MS, harness.stop())) === LATE)
          log.warn('harness adapter did not stop', { harness: harness.kind });
      }),
    );
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

  /** The session a claim names, proved by its harness. AxError `unsupported`, `not_found`, `invalid_state`, `timeout`. */
  async prove(claim: SessionClaim): Promise<Session> {
    const proved = await unlessLate(this.#deps.clock, HARNESS_STEP_MS, this.#harness(claim.harness).prove(claim));
    if (proved === LATE) throw new AxError('timeout', `${claim.harness} did not answer in time whether this session lives; try again`);
    return proved;
  }

  /** One attempt to nudge a session; `unverified` while an adapter does not say in time, and what it says later comes as a later word. */
  async notify(session: Session, notice: Notice): Promise<NoticeResult> {
    const attempt = this.#harness(session.harness).notify(session, notice);
    const result = await unlessLate(this.#deps.clock, HARNESS_STEP_MS, attempt);
    if (result !== LATE) return result;
    attempt.then(
      (late) => this.#deps.onNotice(notice.id, late),
      (error: unknown) => this.#deps.log.error('notice failed late', { harness: session.harness, reason: toAxError(error).message }),
    );
    return { outcome: 'unverified', detail: `${session.harness} did not answer in time` };
  }

  #harness(kind: HarnessName): Harness {
    const harness = this.#deps.harnesses.find((one) => one.kind === kind);
    if (harness === undefined) throw new AxError('unsupported', `this build of ax does not reach ${kind} sessions`);
    return harness;
  }

  /** This host's public list, looked at afresh. */
  async local(): Promise<HostSessions> {
    await Promise.all(this.#deps.harnesses.map((harness) => this.#look(harness)));
    await unlessLate(this.#deps.clock, HARNESS_LOOK_MS, this.#lookForFolders());
    this.#lookedAt = this.#deps.clock.monotonic();
    return this.#list();
  }

  /** Looks at one harness. One that hangs or fails is silent and keeps what was last seen; it is not asked again before it has answered. */
  async #look(harness: Harness): Promise<void> {
    const { clock, log } = this.#deps;
    const { kind } = harness;
    if (this.#hung.has(kind)) return;
    try {
      const look = harness.refresh();
      const seen = await unlessLate(clock, HARNESS_LOOK_MS, look);
      if (seen !== LATE) return this.#saw(kind, seen);
      log.warn('harness gives no answer', { harness: kind });
      this.#silent.add(kind);
      this.#hung.add(kind);
      look.then(
        (late) => {
          this.#hung.delete(kind);
          this.#saw(kind, late);
        },
        () => void this.#hung.delete(kind),
      );
    } catch (error) {
      this.#silent.add(kind);
      log.warn('harness cannot be looked at', { harness: kind, reason: toAxError(error).message });
    }
  }

  async #lookForFolders(): Promise<void> {
    const folders = [...new Set(this.sessions().map((session) => session.workspace))];
    const found = await Promise.all(folders.map((folder) => this.#deps.files.canonicalFolder(folder)));
    this.#gone = new Set(folders.filter((_, index) => found[index] === undefined));
  }

  #saw(kind: HarnessName, sessions: readonly Session[]): void {
    this.#silent.delete(kind);
    this.#take(kind, sessions);
  }

  #list(): HostSessions {
    const agents = this.#deps.agents.all();
    const sessions = this.sessions().map((session): PublicSession => ({
      harness: session.harness,
      sessionId: session.sessionId,
      workspace: session.workspace,
      status: session.status,
      agent: agents.find((agent) => agent.attachments.some((attachment) => attachment.sessionId === session.sessionId))?.name ?? null,
      reachable: session.reachable && !this.#gone.has(session.workspace),
      reason: session.reason ?? (this.#gone.has(session.workspace) ? MOVED : null),
      version: session.version,
      startedAt: session.startedAt,
      statusSince: session.statusSince > 0 ? Math.floor(session.statusSince) : null,
      ...this.#quietOf(session),
    }));
    return {
      sessions,
      agents: agents.map(({ name, harness, workspace }) => ({ name, harness, workspace })),
      silent: [...this.#silent],
    };
  }

  #quietOf({ harness, workspace }: Session): Pick<PublicSession, 'quiet' | 'quietUntil'> {
    const left = this.#deps.quietMs(harness, workspace);
    const ends = left > 0 && Number.isFinite(left);
    return { quiet: left > 0, quietUntil: ends ? Math.floor(this.#deps.clock.now() + left) : null };
  }

  /** The same for another host, encoded: what it may read. A look younger than a second will do, however often one asks. */
  async localAnswer(mayRead: (workspace: string) => boolean): Promise<Uint8Array> {
    const isFresh = this.#deps.clock.monotonic() - this.#lookedAt < ANSWER_AGE_MS;
    const list = isFresh ? this.#list() : await this.local();
    const isRead = (row: { readonly workspace: string }): boolean => mayRead(row.workspace);
    return sessionsResult(list.sessions.filter(isRead), list.agents.filter(isRead), list.silent);
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
