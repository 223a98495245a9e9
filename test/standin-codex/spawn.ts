/**
 * Starts stand-in Codex daemons and speaks to them: for the contract suite and the end-to-end tests.
 *
 * Owns the words that tests use about a daemon and its threads; the process and the reading of its events are standin/driven.ts's.
 */
import { fileURLToPath } from 'node:url';
import { Driven } from '../standin/driven.ts';
import type { Fault, StandInCodexCommand, StandInCodexEvent, StandInCodexOptions, StandInCodexState, ThreadOptions } from './options.ts';

const PROGRAM = fileURLToPath(new URL('./daemon.ts', import.meta.url));

/** The requests that ax needs and may make; the genuine daemon has many more. */
export const ALLOWED: ReadonlySet<string> = new Set([
  'initialize',
  'thread/loaded/list',
  'thread/read',
  'thread/queue/list',
  'thread/queue/add',
]);
/** For `fault`: until it is mended. */
export const ALWAYS = 1_000_000_000;

type Queued = Extract<StandInCodexEvent, { event: 'queued' }>;

export class StandInCodex extends Driven<StandInCodexEvent, StandInCodexCommand> {
  readonly options: StandInCodexOptions;

  constructor(options: StandInCodexOptions, env: NodeJS.ProcessEnv | undefined) {
    super(PROGRAM, options, env);
    this.options = options;
  }

  /** The public path of its socket. */
  get socket(): string {
    return this.ready.socket;
  }

  /** Where that path leads. */
  get target(): string {
    return this.ready.target;
  }

  /** Gives a command and resolves with the state after it. */
  async send(command: StandInCodexCommand): Promise<StandInCodexState> {
    return (await this.command(command)).state;
  }

  /** Makes a thread and resolves with its id. */
  async thread(options: ThreadOptions): Promise<string> {
    return (await this.command({ cmd: 'open', options })).thread ?? '';
  }

  async fault(method: string, fault: Fault, times = 1): Promise<void> {
    await this.send({ cmd: 'fault', method, fault, times });
  }

  /** What is pending in a thread's queue now. */
  async pending(thread: string): Promise<readonly string[]> {
    const { threads } = await this.send({ cmd: 'state' });
    return threads.find((one) => one.id === thread)?.queue.map((item) => item.clientId) ?? [];
  }

  /** Every item that a client put into the thread's queue. */
  async queued(thread: string): Promise<readonly Queued[]> {
    await this.send({ cmd: 'state' }); // its answer comes after every event before it
    return this.all('queued').filter((item) => item.thread === thread);
  }

  /** What the client did that it may never do: methods that touch a turn, and any other that it has no use for. */
  get trespasses(): readonly string[] {
    const foreign = this.all('request').filter((request) => !ALLOWED.has(request.method));
    return [...this.all('STEERED'), ...foreign].map((one) => one.method);
  }
}

/** Starts a stand-in daemon and resolves when it listens. `env` replaces this process's environment. */
export async function startStandInCodex(options: StandInCodexOptions, env?: NodeJS.ProcessEnv): Promise<StandInCodex> {
  const daemon = new StandInCodex(options, env);
  try {
    await daemon.next('ready');
    return daemon;
  } catch (error) {
    await daemon.kill();
    throw error;
  }
}
