/**
 * Simulated agent sessions: scripted agents of one host that outlive its daemon, and the harness seam one daemon run sees them by.
 *
 * `SimAgents` owns the truth (which sessions live, what each does with a notice); `SimHarness` owns what one run of the daemon
 * knows of it: the list lags behind, receipts reach only the run that sent the notice. Invariant: everything that happens
 * happens in the world's event queue, chosen by its seed.
 */
import type {
  Harness,
  HarnessEvents,
  HarnessKind,
  Notice,
  NoticeResult,
  Session,
  SessionClaim,
  SessionStatus,
} from '../../daemon/harness/harness.ts';
import { AxError } from '../../protocol/errors.ts';
import { makeUuid } from '../../protocol/ids.ts';
import type { World } from './world.ts';

/**
 * What a session does with a notice: acts on it when idle; holds it for its user, who never answers, or approves, denies or lets
 * it lapse after `decideMs`; refuses it; loses it silently; ends just before the write, or after it without having acted. Threads of
 * Codex only (codex.ts): the answer to the add is lost; its user interrupts it and goes on after `decideMs`; it unloads, and is resumed
 * after `decideMs`.
 */
export type Behaviour =
  | 'acts'
  | 'holds'
  | 'approves'
  | 'denies'
  | 'lapses'
  | 'blocks'
  | 'drops'
  | 'dies_before'
  | 'dies_after'
  | 'unsure'
  | 'interrupted'
  | 'unloads';

/** An idle thread of Codex takes what is in its queue after this, ms. */
const TAKE_MS = 5;
/** A turn is over after this even when a command of it never comes back, because the daemon it asked has crashed, ms. */
const MAX_TURN_MS = 30_000;

export interface SimSessionOptions {
  readonly workspace: string;
  readonly status?: SessionStatus;
  readonly behaviour?: Behaviour;
  /** From the write to the model's act, when idle, ms; large for an agent that answers late. Default 100. */
  readonly actDelayMs?: number;
  readonly decideMs?: number;
  /** Set: listed, never nudged. */
  readonly unreachable?: string;
}

/** One scripted session; `sessionId` changes when its conversation is cleared. */
export interface SimSession {
  readonly harness: HarnessKind;
  readonly workspace: string;
  readonly pid: number;
  readonly processKey: string;
  readonly startedAt: number;
  readonly socket: string;
  sessionId: string;
  status: SessionStatus;
  statusSince: number;
  behaviour: Behaviour;
  actDelayMs: number;
  decideMs: number;
  unreachable: string | undefined;
  isAlive: boolean;
  /** A thread of Codex whose user interrupted it: what is in its queue waits. */
  isPaused: boolean;
  /** False for a thread of Codex that is only stored: not listed, and its queue waits. */
  isLoaded: boolean;
  /** Notices it has read from its socket, or that are in its queue, and not yet acted on. */
  waiting: Notice[];
  /** Every notice that was written to it. */
  received: Notice[];
}

export class SimAgents {
  readonly world: World;
  readonly kind: HarnessKind;
  /** The model acts on a notice: the workload runs setup and fetch here. The session is busy until it resolves. */
  readonly #onAct: (session: SimSession, notice: Notice) => void | Promise<void>;
  readonly #watchers = new Set<() => void>();
  readonly #sessions: SimSession[] = [];
  #nextPid = 1000;

  constructor(world: World, onAct: (session: SimSession, notice: Notice) => void | Promise<void>, kind: HarnessKind = 'claude') {
    this.world = world;
    this.#onAct = onAct;
    this.kind = kind;
  }

  get live(): readonly SimSession[] {
    return this.#sessions.filter((session) => session.isAlive);
  }

  add(options: SimSessionOptions): SimSession {
    const pid = this.#nextPid++;
    const session: SimSession = {
      harness: this.kind,
      workspace: options.workspace,
      pid,
      processKey: `${pid}:${Math.floor(this.world.time) + 1}`,
      startedAt: this.#now(),
      socket: `/sim/${pid}.sock`,
      sessionId: this.#uuid(),
      status: options.status ?? 'idle',
      statusSince: this.#now(),
      behaviour: options.behaviour ?? 'acts',
      actDelayMs: options.actDelayMs ?? 100,
      decideMs: options.decideMs ?? 1000,
      unreachable: options.unreachable,
      isAlive: true,
      isPaused: false,
      isLoaded: true,
      waiting: [],
      received: [],
    };
    this.#sessions.push(session);
    this.changed();
    return session;
  }

  setStatus(session: SimSession, status: SessionStatus): void {
    if (session.status === status) return;
    session.status = status;
    session.statusSince = this.#now();
    this.changed();
    this.work(session);
  }

  /** The user starts over: the same process, another conversation; what it had queued is gone. */
  clear(session: SimSession): void {
    session.sessionId = this.#uuid();
    session.waiting = [];
    this.changed();
  }

  end(session: SimSession): void {
    session.isAlive = false;
    session.waiting = [];
    this.changed();
  }

  /** The user of a thread interrupts it: a running turn ends, and its queue is paused. */
  interrupt(session: SimSession): void {
    session.isPaused = true;
    if (session.status === 'idle') this.changed();
    else this.setStatus(session, 'idle');
  }

  /** The user of a thread goes on: its queue runs again. */
  goOn(session: SimSession): void {
    session.isPaused = false;
    this.changed();
    this.work(session);
  }

  /** Nobody looks at a thread any more: only its stored form and its queue are left. */
  unload(session: SimSession): void {
    session.isLoaded = false;
    session.status = 'idle';
    this.changed();
  }

  /** Somebody resumes it. */
  load(session: SimSession): void {
    session.isLoaded = true;
    session.statusSince = this.#now();
    this.changed();
    this.work(session);
  }

  /** What the session's shell exports. */
  claim(session: SimSession): SessionClaim {
    if (this.kind === 'codex') return { harness: 'codex', sessionId: session.sessionId };
    return { harness: this.kind, sessionId: session.sessionId, pid: session.pid, socket: session.socket };
  }

  watch(onChange: () => void): () => void {
    this.#watchers.add(onChange);
    return () => void this.#watchers.delete(onChange);
  }

  changed(): void {
    for (const watcher of this.#watchers) watcher();
  }

  /** An idle session with something waiting acts on it, one after the other. */
  work(session: SimSession): void {
    const mayTake = (): boolean => session.isAlive && session.isLoaded && !session.isPaused && session.status === 'idle';
    if (!mayTake() || session.waiting.length === 0) return;
    const { sessionId } = session;
    const isQueue = this.kind === 'codex'; // taken at once, and acted on within the turn; else the turn begins with the act
    this.world.after(isQueue ? TAKE_MS : session.actDelayMs, () => {
      if (!mayTake() || session.sessionId !== sessionId) return;
      const notice = session.waiting.shift();
      if (notice === undefined) return;
      this.setStatus(session, 'busy');
      let isOver = false;
      const end = (): void => {
        if (!isOver && session.isAlive) this.setStatus(session, 'idle');
        isOver = true;
      };
      const act = (): void => {
        this.world.after(MAX_TURN_MS, end);
        const isDropped = isQueue && session.behaviour === 'drops';
        Promise.resolve(isDropped ? undefined : this.#onAct(session, notice)).then(end, (error: unknown) => this.world.faults.push(error));
      };
      if (!isQueue) return act();
      this.world.after(session.actDelayMs, () => (session.isAlive && session.status === 'busy' ? act() : end()));
    });
  }

  #now(): number {
    return 1_790_000_000_000 + Math.floor(this.world.time);
  }

  #uuid(): string {
    return makeUuid(this.world.randomness().bytes(16));
  }
}

export interface SimHarnessOptions {
  /** False once the daemon that uses this harness has crashed. */
  readonly alive: () => boolean;
  /** How far the list lags behind the truth, ms. Default 30. */
  readonly lagMs?: number;
}

export class SimHarness implements Harness {
  readonly kind: HarnessKind;
  protected readonly agents: SimAgents;
  protected readonly options: SimHarnessOptions;
  protected events: HarnessEvents | undefined;
  #seen: readonly Session[] = [];
  #published = '';
  #unwatch: () => void = () => {};

  constructor(agents: SimAgents, options: SimHarnessOptions) {
    this.agents = agents;
    this.options = options;
    this.kind = agents.kind;
  }

  start(events: HarnessEvents): Promise<void> {
    this.events = events;
    this.#unwatch = this.agents.watch(() => this.later(this.options.lagMs ?? 30, () => this.look()));
    this.look();
    return Promise.resolve();
  }

  stop(): Promise<void> {
    this.#unwatch();
    this.events = undefined;
    return Promise.resolve();
  }

  sessions(): readonly Session[] {
    return this.#seen;
  }

  async refresh(): Promise<readonly Session[]> {
    await this.delay(1);
    this.look();
    return this.#seen;
  }

  async prove(claim: SessionClaim): Promise<Session> {
    await this.delay(1);
    const session = this.agents.live.find((one) => one.pid === claim.pid);
    if (session === undefined || claim.harness !== this.kind) throw new AxError('not_found', 'no such live session');
    if (session.sessionId !== claim.sessionId) throw new AxError('invalid_state', 'the session id disagrees');
    if (session.socket !== claim.socket) throw new AxError('invalid_state', 'the messaging socket disagrees');
    this.look();
    return this.face(session);
  }

  async notify(session: Session, notice: Notice): Promise<NoticeResult> {
    const { world } = this.agents;
    await this.delay(world.between(1, 5));
    const target = this.agents.live.find((one) => one.processKey === session.processKey);
    if (this.events === undefined || target === undefined) return { outcome: 'failed', detail: 'session is gone' };
    if (target.sessionId !== session.sessionId) return { outcome: 'failed', detail: 'conversation has ended' };
    if (target.unreachable !== undefined) return { outcome: 'failed', detail: target.unreachable };
    if (target.behaviour === 'dies_before') {
      this.agents.end(target);
      return { outcome: 'failed', detail: 'session is gone' };
    }
    target.received.push(notice);
    this.#react(target, notice);
    return { outcome: 'written' };
  }

  #react(target: SimSession, notice: Notice): void {
    const { behaviour, sessionId } = target;
    const take = (): void => {
      target.waiting.push(notice);
      this.agents.work(target);
    };
    switch (behaviour) {
      case 'acts':
        return take();
      case 'blocks':
        return this.#say(20, notice, { outcome: 'blocked' });
      case 'dies_after':
        this.agents.world.after(10, () => this.agents.end(target));
        return;
      case 'holds':
        return this.#say(20, notice, { outcome: 'held' });
      case 'denies':
      case 'lapses':
        this.#say(20, notice, { outcome: 'held' });
        return this.#say(target.decideMs, notice, { outcome: behaviour === 'denies' ? 'denied' : 'lapsed' });
      case 'approves':
        this.#say(20, notice, { outcome: 'held' });
        this.agents.world.after(target.decideMs, () => {
          if (target.isAlive && target.sessionId === sessionId) take();
        });
        return this.#say(target.decideMs, notice, { outcome: 'approved' });
      default:
        return;
    }
  }

  /** A receipt: it reaches only the daemon run that sent the notice. */
  #say(afterMs: number, notice: Notice, result: NoticeResult): void {
    this.later(afterMs, () => this.events?.onNotice(notice.id, result));
  }

  protected look(): void {
    this.#seen = this.agents.live.filter((session) => session.isLoaded).map((session) => this.face(session));
    const image = JSON.stringify(this.#seen);
    if (image === this.#published) return;
    this.#published = image;
    this.events?.onSessions(this.#seen);
  }

  protected face(session: SimSession): Session {
    return {
      harness: this.kind,
      sessionId: session.sessionId,
      workspace: session.workspace,
      status: session.status,
      statusSince: session.statusSince,
      startedAt: session.startedAt,
      version: 'sim',
      reachable: session.unreachable === undefined,
      ...(session.unreachable === undefined ? {} : { reason: session.unreachable }),
      processKey: session.processKey,
    };
  }

  protected later(ms: number, run: () => void): void {
    this.agents.world.after(ms, () => {
      if (this.options.alive() && this.events !== undefined) run();
    });
  }

  /** Never resolves in a daemon that has crashed meanwhile. */
  protected delay(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.agents.world.after(ms, () => {
        if (this.options.alive()) resolve();
      });
    });
  }
}
