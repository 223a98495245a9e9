/**
 * Lanes: for each host this one sends to, what is on its way there and when to try again.
 *
 * Owns the memory of one life only: nothing here is durable and losing it costs at most a repeated attempt. What goes wrong with
 * the host pauses everything; a "not now" pauses only the kind it answered, so that a full inbox there never holds up a receipt
 * or a cancel; one entry can be left for later on its own account.
 */
import type { MessageId } from '../protocol/ids.ts';
import { RETRY_CAP_MS, RETRY_FIRST_MS } from '../protocol/limits.ts';
import type { Clock } from './clock/clock.ts';

/** A growing pause. Many failures within one pause make one. */
export class Pause {
  readonly #clock: Clock;
  readonly #over: () => void;
  /** Monotonic ms before which nothing is tried. */
  #until = 0;
  #nextMs = RETRY_FIRST_MS;
  #cancelTimer: (() => void) | undefined;

  /** `over` is called whenever a pause has passed. */
  constructor(clock: Clock, over: () => void) {
    this.#clock = clock;
    this.#over = over;
  }

  get isOn(): boolean {
    return this.#clock.monotonic() < this.#until;
  }

  /** Begins or lengthens the pause: its growing span, or as long as the peer asked. */
  begin(askedMs = 0): void {
    const span = Math.min(RETRY_CAP_MS, Math.max(this.isOn ? 0 : this.#nextMs, askedMs));
    if (this.isOn && this.#clock.monotonic() + span <= this.#until) return;
    if (!this.isOn) this.#nextMs = Math.min(RETRY_CAP_MS, this.#nextMs * 2);
    this.#until = this.#clock.monotonic() + span;
    this.#cancelTimer?.();
    this.#cancelTimer = this.#clock.after(span, this.#over);
  }

  /** Something got through: the next pause is a short one. */
  reset(): void {
    this.#nextMs = RETRY_FIRST_MS;
  }

  /** Ends the pause now. */
  end(): void {
    this.#cancelTimer?.();
    this.#until = 0;
    this.#nextMs = RETRY_FIRST_MS;
  }
}

export class Lane {
  running = false;
  again = false;
  readonly inFlight = new Set<MessageId>();
  /** Entries of which no copy can be on its way: every attempt so far, all in this life, was answered or never left. */
  readonly untouched = new Set<MessageId>();
  /** The host fails. */
  readonly all: Pause;
  readonly messages: Pause;
  readonly receipts: Pause;
  readonly cancels: Pause;
  readonly #clock: Clock;
  readonly #retry: () => void;
  /** Entries refused for now on their own account: not before this monotonic ms. */
  readonly #notBefore = new Map<MessageId, number>();

  /** `retry` is called whenever a pause is over. */
  constructor(clock: Clock, retry: () => void) {
    this.#clock = clock;
    this.#retry = retry;
    this.all = new Pause(clock, retry);
    this.messages = new Pause(clock, retry);
    this.receipts = new Pause(clock, retry);
    this.cancels = new Pause(clock, retry);
  }

  /** May this entry be tried now, as far as it alone is concerned? */
  isDue(id: MessageId): boolean {
    return !this.inFlight.has(id) && (this.#notBefore.get(id) ?? 0) <= this.#clock.monotonic();
  }

  /** The host is there again: no pause holds any more. */
  clear(): void {
    for (const pause of [this.all, this.messages, this.receipts, this.cancels]) pause.end();
    this.#notBefore.clear();
  }

  /** Leaves one entry for later (its workspace's grant is missing); the others go on. */
  postpone(id: MessageId): void {
    this.#notBefore.set(id, this.#clock.monotonic() + RETRY_CAP_MS);
    this.#clock.after(RETRY_CAP_MS, this.#retry);
  }

  /** What is known of an entry in this life is forgotten: it has ended. */
  forget(id: MessageId): void {
    this.untouched.delete(id);
    this.#notBefore.delete(id);
  }
}
