/**
 * What must be true of a store's files before LMDB may map them: ours, of a schema we know, whole, private, and kept if they will change.
 *
 * Owns the marker file `format` and the look into `data.mdb` that comes first, because LMDB maps the file and a missing or
 * mangled page then ends the process past any try/catch. It reads the structure (meta pages, tree pages), never a value.
 * Invariant: a store that is refused is left exactly as it was found. The caller holds the directory's lock.
 */
import {
  chmodSync,
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  fchmodSync,
  fstatSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { STORE_SCHEMA } from './store.ts';

/** Up to this size every page of the trees is looked at; above it only the roots, unless the file is shorter than it says. */
const WHOLE_CHECK_BYTES = 64 * 1024 * 1024;
const MARKER = 'format';
const DATA = 'data.mdb';

/** `creating` until the first tables are flushed: only then may an empty or missing data file be taken as ours to make. */
interface Marker {
  readonly store: 'ax-store';
  readonly schema: number;
  readonly state: 'creating' | 'ready';
  /** Name of the folder beside this one that holds the files as they were before the migration under way. */
  readonly kept?: string;
}

export interface Prepared {
  /** `finishStore` is still to be called. */
  readonly isNew: boolean;
  readonly schema: number;
  readonly kept: string | null;
}

/**
 * Makes the folder (0700) and its files (0600) ready for LMDB, or refuses without touching anything: AxError `store_corrupt` naming
 * the file, or `update_required` for a newer schema. Files of an older schema are copied aside first, once; `store_full` without room.
 */
export function prepareStore(folder: string): Prepared {
  if (!existsSync(folder)) mkdirSync(folder, { mode: 0o700 });
  const marker = readMarker(folder);
  const data = join(folder, DATA);
  const size = regularSize(data);
  if (marker === undefined && size !== undefined) throw corrupt(data, 'was not made by ax (there is no format file beside it)');
  if (marker?.state === 'ready') {
    if (size === undefined) throw corrupt(data, 'is missing, though its format file says that the store was in use');
    checkDataFile(data);
  } else if (size !== undefined && size > 0) {
    checkDataFile(data);
  }
  chmodSync(folder, 0o700);
  const isNew = marker?.state !== 'ready';
  if (marker === undefined) writeMarker(folder, { schema: STORE_SCHEMA, state: 'creating' });
  const isOld = !isNew && marker.schema < STORE_SCHEMA;
  const kept = isOld ? keepOld(folder, marker) : null;
  for (const name of [DATA, 'lock.mdb']) makePrivate(join(folder, name));
  return { isNew, schema: isOld ? marker.schema : STORE_SCHEMA, kept };
}

/** Records that the store's first tables, or all rows of a migration, are on disk and of STORE_SCHEMA. */
export function finishStore(folder: string): void {
  syncFolder(folder);
  writeMarker(folder, { schema: STORE_SCHEMA, state: 'ready' });
}

/** Makes a copy's folder one of a whole store of STORE_SCHEMA: private and flushed, its marker last. The data file is there already. */
export function finishCopy(folder: string): void {
  const data = join(folder, DATA);
  makePrivate(data);
  syncFile(data);
  finishStore(folder);
}

/** The folder with the files as they are now: copied under another name and flushed, so that it is whole whenever it has this one. */
function keepOld(folder: string, marker: Marker): string {
  const beside = (name: string): string => join(dirname(folder), name);
  if (marker.kept !== undefined && existsSync(beside(marker.kept))) return beside(marker.kept);
  const first = `${basename(folder)}.schema-${marker.schema}`;
  const name = freeName(dirname(folder), first);
  const part = beside(`${first}.part`);
  rmSync(part, { recursive: true, force: true });
  try {
    mkdirSync(part, { mode: 0o700 });
    for (const file of [DATA, MARKER]) {
      copyFileSync(join(folder, file), join(part, file), constants.COPYFILE_EXCL);
      makePrivate(join(part, file));
      syncFile(join(part, file));
    }
    syncFolder(part);
    renameSync(part, beside(name));
    syncFolder(dirname(folder));
  } catch (error) {
    rmSync(part, { recursive: true, force: true });
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    const bytes = regularSize(join(folder, DATA)) ?? 0;
    throw new AxError('store_full', `there is no room to keep a copy of the old store beside ${folder}, which comes before its update`, {
      fix: `free ${bytes} bytes on that disk and start again; nothing was changed`,
      cause: error,
    });
  }
  writeMarker(folder, { schema: marker.schema, state: marker.state, kept: name });
  return beside(name);
}

/** `name`, or with a number behind it, as nothing in the folder is called yet. */
function freeName(folder: string, name: string): string {
  for (let n = 1; ; n++) {
    const free = n === 1 ? name : `${name}-${n}`;
    if (lstatSync(join(folder, free), { throwIfNoEntry: false }) === undefined) return free;
  }
}

function readMarker(folder: string): Marker | undefined {
  const path = join(folder, MARKER);
  const size = regularSize(path);
  if (size === undefined) return undefined;
  let found: Partial<Marker> | null = null;
  try {
    if (size <= 4096) found = JSON.parse(readFileSync(path, 'utf8')) as Partial<Marker> | null;
  } catch (error) {
    throw corrupt(path, 'cannot be read as the mark of an ax store', error);
  }
  if (found?.store !== 'ax-store' || !Number.isSafeInteger(found.schema) || found.schema! < 1)
    throw corrupt(path, 'is not the mark of an ax store');
  if (found.schema! > STORE_SCHEMA) {
    throw new AxError('update_required', `the store in ${folder} has schema ${found.schema}, this ax knows ${STORE_SCHEMA}: update ax`, {
      details: { found: found.schema!, known: STORE_SCHEMA },
    });
  }
  const isKnown = (found.state === 'creating' || found.state === 'ready') && (found.kept === undefined || isPlainName(found.kept));
  if (!isKnown) throw corrupt(path, 'is not the mark of an ax store');
  return found as Marker;
}

function isPlainName(value: unknown): boolean {
  return typeof value === 'string' && /^[\w.-]{1,100}$/.test(value) && value !== '..' && value !== '.';
}

function writeMarker(folder: string, facts: Omit<Marker, 'store'>): void {
  const marker: Marker = { store: 'ax-store', ...facts };
  const path = join(folder, MARKER);
  const fd = openSync(`${path}.tmp`, constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW, 0o600);
  try {
    fchmodSync(fd, 0o600);
    writeSync(fd, `${JSON.stringify(marker)}\n`);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  renameSync(`${path}.tmp`, path);
  syncFolder(folder);
}

/** LMDB would make its files under the umask; an empty file made here first is private whatever that is. */
function makePrivate(path: string): void {
  const fd = openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600);
  try {
    fchmodSync(fd, 0o600);
  } finally {
    closeSync(fd);
  }
}

function syncFolder(folder: string): void {
  syncFile(folder);
}

function syncFile(path: string): void {
  const fd = openSync(path, constants.O_RDONLY);
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

function regularSize(path: string): number | undefined {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return undefined;
  if (!stat.isFile()) throw corrupt(path, 'is not a regular file');
  return stat.size;
}

function corrupt(path: string, what: string, cause?: unknown): AxError {
  return new AxError('store_corrupt', `${path} ${what}; nothing was changed`, { cause });
}

const MAGIC = 0xbeefc0de;
const DATA_VERSION = 2;
const HEADER = 24;
const BRANCH = 0x01;
const LEAF = 0x02;
const OVERFLOW = 0x04;
const META = 0x08;
const NO_PAGE = 0xffff_ffff_ffff_ffffn;

/** Byte offsets in a meta page: after the page header magic, version, address, map size, two tree records of 48 bytes, last page, txn. */
const AT = { magic: 24, version: 28, pageSize: 48, freeTree: 48, mainTree: 96, lastPage: 144, txn: 152, end: 168 } as const;
const ROOT_IN_TREE = 40;

/** Refuses (AxError `store_corrupt`) an LMDB data file that is foreign, cut short, or whose pages do not hang together. */
function checkDataFile(path: string): void {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    new DataFile(fd, path).check();
  } finally {
    closeSync(fd);
  }
}

class DataFile {
  readonly #fd: number;
  readonly #path: string;
  readonly #size: number;
  #pageSize = 0;
  #lastPage = 0n;
  #whole = false;

  constructor(fd: number, path: string) {
    this.#fd = fd;
    this.#path = path;
    this.#size = fstatSync(fd).size;
  }

  check(): void {
    const first = this.#meta(0);
    this.#pageSize = first.getUint32(AT.pageSize, true);
    const isPower = (this.#pageSize & (this.#pageSize - 1)) === 0;
    if (!isPower || this.#pageSize < 512 || this.#pageSize > 65536) throw corrupt(this.#path, 'is damaged (page size)');
    const second = this.#meta(this.#pageSize);
    if (second.getUint32(AT.pageSize, true) !== this.#pageSize) throw corrupt(this.#path, 'is damaged (page size)');
    const newest = second.getBigUint64(AT.txn, true) > first.getBigUint64(AT.txn, true) ? second : first;
    this.#lastPage = newest.getBigUint64(AT.lastPage, true);
    if (this.#lastPage < 1n || this.#lastPage > BigInt(Number.MAX_SAFE_INTEGER) / 65536n)
      throw corrupt(this.#path, 'is damaged (last page)');
    // A file may rightly end before its last page, if that one is free: then look whether a page in use is missing.
    this.#whole = this.#size <= WHOLE_CHECK_BYTES || BigInt(this.#size) < (this.#lastPage + 1n) * BigInt(this.#pageSize);
    for (const tree of [AT.freeTree, AT.mainTree]) this.#tree(newest.getBigUint64(tree + ROOT_IN_TREE, true), 0, tree === AT.mainTree);
  }

  #meta(at: number): DataView {
    const view = this.#read(at, AT.end);
    if ((view.getUint16(18, true) & META) === 0 || view.getUint32(AT.magic, true) !== MAGIC)
      throw corrupt(this.#path, 'is no store (its header is not LMDB’s)');
    const version = view.getUint32(AT.version, true) & 0xffff;
    if (version !== DATA_VERSION) throw corrupt(this.#path, `is no store of ours (format version ${version}, not ${DATA_VERSION})`);
    return view;
  }

  #read(at: number, length: number): DataView {
    const bytes = new Uint8Array(length);
    for (let have = 0; have < length;) {
      const got = readSync(this.#fd, bytes, have, length - have, at + have);
      if (got === 0) throw corrupt(this.#path, 'is cut short');
      have += got;
    }
    return new DataView(bytes.buffer);
  }

  /** Walks one tree: every page in its place and inside the file. `named`: its leaves hold the roots of the tables. */
  #tree(page: bigint, depth: number, named: boolean): void {
    if (page === NO_PAGE) return;
    this.#inFile(page, 1n);
    const view = this.#read(Number(page) * this.#pageSize, this.#pageSize);
    const flags = view.getUint16(18, true) & (BRANCH | LEAF | OVERFLOW | META);
    if (view.getBigUint64(0, true) !== page || (flags !== BRANCH && flags !== LEAF) || depth > 40)
      throw corrupt(this.#path, `is damaged (page ${page})`);
    if (!this.#whole && !named) return;
    const count = view.getUint16(20, true) >> 1;
    if (HEADER + count * 2 > this.#pageSize) throw corrupt(this.#path, `is damaged (page ${page})`);
    for (let i = 0; i < count; i++) this.#node(view, page, HEADER + view.getUint16(HEADER + i * 2, true), flags === LEAF, depth, named);
  }

  #node(view: DataView, page: bigint, at: number, isLeaf: boolean, depth: number, named: boolean): void {
    const limit = this.#pageSize;
    if (at + 8 > limit) throw corrupt(this.#path, `is damaged (page ${page})`);
    const low = view.getUint32(at, true);
    const flags = view.getUint16(at + 4, true);
    const data = at + 8 + view.getUint16(at + 6, true);
    const length = !isLeaf ? 0 : (flags & 1) !== 0 ? 24 : low;
    if (data + length > limit) throw corrupt(this.#path, `is damaged (page ${page})`);
    if (!isLeaf) this.#tree(BigInt(low) + (BigInt(flags) << 32n), depth + 1, named);
    else if ((flags & 1) !== 0) this.#inFile(view.getBigUint64(data, true), view.getBigUint64(data + 16, true));
    else if (named && (flags & 2) !== 0 && length >= 48) this.#tree(view.getBigUint64(data + ROOT_IN_TREE, true), 0, false);
  }

  #inFile(page: bigint, pages: bigint): void {
    if (page < 2n || page + pages - 1n > this.#lastPage) throw corrupt(this.#path, `is damaged (it points to page ${page})`);
    if ((page + pages) * BigInt(this.#pageSize) > BigInt(this.#size)) throw corrupt(this.#path, 'is cut short');
  }
}
