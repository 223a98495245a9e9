/**
 * A settings file of a harness: read whole, shown as a change of lines, written whole.
 *
 * Owns what makes that safe: the file is a plain one of this user inside the harness's folder (a symbolic link may not lead out of it),
 * nothing is written when it changed since it was read, and at each moment either the old or the new text is there. Mode and group stay.
 */
import { constants } from 'node:fs';
import type { Stats } from 'node:fs';
import { lstat, open, readFile, realpath, stat } from 'node:fs/promises';
import { basename, dirname, join, sep } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { codeOf, putWhole, removeWhole } from './whole-file.ts';

const MAX_BYTES = 256 * 1024;
const BY_HAND = { fix: 'make the change by hand: in a session, `ax agent setup` names the lines that are missing' };

export interface SettingsFile {
  /** As a person knows it. */
  readonly path: string;
  /** What is written: the same, or what a link in the harness's folder leads to. */
  readonly real: string;
  /** Null when there is no file. */
  readonly text: string | null;
  readonly found: Stats | null;
}

/** A change that is planned and not yet made. */
export interface RuleChange {
  readonly file: SettingsFile;
  /** What the file is to hold; null when it is to go. */
  readonly text: string | null;
  /** The rules this is about, one line each. */
  readonly rules: readonly string[];
  readonly notes: readonly string[];
  /** What a person should know before they say yes. */
  readonly warnings: readonly string[];
  /** Makes it and checks it; AxError `invalid_state` when it cannot be made, with the old text in place. */
  write(): Promise<{ readonly checked: boolean; readonly how: string }>;
  /** Checks what is there already. */
  verify(): Promise<{ readonly checked: boolean; readonly how: string }>;
}

/**
 * Reads `path`, which must lie inside `folder`, the harness's own. A missing file is no error, a missing folder is: AxError `not_found`;
 * `invalid_state` for a file or folder that ax must not change.
 */
export async function readSettings(path: string, folder: string): Promise<SettingsFile> {
  const home = await realpath(folder).catch((error: unknown) => {
    throw new AxError('not_found', `there is no folder ${folder}: the harness was never started by this user`, {
      fix: 'start the harness once, then run it again',
      cause: error,
    });
  });
  requireOwn(await stat(home), folder);
  const above = await realpath(dirname(path)).catch(() => undefined);
  if (above === undefined) return { path, real: path, text: null, found: null };
  requireInside(above, home, path);
  const named = join(above, basename(path));
  const found = await lstat(named).catch(missing);
  if (found === null) return { path, real: named, text: null, found: null };
  const real = found.isSymbolicLink() ? await realpath(named).catch(() => named) : named;
  requireInside(real, home, path);
  const target = await lstat(real);
  if (!target.isFile()) throw new AxError('invalid_state', `${path} is not a plain file`, BY_HAND);
  requireOwn(target, path);
  if (target.size > MAX_BYTES) throw new AxError('invalid_state', `${path} is larger than 256 KiB: it is left alone`, BY_HAND);
  return { path, real, text: decode(await readFile(real), path), found: target };
}

function missing(error: NodeJS.ErrnoException): null {
  if (error.code === 'ENOENT') return null;
  throw new AxError('invalid_state', `the file cannot be looked at (${error.code ?? error.message})`, { cause: error });
}

function requireInside(real: string, home: string, path: string): void {
  if (real.startsWith(`${home}${sep}`) || real === home) return;
  throw new AxError('invalid_state', `${path} leads to ${real}, outside of ${home}: ax does not write there`, BY_HAND);
}

function requireOwn(found: Stats, path: string): void {
  if (found.uid !== process.getuid?.()) throw new AxError('invalid_state', `${path} belongs to another user (uid ${found.uid})`, BY_HAND);
}

function decode(bytes: Uint8Array, path: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (error) {
    throw new AxError('invalid_state', `${path} is not UTF-8 text: it is left alone`, { ...BY_HAND, cause: error });
  }
}

/**
 * Puts `text` in the place of the file (null takes it away) and gives what was there to whoever `check` is: it is called with the path of
 * the new text before that becomes the file, and what it throws leaves the old one. AxError `invalid_state` when the file changed meanwhile.
 */
export async function writeSettings(file: SettingsFile, text: string | null, check?: (aside: string) => Promise<void>): Promise<void> {
  const { found, path, real } = file;
  try {
    if (text === null) {
      await requireUnchanged(file);
      return await removeWhole(real);
    }
    await putWhole(real, text, {
      async prepare(handle) {
        if (found !== null && (await handle.stat()).gid !== found.gid) await handle.chown(found.uid, found.gid);
        await handle.chmod(found === null ? 0o600 : found.mode & 0o7777);
      },
      async check(aside) {
        await check?.(aside);
        await requireUnchanged(file);
      },
    });
  } catch (error) {
    if (error instanceof AxError) throw error;
    throw new AxError(
      'invalid_state',
      `${path} could not be ${text === null ? 'removed' : 'written'} (${codeOf(error)}); it is as it was`,
      {
        fix: 'look at the rights of its folder and the space on its disk, then run it again',
        cause: error,
      },
    );
  }
}

async function requireUnchanged(file: SettingsFile): Promise<void> {
  const handle = await open(file.real, constants.O_RDONLY | constants.O_NOFOLLOW).catch(() => undefined);
  try {
    const now = handle === undefined ? null : await handle.readFile('utf8');
    if (now !== file.text) throw new AxError('invalid_state', `${file.path} was changed meanwhile: nothing was written, run it again`);
  } finally {
    await handle?.close();
  }
}

/** The lines that go (`-`) and come (`+`), each with its number in the old or the new text; nothing around them, no empty ones. */
export function lineChanges(before: string, after: string): string[] {
  const old = before.split('\n');
  const next = after.split('\n');
  let start = 0;
  while (start < old.length && start < next.length && old[start] === next[start]) start += 1;
  let same = 0;
  while (same < Math.min(old.length, next.length) - start && old.at(-1 - same) === next.at(-1 - same)) same += 1;
  const lines: string[] = [];
  const go = (sign: '-' | '+', at: number): void => {
    const line = (sign === '-' ? old : next)[at]!;
    if (line.trim() !== '') lines.push(`${String(at + 1).padStart(5)} ${sign} ${line}`);
  };
  const common = commonTails(old.slice(start, old.length - same), next.slice(start, next.length - same));
  const [oldEnd, nextEnd] = [old.length - same, next.length - same];
  for (let i = start, j = start; i < oldEnd || j < nextEnd;) {
    if (i < oldEnd && j < nextEnd && old[i] === next[j]) {
      i += 1;
      j += 1;
    } else if (i < oldEnd && (j >= nextEnd || common[i - start + 1]![j - start]! >= common[i - start]![j - start + 1]!)) go('-', i++);
    else go('+', j++);
  }
  return lines;
}

/** For each pair of places, how many lines the rests behind them have in common, in order. */
function commonTails(old: readonly string[], next: readonly string[]): readonly Uint32Array[] {
  const common = Array.from({ length: old.length + 1 }, () => new Uint32Array(next.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = next.length - 1; j >= 0; j -= 1) {
      common[i]![j] = old[i] === next[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
    }
  }
  return common;
}
