/**
 * Starting and ending the daemon's process, and its log file.
 *
 * Owns that the daemon is executed by path (the CLI imports none of it), what it inherits, and when it counts as started: when its own
 * process answers on the control socket. `daemon.log` is for the owner only and is turned over once, at 10 MiB.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { closeSync, constants, fstatSync, lstatSync, mkdirSync, openSync, readFileSync, readSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseHostRef, parseListenAddress } from '../protocol/address.ts';
import { AxError, isErrorCode } from '../protocol/errors.ts';
import type { ErrorDetails } from '../protocol/errors.ts';
import { call } from './client.ts';
import { axCommand, daemonEnvironment, daemonProgram } from './environment.ts';
import type { Environment } from './environment.ts';
import { lockHolder } from './lock-holder.ts';
import { visible } from './output.ts';
import { asFields } from './plain-cbor.ts';
import { awaiting, retryUntil } from './wait.ts';

/** To the end of the file, made when missing; never through a symbolic link that somebody put there. */
const APPEND = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_NOFOLLOW;
const MAX_LOG_BYTES = 10 * 1024 * 1024;
/** How long a daemon may take to answer after its start, and to be gone after a stop, ms. */
export const START_TIMEOUT_MS = 30_000;
const POLL_MS = 25;
const HELLO_TIMEOUT_MS = 5_000;

export interface Hello {
  readonly version: string;
  readonly protocol: number;
  readonly host_id: string;
  readonly pid: number;
}

export function logPath(environment: Environment): string {
  return join(environment.stateDir, 'daemon.log');
}

/** The running daemon's greeting; undefined when none listens. AxError `timeout` when something listens and stays silent. */
export async function greet(environment: Environment): Promise<Hello | undefined> {
  try {
    return await call<Hello>(environment, 'daemon.hello', {}, { what: null, timeoutMs: HELLO_TIMEOUT_MS });
  } catch (error) {
    // One that is another user's listens all right: nothing may be started in its place.
    if (error instanceof AxError && error.code === 'daemon_unavailable' && error.details?.['owner_uid'] === undefined) return undefined;
    if (error instanceof AxError && error.code === 'timeout') throw silent(environment, error);
    throw error;
  }
}

/** Something listens and says nothing: which process that is, where it can be told, and what a person can do. Nothing is signalled here. */
function silent(environment: Environment, cause: AxError): AxError {
  const { socketPath } = environment;
  const holder = lockHolder(environment);
  const details = { socket: socketPath };
  if (holder?.isStopped === true)
    return new AxError('timeout', `the daemon (process ${holder.pid}) is suspended, by a signal or a debugger, and answers nothing`, {
      fix: `kill -CONT ${holder.pid}`,
      details,
      cause,
    });
  const who = holder === undefined ? `a process holds ${socketPath}` : `the daemon (process ${holder.pid}) holds ${socketPath}`;
  return new AxError('timeout', `${who} but does not answer; end it by hand`, {
    fix: axCommand(environment.ax, 'daemon', 'logs'),
    details,
    cause,
  });
}

/** Nothing is started inside a sandbox: it would end with the command and have no network. AxError `sandboxed`. */
export async function requireNoSandbox(environment: Environment): Promise<void> {
  await greet(environment).catch((error: unknown) => {
    if (error instanceof AxError && error.code === 'sandboxed') throw error;
  });
}

export interface LaunchFlags {
  readonly listen: readonly string[];
  readonly name: string | undefined;
}

/** What a host may call itself, judged before a daemon is started with it; AxError `invalid_argument`. */
export function parseHostName(name: string): string {
  const ref = parseHostRef(name);
  if (ref.kind === 'alias') return ref.alias;
  throw new AxError(
    'invalid_argument',
    `a host name cannot be "${visible(name)}": that means ${ref.kind === 'local' ? 'this host' : 'another host'}`,
  );
}

/** The flags the last daemon of this state folder was started with, for a restart without flags; a daemon writes them when it is ready. */
export function lastFlags(environment: Environment): LaunchFlags {
  try {
    const known: unknown = JSON.parse(readFileSync(join(environment.stateDir, 'launch.json'), 'utf8'));
    const { listen, name } = known as { listen?: unknown; name?: unknown };
    return {
      listen: Array.isArray(listen) ? listen.map(parseListenAddress) : [],
      name: typeof name === 'string' ? parseHostName(name) : undefined,
    };
  } catch {
    return { listen: [], name: undefined }; // never started, or unreadable: config.json decides, as for a first start
  }
}

function daemonWords(environment: Environment, flags: LaunchFlags): string[] {
  return [
    daemonProgram(),
    '--state-dir',
    environment.stateDir,
    ...flags.listen.flatMap((address) => ['--listen', address]),
    ...(flags.name === undefined ? [] : ['--name', flags.name]),
  ];
}

export interface Foreground {
  readonly child: ChildProcess;
  /** Why it ended before it was ready, in its own words; undefined when it said nothing. */
  readonly failure: () => AxError | undefined;
}

/** The daemon in the foreground. Stdout is for the one ready line, which the caller prints: what else the daemon says there goes to stderr. */
export function runInForeground(environment: Environment, flags: LaunchFlags): Foreground {
  makeStateDir(environment);
  const words = [...daemonWords(environment, flags), '--format', 'json'];
  const child = spawn(process.execPath, words, { stdio: ['ignore', 'pipe', 2], env: daemonEnvironment() });
  let failure: AxError | undefined;
  if (child.stdout !== null)
    createInterface({ input: child.stdout }).on('line', (line) => {
      const said = objectOf(line);
      if (said?.['type'] === 'daemon_ready') return;
      const error = said?.['type'] === 'error' ? objectOf(JSON.stringify(said['error'])) : undefined;
      if (error === undefined) process.stderr.write(`${line}\n`);
      else failure = failureOf(error, error['message']);
    });
  return { child, failure: () => failure };
}

function objectOf(line: string): Record<string, unknown> | undefined {
  try {
    return asFields(JSON.parse(line), 'a line');
  } catch {
    return undefined;
  }
}

/** An error in a daemon's own words, out of its JSON. */
function failureOf(said: Record<string, unknown>, message: unknown): AxError | undefined {
  const { code, fix, details } = said;
  if (!isErrorCode(code) || typeof message !== 'string') return undefined;
  return new AxError(code, message, {
    ...(typeof fix === 'string' ? { fix } : {}),
    ...(typeof details === 'object' && details !== null ? { details: details as ErrorDetails } : {}),
  });
}

/** Has the daemon's program do one thing instead of running, and gives the object it answers; AxError as it was told, `internal` without. */
export async function askProgram(environment: Environment, words: readonly string[]): Promise<Record<string, unknown>> {
  const args = [daemonProgram(), '--state-dir', environment.stateDir, ...words, '--format', 'json'];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'], env: daemonEnvironment() });
  let out = '';
  let log = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => (out += chunk));
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => (log = (log + chunk).slice(-16_384)));
  const status = await new Promise<number | string>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(code ?? `none, by ${signal ?? 'a signal'}`));
  });
  const said = objectOf(out.trim());
  if (status === 0 && said?.['ok'] === true) return said;
  const error = said?.['type'] === 'error' ? objectOf(JSON.stringify(said['error'])) : undefined;
  const failure = error === undefined ? undefined : failureOf(error, error['message']);
  const last = log.trimEnd().split('\n').at(-1) ?? '';
  throw failure ?? new AxError('internal', `the daemon's program ended with status ${status}: ${visible(wordsOf(last)).slice(0, 500)}`);
}

/** Starts the daemon in the background and resolves when it answers; AxError `daemon_unavailable` with its last word when it ends instead. */
export async function startInBackground(environment: Environment, flags: LaunchFlags): Promise<Hello> {
  makeStateDir(environment);
  const log = openLog(environment);
  const from = fstatSync(log).size;
  const child = spawn(process.execPath, daemonWords(environment, flags), {
    stdio: ['ignore', log, log],
    detached: true,
    cwd: '/',
    env: daemonEnvironment(),
  });
  closeSync(log);
  try {
    const hello = await awaiting(`the daemon to answer at ${environment.socketPath}`, untilReady(environment, child));
    if (hello !== undefined) return hello;
  } finally {
    child.unref();
  }
  const isGone = child.exitCode !== null || child.signalCode !== null;
  const said = logSince(logPath(environment), from);
  const own = isGone ? said.failure : undefined;
  const why = own?.message ?? said.last;
  throw new AxError(
    'daemon_unavailable',
    `the daemon ${isGone ? 'ended at once' : `gave no answer in ${START_TIMEOUT_MS / 1000} s`}${why === '' ? '' : `: ${why}`}`,
    {
      fix: own?.fix ?? axCommand(environment.ax, 'daemon', 'logs'),
      details: { socket: environment.socketPath, ...(own === undefined ? {} : { reason: own.code }) },
    },
  );
}

/** The greeting of this very child, or of one that was quicker; undefined when the child ended or the time is over. */
export async function untilReady(environment: Environment, child: ChildProcess): Promise<Hello | undefined> {
  let spawnFault: Error | undefined;
  child.once('error', (error) => (spawnFault = error));
  const found = await retryUntil<Hello | 'ended'>(START_TIMEOUT_MS, POLL_MS, async () => {
    if (spawnFault !== undefined)
      throw new AxError('daemon_unavailable', `the daemon could not be started: ${spawnFault.message}`, { cause: spawnFault });
    const hello = await greet(environment);
    if (hello?.pid === child.pid) return hello;
    return child.exitCode !== null || child.signalCode !== null ? (hello ?? 'ended') : undefined;
  });
  return found === 'ended' ? undefined : found;
}

function makeStateDir(environment: Environment): void {
  try {
    makeFolders(environment.stateDir);
    if (lstatSync(environment.stateDir).uid !== process.getuid?.())
      throw Object.assign(new Error('it belongs to another user'), { code: 'EPERM' });
  } catch (error) {
    throw new AxError(
      'invalid_argument',
      `the state folder ${environment.stateDir} cannot be made (${(error as NodeJS.ErrnoException).code ?? String(error)})`,
      { cause: error },
    );
  }
}

/** Makes a folder and what is missing above it. Not mkdir's own `recursive`: in a file system that makes no folders (/proc) that never ends. */
function makeFolders(path: string): void {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'EEXIST') return;
    if (code !== 'ENOENT' || dirname(path) === path) throw error;
    makeFolders(dirname(path));
    mkdirSync(path, { mode: 0o700 });
  }
}

function openLog(environment: Environment): number {
  const path = logPath(environment);
  try {
    const log = openSync(path, APPEND, 0o600);
    if (fstatSync(log).size < MAX_LOG_BYTES) return log;
    closeSync(log);
    renameSync(path, `${path}.1`);
    return openSync(path, APPEND, 0o600);
  } catch (error) {
    throw new AxError('invalid_argument', `the log ${path} cannot be written (${(error as NodeJS.ErrnoException).code ?? String(error)})`, {
      cause: error,
    });
  }
}

/** What the file holds behind `from`: the daemon's own failure where it told one, and the last line, of a JSON line its words. */
function logSince(path: string, from: number): { readonly failure: AxError | undefined; readonly last: string } {
  const file = openSync(path, 'r');
  try {
    const bytes = Buffer.alloc(16_384);
    const end = fstatSync(file).size;
    const read = readSync(file, bytes, 0, bytes.length, Math.max(from, end - bytes.length));
    const lines = bytes
      .toString('utf8', 0, read)
      .split('\n')
      .filter((line) => line.trim() !== '');
    const record = lines.map(objectOf).findLast((entry) => entry?.['msg'] === 'cannot run');
    return {
      failure: record === undefined ? undefined : failureOf(record, record['reason']),
      last: visible(wordsOf(lines.at(-1) ?? '')).slice(0, 500),
    };
  } finally {
    closeSync(file);
  }
}

function wordsOf(line: string): string {
  const record = objectOf(line) ?? {};
  const words = [record['msg'], record['message'], record['reason']].filter((part) => typeof part === 'string');
  return words.length === 0 ? line : words.join(': ').split('\n', 1).join('');
}

/** Resolves true when nothing listens any more and the process has gone, false when that takes too long. */
export async function untilGone(environment: Environment, pid: number): Promise<boolean> {
  const gone = await retryUntil(START_TIMEOUT_MS, POLL_MS, async () => {
    const hello = await greet(environment).catch(() => undefined);
    return hello === undefined && !isRunning(pid) ? true : undefined;
  });
  return gone === true;
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  try {
    // In a container nobody may collect an ended process: it then stands there as a zombie for ever.
    return !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return process.platform !== 'linux';
  }
}
