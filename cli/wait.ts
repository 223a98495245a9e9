/**
 * Waiting in a command: it never waits silently, and never without a bound that the caller knows.
 *
 * Owns the line on stderr after 2 s and the pause between two tries. It does not decide what to wait for.
 */
import { say } from './say.ts';

const SILENCE_MS = 2_000;

/** Awaits `work`; when that takes more than 2 s, says on stderr once what it is waiting for. */
export async function awaiting<T>(what: string, work: Promise<T>): Promise<T> {
  const timer = setTimeout(() => say(`ax: waiting for ${what} …\n`), SILENCE_MS);
  try {
    return await work;
  } finally {
    clearTimeout(timer);
  }
}

/** Counts the time since it was made, ms. */
export function stopwatch(): () => number {
  const start = performance.now();
  return () => performance.now() - start;
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => void setTimeout(resolve, ms));
}

/** Calls `tick` every so many ms until the function it gives is called; keeps no process alive. */
export function every(ms: number, tick: () => void): () => void {
  const timer = setInterval(tick, ms).unref();
  return () => clearInterval(timer);
}

/** Tries until `attempt` gives a value or `timeoutMs` have passed; then undefined. */
export async function retryUntil<T>(timeoutMs: number, everyMs: number, attempt: () => Promise<T | undefined>): Promise<T | undefined> {
  const passed = stopwatch();
  for (;;) {
    const value = await attempt();
    if (value !== undefined) return value;
    if (passed() >= timeoutMs) return undefined;
    await pause(everyMs);
  }
}
