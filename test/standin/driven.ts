/**
 * A stand-in process as a test drives it: options as its argument, commands on its stdin, events from its stdout, one JSON object a line.
 *
 * Owns the child process and the reading of its events. A stand-in whose starter dies ends by itself, because its stdin ends; `stop` and
 * `kill` end it for certain. What the commands and events are is the stand-in's own.
 */
import { spawn, type ChildProcess } from 'node:child_process';

const WAIT_LIMIT_MS = 15_000;

interface Waiter {
  readonly check: () => boolean;
  readonly fail: (why: string) => void;
}

/** Every stand-in says `ready`, and answers each command with `ok` or `error` and the command's number. */
interface AnyEvent {
  readonly event: string;
  readonly id?: number;
  readonly message?: string;
}
type EventOf<E extends AnyEvent, K extends E['event']> = Extract<E, { readonly event: K }>;

export class Driven<E extends AnyEvent, C extends object> {
  /** Every event so far. */
  readonly events: E[] = [];
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;
  readonly #waiters = new Set<Waiter>();
  #stderr = '';
  #nextId = 1;
  #hasEnded = false;

  /** `env` replaces this process's environment. */
  constructor(program: string, options: object, env: NodeJS.ProcessEnv | undefined) {
    this.#child = spawn(process.execPath, [program, JSON.stringify(options)], {
      stdio: ['pipe', 'pipe', 'pipe'],
      ...(env === undefined ? {} : { env }),
    });
    let text = '';
    this.#child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      const lines = (text + chunk).split('\n');
      text = lines.pop() ?? '';
      for (const line of lines) this.events.push(JSON.parse(line) as E);
      for (const waiter of this.#waiters) waiter.check();
    });
    this.#child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
      this.#stderr += chunk;
    });
    this.#child.stdin?.on('error', (error) => {
      this.#stderr += `[stdin: ${error.message}]`; // it ended before it read a command
    });
    this.#ended = new Promise((resolve) => {
      this.#child.once('close', () => {
        this.#hasEnded = true;
        for (const waiter of this.#waiters) if (!waiter.check()) waiter.fail('the stand-in has ended');
        resolve();
      });
    });
  }

  get ready(): EventOf<E, 'ready'> {
    const [event] = this.all('ready');
    if (event === undefined) throw new Error('the stand-in is not ready');
    return event;
  }

  /** All events of one kind so far. */
  all<K extends E['event']>(kind: K): EventOf<E, K>[] {
    return this.events.filter((one): one is EventOf<E, K> => one.event === kind);
  }

  /** Resolves with the first event, past or future (from index `since` on), that `test` accepts; rejects when it ends or is late. */
  until(test: (event: E) => boolean, since = 0): Promise<E> {
    return new Promise((resolve, reject) => {
      const end = (act: () => void): true => {
        clearTimeout(timer);
        this.#waiters.delete(waiter);
        act();
        return true;
      };
      const waiter: Waiter = {
        check: () => {
          const found = this.events.slice(since).find(test);
          return found === undefined ? false : end(() => resolve(found));
        },
        fail: (why) => end(() => reject(new Error(`${why}; last events ${JSON.stringify(this.events.slice(-5))} ${this.#stderr}`))),
      };
      const timer = setTimeout(() => waiter.fail(`no such event within ${WAIT_LIMIT_MS} ms`), WAIT_LIMIT_MS);
      this.#waiters.add(waiter);
      if (!waiter.check() && this.#hasEnded) waiter.fail('the stand-in has ended');
    });
  }

  /** The next event of one kind, past or future, from index `since` on. */
  async next<K extends E['event']>(kind: K, since = 0): Promise<EventOf<E, K>> {
    return (await this.until((event) => event.event === kind, since)) as EventOf<E, K>;
  }

  /** Stops or continues the process as a debugger would: it takes connections but does nothing. */
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#child.kill(signal);
  }

  /** A proper exit: its files go with it. */
  async stop(): Promise<void> {
    if (!this.#hasEnded) {
      this.#child.kill('SIGCONT');
      this.#child.kill('SIGTERM');
    }
    await this.#ended;
  }

  /** `kill -9`: its files stay. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#ended;
  }

  /** Gives a command and resolves with the answer to it; not for commands that end the process. */
  protected async command(command: C): Promise<EventOf<E, 'ok'>> {
    const id = this.#nextId++;
    this.#child.stdin?.write(`${JSON.stringify({ ...command, id })}\n`);
    const answer = await this.until((event) => (event.event === 'ok' || event.event === 'error') && event.id === id);
    if (answer.event === 'ok') return answer as EventOf<E, 'ok'>;
    throw new Error(answer.message ?? answer.event);
  }
}
