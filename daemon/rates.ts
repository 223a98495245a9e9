/**
 * Rates: how fast one host may leave new messages here, for one workspace and in all.
 *
 * Owns token buckets of this life of the daemon; a restart gives a full burst, the bounds on what waits hold over it. Who is over its
 * rate is told `throttled`, with when to come back; nothing is dropped. Messages within this host are not counted.
 */
import { AxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import type { Limits } from '../protocol/limits.ts';
import type { Clock } from './clock/clock.ts';

interface Bucket {
  tokens: number;
  /** Monotonic ms. */
  at: number;
}

/** Buckets kept; of more, the one longest unused starts full again. */
const MAX_BUCKETS = 10_000;
/** What one host may do over all workspaces, in rates of one. */
const WIDTH = 4;

export class Rates {
  readonly #clock: Clock;
  readonly #limits: Limits;
  readonly #buckets = new Map<string, Bucket>();

  constructor(clock: Clock, limits: Limits) {
    this.#clock = clock;
    this.#limits = limits;
  }

  /** Takes one message from both buckets of a host. AxError `throttled`; then nothing is taken. */
  take(host: HostId, workspace: string): void {
    const one = this.#bucket(`${host} ${workspace}`, 1);
    const all = this.#bucket(host, WIDTH);
    const perMs = this.#limits.messagesPerMinute / 60_000;
    const waitMs = Math.max((1 - one.tokens) / perMs, (1 - all.tokens) / (perMs * WIDTH));
    if (waitMs > 0)
      throw new AxError('throttled', 'that host sends more than this one takes in a while', {
        details: { retry_after_ms: Math.ceil(waitMs) + 1000 },
      });
    one.tokens--;
    all.tokens--;
  }

  #bucket(key: string, width: number): Bucket {
    const { messageBurst, messagesPerMinute } = this.#limits;
    const now = this.#clock.monotonic();
    const full = messageBurst * width;
    const old = this.#buckets.get(key);
    const grown = old === undefined ? full : old.tokens + ((now - old.at) * messagesPerMinute * width) / 60_000;
    const bucket = { tokens: Math.min(full, grown), at: now };
    this.#buckets.delete(key); // the last used stands last
    const [first] = this.#buckets.keys();
    if (this.#buckets.size >= MAX_BUCKETS && first !== undefined) this.#buckets.delete(first);
    this.#buckets.set(key, bucket);
    return bucket;
  }
}
