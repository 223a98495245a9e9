/**
 * Notices: every attempt to nudge a session, what became of it, what each session was last told, and the budgets.
 *
 * Owns the table `notices`. Keys: `a/ID` an attempt, `s/SESSION` what stands towards that session, `b/HOST/ADDRESS` a budget,
 * `x/RUN/KEY` to look at KEY for pruning, `count` the outcomes so far. An attempt is durable before the socket write, as `unverified`, so that a
 * crash in between never counts as silence. One that reached nothing (`failed`) counts as no attempt: it is given back to the budget
 * it was paid from, and only makes the pause before the next one longer. Nothing here decides when to nudge.
 */
import type { HostId, MessageId } from '../protocol/ids.ts';
import { METADATA_RETENTION_MS, NOTICE_BURST, NOTICES_PER_HOUR } from '../protocol/limits.ts';
import type { NoticeOutcome } from '../protocol/states.ts';
import { addressKey, getRow, NOTHING, pack, seqKey } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

/** Why an address's messages wake nobody: the detail of the outcome `withheld`. */
export const WITHHELD = { several: 'several sessions could be meant', budget: "the sender's budget of notices is used up" } as const;

export interface Attempt {
  readonly id: string;
  readonly session: string;
  readonly harness: string;
  readonly workspace: string;
  readonly messages: readonly { readonly sender: HostId; readonly id: MessageId }[];
  readonly at: number;
  readonly ran: number;
  /** The sender whose budget paid for it. */
  readonly paidBy: HostId;
  readonly outcome: NoticeOutcome;
}

/** What stands towards one session. */
export interface Standing {
  /** The last attempt; null when the session was told by its own setup or fetch. */
  readonly noticeId: string | null;
  readonly outcome: NoticeOutcome;
  /** Attempts on the same unread messages so far, without those that reached nothing. */
  readonly attempts: number;
  /** Attempts since then, one after the other, that reached nothing. */
  readonly failures: number;
  /** Highest inbox sequence the session was told of. */
  readonly told: number;
  /** Wall time, ms, of the last word to it. */
  readonly at: number;
  /** Running time, ms, of the same. */
  readonly ran: number;
}

export class Notices {
  readonly #store: Store;
  readonly #running: () => number;

  constructor(store: Store, running: () => number) {
    this.#store = store;
    this.#running = running;
  }

  attempt(id: string, reader: StoreReader = this.#store): Attempt | undefined {
    return getRow<Attempt>(reader, 'notices', `a/${id}`);
  }

  standing(session: string, reader: StoreReader = this.#store): Standing | undefined {
    return getRow<Standing>(reader, 'notices', `s/${session}`);
  }

  /** Records an attempt before it is made. */
  begin(tx: StoreTransaction, attempt: Omit<Attempt, 'outcome'>, attempts: number, told: number): void {
    tx.put('notices', `a/${attempt.id}`, pack({ ...attempt, outcome: 'unverified' }));
    this.#lookLater(tx, `a/${attempt.id}`, attempt.ran);
    const failures = this.standing(attempt.session, tx)?.failures ?? 0;
    const standing: Standing = { noticeId: attempt.id, outcome: 'unverified', attempts, failures, told, at: attempt.at, ran: attempt.ran };
    tx.put('notices', `s/${attempt.session}`, pack(standing));
  }

  /** Records what became of an attempt. Undefined when it is not known (any more). */
  settle(tx: StoreTransaction, id: string, outcome: NoticeOutcome): Attempt | undefined {
    const attempt = this.attempt(id, tx);
    if (attempt === undefined) return undefined;
    const next: Attempt = { ...attempt, outcome };
    tx.put('notices', `a/${id}`, pack(next));
    const standing = this.standing(attempt.session, tx);
    const hasFailed = outcome === 'failed' && attempt.outcome !== 'failed';
    if (standing !== undefined && standing.noticeId === id) {
      const tally = hasFailed
        ? { attempts: Math.max(0, standing.attempts - 1), failures: standing.failures + 1 }
        : { failures: outcome === 'failed' ? standing.failures : 0 };
      tx.put('notices', `s/${attempt.session}`, pack({ ...standing, ...tally, outcome }));
    }
    if (hasFailed) this.#giveBack(tx, `b/${attempt.paidBy}/${addressKey(attempt.harness, attempt.workspace)}`);
    const counts = getRow<Record<string, number>>(tx, 'notices', 'count') ?? {};
    tx.put('notices', 'count', pack({ ...counts, [outcome]: (counts[outcome] ?? 0) + 1 }));
    return next;
  }

  /** The session itself asked (setup or fetch) and was told of everything up to `told`: nothing is outstanding. */
  toldBySelf(tx: StoreTransaction, session: string, told: number, now: number): void {
    const standing: Standing = { noticeId: null, outcome: 'approved', attempts: 1, failures: 0, told, at: now, ran: this.#running() };
    tx.put('notices', `s/${session}`, pack(standing));
    this.#lookLater(tx, `s/${session}`, standing.ran);
  }

  /** Takes one notice from the budget of a sender towards an address; false when it is used up. */
  spend(tx: StoreTransaction, sender: HostId, harness: string, workspace: string): boolean {
    const key = `b/${sender}/${addressKey(harness, workspace)}`;
    const tokens = this.#tokens(tx, key);
    if (tokens < 1) return false;
    tx.put('notices', key, pack({ milli: Math.floor((tokens - 1) * 1000), ran: this.#running() }));
    this.#lookLater(tx, key, this.#running());
    return true;
  }

  /** Running ms until the budget of a sender towards an address has a notice again; 0 when it has one now. */
  untilBudget(sender: HostId, harness: string, workspace: string): number {
    const tokens = this.#tokens(this.#store, `b/${sender}/${addressKey(harness, workspace)}`);
    return tokens >= 1 ? 0 : Math.ceil(((1 - tokens) * 3_600_000) / NOTICES_PER_HOUR);
  }

  /** Outcomes counted since the store began. */
  counts(): Record<string, number> {
    return getRow<Record<string, number>>(this.#store, 'notices', 'count') ?? {};
  }

  prune(tx: StoreTransaction, limit: number): number {
    const due = tx.range('notices', { start: 'x/', end: `x/${seqKey(this.#running())}`, limit });
    for (const entry of due) {
      tx.remove('notices', entry.key);
      const key = entry.key.slice(entry.key.indexOf('/', 2) + 1);
      const row = getRow<{ ran: number; session?: string }>(tx, 'notices', key);
      if (row === undefined || row.ran + METADATA_RETENTION_MS >= this.#running()) continue; // gone, or renewed since
      tx.remove('notices', key);
      if (row.session !== undefined && this.standing(row.session, tx)?.noticeId === key.slice(2)) tx.remove('notices', `s/${row.session}`);
    }
    return due.length;
  }

  /** Returns a notice that reached nothing to the budget that paid for it. */
  #giveBack(tx: StoreTransaction, key: string): void {
    if (tx.get('notices', key) === undefined) return;
    tx.put('notices', key, pack({ milli: Math.floor(Math.min(NOTICE_BURST, this.#tokens(tx, key) + 1) * 1000), ran: this.#running() }));
  }

  #lookLater(tx: StoreTransaction, key: string, ran: number): void {
    tx.put('notices', `x/${seqKey(ran + METADATA_RETENTION_MS)}/${key}`, NOTHING);
  }

  #tokens(reader: StoreReader, key: string): number {
    const bucket = getRow<{ milli: number; ran: number }>(reader, 'notices', key);
    if (bucket === undefined) return NOTICE_BURST;
    return Math.min(NOTICE_BURST, bucket.milli / 1000 + ((this.#running() - bucket.ran) * NOTICES_PER_HOUR) / 3_600_000);
  }
}
