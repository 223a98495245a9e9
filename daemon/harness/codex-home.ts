/**
 * One Codex home: the one long-lived connection to its shared daemon, and the threads that are loaded there.
 *
 * Owns when to connect (again), which threads are looked at and when: at events, at a slow poll, when asked. A daemon that does not run is no
 * fault and costs a look at a path now and then. Every connection changes how that daemon names itself to its provider, so a connection is
 * kept, and a broken one is replaced after growing pauses. Never starts, stops or wakes anything of Codex.
 * Invariant: without a connection there are no sessions.
 */
import { setMaxListeners } from 'node:events';
import type { Clock, Random } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { unlessLate } from '../clock/within.ts';
import { ThreadQueue } from './codex-queue.ts';
import { CodexRpc } from './codex-rpc.ts';
import type { Answer } from './codex-rpc.ts';
import { findSocket } from './codex-socket.ts';
import { fieldsOf, parseThreadId, unsupported } from './codex-thread.ts';
import { MAX_THREADS, ThreadTable } from './codex-threads.ts';
import type { Verdict } from './codex-threads.ts';
import { SocketWatch } from './codex-watch.ts';
import type { Notice, NoticeResult, Session } from './harness.ts';

/** How a home stands: `absent` no daemon runs, `unsafe` its socket is not touched, `silent` it does not answer, `unsupported` not understood. */
export type HomeState = 'absent' | 'unsafe' | 'silent' | 'unsupported' | 'connected';

export interface HomeOptions {
  readonly home: string;
  readonly uid: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly signal: AbortSignal;
  readonly onChange: () => void;
  readonly onNotice: (noticeId: string, result: NoticeResult) => void;
}

/** The list of threads is asked for again this often, ms, and each time of so many everything is looked at: events tell of changes before. */
const POLL_MS = 10_000;
const POLLS_PER_LOOK = 6;
/** Pauses before connecting again, ms, doubling: where nothing runs, and where something goes wrong. */
const ABSENT_FIRST_MS = 250;
const ABSENT_CAP_MS = 5000;
const FAILED_FIRST_MS = 1000;
const FAILED_CAP_MS = 60_000;
/** A connection that lasted this long was a good one, ms. */
const GOOD_MS = 30_000;
/** Events come in bunches; they are looked at together. */
const EVENT_PAUSE_MS = 20;
/** Who asks for what lives now waits this long at most, ms. */
const GRACE_MS = 1500;

/** Lists in a row that were asked for in vain. */
const MAX_UNANSWERED = 2;

const THREAD_EVENTS = new Set(['thread/started', 'thread/status/changed', 'thread/closed', 'thread/archived', 'thread/unarchived']);

export class CodexHome {
  readonly home: string;
  readonly #options: HomeOptions;
  readonly #threads: ThreadTable;
  readonly #queues = new Map<string, ThreadQueue>();
  readonly #watch: SocketWatch;
  readonly #end = new AbortController();
  readonly #signal: AbortSignal;
  readonly #warned = new Set<string>();
  #state: HomeState = 'absent';
  #rpc: CodexRpc | undefined;
  #version = 'unknown';
  #connectedAt = 0;
  #polls = 0;
  #attempting: Promise<void> | undefined;
  #absences = 0;
  #failures = 0;
  #unanswered = 0;
  #cancelRetry: () => void = () => {};
  #cancelPoll: () => void = () => {};
  #cancelEvents: (() => void) | undefined;

  constructor(options: HomeOptions) {
    const { home, clock, log } = options;
    this.home = home;
    this.#options = options;
    this.#signal = AbortSignal.any([options.signal, this.#end.signal]);
    this.#watch = new SocketWatch(home, log, () => this.#onSocket());
    this.#threads = new ThreadTable({
      clock,
      request: (method, params) => this.#request(method, params),
      onShape: () => this.#markUnsupported(),
      onMany: () => this.#warnOnce('codex.too_many_threads', { limit: MAX_THREADS }),
      onList: (isAnswered) => this.#onList(isAnswered),
    });
    setMaxListeners(0, this.#signal); // one listener for everybody who waits
    this.#signal.addEventListener('abort', () => this.#stop(), { once: true });
  }

  get state(): HomeState {
    return this.#state;
  }

  /** The version of the daemon that is or was connected to. */
  get version(): string {
    return this.#version;
  }

  /** What is loaded there, as last seen; nothing without a connection. */
  sessions(): readonly Session[] {
    // The state follows the end of a connection a moment later.
    return this.#rpc?.isOpen === true ? this.#threads.sessions() : [];
  }

  /** Connects when there is something to connect to, and looks at everything; resolves after GRACE_MS at the latest. */
  async refresh(): Promise<void> {
    const work = this.#failures === 0 || this.#rpc !== undefined ? this.#lookAtAll() : Promise.resolve();
    await unlessLate(this.#options.clock, GRACE_MS, work);
  }

  /** What one thread is right now; `lost` when the daemon does not say. */
  async examine(threadId: string): Promise<Verdict> {
    // Also in the pause after a failure: a command of the thread may be what asks, so its daemon runs, or has just begun to.
    if (this.#rpc === undefined) await this.#connect();
    const verdict = await this.#threads.look(threadId);
    this.#options.onChange();
    return verdict;
  }

  /** One notice for one of its threads. Never rejects. */
  notify(session: Session, notice: Notice): Promise<NoticeResult> {
    const threadId = session.sessionId;
    let queue = this.#queues.get(threadId);
    if (queue === undefined) {
      queue = this.#openQueue(threadId);
      this.#queues.set(threadId, queue);
    }
    return queue.offer(notice, () => this.#against(session));
  }

  close(): void {
    this.#end.abort();
  }

  /** Resolves when no attempt to connect is under way any more. */
  async settled(): Promise<void> {
    await this.#attempting;
  }

  /** What stands against adding to a thread's queue this very moment. */
  async #against(session: Session): Promise<string | undefined> {
    if (this.#signal.aborted) return 'daemon is stopping';
    const verdict = await this.examine(session.sessionId);
    if (verdict === 'lost') return 'Codex does not answer';
    if (typeof verdict === 'string') return verdict === 'not loaded' || verdict === 'unknown' ? 'session is gone' : `thread is ${verdict}`;
    if (verdict.workspace !== session.workspace) return 'thread has moved to another folder';
    return verdict.reason;
  }

  #openQueue(threadId: string): ThreadQueue {
    const [oldest] = this.#queues;
    if (oldest !== undefined && this.#queues.size >= MAX_THREADS) {
      oldest[1].close(); // what becomes of its item is not told any more
      this.#queues.delete(oldest[0]);
    }
    const queue: ThreadQueue = new ThreadQueue({
      threadId,
      clock: this.#options.clock,
      request: (method, params) => this.#request(method, params),
      reconnect: async () => {
        if (this.#rpc === undefined) await this.#connect();
        return this.#rpc !== undefined;
      },
      onUnsupported: () => {
        const words = this.#markUnsupported();
        this.#options.onChange(); // no look follows that would tell of it
        return words;
      },
      onNotice: this.#options.onNotice,
      onEmpty: () => {
        if (this.#queues.get(threadId) === queue) this.#queues.delete(threadId);
      },
    });
    return queue;
  }

  #request(method: Parameters<CodexRpc['request']>[0], params: object): Promise<Answer> {
    return this.#rpc?.request(method, params) ?? Promise.resolve({ kind: 'lost', wasSent: false });
  }

  async #lookAtAll(): Promise<void> {
    if (this.#rpc === undefined) return this.#connect(); // looks at everything itself
    this.#threads.wantAll();
    await this.#lookAtWanted();
  }

  async #lookAtWanted(): Promise<void> {
    await this.#threads.work();
    if (!this.#signal.aborted) this.#options.onChange();
  }

  /** One attempt at a time; who comes in between waits for that one. Never rejects. */
  #connect(): Promise<void> {
    this.#attempting ??= this.#attempt().finally(() => {
      this.#attempting = undefined;
    });
    return this.#attempting;
  }

  async #attempt(): Promise<void> {
    this.#cancelRetry();
    if (this.#signal.aborted) return;
    this.#watch.set();
    const { clock, uid } = this.#options;
    const found = await findSocket(this.home, uid);
    if (found === 'absent') return this.#without('absent');
    if ('fault' in found) return this.#without('unsafe', found.fault);
    const end = new AbortController(); // the connection's own: an event after its end finds nobody
    const rpc = await CodexRpc.open(found.target, {
      clock,
      signal: AbortSignal.any([this.#signal, end.signal]),
      onNotification: (method, params) => this.#onNotification(method, params),
      onClose: () => {
        end.abort();
        this.#onClose();
      },
    });
    if (rpc === 'absent') return this.#without('absent');
    if (rpc === 'silent' || !rpc.isOpen) return this.#without('silent');
    await this.#adopt(rpc);
  }

  async #adopt(rpc: CodexRpc): Promise<void> {
    const { clock, log } = this.#options;
    this.#rpc = rpc;
    this.#version = rpc.version.text;
    this.#watch.clear();
    this.#connectedAt = clock.monotonic();
    this.#absences = 0;
    this.#unanswered = 0;
    log.info('codex.connected', { home: this.home, version: rpc.version.text });
    this.#threads.begin(rpc.version);
    if (rpc.version.isSupported) this.#state = 'connected';
    else this.#markUnsupported();
    await this.#lookAtWanted();
    if (this.#rpc !== rpc || this.#signal.aborted) return;
    for (const queue of this.#queues.values()) queue.nudge();
    this.#armPoll();
  }

  /** There is no connection; the next attempt comes after a pause. */
  #without(state: Exclude<HomeState, 'connected' | 'unsupported'>, fault?: string): void {
    if (this.#signal.aborted) return;
    this.#state = state;
    if (state === 'absent') {
      this.#absences += 1;
      this.#failures = 0;
      this.#warned.clear();
      this.#retryIn(doubled(ABSENT_FIRST_MS, this.#absences, ABSENT_CAP_MS));
    } else {
      this.#failures += 1;
      this.#warnOnce(`codex.${state}`, { reason: fault });
      this.#retryIn(this.#failurePause());
    }
    this.#options.onChange();
  }

  #onClose(): void {
    if (this.#rpc === undefined || this.#rpc.isOpen) return; // not ours (any more)
    const wasGood = this.#options.clock.monotonic() - this.#connectedAt >= GOOD_MS;
    this.#rpc = undefined;
    this.#cancelPoll();
    this.#cancelEvents?.();
    this.#cancelEvents = undefined;
    if (this.#signal.aborted) return;
    this.#options.log.info('codex.disconnected', { home: this.home });
    if (wasGood) this.#failures = 0;
    else this.#failures += 1;
    this.#state = 'absent'; // until the next attempt says otherwise
    this.#retryIn(wasGood || this.#failures === 1 ? 0 : this.#failurePause());
    this.#options.onChange();
  }

  /** A daemon that hangs is as good as none: the connection goes, and with it what was last seen. */
  #onList(isAnswered: boolean): void {
    this.#unanswered = isAnswered ? 0 : this.#unanswered + 1;
    if (this.#unanswered >= MAX_UNANSWERED) this.#rpc?.close();
  }

  #failurePause(): number {
    const jitter = 0.75 + ((this.#options.random.bytes(1)[0] ?? 0) / 255) * 0.5;
    return doubled(FAILED_FIRST_MS, this.#failures, FAILED_CAP_MS) * jitter;
  }

  #retryIn(ms: number): void {
    this.#cancelRetry();
    this.#cancelRetry = this.#options.clock.after(ms, () => void this.#connect());
  }

  /** Something has happened where the socket is, or will be. */
  #onSocket(): void {
    if (this.#signal.aborted || this.#rpc !== undefined || this.#state !== 'absent' || this.#failures > 0) return;
    this.#absences = 0;
    this.#retryIn(EVENT_PAUSE_MS);
  }

  #onNotification(method: string, params: unknown): void {
    if (!THREAD_EVENTS.has(method)) return;
    const fields = fieldsOf(params);
    const id = parseThreadId(method === 'thread/started' ? fieldsOf(fields?.['thread'])?.['id'] : fields?.['threadId']);
    if (id === undefined) return;
    this.#threads.want(id);
    this.#queues.get(id)?.nudge();
    this.#cancelEvents ??= this.#options.clock.after(EVENT_PAUSE_MS, () => {
      this.#cancelEvents = undefined;
      void this.#lookAtWanted();
    });
  }

  #armPoll(): void {
    this.#cancelPoll();
    this.#cancelPoll = this.#options.clock.after(POLL_MS, () => {
      const isGood = this.#options.clock.monotonic() - this.#connectedAt >= GOOD_MS;
      if (isGood) this.#failures = 0;
      this.#polls += 1;
      if (this.#polls % POLLS_PER_LOOK === 0) this.#threads.wantAll();
      else this.#threads.wantList();
      void this.#lookAtWanted().then(() => {
        if (this.#rpc !== undefined && !this.#signal.aborted) this.#armPoll();
      });
    });
  }

  /** The daemon speaks another dialect: its threads are listed where they can be, and nothing is added. Gives the words for it. */
  #markUnsupported(): string {
    const version = this.#version;
    if (this.#rpc !== undefined) {
      this.#state = 'unsupported';
      this.#threads.distrust();
      this.#warnOnce('codex.unsupported_version', { version });
    }
    return unsupported(version);
  }

  #warnOnce(event: string, fields: Record<string, string | number | undefined>): void {
    const key = JSON.stringify([event, fields]);
    if (!this.#warned.has(key)) this.#options.log.warn(event, { home: this.home, ...fields });
    this.#warned.add(key);
  }

  #stop(): void {
    this.#watch.clear();
    this.#cancelRetry();
    this.#cancelPoll();
    this.#cancelEvents?.();
    for (const queue of this.#queues.values()) queue.close();
    this.#rpc?.close();
  }
}

/** `first` doubled `times - 1` times, at most `cap`. */
function doubled(first: number, times: number, cap: number): number {
  return Math.min(cap, first * 2 ** Math.min(Math.max(times, 1) - 1, 16));
}
