/**
 * The CLI's end of the control socket: one request, one answer, one connection.
 *
 * Owns what a missing, silent, foreign or differently versioned daemon is told as. It decides nothing about a result.
 * Invariant: every failure is an AxError, and `wasContacted` tells the ones after which the request may have reached the daemon.
 */
import { accessSync, constants, lstatSync } from 'node:fs';
import type { Stats } from 'node:fs';
import { dirname } from 'node:path';
import type { Fields } from '../protocol/codec.ts';
import type { ControlRequest, Method } from '../protocol/control.ts';
import { AxError, ERROR_TABLE, isErrorCode } from '../protocol/errors.ts';
import type { ErrorDetails } from '../protocol/errors.ts';
import { MAX_POLL_MS } from '../protocol/limits.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../protocol/version.ts';
import { axCommand, requireOneShell } from './environment.ts';
import type { Environment } from './environment.ts';
import { lockHolder } from './lock-holder.ts';
import { frameOf, readFrame } from './one-frame.ts';
import { asFields, decode, encode, flag, text, whole } from './plain-cbor.ts';
import { awaiting } from './wait.ts';
import { openWire } from './wire.ts';
import type { Wire } from './wire.ts';

/** Longest wait for an answer, ms: of a long poll, or where the daemon asks others or writes much, with room for its own bounds. */
const LONG_ANSWER_MS = MAX_POLL_MS + 35_000;
/** The same for everything else, which a daemon that runs answers out of what it holds. */
const ANSWER_MS = 10_000;
/** How long a connection that has done its work may stay, ms. */
const LEAVE_MS = 20;
const LONG: ReadonlySet<Method> = new Set<Method>([
  'admin.events',
  'admin.retry',
  'agent.sandbox_fetch',
  'agent.sessions',
  'agent.setup',
  'daemon.backup',
  'host.join',
  'host.ping',
  'message.confirm',
  'message.fetch',
  'message.part',
  'message.reply',
  'message.send',
  'message.upload',
  'message.wait',
]);
const FROZEN: ReadonlySet<Method> = new Set<Method>(['daemon.hello', 'daemon.stop']);

const contacted = new WeakSet<AxError>();

export interface CallOptions {
  /** What the user reads after 2 s: "waiting for …"; null when it was said before. */
  readonly what?: string | null;
  readonly timeoutMs?: number;
  /** Aborted, it ends the request at once: AxError `timeout`. */
  readonly signal?: AbortSignal;
}

/** Asks this host's daemon. The result has the fields that protocol/control.ts names for the method. */
export async function call<T>(environment: Environment, method: Method, params: object = {}, options: CallOptions = {}): Promise<T> {
  requireOneShell(environment, method, params);
  requireOwnSocket(environment);
  const what = options.what === undefined ? 'the daemon to answer' : options.what;
  const answer = exchange(
    environment,
    method,
    params,
    options.timeoutMs ?? (LONG.has(method) ? LONG_ANSWER_MS : ANSWER_MS),
    options.signal,
  );
  return (await (what === null ? answer : awaiting(what, answer))) as T;
}

async function exchange(
  environment: Environment,
  method: Method,
  params: object,
  timeoutMs: number,
  signal: AbortSignal | undefined,
): Promise<Fields> {
  const { origin, session, socketPath } = environment;
  const request: ControlRequest = { v: CONTROL_PROTOCOL, id: 1, method, params: { ...params }, origin, session };
  const frame = frameOf(encode(request));
  const wire = await connect(environment);
  const timer = setTimeout(() => wire.destroy(silent(environment, timeoutMs)), timeoutMs);
  const onAbort = (): void => void wire.destroy(new AxError('timeout', 'the request was given up', { details: { socket: socketPath } }));
  signal?.addEventListener('abort', onAbort, { once: true });
  try {
    const answered = readFrame(wire);
    wire.write(frame);
    const answer = await answered;
    if (answer === undefined) throw lost(socketPath);
    return readAnswer(environment, method, answer);
  } catch (error) {
    const failure = error instanceof AxError ? error : lost(socketPath, error);
    contacted.add(failure);
    throw failure;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', onAbort);
    leave(wire);
  }
}

/** Closes a connection a moment later: most commands end before, which closes it as well and is quicker. */
function leave(wire: Wire): void {
  wire.unref();
  setTimeout(() => wire.destroy(), LEAVE_MS).unref();
}

/** A daemon that takes connections and does not answer: a suspended one is named as that, with what wakes it; nothing is signalled here. */
function silent(environment: Environment, timeoutMs: number): AxError {
  const holder = lockHolder(environment);
  const isStopped = holder?.isStopped === true;
  const why = isStopped ? `: its process ${holder.pid} is suspended, by a signal or a debugger` : '';
  return new AxError('timeout', `the daemon gave no answer in ${Math.round(timeoutMs / 1000)} s${why}`, {
    fix: isStopped ? `kill -CONT ${holder.pid}` : axCommand(environment.ax, 'doctor'),
    details: { socket: environment.socketPath },
  });
}

function lost(path: string, cause?: unknown): AxError {
  return new AxError('daemon_unavailable', `the daemon at ${path} closed the connection before it answered`, { cause });
}

async function connect(environment: Environment): Promise<Wire> {
  const wire = await openWire(environment.socketPath).catch((error: NodeJS.ErrnoException) => {
    throw asConnectError(environment, error);
  });
  // Reading reports errors by itself; this keeps one that comes while nobody reads from ending the process.
  wire.on('error', () => wire.destroy());
  return wire;
}

/** What a socket that cannot be reached is told as; exported for its test. */
export function asConnectError(environment: Environment, error: NodeJS.ErrnoException): AxError {
  const { socketPath } = environment;
  if (error.code === 'EACCES') {
    const owner = ownerOf(socketPath);
    if (owner !== process.getuid?.())
      return new AxError('daemon_unavailable', `the daemon at ${socketPath} belongs to another user (uid ${owner})`, {
        fix: 'use the daemon of your own: leave out --state-dir and AX_STATE_DIR; or run the command as that user',
        details: { socket: socketPath, owner_uid: owner },
        cause: error,
      });
  }
  if (error.code === 'EPERM' || (error.code === 'EACCES' && mayWrite(socketPath))) return sandboxed(environment, error);
  const why = error.code === 'ENOENT' || error.code === 'ECONNREFUSED' ? '' : ` (${error.code ?? error.message})`;
  return new AxError('daemon_unavailable', `no daemon answers at ${socketPath}${why}`, {
    fix: axCommand(environment.ax, 'daemon', 'start'),
    details: { socket: socketPath },
    cause: error,
  });
}

/** The system itself forbids the connection, though owner and modes allow it: told the same whatever the variables say. */
function sandboxed(environment: Environment, cause: Error): AxError {
  const { ax, harnessShell, socketPath } = environment;
  const rules = axCommand(ax, 'agent', 'allow-rules', '--harness', harnessShell ?? 'H');
  const pipe = axCommand(ax, 'agent', 'sandbox-fetch', 'on');
  return new AxError('sandboxed', `a sandbox around this shell lets no command connect to the daemon (${socketPath})`, {
    fix: `ask your user to run, in their own terminal, \`${rules}\` (these two commands then run outside) or \`${pipe}\` (fetch works inside); or run this command again with ${ESCALATION[harnessShell ?? 'none']}`,
    details: { socket: socketPath },
    cause,
  });
}

/** How each harness runs one command outside, for its user to approve. */
const ESCALATION = {
  codex: 'sandbox_permissions "require_escalated"',
  claude: 'dangerouslyDisableSandbox',
  none: "the harness's own escalation, which asks your user",
} as const;

/** Do owner and modes allow what the system refused? */
function mayWrite(path: string): boolean {
  try {
    accessSync(path, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

/** Owner of the path, or of the nearest folder above it that can be seen. */
function ownerOf(path: string): number {
  try {
    return lstatSync(path).uid;
  } catch {
    return path === '/' ? 0 : ownerOf(dirname(path));
  }
}

/** A socket in a folder that another user made would be handed this user's messages. */
function requireOwnSocket(environment: Environment): void {
  const folder = dirname(environment.socketPath);
  const found = factsOf(folder);
  if (found === undefined || isOwn(found)) return;
  if (folder === environment.stateDir && found.isDirectory() && found.uid === process.getuid?.()) return; // the daemon makes it private
  throw new AxError('daemon_unavailable', `${folder} is not a folder of this user alone; nothing was sent to the socket in it`, {
    details: { socket: environment.socketPath },
  });
}

function factsOf(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined; // not there, or not to be seen: the connection itself says which
  }
}

/** A folder of this user that nobody else can enter. */
function isOwn(found: Stats): boolean {
  return found.isDirectory() && found.uid === process.getuid?.() && (found.mode & 0o077) === 0;
}

/** The result in an answer of the daemon, whatever way it came. AxError as the daemon answered. */
export function readAnswer(environment: Environment, method: Method, frame: Uint8Array): Fields {
  const answer = asFields(decode(frame), 'an answer');
  const v = whole(answer, 'v');
  if (v !== CONTROL_PROTOCOL && !FROZEN.has(method)) throw versionsDiffer(environment, versionIn(answer), v);
  if (flag(answer, 'ok')) return asFields(answer['result'], 'a result');
  const body = asFields(answer['error'], 'an error');
  const code = body['code'];
  // Told before the request was read (no connection free), or by a daemon on its way out; the two methods wait for a peer that may say the same.
  const isOwn = (code === 'limit' && answer['id'] === 0) || (code === 'shutting_down' && method !== 'host.join' && method !== 'host.ping');
  throw readError(environment, body, isOwn ? { socket: environment.socketPath } : undefined);
}

/** The version that a daemon of another protocol names in its refusal, which is all that is read of it. */
function versionIn(answer: Fields): string | undefined {
  const { error } = answer as { readonly error?: { readonly details?: { readonly daemon_version?: unknown } | null } | null };
  const found = error?.details?.daemon_version;
  return typeof found === 'string' && /^[\w.+-]{1,64}$/.test(found) ? found : undefined;
}

function readError(environment: Environment, body: Fields, own: ErrorDetails | undefined): AxError {
  const code = text(body, 'code', 64);
  const told =
    body['details'] === undefined || body['details'] === null ? undefined : (asFields(body['details'], 'details') as ErrorDetails);
  const details = own === undefined ? told : { ...told, ...own };
  if (code === 'update_required' && details?.['daemon_protocol'] !== undefined) {
    return versionsDiffer(environment, String(details['daemon_version']), Number(details['daemon_protocol']));
  }
  const message = text(body, 'message', 10_000);
  if (!isErrorCode(code)) return new AxError('internal', `${message} (${code}, which this ax ${AX_VERSION} does not know)`);
  const fix = body['fix'];
  return new AxError(code, message, { ...(typeof fix === 'string' ? { fix } : {}), ...(details === undefined ? {} : { details }) });
}

/** The daemon of this host is older or newer than this CLI. */
export function versionsDiffer(environment: Environment, daemonVersion: string | undefined, daemonProtocol: number): AxError {
  const daemon =
    daemonVersion === undefined ? `control protocol ${daemonProtocol}` : `ax ${daemonVersion}, control protocol ${daemonProtocol}`;
  const message = `this command is ax ${AX_VERSION}, control protocol ${CONTROL_PROTOCOL}; the running daemon is ${daemon}, and does not know what was asked`;
  return new AxError('update_required', message, {
    fix: axCommand(environment.ax, 'daemon', 'restart'),
    details: {
      client_version: AX_VERSION,
      client_protocol: CONTROL_PROTOCOL,
      daemon_version: daemonVersion ?? null,
      daemon_protocol: daemonProtocol,
    },
  });
}

/** Codes that both a peer and this host's own daemon may be the reason of; `details.socket` marks the own one. */
const EITHER: ReadonlySet<string> = new Set(['timeout', 'shutting_down', 'limit']);

/** Exit status of an error: what makes this host's daemon unusable (silent, ending, full, another version) is 3; the same of a peer is not. */
export function exitOf(error: AxError): number {
  const isOwn =
    (error.code === 'update_required' && error.details?.['daemon_protocol'] !== undefined) ||
    (EITHER.has(error.code) && error.details?.['socket'] !== undefined);
  return isOwn ? 3 : ERROR_TABLE[error.code].exit;
}

/** True when the request may have reached the daemon before this happened. */
export function wasContacted(error: unknown): boolean {
  return error instanceof AxError && contacted.has(error);
}
