/**
 * One folder of session records, `<config root>/sessions`: its listing and its watch.
 *
 * Owns the trust in the folder (ours, nobody else may write to it) and the watch over it, which is set again when the
 * folder is replaced and may be missing altogether: the poll of claude-registry.ts stands behind it. Reads no record.
 */
import { watch, type FSWatcher } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Log } from '../log.ts';
import { isPrivate } from './claude-live.ts';
import { pidOfRecordName } from './claude-record.ts';
import { errorCode } from './places.ts';

/** Records of one folder that are looked at; a hundred sessions at once are already rare. */
export const MAX_RECORDS_PER_ROOT = 512;

export interface RecordFolderOptions {
  readonly uid: number;
  readonly log: Log;
  /** A record file was made, changed or removed. */
  readonly onRecord: (path: string) => void;
  /** The folder itself has appeared. */
  readonly onFolder: () => void;
}

const NAME = 'sessions';

export class RecordFolder {
  readonly #configDir: string;
  readonly #folder: string;
  readonly #options: RecordFolderOptions;
  #watcher: FSWatcher | undefined;
  /** What is watched: the folder, or its config root while there is no such folder. */
  #watched = '';
  #inode = 0;
  /** The folder as it was just before its last listing. */
  #listed: string | undefined;
  #closed = false;
  #isRefused = false;
  readonly #warned = new Set<string>();

  constructor(configDir: string, options: RecordFolderOptions) {
    this.#configDir = configDir;
    this.#folder = join(configDir, NAME);
    this.#options = options;
  }

  /** At the last listing others could write there: nothing that is told of its records counts. */
  get isRefused(): boolean {
    return this.#isRefused;
  }

  /** True when `path` is a file of this folder. */
  holds(path: string): boolean {
    return path.startsWith(`${this.#folder}/`);
  }

  /**
   * The paths of its records; none while there is no such folder. Undefined when what is known of them stands: the folder cannot be read
   * just now, or, when only changes are asked for, nothing was made or removed in it since the last listing. Never throws.
   */
  async list(ask: 'all' | 'changes'): Promise<readonly string[] | undefined> {
    try {
      const info = await stat(this.#folder);
      this.#isRefused = !isPrivate(info, this.#options.uid);
      if (this.#isRefused) {
        this.#warnOnce('claude.root_skipped');
        this.#listed = undefined;
        return [];
      }
      const isNewWatch = this.#watch(this.#folder, info.ino); // before the listing: a record made in between is then an event
      const mark = `${info.dev}:${info.ino}:${info.mtimeMs}:${info.ctimeMs}`;
      if (ask === 'changes' && !isNewWatch && mark === this.#listed) return undefined;
      this.#listed = undefined;
      const records = (await readdir(this.#folder)).filter((name) => pidOfRecordName(name) !== undefined);
      this.#listed = mark;
      if (records.length > MAX_RECORDS_PER_ROOT) this.#warnOnce('claude.too_many_records');
      return records.slice(0, MAX_RECORDS_PER_ROOT).map((name) => join(this.#folder, name));
    } catch (error) {
      const code = errorCode(error);
      this.#listed = undefined;
      if (code === 'ENOENT' || code === 'ENOTDIR') {
        await this.#watchRoot();
        return [];
      }
      this.#options.log.debug('claude.root_unreadable', { folder: this.#folder, code });
      return undefined;
    }
  }

  close(): void {
    this.#closed = true;
    this.#watcher?.close();
    this.#watcher = undefined;
  }

  async #watchRoot(): Promise<void> {
    try {
      this.#watch(this.#configDir, (await stat(this.#configDir)).ino);
    } catch {
      this.#watch('', 0); // no root either: the poll will find it
    }
  }

  /** True when a watch was set just now: nothing is known of what happened before. */
  #watch(path: string, inode: number): boolean {
    if (this.#closed || (this.#watcher !== undefined && this.#watched === path && this.#inode === inode)) return false;
    this.#watcher?.close();
    this.#watcher = undefined;
    if (path === '') return false;
    try {
      const watcher = watch(path, { persistent: false });
      watcher.on('change', (_type, name) => {
        if (typeof name !== 'string') return;
        if (path === this.#configDir && name === NAME) this.#options.onFolder();
        if (path === this.#folder && pidOfRecordName(name) !== undefined) this.#options.onRecord(join(path, name));
      });
      watcher.on('error', () => {
        watcher.close();
        if (this.#watcher === watcher) this.#watcher = undefined; // the next listing sets it again
      });
      this.#watcher = watcher;
      this.#watched = path;
      this.#inode = inode;
      return true;
    } catch (error) {
      this.#options.log.debug('claude.watch_failed', { folder: path, code: errorCode(error) });
      return false;
    }
  }

  #warnOnce(event: string): void {
    if (!this.#warned.has(event)) this.#options.log.warn(event, { folder: this.#folder });
    this.#warned.add(event);
  }
}
