/**
 * The one lock of a state directory: whoever holds it is the daemon there, and nobody else opens the store or the socket.
 *
 * Owns an OS file lock held for the life of the process (a kill -9 releases it). The pid written into the file is for people
 * to read and decides nothing; the file is never removed, for a removed lock file would let two processes lock two files.
 * Invariant: at most one process on this machine holds the lock of a path.
 */
import { closeSync, constants, fchmodSync, fstatSync, ftruncateSync, lstatSync, openSync, readSync, writeSync } from 'node:fs';
import { tryLock } from 'fs-native-extensions';
import { AxError } from '../protocol/errors.ts';

export interface Lock {
  readonly path: string;
  /** Gives the lock back; a second call does nothing. */
  release(): void;
}

/**
 * Takes the lock of `path` (file made with mode 0600 if absent; its folder must exist). Throws AxError `invalid_state` if another
 * process holds it, or if the path is a symbolic link, no regular file, or another user's; `internal` if it cannot be opened or locked.
 */
export async function takeLock(path: string): Promise<Lock> {
  for (let tries = 0; tries < 10; tries++) {
    const fd = openLockFile(path);
    try {
      if (!lockFile(fd, path)) throw heldElsewhere(fd, path);
      if (isStillAt(fd, path)) return hold(fd, path);
    } catch (error) {
      closeSync(fd);
      throw error;
    }
    // Somebody replaced the file between opening and locking it: the lock is on a file that nobody else will look at.
    closeSync(fd);
  }
  throw new AxError('internal', `${path} is replaced again and again; something else uses it`);
}

function hold(fd: number, path: string): Lock {
  ftruncateSync(fd, 0);
  writeSync(fd, `${process.pid}\n`, 0);
  let open = true;
  return {
    path,
    release() {
      if (!open) return;
      open = false;
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

function heldElsewhere(fd: number, path: string): AxError {
  const text = Buffer.alloc(32);
  const pid = text.toString('latin1', 0, readSync(fd, text, 0, text.length, 0)).trim();
  const who = /^[0-9]{1,10}$/.test(pid) ? ` (process ${pid})` : '';
  return new AxError(
    'invalid_state',
    `another daemon holds this directory${who}: ${path} is locked`,
    who === '' ? {} : { details: { pid: Number(pid) } },
  );
}
