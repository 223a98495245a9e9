/**
 * Progress news: what the receiver's side of a message looks like now, gathered for the host that sent it.
 *
 * Owns nothing durable: news are a courtesy, unsigned and coalesced, and told again where they may not have arrived; the signed receipt and
 * the answer to a question after every reconnect are the truth.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import type { Progress } from '../protocol/receipt.ts';
import { MAX_PROGRESS_IDS } from '../protocol/wire.ts';
import type { Clock } from './clock/clock.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';

/** Unread messages of one address whose senders are told that a session came or the last one went. */
const TOLD = 64;
/** Addresses whose liveness is remembered. */
const MAX_ADDRESSES = 10_000;
/** Changes within this time travel together, ms. */
const GATHER_MS = 50;

export class ProgressNews {
  readonly #clock: Clock;
  readonly #inbox: Inbox;
  readonly #hasLiveSession: (harness: string, workspace: string) => boolean;
  readonly #waiting = new Map<HostId, Set<MessageId>>();
  readonly #timers = new Set<() => void>();
  #stopped = false;

  constructor(clock: Clock, inbox: Inbox, hasLiveSession: (harness: string, workspace: string) => boolean) {
    this.#clock = clock;
    this.#inbox = inbox;
    this.#hasLiveSession = hasLiveSession;
  }

  /** Nothing is told and the store is not read any more. */
  stop(): void {
    this.#stopped = true;
    for (const cancel of this.#timers) cancel();
    this.#timers.clear();
    this.#waiting.clear();
  }

  /** A message of `host` changed; `tell` gets it and whatever else changes until then. */
  add(host: HostId, id: MessageId, tell: (items: Progress[]) => void): void {
    if (this.#stopped) return;
    const waiting = this.#waiting.get(host);
    if (waiting !== undefined) {
      waiting.add(id);
      return;
    }
    const ids = new Set([id]);
    this.#waiting.set(host, ids);
    this.#gather(host, ids, tell);
  }

  /** What one word has no room for comes with the next. */
  #gather(host: HostId, ids: Set<MessageId>, tell: (items: Progress[]) => void): void {
    const cancel = this.#clock.after(GATHER_MS, () => {
      this.#timers.delete(cancel);
      const told = [...ids].slice(0, MAX_PROGRESS_IDS);
      for (const one of told) ids.delete(one);
      if (ids.size === 0) this.#waiting.delete(host);
      else this.#gather(host, ids, tell);
      const items = told.flatMap((one) => this.progressOf(host, one) ?? []);
      if (items.length > 0) tell(items);
    });
    this.#timers.add(cancel);
  }

  /** The present state of a message that `sender` sent, for its eyes. */
  progressOf(sender: HostId, id: MessageId): Progress | undefined {
    const row = this.#inbox.get(sender, id);
    if (row === undefined) return undefined;
    return {
      id,
      state: row.state,
      at: row.fetchedAt ?? row.handedOutAt ?? row.receivedAt,
      handedOut: row.handedOutAt !== null,
      liveSession: this.#hasLiveSession(row.harness, row.workspace),
      ...(row.notice === null ? {} : { notice: row.notice.outcome }),
      ...(row.notice?.reason === undefined ? {} : { noticeReason: row.notice.reason }),
    };
  }
}

/** Called when sessions changed at an address: tells the senders of what is unread there when one lives now and none did, or the reverse. */
export function livenessNews(
  inbox: Inbox,
  hasLiveSession: (harness: string, workspace: string) => boolean,
  tell: (row: Received) => void,
): (harness: string, workspace: string) => void {
  const before = new Map<string, boolean>();
  return (harness, workspace) => {
    const key = `${harness}\0${workspace}`;
    const isLive = hasLiveSession(harness, workspace);
    if (before.get(key) === isLive) return;
    // Not known before: what the sender heard with the receipt may be old by now.
    if (before.size >= MAX_ADDRESSES) before.clear();
    before.set(key, isLive);
    for (const row of inbox.unread(harness, workspace, TOLD)) tell(row);
  };
}
