/**
 * Gives memory back when the daemon has come to rest.
 *
 * Owns when. V8 collects all garbage when a heap has grown, and that of an idle daemon does not: what a start, a burst of messages or many new
 * connections leave behind (5 to 25 MiB) stays for minutes or hours. One collection stops everything for 30 to 100 ms, so it is made only behind a
 * while in which the process did next to nothing, and only where there is more than what the last one left.
 * Where V8 gives no `gc` nothing happens, and nothing but memory is lost.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Clock } from './clock/clock.ts';

/** How often the process is looked at, ms. */
export const LOOK_MS = 15_000;
/** At rest is a process that worked for less than this share of the time since the last look. */
const REST_SHARE = 0.05;
/** Growth below this is left alone, bytes. */
const WORTH_BYTES = 4 * 1024 * 1024;

/** What is known of this process, and what can be done about it. */
export interface Process {
  /** The share of the time since the last call in which it worked, 0 to 1. */
  busyShare(): number;
  /** Its resident memory, bytes. */
  resident(): number;
  /** Collects all garbage, at once. */
  collect(): void;
}

/** Looks after the process until the function that it gives is called. */
export function restAtTimes(clock: Clock, process: Process): () => void {
  let left = 0;
  const look = (): void => {
    if (process.busyShare() < REST_SHARE && process.resident() >= left + WORTH_BYTES) {
      process.collect();
      left = process.resident();
    }
    cancel = clock.after(LOOK_MS, look);
  };
  process.busyShare(); // from now on
  let cancel = clock.after(LOOK_MS, look);
  return () => cancel();
}

/** This process. */
export function thisProcess(): Process {
  let before = performance.eventLoopUtilization();
  return {
    busyShare: () => {
      const now = performance.eventLoopUtilization();
      const { utilization } = performance.eventLoopUtilization(now, before);
      before = now;
      return utilization;
    },
    resident: () => process.memoryUsage.rss(),
    collect,
  };
}

/** V8 has a function for this in each context that is made while it is told to. */
function collect(): void {
  setFlagsFromString('--expose-gc');
  const gc: unknown = runInNewContext('globalThis.gc');
  setFlagsFromString('--no-expose-gc');
  if (typeof gc === 'function') (gc as () => void)();
}
