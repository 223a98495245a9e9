/**
 * Paths as text: which ones may be addresses, how they are quoted, and where a daemon's files and socket are.
 *
 * Owns the rules that the CLI and the daemon must share; touches no file system. A workspace is made canonical (real path)
 * once, by the host that owns it; here only its form is judged.
 */
import { AxError } from './errors.ts';
import { hasUnsafeCharacters } from './ids.ts';
import { MAX_PATH_BYTES } from './limits.ts';

/** Longest control socket path used as it is, bytes (sun_path holds 108 on Linux, 104 on macOS). */
const MAX_SOCKET_PATH = 100;
const PLAIN_WORD = /^[A-Za-z0-9_./:@%+=,-]+$/;

/** A workspace in absolute form: at most 4096 bytes, no control characters; redundant slashes and `.` are dropped. */
export function parseWorkspace(value: unknown): string {
  if (typeof value !== 'string' || !value.startsWith('/')) throw new AxError('invalid_argument', 'a workspace is an absolute path');
  if (Buffer.byteLength(value, 'utf8') > MAX_PATH_BYTES)
    throw new AxError('too_large', `a workspace path has at most ${MAX_PATH_BYTES} bytes`, { details: { limit: MAX_PATH_BYTES } });
  if (hasUnsafeCharacters(value)) throw new AxError('invalid_argument', 'a workspace path must not contain control characters');
  const parts = value.split('/').filter((part) => part !== '' && part !== '.');
  return `/${parts.join('/')}`;
}

/** True when a path may stand in a notice and in a command that a shell reads: none of control characters, `<`, `>`, `$`, backtick. */
export function isNoticeSafe(path: string): boolean {
  return !hasUnsafeCharacters(path) && !/[<>$`]/.test(path);
}

/** One word for a POSIX shell. */
export function shellQuote(word: string): string {
  if (PLAIN_WORD.test(word)) return word;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

export interface PathEnvironment {
  readonly platform: string;
  readonly home: string;
  readonly xdgStateHome?: string | undefined;
}

/** The state folder when neither flag nor variable names one. */
export function defaultStateDir(environment: PathEnvironment): string {
  if (environment.platform === 'darwin') return `${environment.home}/Library/Application Support/ax`;
  const base = environment.xdgStateHome;
  return base !== undefined && base.startsWith('/') ? `${base.replace(/\/+$/, '')}/ax` : `${environment.home}/.local/state/ax`;
}

/** The control socket of a state folder: inside it, or in an owner-only folder under /tmp when that path is too long for a socket. */
export function controlSocketPath(stateDir: string, uid: number): string {
  const inside = `${stateDir}/control.sock`;
  if (Buffer.byteLength(inside, 'utf8') <= MAX_SOCKET_PATH) return inside;
  // Loaded for such a path only: a command takes less time than that module takes to load.
  const { createHash } = process.getBuiltinModule('node:crypto');
  const key = createHash('sha256').update(stateDir).digest('hex').slice(0, 16);
  return `/tmp/ax-${uid}-${key}/control.sock`;
}
