/**
 * The files of a state folder: owners, modes and kinds of what the daemon relies on.
 *
 * Owns what is private and how far; the daemon refuses or mends the same things at its start, and says the same commands.
 * Reads only what names and modes tell, the length of the key and the settings file. Never prints what a file holds.
 */
import type { Stats } from 'node:fs';
import { dirname, join } from 'node:path';
import { toAxError } from '../../protocol/errors.ts';
import { shellQuote } from '../../protocol/paths.ts';
import { parseSettings } from '../../protocol/settings.ts';
import { axCommand } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { factsOf, finding, readText } from './finding.ts';
import type { Finding, Severity } from './finding.ts';

const KEY_BYTES = 32;
const PRIVATE = 0o077;
/** Others may read settings, but not write them. */
const WRITABLE = 0o022;

interface Wanted {
  readonly id: string;
  readonly path: string;
  readonly is: 'folder' | 'file' | 'socket';
  readonly forbidden: number;
  /** How grave an open mode is: what the daemon mends by itself is a warning. */
  readonly open: Severity;
}

const KINDS: Readonly<Record<Wanted['is'], (facts: Stats) => boolean>> = {
  folder: (facts) => facts.isDirectory(),
  file: (facts) => facts.isFile(),
  socket: (facts) => facts.isSocket(),
};

/** What is wrong with the files of the state folder for the user `uid`; nothing when there is no such folder yet. */
export function fileFindings(environment: Environment, uid: number): Finding[] {
  const { stateDir, socketPath } = environment;
  if (factsOf(stateDir) === undefined) return [];
  const folder = dirname(socketPath);
  const wanted: Wanted[] = [
    { id: 'state_folder', path: stateDir, is: 'folder', forbidden: PRIVATE, open: 'warning' },
    { id: 'key', path: join(stateDir, 'host.key'), is: 'file', forbidden: PRIVATE, open: 'error' },
    { id: 'store', path: join(stateDir, 'store'), is: 'folder', forbidden: PRIVATE, open: 'warning' },
    { id: 'store', path: join(stateDir, 'store', 'data.mdb'), is: 'file', forbidden: PRIVATE, open: 'warning' },
    { id: 'config', path: join(stateDir, 'config.json'), is: 'file', forbidden: WRITABLE, open: 'warning' },
    ...(folder === stateDir
      ? []
      : [{ id: 'socket_folder', path: folder, is: 'folder' as const, forbidden: PRIVATE, open: 'error' as const }]),
    { id: 'socket', path: socketPath, is: 'socket', forbidden: PRIVATE, open: 'warning' },
  ];
  return [...wanted.flatMap((one) => judge(one, uid)), ...keyFindings(stateDir), ...configFindings(stateDir)];
}

function judge({ id, path, is, forbidden, open }: Wanted, uid: number): Finding[] {
  const facts = factsOf(path);
  if (facts === undefined) return [];
  const found: Finding[] = [];
  // Settings may be a link to where their owner keeps them.
  if (!KINDS[is](facts) && !(id === 'config' && facts.isSymbolicLink()))
    return [finding('error', `${id}_kind`, `${path} is no ${is}`, `move it away: mv ${shellQuote(path)} ${shellQuote(`${path}.aside`)}`)];
  if (facts.uid !== uid)
    found.push(
      finding('error', `${id}_owner`, `${path} belongs to another user (uid ${facts.uid})`, `sudo chown ${uid} ${shellQuote(path)}`),
    );
  if (!facts.isSymbolicLink() && (facts.mode & forbidden) !== 0) {
    const mode = (facts.mode & 0o777).toString(8).padStart(3, '0');
    const what = `${path} is open to other users (mode ${mode})${id === 'key' ? ': consider the key known' : ''}`;
    found.push(finding(open, `${id}_mode`, what, `chmod ${is === 'folder' ? '700' : '600'} ${shellQuote(path)}`));
  }
  return found;
}

function keyFindings(stateDir: string): Finding[] {
  const path = join(stateDir, 'host.key');
  const facts = factsOf(path);
  const fix = 'put host.key back from a backup of this state folder; with another key this is another host, and every pairing is void';
  if (facts === undefined)
    return factsOf(join(stateDir, 'store', 'data.mdb')) === undefined
      ? []
      : [finding('error', 'key_missing', `${path} is missing beside a store that belongs to it`, fix)];
  if (!facts.isFile() || facts.size === KEY_BYTES) return [];
  return [finding('error', 'key_damaged', `${path} holds no host key (${facts.size} bytes instead of ${KEY_BYTES})`, fix)];
}

function configFindings(stateDir: string): Finding[] {
  const path = join(stateDir, 'config.json');
  const text = readText(path);
  if (text === undefined) {
    const isThere = factsOf(path)?.isFile() === true;
    return isThere ? [finding('error', 'config_invalid', `${path} cannot be read`, `chmod 600 ${shellQuote(path)}`)] : [];
  }
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return wrongSettings(value as Record<string, unknown>, path);
  } catch (error) {
    return [finding('error', 'config_invalid', `${path} is not JSON (${(error as Error).message})`, `correct it: ${path}`)];
  }
  return [finding('error', 'config_invalid', `${path} must hold one JSON object`, `correct it: ${path}`)];
}

/** The same judgement with which a daemon would refuse to start. */
function wrongSettings(value: Readonly<Record<string, unknown>>, path: string): Finding[] {
  try {
    parseSettings(value, path);
    return [];
  } catch (error) {
    const { message, fix } = toAxError(error);
    return [finding('error', 'config_invalid', `${message}; no daemon starts with it`, fix ?? `correct it: ${path}`)];
  }
}

/** The command that starts the daemon of this state folder. */
export function startCommand(environment: Environment): string {
  return axCommand(environment.ax, 'daemon', 'start');
}
