/**
 * The seam to a harness (Claude Code, Codex): which sessions live now, and one attempt to nudge one of them.
 *
 * Owns the interface only. Real: claude.ts, codex.ts. Simulated: scripted agents that are idle, busy, hold, drop, die or answer late.
 * The adapter makes one attempt and reports what the harness said; when and whom to nudge is the notifier's. Sockets,
 * tokens and private fields never pass this seam.
 */
import type { NoticeOutcome } from '../../protocol/states.ts';

export type HarnessKind = 'claude' | 'codex';
export type SessionStatus = 'idle' | 'busy' | 'waiting' | 'unknown';

/** One running conversation, public facts only. */
export interface Session {
  readonly harness: HarnessKind;
  /** The conversation's UUID; changes when the conversation is cleared. */
  readonly sessionId: string;
  /** Canonical working folder (real path); as recorded when the folder is gone. */
  readonly workspace: string;
  readonly status: SessionStatus;
  /** When `status` began, wall time in ms as the harness tells it; 0 when it does not. */
  readonly statusSince: number;
  readonly startedAt: number;
  readonly version: string;
  /** May it be nudged at all? When false, `reason` says why in a few words fixed by ax. */
  readonly reachable: boolean;
  readonly reason?: string;
  /** Stable while the same process lives: tells a cleared conversation (same process) from another session. */
  readonly processKey: string;
}

/** What a harness's shell exports about the session it belongs to; claims until proved. */
export interface SessionClaim {
  readonly harness: HarnessKind;
  readonly sessionId: string;
  /** The session's process; Codex exports none. */
  readonly pid?: number;
  /** The session's own socket; Codex exports none. */
  readonly socket?: string;
  /** The harness's own config folder as the shell sees it, when it is set there. */
  readonly configDir?: string;
}

/** One nudge: `id` is a UUID made by ax for this attempt, `text` the fixed sentence (protocol/notice.ts). */
export interface Notice {
  readonly id: string;
  readonly text: string;
}

export interface NoticeResult {
  readonly outcome: NoticeOutcome;
  /** A few words for the status page; fixed by ax, never from a peer. */
  readonly detail?: string;
}

export interface HarnessEvents {
  /** The whole list of live sessions, after every change (also the first look, even when empty). */
  onSessions(sessions: readonly Session[]): void;
  /**
   * What the harness said later about a notice. Claude Code: held, denied, lapsed, approved, blocked. Codex: left_queue (the thread took
   * it; nothing says that it was read), queue_paused (its user interrupted; it waits until they go on), in_queue (no longer paused).
   */
  onNotice(noticeId: string, result: NoticeResult): void;
}

export interface Harness {
  readonly kind: HarnessKind;
  start(events: HarnessEvents): Promise<void>;
  stop(): Promise<void>;
  /** The sessions as last seen. */
  sessions(): readonly Session[];
  /** Looks again at once and resolves with what is live now. */
  refresh(): Promise<readonly Session[]>;
  /**
   * Proves that a claim names a live session: every exported value agrees with the harness's own records. Resolves with the
   * session; rejects with AxError `not_found` (no such live session) or `invalid_state` (values disagree).
   */
  prove(claim: SessionClaim): Promise<Session>;
  /**
   * One attempt. Resolves `written`, `in_queue` (also when an earlier notice of ours still waits there and nothing was added: the outcomes
   * of that one are then told of this one too), `unverified` (it may have reached the session or not), or `failed` (nothing did); never
   * rejects for what the session does. The session is named by its id: when that conversation is gone, nothing is written.
   */
  notify(session: Session, notice: Notice): Promise<NoticeResult>;
}
