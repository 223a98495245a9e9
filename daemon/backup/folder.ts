/**
 * Makes a backup: a folder with the store at one moment, the settings, what it is of and, if asked, the host key.
 *
 * Owns the layout of such a folder and that it appears whole or not at all: it is written beside its place under another name, flushed,
 * and renamed. Everything in it is for this user only, and signed by the host. What a daemon that died left half made is swept by the next,
 * for the host key may be in it. It knows no record of the store.
 */
import { createHash } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  constants,
  copyFileSync,
  createReadStream,
  fsyncSync,
  lstatSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, isAbsolute, join } from 'node:path';
import { pipe } from 'it-pipe';
import { AxError } from '../../protocol/errors.ts';
import type { HostKey } from '../../protocol/identity.ts';
import { shellQuote } from '../../protocol/paths.ts';
import { AX_VERSION } from '../../protocol/version.ts';
import type { Clock } from '../clock/clock.ts';
import type { OpenedStore } from '../store/store.ts';
import { BACKUP_FILES, sealedBytes } from './backup.ts';
import type { BackupFile, BackupMade, BackupRecord, Backups } from './backup.ts';

export interface BackupSource {
  /** Canonical. */
  readonly stateDir: string;
  readonly key: HostKey;
  readonly store: OpenedStore;
  readonly clock: Clock;
}

/** Backups of one daemon; one is made at a time: AxError `busy`. */
export function createBackups(source: BackupSource): Backups {
  let isBusy = false;
  sweep(source.stateDir);
  return {
    async make(folder, withKey) {
      if (isBusy) throw new AxError('busy', 'a backup is being made already', { fix: 'wait until it is done' });
      isBusy = true;
      try {
        return await make(source, folder, withKey);
      } finally {
        isBusy = false;
      }
    },
  };
}

async function make(source: BackupSource, folder: string, withKey: boolean): Promise<BackupMade> {
  const place = requireFree(source.stateDir, folder);
  let aside: string | undefined;
  try {
    sweep(source.stateDir);
    aside = mkdtempSync(`${place}.part-`);
    writeFileSync(noteFile(source.stateDir), aside, { mode: 0o600, flag: 'wx', flush: true });
    await source.store.copyTo(join(aside, 'store'));
    const isThere = (name: string): boolean => lstatSync(join(source.stateDir, name), { throwIfNoEntry: false })?.isFile() === true;
    for (const name of ['config.json', ...(withKey ? ['host.key'] : [])])
      if (isThere(name)) copyPrivate(join(source.stateDir, name), join(aside, name));
    const record: BackupRecord = {
      made_at: new Date(source.clock.now()).toISOString(),
      version: AX_VERSION,
      schema: source.store.schema,
      host_id: source.key.hostId,
      with_key: withKey,
      files: await filesOf(aside),
    };
    const signature = Buffer.from(source.key.sign(sealedBytes(record))).toString('hex');
    writeFileSync(join(aside, 'backup.json'), `${JSON.stringify({ ...record, signature })}\n`, { mode: 0o600, flag: 'wx' });
    syncPath(join(aside, 'backup.json'));
    syncPath(aside);
    const bytes = sizeOf(aside);
    renameSync(aside, place);
    syncPath(dirname(place));
    const { files: _listed, ...facts } = record;
    return { ...facts, path: place, bytes };
  } catch (error) {
    if (aside !== undefined) rmSync(aside, { recursive: true, force: true });
    throw asRefusal(error, place);
  } finally {
    if (aside !== undefined) rmSync(noteFile(source.stateDir), { force: true });
  }
}

/** Where it is noted which folder is being filled. */
const noteFile = (stateDir: string): string => join(stateDir, 'backup.part');

/** Removes what a daemon that died was filling; a note that is not one of ours is only dropped. */
function sweep(stateDir: string): void {
  const note = noteFile(stateDir);
  if (lstatSync(note, { throwIfNoEntry: false })?.isFile() !== true) return;
  const aside = readFileSync(note, 'utf8');
  const found = /^\/.+\.part-[A-Za-z0-9]{6}$/.test(aside) ? lstatSync(aside, { throwIfNoEntry: false }) : undefined;
  const isOwn = found?.isDirectory() === true && (process.geteuid === undefined || found.uid === process.geteuid());
  if (isOwn) rmSync(aside, { recursive: true, force: true });
  rmSync(note, { force: true });
}

async function filesOf(folder: string): Promise<BackupFile[]> {
  const files: BackupFile[] = [];
  for (const name of BACKUP_FILES) {
    const found = lstatSync(join(folder, name), { throwIfNoEntry: false });
    if (found === undefined) continue;
    const sha256 = await pipe(createReadStream(join(folder, name), { highWaterMark: 1 << 20 }) as AsyncIterable<Buffer>, digestOf);
    files.push({ name, bytes: found.size, sha256 });
  }
  return files;
}

async function digestOf(pieces: AsyncIterable<Buffer>): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of pieces) hash.update(piece);
  return hash.digest('hex');
}

/** The real path of a place where a folder may appear: nothing is there, or an empty folder of this user. */
function requireFree(stateDir: string, folder: string): string {
  if (!isAbsolute(folder)) throw new AxError('invalid_argument', 'a backup goes to an absolute path');
  let parent: string;
  try {
    parent = realpathSync(dirname(folder));
  } catch (error) {
    throw new AxError('invalid_argument', `${dirname(folder)} is not there, so no backup can be made in it`, {
      fix: `mkdir -p ${shellQuote(dirname(folder))}`,
      cause: error,
    });
  }
  const place = join(parent, basename(folder));
  if (basename(folder) === '' || place === stateDir || `${place}/`.startsWith(`${stateDir}/`))
    throw new AxError('invalid_argument', `${folder} lies in the state folder; a backup goes to another place, best to another disk`);
  const found = lstatSync(place, { throwIfNoEntry: false });
  if (found === undefined) return place;
  const isOwn = found.isDirectory() && (process.geteuid === undefined || found.uid === process.geteuid());
  if (!isOwn) throw new AxError('invalid_state', `${place} is there already and is not a folder of this user`);
  if (readdirSync(place).length > 0)
    throw new AxError('invalid_state', `${place} is not empty; a backup goes into a folder of its own`, {
      fix: 'name one that does not exist yet',
    });
  return place;
}

function asRefusal(error: unknown, place: string): unknown {
  const { code } = error as NodeJS.ErrnoException;
  switch (code) {
    case 'ENOSPC':
    case 'EDQUOT':
    case 'store_full':
      return new AxError('store_full', `there is no room for the backup at ${place}; nothing was left there`, { cause: error });
    case 'EACCES':
    case 'EPERM':
    case 'EROFS':
    case 'ENOENT':
      return new AxError('invalid_argument', `nothing can be written beside ${place} (${code})`, { cause: error });
    case 'ENOTEMPTY':
    case 'EEXIST':
    case 'ENOTDIR':
      return new AxError('invalid_state', `${place} was filled by something else meanwhile`, { cause: error });
    default:
      return error;
  }
}

/** A private copy, flushed. */
function copyPrivate(from: string, to: string): void {
  copyFileSync(from, to, constants.COPYFILE_EXCL);
  chmodSync(to, 0o600);
  syncPath(to);
}

export function syncPath(path: string): void {
  const descriptor = openSync(path, constants.O_RDONLY);
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

function sizeOf(folder: string): number {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + lstatSync(join(entry.parentPath, entry.name)).size, 0);
}
