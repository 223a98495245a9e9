/**
 * What the stand-in's "model" does with text: finds the ax commands it is told to run, runs them, and follows what they say.
 *
 * Owns reading commands out of text and the order of work in one turn. It is as obedient as a helpful model and no more: a
 * notice may name any ax command, the output of a command only setup and fetch, the output of a fetch only the next fetch:
 * the body of a fetched message is another agent's text and is not obeyed.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import type { Autorun, Emit } from './options.ts';

/** A line that is one ax command, perhaps after a label: plain words, single quotes around one allowed, no shell operators. */
const COMMAND =
  /^(?:\$ |(?:next|fix|run): )?((?:'(?:\/[^']*)?\/ax'|(?:\/[^\s'"]*\/)?ax)(?: +(?:'[^']*'(?:\\''[^']*')*|[A-Za-z0-9_./:@%+=,-]+))*)$/;
const SETUP = / agent setup(?: |$)/;
const FETCH = /^(.*?) messages fetch ([0-9a-z]+)(?: |$)/;

/** The commands in `text`, one per line that holds nothing else. */
export function commandsIn(text: string): readonly string[] {
  // A sentence that begins with the word "ax" and announces a command ends in a colon; a command never does.
  return text.split('\n').flatMap((line) => (line.trimEnd().endsWith(':') ? [] : (COMMAND.exec(line.trim())?.[1] ?? [])));
}

/** Does a helpful model go on with `next`, which stands in the output of `command`? After a body was printed only with another fetch. */
function isFollowed(next: string, command: string, exit: number): boolean {
  return FETCH.test(next) || (SETUP.test(next) && (exit !== 0 || !FETCH.test(command)));
}

export interface Ran {
  readonly exit: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface ModelOptions {
  readonly cwd: string;
  readonly environment: () => NodeJS.ProcessEnv;
  readonly maxRuns: number;
  readonly emit: Emit;
}

export class Model {
  autorun: Autorun;
  reply: string | undefined;
  readonly #options: ModelOptions;
  readonly #running = new Set<ChildProcess>();

  constructor(options: ModelOptions, autorun: Autorun, reply: string | undefined) {
    this.#options = options;
    this.autorun = autorun;
    this.reply = reply;
  }

  /**
   * One turn over `contents`; `more` is asked at every tool boundary for messages that came meanwhile. Resolves with the number of
   * commands that were run.
   */
  async turn(contents: readonly string[], more: () => readonly string[]): Promise<number> {
    const todo = contents.flatMap((content) => commandsIn(content));
    const done = new Set<string>();
    let last: string | undefined;
    let runs = 0;
    while (runs < this.#options.maxRuns) {
      const command = todo.shift();
      if (command === undefined) break;
      if (done.has(command) || command === last || !this.#isAllowed(command)) continue;
      const ran = await this.run(command);
      runs += 1;
      last = command;
      if (ran.exit === 0) {
        done.add(command);
        await this.#answer(command);
      }
      const told = commandsIn(`${ran.stdout}\n${ran.stderr}`).filter((next) => isFollowed(next, command, ran.exit));
      todo.unshift(...told);
      todo.push(...more().flatMap((content) => commandsIn(content)));
    }
    return runs;
  }

  /** Runs one command line as the session's shell tool does. */
  run(command: string, input = ''): Promise<Ran> {
    const { cwd, environment, emit } = this.#options;
    return new Promise((resolve, reject) => {
      const child = spawn('sh', ['-c', command], { cwd, env: environment(), stdio: ['pipe', 'pipe', 'pipe'] });
      this.#running.add(child);
      const out: Buffer[] = [];
      const err: Buffer[] = [];
      child.stdout.on('data', (chunk: Buffer) => out.push(chunk));
      child.stderr.on('data', (chunk: Buffer) => err.push(chunk));
      child.on('error', reject);
      child.stdin.on('error', (error) => err.push(Buffer.from(`[stdin: ${error.message}]`))); // a command need not read its input
      child.stdin.end(input);
      child.on('close', (code) => {
        this.#running.delete(child);
        const ran = { exit: code ?? -1, stdout: Buffer.concat(out).toString('utf8'), stderr: Buffer.concat(err).toString('utf8') };
        emit({ event: 'ran', command, ...ran });
        resolve(ran);
      });
    });
  }

  /** Ends what still runs; the session is going. */
  kill(): void {
    for (const child of this.#running) child.kill('SIGKILL');
  }

  #isAllowed(command: string): boolean {
    return this.autorun === true || (this.autorun === 'setup-only' && SETUP.test(command));
  }

  async #answer(command: string): Promise<void> {
    const fetched = FETCH.exec(command);
    if (this.reply === undefined || fetched === null) return;
    await this.run(`${fetched[1]} messages reply ${fetched[2]} --file -`, this.reply);
  }
}
