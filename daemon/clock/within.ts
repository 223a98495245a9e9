/**
 * Bounded waiting: a step that is told to stop after a given time of a given clock, work that is gone on without after it, and a pause.
 *
 * Owns nothing else. `within` tells the step; whether it can stop is its own affair. `unlessLate` does not depend on the work at all. The
 * timer never outlives what it bounds.
 */
import type { Clock } from './clock.ts';

/** Resolves or rejects as `step` does; `step` gets a signal that aborts after `ms`. */
export async function within<T>(clock: Clock, ms: number, step: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const cancel = clock.after(ms, () => controller.abort());
  try {
    return await step(controller.signal);
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
