/**
 * The live Claude Code sessions of all config roots: found by watching their record folders, with a slow poll behind it.
 *
 * Owns which records are looked at, when, and the list made of them. Each record has its own look, so that a session that
 * hangs delays no other; a record that cannot be read this round keeps its earlier state while its process and socket
 * still answer. Reading is claude-record.ts's, judging claude-live.ts's.
 * Invariant: the list is published only when it differs, and first when every record was looked at once.
 */
import { dirname, resolve } from 'node:path';
import { pause } from '../clock/within.ts';
import type { Log } from '../log.ts';
import { MAX_RECORDS_PER_ROOT, RecordFolder } from './claude-folder.ts';
import { CONNECT_LIMIT_MS, judge, REASONS, type Reason, type Surroundings } from './claude-live.ts';
import { pidOfRecordName, readRecord, type SessionRecord } from './claude-record.ts';
import type { Session } from './harness.ts';

const POLL_MS = 2000;
const POLL_EMPTY_MS = 5000;
/** Changes of one file come in bunches; they are looked at together. */
const EVENT_PAUSE_MS = 20;
/** A record is rewritten in place within this time; a half-written one is read once more after it. */
export const REREAD_PAUSE_MS = 50;
/** A round is published without the sessions that still hang after this time. */
const GRACE_MS = CONNECT_LIMIT_MS / 4;
const MAX_ROOTS = 32;

/** A live session: its record and what stands against nudging it. `fresh` is false when the last reading of the file failed. */
export interface Seen {
  readonly record: SessionRecord;
  readonly reason: Reason | undefined;
  readonly fresh: boolean;
}

interface Entry {
  readonly path: string;
  readonly pid: number;
  seen: Seen | undefined;
  socketFolder: string | undefined;
  /** Read and being judged just now. */
  pending: SessionRecord | undefined;
  task: Promise<void> | undefined;
  next: Promise<void> | undefined;
}

export interface RegistryOptions {
  readonly around: Surroundings;
  readonly log: Log;
  /** Ends everything: timers, watches, connections. */
  readonly signal: AbortSignal;
  readonly onSessions: (sessions: readonly Session[]) => void;
}

/** The public face of a seen session. */
export function sessionOf(seen: Seen): Session {
  const { record, reason } = seen;
  return {
    harness: 'claude',
    sessionId: record.sessionId,
    workspace: record.workspace,
    status: record.status,
    statusSince: record.statusSince,
    startedAt: record.startedAt,
    version: record.version,
    reachable: reason === undefined,
    ...(reason === undefined ? {} : { reason }),
    processKey: keyOf(record),
  };
}

export function keyOf(record: SessionRecord): string {
  return `${record.pid}:${record.procStart}`;
}

export class ClaudeRegistry {
  readonly #options: RegistryOptions;
  readonly #roots = new Map<string, RecordFolder>();
  readonly #entries = new Map<string, Entry>();
  readonly #dirty = new Set<string>();
  #sessions: readonly Session[] = [];
  #published: string | undefined;
  #domain: string | undefined;
  #started = false;
  #cancelPoll: () => void = () => {};
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

  /** The first look, then watching and polling until the signal aborts. */
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
    const entry = this.#visible().find((one) => one.seen !== undefined && keyOf(one.seen.record) === processKey);
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
    const delay = this.#entries.size > 0 ? POLL_MS : POLL_EMPTY_MS;
    this.#cancelPoll = this.#options.around.clock.after(delay, () => void this.refresh().then(() => this.#arm()));
  }

  #end(): void {
    this.#cancelPoll();
    this.#cancelEvents?.();
    for (const folder of this.#roots.values()) folder.close();
  }

  async #round(): Promise<void> {
    const { around, signal } = this.#options;
    const listings = await Promise.all(
      [...this.#roots.values()].map(
        async (folder) => (await folder.list()) ?? [...this.#entries.keys()].filter((path) => folder.holds(path)),
      ),
    );
    const present = new Set(listings.flat());
    for (const [path, entry] of this.#entries) {
      if (present.has(path)) continue;
      entry.seen = undefined;
      this.#entries.delete(path);
    }
    const looks = [...present].map((path) => this.#lookAt(path));
    await Promise.race([Promise.all(looks), pause(around.clock, GRACE_MS, signal)]);
    for (const entry of this.#entries.values()) {
      if (entry.task === undefined || entry.pending === undefined || entry.seen !== undefined) continue;
      entry.seen = { record: entry.pending, reason: REASONS.silent, fresh: true }; // the look itself goes on and corrects this
    }
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

  #lookAt(path: string): Promise<void> {
    let entry = this.#entries.get(path);
    if (entry === undefined) {
      const pid = pidOfRecordName(path.slice(path.lastIndexOf('/') + 1));
      if (pid === undefined || this.#entries.size >= MAX_RECORDS_PER_ROOT * MAX_ROOTS) return Promise.resolve();
      entry = { path, pid, seen: undefined, socketFolder: undefined, pending: undefined, task: undefined, next: undefined };
      this.#entries.set(path, entry);
    }
    return this.#look(entry);
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
    let read = await readRecord(entry.path, entry.pid, around.uid);
    if (read === 'unusable') {
      await pause(around.clock, REREAD_PAUSE_MS, signal);
      read = await readRecord(entry.path, entry.pid, around.uid);
    }
    const record = read === 'unusable' ? entry.seen?.record : read === 'gone' ? undefined : read;
    if (record === undefined) {
      entry.seen = undefined;
      if (!signal.aborted) this.#publish();
      return;
    }
    entry.pending = record;
    if (record.socket !== undefined) entry.socketFolder = dirname(record.socket);
    const verdict = await judge(record, around, signal);
    entry.pending = undefined;
    if (signal.aborted) return;
    entry.seen = verdict === 'dead' ? undefined : { record, reason: verdict.reason, fresh: read !== 'unusable' };
    this.#publish();
  }

  /** Live entries, once each, without those that another machine or container wrote into a shared folder. */
  #visible(): Entry[] {
    const live = [...this.#entries.values()].filter((entry) => entry.seen !== undefined);
    live.sort((a, b) => (a.seen?.record.startedAt ?? 0) - (b.seen?.record.startedAt ?? 0) || a.pid - b.pid);
    const domains = live.map((entry) => entry.seen?.record.pidDomain).filter((domain) => domain !== undefined);
    // The domain known good stays so while a session of it lives; it is compared, never parsed.
    if (this.#domain === undefined || !domains.includes(this.#domain)) this.#domain = domains[0];
    const once = new Map<string, Entry>();
    for (const entry of live) {
      if (entry.seen === undefined) continue;
      const { pidDomain } = entry.seen.record;
      const key = keyOf(entry.seen.record);
      if ((pidDomain === undefined || pidDomain === this.#domain) && !once.has(key)) once.set(key, entry);
    }
    return [...once.values()];
  }

  #publish(): void {
    if (!this.#started || this.#options.signal.aborted) return;
    const sessions = this.#visible().flatMap((entry) => (entry.seen === undefined ? [] : [sessionOf(entry.seen)]));
    const image = JSON.stringify(sessions);
    this.#sessions = sessions;
    if (image === this.#published) return;
    this.#published = image;
    this.#options.onSessions(sessions);
  }
}
