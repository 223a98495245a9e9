/**
 * The machine around ax: which `ax` a shell finds, Node, the disk, the clock, and the unit that is to start the daemon.
 *
 * Owns these checks, each a function of facts that a test can make. The one program it runs is the user's login shell, for its PATH,
 * with a bound; nothing is changed.
 */
import { spawn } from 'node:child_process';
import { readdirSync, realpathSync, statfsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { MIN_FREE_BYTES } from '../../protocol/limits.ts';
import { shellQuote } from '../../protocol/paths.ts';
import { axCommand } from '../environment.ts';
import type { Environment, Surroundings } from '../environment.ts';
import { isProgram, programOn } from '../executable.ts';
import { isOlderThan, size } from '../output.ts';
import { factsOf, finding, readText } from './finding.ts';
import type { Finding } from './finding.ts';

const NODE_NEEDED = [22, 12] as const;
/** Under this much, free space is told before the daemon refuses anything. */
const LOW_FREE_BYTES = 8 * MIN_FREE_BYTES;
const SHELL_TIMEOUT_MS = 3_000;
/** Clocks of one machine never differ by more; a step back does. */
const CLOCK_SLACK_MS = 60_000;

// --- which ax ------------------------------------------------------------------------------------------------------------

/** Another `ax` that this shell, or a login shell, would run instead of this one. */
export async function pathFindings(environment: Environment, around: Surroundings): Promise<Finding[]> {
  const found = firstAx(around.path);
  const isOwn = (path: string): boolean => realpathOf(path) === realpathOf(around.own);
  const here =
    found === undefined
      ? [finding('info', 'path_missing', '`ax` is not on the PATH of this shell', `call it as ${environment.ax.program}`)]
      : isOwn(found)
        ? []
        : [clash('path_clash', 'this shell', found, around)];
  const login = around.shell === undefined ? undefined : await axOfLoginShell(around.shell, around);
  if (login === undefined || isOwn(login) || (found !== undefined && realpathOf(login) === realpathOf(found))) return here;
  return [...here, clash('path_clash_login', 'a login shell', login, around)];
}

function clash(id: string, shell: string, path: string, { own }: Surroundings): Finding {
  const isGateway = factsOf(join(dirname(path), 'axctl')) !== undefined;
  const what = `\`ax\` in ${shell} is ${path}${isGateway ? ' (beside axctl: another product of the same name)' : ''}, not this program`;
  return finding('warning', id, what, `put the folder of this ax first: export PATH=${shellQuote(dirname(own))}:"$PATH"`);
}

function firstAx(folders: readonly string[]): string | undefined {
  return programOn(folders, 'ax');
}

function realpathOf(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined; // gone since it was found
  }
}

/** What `ax` is in the user's login shell; undefined when it is nothing, no file, or the shell does not answer in time. */
async function axOfLoginShell(shell: string, { home, user }: Surroundings): Promise<string | undefined> {
  const names = user === undefined ? {} : { USER: user, LOGNAME: user };
  const child = spawn(shell, ['-lc', 'command -v ax'], {
    env: { HOME: home, SHELL: shell, TERM: 'dumb', PATH: '/usr/local/bin:/usr/bin:/bin', ...names },
    cwd: '/',
    stdio: ['ignore', 'pipe', 'ignore'],
    timeout: SHELL_TIMEOUT_MS,
    killSignal: 'SIGKILL',
  });
  let said = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => (said = `${said}${chunk}`.slice(-8192)));
  await new Promise<void>((resolve) => {
    child.once('error', () => resolve());
    // Not its close: something that a profile leaves running holds the pipe.
    child.once('exit', () => setImmediate(resolve));
  });
  child.stdout.destroy();
  const path = said.trimEnd().split('\n').at(-1) ?? '';
  return path.startsWith('/') && isProgram(path) ? path : undefined;
}

// --- Node, disk, clock ---------------------------------------------------------------------------------------------------

export function nodeFindings(version: string): Finding[] {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major > NODE_NEEDED[0] || (major === NODE_NEEDED[0] && minor >= NODE_NEEDED[1])) return [];
  const needed = NODE_NEEDED.join('.');
  return [
    finding('error', 'node_version', `ax runs on Node ${version}; it needs ${needed} or newer`, 'run `make install`, which brings its own'),
  ];
}

/** Free bytes for this user where the state folder is, or is to be; undefined when the system does not tell. */
export function freeBytes(path: string): number | undefined {
  try {
    const { bavail, bsize } = statfsSync(path);
    return bavail * bsize;
  } catch {
    return path === '/' ? undefined : freeBytes(dirname(path)); // not there yet: its folder is on the same disk
  }
}

export function diskFindings(path: string, free: number | undefined): Finding[] {
  if (free === undefined || free >= LOW_FREE_BYTES) return [];
  const fix = `free space on the disk of ${path}: df -h ${shellQuote(path)}`;
  if (free >= MIN_FREE_BYTES)
    return [
      finding('warning', 'disk_low', `only ${size(free)} are free for ${path}; under ${size(MIN_FREE_BYTES)} nothing new is taken`, fix),
    ];
  return [finding('error', 'disk_full', `only ${size(free)} are free for ${path}: nothing new is accepted or queued`, fix)];
}

/** A clock that stands before what was already written down: the newest the daemon knows, and the times of its files. */
export function clockFindings({ stateDir }: Environment, newestAt: number | undefined): Finding[] {
  const times = [newestAt ?? 0, ...['store/data.mdb', 'daemon.lock'].map((name) => factsOf(join(stateDir, name))?.mtimeMs ?? 0)];
  const newest = Math.max(...times);
  if (isOlderThan(newest, -CLOCK_SLACK_MS)) return [];
  const at = new Date(newest).toISOString();
  return [
    finding(
      'warning',
      'clock_stepped',
      `this host has written down something at ${at}, which its clock has not reached: the clock is behind, or was ahead`,
      'set the clock by the network: sudo timedatectl set-ntp true',
    ),
  ];
}

// --- the unit that starts it ---------------------------------------------------------------------------------------------

/** Units of systemd's user manager that start an ax daemon. `root` is `/`, or a test's. */
export function unitFindings(environment: Environment, around: Surroundings, root = '/'): Finding[] {
  const folder = join(around.configHome, 'systemd', 'user');
  const units = namesIn(folder).filter((name) => name.endsWith('.service'));
  const own = units.flatMap((name) => {
    const words = commandOf(readText(join(folder, name)) ?? '');
    return words === undefined ? [] : [{ name, words }];
  });
  const install = axCommand(environment.ax, 'daemon', 'install');
  return own.flatMap(({ name, words }) => {
    const gone = words.slice(0, 2).find((word) => word.startsWith('/') && factsOf(word) === undefined);
    return [
      ...(gone === undefined ? [] : [finding('error', 'unit_path', `${join(folder, name)} starts ${gone}, which does not exist`, install)]),
      ...(isEnabled(folder, name)
        ? []
        : [finding('warning', 'unit_disabled', `the unit ${name} is there but not enabled: nothing starts the daemon`, enable(name))]),
      ...lingerFindings(around, root, name),
    ];
  });
}

const enable = (name: string): string => `systemctl --user enable --now ${shellQuote(name)}`;

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // no such folder: no units
  }
}

/** The words of ExecStart when that starts an ax daemon: the launcher with `daemon run`, or the daemon's own program. */
function commandOf(unit: string): readonly string[] | undefined {
  const line = /^ExecStart=[-@:+!]*(.*)$/m.exec(unit)?.[1];
  const words = [...(line ?? '').matchAll(/"((?:\\.|[^"\\])*)"|'([^']*)'|(\S+)/g)].map(
    (match) => match[1]?.replaceAll(/\\(.)/g, '$1') ?? match[2] ?? match[3] ?? '',
  );
  const isAx = words.slice(0, 2).some((word) => /(?:^|\/)(?:ax|ax\.cjs|daemon\.mjs)$/.test(word));
  const isDaemon = words.some((word) => word.endsWith('/daemon.mjs')) || / daemon run(?: |$)/.test(words.join(' '));
  return isAx && isDaemon ? words : undefined;
}

function isEnabled(folder: string, name: string): boolean {
  return namesIn(folder)
    .filter((entry) => /\.(?:wants|requires|upholds)$/.test(entry))
    .some((entry) => factsOf(join(folder, entry, name)) !== undefined);
}

function lingerFindings({ user }: Surroundings, root: string, name: string): Finding[] {
  // Without systemd as the system's manager there is nothing that could linger.
  if (user === undefined || factsOf(join(root, 'run/systemd/system')) === undefined) return [];
  if (factsOf(join(root, 'var/lib/systemd/linger', user)) !== undefined) return [];
  return [
    finding(
      'warning',
      'linger_off',
      `lingering is off: ${name} ends when ${user} logs out, and starts only at a login`,
      'loginctl enable-linger',
    ),
  ];
}
