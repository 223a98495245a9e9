/**
 * Marks: what is shown, on the unread messages themselves, of notices that are withheld, and why.
 *
 * Owns the memory of how each sender's messages at an address are marked, of this life only: a look that changes nothing then reads next to
 * nothing. A mark tells the sender that no session is told now, and why; one whose reason no longer holds is taken off. What a session has
 * in its hands stays as it is. Decides no notice.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import { RECEIVER_ENDS } from '../protocol/states.ts';
import type { WithheldReason } from '../protocol/states.ts';
import type { Clock } from './clock/clock.ts';
import type { Events } from './events.ts';
import type { Inbox } from './inbox.ts';
import type { Received, Scope } from './received-row.ts';
import { WITHHELD } from './notices.ts';
import type { Notices } from './notices.ts';
import type { Store, StoreTransaction } from './store/store.ts';

export interface MarksDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly inbox: Inbox;
  readonly notices: Notices;
  readonly events: Events;
  /** A message's notice state changed: its sender's host may be told. */
  readonly onChanged: (sender: HostId, id: MessageId) => void;
}

/** Of one sender's messages the oldest and the newest so many are marked. */
const MARKED = 50;
/** Scopes remembered. */
const MAX_MARKS = 10_000;

export class Marks {
  readonly #deps: MarksDeps;
  /** By scope: for what reason its messages are marked, and up to which. */
  readonly #known = new Map<string, string>();

  constructor(deps: MarksDeps) {
    this.#deps = deps;
  }

  /** Marks a scope's messages as withheld, but for those that name a session of `told`; durable on return. Null: takes off what no longer holds. */
  async set(scope: Scope, reason: WithheldReason | null, told: ReadonlySet<string> = new Set()): Promise<void> {
    const { store, inbox, notices } = this.#deps;
    const key = [scope.harness, scope.workspace, scope.session ?? '', scope.sender].join('\0');
    const known = this.#known.get(key);
    const isSpent = notices.untilBudget(scope.sender, scope.harness, scope.workspace) > 0;
    if (reason === null && isSpent && known?.startsWith('budget ') === true) return;
    const image = reason === null ? 'none' : [reason, inbox.scoped(scope, 1, 'newest')[0]?.seq ?? 0, ...told].join(' ');
    if (known === image) return;
    const next = (row: Received): WithheldReason | null | undefined => {
      const { notice } = row;
      if (reason === null || told.has(row.hint ?? ''))
        return notice?.outcome === 'withheld' && !(isSpent && notice.reason === 'budget') ? null : undefined;
      // An attempt that reached nothing would be made again: not while notices are withheld.
      const isOther = notice?.outcome === 'withheld' && notice.reason !== reason;
      return notice === null || notice.outcome === 'failed' || isOther ? reason : undefined;
    };
    const seen = [...inbox.scoped(scope, MARKED), ...inbox.scoped(scope, MARKED, 'newest')].filter((row) => next(row) !== undefined);
    const rows = [...new Map(seen.map((row) => [row.seq, row])).values()];
    const marked = rows.length === 0 ? [] : await store.write((tx) => rows.flatMap((row) => this.#mark(tx, row, next)));
    if (this.#known.size >= MAX_MARKS) this.#known.clear();
    this.#known.set(key, image);
    for (const row of marked) this.#deps.onChanged(row.sender, row.id);
  }

  #mark(tx: StoreTransaction, seen: Received, next: (row: Received) => WithheldReason | null | undefined): Received[] {
    const { inbox, events, clock } = this.#deps;
    const row = inbox.get(seen.sender, seen.id, tx);
    const reason = row === undefined || RECEIVER_ENDS.has(row.state) ? undefined : next(row);
    if (reason === undefined) return [];
    if (reason !== null) events.add(tx, { type: 'notice.outcome', messageId: seen.id, state: 'withheld', detail: WITHHELD[reason] });
    const notice = reason === null ? null : ({ outcome: 'withheld', at: clock.now(), reason, detail: WITHHELD[reason] } as const);
    return [inbox.setNotice(tx, seen.sender, seen.id, notice) ?? []].flat();
  }
}
