/**
 * The channel for sandboxed sessions as a named pipe and a folder of answers inside the state folder.
 *
 * A read-only mount keeps nobody from writing to a pipe, so this works where a sandbox forbids sockets and writes nothing else. Owns
 * `<state>/box`: folders 0700, the pipe made anew at each start and checked once it is open, answers 0600 written aside and renamed,
 * each gone after 30 s. No path comes from a request; a nonce is hexadecimal before it names a file, and no other names are ever removed.
 * Invariant: nothing that is written to the pipe is kept without a bound or blocks the daemon: reading has a rate, a line a length.
 */
import { constants } from 'node:fs';
import { chmod, lstat, mkdir, open, readdir, rename, rmdir, unlink } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { boxPaths, isBoxWord } from '../../protocol/box.ts';
import type { BoxPaths } from '../../protocol/box.ts';
import { AxError } from '../../protocol/errors.ts';
import { isMessageId } from '../../protocol/ids.ts';
import { isKeptName, KEPT_MS, keptFolder } from '../../protocol/kept.ts';
import { BOX_ANSWER_MS, MAX_BOX_ANSWERS, MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import type { Clock, Random } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import type { Box, BoxEvents } from './box.ts';
import { openPipe } from './pipe.ts';
import type { Pipe } from './pipe.ts';

export interface FifoOptions {
  /** Real path of the state folder. */
  readonly stateDir: string;
  readonly uid: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  /** Where the program `mkfifo` may be; the first that is there is run. */
  readonly programs?: readonly string[];
}

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK } = constants;
/** How much of a file is compared at once, bytes. */
const COMPARED_BYTES = 1024 * 1024;

export function createFifoBox(options: FifoOptions): Box {
  return new FifoBox(options);
}

class FifoBox implements Box {
  readonly #options: FifoOptions;
  readonly #paths: BoxPaths;
  /** Answers that lie there, and what cancels their removal. */
  readonly #answers = new Map<string, () => void>();
  #pipe: Pipe | undefined;
  #kept = 0;

  constructor(options: FifoOptions) {
    this.#options = options;
    this.#paths = boxPaths(options.stateDir);
  }

  async start(events: BoxEvents): Promise<void> {
    const { uid } = this.#options;
    const { folder, answers } = this.#paths;
    await this.stop();
    await privateFolder(folder, uid);
    await privateFolder(answers, uid);
    this.#pipe = await openPipe({ ...this.#options, path: this.#paths.requests, onLine: (line) => events.onRequest(line) });
  }

  async stop(): Promise<void> {
    const { folder, requests, answers } = this.#paths;
    await this.#pipe?.close();
    this.#pipe = undefined;
    for (const cancel of this.#answers.values()) cancel();
    this.#answers.clear();
    // Only what is a folder of this user is looked into: never through a symbolic link.
    if (!(await isOwnFolder(folder, this.#options.uid))) return;
    if (await isOwnFolder(answers, this.#options.uid)) {
      const names = await readdir(answers).catch(() => []);
      for (const name of names.filter((one) => isBoxWord(one.replace(/^\./, '')))) await this.#remove(join(answers, name));
      await this.#remove(answers, rmdir);
    }
    await this.#remove(requests);
    await this.#remove(folder, rmdir);
  }

  async answer(nonce: string, bytes: Uint8Array): Promise<boolean> {
    const isTaken = !isBoxWord(nonce) || this.#answers.has(nonce) || this.#answers.size >= MAX_BOX_ANSWERS;
    if (this.#pipe === undefined || isTaken || bytes.length > MAX_FRAME_BYTES) return false;
    const path = join(this.#paths.answers, nonce);
    const pipe = this.#pipe;
    this.#answers.set(
      nonce,
      this.#options.clock.after(BOX_ANSWER_MS, () => {
        this.#answers.delete(nonce);
        void this.#remove(path);
      }),
    );
    try {
      await writeAside(path, join(this.#paths.answers, `.${nonce}`), bytes, false);
    } catch (error) {
      this.#answers.get(nonce)?.();
      this.#answers.delete(nonce);
      this.#options.log.warn('no answer could be put there for a sandboxed session', { reason: codeOf(error) });
      return false;
    }
    // Stopped meanwhile: nobody else would remove it.
    if (this.#pipe !== pipe) await this.#remove(path);
    return this.#pipe === pipe;
  }

  async keep(id: string, body: Uint8Array): Promise<string> {
    if (!isMessageId(id)) throw new RangeError('a body is kept under its message id');
    const folder = keptFolder(this.#options.stateDir);
    const path = join(folder, id);
    try {
      await privateFolder(folder, this.#options.uid);
      await this.#prune(folder);
      if (await this.#isKept(path, body)) return path;
      const aside = join(folder, `.ax-${process.pid}-${(this.#kept += 1)}.part`);
      await this.#remove(aside); // of an earlier process with this id that did not end well: nobody else makes this name now
      await writeAside(path, aside, body, true);
      await syncFolder(folder);
    } catch (error) {
      throw new AxError('invalid_state', `${path} could not be written (${codeOf(error)}); the message does not count as fetched`, {
        cause: error,
      });
    }
    return path;
  }

  /** Does a file of this user alone hold these bytes already? Then it counts as kept from now on, and durable. */
  async #isKept(path: string, body: Uint8Array): Promise<boolean> {
    const handle = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK).catch(() => undefined); // whatever else is there is replaced
    if (handle === undefined) return false;
    try {
      const facts = await handle.stat();
      const isOwn = facts.isFile() && facts.uid === this.#options.uid && facts.nlink === 1 && (facts.mode & 0o777) === 0o600;
      if (!isOwn || facts.size !== body.length || !(await holds(handle, body))) return false;
      const now = this.#options.clock.now() / 1000;
      await handle.utimes(now, now);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await syncFolder(dirname(path));
    return true;
  }

  /** Bodies that were kept longer than everything else that is remembered of a message go. */
  async #prune(folder: string): Promise<void> {
    for (const name of (await readdir(folder)).filter(isKeptName)) {
      const found = await lstat(join(folder, name)).catch(() => undefined); // a fetch outside the sandbox may prune it too
      if (found !== undefined && this.#options.clock.now() - found.mtimeMs > KEPT_MS) await this.#remove(join(folder, name));
    }
  }

  async #remove(path: string, how: (path: string) => Promise<void> = unlink): Promise<void> {
    try {
      await how(path);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') this.#options.log.warn('not removed', { path, reason: codeOf(error) });
    }
  }
}

async function writeAside(path: string, aside: string, bytes: Uint8Array, isDurable: boolean): Promise<void> {
  const handle = await open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
  try {
    try {
      await handle.writeFile(bytes);
      if (isDurable) await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(aside, path);
  } catch (error) {
    await unlink(aside).catch(() => undefined); // what went wrong first is what counts
    throw error;
  }
}

/** Has the file these bytes, and no fewer? A part of it is in memory at a time. */
async function holds(handle: FileHandle, body: Uint8Array): Promise<boolean> {
  const piece = Buffer.alloc(Math.min(COMPARED_BYTES, body.length));
  for (let at = 0; at < body.length;) {
    const { bytesRead } = await handle.read(piece, 0, Math.min(piece.length, body.length - at), at);
    if (bytesRead === 0 || piece.compare(body, at, at + bytesRead, 0, bytesRead) !== 0) return false;
    at += bytesRead;
  }
  return true;
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function isOwnFolder(path: string, uid: number): Promise<boolean> {
  const facts = await lstat(path).catch(() => undefined);
  return facts !== undefined && facts.isDirectory() && facts.uid === uid;
}

/** Makes a folder for its owner alone, or makes one that is there private. AxError `invalid_state` for anything else in its place. */
async function privateFolder(path: string, uid: number): Promise<void> {
  await mkdir(path, { mode: 0o700 }).catch((error: unknown) => {
    if (codeOf(error) !== 'EEXIST') throw new AxError('invalid_state', `${path} cannot be made (${codeOf(error)})`, { cause: error });
  });
  const facts = await lstat(path);
  if (!facts.isDirectory() || facts.uid !== uid) throw new AxError('invalid_state', `${path} is not a folder of this user`);
  if ((facts.mode & 0o077) !== 0) await chmod(path, 0o700);
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? String(error);
}
