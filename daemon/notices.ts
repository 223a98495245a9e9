/**
 * Notices: every attempt to nudge a session, what became of it, what each session was last told, and the budgets.
 *
 * Owns the table `notices`. Keys: `a/ID` an attempt, `s/SESSION` what stands towards that session, `b/HOST/ADDRESS` a budget,
 * `c/DIGEST` what the code of a notice opens, `x/RUN/KEY` to look at KEY for pruning, `count` the outcomes so far. An attempt is durable before the socket write, as `unverified`, so that a
 * crash in between never counts as silence. One that reached nothing (`failed`) counts as no attempt: it is given back to the budget
 * it was paid from, and only makes the pause before the next one longer. What is known of an attempt goes forward only, along the table
 * of protocol/states.ts. Nothing here decides when to nudge.
 */
import { sha256 } from '../protocol/hashtree.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { DEFAULT_LIMITS, METADATA_RETENTION_MS } from '../protocol/limits.ts';
import type { Limits } from '../protocol/limits.ts';
import { noticeMay } from '../protocol/states.ts';
import type { NoticeOutcome, WithheldReason } from '../protocol/states.ts';
import { addressKey, getRow, keepRunning, NOTHING, pack, seqKey } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

/** Why an address's messages wake nobody: the detail of the outcome `withheld`. */
export const WITHHELD: Readonly<Record<WithheldReason, string>> = {
  several: 'several sessions could be meant',
  budget: "the sender's budget of notices is used up",
  quiet: 'the agent is quiet',
  no_right: "the sender's host may cause no notices here",
};

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

/** What the code of a notice opens to the session it was sent to, through the channel for sandboxed ones. */
export interface Pass {
  readonly session: string;
  readonly harness: string;
  readonly workspace: string;
  /** What that session was told of: by the notice, and by the answers to its fetches. */
  readonly messages: readonly { readonly sender: HostId; readonly id: MessageId }[];
  readonly ran: number;
}

/** Messages one code opens; of more the newest. */
const MAX_PASS_MESSAGES = 200;

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
  /** Running time, ms, of the same; the pause before the next attempt begins here. */
  readonly ran: number;
}

/** After these the session has the notice in its hands (or let it go) only now: the pause begins anew. */
const RESTARTS: ReadonlySet<NoticeOutcome> = new Set(['approved', 'denied', 'lapsed', 'left_queue']);

export class Notices {
  readonly #store: Store;
  readonly #running: () => number;
  readonly #limits: Limits;

  /** Of `limits` the budget of notices counts here. */
  constructor(store: Store, running: () => number, limits: Limits = DEFAULT_LIMITS) {
    this.#store = store;
    this.#running = running;
    this.#limits = limits;
  }

  attempt(id: string, reader: StoreReader = this.#store): Attempt | undefined {
    return getRow<Attempt>(reader, 'notices', `a/${id}`);
  }

  standing(session: string, reader: StoreReader = this.#store): Standing | undefined {
    return getRow<Standing>(reader, 'notices', `s/${session}`);
  }

  /** Has nothing been said to its session since? What is told late of an earlier attempt does not stand for a later one. */
  isLatest(attempt: Attempt, reader: StoreReader = this.#store): boolean {
    return this.standing(attempt.session, reader)?.noticeId === attempt.id;
  }

  /** Records an attempt before it is made. */
  begin(tx: StoreTransaction, attempt: Omit<Attempt, 'outcome'>, attempts: number, told: number): void {
    tx.put('notices', `a/${attempt.id}`, pack({ ...attempt, outcome: 'unverified' }));
    this.#lookLater(tx, `a/${attempt.id}`, attempt.ran);
    keepRunning(tx, this.#running());
    const failures = this.standing(attempt.session, tx)?.failures ?? 0;
    const standing: Standing = { noticeId: attempt.id, outcome: 'unverified', attempts, failures, told, at: attempt.at, ran: attempt.ran };
    tx.put('notices', `s/${attempt.session}`, pack(standing));
  }

  /** Records what became of an attempt. Undefined when it is not known (any more), or when that is older than what is known. */
  settle(tx: StoreTransaction, id: string, outcome: NoticeOutcome): Attempt | undefined {
    const attempt = this.attempt(id, tx);
    if (attempt === undefined || !noticeMay(attempt.outcome, outcome)) return undefined;
    const next: Attempt = { ...attempt, outcome };
    tx.put('notices', `a/${id}`, pack(next));
    const standing = this.standing(attempt.session, tx);
    const hasFailed = outcome === 'failed';
    if (standing !== undefined && standing.noticeId === id) {
      const tally = hasFailed ? { attempts: Math.max(0, standing.attempts - 1), failures: standing.failures + 1 } : { failures: 0 };
      const ran = RESTARTS.has(outcome) ? { ran: this.#keptRunning(tx) } : {};
      tx.put('notices', `s/${attempt.session}`, pack({ ...standing, ...tally, ...ran, outcome }));
    }
    // It asked by itself meanwhile, and has the notice in its hands only now: the next one keeps its distance from this one too.
    if (standing?.noticeId === null && RESTARTS.has(outcome))
      tx.put('notices', `s/${attempt.session}`, pack({ ...standing, ran: this.#keptRunning(tx) }));
    if (hasFailed) this.#giveBack(tx, `b/${attempt.paidBy}/${addressKey(attempt.harness, attempt.workspace)}`);
    const counts = getRow<Record<string, number>>(tx, 'notices', 'count') ?? {};
    tx.put('notices', 'count', pack({ ...counts, [outcome]: (counts[outcome] ?? 0) + 1 }));
    return next;
  }

  /** The session itself asked (setup or fetch) and was told of everything up to `told`: nothing is outstanding. */
  toldBySelf(tx: StoreTransaction, session: string, told: number, now: number): void {
    const standing: Standing = { noticeId: null, outcome: 'approved', attempts: 1, failures: 0, told, at: now, ran: this.#keptRunning(tx) };
    tx.put('notices', `s/${session}`, pack(standing));
    this.#lookLater(tx, `s/${session}`, standing.ran);
  }

  /** Records what a code opens, before it is told to anybody. Only its digest is kept: who can read the store learns no code. */
  allow(tx: StoreTransaction, code: string, pass: Omit<Pass, 'ran'>): void {
    const key = passKey(code);
    tx.put('notices', key, pack({ ...pass, ran: this.#running() }));
    this.#lookLater(tx, key, this.#running());
  }

  /** What a code opens; undefined when it never was one or is no longer known. */
  pass(code: string, reader: StoreReader = this.#store): Pass | undefined {
    return getRow<Pass>(reader, 'notices', passKey(code));
  }

  /** No code that was told so far opens anything any more. */
  forgetCodes(tx: StoreTransaction): void {
    for (const entry of tx.range('notices', { start: 'c/', end: 'c0' })) tx.remove('notices', entry.key);
  }

  /** The session was told of more messages, by the answer that its code brought it. */
  extend(tx: StoreTransaction, code: string, messages: Pass['messages']): void {
    const pass = this.pass(code, tx);
    if (pass === undefined) return;
    const isNew = (one: Pass['messages'][number]): boolean => !pass.messages.some((old) => old.id === one.id && old.sender === one.sender);
    const all = [...pass.messages, ...messages.filter(isNew)].slice(-MAX_PASS_MESSAGES);
    tx.put('notices', passKey(code), pack({ ...pass, messages: all }));
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
    return tokens >= 1 ? 0 : Math.ceil(((1 - tokens) * 3_600_000) / this.#limits.noticesPerHour);
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
    tx.put(
      'notices',
      key,
      pack({ milli: Math.floor(Math.min(this.#limits.noticeBurst, this.#tokens(tx, key) + 1) * 1000), ran: this.#running() }),
    );
  }

  /** Running time, durable with what it is noted in: pauses begin there, and after a crash none may begin in the future. */
  #keptRunning(tx: StoreTransaction): number {
    const running = this.#running();
    keepRunning(tx, running);
    return running;
  }

  #lookLater(tx: StoreTransaction, key: string, ran: number): void {
    tx.put('notices', `x/${seqKey(ran + METADATA_RETENTION_MS)}/${key}`, NOTHING);
  }

  #tokens(reader: StoreReader, key: string): number {
    const bucket = getRow<{ milli: number; ran: number }>(reader, 'notices', key);
    const { noticeBurst, noticesPerHour } = this.#limits;
    if (bucket === undefined) return noticeBurst;
    return Math.min(noticeBurst, bucket.milli / 1000 + ((this.#running() - bucket.ran) * noticesPerHour) / 3_600_000);
  }
}

function passKey(code: string): string {
  return `c/${Buffer.from(sha256(new Uint8Array(Buffer.from(code)))).toString('hex')}`;
}
