/**
 * The queue of one Codex thread, as far as notices of ours stand in it: adding one, and following it until the thread has taken it.
 *
 * Owns the order list, check, add, and what is said of an item later. At most one of ours waits at a time; further notices are bound to it
 * and share its outcomes. Of other clients' items only the id is looked at. Never deletes, moves or starts an item: that would override its user.
 * Invariant: an item that may have been stored is never called failed, and one that has left is never called read.
 */
import type { Clock } from '../clock/clock.ts';
import type { Answer, Refusal } from './codex-rpc.ts';
import { fieldsOf, parseCursor, parseThread, parseThreadId, tokenOf } from './codex-thread.ts';
import type { Notice, NoticeResult } from './harness.ts';

/** What begins the client ids of our items; the notice's id follows. */
const PREFIX = 'ax-';
/** Items on one page: a page of the longest inputs still fits into a frame. The queue holds 100. */
const PAGE = 5;
const MAX_PAGES = 24;
/** An item that waits this long in a thread that stays idle is one that its user has paused, ms. */
const PAUSED_AFTER_MS = 1000;
const FIRST_LOOK_MS = 250;
/** Between two looks at an item while nothing happens, ms; doubles. */
const LOOK_MS = 1000;
const LOOK_CAP_MS = 30_000;
/** A change of the thread comes with others. */
const EVENT_PAUSE_MS = 20;
/** Notices that are bound to one item. */
const MAX_BOUND = 64;

/** The words for each way an attempt can fail, fixed. */
const REFUSED: Record<Exclude<Refusal, 'unsupported'>, string> = {
  overloaded: 'Codex is overloaded',
  'not loaded': 'session is gone',
  'unknown thread': 'session is gone',
  archived: 'thread is archived',
  ephemeral: 'thread is ephemeral',
  full: 'queue is full',
  other: 'Codex refused',
};

export interface QueueItem {
  readonly id: string;
  /** Its client id when it is one of ours. */
  readonly ours: string | undefined;
}

/** One page of `thread/queue/list`; undefined when it has another shape. */
export function parseQueuePage(answer: unknown): { readonly items: readonly QueueItem[]; readonly next: string | undefined } | undefined {
  const fields = fieldsOf(answer);
  const data = fields?.['data'];
  if (fields === undefined || !Array.isArray(data)) return undefined;
  const items: QueueItem[] = [];
  for (const entry of data.slice(0, 1000)) {
    const item = parseItem(entry);
    if (item === undefined) return undefined;
    items.push(item);
  }
  return { items, next: parseCursor(fields['nextCursor']) };
}

/** The item that an answer to `thread/queue/add` says was stored; undefined when it has another shape. */
export function parseAdded(answer: unknown): QueueItem | undefined {
  return parseItem(fieldsOf(answer)?.['queuedSubmission']);
}

function parseItem(value: unknown): QueueItem | undefined {
  const fields = fieldsOf(value);
  const id = tokenOf(fields?.['id'], 128);
  if (fields === undefined || id === undefined || typeof fields['clientUserMessageId'] !== 'string') return undefined;
  const clientId = tokenOf(fields['clientUserMessageId'], 128);
  return { id, ours: clientId?.startsWith(PREFIX) === true ? clientId : undefined };
}

export interface QueueDeps {
  readonly threadId: string;
  readonly clock: Clock;
  readonly request: (method: 'thread/read' | 'thread/queue/list' | 'thread/queue/add', params: object) => Promise<Answer>;
  /** True when there is a connection, after one attempt to make a new one if need be. */
  readonly reconnect: () => Promise<boolean>;
  /** The daemon's answer had a shape ax does not know. Gives the words for it. */
  readonly onUnsupported: () => string;
  readonly onNotice: (noticeId: string, result: NoticeResult) => void;
  /** Nothing of ours waits here any more. */
  readonly onEmpty: () => void;
}

interface Waiting {
  readonly itemId: string;
  /** Ids of the notices it stands for, and what was last said of each. */
  readonly told: Map<string, NoticeResult['outcome'] | undefined>;
  /** Since when the thread was seen idle without a change in between, monotonic ms. */
  idleSince: number | undefined;
}

type Listing = { readonly ours: readonly QueueItem[] } | { readonly failed: string };

export class ThreadQueue {
  readonly #deps: QueueDeps;
  #waiting: Waiting | undefined;
  /** Adding and looking, one after the other. */
  #turn: Promise<unknown> = Promise.resolve();
  #turns = 0;
  #pause = LOOK_MS;
  #cancelLook: (() => void) | undefined;
  #closed = false;

  constructor(deps: QueueDeps) {
    this.#deps = deps;
  }

  /**
   * Adds `notice` unless one of ours waits already. `check` is asked immediately before adding and says what stands against it. Never rejects.
   */
  offer(notice: Notice, check: () => Promise<string | undefined>): Promise<NoticeResult> {
    return this.#inTurn(async () => {
      const result = await this.#offer(notice, check);
      if (this.#waiting !== undefined) this.#lookIn(FIRST_LOOK_MS);
      return result;
    });
  }

  /** The thread has changed, or the connection is back: looks soon. */
  nudge(): void {
    if (this.#waiting === undefined) return;
    this.#waiting.idleSince = undefined;
    this.#pause = LOOK_MS;
    this.#lookIn(EVENT_PAUSE_MS);
  }

  close(): void {
    this.#closed = true;
    this.#cancelLook?.();
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    this.#turns += 1;
    const next = this.#turn.then(work).finally(() => {
      this.#turns -= 1;
      if (this.#turns === 0 && this.#waiting === undefined) this.#end();
    });
    this.#turn = next.catch(() => undefined); // its own caller hears of it
    return next;
  }

  async #offer(notice: Notice, check: () => Promise<string | undefined>): Promise<NoticeResult> {
    const { threadId, request, onUnsupported } = this.#deps;
    const before = await this.#list();
    if ('failed' in before) return { outcome: 'failed', detail: before.failed };
    const [earlier] = before.ours;
    if (earlier !== undefined) {
      this.#bind(earlier, notice.id);
      return { outcome: 'in_queue', detail: 'an earlier notice still waits there' };
    }
    if (this.#waiting !== undefined) this.#left(this.#waiting);
    const against = await check();
    if (against !== undefined) return { outcome: 'failed', detail: against };
    const clientUserMessageId = `${PREFIX}${notice.id}`;
    const answer = await request('thread/queue/add', { threadId, clientUserMessageId, input: [{ type: 'text', text: notice.text }] });
    if (answer.kind === 'refused')
      return { outcome: 'failed', detail: answer.refusal === 'unsupported' ? onUnsupported() : REFUSED[answer.refusal] };
    if (answer.kind === 'lost' && !answer.wasSent) return { outcome: 'failed', detail: 'Codex does not answer' };
    const added = answer.kind === 'result' ? parseAdded(answer.result) : undefined;
    if (added?.ours === clientUserMessageId) {
      this.#bind(added, notice.id);
      return { outcome: 'in_queue' };
    }
    if (answer.kind === 'result') onUnsupported();
    return this.#makeSure(clientUserMessageId, notice.id);
  }

  /** No answer, or none that says so: is it in the queue? An idle thread takes an item within milliseconds, so its absence says nothing. */
  async #makeSure(clientId: string, noticeId: string): Promise<NoticeResult> {
    const listing: Listing = (await this.#deps.reconnect()) ? await this.#list() : { ours: [] };
    const stored = 'ours' in listing ? listing.ours.find((item) => item.ours === clientId) : undefined;
    if (stored === undefined) return { outcome: 'unverified', detail: 'Codex did not answer' };
    this.#bind(stored, noticeId);
    return { outcome: 'in_queue' };
  }

  /** One more notice stands on `item`. The one it was made for, perhaps in an earlier life of this daemon, is told of too. */
  #bind(item: QueueItem, noticeId: string): void {
    if (this.#waiting?.itemId !== item.id) this.#waiting = { itemId: item.id, told: new Map(), idleSince: undefined };
    const { told } = this.#waiting;
    const first = parseThreadId(item.ours?.slice(PREFIX.length));
    if (first !== undefined && !told.has(first)) told.set(first, undefined);
    told.set(noticeId, 'in_queue');
    for (const id of told.keys()) {
      if (told.size <= MAX_BOUND) break;
      if (id !== noticeId) told.delete(id);
    }
  }

  #lookIn(ms: number): void {
    this.#cancelLook?.();
    if (this.#closed) return;
    this.#cancelLook = this.#deps.clock.after(ms, () => void this.#inTurn(() => this.#look()));
  }

  /** What has become of the item that waits? */
  async #look(): Promise<void> {
    if (this.#waiting === undefined || this.#closed) return;
    const waiting = this.#waiting;
    const listing = await this.#list(waiting.itemId);
    if ('ours' in listing) {
      if (!listing.ours.some((item) => item.id === waiting.itemId)) return this.#left(waiting);
      await this.#judge(waiting);
    }
    const isOpen = waiting.idleSince !== undefined && this.#deps.clock.monotonic() - waiting.idleSince < PAUSED_AFTER_MS;
    this.#lookIn(isOpen ? PAUSED_AFTER_MS : this.#pause);
    if (!isOpen) this.#pause = Math.min(this.#pause * 2, LOOK_CAP_MS);
  }

  /** It still waits: for the turn that runs, for somebody to load the thread, or because its user has interrupted the last turn? */
  async #judge(waiting: Waiting): Promise<void> {
    const { clock, request, threadId } = this.#deps;
    const answer = await request('thread/read', { threadId });
    const thread = answer.kind === 'result' ? parseThread(answer.result) : undefined;
    if (thread === undefined) return;
    if (thread.state !== 'idle') {
      waiting.idleSince = undefined;
      this.#tell(waiting, 'in_queue');
      return;
    }
    waiting.idleSince ??= clock.monotonic();
    if (clock.monotonic() - waiting.idleSince >= PAUSED_AFTER_MS) this.#tell(waiting, 'queue_paused');
  }

  #left(waiting: Waiting): void {
    this.#waiting = undefined;
    this.#tell(waiting, 'left_queue');
  }

  #tell(waiting: Waiting, outcome: NoticeResult['outcome']): void {
    if (this.#closed) return;
    for (const [id, last] of waiting.told) {
      if (last === outcome) continue;
      waiting.told.set(id, outcome);
      this.#deps.onNotice(id, { outcome });
    }
  }

  #end(): void {
    this.#cancelLook?.();
    this.#deps.onEmpty();
  }

  /** Our items in the whole queue. A queue of several pages moves while it is read, so nothing found there is looked for once more. */
  async #list(wanted?: string): Promise<Listing> {
    const first = await this.#walk();
    if ('failed' in first || first.pages === 1) return first;
    return first.ours.some((item) => wanted === undefined || item.id === wanted) ? first : this.#walk();
  }

  async #walk(): Promise<{ readonly ours: readonly QueueItem[]; readonly pages: number } | { readonly failed: string }> {
    const { request, threadId, onUnsupported } = this.#deps;
    const ours: QueueItem[] = [];
    let cursor: string | undefined;
    let pages = 0;
    do {
      const answer = await request('thread/queue/list', { threadId, limit: PAGE, ...(cursor === undefined ? {} : { cursor }) });
      if (answer.kind === 'lost') return { failed: 'Codex does not answer' };
      if (answer.kind === 'refused' && answer.refusal !== 'unsupported') return { failed: REFUSED[answer.refusal] };
      const page = answer.kind === 'result' ? parseQueuePage(answer.result) : undefined;
      if (page === undefined) return { failed: onUnsupported() };
      ours.push(...page.items.filter((item) => item.ours !== undefined));
      cursor = page.next;
      pages += 1;
    } while (cursor !== undefined && pages < MAX_PAGES);
    return { ours, pages };
  }
}
