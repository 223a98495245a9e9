/**
 * The Codex adapter: which threads of the shared Codex daemons live on this host, and one attempt to nudge one of them.
 *
 * Puts together the homes (codex-home.ts): one connection each. Threads outside a shared daemon (`--no-daemon`, `codex exec`) are not seen.
 * Decides nothing about when or whom: that is the notifier's. Starts, stops, resumes, steers and interrupts nothing.
 * Invariant: nothing is added to a queue unless the thread was read just before and is still what the session says.
 */
import { setMaxListeners } from 'node:events';
import { realpathSync } from 'node:fs';
import { resolve } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { isNoticeSafe } from '../../protocol/paths.ts';
import type { Clock, Random } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { CodexHome } from './codex-home.ts';
import type { HomeState } from './codex-home.ts';
import { parseThreadId, unsupported } from './codex-thread.ts';
import { isOwnFolder } from './places.ts';
import type { Harness, HarnessEvents, Notice, NoticeResult, Session, SessionClaim } from './harness.ts';

export interface CodexOptions {
  /** Codex homes (`$CODEX_HOME`, `~/.codex`); they need not exist yet. At most 8 are kept. */
  readonly codexHomes: readonly string[];
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  /** Whose sockets count; this process's user when left out. */
  readonly uid?: number;
}

export interface CodexHarness extends Harness {
  /** Looks into one more Codex home from now on; at most 8 are kept. */
  addHome(dir: string): void;
  /** How each home stands, for a person to read. */
  homes(): readonly { readonly home: string; readonly state: HomeState }[];
}

const MAX_HOMES = 8;

/** The adapter, not started yet. After `stop` it cannot be started again. */
export function createCodexHarness(options: CodexOptions): CodexHarness {
  return new Codex(options);
}

class Codex implements CodexHarness {
  readonly kind = 'codex' as const;
  readonly #options: CodexOptions;
  readonly #uid: number;
  readonly #abort = new AbortController();
  readonly #homes = new Map<string, CodexHome>();
  /** Homes that only claims have named so far, each with how many of these are not answered yet. */
  readonly #onTrial = new Map<CodexHome, number>();
  #events: HarnessEvents | undefined;
  #isReady = false;
  #published: string | undefined;
  #sessions: readonly Session[] = [];

  constructor(options: CodexOptions) {
    setMaxListeners(0, this.#abort.signal); // one listener for every home and connection
    this.#options = options;
    this.#uid = options.uid ?? process.getuid?.() ?? -1;
    for (const dir of options.codexHomes) this.#add(dir);
  }

  async start(events: HarnessEvents): Promise<void> {
    this.#events = events;
    await this.refresh();
  }

  async stop(): Promise<void> {
    this.#abort.abort();
    await Promise.all([...this.#homes.values()].map((home) => home.settled()));
  }

  sessions(): readonly Session[] {
    return this.#sessions;
  }

  async refresh(): Promise<readonly Session[]> {
    await Promise.all([...this.#homes.values()].map((home) => home.refresh()));
    this.#isReady = true;
    this.#publish();
    return this.#sessions;
  }

  homes(): readonly { readonly home: string; readonly state: HomeState }[] {
    return [...this.#homes.values()].map(({ home, state }) => ({ home, state }));
  }

  addHome(dir: string): void {
    const { home, isNew } = this.#add(dir);
    if (home !== undefined) this.#onTrial.delete(home);
    if (isNew && this.#events !== undefined) void home?.refresh();
  }

  async prove(claim: SessionClaim): Promise<Session> {
    if (claim.harness !== 'codex') throw new AxError('invalid_argument', 'this is not a Codex session');
    const threadId = parseThreadId(claim.sessionId);
    if (threadId === undefined) throw new AxError('not_found', "this shell's CODEX_THREAD_ID is no thread id");
    const own = claim.configDir !== undefined && (await isOwnFolder(claim.configDir, this.#uid)) ? this.#try(claim.configDir) : undefined;
    let refusal: AxError | undefined;
    for (const home of this.#homes.values()) {
      const session = await this.#proveIn(home, threadId);
      if (!(session instanceof AxError)) {
        for (const kept of [home, own]) if (kept !== undefined) this.#onTrial.delete(kept);
        return session;
      }
      if (refusal === undefined || session.code === 'invalid_state') refusal = session;
    }
    if (own !== undefined) this.#failed(own);
    throw refusal ?? notFound(threadId);
  }

  /** The home that a claim names; one that nobody else has named is on trial. */
  #try(dir: string): CodexHome | undefined {
    const { home, isNew } = this.#add(dir);
    const claims = home === undefined ? undefined : isNew ? 0 : this.#onTrial.get(home);
    if (home !== undefined && claims !== undefined) this.#onTrial.set(home, claims + 1);
    return home;
  }

  /** Claims that prove nothing leave nothing behind; the last of those that are under way at the same time decides. */
  #failed(home: CodexHome): void {
    const claims = this.#onTrial.get(home);
    if (claims === undefined) return;
    if (claims > 1) this.#onTrial.set(home, claims - 1);
    else {
      this.#onTrial.delete(home);
      this.#drop(home);
    }
  }

  async #proveIn(home: CodexHome, threadId: string): Promise<Session | AxError> {
    const verdict = await home.examine(threadId);
    if (typeof verdict === 'object') return verdict;
    if (verdict === 'ephemeral')
      return new AxError('invalid_state', `Codex thread ${threadId} is ephemeral: its queue takes nothing, so it cannot be an agent`);
    if (verdict === 'sub-agent')
      return new AxError('invalid_state', `Codex thread ${threadId} is a sub-agent: only the thread that started it can be an agent`);
    if (verdict === 'unsupported')
      return new AxError('invalid_state', `${unsupported(home.version)}: ax cannot read its threads`, { fix: 'codex update' });
    return notFound(threadId);
  }

  async notify(session: Session, notice: Notice): Promise<NoticeResult> {
    // Receipts name the notice only when its id is a UUID.
    if (parseThreadId(notice.id) === undefined) return failed('notice id is not a UUID');
    if (!notice.text.split('\n').every(isNoticeSafe)) return failed('notice text is not safe');
    if (this.#events === undefined || this.#abort.signal.aborted) return failed('daemon is stopping');
    const home = [...this.#homes.values()].find((one) => one.sessions().some((live) => live.sessionId === session.sessionId));
    return home === undefined ? failed('session is gone') : home.notify(session, notice);
  }

  #add(dir: string): { readonly home: CodexHome | undefined; readonly isNew: boolean } {
    const root = canonical(dir);
    const known = this.#homes.get(root);
    if (known !== undefined) return { home: known, isNew: false };
    const { clock, random, log } = this.#options;
    if (this.#homes.size >= MAX_HOMES) {
      log.warn('codex.too_many_homes', { dir: root });
      return { home: undefined, isNew: false };
    }
    const home = new CodexHome({
      home: root,
      uid: this.#uid,
      clock,
      random,
      log,
      signal: this.#abort.signal,
      onChange: () => this.#publish(),
      onNotice: (id, result) => this.#events?.onNotice(id, result),
    });
    this.#homes.set(root, home);
    return { home, isNew: true };
  }

  #drop(home: CodexHome): void {
    home.close();
    this.#homes.delete(home.home);
    this.#publish();
  }

  /** Tells the list when it differs from what was told. A thread that two homes show is one session. */
  #publish(): void {
    if (!this.#isReady || this.#abort.signal.aborted) return;
    const once = new Map<string, Session>();
    for (const home of this.#homes.values())
      for (const session of home.sessions()) if (!once.has(session.sessionId)) once.set(session.sessionId, session);
    const image = JSON.stringify([...once.values()]);
    this.#sessions = [...once.values()];
    if (image === this.#published) return;
    this.#published = image;
    this.#events?.onSessions(this.#sessions);
  }
}

function failed(detail: string): NoticeResult {
  return { outcome: 'failed', detail };
}

function notFound(threadId: string): AxError {
  const where = 'threads of codex exec and of codex --no-daemon are not seen';
  return new AxError('not_found', `no loaded Codex thread ${threadId} is known on this host (${where})`, {
    fix: `codex resume ${threadId}`,
  });
}

/** One home under several names is one home; one that does not exist yet stands as it was named. */
function canonical(dir: string): string {
  try {
    return realpathSync(dir);
  } catch {
    return resolve(dir);
  }
}
