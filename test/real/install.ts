/**
 * The genuine harnesses: pinned versions, installed by npm on first use into a cache folder outside the project's dependencies.
 *
 * Owns the cache folder (`AX_HARNESS_CACHE`, else `$XDG_CACHE_HOME/ax-harnesses`, else `~/.cache/ax-harnesses`), one folder per
 * package and version in it, and the path of the program itself. No install script runs: the packages carry native programs.
 * Invariant: a folder of a version is whole or not there; two test files that want it at once install it once.
 */
import { spawn } from 'node:child_process';
import { globSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import { isAlive } from '../e2e/processes.ts';

export type HarnessName = 'claude' | 'codex';

export interface Installed {
  readonly harness: HarnessName;
  readonly version: string;
  /** Absolute path of the native program. */
  readonly binary: string;
}

interface Pin {
  readonly package: string;
  readonly newest: string;
  readonly older: string;
}

/** The pinned packages and versions. */
export const PINS = JSON.parse(readFileSync(join(import.meta.dirname, 'versions.json'), 'utf8')) as Readonly<Record<HarnessName, Pin>>;

/** Where the program lies inside `node_modules`; the part of the platform is npm's choice. */
const PROGRAMS: Readonly<Record<HarnessName, string>> = {
  claude: '@anthropic-ai/claude-code-*/claude',
  codex: '@openai/codex-*/vendor/*/bin/codex',
};
const LIMIT_MS = 300_000;
const POLL_MS = 100;
/** npm's words for a mistake of ours; everything else that makes it fail is this machine or its network. */
const OUR_MISTAKE = /\b(ETARGET|EINTEGRITY|EINVALIDPACKAGENAME|EJSONPARSE)\b/;

/** This machine cannot have the harness (no npm, no network, no room, no such platform): the message says why, in one line. */
export class NotInstallable extends Error {}

/** The versions this run is about: the newest of each harness, and the older one too when `AX_REAL_VERSIONS=all`. */
export function versionsOf(harness: HarnessName): readonly string[] {
  const { newest, older } = PINS[harness];
  return process.env['AX_REAL_VERSIONS'] === 'all' ? [newest, older] : [newest];
}

/** The cache folder; made when missing, this account's alone. */
export function cacheFolder(): string {
  const own = process.env['AX_HARNESS_CACHE'];
  const cache = process.env['XDG_CACHE_HOME'];
  const folder = own ? own : join(cache ? cache : join(homedir(), '.cache'), 'ax-harnesses');
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  return folder;
}

const underWay = new Map<string, Promise<Installed>>();

/** The program of a pinned version, installed first when needed. Rejects with NotInstallable when this machine cannot have it. */
export function install(harness: HarnessName, version: string = PINS[harness].newest): Promise<Installed> {
  const key = `${harness}@${version}`;
  let task = underWay.get(key);
  if (task === undefined) underWay.set(key, (task = installOnce(harness, version)));
  return task;
}

async function installOnce(harness: HarnessName, version: string): Promise<Installed> {
  let cache: string;
  try {
    cache = cacheFolder();
  } catch (error) {
    throw new NotInstallable(`no cache folder: ${(error as Error).message}`, { cause: error });
  }
  const folder = join(cache, `${harness}@${version}`);
  const lock = `${folder}.lock`;
  const end = performance.now() + LIMIT_MS;
  for (;;) {
    const found = programIn(harness, folder);
    if (found !== undefined) return { harness, version, binary: found };
    if (take(lock)) break;
    if (performance.now() > end) throw new NotInstallable(`another run holds ${lock} for ${LIMIT_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  const stage = `${folder}.new-${process.pid}`;
  try {
    mkdirSync(stage, { recursive: true });
    // A manifest of its own: else npm would look for one in the folders above.
    writeFileSync(join(stage, 'package.json'), '{ "name": "ax-harness", "private": true }\n');
    await npmInstall(stage, `${PINS[harness].package}@${version}`);
    const staged = programIn(harness, stage);
    if (staged === undefined)
      throw new NotInstallable(`${PINS[harness].package}@${version} brings no program for ${process.platform} ${process.arch}`);
    rmSync(folder, { recursive: true, force: true }); // one without a program
    try {
      renameSync(stage, folder);
    } catch (error) {
      if (programIn(harness, folder) === undefined) throw error; // else another run was quicker
    }
    return { harness, version, binary: programIn(harness, folder) ?? staged };
  } finally {
    rmSync(stage, { recursive: true, force: true });
    rmSync(lock, { force: true });
  }
}

function programIn(harness: HarnessName, folder: string): string | undefined {
  const [found] = globSync(join(folder, 'node_modules', PROGRAMS[harness]));
  return found;
}

/** True when the lock is ours now; one whose owner has died is removed, so that the next try may have it. */
function take(lock: string): boolean {
  try {
    writeFileSync(lock, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw new NotInstallable((error as Error).message, { cause: error });
  }
  try {
    const owner = Number(readFileSync(lock, 'utf8'));
    if (owner > 0 && !isAlive(owner)) rmSync(lock, { force: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error; // its owner has just finished
  }
  return false;
}

/** The system's PATH, without the programs of this project's own packages. */
export function systemPath(): string {
  return (process.env['PATH'] ?? '/usr/bin:/bin')
    .split(delimiter)
    .filter((folder) => !folder.includes(`node_modules`))
    .join(delimiter);
}

async function npmInstall(folder: string, what: string): Promise<void> {
  const words = [
    'install',
    what,
    '--prefix',
    folder,
    '--ignore-scripts',
    '--no-package-lock',
    '--no-audit',
    '--no-fund',
    '--loglevel=error',
  ];
  // What npm told the scripts of this project must not steer the install; certificates and proxies pass.
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^npm_(lifecycle|package|command|execpath|node)/.test(name)),
  );
  const child = spawn('npm', words, { cwd: folder, env: { ...env, PATH: systemPath() }, stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (chunk: string) => (said += chunk));
  const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS);
  const status = await new Promise<number | string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) => resolve(code ?? signal ?? 'unknown'));
  });
  clearTimeout(timer);
  if (status === 0) return;
  const lines = said.split('\n').filter((line) => line.trim() !== '' && !line.includes('complete log of this run'));
  const why = `npm install ${what}: ${lines.slice(0, 3).join(' ') || status}`;
  throw OUR_MISTAKE.test(said) ? new Error(why) : new NotInstallable(why);
}
