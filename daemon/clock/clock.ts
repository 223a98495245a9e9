/**
 * The seam for time and randomness: the core knows no other clock, timer or source of chance.
 *
 * Owns the interface only. Real: system.ts. In the simulation one event queue drives every daemon's clock, with skew,
 * jumps and suspend. `now` is for people to read; every decision uses `monotonic`.
 */

export interface Clock {
  /** Wall time, ms since 1970. May jump. Never decides anything. */
  now(): number;
  /** Running time of this process, ms. Never goes back; does not count suspend. */
  monotonic(): number;
  /** Calls `run` once after at least `delayMs`; the result cancels it. Does not keep the process alive by itself. */
  after(delayMs: number, run: () => void): () => void;
}

export interface Random {
  /** `length` unpredictable bytes (seeded in the simulation). */
  bytes(length: number): Uint8Array;
}
