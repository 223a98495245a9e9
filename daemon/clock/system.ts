/**
 * The real clock and the real source of chance: the only file of the daemon's core side that touches timers.
 *
 * Owns Date, performance.now, setTimeout and randomFillSync for everybody else. Owns no policy and no state but pending timers and random bytes nobody has got yet.
 * Invariant: a callback never runs before its delay has passed on the monotonic clock, however long the delay; a pending
 * timer never keeps the process alive.
 */
import { randomFillSync } from 'node:crypto';
import type { Clock, Random } from './clock.ts';

/** Node runs a timer with a longer delay after 1 ms instead. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** The machine's clocks. `after` throws RangeError for a delay that is not a number; a negative one counts as 0. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(delayMs, run) {
    if (Number.isNaN(delayMs)) throw new RangeError('a delay must be a number');
    const due = performance.now() + Math.max(0, delayMs);
    let timer: NodeJS.Timeout;
    const arm = (): void => {
      const restMs = Math.ceil(due - performance.now());
      timer = setTimeout(fire, Math.min(Math.max(0, restMs), LONGEST_TIMER_MS)).unref();
    };
    // A timer may fire up to a millisecond early, and a long delay comes in several pieces: look again before running.
    const fire = (): void => (performance.now() < due ? arm() : run());
    arm();
    return () => clearTimeout(timer);
  },
};

/** Random bytes got at once: asking the system for a few costs ten times what taking them from here does. */
const POOL_BYTES = 4096;
let pool = new Uint8Array(0);

/** The operating system's secure random bytes. */
export const systemRandom: Random = {
  bytes: (length) => {
    if (length > POOL_BYTES / 8) return randomFillSync(new Uint8Array(length));
    if (pool.length < length) pool = randomFillSync(new Uint8Array(POOL_BYTES));
    const bytes = pool.slice(0, length);
    pool.fill(0, 0, length); // each is given out once, and kept nowhere
    pool = pool.subarray(length);
    return bytes;
  },
};
