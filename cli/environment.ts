/**
 * What the CLI takes from its surroundings: variables, folders, the harness's shell it may run in, how ax itself is called.
 *
 * Owns the only reads of process.env and the only randomness. Origin is what AX_* and the global flags say and is never guessed; the session is what
 * the harness's shell exports, unproved: the daemon checks it.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { existsSync, realpathSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import type { Origin, SessionEnvironment } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import { axCommand, fetchCommand, USUAL_PATH } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { controlSocketPath, defaultStateDir, parseWorkspace } from '../protocol/paths.ts';

export { axCommand };

export const FORMATS = ['human', 'json', 'csv', 'tsv'] as const;
export type Format = (typeof FORMATS)[number];

/** The global flags as typed; each beats its variable. */
export interface GlobalFlags {
  readonly stateDir?: string | undefined;
  readonly profile?: string | undefined;
  readonly format?: string | undefined;
  readonly harness?: string | undefined;
  readonly harnessVersion?: string | undefined;
  readonly harnessSession?: string | undefined;
  readonly localWorkspace?: string | undefined;
}

export interface Environment {
  readonly stateDir: string;
  readonly socketPath: string;
  readonly format: Format;
  readonly origin: Origin;
  /** Set when the shell this runs in belongs to a session that can be reached. */
  readonly session: SessionEnvironment | null;
  /** The harness whose shell this is, reachable or not. */
  readonly harnessShell: 'claude' | 'codex' | null;
  /** Canonical; null when the working directory has gone, or has a path that no record may hold. */
  readonly localWorkspace: string | null;
  readonly ax: AxCommand;
}

const set = (value: string | undefined): string | undefined => (value === undefined || value === '' ? undefined : value);

/** Throws AxError `usage` for --profile and an unknown --format. */
export function readEnvironment(flags: GlobalFlags): Environment {
  const env = process.env;
  if (set(flags.profile ?? env['AX_PROFILE']) !== undefined) {
    throw new AxError('usage', '--profile is reserved and not there yet; use --state-dir DIR for another state folder');
  }
  const usual = defaultStateDir({ platform: process.platform, home: homedir(), xdgStateHome: env['XDG_STATE_HOME'] });
  const stateDir = canonical(set(flags.stateDir ?? env['AX_STATE_DIR']) ?? usual);
  const isUsual = stateDir === canonical(usual);
  const localWorkspace = readLocalWorkspace(set(flags.localWorkspace ?? env['AX_LOCAL_WORKSPACE']));
  return {
    stateDir,
    socketPath: controlSocketPath(stateDir, process.getuid?.() ?? 0),
    format: parseFormat(set(flags.format ?? env['AX_FORMAT']) ?? 'human'),
    origin: {
      harness: set(flags.harness ?? env['AX_HARNESS']) ?? null,
      harness_version: set(flags.harnessVersion ?? env['AX_HARNESS_VERSION']) ?? null,
      session_id: set(flags.harnessSession ?? env['AX_HARNESS_SESSION']) ?? null,
      workspace: localWorkspace,
      integration: 'cli',
    },
    session: readSession(env),
    harnessShell: harnessShell(env),
    localWorkspace,
    ax: { program: axProgram(), ...(isUsual ? {} : { stateDir }) },
  };
}

/** A folder that was named must be one; the working directory is nobody's choice, so what is wrong with it fails no command. */
function readLocalWorkspace(typed: string | undefined): string | null {
  if (typed !== undefined) return parseWorkspace(canonical(typed));
  try {
    return parseWorkspace(realpathSync(process.cwd()));
  } catch {
    return null;
  }
}

/** The local workspace for a command that cannot do without one; AxError `invalid_state`. */
export function requireLocalWorkspace(environment: Environment, instead: string): string {
  if (environment.localWorkspace !== null) return environment.localWorkspace;
  throw new AxError(
    'invalid_state',
    'the working directory is gone, or its path holds characters that cannot be seen: it is no workspace',
    {
      fix: `run it in another folder, or ${instead}`,
    },
  );
}

/** A path as typed, made absolute; AxError `invalid_argument` when that takes a working directory and there is none. */
export function absolute(path: string): string {
  try {
    return resolve(path);
  } catch (error) {
    throw new AxError('invalid_argument', `the working directory is gone: give ${path} as an absolute path`, { cause: error });
  }
}

function parseFormat(value: string): Format {
  if ((FORMATS as readonly string[]).includes(value)) return value as Format;
  throw new AxError('usage', `--format is one of ${FORMATS.join(', ')}`);
}

/** The format asked for, as far as it can be told before the line was understood: a usage error must have it too. */
export function formatOf(args: readonly string[]): Format {
  const known = (value: string | undefined): Format | undefined => FORMATS.find((format) => format === value);
  for (const [i, arg] of args.entries()) {
    if (arg === '--') break;
    const found = arg === '--format' ? known(args[i + 1]) : arg.startsWith('--format=') ? known(arg.slice(9)) : undefined;
    if (found !== undefined) return found;
  }
  return known(process.env['AX_FORMAT']) ?? 'human';
}

/** How ax is called for the state folder of this line, as far as it can be told before the line was understood. */
export function axOf(args: readonly string[]): AxCommand {
  const at = args.findIndex((arg) => arg === '--state-dir' || arg.startsWith('--state-dir='));
  const typed = at < 0 ? undefined : args[at]?.startsWith('--state-dir=') === true ? args[at].slice('--state-dir='.length) : args[at + 1];
  const usual = defaultStateDir({ platform: process.platform, home: homedir(), xdgStateHome: process.env['XDG_STATE_HOME'] });
  try {
    const stateDir = canonical(set(typed ?? process.env['AX_STATE_DIR']) ?? usual);
    return { program: axProgram(), ...(stateDir === canonical(usual) ? {} : { stateDir }) };
  } catch {
    return { program: axProgram() }; // a relative state folder in a working directory that is gone: the error that is told says so
  }
}

/** Real path of the folder, or, while it does not exist, of its nearest ancestor that does, with the rest behind it. */
function canonical(path: string): string {
  const whole = absolute(path);
  try {
    return realpathSync(whole);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (whole === '/' || (code !== 'ENOENT' && code !== 'ENOTDIR' && code !== 'EACCES')) return whole;
    return join(canonical(dirname(whole)), basename(whole));
  }
}

function readSession(env: NodeJS.ProcessEnv): SessionEnvironment | null {
  const session = set(env['CLAUDE_CODE_SESSION_ID']);
  const socket = set(env['CLAUDE_CODE_MESSAGING_SOCKET']);
  const pid = Number(env['CLAUDE_PID']);
  if (session === undefined || socket === undefined || !Number.isSafeInteger(pid) || pid < 1) return null;
  return { harness: 'claude', session_id: session, pid, socket, config_dir: set(env['CLAUDE_CONFIG_DIR']) ?? null };
}

function harnessShell(env: NodeJS.ProcessEnv): 'claude' | 'codex' | null {
  if (set(env['CLAUDECODE']) !== undefined || set(env['CLAUDE_CODE_SESSION_ID']) !== undefined) return 'claude';
  // CODEX_HOME is configuration that a person may export everywhere.
  const isCodex = Object.keys(env).some((name) => name.startsWith('CODEX_') && name !== 'CODEX_HOME' && set(env[name]) !== undefined);
  return isCodex ? 'codex' : null;
}

/** The environment a daemon is started with: a harness's shell marks every process it starts as its own, and a daemon is not. */
export function daemonEnvironment(): NodeJS.ProcessEnv {
  if (harnessShell(process.env) === null) return process.env;
  const isConfiguration = (name: string): boolean => name === 'CLAUDE_CONFIG_DIR' || name === 'CODEX_HOME';
  const isHarness = (name: string): boolean => name.startsWith('CLAUDE') || name.startsWith('CODEX') || name === 'AI_AGENT';
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => isConfiguration(name) || !isHarness(name)));
}

/** NO_COLOR is set to anything but nothing. */
export function isColourRefused(): boolean {
  return set(process.env['NO_COLOR']) !== undefined || process.env['TERM'] === 'dumb';
}

/** True in the bundle (CommonJS), false when Node runs cli/main.ts itself. */
function isBundle(): boolean {
  return typeof __filename === 'string';
}

/** Real path of the folder that holds the bundle, or of cli/. */
function ownFolder(): string {
  return dirname(realpathSync(isBundle() ? __filename : (process.argv[1] ?? '')));
}

/** What `daemon run` and `daemon start` execute: beside the bundle, or the source of it. */
export function daemonProgram(): string {
  return isBundle() ? join(ownFolder(), 'daemon.mjs') : join(ownFolder(), '..', 'daemon', 'main.ts');
}

/** `ax` when a folder of every login shell's PATH leads to this very program, else its absolute path; the daemon's notices say the same. */
function axProgram(): string {
  const here = ownFolder();
  // `make install` puts a launcher into PREFIX/bin and the rest into PREFIX/lib/ax.
  const launcher = join(here, '..', '..', '..', 'bin', 'ax');
  const program = here.endsWith('/lib/ax/dist') && existsSync(launcher) ? launcher : join(here, '..', 'bin', 'ax');
  const real = tryRealpath(program);
  return real !== undefined && USUAL_PATH.some((folder) => tryRealpath(join(folder, 'ax')) === real) ? 'ax' : program;
}

function tryRealpath(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}

/** The command that reads a message, in the very words of a notice. */
export function fetchLine(ax: AxCommand, id: string, workspace: string): string {
  return fetchCommand(ax, id as Parameters<typeof fetchCommand>[1], workspace);
}

/** 16 hexadecimal digits that nobody can foresee. */
export function randomWord(): string {
  return randomBytes(8).toString('hex');
}

export function newRequestId(): string {
  return randomUUID();
}

/** Refuses a verb that changes whom this host trusts inside an agent's shell; AxError `invalid_state`. A guard-rail, no wall. */
export function requireOwner(environment: Environment, asOwner: boolean, verb: string): void {
  if (environment.harnessShell === null || asOwner) return;
  throw new AxError('invalid_state', `\`ax ${verb}\` changes whom this host trusts and is the owner's to run, not an agent's`, {
    fix: `run it in your own terminal, or add --as-owner when the owner told you to`,
  });
}
