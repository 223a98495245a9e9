/**
 * Running time: how long this host's daemon has run in all its lives, the clock of deadlines and retention.
 *
 * Owns one counter in the table `meta`, flushed each minute, and by notices.ts with each of its pauses. Downtime and suspend do not count
 * and a step of the wall clock changes nothing. After a crash at most a minute is counted twice: deadlines come late, never early.
 */
import type { Clock } from './clock/clock.ts';
import { keepRunning, keptRunning } from './store/rows.ts';
import type { Store, StoreTransaction } from './store/store.ts';

/** How often the counter is flushed, ms. */
export const UPTIME_FLUSH_MS = 60_000;

export class Uptime {
  readonly #clock: Clock;
  readonly #base: number;
  readonly #started: number;

  constructor(store: Store, clock: Clock) {
    this.#clock = clock;
    this.#base = keptRunning(store);
    this.#started = clock.monotonic();
  }

  /** Running time over all lives, whole ms. */
  now(): number {
    return Math.floor(this.#base + this.#clock.monotonic() - this.#started);
  }

  /** Running time of this life, whole ms. */
  thisLife(): number {
    return Math.floor(this.#clock.monotonic() - this.#started);
  }

  flush(tx: StoreTransaction): void {
    keepRunning(tx, this.now());
  }
}
