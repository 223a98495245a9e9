/**
 * The marks of one session: what shows from outside, without opening a file or a socket, that it has to be looked at again.
 *
 * Owns what is compared: the process's own inode in /proc (another one is another process, however equal the pid) and its folder (a process
 * that has ended but is not reaped has none), the inode, size and times of its record, and who the socket and its folder belong to.
 * Invariant: marks judge nothing. A mark that differs makes a look (claude-registry.ts), which alone says what lives.
 */
import { readlinkSync, statSync, type Stats } from 'node:fs';
import { lstat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isPidInUse } from './claude-live.ts';
import { errorCode } from './places.ts';

/** The mark of a process that is not there. */
const NOBODY = 'nobody';

export class Marks {
  readonly #path: string;
  readonly #pid: number;
  readonly #procRoot: string | undefined;
  #process: string | undefined;
  #record: string | undefined;
  #socket: { readonly path: string; readonly mark: string } | undefined;

  /** Marks of the record at `path`, which is process `pid`'s; `procRoot` is undefined where there is no /proc. */
  constructor(path: string, pid: number, procRoot: string | undefined) {
    this.#path = path;
    this.#pid = pid;
    this.#procRoot = procRoot;
  }

  /** Takes the marks of process and record; before either is read, so that what changes meanwhile differs afterwards. Never throws. */
  async take(): Promise<void> {
    this.#process = processMark(this.#pid, this.#procRoot);
    this.#record = await fileMark(this.#path);
  }

  /** Takes the mark of the session's socket, before it is judged; undefined when it has none. Never throws. */
  async takeSocket(path: string | undefined): Promise<void> {
    this.#socket = path === undefined ? undefined : { path, mark: await socketMark(path) };
  }

  /** Was there such a process, this one or another, when the marks were taken? */
  get hadProcess(): boolean {
    return this.#process !== NOBODY;
  }

  /** The process is the one of the last look, and still runs. Two system calls that wait for nothing. */
  isProcessSame(): boolean {
    return processMark(this.#pid, this.#procRoot) === this.#process;
  }

  /** Nothing shows that anything changed since the marks were taken. Never throws. */
  async areSame(): Promise<boolean> {
    if (!this.isProcessSame()) return false;
    if ((await fileMark(this.#path)) !== this.#record) return false;
    const socket = this.#socket;
    return socket === undefined || !this.hadProcess || (await socketMark(socket.path)) === socket.mark;
  }
}

// At once, not through the thread pool: /proc is memory, and fifty of these cost less than one job of the pool.
function processMark(pid: number, procRoot: string | undefined): string {
  if (procRoot === undefined) return isPidInUse(pid) ? 'in use' : NOBODY;
  const folder = `${procRoot}/${pid}`;
  try {
    const info = statSync(folder, { throwIfNoEntry: false });
    return info === undefined ? NOBODY : `${info.ino} ${workingFolder(folder)}`;
  } catch (error) {
    return errorCode(error);
  }
}

function workingFolder(folder: string): string {
  try {
    return readlinkSync(`${folder}/cwd`);
  } catch (error) {
    return errorCode(error); // ended but not reaped, or not for us to see
  }
}

async function fileMark(path: string): Promise<string> {
  try {
    const info = await lstat(path);
    return `${identity(info)} ${info.size} ${info.mtimeMs} ${info.ctimeMs}`;
  } catch (error) {
    return errorCode(error);
  }
}

async function socketMark(path: string): Promise<string> {
  try {
    // Of the folder only whose it is: sockets of others come and go in it.
    return `${await fileMark(path)} ${identity(await lstat(dirname(path)))}`;
  } catch (error) {
    return errorCode(error);
  }
}

function identity(info: Stats): string {
  return `${info.dev}:${info.ino}:${info.mode}:${info.uid}`;
}
