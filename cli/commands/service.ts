/**
 * `ax daemon install` and `ax daemon uninstall`: the daemon as a service of this user.
 *
 * Owns what is written, asked of the service manager and told, and that both may be repeated. A file at that place which ax did not write is
 * left alone; a daemon that was started by hand is not stopped by either.
 */
import { existsSync, lstatSync, mkdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Command } from 'commander';
import { AxError } from '../../protocol/errors.ts';
import { action, asOwner, verb } from '../command.ts';
import { axCommand, daemonProgram, harnessVariables, requireOwner, surroundings, usualStateDir } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { greet, lastFlags, START_TIMEOUT_MS } from '../launch.ts';
import type { Run } from '../options.ts';
import { note, visible, visibleLines } from '../output.ts';
import { isUnder, replaceProblem, temporaryFolders, workspacesOf } from '../place.ts';
import { launchdAgent, MARK, systemdUnit } from '../service-files.ts';
import type { ServiceFacts, ServiceFile } from '../service-files.ts';
import { launchd, systemd } from '../service-manager.ts';
import type { Manager } from '../service-manager.ts';
import { awaiting, retryUntil } from '../wait.ts';
import { codeOf, putWhole } from '../whole-file.ts';

export function addService(daemon: Command): void {
  const install = verb(daemon, 'install', 'have the daemon run as a service of this user', 'ax daemon install --dry-run');
  action(asOwner(install).option('--dry-run', 'show the file and change nothing'), installService);
  const uninstall = verb(daemon, 'uninstall', 'remove that service; it stops, and nothing else does', 'ax daemon uninstall --dry-run');
  action(asOwner(uninstall).option('--dry-run', 'say what would be removed and change nothing'), uninstallService);
}

interface Service {
  readonly file: ServiceFile;
  readonly manager: Manager;
  readonly warnings: readonly string[];
}

function serviceOf(environment: Environment, workspaces: readonly string[] = []): Service {
  const around = surroundings();
  const program = daemonProgram();
  const node = stableNode();
  const facts: ServiceFacts = {
    node,
    program,
    stateDir: environment.stateDir,
    isUsualStateDir: environment.stateDir === usualStateDir(),
    environment: harnessVariables(),
  };
  const isMac = process.platform === 'darwin';
  return {
    file: isMac ? launchdAgent(facts, around.home) : systemdUnit(facts, around.configHome),
    manager: isMac ? launchd(environment, around, process.getuid?.() ?? 0) : systemd(environment, around),
    warnings: [node, program].flatMap((path) => {
      if (isPassing(path))
        return [`${path} lies in a folder that is emptied at a start of the machine; install ax elsewhere, then install again`];
      const isVersioned = /\/v?\d+\.\d+(\.\d+)?[^/]*\//.test(path);
      const problem = replaceProblem([path], workspaces);
      return [
        ...(isVersioned ? [`${path} is a version of its own: after an update, install again`] : []),
        ...(problem === undefined ? [] : [`an agent may be able to replace what runs at each login: ${problem}`]),
      ];
    }),
  };
}

/**
 * This Node by a path that an update of it keeps, where there is one: a link to the very program that runs, in a folder of the system. Not in
 * one of the PATH: there an agent can put a link today, and another program behind it tomorrow.
 */
function stableNode(): string {
  const own = realpathSync(process.execPath);
  const links = ['/usr/local/bin', '/usr/bin', '/opt/homebrew/bin'].map((folder) => join(folder, 'node'));
  return links.find((path) => existsSync(path) && realpathSync(path) === own && replaceProblem([path]) === undefined) ?? process.execPath;
}

/** A folder that the system empties at a start. */
function isPassing(path: string): boolean {
  return temporaryFolders().some((folder) => isUnder(path, folder));
}

/** What `npx` and `pnpm dlx` unpack for one run has another path the next time. */
function requireStaying(environment: Environment): void {
  const gone = [daemonProgram(), process.execPath].find((path) => /\/(_npx|dlx-[^/]*|\.bunx[^/]*)\//.test(path));
  if (gone === undefined) return;
  throw new AxError('invalid_state', `${gone} is there for one run only; a service must not depend on it`, {
    fix: `install ax first, then: ${axCommand(environment.ax, 'daemon', 'install')}`,
  });
}

async function installService(run: Run): Promise<void> {
  const { environment, options } = run;
  requireOwner(environment, options['asOwner'] === true, 'daemon install');
  const { file, manager, warnings } = serviceOf(environment, await workspacesOf(environment));
  const isDry = options['dryRun'] === true;
  if (isDry) {
    const fields = { ...headOf(file), changed: readOwn(file) !== file.text, running: null, lingering: null, dry_run: true, warnings };
    for (const warning of warnings) note(visible(warning));
    await run.print({
      type: 'daemon_installed',
      fields: { ...fields, text: file.text },
      human: `# ${visible(file.path)}\n${visibleLines(file.text)}`.trimEnd(),
    });
    return;
  }
  requireStaying(environment);
  manager.require();
  const isChanged = readOwn(file) !== file.text;
  if (isChanged) await writeWhole(file);
  manager.enable(file);
  const before = await greet(environment);
  if (before === undefined) await startService(environment, file, manager);
  const lingering = manager.isLingering();
  const told = [...warnings, ...advice(environment, { file, manager, isChanged, wasRunning: before !== undefined, lingering })];
  const human = [
    `${isChanged ? 'installed' : 'already installed'}: ${visible(file.path)}`,
    before === undefined ? 'the daemon runs as this service' : `a daemon runs already, pid ${before.pid}`,
    ...told.map((line) => `note: ${visible(line)}`),
    `its log: ${visible(manager.logCommand(file))}`,
  ].join('\n');
  const fields = { ...headOf(file), changed: isChanged, running: true, lingering, dry_run: false, warnings: told, text: file.text };
  await run.print({ type: 'daemon_installed', fields, human });
}

function headOf(file: ServiceFile): Record<string, unknown> {
  return { kind: file.kind, unit: file.unit, path: file.path };
}

async function startService(environment: Environment, file: ServiceFile, manager: Manager): Promise<void> {
  manager.start(file);
  const hello = await awaiting(
    `the daemon to answer at ${environment.socketPath}`,
    retryUntil(START_TIMEOUT_MS, 50, () => greet(environment)),
  );
  if (hello !== undefined) return;
  throw new AxError('daemon_unavailable', `the service was started, but no daemon answers at ${environment.socketPath}`, {
    fix: manager.logCommand(file),
    details: { socket: environment.socketPath },
  });
}

interface Done {
  readonly file: ServiceFile;
  readonly manager: Manager;
  readonly isChanged: boolean;
  readonly wasRunning: boolean;
  readonly lingering: boolean | null;
}

/** What is left to do, with what to type. */
function advice(environment: Environment, { file, manager, isChanged, wasRunning, lingering }: Done): string[] {
  const { listen, name } = lastFlags(environment);
  const user = surroundings().user ?? '';
  return [
    ...(wasRunning && isChanged
      ? [
          `the daemon that runs goes on as it is; to have the service run it: ${axCommand(environment.ax, 'daemon', 'stop')}; ${manager.restartCommand(file)}`,
        ]
      : []),
    ...(lingering === false
      ? [`lingering is off: the service ends when you log out, and starts only at a login. To change that: loginctl enable-linger ${user}`]
      : []),
    ...(listen.length > 0 || name !== undefined
      ? [`the last start was given --listen or --name; a service takes both from ${join(environment.stateDir, 'config.json')} only`]
      : []),
  ];
}

async function uninstallService(run: Run): Promise<void> {
  const { environment, options } = run;
  requireOwner(environment, options['asOwner'] === true, 'daemon uninstall');
  const { file, manager } = serviceOf(environment);
  const isDry = options['dryRun'] === true;
  const isThere = readOwn(file) !== undefined;
  if (isThere && !isDry) {
    manager.require();
    manager.disable(file);
    rmSync(file.path);
    manager.forget();
  }
  const word = !isThere ? 'nothing to remove: there is no' : isDry ? 'would be removed:' : 'removed:';
  const fields = { ...headOf(file), removed: isThere && !isDry, dry_run: isDry };
  await run.print({ type: 'daemon_uninstalled', fields, human: `${word} ${visible(file.path)}` });
}

/** The text of our file at that place; undefined when nothing is there. AxError `invalid_state` for a file that ax did not write. */
function readOwn(file: ServiceFile): string | undefined {
  const found = lstatSync(file.path, { throwIfNoEntry: false });
  if (found === undefined) return undefined;
  const text = found.isFile() ? readFileSync(file.path, 'utf8') : '';
  if (text.includes(MARK)) return text;
  throw new AxError('invalid_state', `${file.path} is there and was not written by ax; it is left alone`, {
    fix: 'move it away, then run this again',
    details: { path: file.path },
  });
}

async function writeWhole(file: ServiceFile): Promise<void> {
  try {
    mkdirSync(dirname(file.path), { recursive: true });
    await putWhole(file.path, file.text);
  } catch (error) {
    if (error instanceof AxError) throw error;
    throw new AxError('invalid_argument', `${file.path} cannot be written (${codeOf(error)})`, { cause: error });
  }
}
