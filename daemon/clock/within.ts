/**
 * Bounded waiting: runs an asynchronous step with an AbortSignal that fires after a given time of a given clock.
 *
 * Owns nothing else. The step is told to stop; whether it can is its own affair. The timer never outlives the step.
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
