/**
 * Does the process behind a session record live, and may its socket be written to?
 *
 * Owns the liveness rule: the process is the one that wrote the record (start ticks, so that a reused pid never passes),
 * its socket and the socket's folder are ours alone, and it takes a connection. Every check is made anew each time.
 * Invariant: nothing is ever connected to that another account could have put in place of the session's socket.
 */
import type { Stats } from 'node:fs';
import { lstat, readFile } from 'node:fs/promises';
import { createConnection } from 'node:net';
import { dirname } from 'node:path';
import type { Clock } from '../clock/clock.ts';
import type { SessionRecord } from './claude-record.ts';
import { errorCode, MAX_SOCKET_PATH_BYTES } from './places.ts';

/** How long a session may take to accept a connection, ms. */
export const CONNECT_LIMIT_MS = 1000;
/** The only version of the inbox protocol ax speaks. */
const PEER_PROTOCOL = 1;

/** The words of every reason, fixed: they stand in listings and cross to other hosts. */
export const REASONS = {
  script: 'script session',
  off: 'messaging off or too old',
  protocol: 'protocol not supported',
  owner: 'socket owned by another user',
  link: 'socket is a symbolic link',
  type: 'socket path is not a socket',
  folder: 'socket folder open to other users',
  silent: 'does not answer',
  workspace: 'workspace name not supported',
} as const;
export type Reason = (typeof REASONS)[keyof typeof REASONS];

/** Where and as whom the checks look. `procRoot` is undefined where there is no /proc. */
export interface Surroundings {
  readonly clock: Clock;
  readonly uid: number;
  readonly procRoot: string | undefined;
}

/** `dead`: no session; otherwise live, and reachable unless a reason stands against it. */
export type Verdict = 'dead' | { readonly reason: Reason | undefined };

/** Judges one record now; takes at most CONNECT_LIMIT_MS and never throws. */
export async function judge(record: SessionRecord, around: Surroundings, signal: AbortSignal): Promise<Verdict> {
  if (!(await isProcessAlive(record, around.procRoot))) return 'dead';
  if (record.socket === undefined) return { reason: REASONS.off };
  const unsafe = await socketFault(record.socket, around.uid);
  if (unsafe === 'dead') return 'dead';
  if (unsafe !== undefined) return { reason: unsafe };
  const answer = await probe(record.socket, around.clock, signal);
  if (answer === 'refused') return 'dead';
  if (answer === 'silent') return { reason: REASONS.silent };
  if (record.peerProtocol !== PEER_PROTOCOL) return { reason: REASONS.protocol };
  if (record.entrypoint.startsWith('sdk-')) return { reason: REASONS.script };
  return { reason: record.workspaceUsable ? undefined : REASONS.workspace };
}

/** True when the process that wrote the record still runs; a zombie does not. */
export async function isProcessAlive(record: Pick<SessionRecord, 'pid' | 'procStart'>, procRoot: string | undefined): Promise<boolean> {
  if (procRoot === undefined) return isPidInUse(record.pid);
  try {
    const stat = await readFile(`${procRoot}/${record.pid}/stat`, 'latin1');
    // The command name stands in parentheses and may hold anything, so fields are counted from the last one: 3 is the state, 22 the start.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[19] === record.procStart && fields[0] !== 'Z' && fields[0] !== 'X';
  } catch {
    return false; // no such process in our namespace
  }
}

/** True unless the system says that no process has this pid. */
export function isPidInUse(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return errorCode(error) !== 'ESRCH';
  }
}

/** True for a folder of `uid` that nobody else may write to. */
export function isPrivate(info: Stats, uid: number): boolean {
  return info.isDirectory() && info.uid === uid && (info.mode & 0o022) === 0;
}

/** The same for a path; a symbolic link is not a folder. Never throws. */
export async function isPrivateFolder(path: string, uid: number): Promise<boolean> {
  try {
    return isPrivate(await lstat(path), uid);
  } catch {
    return false; // not there, or not for us to see: not ours either way
  }
}

async function socketFault(path: string, uid: number): Promise<Reason | 'dead' | undefined> {
  try {
    const info = await lstat(path);
    if (info.isSymbolicLink()) return REASONS.link;
    if (!info.isSocket()) return REASONS.type;
    if (info.uid !== uid) return REASONS.owner;
  } catch (error) {
    const code = errorCode(error);
    return code === 'ENOENT' || code === 'ENOTDIR' ? 'dead' : REASONS.silent;
  }
  return (await isPrivateFolder(dirname(path), uid)) ? undefined : REASONS.folder;
}

/**
 * Connects and closes without a byte: `answers`, `refused` (nobody listens: a crashed session) or `silent` (anything else,
 * also after CONNECT_LIMIT_MS).
 */
export function probe(path: string, clock: Clock, signal: AbortSignal): Promise<'answers' | 'refused' | 'silent'> {
  if (Buffer.byteLength(path, 'utf8') > MAX_SOCKET_PATH_BYTES) return Promise.resolve('silent');
  return new Promise((resolve) => {
    const socket = createConnection({ path });
    const end = (answer: 'answers' | 'refused' | 'silent'): void => {
      cancelLimit();
      signal.removeEventListener('abort', abort);
      socket.destroy();
      resolve(answer);
    };
    const abort = (): void => end('silent');
    const cancelLimit = clock.after(CONNECT_LIMIT_MS, () => end('silent'));
    socket.once('connect', () => end('answers'));
    socket.on('error', (error) => {
      const code = errorCode(error);
      end(code === 'ECONNREFUSED' || code === 'ENOENT' ? 'refused' : 'silent');
    });
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
  });
}
