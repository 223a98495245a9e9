/**
 * Where a commit is made: in place, on the thread of the event loop, as long as that is short, and in LMDB's own thread otherwise.
 *
 * To hand a commit of one message to a thread and have it back takes about as long as the commit. A slow disk must not hold the event loop
 * up, so flushes in place that take long send those that follow to the thread. It knows nothing of what is written.
 */
import type { RootDatabase } from 'lmdb';
import type { Clock } from '../clock/clock.ts';

/** A flush in place that takes longer is slow, ms. */
const LONGEST_IN_PLACE_MS = 2;
/** So many slow ones in a row are the disk; fewer may have been interrupted on a busy machine. */
const SLOW_IN_A_ROW = 4;
/** So many commits then go to the thread before one is tried in place again. */
const THEN_IN_THREAD = 32;

export class Commits {
  readonly #root: RootDatabase<Uint8Array, Uint8Array>;
  readonly #clock: Pick<Clock, 'monotonic'> | undefined;
  #slowInARow = 0;
  #inThread = 0;

  /** Without a clock all go to the thread. */
  constructor(root: RootDatabase<Uint8Array, Uint8Array>, clock: Pick<Clock, 'monotonic'> | undefined) {
    this.#root = root;
    this.#clock = clock;
  }

  /**
   * Calls `run` in a write transaction, soon and not at once, and resolves when what it wrote is on disk. Rejects when `run` throws or LMDB
   * fails, with what was thrown, and leaves nothing. Not called again before it has settled.
   */
  async commit(run: () => void): Promise<void> {
    const clock = this.#clock;
    if (clock === undefined || this.#inThread > 0) {
      if (this.#inThread > 0) this.#inThread -= 1;
      // A transaction of its own inside: lmdb commits what an outer one wrote before it threw.
      await this.#root.transaction(() => void this.#root.childTransaction(run));
      return;
    }
    // What else is asked for in this turn of the event loop goes along.
    await new Promise<void>((resolve) => void setImmediate(resolve));
    let began = 0;
    this.#root.transactionSync(() => {
      run();
      began = clock.monotonic();
    });
    this.#slowInARow = clock.monotonic() - began > LONGEST_IN_PLACE_MS ? this.#slowInARow + 1 : 0;
    if (this.#slowInARow < SLOW_IN_A_ROW) return;
    this.#slowInARow = SLOW_IN_A_ROW - 1;
    this.#inThread = THEN_IN_THREAD;
  }
}
