/**
 * The named pipe that sandboxed sessions write their requests to: made, checked, read at a bounded rate, watched.
 *
 * Node makes no pipes with a name, so the system's `mkfifo` does, by absolute path and without an environment. Held open for reading and
 * writing, so that it never ends when a writer leaves. Whoever can open it can fill it, shrink it, or read what others wrote: the
 * requests are then lost, nothing else; a line of its own, with a word that nobody can foresee, which does not come back says so in the log,
 * once. Who reads the pipe and writes back what it read is not noticed.
 */
import { execFile } from 'node:child_process';
import { closeSync, constants, fchmodSync, fstatSync, openSync, writeSync } from 'node:fs';
import { access, lstat, unlink } from 'node:fs/promises';
import { Socket } from 'node:net';
import { promisify } from 'node:util';
import { AxError } from '../../protocol/errors.ts';
import type { Clock, Random } from '../clock/clock.ts';
import type { Log, LogFields } from '../log.ts';
import { BoxLines } from './lines.ts';

export interface PipeOptions {
  readonly path: string;
  readonly uid: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly programs?: readonly string[];
  readonly onLine: (line: Uint8Array) => void;
}

export interface Pipe {
  close(): Promise<void>;
}

const PROGRAMS = [
  '/usr/bin/mkfifo',
  '/bin/mkfifo',
  '/usr/local/bin/mkfifo',
  '/opt/homebrew/bin/mkfifo',
  '/run/current-system/sw/bin/mkfifo',
];
const PROGRAM_MS = 5000;
/** Bytes read within one window; what is more waits in the pipe, and its writers are told to come again. Far above 50 requests a second. */
const WINDOW_BYTES = 256 * 1024;
export const WINDOW_MS = 1000;
/** How often the pipe is watched, and how long the watching line may take, ms. */
export const WATCH_MS = 30_000;
export const WATCH_ANSWER_MS = 2000;
const WATCH_LINE = /^0 watch ([0-9a-f]{32})$/;

const { O_RDWR, O_NONBLOCK, O_NOFOLLOW } = constants;

/** Makes the pipe anew and reads it. AxError `unsupported` without `mkfifo`, `invalid_state` when what is there is not that pipe. */
export async function openPipe(options: PipeOptions): Promise<Pipe> {
  return new NamedPipe(options, await makePipe(options));
}

async function makePipe(options: PipeOptions): Promise<number> {
  const { path, uid } = options;
  const program = await findProgram(options.programs ?? PROGRAMS);
  await unlink(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw new AxError('invalid_state', `${path} cannot be removed (${error.code ?? ''})`, { cause: error });
  });
  await promisify(execFile)(program, ['-m', '600', path], { env: {}, timeout: PROGRAM_MS }).catch((error: unknown) => {
    throw new AxError('invalid_state', `${program} could not make ${path}`, { cause: error });
  });
  let descriptor: number;
  try {
    descriptor = openSync(path, O_RDWR | O_NONBLOCK | O_NOFOLLOW);
  } catch (error) {
    throw new AxError('invalid_state', `${path} cannot be opened (${(error as NodeJS.ErrnoException).code ?? ''})`, { cause: error });
  }
  const facts = fstatSync(descriptor);
  if (!facts.isFIFO() || facts.uid !== uid || (facts.mode & 0o077) !== 0) {
    closeSync(descriptor);
    throw new AxError('invalid_state', `${path} is not a pipe of this user alone`);
  }
  // It is only ever written to from outside; this keeps a stray `cat` from taking requests, not an attacker.
  fchmodSync(descriptor, 0o200);
  return descriptor;
}

async function findProgram(programs: readonly string[]): Promise<string> {
  for (const program of programs) {
    const isThere = await access(program, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (isThere) return program;
  }
  throw new AxError('unsupported', 'this system has no program `mkfifo`, which makes the pipe', { fix: 'install coreutils' });
}

class NamedPipe implements Pipe {
  readonly #options: PipeOptions;
  #socket: Socket;
  #descriptor: number;
  #lines = new BoxLines();
  readonly #said = new Set<string>();
  #timers: (() => void)[] = [];
  #windowFrom = 0;
  #bytes = 0;
  #renewing: Promise<void> | undefined;
  /** The word of the watching line that is under way; undefined when none is, or it came back. */
  #watchWord: string | undefined;
  #isClosed = false;

  constructor(options: PipeOptions, descriptor: number) {
    this.#options = options;
    this.#descriptor = descriptor;
    this.#socket = this.#read(descriptor);
    this.#after(WATCH_MS, () => void this.#watch());
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const cancel of this.#timers) cancel();
    await this.#renewing;
    await this.#leave();
    await unlink(this.#options.path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') this.#options.log.warn('not removed', { path: this.#options.path, reason: error.code });
    });
  }

  #read(descriptor: number): Socket {
    const socket = new Socket({ fd: descriptor, readable: true, writable: false });
    socket.on('data', (piece: Buffer) => this.#take(piece));
    socket.on('error', (error) => this.#once('the request pipe failed', { reason: error.message }));
    return socket;
  }

  async #leave(): Promise<void> {
    const socket = this.#socket;
    if (socket.closed) return;
    const closed = new Promise((resolve) => void socket.once('close', resolve));
    socket.destroy();
    await closed;
  }

  #take(piece: Buffer): void {
    const now = this.#options.clock.monotonic();
    if (now - this.#windowFrom >= WINDOW_MS) [this.#windowFrom, this.#bytes] = [now, 0];
    this.#bytes += piece.length;
    if (this.#bytes > WINDOW_BYTES && !this.#socket.isPaused()) {
      this.#socket.pause();
      this.#after(WINDOW_MS, () => void this.#socket.resume());
      this.#once('somebody floods the request pipe; requests of sandboxed sessions may be lost');
    }
    for (const line of this.#lines.take(piece)) {
      const own = WATCH_LINE.exec(line.toString('latin1'));
      if (own === null) this.#options.onLine(line);
      else if (own[1] === this.#watchWord) this.#watchWord = undefined;
    }
  }

  /** Is it still this pipe, is there room in it, and does what is written to it come out here? */
  async #watch(): Promise<void> {
    this.#after(WATCH_MS, () => void this.#watch());
    const there = await lstat(this.#options.path).catch(() => undefined);
    if (this.#isClosed) return;
    const own = this.#socket.destroyed ? undefined : fstatSync(this.#descriptor);
    if (own === undefined || there?.ino !== own.ino || there.dev !== own.dev) return (this.#renewing = this.#renew());
    const sent = Buffer.from(this.#options.random.bytes(16)).toString('hex');
    this.#watchWord = sent;
    try {
      writeSync(this.#descriptor, `\n0 watch ${sent}\n`);
    } catch (error) {
      return this.#once('the request pipe is full; requests of sandboxed sessions are lost', { reason: (error as Error).message });
    }
    this.#after(WATCH_ANSWER_MS, () => {
      if (this.#watchWord === sent) this.#once('somebody else reads the request pipe; requests of sandboxed sessions are lost');
    });
  }

  async #renew(): Promise<void> {
    this.#options.log.warn('the request pipe was removed or replaced, and is made anew', { path: this.#options.path });
    try {
      await this.#leave();
      this.#descriptor = await makePipe(this.#options);
      this.#lines = new BoxLines();
      this.#socket = this.#read(this.#descriptor);
    } catch (error) {
      this.#once('the request pipe could not be made anew', { reason: error instanceof Error ? error.message : String(error) });
    }
  }

  #after(ms: number, run: () => void): void {
    const cancel = this.#options.clock.after(ms, () => {
      this.#timers = this.#timers.filter((one) => one !== cancel);
      if (!this.#isClosed) run();
    });
    this.#timers.push(cancel);
  }

  /** What an attacker can cause again and again is said once. */
  #once(event: string, fields: LogFields = {}): void {
    if (this.#said.has(event)) return;
    this.#said.add(event);
    this.#options.log.warn(event, fields);
  }
}
