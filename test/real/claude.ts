/**
 * A live genuine Claude Code session for tests, on a terminal of its own, and the isolated home it needs.
 *
 * Owns the seed of a home, the environment, the start of a session, its end, and what a person does in it: typing, clearing, answering
 * dialogs. Its model is test/real/claude-model.ts. Says nothing about what ax makes of it.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { LIMIT_MS, until } from '../e2e/hosts.ts';
import { isAlive, launch, runToEnd, type Json, type Outcome } from '../e2e/processes.ts';
import type { ClaudeModel } from './claude-model.ts';
import type { Installed } from './install.ts';
import { KEYS, Terminal } from './terminal.ts';

/** No key of anybody's: the seed approves its last 20 characters, so that no session asks about it. */
const FAKE_KEY = `sk-ant-api03-${'0'.repeat(80)}`;

/** How long a key may take to show, ms. */
const KEY_LIMIT_MS = 1500;
const REST_MS = 250;

export type Mode = 'default' | 'plan' | 'bypassPermissions';

/** An isolated home: its folder, and the environment of everything in it; a Host is one. */
export interface Place {
  readonly home: string;
  /** With CLAUDE_CONFIG_DIR and XDG_RUNTIME_DIR. */
  readonly env: NodeJS.ProcessEnv;
}

export interface SessionOptions {
  readonly cwd: string;
  /** `default` when left out. */
  readonly mode?: Mode;
  /** Given as `--settings`, which counts as much as a user's own. */
  readonly settings?: Json;
  /** On top of the isolated environment. */
  readonly env?: NodeJS.ProcessEnv;
  /** Further words of the command line, before all others. */
  readonly args?: readonly string[];
  /** A known conversation instead of a new one. */
  readonly resume?: string;
  /** With `resume`: a copy under a new id. */
  readonly fork?: boolean;
}

/** A session record, as the program writes it. */
export interface SessionFile {
  readonly pid: number;
  readonly procStart: string;
  readonly sessionId: string;
  readonly status?: string;
  readonly waitingFor?: string;
  readonly messagingSocketPath?: string;
  readonly entrypoint?: string;
}

/** The Claude Code of one home: its seed, its model, its sessions. */
export class ClaudeHome {
  readonly sessions: ClaudeSession[] = [];
  readonly scripts: ScriptSession[] = [];
  readonly installed: Installed;
  readonly place: Place;
  readonly model: ClaudeModel;
  #settings: Json = {};

  /** Seeds the home: no first questions, its folders trusted. */
  constructor(installed: Installed, place: Place, model: ClaudeModel) {
    this.installed = installed;
    this.place = place;
    this.model = model;
    const trusted = { hasTrustDialogAccepted: true, hasCompletedProjectOnboarding: true, allowedTools: [] };
    const seed = {
      hasCompletedOnboarding: true,
      lastOnboardingVersion: installed.version,
      theme: 'dark',
      autoUpdates: false,
      bypassPermissionsModeAccepted: true,
      customApiKeyResponses: { approved: [FAKE_KEY.slice(-20)], rejected: [] },
      projects: { [place.home]: trusted },
    };
    mkdirSync(this.configDir, { recursive: true, mode: 0o700 });
    for (const folder of [this.configDir, place.home]) writeFileSync(join(folder, '.claude.json'), JSON.stringify(seed), { mode: 0o600 });
    this.settings({});
  }

  /** Replaces the user's settings, also for sessions that run; gives those before. */
  settings(settings: Json): Json {
    const before = this.#settings;
    this.#settings = settings;
    writeFileSync(join(this.configDir, 'settings.json'), JSON.stringify({ skipDangerousModePermissionPrompt: true, ...settings }));
    return before;
  }

  get configDir(): string {
    return this.place.env['CLAUDE_CONFIG_DIR'] ?? join(this.place.home, '.claude');
  }

  get env(): NodeJS.ProcessEnv {
    return {
      ...this.place.env,
      SHELL: '/bin/bash',
      ANTHROPIC_BASE_URL: this.model.url,
      ANTHROPIC_API_KEY: FAKE_KEY,
      DISABLE_AUTOUPDATER: '1',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      DISABLE_TELEMETRY: '1',
      DISABLE_ERROR_REPORTING: '1',
      IS_SANDBOX: '1',
    };
  }

  /** A session on a terminal, ready: registered, and its composer drawn. */
  async session(options: SessionOptions): Promise<ClaudeSession> {
    const session = new ClaudeSession(this, options);
    this.sessions.push(session);
    await session.ready();
    return session;
  }

  /** A session on a terminal that need not become ready. */
  launch(options: SessionOptions): ClaudeSession {
    const session = new ClaudeSession(this, options);
    this.sessions.push(session);
    return session;
  }

  /** A session without a terminal, as scripts and the SDK start it: `-p` with its input kept open. */
  async script(cwd: string, args: readonly string[] = []): Promise<ScriptSession> {
    const words = ['-p', '--input-format', 'stream-json', '--output-format', 'stream-json', '--verbose', '--permission-mode', 'default'];
    const child = launch(this.installed.binary, [...words, ...args], { env: this.env, cwd });
    const script = new ScriptSession(this, child);
    this.scripts.push(script);
    await until('the record of a -p session', async () => {
      assert.equal(child.exitCode, null, script.said);
      return script.record()?.messagingSocketPath !== undefined ? true : script.said;
    });
    return script;
  }

  /** Runs the program to its end, without a terminal. */
  run(args: readonly string[], cwd: string): Promise<Outcome> {
    return runToEnd(this.installed.binary, args, { env: this.env, cwd });
  }

  /** The record of process `pid`, when there is one and it is whole. */
  record(pid: number): SessionFile | undefined {
    const path = join(this.configDir, 'sessions', `${pid}.json`);
    if (!existsSync(path)) return undefined;
    try {
      return JSON.parse(readFileSync(path, 'utf8')) as SessionFile;
    } catch {
      return undefined; // being rewritten
    }
  }

  async end(): Promise<void> {
    await Promise.all([...this.sessions.map((session) => session.end()), ...this.scripts.map((script) => script.end())]);
  }
}

export class ClaudeSession {
  readonly terminal: Terminal;
  readonly home: ClaudeHome;
  readonly cwd: string;
  readonly debugFile: string;

  constructor(home: ClaudeHome, options: SessionOptions) {
    this.home = home;
    this.cwd = options.cwd;
    this.debugFile = join(home.place.home, `debug-${randomUUID().slice(0, 8)}.log`);
    const which = options.resume === undefined ? [] : ['--resume', options.resume, ...(options.fork === true ? ['--fork-session'] : [])];
    const settings = options.settings === undefined ? [] : ['--settings', JSON.stringify(options.settings)];
    const words = [...(options.args ?? []), ...which, ...settings, '--permission-mode', options.mode ?? 'default'];
    this.terminal = new Terminal(home.installed.binary, [...words, '--debug-file', this.debugFile], {
      env: { ...home.env, ...options.env },
      cwd: options.cwd,
    });
  }

  get pid(): number {
    return this.terminal.pid;
  }

  get record(): SessionFile {
    const record = this.home.record(this.pid);
    if (record === undefined) throw new Error(`no record of process ${this.pid}; its terminal shows:\n${this.terminal.screen()}`);
    return record;
  }

  /** The present conversation; another one after `clear`. */
  get sessionId(): string {
    return this.record.sessionId;
  }

  get debugLog(): string {
    return existsSync(this.debugFile) ? readFileSync(this.debugFile, 'utf8') : '';
  }

  /** Waits until it is registered and idle, and its composer is drawn. */
  async ready(): Promise<void> {
    await this.untilStatus('idle');
    await this.terminal.until('❯');
  }

  /** Waits until its record says `status`. */
  async untilStatus(status: 'idle' | 'busy' | 'waiting'): Promise<void> {
    await until(`session ${this.pid} to be ${status}`, async () => {
      if (this.terminal.hasEnded) throw new Error(`it has ended:\n${this.terminal.history().slice(-4000)}`);
      const found = this.home.record(this.pid)?.status;
      return found === status ? true : `${found}; its terminal shows:\n${this.terminal.screen()}`;
    });
  }

  /** Types a prompt and sends it. */
  async say(text: string): Promise<void> {
    this.terminal.type(text);
    await this.terminal.until(text);
    this.terminal.type(KEYS.enter);
  }

  /**
   * Waits for the dialog that shows `title`, walks to the entry that matches, and chooses it. The program ignores keys in the first moment
   * of a dialog, so that nobody answers it by accident: a key that did nothing is pressed again.
   */
  async answer(title: string, entry: RegExp): Promise<void> {
    const { terminal } = this;
    await terminal.until(title);
    const selected = (screen: string): string => screen.split('\n').findLast((line) => /^\s*❯ +\S/.test(line)) ?? '';
    for (let presses = 0; presses < 20; presses++) {
      const now = selected(terminal.screen());
      const isThere = entry.test(now);
      // A key pressed twice may move on once more: Enter only where the selection rests.
      if (isThere && (await terminal.shows((screen) => selected(screen) !== now, REST_MS))) continue;
      terminal.type(isThere ? KEYS.enter : KEYS.down);
      const isDone = (screen: string): boolean => (isThere ? !screen.includes(title) : selected(screen) !== now);
      if ((await terminal.shows(isDone, KEY_LIMIT_MS)) && isThere) return;
    }
    throw new Error(`no entry ${entry} could be chosen in:\n${terminal.screen()}`);
  }

  /** `/clear`: a new conversation in the same process. Gives its id. */
  async clear(): Promise<string> {
    const before = this.sessionId;
    await this.say('/clear');
    let now = before;
    await until('a new conversation', async () => {
      now = this.home.record(this.pid)?.sessionId ?? before;
      return now !== before ? true : this.terminal.screen();
    });
    return now;
  }

  /** `kill -9` of the program: its files stay. */
  async kill9(): Promise<void> {
    await this.terminal.kill();
    await until(`process ${this.pid} gone`, async () => (isAlive(this.pid) ? 'alive' : true));
  }

  /** SIGTERM: its files go. */
  async end(): Promise<void> {
    await this.terminal.end();
  }
}

export class ScriptSession {
  said = '';
  readonly #home: ClaudeHome;
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;

  constructor(home: ClaudeHome, child: ChildProcess) {
    this.#home = home;
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) stream?.setEncoding('utf8').on('data', (chunk: string) => (this.said += chunk));
    this.#ended = new Promise((resolve) => void child.once('close', () => resolve()));
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  record(): SessionFile | undefined {
    return this.#home.record(this.pid);
  }

  /** What it said at the end of each turn. */
  results(): readonly Json[] {
    const lines = this.said.split('\n').slice(0, -1);
    return lines.filter((line) => /^\{.*"type":"result"/.test(line)).map((line) => JSON.parse(line) as Json);
  }

  /** Sends a prompt, as a script does. */
  say(text: string): void {
    this.#child.stdin?.write(`${JSON.stringify({ type: 'user', message: { role: 'user', content: text } })}\n`);
  }

  /** SIGTERM, which removes its files; SIGKILL when that does not end it. */
  async end(): Promise<void> {
    this.#child.kill('SIGTERM');
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), LIMIT_MS / 3);
    await this.#ended;
    clearTimeout(timer);
  }
}
