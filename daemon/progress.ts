/**
 * Progress news: what the receiver's side of a message looks like now, gathered for the host that sent it.
 *
 * Owns nothing durable: news are a courtesy, unsigned, told at best once and coalesced; the signed receipt and the answer to a
 * question after every reconnect are the truth.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import type { Progress } from '../protocol/receipt.ts';
import { MAX_PROGRESS_IDS } from '../protocol/wire.ts';
import type { Clock } from './clock/clock.ts';
import type { Inbox } from './inbox.ts';

/** Changes within this time travel together, ms. */
const GATHER_MS = 50;

export class ProgressNews {
  readonly #clock: Clock;
  readonly #inbox: Inbox;
  readonly #hasLiveSession: (harness: string, workspace: string) => boolean;
  readonly #waiting = new Map<HostId, Set<MessageId>>();

  constructor(clock: Clock, inbox: Inbox, hasLiveSession: (harness: string, workspace: string) => boolean) {
    this.#clock = clock;
    this.#inbox = inbox;
    this.#hasLiveSession = hasLiveSession;
  }

  /** A message of `host` changed; `tell` gets it and whatever else changes until then. */
  add(host: HostId, id: MessageId, tell: (items: Progress[]) => void): void {
    const waiting = this.#waiting.get(host);
    if (waiting !== undefined) {
      waiting.add(id);
      return;
    }
    const ids = new Set([id]);
    this.#waiting.set(host, ids);
    this.#clock.after(GATHER_MS, () => {
      this.#waiting.delete(host);
      const items = [...ids].slice(0, MAX_PROGRESS_IDS).flatMap((one) => this.progressOf(host, one) ?? []);
      if (items.length > 0) tell(items);
    });
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
    };
  }
}
