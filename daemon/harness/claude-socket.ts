/**
 * One frame into a session's inbox socket: its exact form, and the one attempt to write it.
 *
 * Owns what ax says to Claude Code: one JSON line per connection, without an auth line and without a claimed permission
 * mode, bound to one conversation by `session_id`. Nothing ever comes back on this connection; what the session says later
 * arrives at a reply socket (claude-replies.ts).
 */
import { createConnection } from 'node:net';
import type { Clock } from '../clock/clock.ts';
import { errorCode } from './places.ts';
import type { Notice, NoticeResult } from './harness.ts';

/** How long the session may take to read the frame and close, ms. */
const WRITE_LIMIT_MS = 3000;

/**
 * The line for `notice` to the conversation `sessionId`. The wrapper names no reply address, which would invite the model to
 * answer there; the frame does, so that the session's program can tell what became of the notice.
 */
export function noticeLine(notice: Notice, sessionId: string, replySocket: string | undefined): string {
  const frame = {
    type: 'user',
    msgV: 1,
    msg_id: notice.id,
    ...(replySocket === undefined ? {} : { from: `uds:${replySocket}` }),
    session_id: sessionId,
    priority: 'next',
    message: { role: 'user', content: `<cross-session-message from-name="ax">\n${notice.text}\n</cross-session-message>` },
  };
  return `${JSON.stringify(frame)}\n`;
}

/** The words for each way a write can fail, fixed. */
export const WRITE_FAILURES = {
  ENOENT: 'session is gone',
  ECONNREFUSED: 'session is gone',
  EACCES: 'socket refused us',
  EPIPE: 'session closed the connection',
  ECONNRESET: 'session closed the connection',
} as const;

function failureOf(code: string): string {
  return Object.hasOwn(WRITE_FAILURES, code) ? WRITE_FAILURES[code as keyof typeof WRITE_FAILURES] : 'session does not answer';
}

/**
 * Writes `line` and closes: `written` when every byte left and the session closed without an error, `failed` otherwise.
 * A session that took the bytes but does not close in time (stopped, say) will read them when it goes on: `written`.
 */
export function writeLine(path: string, line: string, clock: Clock, signal: AbortSignal): Promise<NoticeResult> {
  return new Promise((resolve) => {
    let isFlushed = false;
    const socket = createConnection({ path });
    const end = (result: NoticeResult): void => {
      cancelLimit();
      signal.removeEventListener('abort', abort);
      socket.destroy();
      resolve(result);
    };
    const giveUp = (why: string): void =>
      end(isFlushed ? { outcome: 'written', detail: 'session has not closed the connection' } : { outcome: 'failed', detail: why });
    const abort = (): void => giveUp('daemon is stopping');
    const cancelLimit = clock.after(WRITE_LIMIT_MS, () => giveUp('session does not answer'));
    socket.on('error', (error) => end({ outcome: 'failed', detail: failureOf(errorCode(error)) }));
    socket.once('finish', () => {
      isFlushed = true;
    });
    socket.once('close', () => end(isFlushed ? { outcome: 'written' } : { outcome: 'failed', detail: 'session closed the connection' }));
    socket.resume(); // the session never writes; without a reader its close would not be seen
    socket.once('connect', () => socket.end(line, 'utf8'));
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
  });
}
