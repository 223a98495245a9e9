/**
 * Is this installation of ax one that a harness may be told to run unasked, outside of its sandbox?
 *
 * Owns the answer: only when no agent can put something else in its place. Each file that decides what runs lies, as named and as
 * it really is, in folders that belong to this user or to root and that no one else may write, and in no workspace and no temporary folder; and none of them leaves it to the PATH which Node runs.
 */
import { closeSync, existsSync, lstatSync, openSync, readSync, realpathSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { call } from './client.ts';
import type { Environment, Place } from './environment.ts';

/** Words that a rule can hold without quotes and signs of its own. */
const PLAIN_PATH = /^\/[A-Za-z0-9_./@%+=,-]+$/;
const REPOSITORIES = ['.git', '.hg', '.jj', '.svn'];
const FOLDERS_TIMEOUT_MS = 2_000;
/** More than any launcher has, bytes. */
const MAX_LAUNCHER_BYTES = 16_384;
/** The lines of a launcher, comments left out; group 1 and 2: the Node and what it runs. The shell itself searches nothing for them. */
const LAUNCHER_WORD = String.raw`('/[^'\\\n]+'|"\$lib/[\w./-]+")`;
const LAUNCHER_EXEC = new RegExp(
  String.raw`^(?:\[ -x ${LAUNCHER_WORD.replace('(', '(?:')} \] && )?exec ${LAUNCHER_WORD} ${LAUNCHER_WORD} "\$@"$`,
);
const LAUNCHER_LIB = /^lib='(\/[^'\\\n]+)'$/;
const LAUNCHER_OTHER = /^(?:echo "[^"$`\\]*" >&2|exit \d+|)$/;

/** Folders for temporary files: every agent's sandbox may write there, and a start of the machine may empty them. */
export function temporaryFolders(): readonly string[] {
  return ['/tmp', '/var/tmp', '/dev/shm', '/private/tmp', tmpdir()];
}

export const isUnder = (path: string, folder: string): boolean =>
  path === folder || path.startsWith(folder.endsWith('/') ? folder : `${folder}/`);

/** Why a rule must not name this installation, for people; undefined when it may. */
export function placeProblem(
  place: Place,
  workspaces: readonly string[] = [],
  temporary: readonly string[] = temporaryFolders(),
): string | undefined {
  if (!PLAIN_PATH.test(place.path)) return `the path ${place.path} has characters that a rule cannot hold`;
  const problem = replaceProblem(place.files, workspaces, temporary);
  if (problem !== undefined) return problem;
  const started = place.files.map(startedBy);
  const vague = started.find((found) => typeof found === 'string');
  return vague ?? replaceProblem(started.flat(), workspaces, temporary) ?? stateProblem(place, workspaces, temporary);
}

/** Why an agent may be able to put something else in the place of one of these files (absolute); undefined when it is not. */
export function replaceProblem(
  named: readonly string[],
  workspaces: readonly string[] = [],
  temporary: readonly string[] = temporaryFolders(),
): string | undefined {
  // As they are named, and what they really are: a link can be the weak part of either.
  const files = [...new Set(named.flatMap((file) => [file, realpathSync(existing(file))]))];
  return first(files, (file) => whereProblem(file, workspaces, temporary)) ?? first(files.map(existing), (file) => writableProblem(file));
}

const first = <T>(files: readonly string[], judge: (file: string) => T | undefined): T | undefined =>
  files.map(judge).find((found) => found !== undefined);

/** The path, or while nothing is there its nearest folder that is: whoever may write there may make it. */
function existing(path: string): string {
  return path === '/' || lstatSync(path, { throwIfNoEntry: false }) !== undefined ? path : existing(dirname(path));
}

/** A state folder that the rule names: what lies there decides whom the command asks. */
function stateProblem({ stateDir }: Place, workspaces: readonly string[], temporary: readonly string[]): string | undefined {
  const problem = stateDir === undefined ? undefined : replaceProblem([stateDir], workspaces, temporary);
  return problem === undefined ? undefined : `of its state folder: ${problem}`;
}

/**
 * The programs that a script starts by absolute paths, none for what is no script; or, as a sentence, why it is not known which they are.
 * `#!/usr/bin/env node` takes the first Node of the PATH of whoever calls, and a session's PATH may begin with a folder that an agent fills.
 */
export function startedBy(file: string): readonly string[] | string {
  const text = beginning(file);
  if (!text.startsWith('#!')) return [];
  const [shebang = '', ...lines] = text.split('\n');
  const [interpreter = '', argument] = shebang.slice(2).trim().split(/\s+/);
  const isAbsolute = interpreter.startsWith('/') && argument === undefined;
  if (isAbsolute && basename(interpreter) === 'node') return [interpreter];
  const found = isAbsolute && basename(interpreter) === 'sh' ? launcherFiles(lines) : undefined;
  return found ?? `${file} leaves it to the PATH of the session which Node runs (it names none by an absolute path)`;
}

/** What a launcher of `make install` starts; undefined for any other script. */
function launcherFiles(lines: readonly string[]): readonly string[] | undefined {
  let lib: string | undefined;
  const files: string[] = [];
  for (const line of lines.filter((one) => !one.startsWith('#'))) {
    const [, node, code] = LAUNCHER_EXEC.exec(line) ?? [];
    const words = [node, code].flatMap((word) => word ?? []);
    if (words.some((word) => word.startsWith('"') && lib === undefined)) return undefined;
    files.push(...words.map((word) => word.slice(1, -1).replace('$lib', lib ?? '')));
    const named = LAUNCHER_LIB.exec(line)?.[1];
    if (named !== undefined && lib !== undefined) return undefined;
    lib ??= named;
    if (words.length === 0 && named === undefined && !LAUNCHER_OTHER.test(line)) return undefined;
  }
  return files.length > 0 ? files : undefined;
}

function beginning(file: string): string {
  const descriptor = openSync(file, 'r');
  try {
    const bytes = Buffer.alloc(MAX_LAUNCHER_BYTES);
    return bytes.toString('latin1', 0, readSync(descriptor, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(descriptor);
  }
}

function whereProblem(file: string, workspaces: readonly string[], temporary: readonly string[]): string | undefined {
  const home = temporary.find((folder) => isUnder(file, folder));
  if (home !== undefined) return `${file} lies in ${home}, where agents may write`;
  if (file.includes('/node_modules/.bin/')) return `${file} lies in a node_modules/.bin folder, which every install of a package rewrites`;
  const workspace = workspaces.find((folder) => isUnder(file, folder));
  if (workspace !== undefined) return `${file} lies in ${workspace}, the workspace of an agent`;
  return undefined;
}

function writableProblem(file: string): string | undefined {
  for (let at = file; ; at = dirname(at)) {
    const found = lstatSync(at);
    if (found.uid !== 0 && found.uid !== process.getuid?.()) return `${at} belongs to another user (uid ${found.uid})`;
    if (!found.isSymbolicLink() && (found.mode & 0o022) !== 0) return `${at} may be written by others than its owner`;
    if (at === '/') return undefined;
    const repository = REPOSITORIES.map((name) => join(dirname(at), name)).find((path) => existsSync(path));
    if (repository !== undefined) return `${file} lies in a workspace (there is ${repository})`;
  }
}

/**
 * Folders of the PATH that come before the one of ax and that an agent may write: a bare `ax` would be found there first. The PATH is this
 * terminal's, and a session may have another; so this warns and refuses nothing.
 */
export function pathWarnings(place: Place, path: readonly string[], temporary: readonly string[] = temporaryFolders()): string[] {
  if (place.word !== 'ax') return [];
  const at = path.indexOf(dirname(place.path));
  return path.slice(0, at < 0 ? path.length : at).flatMap((folder) => {
    const problem = !folder.startsWith('/')
      ? 'it is not absolute, so each workspace is searched'
      : existsSync(folder)
        ? (whereProblem(join(folder, 'ax'), [], temporary) ?? writableProblem(realpathSync(folder)))
        : undefined;
    return problem === undefined
      ? []
      : [`"${folder}" comes before ${dirname(place.path)} on the PATH, and an agent may put its own ax there: ${problem}`];
  });
}

/**
 * AxError `invalid_state` when a rule must not name this installation; asks the daemon for the agents' workspaces. Gives what could not be
 * looked at, for people.
 */
export async function requireSafePlace(environment: Environment, place: Place): Promise<string[]> {
  const { stateDir } = environment.ax;
  if (stateDir !== undefined && !PLAIN_PATH.test(stateDir))
    throw new AxError('invalid_state', `no rule is safe here: the state folder ${stateDir} has characters that a rule cannot hold`, {
      fix: 'choose a state folder of plain letters, digits and "_-.", and move what is in this one there while no daemon runs',
    });
  const workspaces = await workspacesOf(environment);
  const problem = placeProblem(place, workspaces);
  if (problem === undefined) return workspaces === undefined ? [UNSEEN] : [];
  throw new AxError('invalid_state', `no rule is safe for this ax: ${problem}; what an agent can replace would run unasked`, {
    fix: 'install it where only you or root may write (make install PREFIX=/usr/local), and run that one',
  });
}

const UNSEEN =
  'the daemon did not answer, so the workspaces of the agents here are not known: whether one of them holds this ax was not checked';

/** The workspaces of this host's agents; undefined when no daemon answers. */
export async function workspacesOf(environment: Environment): Promise<string[] | undefined> {
  try {
    const { agents } = await call<{ agents: { workspace: string }[] }>(environment, 'agent.list', {}, { timeoutMs: FOLDERS_TIMEOUT_MS });
    return agents.map((agent) => agent.workspace).filter((workspace) => workspace !== '/');
  } catch {
    return undefined; // the other checks stand, and that this one is missing is told
  }
}
