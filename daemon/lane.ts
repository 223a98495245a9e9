/**
 * Lanes: for each host this one sends to, what is on its way there and when to try again.
 *
 * Owns the memory of one life only: nothing here is durable and losing it costs at most a repeated attempt. What goes wrong with
 * the host pauses everything; a "not now" pauses only the kind it answered, so that a full inbox there never holds up a receipt
 * or a cancel; a rate that is used up for one workspace pauses the messages to that workspace, which then leave one at first, and twice as
 * many each time, so that few bodies are sent to be refused; one entry can be left for later on its own account. What is held so is passed
 * over once, not at every look (`passed`).
 */
import type { MessageId } from '../protocol/ids.ts';
import {
  FORWARD_WINDOW,
  FORWARD_WINDOW_BYTES,
  PIECE_WINDOW_BYTES,
  RETRY_CAP_MS,
  RETRY_FIRST_MS,
  SHARED_AFTER_MS,
  SHARED_WINDOW_BYTES,
} from '../protocol/limits.ts';
import type { Clock } from './clock/clock.ts';
import type { Sent } from './sent-row.ts';

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

/** At most as many bytes at the same time as the limit is when they come to it, or one that is larger; the others wait in line. */
class Gate {
  readonly #limit: () => number;
  readonly #line: { readonly bytes: number; readonly enter: () => void }[] = [];
  #inside = 0;

  constructor(limit: () => number) {
    this.#limit = limit;
  }

  async pass<T>(bytes: number, run: () => Promise<T>): Promise<T> {
    await new Promise<void>((enter) => {
      this.#line.push({ bytes, enter });
      this.#admit();
    });
    try {
      return await run();
    } finally {
      this.#inside -= bytes;
      this.#admit();
    }
  }

  #admit(): void {
    const limit = this.#limit();
    for (let [next] = this.#line; next !== undefined; [next] = this.#line) {
      if (this.#inside > 0 && this.#inside + next.bytes > limit) return;
      this.#line.shift();
      this.#inside += next.bytes;
      next.enter();
    }
  }
}

/** Workspaces held apart at once; more pause all messages. */
const MAX_HELD = 64;
/** Messages kept for a host which cannot be told that they changed; it asks after its open ones besides. */
const MAX_UNTOLD = 500;

/** A workspace over its rate. */
interface Held {
  readonly pause: Pause;
  /** Messages to it that may be on their way at the same time. */
  room: number;
}

/** A new entry, and the sealed body of its one piece where that is still at hand. */
interface Fresh {
  readonly row: Sent;
  readonly body: Uint8Array | undefined;
}

export class Lane {
  running = false;
  /** Sequence up to which every open entry is held or left for later: nothing there is due before this is 0 again. */
  passed = 0;
  again = false;
  /** Receipts or cancels may wait for the host: it is looked for them, beside messages. */
  mayHaveWords = true;
  /** Monotonic ms of the last retry that the other host asked for, and what cancels one that is due already. */
  retriedAt = Number.NEGATIVE_INFINITY;
  cancelRetry: (() => void) | undefined;
  /** Cancels the time after which the host is told of what it was not told of. */
  cancelTelling: (() => void) | undefined;
  /** The host is being asked after what is open there. */
  isCatchingUp = false;
  /** What is on its way, and to which workspace. */
  readonly inFlight = new Map<MessageId, string>();
  /** Bytes of the bodies of these, but for those in several pieces. */
  bytes = 0;
  /** Of these, the ones in several pieces. */
  readonly large = new Set<MessageId>();
  /** Pieces on their way, of all of these. */
  readonly pieces = new Gate(() => (this.#isShared ? SHARED_WINDOW_BYTES : PIECE_WINDOW_BYTES));
  /** New entries that are durable as on their way and have not left yet, oldest first; and the bytes of the bodies held with them. */
  readonly #fresh: Fresh[] = [];
  #freshBytes = 0;
  /** Entries of which no copy can be on its way: every attempt so far, all in this life, was answered or never left. */
  readonly untouched = new Set<MessageId>();
  /** The host fails. */
  readonly all: Pause;
  readonly messages: Pause;
  readonly receipts: Pause;
  readonly cancels: Pause;
  readonly #clock: Clock;
  readonly #retry: () => void;
  /** Monotonic ms until which pieces make room for small messages, when none of these is on its way. */
  #sharedUntil = Number.NEGATIVE_INFINITY;
  /** Entries refused for now on their own account: not before this monotonic ms. */
  readonly #notBefore = new Map<MessageId, number>();
  readonly #held = new Map<string, Held>();
  /** Messages of the host that changed here while it could not be told. */
  readonly #untold = new Set<MessageId>();

  /** `retry` is called whenever a pause is over. */
  constructor(clock: Clock, retry: () => void) {
    this.#clock = clock;
    this.#retry = () => {
      this.passed = 0;
      retry();
    };
    this.all = new Pause(clock, retry);
    this.messages = new Pause(clock, retry);
    this.receipts = new Pause(clock, retry);
    this.cancels = new Pause(clock, retry);
  }

  /** A message of the host changed, and it cannot be told of that now; of many such the oldest are let go. */
  keepUntold(id: MessageId): void {
    this.#untold.delete(id);
    this.#untold.add(id);
    const [oldest] = this.#untold;
    if (oldest !== undefined && this.#untold.size > MAX_UNTOLD) this.#untold.delete(oldest);
  }

  /** Those it was not told of; they are not held here any more. */
  takeUntold(): readonly MessageId[] {
    const untold = [...this.#untold];
    this.#untold.clear();
    return untold;
  }

  /** May this entry be tried now, as far as it and its workspace are concerned? */
  isDue(id: MessageId, workspace: string): boolean {
    return !this.inFlight.has(id) && !this.isHeld(id, workspace);
  }

  /** Is this entry, or its workspace, left for later? */
  isHeld(id: MessageId, workspace: string): boolean {
    return this.#held.get(workspace)?.pause.isOn === true || (this.#notBefore.get(id) ?? 0) > this.#clock.monotonic();
  }

  /** Takes a new entry as it was just stored; with its sealed body, unless those of a whole window are held already. */
  addFresh(row: Sent, body: Uint8Array): void {
    const isHeld = this.#freshBytes < FORWARD_WINDOW_BYTES;
    this.#fresh.push({ row, body: isHeld ? body : undefined });
    if (isHeld) this.#freshBytes += body.length;
  }

  /** The oldest new entry that has not left yet; it is not held here any more. */
  takeFresh(): Fresh | undefined {
    const first = this.#fresh.shift();
    this.#freshBytes -= first?.body?.length ?? 0;
    return first;
  }

  /** A message of one piece leaves. */
  smallLeaves(): void {
    this.#sharedUntil = this.#clock.monotonic() + SHARED_AFTER_MS;
  }

  get #isShared(): boolean {
    return this.inFlight.size > this.large.size || this.#clock.monotonic() < this.#sharedUntil;
  }

  /** May one more message leave? */
  get hasRoom(): boolean {
    return this.inFlight.size < FORWARD_WINDOW && this.bytes < FORWARD_WINDOW_BYTES;
  }

  /** Is any workspace held? A new entry is then looked at with the others. */
  get isHolding(): boolean {
    return Array.from(this.#held.values()).some(({ pause }) => pause.isOn);
  }

  /** How many more messages to a workspace may leave now; Infinity unless it was over its rate of late. */
  roomFor(workspace: string): number {
    const held = this.#held.get(workspace);
    if (held === undefined) return Number.POSITIVE_INFINITY;
    return held.room - Array.from(this.inFlight.values()).filter((other) => other === workspace).length;
  }

  /** The messages to one workspace (as typed by their senders) are left for later; those to others go on. */
  hold(workspace: string, askedMs: number): void {
    let held = this.#held.get(workspace);
    if (held === undefined) {
      if (this.#held.size >= MAX_HELD) for (const [other, { pause }] of this.#held) if (!pause.isOn) this.#held.delete(other);
      if (this.#held.size >= MAX_HELD) return this.messages.begin(askedMs);
      held = { pause: new Pause(this.#clock, this.#retry), room: 1 };
      this.#held.set(workspace, held);
    }
    held.room = 1;
    held.pause.begin(askedMs);
  }

  /** A message to this workspace got through: the next pause is a short one. */
  gotThrough(workspace: string): void {
    this.messages.reset();
    this.all.reset();
    this.withinRate(workspace);
  }

  /** A message to this workspace was not refused for its rate: more of them may leave, also when there was no room for this one. */
  withinRate(workspace: string): void {
    const held = this.#held.get(workspace);
    if (held === undefined || held.pause.isOn) return; // one that left before the pause began says nothing
    held.pause.reset();
    held.room *= 2;
    if (held.room > FORWARD_WINDOW) this.#held.delete(workspace);
  }

  /** The host is there again: no pause holds any more. */
  clear(): void {
    for (const pause of [this.all, this.messages, this.receipts, this.cancels]) pause.end();
    for (const { pause } of this.#held.values()) pause.end();
    this.#held.clear();
    this.#notBefore.clear();
    this.passed = 0;
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
