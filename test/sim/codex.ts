/**
 * The harness seam of simulated Codex threads: a durable queue per thread, of which one run of the daemon sees and says what it can.
 *
 * The queue itself is the thread's (`waiting` of a SimSession) and outlives the daemon; who added what is known only to the run that did.
 * Like the real adapter it looks at the queue first and never adds a second notice beside one that waits. What it says of an item comes
 * late and, as far as the world's chance has it, in another order.
 */
import type { Notice, NoticeResult, Session, SessionClaim } from '../../daemon/harness/harness.ts';
import { AxError } from '../../protocol/errors.ts';
import type { NoticeOutcome } from '../../protocol/states.ts';
import { SimHarness } from './harness.ts';
import type { SimSession } from './harness.ts';

/** An item of ours in a queue: the notices it stands for, and what was last said of it. */
interface Item {
  readonly thread: SimSession;
  readonly notices: Set<string>;
  said: NoticeOutcome | undefined;
}

/** A lost connection is there again, and the queue was looked at, after this, ms. */
const RECONNECT_MS = 700;
/** A word about an item comes up to this late, ms. */
const MAX_WORD_MS = 60;

export class SimCodexHarness extends SimHarness {
  readonly #items = new Map<string, Item>();

  override async prove(claim: SessionClaim): Promise<Session> {
    await this.delay(1);
    const thread = this.#thread(claim.sessionId);
    if (thread === undefined || claim.harness !== this.kind) throw new AxError('not_found', 'no such thread is loaded');
    this.look();
    return this.face(thread);
  }

  override async notify(session: Session, notice: Notice): Promise<NoticeResult> {
    const { world } = this.agents;
    await this.delay(world.between(1, 5));
    const thread = this.#thread(session.sessionId);
    if (this.events === undefined || thread === undefined) return { outcome: 'failed', detail: 'the thread is not loaded' };
    if (thread.unreachable !== undefined) return { outcome: 'failed', detail: thread.unreachable };
    if (thread.behaviour === 'dies_before') {
      this.agents.end(thread);
      return { outcome: 'failed', detail: 'the thread is gone' };
    }
    const [earlier] = thread.waiting;
    if (earlier !== undefined) {
      this.#follow(earlier.id, thread, notice.id);
      return { outcome: 'in_queue', detail: 'an earlier notice still waits there' };
    }
    if (thread.behaviour === 'unsure') return this.#addUnheard(thread, notice);
    this.#add(thread, notice);
    this.#follow(notice.id, thread, notice.id);
    this.#then(thread);
    return { outcome: 'in_queue' };
  }

  #thread(sessionId: string): SimSession | undefined {
    return this.agents.live.find((one) => one.sessionId === sessionId && one.isLoaded);
  }

  #add(thread: SimSession, notice: Notice): void {
    thread.received.push(notice);
    thread.waiting.push(notice);
    this.agents.work(thread);
  }

  /** The connection breaks before the answer: stored or not, and if it is not in the queue afterwards nobody will ever know. */
  #addUnheard(thread: SimSession, notice: Notice): NoticeResult {
    if (this.agents.world.chance(0.6)) this.#add(thread, notice);
    this.later(RECONNECT_MS, () => {
      if (thread.isAlive && thread.waiting.includes(notice)) this.#follow(notice.id, thread, notice.id);
    });
    return { outcome: 'unverified', detail: 'the connection broke before the answer' };
  }

  /** What happens to a thread right after it took an item. */
  #then(thread: SimSession): void {
    const { world } = this.agents;
    const again = (run: () => void): void => void world.after(thread.decideMs, () => (thread.isAlive ? run() : undefined));
    if (thread.behaviour === 'dies_after') world.after(2, () => this.agents.end(thread));
    if (thread.behaviour === 'interrupted') {
      this.agents.interrupt(thread);
      again(() => this.agents.goOn(thread));
    }
    if (thread.behaviour === 'unloads') {
      this.agents.unload(thread);
      again(() => this.agents.load(thread));
    }
  }

  #follow(item: string, thread: SimSession, notice: string): void {
    const known = this.#items.get(item) ?? { thread, notices: new Set<string>(), said: 'in_queue' };
    known.notices.add(notice);
    this.#items.set(item, known);
    if (known.said !== 'in_queue' && known.said !== undefined) this.#say([notice], known.said);
    this.later(1, () => this.look());
  }

  /** Also says what became of each item that is followed. */
  protected override look(): void {
    super.look();
    for (const [id, item] of this.#items) {
      const { thread } = item;
      const waits = thread.waiting.some((one) => one.id === id);
      if (!thread.isAlive) this.#items.delete(id);
      else if (!waits) {
        this.#items.delete(id);
        this.#say([...item.notices], 'left_queue');
      } else if (thread.isLoaded) {
        const now = thread.isPaused && thread.status === 'idle' ? 'queue_paused' : 'in_queue';
        if (now === item.said) continue;
        item.said = now;
        this.#say([...item.notices], now);
      }
    }
  }

  #say(notices: readonly string[], outcome: NoticeOutcome): void {
    for (const id of notices) this.later(this.agents.world.between(1, MAX_WORD_MS), () => this.events?.onNotice(id, { outcome }));
  }
}
