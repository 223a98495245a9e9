/**
 * The demo's printed page: a title, a timeline that grows while things happen, and a table at the end.
 *
 * Owns columns, wrapping and order: entries come from several processes, so each waits a moment for older ones to arrive before it is
 * printed. Plain text; on a terminal quoted text is dimmed, and nothing depends on that.
 */
const WIDTH = 110;
/** How long an entry waits for older ones of another process, ms. */
const SETTLE_MS = 200;

export interface Entry {
  /** Wall time, ms. */
  readonly at: number;
  readonly host: string;
  readonly state: string;
  readonly text: string;
  /** Lines shown below, as they are. */
  readonly quoted?: readonly string[];
}

const isDim = process.stdout.isTTY && (process.env['NO_COLOR'] ?? '') === '' && process.env['TERM'] !== 'dumb';

function dim(text: string): string {
  return isDim ? `\x1b[2m${text}\x1b[0m` : text;
}

export function say(text = ''): void {
  process.stdout.write(`${text}\n`);
}

/** Words in lines of at most `width`. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line);
      line = '';
    }
    line += line === '' ? word : ` ${word}`;
  }
  return [...lines, line];
}

export function paragraph(text: string): void {
  for (const line of wrap(text, WIDTH)) say(line);
}

export class Timeline {
  readonly #began: number;
  readonly #hostWidth: number;
  readonly #stateWidth = 16;
  #pending: Entry[] = [];
  readonly #timer: NodeJS.Timeout;

  constructor(began: number, hosts: readonly string[]) {
    this.#began = began;
    this.#hostWidth = Math.max(...hosts.map((host) => host.length)) + 2;
    this.#timer = setInterval(() => this.#print(Date.now() - SETTLE_MS), 50);
  }

  header(): void {
    say(`${'TIME'.padStart(8)}  ${'HOST'.padEnd(this.#hostWidth)}${'STATE'.padEnd(this.#stateWidth)}WHAT HAPPENED`);
  }

  /** A line of its own over what follows. */
  heading(text: string): void {
    this.add({ at: Date.now(), host: '', state: '', text });
  }

  add(entry: Entry): void {
    this.#pending.push(entry);
  }

  /** Prints what is still held back and ends. */
  end(): void {
    clearInterval(this.#timer);
    this.#print(Number.POSITIVE_INFINITY);
  }

  #print(until: number): void {
    const due = this.#pending.filter((entry) => entry.at <= until).toSorted((a, b) => a.at - b.at);
    this.#pending = this.#pending.filter((entry) => entry.at > until);
    for (const entry of due) this.#one(entry);
  }

  #one(entry: Entry): void {
    if (entry.host === '') {
      say(`\n${entry.text}`);
      return;
    }
    const time = `${(Math.max(0, entry.at - this.#began) / 1000).toFixed(2)} s`.padStart(8);
    const head = `${time}  ${entry.host.padEnd(this.#hostWidth)}${entry.state.padEnd(this.#stateWidth)}`;
    const [first, ...rest] = wrap(entry.text, WIDTH - head.length);
    say(`${head}${first ?? ''}`);
    for (const line of rest) say(`${' '.repeat(head.length)}${line}`);
    for (const line of entry.quoted ?? []) say(`${' '.repeat(12)}${dim(`| ${line}`)}`);
  }
}

/** Rows in aligned columns, the first row the heading. */
export function table(rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)));
  for (const row of rows)
    say(
      `  ${row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('   ')
        .trimEnd()}`,
    );
}
