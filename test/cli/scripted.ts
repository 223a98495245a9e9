/**
 * The real CLI, as its own process, against a control socket whose answers a test writes.
 *
 * Owns the temporary state folder, the server (the daemon's own serveControl over a real socket) and the record of what was asked.
 */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { systemClock } from '../../daemon/clock/system.ts';
import { serveControl } from '../../daemon/control/server.ts';
import type { ControlCall } from '../../daemon/control/server.ts';
import { silentLog } from '../../daemon/log.ts';

/** As TMPDIR it makes every ax that runs from here one that agents may replace, wherever the sources lie. */
export const SOURCES = join(import.meta.dirname, '..', '..');
export const MAIN = join(SOURCES, 'cli', 'main.ts');

export interface Asked {
  readonly method: string;
  readonly params: Record<string, unknown>;
  readonly actor: Parameters<ControlCall>[2];
}

export interface Outcome {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

// A test reads fields of many shapes out of it; each read is an assertion.
// oxlint-disable-next-line typescript/no-explicit-any
export type Json = Record<string, any>;

export interface RunOptions {
  readonly input?: string | Uint8Array;
  readonly env?: Record<string, string>;
  readonly cwd?: string;
  /** Instead of cli/main.ts. */
  readonly script?: string;
}

export type Answers = Record<string, (params: Record<string, unknown>, nth: number) => object | Promise<object>>;

export class Scripted {
  readonly folder: string;
  readonly stateDir: string;
  readonly workspace: string;
  readonly asked: Asked[] = [];
  answers: Answers = {};
  /** Run before the folder is removed. */
  readonly ends: (() => Promise<unknown>)[] = [];
  readonly #children = new Set<ChildProcess>();

  constructor(folder: string) {
    this.folder = folder;
    this.stateDir = join(folder, 'state');
    this.workspace = join(folder, 'work');
    mkdirSync(this.stateDir, { mode: 0o700 });
    mkdirSync(this.workspace);
  }

  readonly call: ControlCall = async (method, params, actor) => {
    const nth = this.asked.filter((entry) => entry.method === method).length;
    this.asked.push({ method, params, actor });
    const answer = this.answers[method];
    if (answer === undefined) throw new Error(`the test has no answer for ${method}`);
    return { ...(await answer(params, nth)) };
  };

  /** The one request of this method; forgets all requests. */
  take(method: string): Asked {
    const found = this.asked.splice(0).filter((entry) => entry.method === method);
    if (found.length !== 1) throw new Error(`${found.length} requests of ${method}`);
    return found[0]!;
  }

  start(args: readonly string[], options: RunOptions = {}): ChildProcess {
    const env = {
      PATH: process.env['PATH'] ?? '',
      HOME: this.folder,
      AX_STATE_DIR: this.stateDir,
      NODE_COMPILE_CACHE: join(this.folder, 'cache'),
      ...options.env,
    };
    const child = spawn(process.execPath, [options.script ?? MAIN, ...args], {
      env,
      cwd: options.cwd ?? this.workspace,
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    this.#children.add(child);
    child.once('exit', () => this.#children.delete(child));
    child.stdin?.on('error', () => child.stdin?.destroy());
    child.stdin?.end(options.input ?? '');
    return child;
  }

  async ax(args: readonly string[], options: RunOptions = {}): Promise<Outcome> {
    return outcomeOf(this.start(args, options));
  }

  /** So that a test that fails between a start and its end does not wait for its command for ever. */
  async endChildren(): Promise<void> {
    for (const child of this.#children) {
      if (child.pid === undefined) continue; // it could not be started
      const gone = once(child, 'exit');
      child.kill('SIGKILL');
      await gone;
    }
  }

  /** Runs with --format json and gives the one object on stdout. */
  async json(args: readonly string[], options: RunOptions = {}): Promise<{ code: number | null; value: Json; stderr: string }> {
    const { code, stdout, stderr } = await this.ax([...args, '--format', 'json'], options);
    return { code, value: JSON.parse(stdout) as Json, stderr };
  }
}

export async function outcomeOf(child: ChildProcess): Promise<Outcome> {
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout?.on('data', (chunk: Buffer) => out.push(chunk));
  child.stderr?.on('data', (chunk: Buffer) => err.push(chunk));
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  return { code, stdout: Buffer.concat(out).toString('utf8'), stderr: Buffer.concat(err).toString('utf8') };
}

/** What a command said on stderr, without the line that waiting for a daemon on a busy machine adds. */
export const told = ({ stderr }: { readonly stderr: string }): string => stderr.replaceAll(/^ax: waiting for the daemon .*\n/gm, '');

/** Without `answers` no daemon listens. */
export async function scripted(t: TestContext, answers?: Answers): Promise<Scripted> {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ax-cli-')));
  const rig = new Scripted(folder);
  t.after(async () => {
    await rig.endChildren();
    for (const end of rig.ends) await end();
    rmSync(folder, { recursive: true });
  });
  if (answers === undefined) return rig;
  rig.answers = answers;
  const server = await serveControl({ path: join(rig.stateDir, 'control.sock'), call: rig.call, log: silentLog, clock: systemClock });
  rig.ends.push(() => server.close());
  return rig;
}

export const ID = '01kb7t3v9m2q5r8w4x6y0z1a2c';
export const OTHER_ID = '01kb7t3v9m2q5r8w4x6y0z1a2d';
export const HOST_ID = '12D3KooWLw7rWoEy1NrX6DsXbFQoTnpCBfRwvtjVNqUpDRaFWRZQ';
/** 2026-11-29T12:00:00.000Z */
export const AT = Date.UTC(2026, 10, 29, 12);
export const AT_TEXT = '2026-11-29T12:00:00.000Z';

export const CLAUDE_SHELL = {
  CLAUDECODE: '1',
  CLAUDE_CODE_SESSION_ID: '0b6c1a52-6f0e-4d0c-9f6e-1f2d3c4b5a69',
  CLAUDE_PID: '4242',
  CLAUDE_CODE_MESSAGING_SOCKET: '/tmp/cc-socks/4242.sock',
};
