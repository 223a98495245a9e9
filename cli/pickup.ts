/**
 * Getting a fetched body out whole before it may count as picked up: to stdout in two parts, or to a file in one piece.
 *
 * Owns the rule that anything short of "every byte was taken" is an AxError `invalid_state`, after which the caller must not confirm.
 * Limit, known: a reader of a pipe that leaves is seen only by a later write. So the end of the text is held back for a moment and
 * then written; a reader that takes less than all and yet stays that long cannot be told from one that reads on.
 */
import { constants, fstatSync, fsyncSync } from 'node:fs';
import { lstat, mkdir, open, readdir, readFile, realpath, unlink } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { basename, dirname, join, relative, sep } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { isMessageId } from '../protocol/ids.ts';
import { isKeptName, KEPT_MS, keptFolder } from '../protocol/kept.ts';
import { absolute } from './environment.ts';
import type { Environment } from './environment.ts';
import { isOlderThan, visible } from './output.ts';
import { awaiting, pause } from './wait.ts';
import { putWhole } from './whole-file.ts';

/**
 * The one form of name that an agent's shell may give a stranger's bytes: no instruction file, no code and no settings are called so, in any
 * folder, so that nothing loads it by itself later.
 */
const AGENT_NAME = /^ax-[A-Za-z0-9_-]{1,100}\.(?:txt|bin)$/;

/** How long the last part is held back from a pipe, ms: `head -c1` is gone within a few. */
const HOLD_BACK_MS = 100;

function notTaken(cause: unknown): AxError {
  const code = (cause as NodeJS.ErrnoException).code;
  const why =
    code === 'EPIPE' || code === 'ECONNRESET'
      ? 'the output was closed before all of it was read'
      : `the output could not be written (${code ?? String(cause)})`;
  return new AxError('invalid_state', `${why}; the message does not count as fetched`, { cause });
}

/** Writes both parts to stdout and resolves when all of it was taken, as far as the system can tell. */
export async function writeOut(first: string, last: string): Promise<void> {
  const kind = fstatSync(1);
  await writePart(first);
  if (kind.isFIFO() || kind.isSocket()) await pause(HOLD_BACK_MS);
  await writePart(last);
  if (kind.isFile()) {
    try {
      fsyncSync(1);
    } catch (error) {
      throw notTaken(error);
    }
  }
}

async function writePart(text: string): Promise<void> {
  const written = new Promise<void>((resolve, reject) => {
    process.stdout.write(text, (error) => (error === null || error === undefined ? resolve() : reject(notTaken(error))));
  });
  await awaiting('the reader of the output', written);
}

/**
 * Refuses an --output that an agent may not write: inside a harness's shell it must be a new, visible file in the workspace with a name of
 * AGENT_NAME, because the bytes are a stranger's and a rule may let the command run unasked, for a read-only session too. Gives the path to write to, and whether a file is there already; while
 * the workspace is not known (null) only the rest is judged. AxError `invalid_argument`, `not_found`.
 */
export async function requireOutput(
  environment: Environment,
  file: string,
  workspace: string | null,
): Promise<{ readonly path: string; readonly exists: boolean }> {
  const folder = await realpath(dirname(absolute(file))).catch((error: NodeJS.ErrnoException) => {
    throw new AxError('not_found', `the folder of ${file} cannot be used (${error.code ?? error.message})`, { cause: error });
  });
  const path = join(folder, basename(file));
  const found = await lstat(path).catch(() => undefined);
  if (found !== undefined && !found.isFile()) throw new AxError('invalid_argument', `${path} exists and is not a plain file`);
  const exists = found !== undefined;
  if (environment.harnessShell === null) return { path, exists };
  if (exists)
    throw new AxError('invalid_argument', `${path} exists already: give another name; inside an agent's shell --output makes a new file`);
  if (workspace === null) {
    requireAgentName(path);
    return { path, exists };
  }
  const inside = relative(await realpath(workspace).catch(() => workspace), path);
  if (inside === '' || inside.startsWith('..') || inside.startsWith(sep)) {
    throw new AxError('invalid_argument', `inside an agent's shell --output stays in the workspace ${workspace}`);
  }
  if (visible(path) !== path)
    throw new AxError('invalid_argument', "inside an agent's shell --output takes no name with invisible characters");
  if (inside.split(sep).some((part) => part.startsWith('.')))
    throw new AxError('invalid_argument', "inside an agent's shell --output takes no hidden file or folder");
  requireAgentName(path);
  return { path, exists };
}

function requireAgentName(path: string): void {
  if (AGENT_NAME.test(basename(path))) return;
  throw new AxError('invalid_argument', "inside an agent's shell --output takes a file name of the form ax-NAME.txt or ax-NAME.bin", {
    fix: 'give such a name, as --output ax-message.txt',
  });
}

/** Writes the bytes whole (0600, fsynced with their folder) under their final name; AxError `invalid_state` when that fails. */
export async function writeFileWhole(path: string, bytes: Uint8Array, mayReplace: boolean): Promise<void> {
  try {
    const folder = await openFolder(dirname(path));
    try {
      await putWhole(join(folder.path, basename(path)), bytes, { mayReplace });
    } finally {
      await folder.handle.close();
    }
  } catch (error) {
    if (error instanceof AxError) throw error;
    const code = (error as NodeJS.ErrnoException).code ?? String(error);
    throw new AxError('invalid_state', `${path} could not be written (${code}); the message does not count as fetched`, { cause: error });
  }
}

/**
 * The folder itself, held open: an agent may put a link in the place of a folder of its workspace between the look at it and the write, and
 * this command may run outside of that agent's sandbox. Where the system has no path for an open folder, its name has to do.
 */
async function openFolder(folder: string): Promise<{ readonly handle: FileHandle; readonly path: string }> {
  const handle = await open(folder, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  if (process.platform !== 'linux') return { handle, path: folder };
  const path = `/proc/self/fd/${handle.fd}`;
  if ((await realpath(path)) === folder) return { handle, path };
  await handle.close();
  throw new AxError('invalid_state', `${folder} was replaced meanwhile; the message does not count as fetched`);
}

/**
 * Keeps a long body whole in `<state>/fetched/<id>`, for the owner only, and gives the path. Older ones go after 30 days. `kept`: the daemon
 * has put it there for a shell that can write nothing; then it is only made sure of.
 */
export async function keepWhole(environment: Environment, id: string, bytes: Uint8Array, kept?: string | null): Promise<string> {
  // The id comes from whatever answers at the socket: it must not lead elsewhere.
  if (!isMessageId(id)) throw new AxError('protocol_violation', 'the daemon gave an id that is none; the body is not kept');
  const folder = keptFolder(environment.stateDir);
  if (kept !== undefined && kept !== null) return requireKept(join(folder, id), bytes);
  await mkdir(folder, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'EEXIST') return;
    throw new AxError('invalid_state', `${folder} cannot be made (${error.code ?? error.message}); the message does not count as fetched`, {
      cause: error,
    });
  });
  const found = await lstat(folder);
  if (!found.isDirectory() || found.uid !== process.getuid?.())
    throw new AxError('invalid_state', `${folder} is not a folder of this user; the message does not count as fetched`);
  await prune(folder);
  const path = join(folder, id);
  await writeFileWhole(path, bytes, true);
  return path;
}

async function requireKept(path: string, bytes: Uint8Array): Promise<string> {
  const found = await readFile(path).catch(() => undefined);
  if (found !== undefined && found.equals(bytes)) return path;
  throw new AxError('invalid_state', `${path} does not hold the body; the message does not count as fetched`);
}

async function prune(folder: string): Promise<void> {
  for (const name of (await readdir(folder)).filter(isKeptName)) {
    const path = join(folder, name);
    // Another fetch may prune the same file at the same moment.
    const found = await lstat(path).catch(() => undefined);
    if (found !== undefined && isOlderThan(found.mtimeMs, KEPT_MS)) await unlink(path).catch(() => undefined);
  }
}
