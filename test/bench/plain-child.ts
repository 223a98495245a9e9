/**
 * Runs a program of this folder as plain JavaScript, in a process of its own whose lines can be waited for.
 *
 * As a bundle, like the daemon, or with its packages as npm installed them, which costs memory for each of their many modules. Types are
 * stripped beforehand, for Node's own stripping would count as the program's memory. Programs read their options from the last argument
 * (JSON) and say what they have to say as lines of JSON. Owns their end, with this process at the latest.
 */
import { execFileSync, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { buildSync, type BuildOptions } from 'esbuild';
import { ROOT } from '../e2e/hosts.ts';
import { killGroup, launch } from '../e2e/processes.ts';
import type { Json } from '../e2e/processes.ts';

const LINE_LIMIT_MS = 60_000;
/** As the Makefile bundles the daemon. */
const BANNER = 'import { createRequire as __requireOf } from "node:module"; const require = __requireOf(import.meta.url);';

export class PlainChild {
  readonly pid: number;
  readonly #folder: string;
  readonly #child: ChildProcess;
  readonly #lines: Interface;
  readonly #said: Json[] = [];
  #wake: () => void = () => undefined;
  #hasEnded = false;
  #err = '';

  /** Starts `program`, a file of this folder. */
  constructor(program: string, options: Json, form: 'bundle' | 'packages' = 'bundle') {
    this.#folder = mkdtempSync(join(tmpdir(), 'axb-'));
    const outfile = join(this.#folder, 'program.mjs');
    const entry = join(import.meta.dirname, program);
    const how: BuildOptions = { entryPoints: [entry], outfile, platform: 'node', format: 'esm', logLevel: 'error' };
    if (form === 'bundle') {
      const { outputFiles } = buildSync({ ...how, bundle: true, banner: { js: BANNER }, write: false });
      execFileSync(process.execPath, [join(ROOT, 'build', 'one-byte.ts'), outfile], { input: outputFiles[0]?.text ?? '' });
    } else buildSync(how);
    // A file outside the project finds no packages; a text on the command line finds those of the folder it runs in.
    const started = form === 'bundle' ? [outfile] : ['--input-type=module', '-e', readFileSync(outfile, 'utf8')];
    const env = { PATH: process.env['PATH'] ?? '', HOME: '/nonexistent', LANG: 'C.UTF-8' };
    this.#child = launch(process.execPath, [...started, JSON.stringify(options)], { env, cwd: ROOT });
    this.pid = this.#child.pid ?? 0;
    this.#child.stderr?.setEncoding('utf8').on('data', (chunk: string) => (this.#err += chunk));
    this.#child.once('exit', () => {
      this.#hasEnded = true;
      this.#wake();
    });
    this.#lines = createInterface({ input: this.#child.stdout! }).on('line', (line) => {
      this.#said.push(JSON.parse(line) as Json);
      this.#wake();
    });
  }

  /** Its next line; rejects when it ends first or says nothing for a minute. */
  async line(): Promise<Json> {
    const limit = performance.now() + LINE_LIMIT_MS;
    for (;;) {
      const said = this.#said.shift();
      if (said !== undefined) return said;
      if (this.#hasEnded || performance.now() > limit)
        throw new Error(`a child of the benchmark gave no answer: ${this.#err.slice(-2000)}`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, LINE_LIMIT_MS);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** Tells it something; it answers with a line. */
  ask(words: Json): Promise<Json> {
    this.#child.stdin?.write(`${JSON.stringify(words)}\n`);
    return this.line();
  }

  end(): void {
    this.#lines.close();
    killGroup(this.pid);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
