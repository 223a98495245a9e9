/**
 * A conversation with a person on a terminal: choices, lines, a text of several lines, a wait that can be left.
 *
 * Owns that Esc and Ctrl-C leave at every moment, the waits between two questions among them, and that the terminal is put back. All
 * of it is written to stderr: stdout stays for the answer. Labels and messages are made harmless here; it does not know what is asked.
 * Invariant: leaving is always the same AxError `invalid_state`, and nothing is decided before the person has answered.
 */
import { createInterface } from 'node:readline';
import type * as Clack from '@clack/prompts';
import { AxError } from '../protocol/errors.ts';
import { visible } from './output.ts';
import { every } from './wait.ts';

export interface Choice<T> {
  readonly value: T;
  readonly label: string;
  /** Beside the choice under the cursor. */
  readonly hint?: string;
}

type Prompts = typeof Clack;

/** Choices shown at once; the list scrolls. */
const SHOWN = 12;
const FRAME_MS = 100;
const BAR = '|  ';

/** True when a person can be asked: keys come from a terminal, and stderr goes to one. */
export function canAsk(): boolean {
  return process.stdin.isTTY && process.stderr.isTTY;
}

/** What a person who leaves is told, and everything that ends like it. */
export function nothingSent(why = 'you left'): AxError {
  return new AxError('invalid_state', `${why}: nothing was sent`);
}

export class Dialogue {
  readonly #prompts: Prompts;
  readonly #leave = new AbortController();
  readonly #onInterrupt = (): void => {
    if (!this.#isAside) this.#leave.abort();
  };
  #isAside = false;

  private constructor(prompts: Prompts) {
    this.#prompts = prompts;
    process.on('SIGINT', this.#onInterrupt);
  }

  /** Until `close`, an interrupt leaves the dialogue instead of ending the process. */
  static async open(): Promise<Dialogue> {
    return new Dialogue(await import('@clack/prompts'));
  }

  close(): void {
    process.off('SIGINT', this.#onInterrupt);
    process.stdin.pause();
  }

  /** Aborted when the person leaves during a wait. */
  get signal(): AbortSignal {
    return this.#leave.signal;
  }

  /** One line beneath what was asked last. */
  line(text: string): void {
    this.#prompts.log.message(visible(text), { output: process.stderr, spacing: 0 });
  }

  async choose<T extends string | number>(message: string, choices: readonly Choice<T>[]): Promise<Exclude<T, symbol>> {
    const options = choices.map(({ value, label, hint = '' }) => ({ value, label: visible(label), hint: visible(hint) }));
    const asked = { message: visible(message), options: options as unknown as Clack.SelectOptions<T>['options'], maxItems: SHOWN };
    return this.#answered(await this.#prompts.select<T>({ ...asked, ...this.#ends() }));
  }

  /** One line, perhaps empty; `check` gives what is wrong with it. */
  async text(message: string, check: (value: string) => string | undefined): Promise<string> {
    const { text } = this.#prompts;
    return this.#answered((await text({ message: visible(message), validate: (value) => check(value ?? ''), ...this.#ends() })) ?? '');
  }

  async confirm(message: string): Promise<boolean> {
    const { confirm } = this.#prompts;
    return this.#answered(await confirm({ message: visible(message), ...this.#ends() }));
  }

  /** Lines until Ctrl-D on an empty one. */
  async lines(message: string): Promise<string> {
    this.#requireHere();
    // Listens before the words are there: keys that came between the two would be the terminal's own, an interrupt among them lost.
    const typed = createInterface({ input: process.stdin, output: process.stderr, terminal: true, prompt: BAR, historySize: 0 });
    const lines: string[] = [];
    const onKey = (_text: unknown, key: { readonly name?: string }): void => {
      if (key.name !== 'escape') return;
      this.#leave.abort();
      typed.close();
    };
    process.stdin.on('keypress', onKey);
    try {
      await new Promise<void>((resolve) => {
        typed.on('line', (line) => {
          lines.push(line);
          typed.prompt();
        });
        typed.on('SIGINT', () => {
          this.#leave.abort();
          typed.close();
        });
        typed.on('close', resolve);
        this.#prompts.log.step(visible(message), { output: process.stderr });
        typed.prompt();
      });
    } finally {
      process.stdin.off('keypress', onKey);
      process.stderr.write('\n');
    }
    this.#requireHere();
    return lines.join('\n');
  }

  /** Awaits `work` and says all the while for what; leaving ends the wait, and aborts `signal`. */
  async wait<T>(what: string, work: Promise<T>): Promise<T> {
    const { stdin, stderr } = process;
    const { promise: left, reject } = Promise.withResolvers<never>();
    const onLeave = (): void => reject(nothingSent());
    const onKeys = (keys: Buffer): void => {
      // Alone, an escape is the key; with more behind it, an arrow or another key.
      if (keys.includes(0x03) || (keys.length === 1 && keys[0] === 0x1b)) this.#leave.abort();
    };
    if (this.signal.aborted) onLeave();
    this.signal.addEventListener('abort', onLeave, { once: true });
    stdin.setRawMode(true);
    stdin.on('data', onKeys);
    stdin.resume();
    const frames = this.#prompts.unicode ? '◒◐◓◑' : '-\\|/';
    let turn = 0;
    const draw = (): void => {
      const text = `${frames[turn++ % frames.length]}  ${visible(what)}`;
      stderr.write(`\r\x1b[K${text.slice(0, Math.max(20, stderr.columns - 1))}`);
    };
    draw();
    const stop = every(FRAME_MS, draw);
    try {
      return await Promise.race([work, left]);
    } finally {
      stop();
      stderr.write('\r\x1b[K');
      stdin.off('data', onKeys);
      stdin.setRawMode(false);
      stdin.pause();
      this.signal.removeEventListener('abort', onLeave);
    }
  }

  /** Gives the terminal to another program: an interrupt is that program's while it runs. */
  async aside<T>(work: () => Promise<T>): Promise<T> {
    this.#requireHere();
    this.#isAside = true;
    try {
      return await work();
    } finally {
      this.#isAside = false;
    }
  }

  #ends(): { readonly output: NodeJS.WriteStream; readonly signal: AbortSignal } {
    this.#requireHere();
    return { output: process.stderr, signal: this.signal };
  }

  #requireHere(): void {
    if (this.signal.aborted) throw nothingSent();
  }

  #answered<T>(answer: T): Exclude<T, symbol> {
    if (typeof answer === 'symbol') throw nothingSent();
    return answer as Exclude<T, symbol>;
  }
}
