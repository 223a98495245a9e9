/**
 * The Claude Code adapter: which sessions live on this host, and one attempt to nudge one of them.
 *
 * Puts together the registry of live sessions, the write into a session's inbox, the reply sockets where it answers, and
 * the proof of a shell's claim. Decides nothing about when or whom: that is the notifier's. Starts, stops and configures
 * no session, and reads no key, transcript or setting of the user's.
 * Invariant: nothing is written unless the named conversation was seen alive just before, in the process it was seen in.
 */
import { setMaxListeners } from 'node:events';
import { dirname } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { parseSessionId } from '../../protocol/ids.ts';
import { isNoticeSafe } from '../../protocol/paths.ts';
import type { Clock, Random } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { keyOf } from './claude-listing.ts';
import type { Surroundings } from './claude-live.ts';
import { proveClaim } from './claude-prove.ts';
import { ClaudeRegistry } from './claude-registry.ts';
import { ReplySockets } from './claude-replies.ts';
import { noticeLine, writeLine } from './claude-socket.ts';
import type { Harness, HarnessEvents, Notice, NoticeResult, Session, SessionClaim } from './harness.ts';

export interface ClaudeOptions {
  /** Config roots (`~/.claude`, `$CLAUDE_CONFIG_DIR`); they need not exist yet. */
  readonly configDirs: readonly string[];
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  /** Whose files and sockets count; this process's user when left out. */
  readonly uid?: number;
  /** Where processes are looked up; `/proc` on Linux when left out. */
  readonly procRoot?: string;
}

export interface ClaudeHarness extends Harness {
  /** Looks into one more config root from now on; at most 32 are kept. */
  addConfigDir(dir: string): void;
}

/** The adapter, not started yet. After `stop` it cannot be started again. */
export function createClaudeHarness(options: ClaudeOptions): ClaudeHarness {
  return new Claude(options);
}

class Claude implements ClaudeHarness {
  readonly kind = 'claude' as const;
  readonly #around: Surroundings;
  readonly #log: Log;
  readonly #abort = new AbortController();
  readonly #registry: ClaudeRegistry;
  readonly #replies: ReplySockets;
  #events: HarnessEvents | undefined;

  constructor(options: ClaudeOptions) {
    const { clock, log, random } = options;
    const signal = this.#abort.signal;
    setMaxListeners(0, signal); // one listener for every check under way
    this.#log = log;
    this.#around = {
      clock,
      uid: options.uid ?? process.getuid?.() ?? -1,
      procRoot: options.procRoot ?? (process.platform === 'linux' ? '/proc' : undefined),
    };
    const around = this.#around;
    this.#registry = new ClaudeRegistry(
      { around, random, log, signal, onSessions: (sessions) => this.#onSessions(sessions) },
      options.configDirs,
    );
    this.#replies = new ReplySockets({ around, random, log, signal, onNotice: (id, result) => this.#events?.onNotice(id, result) });
  }

  async start(events: HarnessEvents): Promise<void> {
    this.#events = events;
    await this.#registry.start();
  }

  async stop(): Promise<void> {
    this.#abort.abort();
    await this.#registry.settled();
    await this.#replies.close();
  }

  sessions(): readonly Session[] {
    return this.#registry.sessions;
  }

  refresh(): Promise<readonly Session[]> {
    return this.#registry.refresh();
  }

  addConfigDir(dir: string): void {
    if (!this.#registry.addRoot(dir)) this.#log.warn('claude.too_many_roots', { dir });
    else if (this.#events !== undefined) void this.#registry.refresh();
  }

  async prove(claim: SessionClaim): Promise<Session> {
    if (claim.harness !== 'claude') throw new AxError('invalid_argument', 'this is not a Claude Code session');
    let proof;
    try {
      proof = await proveClaim(claim, this.#registry.roots, this.#around, this.#abort.signal);
    } catch (error) {
      const isKnown = this.#registry.sessions.some((session) => session.sessionId === claim.sessionId);
      if (!(error instanceof AxError) || error.code !== 'not_found' || !isKnown) throw error;
      throw new AxError('invalid_state', "this shell's CLAUDE_PID is not the process of its session", {
        details: { disagrees: ['CLAUDE_PID'] },
      });
    }
    const { record, root } = proof;
    if (!this.#registry.addRoot(root)) this.#log.warn('claude.too_many_roots', { dir: root });
    const live = await this.#registry.refresh();
    const session = live.find((one) => one.processKey === keyOf(record) && one.sessionId === record.sessionId);
    if (session === undefined) throw new AxError('not_found', `the Claude Code session of process ${claim.pid} has just ended`);
    return session;
  }

  async notify(session: Session, notice: Notice): Promise<NoticeResult> {
    parseSessionId(notice.id); // receipts name the notice only when its id is a UUID
    const { signal } = this.#abort;
    if (!notice.text.split('\n').every(isNoticeSafe)) return failed('notice text is not safe');
    if (this.#events === undefined || signal.aborted) return failed('daemon is stopping');
    const seen = await this.#registry.recheck(session.processKey);
    if (seen === undefined) return failed('session is gone');
    const { record, reason } = seen;
    if (!seen.fresh) return failed('session record is not readable');
    if (record.sessionId !== session.sessionId) return failed('conversation has ended');
    if (record.workspace !== session.workspace) return failed('session has moved to another folder');
    if (reason !== undefined || record.socket === undefined) return failed(reason ?? 'messaging off or too old');
    const replySocket = await this.#replies.ensure(dirname(record.socket));
    this.#replies.expect(notice.id);
    const result = await writeLine(record.socket, noticeLine(notice, record.sessionId, replySocket), this.#around.clock, signal);
    if (result.outcome === 'failed') {
      this.#replies.forget(notice.id);
      return result;
    }
    // A receipt may be here before the session has closed the connection; the caller hears of it after this result.
    this.#around.clock.after(0, () => this.#replies.release(notice.id));
    return replySocket === undefined ? { outcome: result.outcome, detail: 'status unknown' } : result;
  }

  #onSessions(sessions: readonly Session[]): void {
    for (const folder of this.#registry.socketFolders()) void this.#replies.sweep(folder);
    this.#events?.onSessions(sessions);
  }
}

function failed(detail: string): NoticeResult {
  return { outcome: 'failed', detail };
}
