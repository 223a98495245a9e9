/**
 * Lanes: for each host this one sends to, what is on its way there and when to try again.
 *
 * Owns the memory of one life only: nothing here is durable and losing it costs at most a repeated attempt. A lane pauses as a
 * whole with growing spans when its host fails or says "not now"; one entry can be left for later on its own account.
 */
import type { MessageId } from '../protocol/ids.ts';
import { RETRY_CAP_MS, RETRY_FIRST_MS } from '../protocol/limits.ts';
import type { Clock } from './clock/clock.ts';

export class Lane {
  running = false;
  again = false;
  readonly inFlight = new Set<MessageId>();
  /** Entries of which no copy can be on its way: every attempt so far, all in this life, was answered or never left. */
  readonly untouched = new Set<MessageId>();
  readonly #clock: Clock;
  readonly #retry: () => void;
  /** Monotonic ms before which nothing is tried. */
  #blockedUntil = 0;
  #pauseMs = RETRY_FIRST_MS;
  #cancelTimer: (() => void) | undefined;
  /** Entries refused for now on their own account: not before this monotonic ms. */
  readonly #notBefore = new Map<MessageId, number>();

  /** `retry` is called whenever a pause is over. */
  constructor(clock: Clock, retry: () => void) {
    this.#clock = clock;
    this.#retry = retry;
  }

  get isBlocked(): boolean {
    return this.#clock.monotonic() < this.#blockedUntil;
  }

  /** May this entry be tried now, as far as it alone is concerned? */
  isDue(id: MessageId): boolean {
    return !this.inFlight.has(id) && (this.#notBefore.get(id) ?? 0) <= this.#clock.monotonic();
  }

  /** The host is there again: no pause holds any more. */
  clear(): void {
    this.#blockedUntil = 0;
    this.#pauseMs = RETRY_FIRST_MS;
    this.#notBefore.clear();
  }

  /** Something got through: the next pause is a short one. */
  succeeded(): void {
    this.#pauseMs = RETRY_FIRST_MS;
  }

  /** Blocks the lane for its growing pause, or as long as the peer asked. Many attempts that fail together make one pause. */
  pause(askedMs = 0): void {
    const pause = Math.min(RETRY_CAP_MS, Math.max(this.isBlocked ? 0 : this.#pauseMs, askedMs));
    if (this.isBlocked && this.#clock.monotonic() + pause <= this.#blockedUntil) return;
    if (!this.isBlocked) this.#pauseMs = Math.min(RETRY_CAP_MS, this.#pauseMs * 2);
    this.#blockedUntil = this.#clock.monotonic() + pause;
    this.#cancelTimer?.();
    this.#cancelTimer = this.#clock.after(pause, this.#retry);
  }

  /** Leaves one entry for later (its workspace's grant is missing); the others go on. */
  postpone(id: MessageId): void {
    this.#notBefore.set(id, this.#clock.monotonic() + RETRY_CAP_MS);
    this.#clock.after(RETRY_CAP_MS, this.#retry);
  }

  stop(): void {
    this.#cancelTimer?.();
  }
}
