/**
 * The watch for a Codex daemon's socket while there is no connection: tells when something happens in its folder.
 *
 * Owns one watcher on the folder of the socket, set again when the folder was replaced. It may be missing altogether: the polling of
 * codex-home.ts stands behind it. Reads and judges nothing.
 */
import { statSync, watch, type FSWatcher } from 'node:fs';
import { join } from 'node:path';
import type { Log } from '../log.ts';
import { errorCode } from './places.ts';
import { CONTROL_FOLDER } from './codex-socket.ts';

export class SocketWatch {
  readonly #folder: string;
  readonly #log: Log;
  readonly #onEvent: () => void;
  #watcher: FSWatcher | undefined;
  #inode = 0;

  constructor(home: string, log: Log, onEvent: () => void) {
    this.#folder = join(home, CONTROL_FOLDER);
    this.#log = log;
    this.#onEvent = onEvent;
  }

  /** Watches the folder that is there now; none is no fault. Never throws. */
  set(): void {
    try {
      const inode = statSync(this.#folder, { throwIfNoEntry: false })?.ino ?? 0;
      if (inode === this.#inode) return;
      this.clear();
      if (inode === 0) return;
      const watcher = watch(this.#folder, { persistent: false });
      watcher.on('change', this.#onEvent);
      watcher.on('error', () => {
        if (this.#watcher === watcher) this.clear(); // the next attempt sets it again
      });
      this.#watcher = watcher;
      this.#inode = inode;
    } catch (error) {
      this.#log.debug('codex.watch_failed', { folder: this.#folder, code: errorCode(error) });
    }
  }

  clear(): void {
    this.#watcher?.close();
    this.#watcher = undefined;
    this.#inode = 0;
  }
}
