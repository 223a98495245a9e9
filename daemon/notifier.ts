/**
 * The notifier: when to nudge which session. Policy only; the attempt itself is the harness adapter's.
 *
 * Rules: only identities with `notify` cause notices; one outstanding notice per session, coalesced, spaced; never while it
 * is held; sent again only to an idle session that did nothing, with growing pauses and a cap; a budget per sender and
 * workspace; never a guess between several sessions. A session that asked by itself was told and needs no notice for that.
 * Receipts never cause notices. Every attempt is durable before it is made.
 */
import { toAxError } from '../protocol/errors.ts';
import { makeUuid, nameFrom } from '../protocol/ids.ts';
import type { HostId } from '../protocol/ids.ts';
import { NOTICE_ATTEMPTS, NOTICE_RESEND_MS, NOTICE_SPACING_MS } from '../protocol/limits.ts';
import { fetchNotice, setupNotice } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { isNoticeSafe } from '../protocol/paths.ts';
import type { NoticeOutcome } from '../protocol/states.ts';
import type { Agent, Agents } from './agents.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Events } from './events.ts';
import type { NoticeResult, Session } from './harness/harness.ts';
import type { Inbox, Received } from './inbox.ts';
import type { Log } from './log.ts';
import type { Notices, Standing } from './notices.ts';
import type { Peers } from './peers.ts';
import type { Store } from './store/store.ts';

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

/** Unread messages looked at for one notice. */
const LOOK_AHEAD = 200;
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

  /** Looks at one address and makes at most one attempt per session there. */
  async #look(address: Address): Promise<void> {
    const { inbox, agents, discovery } = this.#deps;
    const waiting = inbox
      .unread(address.harness, address.workspace, LOOK_AHEAD)
      .filter((row) => row.storedAs === 'message' && this.#mayNotify(row.sender));
    if (waiting.length === 0 || !isNoticeSafe(address.workspace)) return;
    const agent = agents.at(address.harness, address.workspace);
    const live = discovery.at(address.harness, address.workspace).filter((session) => session.reachable);
    const attached = live.filter((session) => agent?.attachments.some((attachment) => attachment.sessionId === session.sessionId) === true);
    const pool = attached.length > 0 ? attached : live;
    if (pool.length === 0) return;
    const { chosen, withheld } = assign(pool, waiting);
    await this.#withhold(withheld);
    let again = Number.POSITIVE_INFINITY;
    for (const [session, messages] of chosen)
      again = Math.min(again, await this.#consider(address, session, attached.includes(session), agent, messages));
    if (Number.isFinite(again)) this.#later(address, again);
  }

  #mayNotify(sender: HostId): boolean {
    return sender === this.#deps.self || this.#deps.peers.may(sender, 'notify');
  }

  /** Attempts now, or says in how many ms to look again (Infinity: at the next change). */
  async #consider(
    address: Address,
    session: Session,
    attached: boolean,
    agent: Agent | undefined,
    messages: readonly Received[],
  ): Promise<number> {
    const { notices, clock, running } = this.#deps;
    const standing = notices.standing(session.sessionId);
    const newest = messages.at(-1)!.seq;
    let attempts = 1;
    if (standing !== undefined) {
      const mayHear = standing.noticeId !== null && this.#ownNotices.has(standing.noticeId);
      const verdict = judge(standing, session, newest, running(), mayHear);
      if (verdict.wait !== undefined) return verdict.wait;
      attempts = verdict.attempts;
    }
    const paid = await this.#pay(address, messages);
    if (paid.length === 0) {
      await this.#withhold(messages);
      return Math.min(...messages.map((row) => notices.untilBudget(row.sender, address.harness, address.workspace))) + 1;
    }
    await this.#attempt(address, session, attached, agent, messages, attempts, clock.now());
    return NOTICE_RESEND_MS;
  }

  /** Takes the notice from the budget of the senders it speaks for; the first with a budget pays. */
  async #pay(address: Address, messages: readonly Received[]): Promise<readonly HostId[]> {
    const { store, notices } = this.#deps;
    const senders = [...new Set(messages.map((row) => row.sender))];
    const payer = senders.find((sender) => notices.untilBudget(sender, address.harness, address.workspace) === 0);
    if (payer === undefined) return [];
    const paid = await store.write((tx) => notices.spend(tx, payer, address.harness, address.workspace));
    return paid ? [payer] : [];
  }

  async #attempt(
    address: Address,
    session: Session,
    attached: boolean,
    agent: Agent | undefined,
    messages: readonly Received[],
    attempts: number,
    now: number,
  ): Promise<void> {
    const { store, notices, events, random, running, discovery, ax } = this.#deps;
    const id = makeUuid(random.bytes(16));
    const oldest = messages[0]!;
    const facts = { ax, workspace: address.workspace, id: oldest.id, waiting: messages.length, attempt: attempts };
    const text = attached ? fetchNotice(facts) : setupNotice(facts, agent?.name ?? this.#proposeName(address.workspace));
    const marked = messages.slice(0, MARKED).map((row) => ({ sender: row.sender, id: row.id }));
    await store.write((tx) => {
      notices.begin(
        tx,
        {
          id,
          session: session.sessionId,
          harness: address.harness,
          workspace: address.workspace,
          messages: marked,
          at: now,
          ran: running(),
        },
        attempts,
        messages.at(-1)!.seq,
      );
      for (const message of marked)
        events.add(tx, { type: 'notice.attempt', messageId: message.id, subject: session.sessionId, detail: attached ? 'fetch' : 'setup' });
    });
    if (this.#ownNotices.size >= MAX_OWN_NOTICES) this.#ownNotices.clear();
    this.#ownNotices.add(id);
    const result = await discovery.notify(session, { id, text });
    await this.#settle(id, result.outcome, result.detail);
  }

  async #settle(noticeId: string, outcome: NoticeOutcome, detail: string | undefined): Promise<void> {
    const { store, notices, inbox, events, clock, onChanged } = this.#deps;
    const attempt = await store.write((tx) => {
      const before = notices.attempt(noticeId, tx);
      if (before === undefined || before.outcome === outcome || (outcome === 'written' && before.outcome !== 'unverified'))
        return undefined; // a receipt may overtake the write's own result
      const settled = notices.settle(tx, noticeId, outcome);
      for (const message of settled?.messages ?? []) {
        inbox.setNotice(tx, message.sender, message.id, { outcome, at: clock.now() });
        events.add(tx, { type: 'notice.outcome', messageId: message.id, state: outcome, ...(detail === undefined ? {} : { detail }) });
      }
      return settled;
    });
    for (const message of attempt?.messages ?? []) onChanged(message.sender, message.id);
  }

  async #withhold(messages: readonly Received[]): Promise<void> {
    const { store, inbox, events, clock, onChanged } = this.#deps;
    const news = messages.filter((row) => row.notice === null);
    if (news.length === 0) return;
    await store.write((tx) => {
      for (const row of news) {
        inbox.setNotice(tx, row.sender, row.id, { outcome: 'withheld', at: clock.now() });
        events.add(tx, { type: 'notice.outcome', messageId: row.id, state: 'withheld' });
      }
    });
    for (const row of news) onChanged(row.sender, row.id);
  }

  /** A free agent name made from the folder's own name. */
  #proposeName(workspace: string): string {
    const base = nameFrom(workspace.slice(workspace.lastIndexOf('/') + 1), 'agent');
    let name = base;
    for (let number = 2; this.#deps.agents.named(name) !== undefined; number++) name = `${base.slice(0, 56)}-${number}`;
    return name;
  }
}

/** Who is nudged for which messages: the only session there, else the one a send named; the rest is withheld. */
function assign(
  pool: readonly Session[],
  waiting: readonly Received[],
): { readonly chosen: Map<Session, Received[]>; readonly withheld: Received[] } {
  const chosen = new Map<Session, Received[]>();
  const withheld: Received[] = [];
  for (const row of waiting) {
    const session = pool.length === 1 ? pool[0] : pool.find((candidate) => candidate.sessionId === row.hint);
    if (session === undefined) withheld.push(row);
    else chosen.set(session, [...(chosen.get(session) ?? []), row]);
  }
  return { chosen, withheld };
}

/** Outcomes after which a session is left alone for longer. */
const UNWILLING: ReadonlySet<NoticeOutcome> = new Set(['held', 'denied', 'lapsed', 'blocked']);

/** May a session that was told something be told again now? `mayHear`: the harness can still say what became of the last notice. */
function judge(
  standing: Standing,
  session: Session,
  newest: number,
  running: number,
  mayHear: boolean,
): { readonly wait: number; readonly attempts?: never } | { readonly wait?: undefined; readonly attempts: number } {
  const since = running - standing.ran;
  if (since < NOTICE_SPACING_MS) return { wait: NOTICE_SPACING_MS - since };
  const bySelf = standing.noticeId === null;
  if (bySelf && newest > standing.told) return { attempts: 1 };
  if (standing.outcome === 'held' && mayHear) return { wait: Number.POSITIVE_INFINITY };
  if (standing.outcome === 'blocked' && session.statusSince <= standing.at) return { wait: Number.POSITIVE_INFINITY };
  const exhausted = standing.attempts >= NOTICE_ATTEMPTS;
  if (exhausted && newest <= standing.told) return { wait: Number.POSITIVE_INFINITY };
  const patience = UNWILLING.has(standing.outcome) ? 8 : 1;
  const pause =
    standing.outcome === 'failed'
      ? NOTICE_SPACING_MS * 2 ** Math.min(standing.attempts, 8)
      : NOTICE_RESEND_MS * patience * 2 ** (Math.min(standing.attempts, NOTICE_ATTEMPTS) - 1);
  if (since < pause) return { wait: pause - since };
  // A busy or waiting session probably still has it queued; one that sat idle through the whole pause never saw it or let it lie.
  if (standing.outcome !== 'failed' && session.status !== 'idle') return { wait: NOTICE_RESEND_MS };
  return { attempts: exhausted ? 1 : standing.attempts + 1 };
}
