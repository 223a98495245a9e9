/**
 * The notifier: when to nudge which session. Policy only; the attempt itself is the harness adapter's, and marks.ts shows what is withheld.
 *
 * Rules: only identities with `notify` cause notices, and nobody while the agent is quiet; one outstanding notice per session, coalesced,
 * spaced; sent again only to an idle session that did nothing, with growing pauses and a cap; a budget per sender and workspace; never a
 * guess between several sessions. A session that asked by itself was told. Receipts never cause notices. Every attempt is durable before it
 * is made, decided by what is unread and allowed in that transaction. One that reached nothing costs no budget and is made again after its
 * own growing pause. Nothing is sent while the harness still has a notice, for as long as this daemon can hear what becomes of it; one of an
 * earlier life, whose outcome perhaps nobody will tell, is sent again to an idle session after eight times the usual pause (16 min the first
 * time): a lost word must not silence a session for ever. A pause begins when the session got the notice, not when it was sent.
 */
import { toAxError } from '../protocol/errors.ts';
import { makeUuid, nameFrom } from '../protocol/ids.ts';
import type { HostId } from '../protocol/ids.ts';
import { NOTICE_ATTEMPTS, NOTICE_RESEND_MS, NOTICE_SPACING_MS } from '../protocol/limits.ts';
import { fetchNotice, setupNotice } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { isNoticeSafe } from '../protocol/paths.ts';
import { NOTICE_WAITS } from '../protocol/states.ts';
import type { NoticeOutcome } from '../protocol/states.ts';
import { quietLeft } from './agents.ts';
import type { Agent, Agents } from './agents.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Events } from './events.ts';
import type { NoticeResult, Session } from './harness/harness.ts';
import type { Inbox } from './inbox.ts';
import type { Received, Scope } from './received-row.ts';
import type { Log } from './log.ts';
import { Marks } from './marks.ts';
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
  /** The code of a new notice, while the channel for sandboxed sessions is open. */
  readonly makeCode?: () => string | undefined;
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

/** Of all addresses with unread messages so many are looked up at a time, and looked at before others get the event loop. */
const IN_TURN = 8;
/** Notices of this life that are remembered. */
const MAX_OWN_NOTICES = 10_000;
/** Messages whose rows carry a notice's outcome. */
const MARKED = 50;

export class Notifier {
  readonly #deps: NotifierDeps;
  readonly #due = new Map<string, Address>();
  readonly #timers = new Map<string, () => void>();
  /** Notices whose later outcome the harness can still tell: those of this life, and older ones that it spoke of in this life. */
  readonly #ownNotices = new Set<string>();
  readonly #marks: Marks;
  /** Of every address with unread messages those behind this one are still to be woken, all when null; undefined: none. */
  #behind: Address | null | undefined;
  #working = false;
  #stopped = false;

  constructor(deps: NotifierDeps) {
    this.#deps = deps;
    this.#marks = new Marks(deps);
  }

  stop(): void {
    this.#stopped = true;
    for (const cancel of this.#timers.values()) cancel();
  }

  /** Something changed at an address: a message, an agent, a session. */
  wake(harness: string, workspace: string): void {
    if (this.#stopped) return;
    this.#due.set(`${harness}\0${workspace}`, { harness, workspace });
    this.#begin();
  }

  /** Rights changed, or the daemon started: every address with unread messages is looked at, a few at a time. */
  wakeAll(): void {
    if (this.#stopped) return;
    this.#behind = null;
    this.#begin();
  }

  #begin(): void {
    if (this.#working) return;
    this.#working = true;
    void this.#work();
  }

  /** The harness's later word about an attempt. */
  async outcome(noticeId: string, result: NoticeResult): Promise<void> {
    try {
      const { store, notices } = this.#deps;
      const attempt = notices.attempt(noticeId, store);
      if (attempt === undefined) return;
      this.#remember(noticeId);
      if (await this.#settle(noticeId, result.outcome, result.detail)) this.wake(attempt.harness, attempt.workspace);
    } catch (error) {
      this.#deps.log.error('notice outcome not stored', { reason: toAxError(error).message });
    }
  }

  async #work(): Promise<void> {
    try {
      for (let looks = 0; !this.#stopped;) {
        if (looks % IN_TURN === 0 || this.#due.size === 0) this.#addOfAll();
        const [next] = this.#due;
        if (next === undefined) return;
        const [key, address] = next;
        this.#due.delete(key);
        try {
          await this.#look(address);
        } catch (error) {
          this.#deps.log.error('notifier failed', { reason: toAxError(error).message });
          this.#later(address, NOTICE_RESEND_MS);
        }
        looks++;
        if (looks % IN_TURN === 0) await new Promise<void>((resolve) => void this.#deps.clock.after(0, resolve));
      }
    } finally {
      this.#working = false;
    }
  }

  /** The next few of all addresses stand in line with those that changed meanwhile: who wakes one without end holds up none of them. */
  #addOfAll(): void {
    if (this.#behind === undefined) return;
    try {
      const page = this.#deps.inbox.unreadAddresses(IN_TURN, this.#behind);
      this.#behind = page.at(-1);
      for (const { harness, workspace } of page) this.#due.set(`${harness}\0${workspace}`, { harness, workspace });
    } catch (error) {
      this.#deps.log.error('notifier failed', { reason: toAxError(error).message });
      this.#behind = undefined;
      this.#after('all', NOTICE_RESEND_MS, () => this.wakeAll());
    }
  }

  #later(address: Address, ms: number): void {
    this.#after(`${address.harness}\0${address.workspace}`, ms, () => this.wake(address.harness, address.workspace));
  }

  /** One timer for each name; a later one takes its place. */
  #after(name: string, ms: number, run: () => void): void {
    if (this.#stopped) return;
    this.#timers.get(name)?.();
    this.#timers.set(
      name,
      this.#deps.clock.after(ms, () => {
        this.#timers.delete(name);
        run();
      }),
    );
  }

  /** Looks at one address and makes at most one attempt per session there. Reads few rows, however many messages wait. */
  async #look(address: Address): Promise<void> {
    const { agents, discovery, inbox } = this.#deps;
    if (!isNoticeSafe(address.workspace)) return;
    const all: Topic = { ...address, session: null };
    for (const sender of inbox.senders(address.harness, address.workspace))
      if (!this.#mayNotify(sender, address.workspace)) await this.#marks.set({ ...all, sender }, 'no_right');
    const allowed = this.#senders(all);
    if (allowed.length === 0) return;
    const agent = agents.at(address.harness, address.workspace);
    const quietMs = this.#quietLeft(agent);
    // What ends by itself, a quiet or a right to cause notices, is looked at then. The wall's clock may end it sooner than any timer: a
    // machine that slept, a clock that was set.
    const ends = [...allowed.map((scope) => this.#rightLeft(scope)), quietMs > 0 ? quietMs : Number.POSITIVE_INFINITY];
    const soonest = Math.min(...ends);
    let again = Number.isFinite(soonest) ? Math.min(soonest + 1, NOTICE_RESEND_MS) : soonest;
    if (quietMs > 0) {
      for (const scope of allowed) await this.#marks.set(scope, 'quiet');
      if (Number.isFinite(again)) this.#later(address, again);
      return;
    }
    const live = discovery.at(address.harness, address.workspace).filter((session) => session.reachable);
    const attached = live.filter((session) => agent?.attachments.some((attachment) => attachment.sessionId === session.sessionId) === true);
    const pool = attached.length > 0 ? attached : live;
    const several = pool.length > 1 ? new Set(pool.map((one) => one.sessionId)) : undefined;
    for (const scope of allowed) await (several === undefined ? this.#marks.set(scope, null) : this.#marks.set(scope, 'several', several));
    const topics = pool.map((session): [Session, Topic] => [
      session,
      { ...address, session: pool.length === 1 ? null : session.sessionId },
    ]);
    for (const [session, topic] of topics) again = Math.min(again, await this.#consider(topic, session));
    if (Number.isFinite(again)) this.#later(address, again);
  }

  /** What one notice would speak for: the scopes of the senders that may cause it and have something unread. */
  #senders(topic: Topic, reader?: StoreReader): Scope[] {
    const { inbox } = this.#deps;
    return inbox
      .senders(topic.harness, topic.workspace, reader)
      .filter((sender) => this.#mayNotify(sender, topic.workspace, reader))
      .map((sender): Scope => ({ ...topic, sender }))
      .filter((scope) => scope.session === null || inbox.scoped(scope, 1, 'oldest', reader).length > 0);
  }

  #rightLeft({ sender, workspace }: Scope): number {
    return sender === this.#deps.self ? Number.POSITIVE_INFINITY : this.#deps.peers.msLeft(sender, 'notify', workspace);
  }

  #quietLeft(agent: Agent | undefined): number {
    const { clock, running } = this.#deps;
    return quietLeft(agent, { now: () => clock.now(), running });
  }

  #mayNotify(sender: HostId, workspace: string, reader?: StoreReader): boolean {
    return sender === this.#deps.self || this.#deps.peers.may(sender, 'notify', workspace, reader);
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
      for (const scope of this.#senders(topic)) await this.#marks.set(scope, 'budget');
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
      const agent = agents.at(harness, workspace, tx);
      if (oldest === undefined || this.#quietLeft(agent) > 0) return 'nothing left';
      const payer = scopes.find((scope) => notices.spend(tx, scope.sender, harness, workspace));
      if (payer === undefined) return 'no budget';
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
      const code = isAttached ? this.#deps.makeCode?.() : undefined;
      if (code !== undefined) notices.allow(tx, code, { session: session.sessionId, harness, workspace, messages });
      const facts = { ax, workspace, id: oldest.id, waiting, attempt: attempts, code };
      return isAttached ? fetchNotice(facts) : setupNotice(facts, agent?.name ?? this.#proposeName(workspace, tx));
    });
    if (begun === 'nothing left' || begun === 'no budget') return begun;
    this.#remember(id);
    const result = await discovery.notify(session, { id, text: begun });
    await this.#settle(id, result.outcome, result.detail);
    return 'made';
  }

  #remember(noticeId: string): void {
    const [first] = this.#ownNotices;
    if (first !== undefined && this.#ownNotices.size >= MAX_OWN_NOTICES) this.#ownNotices.delete(first);
    this.#ownNotices.add(noticeId);
  }

  /** Records what became of an attempt; false when that was no news: a word may come twice, or overtake the write's own result. */
  async #settle(noticeId: string, outcome: NoticeOutcome, detail: string | undefined): Promise<boolean> {
    const { store, notices, inbox, events, clock, onChanged } = this.#deps;
    const words = detail === undefined ? {} : { detail };
    const settled = await store.write((tx) => {
      const attempt = notices.settle(tx, noticeId, outcome);
      for (const message of attempt?.messages ?? []) {
        const shown = inbox.get(message.sender, message.id, tx)?.notice?.attempt;
        if (shown === undefined || shown === noticeId || notices.isLatest(attempt!, tx))
          inbox.setNotice(tx, message.sender, message.id, { outcome, at: clock.now(), ...words, attempt: noticeId });
        events.add(tx, { type: 'notice.outcome', messageId: message.id, state: outcome, ...words });
      }
      return attempt;
    });
    for (const message of settled?.messages ?? []) onChanged(message.sender, message.id);
    return settled !== undefined;
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

/** Outcomes after which a session is left alone for longer; those that wait, when they are of an earlier life. */
const UNWILLING: ReadonlySet<NoticeOutcome> = new Set([...NOTICE_WAITS, 'denied', 'lapsed', 'blocked']);
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
  if (NOTICE_WAITS.has(standing.outcome) && mayHear) return { wait: Number.POSITIVE_INFINITY };
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
