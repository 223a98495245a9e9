/**
 * The live Claude Code sessions of all config roots: found by watching their record folders, with cheap checks behind it.
 *
 * Owns which records are looked at, when, and the list made of them. A look opens the record and connects to the socket; it is made when
 * the watch tells of a change, when a mark differs (claude-marks.ts), when asked, and for each record once a minute whatever the marks say.
 * Each record has its own look, so that a session that hangs delays no other; a record that cannot be read keeps its earlier state while
 * its process and socket still answer. Reading is claude-record.ts's, judging claude-live.ts's.
 * Invariant: the list is published only when it differs, and first when every record was looked at once.
 */
import { dirname, resolve } from 'node:path';
import type { Random } from '../clock/clock.ts';
import { pause } from '../clock/within.ts';
import type { Log } from '../log.ts';
import { MAX_RECORDS_PER_ROOT, RecordFolder } from './claude-folder.ts';
import { CONNECT_LIMIT_MS, judge, REASONS, type Surroundings, type Verdict } from './claude-live.ts';
import { keyOf, Listing, sessionOf, type Seen } from './claude-listing.ts';
import { Marks } from './claude-marks.ts';
import { pidOfRecordName, readRecord, type SessionRecord } from './claude-record.ts';
import type { Session } from './harness.ts';

/** The marks of everything are compared this often, ms; where there is no session, the folders alone. */
const TICK_MS = 2000;
const TICK_EMPTY_MS = 5000;
/** The processes of live sessions are asked for this often, ms: nothing else tells of one that was killed. */
const PULSE_MS = 300;
/** Ticks after which a record is looked at without a sign; each comes at a time of its own between half of it and all of it. */
const LONGEST_WAIT = 30;
/** Changes of one file come in bunches; they are looked at together. */
const EVENT_PAUSE_MS = 20;
/** A record is rewritten in place within this time; a half-written one is read once more after it. */
export const REREAD_PAUSE_MS = 50;
/** A round is published without the sessions that still hang after this time. */
const GRACE_MS = CONNECT_LIMIT_MS / 4;
const MAX_ROOTS = 32;

interface Entry {
  readonly path: string;
  readonly pid: number;
  seen: Seen | undefined;
  socketFolder: string | undefined;
  readonly marks: Marks;
  /** Ticks until the next look without a sign. */
  wait: number;
  /** How long that was from the last look on, when that may have been spoiled; else 0. */
  doubt: number;
  isChecked: boolean;
  /** Read and being judged just now. */
  pending: SessionRecord | undefined;
  task: Promise<void> | undefined;
  next: Promise<void> | undefined;
}

export interface RegistryOptions {
  readonly around: Surroundings;
  readonly random: Random;
  readonly log: Log;
  /** Ends everything: timers, watches, connections. */
  readonly signal: AbortSignal;
  readonly onSessions: (sessions: readonly Session[]) => void;
}

export class ClaudeRegistry {
  readonly #options: RegistryOptions;
  readonly #roots = new Map<string, RecordFolder>();
  readonly #entries = new Map<string, Entry>();
  readonly #dirty = new Set<string>();
  readonly #listing = new Listing();
  #sessions: readonly Session[] = [];
  #published: string | undefined;
  #started = false;
  #ticks = 0;
  #cancelTick: () => void = () => {};
  #cancelPulse: (() => void) | undefined;
  #cancelEvents: (() => void) | undefined;

  constructor(options: RegistryOptions, configDirs: readonly string[]) {
    this.#options = options;
    for (const dir of configDirs) this.addRoot(dir);
  }

  /** Config roots in use, absolute, in the order given. */
  get roots(): readonly string[] {
    return [...this.#roots.keys()];
  }

  get sessions(): readonly Session[] {
    return this.#sessions;
  }

  /** Every folder that holds, or held, the socket of a recorded session. */
  socketFolders(): readonly string[] {
    return [...new Set([...this.#entries.values()].map((entry) => entry.socketFolder).filter((folder) => folder !== undefined))];
  }

  /** Adds a root; it need not exist yet. False when there are too many. */
  addRoot(configDir: string): boolean {
    const root = resolve(configDir);
    if (this.#roots.has(root)) return true;
    if (this.#roots.size >= MAX_ROOTS) return false;
    const { around, log, signal } = this.#options;
    const onFolder = (): void => void (signal.aborted ? undefined : this.refresh());
    this.#roots.set(root, new RecordFolder(root, { uid: around.uid, log, onRecord: (path) => this.#onRecord(path), onFolder }));
    return true;
  }

  /** The first look, then watching and checking until the signal aborts. */
  async start(): Promise<void> {
    this.#options.signal.addEventListener('abort', () => this.#end(), { once: true });
    await this.#round();
    this.#started = true;
    this.#publish();
    this.#arm();
  }

  /** Looks at everything now. A session that hangs is reported as before, or as not answering. */
  async refresh(): Promise<readonly Session[]> {
    await this.#round();
    this.#publish();
    return this.#sessions;
  }

  /** Looks at one live session again, reading its record anew; undefined when it is gone. */
  async recheck(processKey: string): Promise<Seen | undefined> {
    const listed = this.#listed().find((one) => keyOf(one.record) === processKey);
    const entry = [...this.#entries.values()].find((one) => one.seen !== undefined && one.seen === listed);
    if (entry === undefined) return undefined;
    await this.#look(entry);
    return entry.seen !== undefined && keyOf(entry.seen.record) === processKey ? entry.seen : undefined;
  }

  /** Resolves when no look is under way any more. */
  async settled(): Promise<void> {
    await Promise.all([...this.#entries.values()].map((entry) => entry.next ?? entry.task ?? Promise.resolve()));
  }

  #arm(): void {
    if (this.#options.signal.aborted) return;
    const delay = this.#entries.size > 0 ? TICK_MS : TICK_EMPTY_MS;
    this.#cancelTick = this.#options.around.clock.after(delay, () => void this.#tick().then(() => this.#arm()));
  }

  #end(): void {
    this.#cancelTick();
    this.#cancelPulse?.();
    this.#cancelEvents?.();
    for (const folder of this.#roots.values()) folder.close();
  }

  /** Looks at everything. */
  async #round(): Promise<void> {
    await this.#list('all');
    await this.#unlessSlow([...this.#entries.values()].map((entry) => this.#look(entry)));
    for (const entry of this.#entries.values()) {
      if (entry.task === undefined || entry.pending === undefined || entry.seen !== undefined) continue;
      entry.seen = { record: entry.pending, reason: REASONS.silent, fresh: true }; // the look itself goes on and corrects this
    }
  }

  /** Looks at what has changed, whether or not the watch has told of it, and at what has not been looked at for long. */
  async #tick(): Promise<void> {
    this.#ticks += 1;
    const isGone = await this.#list(this.#ticks % LONGEST_WAIT === 0 ? 'all' : 'changes');
    if (isGone) this.#publish();
    await this.#unlessSlow([...this.#entries.values()].map((entry) => this.#check(entry)));
  }

  async #check(entry: Entry): Promise<void> {
    if (entry.task !== undefined || entry.isChecked) return;
    entry.isChecked = true;
    entry.wait -= 1;
    const isSame = entry.wait > 0 && (await entry.marks.areSame());
    entry.isChecked = false;
    if (!isSame && !this.#options.signal.aborted) await this.#look(entry);
  }

  /** Looks at sessions whose process is not the same any more, as long as there are any. */
  #armPulse(): void {
    this.#cancelPulse ??= this.#options.around.clock.after(PULSE_MS, () => {
      this.#cancelPulse = undefined;
      const live = [...this.#entries.values()].filter((entry) => entry.seen !== undefined);
      for (const entry of live) if (entry.task === undefined && !entry.marks.isProcessSame()) void this.#look(entry);
      if (live.length > 0) this.#armPulse();
    });
  }

  /** Adds the records that are there and drops those that are not; true when one was dropped. */
  async #list(ask: 'all' | 'changes'): Promise<boolean> {
    let isGone = false;
    const known = [...this.#entries.keys()]; // before the listing: what the watch tells of meanwhile may not be in it
    await Promise.all(
      [...this.#roots.values()].map(async (folder) => {
        const paths = await folder.list(ask);
        if (paths === undefined) return;
        const present = new Set(paths);
        for (const path of known) {
          if (present.has(path) || !folder.holds(path)) continue;
          isGone = true;
          this.#drop(path);
        }
        for (const path of present) this.#entryOf(path);
      }),
    );
    return isGone;
  }

  #drop(path: string): void {
    const entry = this.#entries.get(path);
    if (entry !== undefined) entry.seen = undefined;
    this.#entries.delete(path);
  }

  #unlessSlow(work: readonly Promise<void>[]): Promise<unknown> {
    const { around, signal } = this.#options;
    return Promise.race([Promise.all(work), pause(around.clock, GRACE_MS, signal)]);
  }

  #onRecord(path: string): void {
    if (this.#options.signal.aborted) return;
    this.#dirty.add(path);
    this.#cancelEvents ??= this.#options.around.clock.after(EVENT_PAUSE_MS, () => {
      this.#cancelEvents = undefined;
      const paths = [...this.#dirty];
      this.#dirty.clear();
      for (const changed of paths) void this.#lookAt(changed);
    });
  }

  /** What the watch told of before its folder was refused is not looked at any more. */
  #lookAt(path: string): Promise<void> {
    const isRefused = [...this.#roots.values()].some((folder) => folder.isRefused && folder.holds(path));
    const entry = isRefused ? undefined : this.#entryOf(path);
    return entry === undefined ? Promise.resolve() : this.#look(entry);
  }

  /** What is known of a record, which may be new; undefined when there are too many or it is none. */
  #entryOf(path: string): Entry | undefined {
    const known = this.#entries.get(path);
    if (known !== undefined) return known;
    const pid = pidOfRecordName(path.slice(path.lastIndexOf('/') + 1));
    if (pid === undefined || this.#entries.size >= MAX_RECORDS_PER_ROOT * MAX_ROOTS) return undefined;
    const marks = new Marks(path, pid, this.#options.around.procRoot);
    const nothing = { seen: undefined, socketFolder: undefined, pending: undefined, task: undefined, next: undefined };
    const entry = { path, pid, marks, wait: 0, doubt: 0, isChecked: false, ...nothing };
    this.#entries.set(path, entry);
    return entry;
  }

  /** A look that begins after this call: one under way may have read the file before what the caller knows of. */
  #look(entry: Entry): Promise<void> {
    const begin = (): Promise<void> => {
      entry.next = undefined;
      entry.task = this.#examine(entry).finally(() => {
        entry.task = undefined;
      });
      return entry.task;
    };
    if (entry.task === undefined) return begin();
    return (entry.next ??= entry.task.then(begin));
  }

  async #examine(entry: Entry): Promise<void> {
    const { around, signal } = this.#options;
    await entry.marks.take();
    let read = await readRecord(entry.path, entry.pid, around.uid);
    if (read === 'unusable') {
      await pause(around.clock, REREAD_PAUSE_MS, signal);
      await entry.marks.take();
      read = await readRecord(entry.path, entry.pid, around.uid);
    }
    const record = read === 'unusable' ? entry.seen?.record : read === 'gone' ? undefined : read;
    await entry.marks.takeSocket(record?.socket);
    let verdict: Verdict = 'dead';
    if (record !== undefined) {
      entry.pending = record;
      if (record.socket !== undefined) entry.socketFolder = dirname(record.socket);
      verdict = await judge(record, around, signal);
      entry.pending = undefined;
    }
    if (signal.aborted) return;
    entry.seen = record === undefined || verdict === 'dead' ? undefined : { record, reason: verdict.reason, fresh: read !== 'unusable' };
    this.#planNext(entry, read === 'unusable' || (read !== 'gone' && verdict === 'dead' && entry.marks.hadProcess));
    if (entry.seen !== undefined) this.#armPulse();
    this.#publish();
  }

  /**
   * When to look again if no mark differs. A look that may have been spoiled (by a record half written, by a system out of file handles) is
   * made again at the next tick and then more and more rarely; a session that does not answer may do so any moment.
   */
  #planNext(entry: Entry, isDoubtful: boolean): void {
    entry.doubt = isDoubtful ? Math.min(LONGEST_WAIT, Math.max(1, 2 * entry.doubt)) : 0;
    const spread = (1 + (this.#options.random.bytes(1)[0] ?? 0) / 255) / 2;
    entry.wait = entry.seen?.reason === REASONS.silent ? 1 : isDoubtful ? entry.doubt : Math.ceil(LONGEST_WAIT * spread);
  }

  #listed(): readonly Seen[] {
    return this.#listing.of([...this.#entries.values()].flatMap(({ seen }) => (seen === undefined ? [] : [seen])));
  }

  #publish(): void {
    if (!this.#started || this.#options.signal.aborted) return;
    const sessions = this.#listed().map(sessionOf);
    const image = JSON.stringify(sessions);
    this.#sessions = sessions;
    if (image === this.#published) return;
    this.#published = image;
    this.#options.onSessions(sessions);
  }
}
