/**
 * The one lock of a state directory: whoever holds it is the daemon there, and nobody else opens the store or the socket.
 *
 * Owns an OS file lock held for the life of the process (a kill -9 releases it). The pid written into the file is for people
 * to read and decides nothing; the file is never removed, for a removed lock file would let two processes lock two files. The machine
 * written beside it guards a folder that two machines share and whose file system keeps their locks apart.
 * Invariant: at most one process on this machine holds the lock of a path.
 */
import { createHash } from 'node:crypto';
import {
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  ftruncateSync,
  lstatSync,
  openSync,
  readFileSync,
  readSync,
  writeSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { tryLock } from 'fs-native-extensions';
import { AxError } from '../protocol/errors.ts';

/** A daemon writes to its store each minute: what was written this lately, ms, has a daemon. */
const ALIVE_MS = 180_000;

/** Which machine this is: `id` is the same after a restart, and on another only where its disk was copied; `name` is for people. */
export interface Machine {
  readonly id: string;
  readonly name: string;
}

export interface LockOptions {
  /** A file that a daemon writes at least each minute while it lives. */
  readonly aliveFile?: string;
  /** Default: this machine; undefined where it cannot be told from others. */
  readonly machine?: Machine | undefined;
}

export interface Lock {
  readonly path: string;
  /** Gives the lock back, and the folder to whatever machine takes it next; a second call does nothing. */
  release(): void;
}

/**
 * Takes the lock of `path` (file made with mode 0600 if absent; its folder must exist). Throws AxError `invalid_state` if another
 * process holds it, if a daemon of another machine seems to live on the folder, or if the path is a symbolic link, no regular file, or
 * another user's; `internal` if it cannot be opened or locked.
 */
export async function takeLock(path: string, options: LockOptions = {}): Promise<Lock> {
  const machine = 'machine' in options ? options.machine : thisMachine();
  for (let tries = 0; tries < 10; tries++) {
    const fd = openLockFile(path);
    try {
      if (!lockFile(fd, path)) throw heldElsewhere(fd, path, machine);
      if (isStillAt(fd, path)) {
        requireQuiet(fd, options.aliveFile, machine);
        return hold(fd, path, machine);
      }
    } catch (error) {
      closeSync(fd);
      throw error;
    }
    // Somebody replaced the file between opening and locking it: the lock is on a file that nobody else will look at.
    closeSync(fd);
  }
  throw new AxError('internal', `${path} is replaced again and again; something else uses it`);
}

function hold(fd: number, path: string, machine: Machine | undefined): Lock {
  ftruncateSync(fd, 0);
  writeSync(fd, `${process.pid}\n${machine === undefined ? '' : `${machine.id} ${machine.name}\n`}`, 0);
  let open = true;
  return {
    path,
    release() {
      if (!open) return;
      open = false;
      ftruncateSync(fd, 0);
      closeSync(fd);
    },
  };
}

function openLockFile(path: string): number {
  let fd: number;
  try {
    // O_NONBLOCK: a FIFO in its place is refused below instead of holding us here. Node opens everything close-on-exec.
    fd = openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK, 0o600);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'ELOOP') throw new AxError('invalid_state', `${path} is a symbolic link; the lock must be a file of its own`);
    if (code === 'EISDIR' || code === 'ENXIO') throw new AxError('invalid_state', `${path} is not a regular file`);
    throw new AxError('internal', `cannot open the lock ${path}: ${(error as Error).message}`, { cause: error });
  }
  try {
    const stat = fstatSync(fd);
    if (!stat.isFile()) throw new AxError('invalid_state', `${path} is not a regular file`);
    if (process.geteuid !== undefined && stat.uid !== process.geteuid())
      throw new AxError('invalid_state', `${path} belongs to another user`);
    fchmodSync(fd, 0o600);
    return fd;
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}

function lockFile(fd: number, path: string): boolean {
  try {
    return tryLock(fd);
  } catch (error) {
    throw new AxError('internal', `cannot lock ${path}: ${(error as Error).message}`, { cause: error });
  }
}

function isStillAt(fd: number, path: string): boolean {
  const ours = fstatSync(fd);
  const there = lstatSync(path, { throwIfNoEntry: false });
  return there !== undefined && there.ino === ours.ino && there.dev === ours.dev;
}

/** What a holder wrote: its process, and its machine where it knew that. */
function recordOf(fd: number): { readonly pid: number | undefined; readonly machine: Machine | undefined; readonly bytes: Buffer } {
  const text = Buffer.alloc(512);
  const bytes = text.subarray(0, readSync(fd, text, 0, text.length, 0));
  const [first = '', second = ''] = bytes.toString('latin1').split('\n');
  const [, id, name] = /^([0-9a-f]{16}) ([\x21-\x7e]{1,255})$/.exec(second) ?? [];
  const pid = /^[0-9]{1,10}$/.test(first.trim()) ? Number(first) : undefined;
  return { pid, machine: id === undefined || name === undefined ? undefined : { id, name }, bytes };
}

/** The machine in the record, when that is another one than this. */
function otherMachine(found: Machine | undefined, own: Machine | undefined): Machine | undefined {
  return found !== undefined && own !== undefined && found.id !== own.id ? found : undefined;
}

/**
 * The lock is ours, yet the last holder was on another machine and never gave it back: it crashed and the folder was moved, or the two
 * share the folder and their locks do not meet. Only what it wrote last tells; both times come from the same file system.
 */
function requireQuiet(fd: number, aliveFile: string | undefined, own: Machine | undefined): void {
  const { machine, bytes } = recordOf(fd);
  const other = otherMachine(machine, own);
  const alive = other === undefined || aliveFile === undefined ? undefined : lstatSync(aliveFile, { throwIfNoEntry: false });
  if (other === undefined || alive === undefined) return;
  writeSync(fd, bytes, 0, bytes.length, 0); // the same bytes again: their time is now
  const age = fstatSync(fd).mtimeMs - alive.mtimeMs;
  if (age > ALIVE_MS) return;
  throw new AxError(
    'invalid_state',
    `a daemon on another machine (${other.name}) seems to use this folder: it wrote there ${spanOf(age)} ago`,
    {
      fix: `stop it on ${other.name}; if none runs there any more, start here again in ${ALIVE_MS / 60_000} minutes`,
      details: { machine: other.name },
    },
  );
}

function spanOf(ms: number): string {
  return `${Math.max(0, Math.round(ms / 1000))} s`;
}

function heldElsewhere(fd: number, path: string, own: Machine | undefined): AxError {
  const { pid, machine } = recordOf(fd);
  const other = otherMachine(machine, own);
  // A process of another machine has a number that means some other process here.
  if (other !== undefined)
    return new AxError('invalid_state', `a daemon on another machine (${other.name}) holds this directory: ${path} is locked`, {
      fix: `stop it on ${other.name}`,
      details: { machine: other.name },
    });
  const who = pid === undefined ? '' : ` (process ${pid})`;
  return new AxError(
    'invalid_state',
    `another daemon holds this directory${who}: ${path} is locked`,
    pid === undefined ? {} : { details: { pid } },
  );
}

/** Linux's machine id, hashed: it is not to be shown around. Elsewhere a machine cannot be told from another for sure. */
function thisMachine(): Machine | undefined {
  let id: string;
  try {
    id = readFileSync('/etc/machine-id', 'latin1').trim();
  } catch {
    return undefined;
  }
  if (!/^[0-9a-f]{32}$/.test(id)) return undefined;
  const name =
    hostname()
      .replaceAll(/[^\x21-\x7e]/g, '_')
      .slice(0, 255) || 'unnamed';
  return { id: createHash('sha256').update(`ax machine ${id}`).digest('hex').slice(0, 16), name };
}
