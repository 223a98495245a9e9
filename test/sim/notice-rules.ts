/**
 * The oracle's part about notices: to whom, for whom, how often and in which words; and that what is known of one only goes forward.
 *
 * Owns the rules of one outstanding notice per session and of one in the queue of a Codex thread, of spacing and of budgets. Judges what
 * crosses the harness seam, and the attempts on the disks; changes nothing.
 */
import type { Notice, Session } from '../../daemon/harness/harness.ts';
import { NOTICE_RESEND_MS, NOTICE_SPACING_MS } from '../../protocol/limits.ts';
import { NOTICE_OUTCOMES, noticeMay } from '../../protocol/states.ts';
import type { NoticeOutcome } from '../../protocol/states.ts';
import type { Checker } from './checker.ts';
import type { Disk } from './disk.ts';
import type { Host } from './fleet.ts';
import type { World } from './world.ts';

/** An attempt is counted from its durable row; the write to the session follows within a flush or two, ms. */
const FLUSH_MS = 150;
const NOTICE_TEXT =
  /^ax on this host: (a message waits|\d+ messages wait) for this workspace(, unread)?( \([0-9a-z]{26}\))?( \(reminder \d+\))?[;.] [A-Za-z ,.]+:\nax (agent setup --name [A-Za-z0-9._-]+|messages fetch [0-9a-z]{26}) --workspace \/[a-z/]+( --code [0-9a-f]{32})?$/;

export class NoticeRules {
  readonly #world: World;
  readonly #checker: Checker;
  readonly #notices = new Map<string, { readonly id: string; at: number; touched: boolean; failed: boolean }>();
  /** Commands of a session that are under way. */
  readonly #asking = new Map<string, number>();
  readonly #budgets = new Map<string, number>();
  /** What a queue that one run of the daemon knows of still holds, by the notice's id. */
  readonly #queued = new Map<string, { readonly life: number; readonly session: string }>();
  /** What the disks held of each attempt. */
  readonly #outcomes = new Map<string, NoticeOutcome>();

  constructor(world: World, checker: Checker) {
    this.#world = world;
    this.#checker = checker;
  }

  /** A session asks by itself: from some moment between this and `touched` on it knows what waits. */
  touching(sessionId: string): void {
    this.#asking.set(sessionId, (this.#asking.get(sessionId) ?? 0) + 1);
    const notice = this.#notices.get(sessionId);
    if (notice !== undefined) notice.touched = true;
  }

  touched(sessionId: string): void {
    this.#asking.set(sessionId, (this.#asking.get(sessionId) ?? 1) - 1);
  }

  notifying(host: Host, session: Session, notice: Notice): void {
    this.#checker.fleet.count('notify');
    if (session.harness === 'codex' && notice.text.includes('(reminder ')) this.#checker.fleet.count('codex notice again');
    const { life } = host;
    if (life === undefined) return;
    this.#world.note(
      `${host.name} notice to ${session.sessionId.slice(0, 8)} in ${session.workspace}: ${notice.text.slice(notice.text.indexOf('\n') + 1)}`,
    );
    if (!NOTICE_TEXT.test(notice.text)) this.#checker.fail('no byte of a notice is chosen by a sender', JSON.stringify(notice.text));
    const disk = this.#checker.disk(host);
    // Who may cause it was judged when the attempt was written (row-rules.ts); nothing is said to a session without one.
    if (disk.row('notices', `a/${notice.id}`) === undefined) this.#checker.fail('an attempt is durable before it is made');
    const last = this.#notices.get(session.sessionId);
    for (const [id, queued] of this.#queued) {
      const waits = host.threads.live.some((thread) => thread.waiting.some((one) => one.id === id));
      if (queued.session === session.sessionId && queued.life === life.number && waits && last?.touched !== true)
        this.#checker.fail('no second notice while one waits in the queue of a thread', `${host.name} ${session.sessionId}`);
    }
    const gap = this.#world.time - (last?.at ?? -Infinity);
    if (gap < NOTICE_SPACING_MS) this.#checker.fail('two notices to a session are 2 s apart', `${Math.round(gap)} ms`);
    if (last !== undefined && !last.touched && !last.failed && gap < NOTICE_RESEND_MS - FLUSH_MS)
      this.#checker.fail('one notice is outstanding per session', `again after ${Math.round(gap)} ms`);
    const touched = (this.#asking.get(session.sessionId) ?? 0) > 0;
    this.#notices.set(session.sessionId, { id: notice.id, at: this.#world.time, touched, failed: false });
    const place = `${host.name} ${session.harness} ${session.workspace}`;
    const spent = (this.#budgets.get(place) ?? 0) + 1;
    this.#budgets.set(place, spent);
    const { noticeBurst, noticesPerHour } = host.limits;
    if (spent > this.#checker.fleet.hosts.length * (noticeBurst + (this.#world.time * noticesPerHour) / 3_600_000 + 1))
      this.#checker.fail('notices keep to their budget', place);
  }

  heard(host: Host, notice: string, outcome: string): void {
    this.#world.note(`${host.name} hears of notice ${notice.slice(0, 8)}: ${outcome}`);
    if (outcome !== 'left_queue') return;
    const last = this.#notices.get(this.#queued.get(notice)?.session ?? '');
    if (last?.id === notice) last.at = this.#world.time; // the session has it only now
    this.#queued.delete(notice);
  }

  notified(host: Host, session: Session, notice: Notice, outcome: string): void {
    if (outcome === 'in_queue') this.#queued.set(notice.id, { life: host.life?.number ?? 0, session: session.sessionId });
    this.#world.note(`${host.name} notice to ${session.sessionId.slice(0, 8)}: ${outcome}`);
    const last = this.#notices.get(session.sessionId);
    if (outcome === 'failed' && last !== undefined) last.failed = true;
  }

  /** What is known of an attempt goes forward only, whatever order the words about it came in. */
  known(host: Host, disk: Disk): void {
    for (const { id, outcome } of disk.attempts()) {
      const key = `${host.name} attempt ${id}`;
      const before = this.#outcomes.get(key);
      if (before !== undefined && before !== outcome && !reaches(before, outcome))
        this.#checker.fail('a later word about a notice is never turned back', `${host.name} ${id}: ${before}, then ${outcome}`);
      this.#outcomes.set(key, outcome);
    }
  }
}

/** May the words about an attempt have led from one to the other, by whatever steps between two looks? */
function reaches(from: NoticeOutcome, to: NoticeOutcome): boolean {
  const found = new Set<NoticeOutcome>([from]);
  for (const at of found) for (const next of NOTICE_OUTCOMES) if (noticeMay(at, next)) found.add(next);
  return found.has(to);
}
