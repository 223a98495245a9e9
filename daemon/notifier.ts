/**
 * The notifier: when to nudge which session. Policy only; the attempt itself is the harness adapter's.
 *
 * Rules: only identities with `notify` cause notices; one outstanding notice per session, coalesced, spaced; sent again only to an idle
 * session that did nothing, with growing pauses and a cap; a budget per sender and workspace; never a guess between several sessions. A
 * session that asked by itself was told and needs no notice for that. Receipts never cause notices. Every attempt is durable before it
 * is made, decided by what is unread and allowed in that transaction. One that reached nothing is no attempt: it costs no budget and is
 * made again after its own growing pause. Nothing is sent while a notice is held, for as long as this daemon can still hear what becomes
 * of it. A notice held in an earlier life of the daemon is one whose outcome nobody will tell: eight times the usual pause (16 min
 * the first time) after it was sent, it is sent again to an idle session, though it may be held still. A lost word must not silence a
 * session for ever.
 */
import { toAxError } from '../protocol/errors.ts';
import { makeUuid, nameFrom } from '../protocol/ids.ts';
import type { HostId } from '../protocol/ids.ts';
import { NOTICE_ATTEMPTS, NOTICE_RESEND_MS, NOTICE_SPACING_MS } from '../protocol/limits.ts';
import { fetchNotice, setupNotice } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { isNoticeSafe } from '../protocol/paths.ts';
import { RECEIVER_ENDS } from '../protocol/states.ts';
import type { NoticeOutcome } from '../protocol/states.ts';
import type { Agents } from './agents.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Events } from './events.ts';
import type { NoticeResult, Session } from './harness/harness.ts';
import type { Inbox, Received, Scope } from './inbox.ts';
import type { Log } from './log.ts';
import { WITHHELD } from './notices.ts';
import type { Notices, Standing } from './notices.ts';
import type { Peers } from './peers.ts';
import type { Store, StoreReader } from './store/store.ts';

export interface NotifierDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly self: HostId;
  readonly ax: AxCommand;
  readonly running: () => number;
  readonly discovery: Discovery;
  readonly inbox: Inbox;
  readonly agents: Agents;
  readonly notices: Notices;
  readonly peers: Peers;
  readonly events: Events;
  /** A message's notice state changed: its sender's host may be told. */
  readonly onChanged: (sender: HostId, id: Received['id']) => void;
}

interface Address {
  readonly harness: string;
  readonly workspace: string;
}

/** What one notice is about: everything unread at an address, or what names one of several sessions there. */
interface Topic extends Address {
  readonly session: string | null;
}

/** Notices of this life that are remembered. */
const MAX_OWN_NOTICES = 10_000;
/** Messages whose rows carry a notice's outcome. */
const MARKED = 50;

export class Notifier {
  readonly #deps: NotifierDeps;
  readonly #due = new Map<string, Address>();
  readonly #timers = new Map<string, () => void>();
  /** Notices of this life, whose later outcome the harness can still tell; a word about an older one never comes. */
  readonly #ownNotices = new Set<string>();
  #working = false;
  #stopped = false;

  constructor(deps: NotifierDeps) {
    this.#deps = deps;
  }

  stop(): void {
    this.#stopped = true;
    for (const cancel of this.#timers.values()) cancel();
  }

  /** Something changed at an address: a message, an agent, a session. */
  wake(harness: string, workspace: string): void {
    if (this.#stopped) return;
    this.#due.set(`${harness}\0${workspace}`, { harness, workspace });
    if (!this.#working) {
      this.#working = true;
      void this.#work();
    }
  }

  /** The sessions changed, or the daemon started: every address with unread messages is looked at. */
  wakeAll(): void {
    for (const address of this.#deps.inbox.unreadAddresses()) this.wake(address.harness, address.workspace);
  }

  /** The harness's later word about an attempt. */
  async outcome(noticeId: string, result: NoticeResult): Promise<void> {
    try {
      await this.#settle(noticeId, result.outcome, result.detail);
    } catch (error) {
      this.#deps.log.error('notice outcome not stored', { reason: toAxError(error).message });
    }
  }

  async #work(): Promise<void> {
    try {
      for (;;) {
        const next = this.#due.entries().next().value;
        if (next === undefined || this.#stopped) return;
        this.#due.delete(next[0]);
        try {
          await this.#look(next[1]);
        } catch (error) {
          this.#deps.log.error('notifier failed', { reason: toAxError(error).message });
          this.#later(next[1], NOTICE_RESEND_MS);
        }
      }
    } finally {
      this.#working = false;
    }
  }

  #later(address: Address, ms: number): void {
    if (this.#stopped) return;
    const key = `${address.harness}\0${address.workspace}`;
    this.#timers.get(key)?.();
    this.#timers.set(
      key,
      this.#deps.clock.after(ms, () => {
        this.#timers.delete(key);
        this.wake(address.harness, address.workspace);
      }),
    );
  }

  /** Looks at one address and makes at most one attempt per session there. Reads few rows, however many messages wait. */
  async #look(address: Address): Promise<void> {
    const { agents, discovery } = this.#deps;
    if (!isNoticeSafe(address.workspace) || this.#senders({ ...address, session: null }).length === 0) return;
    const agent = agents.at(address.harness, address.workspace);
    const live = discovery.at(address.harness, address.workspace).filter((session) => session.reachable);
    const attached = live.filter((session) => agent?.attachments.some((attachment) => attachment.sessionId === session.sessionId) === true);
    const pool = attached.length > 0 ? attached : live;
    const [only] = pool;
    if (only === undefined) return;
    const topics = pool.map((session): [Session, Topic] => [
      session,
      { ...address, session: pool.length === 1 ? null : session.sessionId },
    ]);
    if (pool.length > 1) await this.#withhold({ ...address, session: null }, WITHHELD.several, new Set(pool.map((one) => one.sessionId)));
    let again = Number.POSITIVE_INFINITY;
    for (const [session, topic] of topics) again = Math.min(again, await this.#consider(topic, session));
    if (Number.isFinite(again)) this.#later(address, again);
  }

  /** What one notice would speak for: the scopes of the senders that may cause it and have something unread. */
  #senders(topic: Topic, reader?: StoreReader): Scope[] {
    const { inbox, peers, self } = this.#deps;
    return inbox
      .senders(topic.harness, topic.workspace, reader)
      .filter((sender) => sender === self || peers.may(sender, 'notify', reader))
      .map((sender): Scope => ({ ...topic, sender }))
      .filter((scope) => scope.session === null || inbox.scoped(scope, 1, 'oldest', reader).length > 0);
  }

  #newest(scopes: readonly Scope[], reader?: StoreReader): number {
    return Math.max(0, ...scopes.map((scope) => this.#deps.inbox.scoped(scope, 1, 'newest', reader)[0]?.seq ?? 0));
  }

  /** Attempts now, or says in how many ms to look again (Infinity: at the next change). */
  async #consider(topic: Topic, session: Session): Promise<number> {
    const { notices } = this.#deps;
    const before = this.#judge(topic, session);
    if (before === undefined) return Number.POSITIVE_INFINITY;
    if (before.wait !== undefined) return before.wait;
    const made = await this.#attempt(topic, session, before.attempts);
    if (made === 'nothing left') return Number.POSITIVE_INFINITY;
    if (made === 'no budget') {
      await this.#withhold(topic, WITHHELD.budget);
      return Math.min(...this.#senders(topic).map((scope) => notices.untilBudget(scope.sender, topic.harness, topic.workspace))) + 1;
    }
    return this.#judge(topic, session)?.wait ?? NOTICE_SPACING_MS;
  }

  /** May the session be told now? Undefined when there is nothing to tell. */
  #judge(topic: Topic, session: Session): Verdict | undefined {
    const scopes = this.#senders(topic);
    if (scopes.length === 0) return undefined;
    const standing = this.#deps.notices.standing(session.sessionId);
    if (standing === undefined) return { attempts: 1 };
    const mayHear = standing.noticeId !== null && this.#ownNotices.has(standing.noticeId);
    return judge(standing, session, this.#newest(scopes), this.#deps.running(), mayHear);
  }

  /** One attempt, decided by what is unread and allowed, and paid by the first sender with a budget, in the transaction that records it. */
  async #attempt(topic: Topic, session: Session, attempts: number): Promise<'made' | 'nothing left' | 'no budget'> {
    const { store, inbox, agents, notices, events, clock, random, running, discovery, ax } = this.#deps;
    const { harness, workspace } = topic;
    const id = makeUuid(random.bytes(16));
    const begun = await store.write((tx) => {
      const scopes = this.#senders(topic, tx);
      const rows = scopes.flatMap((scope) => inbox.scoped(scope, MARKED, 'oldest', tx)).toSorted((one, other) => one.seq - other.seq);
      const [oldest] = rows;
      if (oldest === undefined) return 'nothing left';
      const payer = scopes.find((scope) => notices.spend(tx, scope.sender, harness, workspace));
      if (payer === undefined) return 'no budget';
      const agent = agents.at(harness, workspace, tx);
      const isAttached = agent?.attachments.some((attachment) => attachment.sessionId === session.sessionId) === true;
      const messages = rows.slice(0, MARKED).map((row) => ({ sender: row.sender, id: row.id }));
      const attempt = {
        id,
        session: session.sessionId,
        harness,
        workspace,
        messages,
        at: clock.now(),
        ran: running(),
        paidBy: payer.sender,
      };
      notices.begin(tx, attempt, attempts, this.#newest(scopes, tx));
      for (const message of messages)
        events.add(tx, {
          type: 'notice.attempt',
          messageId: message.id,
          subject: session.sessionId,
          detail: isAttached ? 'fetch' : 'setup',
        });
      const waiting = scopes.reduce((sum, scope) => sum + inbox.countScoped(scope, tx), 0);
      const facts = { ax, workspace, id: oldest.id, waiting, attempt: attempts };
      return isAttached ? fetchNotice(facts) : setupNotice(facts, agent?.name ?? this.#proposeName(workspace, tx));
    });
    if (begun === 'nothing left' || begun === 'no budget') return begun;
    const [first] = this.#ownNotices;
    if (first !== undefined && this.#ownNotices.size >= MAX_OWN_NOTICES) this.#ownNotices.delete(first);
    this.#ownNotices.add(id);
    const result = await discovery.notify(session, { id, text: begun });
    await this.#settle(id, result.outcome, result.detail);
    return 'made';
  }

  async #settle(noticeId: string, outcome: NoticeOutcome, detail: string | undefined): Promise<void> {
    const { store, notices, inbox, events, clock, onChanged } = this.#deps;
    const words = detail === undefined ? {} : { detail };
    const attempt = await store.write((tx) => {
      const before = notices.attempt(noticeId, tx);
      if (before === undefined || before.outcome === outcome || (outcome === 'written' && before.outcome !== 'unverified'))
        return undefined; // a receipt may overtake the write's own result
      const settled = notices.settle(tx, noticeId, outcome);
      for (const message of settled?.messages ?? []) {
        inbox.setNotice(tx, message.sender, message.id, { outcome, at: clock.now(), ...words });
        events.add(tx, { type: 'notice.outcome', messageId: message.id, state: outcome, ...words });
      }
      return settled;
    });
    for (const message of attempt?.messages ?? []) onChanged(message.sender, message.id);
  }

  /** Marks the oldest and the newest of a topic's messages, but for those that name one of `told`, as withheld, with the cause. */
  async #withhold(topic: Topic, detail: string, told: ReadonlySet<string> = new Set()): Promise<void> {
    const { store, inbox, events, clock, onChanged } = this.#deps;
    const isNews = (row: Received): boolean => row.notice === null || (row.notice.outcome === 'withheld' && row.notice.detail !== detail);
    const seen = this.#senders(topic).flatMap((scope) => [...inbox.scoped(scope, MARKED), ...inbox.scoped(scope, MARKED, 'newest')]);
    const rows = new Map(seen.filter((row) => isNews(row) && !told.has(row.hint ?? '')).map((row) => [row.seq, row]));
    if (rows.size === 0) return;
    const marked = await store.write((tx) =>
      [...rows.values()].flatMap((old) => {
        const row = inbox.get(old.sender, old.id, tx);
        if (row === undefined || RECEIVER_ENDS.has(row.state) || !isNews(row)) return [];
        events.add(tx, { type: 'notice.outcome', messageId: row.id, state: 'withheld', detail });
        return inbox.setNotice(tx, row.sender, row.id, { outcome: 'withheld', at: clock.now(), detail }) ?? [];
      }),
    );
    for (const row of marked) onChanged(row.sender, row.id);
  }

  /** A free agent name made from the folder's own name. */
  #proposeName(workspace: string, reader: StoreReader): string {
    const base = nameFrom(workspace.slice(workspace.lastIndexOf('/') + 1), 'agent');
    let name = base;
    for (let number = 2; this.#deps.agents.named(name, reader) !== undefined; number++) name = `${base.slice(0, 56)}-${number}`;
    return name;
  }
}

type Verdict = { readonly wait: number; readonly attempts?: never } | { readonly wait?: undefined; readonly attempts: number };

/** Outcomes after which a session is left alone for longer. */
const UNWILLING: ReadonlySet<NoticeOutcome> = new Set(['held', 'denied', 'lapsed', 'blocked']);
/** How much longer. */
const PATIENCE = 8;
/** Doublings of the pause after an attempt that reached nothing, at most: 512 s. */
const MAX_FAILURE_DOUBLINGS = 8;

/** May a session that was told something be told again now? `mayHear`: the harness can still say what became of the last notice. */
function judge(standing: Standing, session: Session, newest: number, running: number, mayHear: boolean): Verdict {
  const since = running - standing.ran;
  if (standing.outcome === 'failed') {
    const pause = NOTICE_SPACING_MS * 2 ** Math.min(standing.failures, MAX_FAILURE_DOUBLINGS);
    return since < pause ? { wait: pause - since } : { attempts: Math.min(standing.attempts, NOTICE_ATTEMPTS - 1) + 1 };
  }
  const bySelf = standing.noticeId === null;
  if (bySelf && newest > standing.told) return since < NOTICE_SPACING_MS ? { wait: NOTICE_SPACING_MS - since } : { attempts: 1 };
  if (standing.outcome === 'held' && mayHear) return { wait: Number.POSITIVE_INFINITY };
  if (standing.outcome === 'blocked' && session.statusSince <= standing.at) return { wait: Number.POSITIVE_INFINITY };
  const isExhausted = standing.attempts >= NOTICE_ATTEMPTS;
  if (isExhausted && newest <= standing.told) return { wait: Number.POSITIVE_INFINITY };
  const patience = UNWILLING.has(standing.outcome) ? PATIENCE : 1;
  const doublings = Math.min(Math.max(standing.attempts, 1), NOTICE_ATTEMPTS) - 1;
  const pause = NOTICE_RESEND_MS * patience * 2 ** doublings;
  if (since < pause) return { wait: pause - since };
  // A busy or waiting session probably still has it queued; one that sat idle through the whole pause never saw it or let it lie.
  if (session.status !== 'idle') return { wait: NOTICE_RESEND_MS };
  return { attempts: isExhausted ? 1 : standing.attempts + 1 };
}
