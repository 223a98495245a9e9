/**
 * The threads that are loaded in one Codex daemon: which are looked at again, and what is known of each.
 *
 * Owns the list and its looks: `thread/loaded/list`, then `thread/read` of each, a few at a time, or only of those that were named by an event
 * or are new in the list.
 * One round at a time; a round ends when nothing is wanted any more. The filter itself is codex-thread.ts's.
 * Invariant: an answer that was asked for earlier never replaces one that was asked for later.
 */
import type { Clock } from '../clock/clock.ts';
import type { Answer } from './codex-rpc.ts';
import { faultOf, leftOut, parseLoaded, parseThread, REASONS, sessionOf, statusOf } from './codex-thread.ts';
import type { DaemonVersion, LeftOut, ThreadFacts } from './codex-thread.ts';
import { workspaceOf } from './places.ts';
import type { Session } from './harness.ts';

/** Threads of one daemon that are looked at. */
export const MAX_THREADS = 1000;
const MAX_PAGES = 40;
/** Threads that are read at the same time. */
const PARALLEL = 8;

/** What a look at one thread gives; `unknown` no such thread, `unsupported` a shape that ax does not read, `lost` no answer. */
export type Verdict = Session | LeftOut | 'unknown' | 'unsupported' | 'lost';

interface Seen {
  readonly facts: ThreadFacts;
  readonly workspace: string;
  readonly workspaceUsable: boolean;
  /** Wall time, ms, when this status was first seen; 0 when it was so already at the first look. */
  readonly since: number;
}

export interface TableOptions {
  readonly clock: Clock;
  readonly request: (method: 'thread/loaded/list' | 'thread/read', params: object) => Promise<Answer>;
  /** An answer had a shape ax does not know. */
  readonly onShape: () => void;
  /** There are more threads than are looked at. */
  readonly onMany: () => void;
  /** The daemon has told its list, or has not answered. */
  readonly onList: (isAnswered: boolean) => void;
}

export class ThreadTable {
  readonly #options: TableOptions;
  readonly #seen = new Map<string, Seen>();
  readonly #wanted = new Set<string>();
  /** Number of the newest look that was taken over, by thread. */
  readonly #taken = new Map<string, number>();
  #version: DaemonVersion = { text: 'unknown', isSupported: false };
  #wantsAll = false;
  #wantsList = false;
  #lookedOnce = false;
  #lastLook = 0;
  #working: Promise<void> | undefined;

  constructor(options: TableOptions) {
    this.#options = options;
  }

  /** A new connection: everything is looked at, and what was known counts only as a memory of when a status began. */
  begin(version: DaemonVersion): void {
    this.#version = version;
    this.#lookedOnce = false;
    this.#wantsAll = true;
  }

  /** From now on nothing here may be nudged. */
  distrust(): void {
    this.#version = { ...this.#version, isSupported: false };
  }

  /** What is loaded; nothing before everything was looked at once on this connection. */
  sessions(): readonly Session[] {
    if (!this.#lookedOnce) return [];
    const list = [...this.#seen.values()].map((seen) => this.#session(seen));
    return list.toSorted((a, b) => a.startedAt - b.startedAt || (a.sessionId < b.sessionId ? -1 : 1));
  }

  want(threadId: string): void {
    if (this.#wanted.size < MAX_THREADS) this.#wanted.add(threadId);
    else this.#wantsAll = true;
  }

  wantAll(): void {
    this.#wantsAll = true;
  }

  /** The list alone, and what is new in it; everything when not everything was looked at on this connection. */
  wantList(): void {
    if (this.#lookedOnce) this.#wantsList = true;
    else this.#wantsAll = true;
  }

  /** Looks at what is wanted, also at what comes to be wanted meanwhile. Never rejects. */
  work(): Promise<void> {
    if (this.#working === undefined && !this.#isWanted()) return Promise.resolve();
    this.#working ??= this.#rounds(); // does not end before its first answer, so it is set before it is cleared
    return this.#working;
  }

  /** Looks at one thread at once, and keeps what it sees. */
  async look(threadId: string): Promise<Verdict> {
    const number = ++this.#lastLook;
    const answer = await this.#options.request('thread/read', { threadId });
    if (answer.kind === 'lost') return 'lost';
    if (answer.kind === 'refused') {
      if (answer.refusal === 'unsupported') this.#options.onShape();
      this.#take(threadId, number, undefined);
      return answer.refusal === 'unsupported' ? 'unsupported' : 'unknown';
    }
    const facts = parseThread(answer.result);
    if (facts === undefined || facts.id !== threadId) {
      this.#options.onShape();
      this.#take(threadId, number, undefined);
      return 'unsupported';
    }
    const out = leftOut(facts);
    if (out !== undefined) {
      this.#take(threadId, number, undefined);
      return out;
    }
    const seen = { facts, ...(await workspaceOf(facts.cwd)), since: this.#since(facts) };
    this.#take(threadId, number, seen);
    return this.#session(seen);
  }

  #isWanted(): boolean {
    return this.#wantsAll || this.#wantsList || this.#wanted.size > 0;
  }

  async #rounds(): Promise<void> {
    while (this.#isWanted()) {
      // Taken before anything is asked: what comes to be wanted while the answer is on its way is the next round's.
      const [isWhole, isListed, named] = [this.#wantsAll, this.#wantsAll || this.#wantsList, new Set(this.#wanted)];
      this.#wantsAll = false;
      this.#wantsList = false;
      this.#wanted.clear();
      const loaded = isListed ? await this.#loaded() : undefined;
      if (isListed && loaded === undefined) continue; // not to be had now: the next poll or connection tries again
      if (loaded !== undefined) this.#keepOnly(new Set(loaded));
      await this.#lookAt(loaded?.filter((id) => isWhole || named.has(id) || !this.#seen.has(id)) ?? [...named]);
      if (isWhole) this.#lookedOnce = true;
    }
    this.#working = undefined; // in the same step as the last look at what is wanted
  }

  async #lookAt(ids: readonly string[]): Promise<void> {
    const rest = ids[Symbol.iterator]();
    const worker = async (): Promise<void> => {
      for (const id of rest) if (this.#seen.size < MAX_THREADS || this.#seen.has(id)) await this.look(id);
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
  }

  async #loaded(): Promise<readonly string[] | undefined> {
    const ids = new Set<string>();
    let cursor: string | undefined;
    for (let pages = 0; pages === 0 || (cursor !== undefined && pages < MAX_PAGES); pages++) {
      const answer = await this.#options.request('thread/loaded/list', cursor === undefined ? {} : { cursor });
      this.#options.onList(answer.kind !== 'lost');
      if (answer.kind === 'lost') return undefined;
      const page = answer.kind === 'result' ? parseLoaded(answer.result) : undefined;
      if (page === undefined) {
        this.#options.onShape();
        this.#keepOnly(new Set());
        return undefined;
      }
      for (const id of page.ids) ids.add(id);
      cursor = page.next;
    }
    if (ids.size > MAX_THREADS || cursor !== undefined) this.#options.onMany();
    return [...ids].slice(0, MAX_THREADS);
  }

  #keepOnly(ids: ReadonlySet<string>): void {
    for (const id of this.#seen.keys()) if (!ids.has(id)) this.#seen.delete(id);
    for (const id of this.#taken.keys()) if (!ids.has(id)) this.#taken.delete(id);
  }

  #take(threadId: string, number: number, seen: Seen | undefined): void {
    if (number < (this.#taken.get(threadId) ?? 0)) return;
    if (this.#taken.size < 2 * MAX_THREADS || this.#taken.has(threadId)) this.#taken.set(threadId, number);
    if (seen === undefined) this.#seen.delete(threadId);
    else this.#seen.set(threadId, seen);
  }

  #since(facts: ThreadFacts): number {
    const before = this.#seen.get(facts.id);
    if (before !== undefined && statusOf(before.facts) === statusOf(facts)) return before.since;
    return before !== undefined || this.#lookedOnce ? this.#options.clock.now() : 0;
  }

  #session(seen: Seen): Session {
    const { facts, workspace, since } = seen;
    const reason = faultOf(facts, this.#version) ?? (seen.workspaceUsable ? undefined : REASONS.workspace);
    return sessionOf(facts, { workspace, statusSince: since, version: this.#version.text, reason });
  }
}
