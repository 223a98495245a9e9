/**
 * Starts stand-in sessions and speaks to them: for the contract suite, the end-to-end tests and the demo.
 *
 * Owns the words that tests use about a session; the process and the reading of its events are driven.ts's.
 */
import { fileURLToPath } from 'node:url';
import { Driven } from './driven.ts';
import type { StandInCommand, StandInEvent, StandInOptions, StandInState } from './options.ts';

const PROGRAM = fileURLToPath(new URL('./session.ts', import.meta.url));

export class StandIn extends Driven<StandInEvent, StandInCommand> {
  readonly options: StandInOptions;

  constructor(options: StandInOptions, env: NodeJS.ProcessEnv | undefined) {
    super(PROGRAM, options, env);
    this.options = options;
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

  /** Gives a command and resolves with the state after it; not for `crash` and `exit`, which answer with the end. */
  async send(command: StandInCommand): Promise<StandInState> {
    return (await this.command(command)).state;
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
