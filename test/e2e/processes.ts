/**
 * Child processes of end-to-end tests: started in groups of their own, run to their end, and killed for certain.
 *
 * Owns the list of groups that may still run; however this process ends, they end with it. It knows no host and no daemon.
 */
import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';

/** An object of the CLI's JSON. */
export type Json = Record<string, any>; // eslint-disable-line typescript/no-explicit-any -- what the CLI prints is read field by field

export interface Outcome {
  readonly status: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly bytes: Buffer;
  readonly stderr: string;
  /** From the start of the process to its end. */
  readonly ms: number;
  /** The one JSON object on stdout; throws when stdout holds anything else. */
  readonly json: Json;
}

export interface RunOptions {
  readonly stdin?: string | Uint8Array;
  /** On top of the host's own. */
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
  /** Instead of the project's Node and the bundle. */
  readonly program?: readonly string[];
  /** Called with the process as soon as it runs. */
  readonly onStart?: (child: ChildProcess) => void;
}

/** Every process group that may still run; killed when this process ends, however it ends. */
const groups = new Set<number>();
process.on('exit', () => {
  for (const pid of groups) killGroup(pid);
});
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(signal, () => process.exit(1));

/** `kill -9` of a process and its group; one that has gone is no error. */
export function killGroup(pid: number): void {
  for (const target of [-pid, pid]) {
    try {
      process.kill(target, 'SIGKILL');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }
}

/** Starts a process in a group of its own that ends with this test at the latest. */
export function launch(
  command: string,
  args: readonly string[],
  options: { env: NodeJS.ProcessEnv; cwd: string; stdin?: 'pipe' | 'ignore' },
): ChildProcess {
  const child = spawn(command, args, {
    env: options.env,
    cwd: options.cwd,
    stdio: [options.stdin ?? 'pipe', 'pipe', 'pipe'],
    detached: true,
  });
  const { pid } = child;
  if (pid !== undefined) {
    groups.add(pid);
    child.once('exit', () => groups.delete(pid));
  }
  return child;
}

/** Runs a process to its end. */
export async function runToEnd(
  command: string,
  args: readonly string[],
  options: RunOptions & { env: NodeJS.ProcessEnv; cwd: string },
): Promise<Outcome> {
  const began = performance.now();
  const child = launch(command, args, { env: options.env, cwd: options.cwd });
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout?.on('data', (chunk: Buffer) => out.push(chunk));
  child.stderr?.on('data', (chunk: Buffer) => err.push(chunk));
  child.stdin?.on('error', () => child.stdin?.destroy()); // it ended before it read its input: its status tells
  child.stdin?.end(options.stdin ?? '');
  options.onStart?.(child);
  const ended = await new Promise<{ status: number | null; signal: NodeJS.Signals | null }>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (status, signal) => resolve({ status, signal }));
  });
  const bytes = Buffer.concat(out);
  const stdout = bytes.toString('utf8');
  const stderr = Buffer.concat(err).toString('utf8');
  return {
    ...ended,
    stdout,
    bytes,
    stderr,
    ms: performance.now() - began,
    get json() {
      return readJson(stdout, stderr);
    },
  };
}

/** A command line for an error, long words cut. */
export function told(args: readonly string[]): string {
  return `ax ${args.map((word) => (word.length > 200 ? `${word.slice(0, 200)}...` : word)).join(' ')}`;
}

function readJson(stdout: string, stderr: string): Json {
  assert.match(
    stdout,
    /^\{.*\}\n$/,
    `stdout is one JSON object on one line; it was ${JSON.stringify(stdout.slice(0, 2000))}, stderr ${stderr}`,
  );
  return JSON.parse(stdout) as Json;
}

/** True while a process with this id runs (a zombie does not). */
export function isAlive(pid: number): boolean {
  if (process.platform === 'linux' && existsSync('/proc/self/stat')) {
    try {
      return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
    } catch {
      return false; // no such process
    }
  }
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
