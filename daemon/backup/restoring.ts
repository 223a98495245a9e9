/**
 * The files of a restore: a backup is read, copied into the state folder, and put in the place of what is there.
 *
 * Owns the two folders `restoring` (being filled; means nothing) and `restored` (whole). The rename from the one to the other decides: from
 * then on `finishRestore` ends what was begun, at the next start too if this process dies; before it nothing has changed. The caller holds
 * the lock of the state folder. A backup may have lain where others write: nothing of it is followed, waited for or kept that its host did
 * not sign.
 */
import { createHash } from 'node:crypto';
import { closeSync, constants, existsSync, fstatSync, fsyncSync, lstatSync, mkdirSync, openSync, readSync } from 'node:fs';
import { renameSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { parseHostId, verify } from '../../protocol/identity.ts';
import { STORE_SCHEMA } from '../store/store.ts';
import { BACKUP_FILES, sealedBytes } from './backup.ts';
import type { BackupFile, BackupRecord } from './backup.ts';
import { syncPath } from './folder.ts';

const MAX_RECORD_BYTES = 4096;
const COPY_BYTES = 1 << 20;

/**
 * What a folder is a backup of, as the host that it names has signed it. AxError `invalid_argument` when it is none, `update_required` when a
 * newer ax made it, `store_corrupt` when it was changed since.
 */
export function readBackup(folder: string, uid: number): BackupRecord {
  const file = join(folder, 'backup.json');
  const text = readRecord(folder, file, uid);
  let record: BackupRecord & { readonly signature: string };
  try {
    record = JSON.parse(text) as typeof record;
    const { made_at: madeAt, version, schema, with_key: withKey } = record;
    const isRight = isText(madeAt, /^[\dTZ:.-]{10,30}$/) && isText(version, /^[\w.+-]{1,64}$/);
    if (!isRight || !Number.isSafeInteger(schema) || typeof withKey !== 'boolean') throw new Error('a field is not right');
    parseHostId(record.host_id);
  } catch (error) {
    throw new AxError('invalid_argument', `${file} does not say what it is a backup of`, { cause: error });
  }
  const { schema, version, host_id: hostId } = record;
  if (schema > STORE_SCHEMA)
    throw new AxError(
      'update_required',
      `the backup was made by ax ${version}, whose store has schema ${schema}; this ax knows ${STORE_SCHEMA}`,
      {
        fix: `install ax ${version} or newer, then restore`,
        details: { found: schema, known: STORE_SCHEMA },
      },
    );
  const isListed = Array.isArray(record.files) && record.files.length <= BACKUP_FILES.length && record.files.every(isBackupFile);
  if (!isListed || !isText(record.signature, /^[0-9a-f]{128}$/))
    throw new AxError('invalid_argument', `${file} is not signed by the host that it names, so nothing says that this is its backup`);
  if (!verify(hostId, sealedBytes(record), Buffer.from(record.signature, 'hex')))
    throw new AxError('store_corrupt', `${file} is not as the host ${hostId} has signed it: it was changed; nothing was changed here`);
  return record;
}

const isText = (value: unknown, form: RegExp): boolean => typeof value === 'string' && form.test(value);

function isBackupFile(value: unknown): value is BackupFile {
  const { name, bytes, sha256 } = (value ?? {}) as Partial<BackupFile>;
  return BACKUP_FILES.some((one) => one === name) && Number.isSafeInteger(bytes) && isText(sha256, /^[0-9a-f]{64}$/);
}

function readRecord(folder: string, file: string, uid: number): string {
  const source = openPlain(file, uid);
  const isWhole = source !== undefined && lstatSync(join(folder, 'store'), { throwIfNoEntry: false })?.isDirectory() === true;
  try {
    if (!isWhole || source.bytes > MAX_RECORD_BYTES)
      throw new AxError('invalid_argument', `${folder} is no backup of ax (it needs backup.json and store/)`);
    const bytes = Buffer.alloc(MAX_RECORD_BYTES);
    return bytes.toString('utf8', 0, readSync(source.descriptor, bytes));
  } finally {
    if (source !== undefined) closeSync(source.descriptor);
  }
}

/** A plain file of this user, open; undefined for anything else, which is neither followed nor waited for (a link, a pipe). */
function openPlain(path: string, uid: number): { readonly descriptor: number; readonly bytes: number } | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ELOOP' || code === 'ENXIO' || code === 'EACCES') return undefined;
    throw error;
  }
  const facts = fstatSync(descriptor);
  if (facts.isFile() && facts.uid === uid) return { descriptor, bytes: facts.size };
  closeSync(descriptor);
  return undefined;
}

/** A private, flushed copy of a file of the backup, which is exactly the one that was signed. AxError `store_corrupt`. */
function copySigned(backup: string, file: BackupFile, folder: string, uid: number): void {
  const path = join(backup, file.name);
  const source = openPlain(path, uid);
  const target = openSync(join(folder, file.name), 'wx', 0o600);
  try {
    const hash = createHash('sha256');
    const piece = Buffer.alloc(COPY_BYTES);
    for (let left = source?.bytes === file.bytes ? file.bytes : 0; source !== undefined && left > 0;) {
      const read = readSync(source.descriptor, piece, 0, Math.min(piece.length, left), null);
      if (read === 0) break;
      hash.update(piece.subarray(0, read));
      for (let done = 0; done < read;) done += writeSync(target, piece, done, read - done);
      left -= read;
    }
    fsyncSync(target);
    if (source?.bytes === file.bytes && hash.digest('hex') === file.sha256) return;
    throw new AxError('store_corrupt', `${path} is not the file that was backed up: it was damaged or changed; nothing was changed here`);
  } finally {
    closeSync(target);
    if (source !== undefined) closeSync(source.descriptor);
  }
}

/**
 * Copies the backup's store, and of `names` the files that it has, into a fresh `restoring`; gives that folder. AxError `store_full`,
 * `store_corrupt` for a file that is not the one that was signed.
 */
export function stage(stateDir: string, backup: string, record: BackupRecord, uid: number, names: readonly string[]): string {
  const folder = join(stateDir, 'restoring');
  rmSync(folder, { recursive: true, force: true });
  try {
    mkdirSync(join(folder, 'store'), { recursive: true, mode: 0o700 });
    if (!record.files.some(({ name }) => name === 'store/data.mdb')) throw new AxError('store_corrupt', `${backup} holds no store`);
    for (const file of record.files) if (file.name.startsWith('store/') || names.includes(file.name)) copySigned(backup, file, folder, uid);
  } catch (error) {
    rmSync(folder, { recursive: true, force: true });
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    throw new AxError('store_full', `there is no room in ${stateDir} for the backup; nothing was changed`, { cause: error });
  }
  return folder;
}

/** Decides the restore of what is staged. Gives where the store that was here is now, or null. */
export function commit(stateDir: string): string | null {
  const staged = join(stateDir, 'restoring');
  syncPath(join(staged, 'store'));
  syncPath(staged);
  renameSync(staged, join(stateDir, 'restored'));
  syncPath(stateDir);
  return finishRestore(stateDir);
}

/**
 * Ends a restore that was decided, or drops one that was not; does nothing when there is neither. The store that was here is kept as
 * `store.before-restore`; a host key or settings that are here stay. Gives where that store is now, or null.
 */
export function finishRestore(stateDir: string): string | null {
  const at = (name: string): string => join(stateDir, name);
  rmSync(at('restoring'), { recursive: true, force: true });
  const staged = at('restored');
  if (!existsSync(staged)) return null;
  let aside: string | null = null;
  if (existsSync(join(staged, 'store'))) {
    if (existsSync(at('store'))) renameSync(at('store'), (aside = freeName(at('store.before-restore'))));
    for (const name of ['host.key', 'config.json'])
      if (existsSync(join(staged, name)) && !existsSync(at(name))) renameSync(join(staged, name), at(name));
    syncPath(stateDir);
    renameSync(join(staged, 'store'), at('store'));
    syncPath(stateDir);
  }
  rmSync(staged, { recursive: true, force: true });
  return aside;
}

function freeName(path: string): string {
  for (let n = 1; ; n++) {
    const free = n === 1 ? path : `${path}-${n}`;
    if (lstatSync(free, { throwIfNoEntry: false }) === undefined) return free;
  }
}
