/**
 * Getting a fetched body out whole into a file before it may count as picked up; to stdout is write-out.ts.
 *
 * Owns which file that may be, and the rule that anything short of "all of it is on the disk" is an AxError `invalid_state`, after which the
 * caller must not confirm.
 */
import { constants } from 'node:fs';
import { lstat, mkdir, open, readdir, readFile, realpath, unlink } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { basename, dirname, join, relative, sep } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { isMessageId } from '../protocol/ids.ts';
import { isKeptName, KEPT_MS, keptFolder } from '../protocol/kept.ts';
import { absolute } from './environment.ts';
import type { Environment } from './environment.ts';
import { isOlderThan, visible } from './output.ts';
import { putWhole } from './whole-file.ts';

/**
 * The one form of name that an agent's shell may give a stranger's bytes: no instruction file, no code and no settings are called so, in any
 * folder, so that nothing loads it by itself later.
 */
const AGENT_NAME = /^ax-[A-Za-z0-9_-]{1,100}\.(?:txt|bin)$/;

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
