/**
 * What the tests of the Claude Code adapter share: a short temp folder, an adapter with its events collected, planted records.
 *
 * Owns no rule. Time is real here, because files, sockets and processes are; waiting is for events, never for a time.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Clock } from '../../../daemon/clock/clock.ts';
import { systemClock, systemRandom } from '../../../daemon/clock/system.ts';
import { CONNECT_LIMIT_MS } from '../../../daemon/harness/claude-live.ts';
import { createClaudeHarness, type ClaudeHarness, type ClaudeOptions } from '../../../daemon/harness/claude.ts';
import type { NoticeResult, Session } from '../../../daemon/harness/harness.ts';
import { silentLog, type Log, type LogFields } from '../../../daemon/log.ts';
import { startStandIn, type StandIn } from '../../standin/spawn.ts';
import type { StandInOptions } from '../../standin/options.ts';

const WAIT_LIMIT_MS = 15_000;

/** Real time, `speed` times faster for timers: a limit of seconds is reached without waiting for it. */
export function realClock(speed = 1): Clock {
  return { ...systemClock, after: (delayMs, run) => systemClock.after(delayMs / speed, run) };
}

/** Limits after which a session counts as one that hangs: its own answer, and that of all in one round (a quarter of it). */
const LIMITS: ReadonlySet<number> = new Set([CONNECT_LIMIT_MS, CONNECT_LIMIT_MS / 4]);

/** Real time, but far more of it before a session is said to hang: one that answers does so late where the machine is busy. */
export const patientClock: Clock = {
  ...systemClock,
  after: (delayMs, run) => systemClock.after(LIMITS.has(delayMs) ? 20 * delayMs : delayMs, run),
};

export class ClaudeRig {
  readonly dir = mkdtempSync(join(tmpdir(), 'axc-'));
  readonly lists: (readonly Session[])[] = [];
  readonly notices: { readonly id: string; readonly result: NoticeResult }[] = [];
  readonly logged: { readonly event: string; readonly fields: LogFields | undefined }[] = [];
  readonly harness: ClaudeHarness;
  readonly #standIns: StandIn[] = [];
  readonly #waiters = new Set<() => void>();

  constructor(options: Partial<ClaudeOptions> & { readonly roots?: readonly string[] } = {}) {
    const { roots = ['claude'], ...rest } = options;
    mkdirSync(this.configDir); // its sessions folder comes with the first session
    const keep = (event: string, fields?: LogFields): void => {
      this.logged.push({ event, fields });
      this.#poke();
    };
    const log: Log = { ...silentLog, info: keep, warn: keep, error: keep };
    this.harness = createClaudeHarness({
      configDirs: roots.map((root) => join(this.dir, root)),
      clock: patientClock,
      random: systemRandom,
      log,
      ...rest,
    });
  }

  get configDir(): string {
    return join(this.dir, 'claude');
  }

  get socketDir(): string {
    return join(this.dir, 's');
  }

  async start(): Promise<this> {
    await this.harness.start({
      onSessions: (sessions) => {
        this.lists.push(sessions);
        this.#poke();
      },
      onNotice: (id, result) => {
        this.notices.push({ id, result });
        this.#poke();
      },
    });
    return this;
  }

  /** A live stand-in session in this rig's folders, in a workspace of its own. */
  async standIn(options: Partial<StandInOptions> = {}): Promise<StandIn> {
    const cwd = options.cwd ?? join(this.dir, `w${this.#standIns.length}`);
    mkdirSync(cwd, { recursive: true });
    const standIn = await startStandIn({ configDir: this.configDir, socketDir: this.socketDir, autorun: false, ...options, cwd });
    this.#standIns.push(standIn);
    return standIn;
  }

  /** Resolves when `check` holds; looked at after every event of the adapter. */
  until(check: () => boolean, what: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiters.delete(look);
        reject(new Error(`not within ${WAIT_LIMIT_MS} ms: ${what}; sessions ${JSON.stringify(this.harness.sessions())}`));
      }, WAIT_LIMIT_MS);
      const look = (): void => {
        if (!check()) return;
        clearTimeout(timer);
        this.#waiters.delete(look);
        resolve();
      };
      this.#waiters.add(look);
      look();
    });
  }

  find(processKey: string): Session | undefined {
    return this.harness.sessions().find((session) => session.processKey === processKey);
  }

  /** The session as the adapter sees it, once it does; its record is there a moment before the status in it. */
  async see(standIn: StandIn): Promise<Session> {
    const seen = (): Session | undefined => this.find(standIn.processKey);
    await this.until(() => (seen()?.status ?? 'unknown') !== 'unknown', `session ${standIn.processKey} is seen`);
    const session = seen();
    assert.ok(session);
    return session;
  }

  async stop(): Promise<void> {
    await this.harness.stop();
    await Promise.all(this.#standIns.map((standIn) => standIn.stop()));
    rmSync(this.dir, { recursive: true, force: true });
  }

  #poke(): void {
    for (const waiter of this.#waiters) waiter();
  }
}

/** Runs `body` with a started rig and clears up after it. */
export async function withRig(
  body: (rig: ClaudeRig) => Promise<void>,
  options?: ConstructorParameters<typeof ClaudeRig>[0],
): Promise<void> {
  const rig = new ClaudeRig(options);
  try {
    await body(await rig.start());
  } finally {
    await rig.stop();
  }
}

/** Start ticks of this very process, as a record would name them. */
export function ownProcStart(): string {
  if (process.platform !== 'linux') return '1';
  const stat = readFileSync('/proc/self/stat', 'latin1');
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
}

/** Writes a record of this test's own process, with `fields` over the genuine ones; returns its path. */
export function plantRecord(configDir: string, fields: Record<string, unknown> = {}): string {
  const folder = join(configDir, 'sessions');
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const record = {
    pid: process.pid,
    sessionId: '11111111-2222-4333-8444-555555555555',
    cwd: tmpdir(),
    startedAt: 1_790_000_000_000,
    procStart: ownProcStart(),
    version: '2.1.332',
    peerProtocol: 1,
    kind: 'interactive',
    entrypoint: 'cli',
    ...fields,
  };
  const path = join(folder, `${String(record.pid)}.json`);
  writeFileSync(path, JSON.stringify(record));
  return path;
}
