/**
 * What LMDB's failures mean: want of space, a damaged store, a disk that fails, or none of these.
 *
 * Owns the translation into AxError `store_full`, `store_corrupt` and `internal`, and the probe that tells want of space where LMDB only
 * says that the disk failed. It keeps no state.
 */
import { closeSync, constants as fsConstants, openSync, statSync, unlinkSync, writeSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import { AxError } from '../../protocol/errors.ts';

/**
 * lmdb rejects with a second promise as `commitError`; left alone that one would be an unhandled rejection and end the process. It never
 * settles that promise for the errors 1 and 2 (EPERM, ENOENT), which it takes for news of its own: after a while the cause is called a
 * fault of the disk, which is looked into as any other.
 */
export async function commitCause(thrown: unknown): Promise<unknown> {
  const inner = thrown instanceof Error && 'commitError' in thrown ? thrown.commitError : undefined;
  if (!(inner instanceof Promise)) return thrown;
  const told = inner.then(
    () => thrown,
    (cause: unknown) => cause,
  );
  return Promise.race([told, untold()]);
}

/** What is told otherwise is told within a few turns of the event loop. */
async function untold(): Promise<unknown> {
  for (let turn = 0; turn < 10_000; turn++) await new Promise((resolve) => void setImmediate(resolve));
  return Object.assign(new Error('the disk refused a write'), { code: EIO });
}

/** Writes as far beyond the data file's end as the failed commit did, in a scratch file: returns what that fails with, if it does. */
export function spaceError(folder: string, bytes: number): unknown {
  const scratch = join(folder, 'space.tmp');
  try {
    const start = statSync(join(folder, 'data.mdb')).size;
    const fd = openSync(scratch, fsConstants.O_WRONLY | fsConstants.O_CREAT | fsConstants.O_TRUNC | fsConstants.O_NOFOLLOW, 0o600);
    try {
      const chunk = new Uint8Array(Math.min(bytes, 1024 * 1024));
      for (let done = 0; done < bytes;) done += writeSync(fd, chunk, 0, Math.min(chunk.length, bytes - done), start + done);
      return undefined;
    } finally {
      closeSync(fd);
      unlinkSync(scratch);
    }
  } catch (error) {
    return error;
  }
}

/** When to try again what found no room, ms. */
const FULL_RETRY_MS = 30_000;
const { EDQUOT, EFBIG, EIO, ENOSPC } = constants.errno;
/** LMDB: page not found, corrupted, version mismatch, invalid. */
const CORRUPT_CODES: ReadonlySet<number> = new Set([-30797, -30796, -30794, -30793]);
/** Space on the device, quota, file size, and LMDB's own map. */
const FULL_CODES: ReadonlySet<number> = new Set([ENOSPC, EDQUOT, EFBIG, -30792]);

/** Did the device itself fail, as LMDB tells it? That may be want of space: see spaceError. */
export function isDiskFault(error: unknown): boolean {
  return codeOf(error) === EIO;
}

/** The positive errno or negative LMDB code of an error of lmdb or node:fs. */
function codeOf(error: unknown): number | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, errno } = error as { code?: unknown; errno?: unknown };
  if (typeof errno === 'number') return Math.abs(errno);
  return typeof code === 'number' ? code : undefined;
}

/** An error of lmdb or node:fs as an AxError that begins with `what`; an AxError as it is. */
export function storeError(error: unknown, what: string): AxError {
  if (error instanceof AxError) return error;
  const code = codeOf(error) ?? 0;
  const text = `${what}: ${error instanceof Error ? error.message : String(error)}`;
  if (FULL_CODES.has(code))
    return new AxError('store_full', `${what}: no space left`, {
      fix: 'free some disk space',
      details: { retry_after_ms: FULL_RETRY_MS },
      cause: error,
    });
  return new AxError(CORRUPT_CODES.has(code) ? 'store_corrupt' : 'internal', code === EIO ? `${text} (the disk failed)` : text, {
    cause: error,
  });
}

/** What a store that was closed answers. */
export function closedError(): AxError {
  return new AxError('shutting_down', 'the store is closed');
}
