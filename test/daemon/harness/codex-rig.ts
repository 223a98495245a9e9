/**
 * What the tests of the Codex adapter share: short temp homes, stand-in daemons in them, an adapter with its events collected.
 *
 * Owns two rules that hold in every test and are checked at its end: whatever happened, no client asked a daemon for anything that steers,
 * and no text of a user (the stand-in marks all of it with PRIVATE) came out of the adapter or into its log. Time is real here.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock, systemRandom } from '../../../daemon/clock/system.ts';
import { createCodexHarness, type CodexHarness, type CodexOptions } from '../../../daemon/harness/codex.ts';
import type { NoticeResult, Session } from '../../../daemon/harness/harness.ts';
import { silentLog, type Log, type LogFields } from '../../../daemon/log.ts';
import type { StandInCodexOptions, ThreadOptions } from '../../standin-codex/options.ts';
import { startStandInCodex, type StandInCodex } from '../../standin-codex/spawn.ts';

const WAIT_LIMIT_MS = 15_000;

export const noticeId = (n: number): string => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`;
/** The text of a notice as the core makes it. */
export const TEXT = 'ax on this host: a message waits. To read it, run:\nax messages fetch 0';

export interface CodexRigOptions extends Partial<CodexOptions> {
  /** Names of the homes that the adapter is given; the first is the usual one. */
  readonly homes?: readonly string[];
}

export class CodexRig {
  readonly dir = realpathSync(mkdtempSync(join(tmpdir().length > 20 ? '/tmp' : tmpdir(), 'axx-')));
  readonly lists: (readonly Session[])[] = [];
  readonly notices: { readonly id: string; readonly result: NoticeResult }[] = [];
  readonly logged: { readonly event: string; readonly fields: LogFields | undefined }[] = [];
  readonly daemons: StandInCodex[] = [];
  readonly harness: CodexHarness;
  readonly #results: NoticeResult[] = [];
  readonly #harnesses: CodexHarness[] = [];
  readonly #waiters = new Set<() => void>();
  readonly #options: CodexRigOptions;
  #workspaces = 0;

  constructor(options: CodexRigOptions = {}) {
    this.#options = options;
    this.harness = this.#make();
  }

  home(name = 'codex'): string {
    return join(this.dir, name);
  }

  async start(): Promise<this> {
    await this.#listen(this.harness);
    return this;
  }

  /** Another adapter over the same homes, as the next life of the ax daemon has it; its events join those of the first. */
  async another(): Promise<CodexHarness> {
    const harness = this.#make();
    await this.#listen(harness);
    return harness;
  }

  /** A stand-in daemon of one home, and the adapter connected to it unless it refuses. */
  async daemon(options: Partial<StandInCodexOptions> & { readonly name?: string } = {}): Promise<StandInCodex> {
    const { name, ...rest } = options;
    const daemon = await startStandInCodex({ home: this.home(name), autorun: false, ...rest });
    this.daemons.push(daemon);
    return daemon;
  }

  workspace(): string {
    const path = join(this.dir, `w${this.#workspaces++}`);
    mkdirSync(path);
    return path;
  }

  /** A thread of a daemon in a workspace of its own; resolves with the session once the adapter sees it. */
  async see(daemon: StandInCodex, options: Partial<ThreadOptions> = {}): Promise<Session> {
    const id = await daemon.thread({ cwd: this.workspace(), ...options });
    await this.until(() => this.find(id) !== undefined, `thread ${id} is seen`);
    return this.find(id)!;
  }

  find(threadId: string): Session | undefined {
    return this.harness.sessions().find((session) => session.sessionId === threadId);
  }

  /** One attempt, with the text the core would write. */
  async notify(session: Session, n: number, harness = this.harness): Promise<NoticeResult> {
    const result = await harness.notify(session, { id: noticeId(n), text: TEXT });
    this.#results.push(result);
    return result;
  }

  /** What was said of one notice so far. */
  said(n: number): readonly string[] {
    return this.notices.filter((one) => one.id === noticeId(n)).map((one) => one.result.outcome);
  }

  state(name = 'codex'): string | undefined {
    return this.harness.homes().find((one) => one.home === this.home(name))?.state;
  }

  /** Resolves when `check` holds; looked at after every event of the adapter and every line of its log. */
  until(check: () => boolean, what: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiters.delete(look);
        const seen = { sessions: this.harness.sessions(), homes: this.harness.homes(), notices: this.notices, logged: this.logged };
        reject(new Error(`not within ${WAIT_LIMIT_MS} ms: ${what}; ${JSON.stringify(seen)}`));
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

  async stop(): Promise<void> {
    try {
      await Promise.all(this.#harnesses.map((harness) => harness.stop()));
      for (const daemon of this.daemons) assert.deepEqual(daemon.trespasses, [], 'nothing steers');
      assert.doesNotMatch(JSON.stringify([this.lists, this.notices, this.#results, this.logged]), /PRIVATE/);
    } finally {
      await Promise.all(this.daemons.map((daemon) => daemon.kill()));
      rmSync(this.dir, { recursive: true, force: true });
    }
  }

  #make(): CodexHarness {
    const { homes = ['codex'], ...rest } = this.#options;
    const keep = (event: string, fields?: LogFields): void => {
      this.logged.push({ event, fields });
      this.#poke();
    };
    const log: Log = { ...silentLog, debug: keep, info: keep, warn: keep, error: keep };
    const codexHomes = homes.map((name) => this.home(name));
    const harness = createCodexHarness({ codexHomes, clock: systemClock, random: systemRandom, log, ...rest });
    this.#harnesses.push(harness);
    return harness;
  }

  async #listen(harness: CodexHarness): Promise<void> {
    await harness.start({
      onSessions: (sessions) => {
        this.lists.push(sessions);
        this.#poke();
      },
      onNotice: (id, result) => {
        this.notices.push({ id, result });
        this.#poke();
      },
    });
  }

  #poke(): void {
    for (const waiter of this.#waiters) waiter();
  }
}

/** Runs `body` with a started rig and clears up after it. */
export async function withCodex(body: (rig: CodexRig) => Promise<void>, options?: CodexRigOptions): Promise<void> {
  const rig = new CodexRig(options);
  try {
    await body(await rig.start());
  } finally {
    await rig.stop();
  }
}
