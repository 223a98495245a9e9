/**
 * A terminal for tests: a program on a pseudo-terminal, and the screen that a person would see.
 *
 * Owns the process and its end. The screen is a real terminal emulator's, so that what is redrawn, erased or scrolled is what a person
 * would see. Knows no harness.
 * Invariant: the process and its group do not outlive this one, however it ends.
 */
import { spawn, type IPty } from '@lydell/node-pty';
import xterm from '@xterm/headless';
import { killGroup } from '../e2e/processes.ts';

export interface TerminalOptions {
  /** The whole environment; TERM is added. */
  readonly env: NodeJS.ProcessEnv;
  readonly cwd: string;
  /** 120 x 40 when left out. */
  readonly cols?: number;
  readonly rows?: number;
}

/** What keys send. */
export const KEYS = {
  enter: '\r',
  escape: '\x1b',
  tab: '\t',
  up: '\x1b[A',
  down: '\x1b[B',
  left: '\x1b[D',
  right: '\x1b[C',
  backspace: '\x7f',
  ctrlC: '\x03',
  ctrlD: '\x04',
} as const;

export interface Ended {
  readonly status: number;
  readonly signal: number | undefined;
}

const LIMIT_MS = 30_000;
const POLL_MS = 20;
const running = new Set<number>();
process.on('exit', () => {
  for (const pid of running) killGroup(pid);
});

export class Terminal {
  /** Resolves when the process has ended and the screen shows all it wrote. */
  readonly ended: Promise<Ended>;
  readonly #pty: IPty;
  readonly #screen: InstanceType<typeof xterm.Terminal>;
  #hasEnded = false;
  /** The process has ended, and the screen shows the last of what it wrote. */
  #isDrawn = false;
  #written = 0;

  /** Starts `file` on a new terminal. */
  constructor(file: string, args: readonly string[], options: TerminalOptions) {
    const { cols = 120, rows = 40, cwd } = options;
    this.#screen = new xterm.Terminal({ cols, rows, scrollback: 5000, allowProposedApi: true });
    const env = { ...options.env, TERM: 'xterm-256color' };
    this.#pty = spawn(file, [...args], { name: 'xterm-256color', cols, rows, cwd, env });
    running.add(this.#pty.pid);
    this.#pty.onData((data) => {
      this.#written += data.length;
      this.#screen.write(data);
    });
    // The emulator answers what the program asks of its terminal.
    this.#screen.onData((data) => {
      if (!this.#hasEnded) this.#pty.write(data);
    });
    this.ended = new Promise((resolve) => {
      this.#pty.onExit(({ exitCode, signal }) => {
        this.#hasEnded = true;
        running.delete(this.#pty.pid);
        // The emulator draws a moment after it was given something.
        this.#screen.write('', () => {
          this.#isDrawn = true;
          resolve({ status: exitCode, signal: signal === 0 ? undefined : signal });
        });
      });
    });
  }

  get pid(): number {
    return this.#pty.pid;
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Bytes the program has written so far: tells whether it drew anything since. */
  get written(): number {
    return this.#written;
  }

  /** Sends characters as typed; keys are in KEYS. */
  type(text: string): void {
    this.#pty.write(text);
  }

  /** The screen as text: rows without trailing blanks, joined by line breaks. */
  screen(): string {
    const { active } = this.#screen.buffer;
    const lines = Array.from({ length: this.#screen.rows }, (_, row) => active.getLine(active.baseY + row)?.translateToString(true) ?? '');
    return lines.join('\n').trimEnd();
  }

  /** All lines the terminal still holds, scrolled ones too. */
  history(): string {
    const { active } = this.#screen.buffer;
    return Array.from({ length: active.length }, (_, row) => active.getLine(row)?.translateToString(true) ?? '')
      .join('\n')
      .trimEnd();
  }

  /** Waits until the screen shows `wanted`; gives the screen. Rejects with the screen after `limitMs`, or when the process ends first. */
  async until(wanted: RegExp | string, limitMs = LIMIT_MS): Promise<string> {
    return this.untilScreen(
      (screen) => (typeof wanted === 'string' ? screen.includes(wanted) : wanted.test(screen)),
      String(wanted),
      limitMs,
    );
  }

  /** Waits until `check` is true of the screen. */
  async untilScreen(check: (screen: string) => boolean, what: string, limitMs = LIMIT_MS): Promise<string> {
    const end = performance.now() + limitMs;
    for (;;) {
      const wasOver = this.#isDrawn;
      const screen = this.screen();
      if (check(screen)) return screen;
      if (wasOver) throw new Error(`the program ended before the screen showed ${what}; it shows:\n${this.history().slice(-4000)}`);
      if (performance.now() > end) throw new Error(`waited ${limitMs} ms for ${what}; the screen shows:\n${screen}`);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  /** Is `check` true of the screen within `limitMs`? */
  async shows(check: (screen: string) => boolean, limitMs: number): Promise<boolean> {
    const end = performance.now() + limitMs;
    while (!check(this.screen())) {
      if (performance.now() > end || this.#hasEnded) return check(this.screen());
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    return true;
  }

  /** Sends a signal to the process itself. */
  signal(signal: NodeJS.Signals): void {
    if (!this.#hasEnded) process.kill(this.#pty.pid, signal);
  }

  /** `kill -9` of the process and its group; resolves when it has ended. */
  async kill(): Promise<void> {
    if (!this.#hasEnded) killGroup(this.#pty.pid);
    await this.ended;
  }

  /** SIGTERM, and SIGKILL when it has not ended within `limitMs`. */
  async end(limitMs = 5000): Promise<Ended> {
    this.signal('SIGTERM');
    const timer = setTimeout(() => void this.kill(), limitMs);
    const ended = await this.ended;
    clearTimeout(timer);
    return ended;
  }
}
