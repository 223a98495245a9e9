/**
 * Starts stand-in sessions and speaks to them: for the contract suite, the end-to-end tests and the demo.
 *
 * Owns the child process and the reading of its events. A stand-in whose starter dies ends by itself; `stop` and `kill` end it
 * for certain.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { StandInCommand, StandInEvent, StandInOptions, StandInState } from './options.ts';

const PROGRAM = fileURLToPath(new URL('./session.ts', import.meta.url));
const WAIT_LIMIT_MS = 15_000;

type EventOf<K extends StandInEvent['event']> = Extract<StandInEvent, { event: K }>;

interface Waiter {
  readonly check: () => boolean;
  readonly fail: (why: string) => void;
}

export class StandIn {
  readonly options: StandInOptions;
  /** Every event so far. */
  readonly events: StandInEvent[] = [];
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;
  readonly #waiters = new Set<Waiter>();
  #stderr = '';
  #nextId = 1;
  #hasEnded = false;

  constructor(options: StandInOptions, env: NodeJS.ProcessEnv | undefined) {
    this.options = options;
    this.#child = spawn(process.execPath, [PROGRAM, JSON.stringify(options)], {
      stdio: ['pipe', 'pipe', 'pipe'],
      ...(env === undefined ? {} : { env }),
    });
    let text = '';
    this.#child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      const lines = (text + chunk).split('\n');
      text = lines.pop() ?? '';
      for (const line of lines) this.events.push(JSON.parse(line) as StandInEvent);
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

  get ready(): EventOf<'ready'> {
    const event = this.events.find((one) => one.event === 'ready');
    if (event?.event !== 'ready') throw new Error('the stand-in is not ready');
    return event;
  }

  get pid(): number {
    return this.ready.pid;
  }

  get socket(): string {
    return this.ready.socket ?? '';
  }

  /** The path of its session record. */
  get record(): string {
    return this.ready.record;
  }

  get processKey(): string {
    return `${this.ready.pid}:${this.ready.procStart}`;
  }

  /** The present session id; changes with `clear`. */
  get sessionId(): string {
    const cleared = this.all('cleared').at(-1);
    return cleared?.sessionId ?? this.ready.sessionId;
  }

  /** All events of one kind so far. */
  all<K extends StandInEvent['event']>(kind: K): EventOf<K>[] {
    return this.events.filter((one): one is EventOf<K> => one.event === kind);
  }

  /** Gives a command and resolves with the state after it; not for `crash` and `exit`, which answer with the end. */
  async send(command: StandInCommand): Promise<StandInState> {
    const id = this.#write(command);
    const answer = await this.until((event) => (event.event === 'ok' || event.event === 'error') && event.id === id);
    if (answer.event === 'ok') return answer.state;
    throw new Error(answer.event === 'error' ? answer.message : answer.event);
  }

  /** Resolves with the first event, past or future (from index `since` on), that `test` accepts; rejects when it ends or is late. */
  until(test: (event: StandInEvent) => boolean, since = 0): Promise<StandInEvent> {
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
  async next<K extends StandInEvent['event']>(kind: K, since = 0): Promise<EventOf<K>> {
    return (await this.until((event) => event.event === kind, since)) as EventOf<K>;
  }

  /** Stops or continues the process as a debugger would: it takes connections but does nothing. */
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#child.kill(signal);
  }

  /** The user's exit: its files go with it. */
  async stop(): Promise<void> {
    if (!this.#hasEnded) {
      this.#child.kill('SIGCONT');
      this.#child.kill('SIGTERM');
    }
    await this.#ended;
  }

  /** `kill -9`: record, key and socket stay. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#ended;
  }

  #write(command: StandInCommand): number {
    const id = this.#nextId++;
    this.#child.stdin?.write(`${JSON.stringify({ ...command, id })}\n`);
    return id;
  }
}

/** Starts a stand-in session and resolves when it is registered and idle. `env` replaces this process's environment. */
export async function startStandIn(options: StandInOptions, env?: NodeJS.ProcessEnv): Promise<StandIn> {
  const standIn = new StandIn(options, env);
  try {
    await standIn.next('ready');
    return standIn;
  } catch (error) {
    await standIn.kill();
    throw error;
  }
}
