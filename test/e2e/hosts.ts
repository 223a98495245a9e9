/**
 * Hosts for end-to-end tests and the demo: each has a home of its own, a real daemon, the real bundled CLI, and stand-in sessions.
 *
 * Owns folders, environments and daemons. Everything lives under one short temporary folder per Bed; `end` kills every process that was
 * started through it and removes the folder, also when the test failed.
 * Invariant: nothing of the caller's own environment but PATH reaches a host.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext } from 'node:test';
import type { Method, SessionEnvironment } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { controlSocketPath } from '../../protocol/paths.ts';
import type { StandInOptions } from '../standin/options.ts';
import { startStandIn, type StandIn } from '../standin/spawn.ts';
import type { StandInCodexOptions } from '../standin-codex/options.ts';
import { startStandInCodex, type StandInCodex } from '../standin-codex/spawn.ts';
import { connectControl, Lost, type ControlClient } from './client.ts';
import { killGroup, launch, runToEnd, told } from './processes.ts';
import type { Json, Outcome, RunOptions } from './processes.ts';

export const ROOT = join(import.meta.dirname, '..', '..');
export const BUNDLE = join(ROOT, 'dist', 'ax.cjs');
const DAEMON = join(ROOT, 'dist', 'daemon.mjs');
export const LAUNCHER = join(ROOT, 'bin', 'ax');
/** How long a daemon may take to say that it is ready, and a state to be reached, ms: far above what either takes. */
export const LIMIT_MS = 30_000;

/** One temporary folder, the hosts in it, and their end. */
export class Bed {
  readonly folder: string;
  readonly hosts: Host[] = [];
  readonly sessions: (StandIn | StandInCodex)[] = [];

  constructor() {
    // A socket path has at most 107 bytes, and where the system's temporary folder is deep its own takes most of them.
    this.folder = realpathSync(mkdtempSync(join(tmpdir().length > 30 ? '/tmp' : tmpdir(), 'axe-')));
  }

  host(name: string, place: Place = HERE): Host {
    const host = new Host(this, name, place);
    this.hosts.push(host);
    return host;
  }

  /** A host whose daemon runs. */
  async running(name: string): Promise<Host> {
    const host = this.host(name);
    await host.start();
    return host;
  }

  /** Two running hosts, paired by an invite. */
  async pair(first = 'hosta', second = 'hostb'): Promise<readonly [Host, Host]> {
    const [a, b] = await Promise.all([this.running(first), this.running(second)]);
    await join2(a, b);
    return [a, b];
  }

  async end(): Promise<void> {
    await Promise.all(this.sessions.map((session) => session.kill()));
    await Promise.all(this.hosts.map((host) => host.end()));
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 3 });
  }
}

/** A Bed that ends with the test, or with the file when none is given. */
export function makeBed(t?: TestContext): Bed {
  const bed = new Bed();
  if (t === undefined) after(() => bed.end());
  else t.after(() => bed.end());
  return bed;
}

/** Pairs two running hosts: `a` invites, `b` joins; both are up for each other on return. */
export async function join2(a: Host, b: Host): Promise<void> {
  const invite = await a.ok(['host', 'invite']);
  await b.ok(['host', 'join', '-'], { stdin: `${String(invite['code'])}\n` });
  await Promise.all([a.untilUp(b), b.untilUp(a)]);
}

/** Where a host's daemon runs: what its program is started with, and where it listens. */
export interface Place {
  readonly prefix: readonly string[];
  readonly listen: string;
}
const HERE: Place = { prefix: [], listen: '/ip4/127.0.0.1/tcp/0' };

export class Host {
  readonly name: string;
  readonly home: string;
  readonly stateDir: string;
  readonly env: NodeJS.ProcessEnv;
  hostId = '';
  listen: readonly string[] = [];
  /** Process id of the daemon itself. */
  pid = 0;
  /** Everything its daemons said, all lives. */
  log = '';
  readonly #bed: Bed;
  readonly #place: Place;
  #child: ChildProcess | undefined;
  #exited: Promise<unknown> = Promise.resolve();
  #client: Promise<ControlClient> | undefined;

  constructor(bed: Bed, name: string, place: Place) {
    this.#bed = bed;
    this.#place = place;
    this.name = name;
    this.home = join(bed.folder, name);
    this.stateDir = join(this.home, '.local', 'state', 'ax');
    mkdirSync(join(this.home, 'run'), { recursive: true, mode: 0o700 });
    this.env = {
      PATH: process.env['PATH'] ?? '/usr/bin:/bin',
      HOME: this.home,
      XDG_RUNTIME_DIR: join(this.home, 'run'),
      CLAUDE_CONFIG_DIR: join(this.home, '.claude'),
      CODEX_HOME: join(this.home, '.codex'),
      TMPDIR: tmpdir(),
      LANG: 'C.UTF-8',
      TERM: 'dumb',
    };
  }

  get socketPath(): string {
    return controlSocketPath(this.stateDir, process.getuid?.() ?? 0);
  }

  /** A folder of this host, made when missing. */
  workspace(name: string): string {
    const path = join(this.home, name);
    mkdirSync(path, { recursive: true });
    return path;
  }

  /** Runs the bundled CLI to its end. */
  ax(args: readonly string[], options: RunOptions = {}): Promise<Outcome> {
    const [command, ...words] = options.program ?? [process.execPath, BUNDLE];
    return runToEnd(command ?? '', [...words, ...args], {
      ...options,
      env: { ...this.env, ...options.env },
      cwd: options.cwd ?? this.home,
    });
  }

  /** Runs the CLI with JSON output; asserts success and gives the object. */
  async ok(args: readonly string[], options: RunOptions = {}): Promise<Json> {
    const outcome = await this.ax(['--format', 'json', ...args], options);
    assert.equal(outcome.status, 0, `${told(args)}: ${outcome.stdout}${outcome.stderr}`);
    assert.equal(outcome.json['ok'], true);
    return outcome.json;
  }

  /** Runs the CLI with JSON output; asserts the refusal and gives its error. */
  async refused(args: readonly string[], code: string, status = 1, options: RunOptions = {}): Promise<Json> {
    const outcome = await this.ax(['--format', 'json', ...args], options);
    assert.equal(outcome.json['ok'], false, `${told(args)} was done: ${outcome.stdout}`);
    assert.equal(outcome.json['error']['code'], code, outcome.stdout);
    assert.equal(outcome.status, status, outcome.stdout);
    return outcome.json['error'] as Json;
  }

  /** Starts the daemon (`ax daemon run`; `direct`: its program itself, which is quicker) and resolves at its ready line. */
  async start(how: { readonly args?: readonly string[]; readonly direct?: boolean } = {}): Promise<Json> {
    const args = how.args ?? ['--listen', this.#place.listen, '--name', this.name];
    const program = how.direct === true ? [DAEMON, '--state-dir', this.stateDir] : [BUNDLE, 'daemon', 'run'];
    const [command, ...words] = [...this.#place.prefix, process.execPath, ...program, ...args, '--format', 'json'];
    const child = launch(command, words, { env: this.env, cwd: this.home, stdin: 'ignore' });
    this.#child = child;
    if (how.direct === true) this.pid = child.pid ?? 0;
    const exited = new Promise<number | null>((resolve) => void child.once('close', resolve));
    this.#exited = exited;
    child.stderr?.setEncoding('utf8').on('data', (chunk: string) => (this.log += chunk));
    const ready = await new Promise<Json>((resolve, reject) => {
      let text = '';
      const fail = (why: string): void => reject(new Error(`${this.name}: ${why}: ${text}${this.log.slice(-4000)}`));
      const timer = setTimeout(() => fail(`no ready line within ${LIMIT_MS} ms`), LIMIT_MS);
      child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
        text += chunk;
        if (!text.includes('\n')) return;
        clearTimeout(timer);
        resolve(JSON.parse(text.slice(0, text.indexOf('\n'))) as Json);
      });
      void exited.then((status) => {
        clearTimeout(timer);
        fail(`the daemon ended with ${status}`);
      });
    });
    this.hostId = String(ready['host_id']);
    this.listen = ready['listen'] as string[];
    if (how.direct !== true) this.pid = Number((await this.call<{ pid: number }>('daemon.hello')).pid);
    return ready;
  }

  /** `kill -9` of the daemon itself; resolves when it is gone. */
  async kill9(): Promise<void> {
    if (this.pid !== 0) process.kill(this.pid, 'SIGKILL');
    await this.#gone();
  }

  /** `ax daemon stop`. */
  async stop(): Promise<void> {
    const outcome = await this.ax(['daemon', 'stop']);
    assert.equal(outcome.status, 0, outcome.stderr);
    await this.#gone();
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  async #gone(): Promise<void> {
    await this.#exited;
    this.#child = undefined;
    this.pid = 0;
    const client = this.#client;
    this.#client = undefined;
    // One that never connected has nothing to close.
    await client?.then(
      (one) => one.close(),
      () => undefined,
    );
  }

  async end(): Promise<void> {
    if (this.#child?.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null) killGroup(this.#child.pid);
    else if (this.pid !== 0) killGroup(this.pid); // started in the background by a test
    await this.#gone();
  }

  /** One request on the control socket, without a process. */
  async call<T = Json>(method: Method, params: Record<string, unknown> = {}, session: SessionEnvironment | null = null): Promise<T> {
    const client = (this.#client ??= connectControl(this.socketPath));
    try {
      return await (await client).call<T>(method, params, session);
    } catch (error) {
      if (error instanceof Lost && this.#client === client) this.#client = undefined;
      throw error;
    }
  }

  /** Its name is what a paired host calls it. */
  async untilUp(other: Host): Promise<void> {
    await until(`${other.name} up at ${this.name}`, async () => {
      const { hosts } = await this.call<{ hosts: { host_id: string; state: string }[] }>('host.list');
      const state = hosts.find((row) => row.host_id === other.hostId)?.state;
      return state === 'up' ? true : `state ${state}`;
    });
  }

  /** A message's status, as `ax admin status ID` tells it. */
  status(id: string): Promise<Json> {
    return this.ok(['admin', 'status', id]);
  }

  /** Waits until a message's status, read on the control socket, is as wanted; gives it. */
  async untilStatus(id: string, wanted: Json, limitMs = LIMIT_MS): Promise<Json> {
    let status: Json = {};
    await until(
      `${id} at ${this.name} to be ${JSON.stringify(wanted)}`,
      async () => {
        try {
          status = await this.call('admin.message_status', { id });
        } catch (error) {
          if (error instanceof AxError && error.code === 'message_not_found') return 'not there yet';
          throw error;
        }
        return Object.entries(wanted).every(([key, value]) => status[key] === value) ? true : JSON.stringify(status);
      },
      limitMs,
    );
    return status;
  }

  /** A stand-in Claude Code session of this host in `workspace`, registered, and known to the daemon when one runs. */
  async session(workspace: string, options: Partial<StandInOptions> = {}): Promise<StandIn> {
    const session = await startStandIn(
      { configDir: join(this.home, '.claude'), socketDir: join(this.home, 's'), cwd: workspace, ...options },
      this.env,
    );
    this.#bed.sessions.push(session);
    if (this.pid !== 0) await this.untilLive(session);
    return session;
  }

  /** The stand-in for this host's shared Codex daemon; `untilLive` knows its threads by id. */
  async codex(options: Partial<StandInCodexOptions> = {}): Promise<StandInCodex> {
    const daemon = await startStandInCodex(
      { home: join(this.home, '.codex'), socketRoot: join(this.#bed.folder, 'r'), ...options },
      this.env,
    );
    this.#bed.sessions.push(daemon);
    return daemon;
  }

  async untilLive(session: { readonly sessionId: string }): Promise<void> {
    await until(`session ${session.sessionId} at ${this.name}`, async () => {
      const { hosts } = await this.call<{ hosts: { sessions: { session_id: string }[] }[] }>('agent.sessions', { host: 'Localhost' });
      return hosts[0]?.sessions.some((row) => row.session_id === session.sessionId) === true ? true : JSON.stringify(hosts);
    });
  }
}

/** What the shell of a stand-in session exports, as the control socket takes it. */
export function sessionOf(session: StandIn): SessionEnvironment {
  return {
    harness: 'claude',
    session_id: session.sessionId,
    pid: session.pid,
    socket: session.socket,
    config_dir: session.options.configDir,
  };
}

/** The same as variables, for a CLI that a test runs as that session. */
export function shellOf(session: StandIn): NodeJS.ProcessEnv {
  return {
    CLAUDECODE: '1',
    CLAUDE_CODE_SESSION_ID: session.sessionId,
    CLAUDE_PID: String(session.pid),
    CLAUDE_CODE_MESSAGING_SOCKET: session.socket,
    CLAUDE_CONFIG_DIR: session.options.configDir,
  };
}

const POLL_MS = 20;

/** Asks again and again until `check` says true; what else it says is the reason in the error after `limitMs`. */
export async function until(what: string, check: () => Promise<string | true>, limitMs = LIMIT_MS): Promise<void> {
  const end = performance.now() + limitMs;
  for (;;) {
    const found = await check();
    if (found === true) return;
    if (performance.now() > end) throw new Error(`waited ${limitMs} ms for ${what}; last: ${found}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Numbers that look random and are the same for the same seed. */
export function seeded(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}
