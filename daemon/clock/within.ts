/**
 * Bounded waiting: a step that is told when a given time of a given clock is over, work that is gone on without after it, and a pause.
 *
 * Owns nothing else. `within` tells the step; whether it can stop is its own affair. `unlessLate` does not depend on the work at all. The
 * timer never outlives what it bounds.
 */
import type { Clock } from './clock.ts';

/** The time a step has: whoever works on it at the moment is told when it is over. Far cheaper than an AbortSignal, and for one listener. */
export class Limit {
  #isOver = false;
  #whenOver: (() => void) | undefined;

  get isOver(): boolean {
    return this.#isOver;
  }

  /** Has `run` called when the time is over, in place of what was to be called before. Not called when it is over already. */
  onOver(run: () => void): void {
    this.#whenOver = run;
  }

  /** The time is over. */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#whenOver?.();
  }
}

/** Resolves or rejects as `step` does; its limit is over after `ms`. */
export async function within<T>(clock: Clock, ms: number, step: (limit: Limit) => Promise<T>): Promise<T> {
  const limit = new Limit();
  const cancel = clock.after(ms, () => limit.end());
  try {
    return await step(limit);
  } finally {
    cancel();
  }
}

/** What unlessLate resolves with when the time is over. */
export const LATE: unique symbol = Symbol('late');

/** Resolves or rejects as `work` does, or with LATE after `ms`; what the work comes to afterwards is dropped. */
export function unlessLate<T>(clock: Clock, ms: number, work: Promise<T>): Promise<T | typeof LATE> {
  return new Promise((resolve, reject) => {
    const cancel = clock.after(ms, () => resolve(LATE));
    work.then(
      (value) => {
        cancel();
        resolve(value);
      },
      (error: Error) => {
        cancel();
        reject(error);
      },
    );
  });
}

/** Resolves after `ms`, at once when the signal aborts. */
export function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      cancel();
      signal.removeEventListener('abort', end);
      resolve();
    };
    const cancel = clock.after(ms, end);
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) end();
  });
}
