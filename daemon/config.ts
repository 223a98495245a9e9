/**
 * A daemon's files and settings: the state folder, config.json, the host key, and what the environment says.
 *
 * Owns reading and judging them. Everything in the state folder is private (0700, 0600 whatever the umask); a folder or key
 * that others can read or that belongs to someone else is refused with a sentence. Secrets never leave in messages.
 */
import {
  chmodSync,
  closeSync,
  constants,
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
import { USUAL_PORT } from '../protocol/limits.ts';
import type { Limits } from '../protocol/limits.ts';
import { shellQuote } from '../protocol/paths.ts';
import { parseSettings } from '../protocol/settings.ts';

const SEED_BYTES = 32;
export interface Config {
  readonly name: string;
  /** Multiaddrs. */
  readonly listen: readonly string[];
  /** Where others are told to dial this host, when that is not where it listens (NAT, a forwarded port). */
  readonly announce: readonly string[];
  readonly claudeConfigDirs: readonly string[];
  readonly codexHomes: readonly string[];
  readonly limits: Limits;
}

/** Reads `config.json` (optional); flags beat it. AxError `invalid_argument` naming the field. */
export function readConfig(
  stateDir: string,
  flags: { readonly listen: readonly string[]; readonly name: string | undefined },
  environment: NodeJS.ProcessEnv,
): Config {
  const file = join(stateDir, 'config.json');
  const own = parseSettings(readJson(file), file);
  const home = environment['HOME'];
  const environmentDir = environment['CLAUDE_CONFIG_DIR'];
  const codexHome = environment['CODEX_HOME'];
  // Codex has one home at a time: the variable's in place of the usual one.
  const usualCodex = codexHome !== undefined && isAbsolute(codexHome) ? [codexHome] : home === undefined ? [] : [join(home, '.codex')];
  const name = flags.name === undefined ? own.name : parseName(flags.name, 'a host name');
  return {
    name: name ?? nameFrom(hostname().split('.')[0], 'host'),
    listen:
      flags.listen.length > 0
        ? flags.listen.map(parseListenAddress)
        : (own.listen ?? [`/ip4/0.0.0.0/tcp/${USUAL_PORT}`, `/ip6/::/tcp/${USUAL_PORT}`]),
    announce: own.announce ?? [],
    limits: own.limits,
    claudeConfigDirs: [
      ...new Set([
        ...(home === undefined ? [] : [join(home, '.claude')]),
        ...(environmentDir !== undefined && isAbsolute(environmentDir) ? [environmentDir] : []),
        ...own.claudeConfigDirs,
      ]),
    ],
    codexHomes: [...new Set([...usualCodex, ...own.codexHomes])],
  };
}

function readJson(file: string): Record<string, unknown> {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return {};
    const code = (error as NodeJS.ErrnoException).code ?? '';
    throw new AxError('invalid_argument', `${file} cannot be read (${code})`, {
      fix: 'make it a file that this user can read, or remove it',
      cause: error,
    });
  }
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch (error) {
    throw new AxError('invalid_argument', `${file} is not JSON: ${error instanceof Error ? error.message : ''}`, {
      fix: `correct ${file}, or remove it`,
      cause: error,
    });
  }
  throw new AxError('invalid_argument', `${file} must hold one JSON object`, { fix: `correct ${file}, or remove it` });
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

/** The host key in a folder; undefined when there is none. AxError `invalid_state`, `store_corrupt`. */
export function readHostKey(folder: string, uid: number): HostKey | undefined {
  const seed = readSeed(join(folder, 'host.key'), uid);
  return seed === undefined ? undefined : hostKeyFromSeed(seed);
}

function readSeed(file: string, uid: number): Uint8Array | undefined {
  let descriptor: number;
  try {
    if (lstatSync(file).isSymbolicLink()) throw new AxError('invalid_state', `${file} is a symbolic link; the host key must be a file`);
    descriptor = openSync(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK); // a pipe must not be waited for
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'ENOENT') return undefined;
    if (code === 'EACCES')
      throw new AxError('invalid_state', `${file} cannot be read (${code})`, { fix: `chmod 600 ${shellQuote(file)}`, cause: error });
    throw error;
  }
  try {
    const facts = fstatSync(descriptor);
    if (!facts.isFile() || facts.uid !== uid) throw new AxError('invalid_state', `${file} is not a file of this user`);
    if ((facts.mode & 0o077) !== 0)
      throw new AxError('invalid_state', `${file} can be read by others (mode ${(facts.mode & 0o777).toString(8)})`, {
        fix: `chmod 600 ${shellQuote(file)}`,
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
