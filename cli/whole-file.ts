/**
 * A file that is at each moment the old one or the new one, and never half of one: written aside in its folder, flushed, renamed.
 *
 * Owns that order, and that the folder is flushed too. What it throws of the system's is for the caller to put into words; it does not judge
 * whether the file may be written.
 */
import { link, open, rename, unlink } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { randomWord } from './random.ts';

export interface WholeOptions {
  /** False: a file that is there stays, and the error is EEXIST. */
  readonly mayReplace?: boolean;
  /** Owner and mode of the new file, before it is flushed; it begins as 0600. */
  readonly prepare?: (file: FileHandle) => Promise<void>;
  /** Called with the path of the whole new file before it takes its place; what it throws leaves the old one. */
  readonly check?: (aside: string) => Promise<void>;
}

/** Puts `bytes` into the place of `path`; durable on return. What it throws leaves what was there, but for the AxError of `flushFolder`. */
export async function putWhole(path: string, bytes: Uint8Array | string, options: WholeOptions = {}): Promise<void> {
  const { mayReplace = true, prepare, check } = options;
  const aside = join(dirname(path), `.ax-${randomWord()}.part`);
  try {
    const file = await open(aside, 'wx', 0o600);
    try {
      await file.writeFile(bytes);
      await prepare?.(file);
      await file.sync();
    } finally {
      await file.close();
    }
    await check?.(aside);
    if (mayReplace) await rename(aside, path);
    else {
      await link(aside, path);
      await unlink(aside);
    }
  } catch (error) {
    await unlink(aside).catch(() => undefined); // what went wrong first is what counts
    throw error;
  }
  await flushFolder(path);
}

/** Takes the file away for good; a file that is not there is an error. AxError as `flushFolder`. */
export async function removeWhole(path: string): Promise<void> {
  await unlink(path);
  await flushFolder(path);
}

/** AxError `invalid_state`: the change of `path` is made, and a loss of power may undo it. */
async function flushFolder(path: string): Promise<void> {
  try {
    const folder = await open(dirname(path), 'r');
    try {
      await folder.sync();
    } finally {
      await folder.close();
    }
  } catch (error) {
    throw new AxError(
      'invalid_state',
      `${path} is changed, but its folder could not be flushed (${codeOf(error)}): a loss of power may undo it`,
      { cause: error },
    );
  }
}

/** The system's word for what went wrong, such as ENOSPC. */
export function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? String(error);
}
