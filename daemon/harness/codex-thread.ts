/**
 * What Codex's daemon says about itself and about one thread, reduced to the few fields ax uses, and the verdict on a thread.
 *
 * Owns the reading of foreign values (`thread/loaded/list`, `thread/read`, the user agent) and the filter: which threads are sessions, and
 * what stands against nudging one. Pure: folders are made canonical by the caller. Previews, names, paths of recordings and everything
 * else of a thread are not even looked at.
 * Invariant: no value makes anything here throw, and no text of Codex but a version of digits and dots gets out of it as words of ax.
 */
import { isAbsolute } from 'node:path';
import { hasUnsafeCharacters, parseSessionId } from '../../protocol/ids.ts';
import { MAX_PATH_BYTES } from '../../protocol/limits.ts';
import type { Session, SessionStatus } from './harness.ts';

/** The oldest version whose queue has the shape that ax speaks. */
const OLDEST: readonly [major: number, minor: number] = [0, 157];
const VERSION = /^[^/]{1,128}\/((\d{1,4})\.(\d{1,4})\.\d{1,6}(?:-[0-9a-z.]{1,24})?)(?:\s|$)/;
/** Ids on one page of the loaded list that are looked at. */
const MAX_PAGE = 1000;
const MAX_CURSOR_CHARS = 256;

/** The words for what stands against nudging a thread; a version may follow. Fixed: they stand in listings and cross to other hosts. */
export const REASONS = {
  unsupported: 'unsupported Codex version',
  input: 'takes no input from outside',
  workspace: 'workspace name not supported',
} as const;

/** Why a thread is no session at all. */
export type LeftOut = 'ephemeral' | 'sub-agent' | 'not loaded';

/** What `thread/read` says about one thread. Undefined fields were not there, or not of the kind they are known to be. */
export interface ThreadFacts {
  readonly id: string;
  /** As recorded: not canonical yet. */
  readonly cwd: string;
  /** A thread whose last turn failed says `systemError` and takes the next input at once: idle. */
  readonly state: 'idle' | 'active' | 'notLoaded' | 'other';
  /** Active, but only until its user answers something. */
  readonly isWaiting: boolean;
  readonly ephemeral: boolean | undefined;
  readonly hasParent: boolean | undefined;
  readonly takesInput: boolean | undefined;
  /** ms since 1970; 0 when it is not told. */
  readonly startedAt: number;
}

export interface DaemonVersion {
  /** Digits and dots, perhaps a pre-release; `unknown` when the daemon does not say. */
  readonly text: string;
  readonly isSupported: boolean;
}

/** The daemon's version out of its answer to `initialize`: the token behind the first slash of `userAgent`. */
export function parseVersion(answer: unknown): DaemonVersion {
  const agent = fieldsOf(answer)?.['userAgent'];
  const match = typeof agent === 'string' ? VERSION.exec(agent.slice(0, 512)) : null;
  if (match?.[1] === undefined) return { text: 'unknown', isSupported: false };
  const [major, minor] = [Number(match[2]), Number(match[3])];
  return { text: match[1], isSupported: major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1]) };
}

/** The reason of every thread of a daemon that ax does not understand. */
export function unsupported(version: string): string {
  return version === 'unknown' ? REASONS.unsupported : `${REASONS.unsupported} ${version}`;
}

/** One page of `thread/loaded/list`: ids and where to go on. Undefined when it has another shape; ids that are no UUIDs are dropped. */
export function parseLoaded(answer: unknown): { readonly ids: readonly string[]; readonly next: string | undefined } | undefined {
  const fields = fieldsOf(answer);
  const data = fields?.['data'];
  if (fields === undefined || !Array.isArray(data)) return undefined;
  const ids = data.slice(0, MAX_PAGE).flatMap((id) => parseThreadId(id) ?? []);
  return { ids, next: parseCursor(fields['nextCursor']) };
}

/** A thread's id, or undefined. */
export function parseThreadId(value: unknown): string | undefined {
  try {
    return parseSessionId(value);
  } catch {
    return undefined; // not a UUID: no thread of ours
  }
}

/** Where the next page begins; undefined at the end, and for anything that is no cursor. */
export function parseCursor(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' && value.length <= MAX_CURSOR_CHARS ? value : undefined;
}

/** The thread in an answer to `thread/read`; undefined when it has no id, no folder or no status ax knows how to read. */
export function parseThread(answer: unknown): ThreadFacts | undefined {
  const thread = fieldsOf(fieldsOf(answer)?.['thread']);
  const id = parseThreadId(thread?.['id']);
  const cwd = thread?.['cwd'];
  const status = fieldsOf(thread?.['status']);
  if (thread === undefined || id === undefined || typeof status?.['type'] !== 'string') return undefined;
  if (typeof cwd !== 'string' || !isAbsolute(cwd) || cwd.includes('\0') || Buffer.byteLength(cwd, 'utf8') > MAX_PATH_BYTES)
    return undefined;
  const flags = Array.isArray(status['activeFlags']) ? status['activeFlags'].slice(0, 16) : [];
  const type = status['type'];
  const state = type === 'systemError' ? 'idle' : type === 'idle' || type === 'active' || type === 'notLoaded' ? type : 'other';
  return {
    id,
    cwd,
    state,
    isWaiting: state === 'active' && (flags.includes('waitingOnApproval') || flags.includes('waitingOnUserInput')),
    ephemeral: truth(thread['ephemeral']),
    hasParent: parentage(thread),
    takesInput: truth(thread['canAcceptDirectInput']),
    startedAt: milliseconds(thread['createdAt']),
  };
}

/** Why a thread is no session of anybody's, or undefined when it is one. */
export function leftOut(thread: ThreadFacts): LeftOut | undefined {
  if (thread.state === 'notLoaded') return 'not loaded';
  if (thread.ephemeral === true) return 'ephemeral';
  return thread.hasParent === true ? 'sub-agent' : undefined;
}

/** What stands against nudging a thread that is a session, or undefined. */
export function faultOf(thread: ThreadFacts, version: DaemonVersion): string | undefined {
  const isKnown = thread.ephemeral !== undefined && thread.hasParent !== undefined && thread.takesInput !== undefined;
  if (!version.isSupported || !isKnown || thread.state === 'other') return unsupported(version.text);
  return thread.takesInput === true ? undefined : REASONS.input;
}

/** The public face of a thread; `workspace` is its folder made canonical. */
export function sessionOf(
  thread: ThreadFacts,
  seen: { readonly workspace: string; readonly statusSince: number; readonly version: string; readonly reason: string | undefined },
): Session {
  return {
    harness: 'codex',
    sessionId: thread.id,
    workspace: seen.workspace,
    status: statusOf(thread),
    statusSince: seen.statusSince,
    startedAt: thread.startedAt,
    version: seen.version,
    reachable: seen.reason === undefined,
    ...(seen.reason === undefined ? {} : { reason: seen.reason }),
    processKey: `codex:${thread.id}`,
  };
}

export function statusOf(thread: ThreadFacts): SessionStatus {
  if (thread.state === 'idle') return 'idle';
  if (thread.state === 'active') return thread.isWaiting ? 'waiting' : 'busy';
  return 'unknown';
}

/** A JSON object's fields, or undefined for everything else. */
export function fieldsOf(value: unknown): Record<string, unknown> | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : undefined;
}

/** A short text without anything unsafe, or undefined. */
export function tokenOf(value: unknown, maxChars: number): string | undefined {
  return typeof value === 'string' && value.length > 0 && value.length <= maxChars && !hasUnsafeCharacters(value) ? value : undefined;
}

/** A sub-agent names its parent, and its `source` is an object that says so. Undefined when the thread does not speak of it. */
function parentage(thread: Record<string, unknown>): boolean | undefined {
  const source = thread['source'];
  if (typeof source === 'object' && source !== null) return true;
  const parent = thread['parentThreadId'];
  if (typeof parent === 'string') return true;
  return typeof source === 'string' && parent === null ? false : undefined;
}

function truth(value: unknown): boolean | undefined {
  return typeof value === 'boolean' ? value : undefined;
}

function milliseconds(seconds: unknown): number {
  return typeof seconds === 'number' && seconds > 0 && seconds < 8.64e12 ? Math.floor(seconds * 1000) : 0;
}
