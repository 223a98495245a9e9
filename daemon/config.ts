/**
 * A daemon's files and settings: the state folder, config.json, the host key, and what the environment says.
 *
 * Owns reading and judging them. Everything in the state folder is private (0700, 0600 whatever the umask); a folder or key
 * that others can read or that belongs to someone else is refused with a sentence. Secrets never leave in messages.
 */
import {
  chmodSync,
  closeSync,
  fstatSync,
  fsyncSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { dirname, isAbsolute, join } from 'node:path';
import { parseListenAddress } from '../protocol/address.ts';
import { AxError } from '../protocol/errors.ts';
import { hostKeyFromSeed } from '../protocol/identity.ts';
import type { HostKey } from '../protocol/identity.ts';
import { nameFrom, parseName } from '../protocol/ids.ts';

const PORT = 19264;
const SEED_BYTES = 32;

export interface Config {
  readonly name: string;
  /** Multiaddrs. */
  readonly listen: readonly string[];
  /** Where others are told to dial this host, when that is not where it listens (NAT, a forwarded port). */
  readonly announce: readonly string[];
  readonly claudeConfigDirs: readonly string[];
}

/** Reads `config.json` (optional); flags beat it. AxError `invalid_argument` naming the field. */
export function readConfig(
  stateDir: string,
  flags: { readonly listen: readonly string[]; readonly name: string | undefined },
  environment: NodeJS.ProcessEnv,
): Config {
  const file = join(stateDir, 'config.json');
  const raw = readJson(file);
  for (const key of Object.keys(raw))
    if (!['name', 'listen', 'announce', 'claude_config_dirs', 'codex_homes'].includes(key))
      throw new AxError('invalid_argument', `${file}: unknown field "${key}"`);
  const listen = flags.listen.length > 0 ? flags.listen : strings(raw, 'listen', file);
  const roots = strings(raw, 'claude_config_dirs', file) ?? [];
  for (const root of roots)
    if (!isAbsolute(root)) throw new AxError('invalid_argument', `${file}: claude_config_dirs takes absolute paths`);
  const home = environment['HOME'];
  const own = environment['CLAUDE_CONFIG_DIR'];
  const name = flags.name ?? raw['name'];
  return {
    name: name === undefined ? nameFrom(hostname().split('.')[0], 'host') : parseName(name, 'a host name'),
    listen: (listen ?? [`/ip4/0.0.0.0/tcp/${PORT}`, `/ip6/::/tcp/${PORT}`]).map(parseListenAddress),
    announce: (strings(raw, 'announce', file) ?? []).map(parseListenAddress),
    claudeConfigDirs: [
      ...new Set([
        ...(home === undefined ? [] : [join(home, '.claude')]),
        ...(own !== undefined && isAbsolute(own) ? [own] : []),
        ...roots,
      ]),
    ],
  };
}

function readJson(file: string): Record<string, unknown> {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return {};
    throw new AxError('invalid_argument', `${file} cannot be read`, { cause: error });
  }
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch (error) {
    throw new AxError('invalid_argument', `${file} is not JSON: ${error instanceof Error ? error.message : ''}`, { cause: error });
  }
  throw new AxError('invalid_argument', `${file} must hold one JSON object`);
}

function strings(raw: Record<string, unknown>, key: string, file: string): readonly string[] | undefined {
  const value = raw[key];
  if (value === undefined) return undefined;
  if (!Array.isArray(value) || value.some((entry) => typeof entry !== 'string'))
    throw new AxError('invalid_argument', `${file}: "${key}" is a list of strings`);
  return value as string[];
}

/** Makes the state folder (0700) or checks that it is ours and private. AxError `invalid_state`. */
export function openStateDir(stateDir: string, uid: number): void {
  try {
    makeFolders(stateDir);
  } catch (error) {
    throw new AxError('invalid_state', `the state folder ${stateDir} cannot be made (${(error as NodeJS.ErrnoException).code ?? ''})`, {
      cause: error,
    });
  }
  const facts = lstatSync(stateDir);
  if (!facts.isDirectory()) throw new AxError('invalid_state', `${stateDir} is not a folder`);
  if (facts.uid !== uid) throw new AxError('invalid_state', `${stateDir} belongs to another user`);
  if ((facts.mode & 0o077) !== 0) chmodSync(stateDir, 0o700);
}

/** Makes a folder and what is missing above it. Not mkdir's own `recursive`: in a file system that makes no folders (/proc) that never ends. */
function makeFolders(path: string): void {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'EEXIST') return;
    if (code !== 'ENOENT' || dirname(path) === path) throw error;
    makeFolders(dirname(path));
    mkdirSync(path, { mode: 0o700 });
  }
}

/** The host key: read, or made once (whole or not at all, durable before it is used). AxError `store_corrupt`, `invalid_state`. */
export function openHostKey(stateDir: string, uid: number, random: (length: number) => Uint8Array): HostKey {
  const file = join(stateDir, 'host.key');
  const seed = readSeed(file, uid) ?? makeSeed(file, random) ?? readSeed(file, uid);
  if (seed === undefined) throw new AxError('store_corrupt', `${file} can be neither read nor made`);
  return hostKeyFromSeed(seed);
}

function readSeed(file: string, uid: number): Uint8Array | undefined {
  let descriptor: number;
  try {
    if (lstatSync(file).isSymbolicLink()) throw new AxError('invalid_state', `${file} is a symbolic link; the host key must be a file`);
    descriptor = openSync(file, 'r');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  try {
    const facts = fstatSync(descriptor);
    if (!facts.isFile() || facts.uid !== uid) throw new AxError('invalid_state', `${file} is not a file of this user`);
    if ((facts.mode & 0o077) !== 0)
      throw new AxError('invalid_state', `${file} can be read by others (mode ${(facts.mode & 0o777).toString(8)})`, {
        fix: `chmod 600 ${file}`,
      });
    const seed = readFileSync(descriptor);
    if (seed.length !== SEED_BYTES)
      throw new AxError('store_corrupt', `${file} does not hold a host key (${seed.length} bytes instead of ${SEED_BYTES})`);
    return new Uint8Array(seed);
  } finally {
    closeSync(descriptor);
  }
}

/** Writes a fresh seed under a temporary name and links it into place, so that two starts at once agree on one key. */
function makeSeed(file: string, random: (length: number) => Uint8Array): Uint8Array | undefined {
  const seed = random(SEED_BYTES);
  const fresh = `${file}.${Buffer.from(random(6)).toString('hex')}`;
  const descriptor = openSync(fresh, 'wx', 0o600);
  try {
    writeSync(descriptor, seed);
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
  try {
    linkSync(fresh, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    return undefined;
  } finally {
    unlinkSync(fresh);
  }
  syncFolder(dirname(file));
  return seed;
}

function syncFolder(folder: string): void {
  const descriptor = openSync(folder, 'r');
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
