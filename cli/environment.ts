/**
 * What the CLI takes from its surroundings: variables, folders, the harness's shell it may run in, how ax itself is called.
 *
 * Owns the only reads of process.env. Origin is what AX_* and the global flags say and is never guessed; the session is what
 * the harness's shell exports, unproved: the daemon checks it. In a shell with the variables of both harnesses (one was started inside the
 * other, and variables are inherited) nothing tells which of them runs it: only the caller's own word (--harness, AX_HARNESS) chooses, and
 * without it whatever acts for a session is refused.
 */
import { existsSync, realpathSync } from 'node:fs';
import { basename, dirname, isAbsolute, join, resolve } from 'node:path';
import type { HarnessName } from '../protocol/address.ts';
import type { Method, Origin, SessionEnvironment } from '../protocol/control.ts';
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
  /** The harness whose shell this is, reachable or not; one of them when `isNested`. */
  readonly harnessShell: HarnessName | null;
  /** Both harnesses have left their variables here and the caller named neither: `session` is null. */
  readonly isNested: boolean;
  /** Canonical; null when the working directory has gone, or has a path that no record may hold. */
  readonly localWorkspace: string | null;
  readonly ax: AxCommand;
}

const set = (value: string | undefined): string | undefined => (value === undefined || value === '' ? undefined : value);

/** As os.homedir() finds it, which looks at HOME first: that module is loaded for an account without it only. */
function home(): string {
  return process.env['HOME'] ?? process.getBuiltinModule('node:os').homedir();
}

/** Throws AxError `usage` for --profile and an unknown --format. */
export function readEnvironment(flags: GlobalFlags): Environment {
  const env = process.env;
  if (set(flags.profile ?? env['AX_PROFILE']) !== undefined) {
    throw new AxError('usage', '--profile is reserved and not there yet; use --state-dir DIR for another state folder');
  }
  const usual = defaultStateDir({ platform: process.platform, home: home(), xdgStateHome: env['XDG_STATE_HOME'] });
  const named = set(flags.stateDir ?? env['AX_STATE_DIR']);
  const stateDir = canonical(named ?? usual);
  const isUsual = named === undefined || stateDir === canonical(usual);
  const localWorkspace = readLocalWorkspace(set(flags.localWorkspace ?? env['AX_LOCAL_WORKSPACE']));
  const harness = set(flags.harness ?? env['AX_HARNESS']) ?? null;
  return {
    stateDir,
    socketPath: controlSocketPath(stateDir, process.getuid?.() ?? 0),
    format: parseFormat(set(flags.format ?? env['AX_FORMAT']) ?? 'human'),
    origin: {
      harness,
      harness_version: set(flags.harnessVersion ?? env['AX_HARNESS_VERSION']) ?? null,
      session_id: set(flags.harnessSession ?? env['AX_HARNESS_SESSION']) ?? null,
      workspace: localWorkspace,
      integration: 'cli',
    },
    ...readShell(env, harness),
    localWorkspace,
    ax: { program: axProgram(), ...(isUsual ? {} : { stateDir }) },
  };
}

/** A folder that was named must be one; the working directory is nobody's choice, so what is wrong with it fails no command. */
function readLocalWorkspace(typed: string | undefined): string | null {
  if (typed !== undefined) return parseWorkspace(canonical(typed));
  try {
    return parseWorkspace(realpathSync.native(process.cwd()));
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
  const usual = defaultStateDir({ platform: process.platform, home: home(), xdgStateHome: process.env['XDG_STATE_HOME'] });
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
    return realpathSync.native(whole);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (whole === '/' || (code !== 'ENOENT' && code !== 'ENOTDIR' && code !== 'EACCES')) return whole;
    return join(canonical(dirname(whole)), basename(whole));
  }
}

/** Whose shell this is. `named` counts only where both harnesses have left their variables. */
function readShell(env: NodeJS.ProcessEnv, named: string | null): Pick<Environment, 'session' | 'harnessShell' | 'isNested'> {
  const found = harnessShell(env);
  // A thread id is no configuration: only Codex's own shell tool sets it.
  const isBoth = found === 'claude' && set(env['CODEX_THREAD_ID']) !== undefined;
  const harness = !isBoth || named === 'claude' ? found : named === 'codex' ? 'codex' : undefined;
  if (harness === undefined) return { session: null, harnessShell: found, isNested: true };
  return { session: harness === null ? null : readSession(env, harness), harnessShell: harness, isNested: false };
}

function readSession(env: NodeJS.ProcessEnv, harness: HarnessName): SessionEnvironment | null {
  if (harness === 'codex') {
    const thread = set(env['CODEX_THREAD_ID']);
    if (thread === undefined) return null;
    return { harness, session_id: thread, pid: null, socket: null, config_dir: set(env['CODEX_HOME']) ?? null };
  }
  const session = set(env['CLAUDE_CODE_SESSION_ID']);
  const socket = set(env['CLAUDE_CODE_MESSAGING_SOCKET']);
  const pid = Number(env['CLAUDE_PID']);
  if (session === undefined || socket === undefined || !Number.isSafeInteger(pid) || pid < 1) return null;
  return { harness, session_id: session, pid, socket, config_dir: set(env['CLAUDE_CONFIG_DIR']) ?? null };
}

/** What a person may export everywhere, of all the variables that begin with CODEX_. */
const CODEX_SETTINGS: ReadonlySet<string> = new Set(['CODEX_HOME', 'CODEX_API_KEY']);

function harnessShell(env: NodeJS.ProcessEnv): HarnessName | null {
  if (set(env['CLAUDECODE']) !== undefined || set(env['CLAUDE_CODE_SESSION_ID']) !== undefined) return 'claude';
  const isCodex = Object.keys(env).some((name) => name.startsWith('CODEX_') && !CODEX_SETTINGS.has(name) && set(env[name]) !== undefined);
  return isCodex ? 'codex' : null;
}

/** What acts for the session whose shell asks, unless the caller says for whom. */
const ACTS: ReadonlySet<Method> = new Set([
  'agent.setup',
  'agent.quiet',
  'agent.unquiet',
  'message.fetch',
  'message.send',
  'message.reply',
  'admin.cancel',
  'admin.retry',
]);

/** AxError `invalid_state` where a request would act for a session and it cannot be known for which. */
export function requireOneShell(environment: Environment, method: Method, params: object): void {
  if (!environment.isNested || !ACTS.has(method)) return;
  const said = params as { readonly agent?: unknown; readonly as_owner?: unknown };
  if (typeof said.agent === 'string' || said.as_owner === true) return;
  throw new AxError(
    'invalid_state',
    'this shell has the variables of a Claude Code session and of a Codex thread, one inside the other: ax does not guess for which it acts',
    {
      fix: 'name the one whose shell tool runs this line: the same line with --harness claude or --harness codex (with `send`: before that word)',
    },
  );
}

/** The environment a daemon is started with: a harness's shell marks every process it starts as its own, and a daemon is not. */
export function daemonEnvironment(): NodeJS.ProcessEnv {
  if (harnessShell(process.env) === null) return process.env;
  const isConfiguration = (name: string): boolean => name === 'CLAUDE_CONFIG_DIR' || name === 'CODEX_HOME';
  const isHarness = (name: string): boolean => name.startsWith('CLAUDE') || name.startsWith('CODEX') || name === 'AI_AGENT';
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => isConfiguration(name) || !isHarness(name)));
}

/** The variables by which a daemon finds the harnesses, as they are set here: a service manager does not know them. */
export function harnessVariables(): Readonly<Record<string, string>> {
  const names = ['CLAUDE_CONFIG_DIR', 'CODEX_HOME'] as const;
  return Object.fromEntries(names.flatMap((name) => ((process.env[name] ?? '').startsWith('/') ? [[name, process.env[name] ?? '']] : [])));
}

/** The state folder of a process that has nothing but its home to go by, as one that a service manager starts. */
export function usualStateDir(): string {
  return canonical(defaultStateDir({ platform: process.platform, home: home(), xdgStateHome: undefined }));
}

/** The editor the user wants for a text, as a command line for a shell; undefined when none is set. */
export function editorCommand(): string | undefined {
  return set(process.env['VISUAL']) ?? set(process.env['EDITOR']);
}

/** NO_COLOR is set to anything but nothing. */
export function isColourRefused(): boolean {
  return set(process.env['NO_COLOR']) !== undefined || process.env['TERM'] === 'dumb';
}

/** What `make build` makes of cli/; tests make one file of it. */
const BUNDLES = ['ax.cjs', 'plain.cjs', 'plain.code', 'whole.cjs'];

/** True in the bundle (CommonJS), false when Node runs cli/main.ts itself. */
function isBundle(): boolean {
  return typeof __filename === 'string';
}

/** Real path of the folder that holds the bundles, or of cli/. */
function ownFolder(): string {
  return dirname(realpathSync.native(isBundle() ? __filename : (process.argv[1] ?? '')));
}

/** What `daemon run` and `daemon start` execute: beside the bundle, or the source of it. */
export function daemonProgram(): string {
  return isBundle() ? join(ownFolder(), 'daemon.mjs') : join(ownFolder(), '..', 'daemon', 'main.ts');
}

/** `ax` when a folder of every login shell's PATH leads to this very program, else its absolute path; the daemon's notices say the same. */
function axProgram(): string {
  return findProgram().word;
}

function findProgram(): { readonly word: string; readonly path: string } {
  const here = ownFolder();
  // `make install` puts a launcher into PREFIX/bin and the rest into PREFIX/lib/ax.
  const launcher = join(here, '..', '..', '..', 'bin', 'ax');
  const program = here.endsWith('/lib/ax/dist') && existsSync(launcher) ? launcher : join(here, '..', 'bin', 'ax');
  const real = tryRealpath(program);
  const usual = USUAL_PATH.map((folder) => join(folder, 'ax')).find((path) => real !== undefined && tryRealpath(path) === real);
  return usual === undefined ? { word: program, path: program } : { word: 'ax', path: usual };
}

/** Where this ax lies, for a rule that lets a harness run it unasked. */
export interface Place {
  /** How commands call it: `ax` or an absolute path. */
  readonly word: string;
  /** The absolute path that word leads to. */
  readonly path: string;
  /** Every file that decides what then runs: the program, the code behind it, its Node. */
  readonly files: readonly string[];
  /** The state folder where a rule must name it; it need not be there yet. The usual one is as safe as the home in which the rules lie. */
  readonly stateDir?: string;
}

export function axPlace({ ax }: Pick<Environment, 'ax'>): Place {
  const { word, path } = findProgram();
  const named = ax.stateDir === undefined ? {} : { stateDir: ax.stateDir };
  return { word, path, files: [path, ...codeFiles(), process.execPath], ...named };
}

/** The real paths of the files that this program is made of. */
function codeFiles(): readonly string[] {
  if (!isBundle()) return [realpathSync(process.argv[1] ?? '')];
  return BUNDLES.map((name) => join(ownFolder(), name)).filter((path) => existsSync(path));
}

/** The skill that this installation brings, a folder: beside the sources, beside the bundle, and where `make install` puts it. */
export function skillFolder(): string {
  return join(ownFolder(), '..', 'skills', 'ax');
}

/** Where each harness keeps its settings, as it finds that out itself; the folders may be missing. */
export function harnessFolders(): Readonly<Record<SessionEnvironment['harness'], string>> {
  const folder = (variable: string, usual: string): string => absolute(set(process.env[variable]) ?? join(home(), usual));
  return { claude: folder('CLAUDE_CONFIG_DIR', '.claude'), codex: folder('CODEX_HOME', '.codex') };
}

/** The folders of PATH, as they stand there. */
export function searchPath(): readonly string[] {
  return (process.env['PATH'] ?? '').split(':');
}

function tryRealpath(path: string): string | undefined {
  try {
    return existsSync(path) ? realpathSync.native(path) : undefined;
  } catch {
    return undefined;
  }
}

/** What `ax doctor` looks at around this process. */
export interface Surroundings {
  /** The absolute folders of PATH. */
  readonly path: readonly string[];
  /** This program, as commands call it. */
  readonly own: string;
  /** The user's shell, an absolute path. */
  readonly shell: string | undefined;
  readonly home: string;
  readonly configHome: string;
  readonly user: string | undefined;
}

export function surroundings(): Surroundings {
  const shell = set(process.env['SHELL']);
  const config = set(process.env['XDG_CONFIG_HOME']);
  return {
    path: searchPath().filter((folder) => isAbsolute(folder)),
    own: findProgram().path,
    shell: shell !== undefined && isAbsolute(shell) ? shell : undefined,
    home: home(),
    configHome: config !== undefined && isAbsolute(config) ? config : join(home(), '.config'),
    user: userName(),
  };
}

function userName(): string | undefined {
  try {
    return process.getBuiltinModule('node:os').userInfo().username;
  } catch {
    return set(process.env['LOGNAME']); // an account without an entry of its own, as in some containers
  }
}

/** The command that reads a message, in the very words of a notice. */
export function fetchLine(ax: AxCommand, id: string, workspace: string, code?: string): string {
  return fetchCommand(ax, id as Parameters<typeof fetchCommand>[1], workspace, code);
}

/** Refuses a verb that changes whom this host trusts inside an agent's shell; AxError `invalid_state`. A guard-rail, no wall. */
export function requireOwner(environment: Environment, asOwner: boolean, verb: string): void {
  if (environment.harnessShell === null || asOwner) return;
  throw new AxError('invalid_state', `\`ax ${verb}\` changes whom this host trusts and is the owner's to run, not an agent's`, {
    fix: `run it in your own terminal, or add --as-owner when the owner told you to`,
  });
}

/**
 * The guard of the verbs by which an agent's shell changes what is its own agent's, and nothing else: `params` are the request's. A session
 * that is known is judged by the daemon; any other shell of a harness is no owner. AxError `invalid_state`.
 */
export function requireOwnOrOwner(environment: Environment, method: Method, params: { readonly as_owner?: unknown }): void {
  if (environment.session !== null || environment.harnessShell === null || params.as_owner === true) return;
  requireOneShell(environment, method, params);
  throw new AxError('invalid_state', "this is an agent's shell, and no session is known here for which it could act", {
    fix: 'run it in your own terminal, or add --as-owner when the owner told you to',
  });
}
