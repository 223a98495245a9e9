/**
 * Talking to the service manager of this user: systemctl --user, launchctl.
 *
 * Owns which program is run with which words, and what its absence and its refusals are told as. It writes no file. The system's own
 * manager is never addressed: as root too it is root's user manager.
 */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { shellQuote } from '../protocol/paths.ts';
import { axCommand } from './environment.ts';
import type { Environment, Surroundings } from './environment.ts';
import { programOn } from './executable.ts';
import { visible } from './output.ts';
import type { ServiceFile } from './service-files.ts';

const LIMIT_MS = 60_000;

export interface Manager {
  /** AxError `unsupported` where there is none that could be asked. */
  readonly require: () => void;
  /** Makes it known, and begun at each login from now on. */
  readonly enable: (file: ServiceFile) => void;
  readonly start: (file: ServiceFile) => void;
  /** Ends its daemon, and has it begun no more; a service that is not known is none to end. */
  readonly disable: (file: ServiceFile) => void;
  /** After its file has gone. */
  readonly forget: () => void;
  /** Does the service live on without a login? null: that is no question here. */
  readonly isLingering: () => boolean | null;
  /** What a person types to see its log, and to have a changed file take effect. */
  readonly logCommand: (file: ServiceFile) => string;
  readonly restartCommand: (file: ServiceFile) => string;
}

interface Ran {
  readonly status: number | null;
  readonly text: string;
}

function run(program: string, words: readonly string[]): Ran {
  const ended = spawnSync(program, words, { encoding: 'utf8', timeout: LIMIT_MS, stdio: ['ignore', 'pipe', 'pipe'] });
  const text = ended.error === undefined ? `${ended.stdout}${ended.stderr}` : ended.error.message;
  return { status: ended.error === undefined ? ended.status : null, text: visible(text.trim().split('\n')[0] ?? '').slice(0, 300) };
}

function must(program: string, words: readonly string[]): void {
  const { status, text } = run(program, words);
  if (status !== 0)
    throw new AxError('unavailable', `\`${program} ${words.join(' ')}\` failed${text === '' ? '' : `: ${text}`}`, {
      fix: `${program} ${words.join(' ')}`,
    });
}

function has(around: Surroundings, program: string): boolean {
  return programOn(around.path, program) !== undefined;
}

/** What to do where no service manager can be asked. */
function without(environment: Environment, why: string): AxError {
  const runLine = axCommand(environment.ax, 'daemon', 'run');
  return new AxError('unsupported', `${why}; in a container, let \`${runLine}\` be what its start runs`, {
    fix: axCommand(environment.ax, 'daemon', 'start'),
  });
}

export function systemd(environment: Environment, around: Surroundings): Manager {
  const user = around.user ?? '';
  const ask = (...words: string[]): void => must('systemctl', ['--user', ...words]);
  return {
    require() {
      if (!has(around, 'systemctl')) throw without(environment, 'this machine has no systemd (there is no systemctl)');
      const { status, text } = run('systemctl', ['--user', 'show-environment']);
      if (status === 0) return;
      throw without(environment, `the systemd of this user cannot be asked (${text}): it needs a login of that user, not su or sudo`);
    },
    enable(file) {
      ask('daemon-reload');
      ask('enable', file.unit);
    },
    start: (file) => ask('start', file.unit),
    disable: (file) => ask('disable', '--now', file.unit),
    forget: () => ask('daemon-reload'),
    isLingering() {
      if (!has(around, 'loginctl')) return existsSync(join('/var/lib/systemd/linger', user)) ? true : null;
      const { status, text } = run('loginctl', ['show-user', user, '--property=Linger']);
      return status === 0 && /^Linger=(yes|no)$/.test(text) ? text === 'Linger=yes' : null;
    },
    logCommand: (file) => `journalctl --user -u ${file.unit}`,
    restartCommand: (file) => `systemctl --user restart ${file.unit}`,
  };
}

export function launchd(environment: Environment, around: Surroundings, uid: number): Manager {
  const domain = `gui/${uid}`;
  const isLoaded = (file: ServiceFile): boolean => run('launchctl', ['print', `${domain}/${file.unit}`]).status === 0;
  return {
    require() {
      if (!has(around, 'launchctl')) throw without(environment, 'this machine has no launchctl');
    },
    // An agent in its folder is begun at each login by itself.
    enable: (file) => must('launchctl', ['enable', `${domain}/${file.unit}`]),
    start(file) {
      if (!isLoaded(file)) must('launchctl', ['bootstrap', domain, file.path]);
      must('launchctl', ['kickstart', `${domain}/${file.unit}`]);
    },
    disable(file) {
      if (isLoaded(file)) must('launchctl', ['bootout', `${domain}/${file.unit}`]);
    },
    forget: () => undefined,
    isLingering: () => null,
    logCommand: () => axCommand(environment.ax, 'daemon', 'logs'),
    restartCommand: (file) => `launchctl bootout ${domain}/${file.unit}; launchctl bootstrap ${domain} ${shellQuote(file.path)}`,
  };
}
