/**
 * Room on the disk: nothing new is taken while there is too little, and what must go on goes on without it.
 *
 * Owns no state but the age of its last look. What is refused for want of room is refused before anything is promised.
 */
import { AxError } from '../protocol/errors.ts';
import type { Clock } from './clock/clock.ts';
import type { Log } from './log.ts';
import type { Store } from './store/store.ts';

/** How long a look at the free space is believed, ms. */
const ROOM_MS = 5000;

/** Lets a write go that only keeps a record: a full disk must neither keep a daemon from starting nor from stopping. */
export async function unlessFull(log: Log, write: Promise<void>): Promise<void> {
  try {
    await write;
  } catch (error) {
    if (!(error instanceof AxError) || error.code !== 'store_full') throw error;
    log.warn('not recorded', { reason: error.message });
  }
}

/** Throws `store_full` while the disk has too little room for `bytes` more; looks at most every few seconds. */
export function roomKeeper(store: Store, clock: Clock, minFreeBytes: number): (bytes?: number) => void {
  let lookedAt = Number.NEGATIVE_INFINITY;
  let free = 0;
  return (bytes = 0) => {
    if (clock.monotonic() - lookedAt > ROOM_MS) {
      free = store.status().freeBytes;
      lookedAt = clock.monotonic();
    }
    if (free - bytes < minFreeBytes)
      throw new AxError('store_full', `only ${free} bytes are free on this host's disk; nothing new is taken`, {
        fix: 'free some disk space',
        details: { free_bytes: free, retry_after_ms: 30_000 },
      });
    free -= bytes; // promised, until the next look
  };
}
