/**
 * Everything the CLI prints: the four formats of an answer, and text made harmless for a terminal.
 *
 * Owns the JSON envelope, times as RFC 3339, quoting of csv and tsv, tables, relative times and colour. It does not know a command.
 * Invariant: `visible` gives no control, bidirectional, zero-width or otherwise invisible character, whatever it is given; all that
 * came from a peer, a daemon or a file passes through it before a person's terminal sees it. JSON escapes the same characters.
 */
import { fstatSync } from 'node:fs';
import { AxError } from '../protocol/errors.ts';
import type { ErrorBody } from '../protocol/errors.ts';
import { SCHEMA_VERSION } from '../protocol/version.ts';
import { writeStdout } from './descriptor.ts';
import { isColourRefused } from './environment.ts';
import type { Format } from './environment.ts';
import { say } from './say.ts';

export type Fields = Record<string, unknown>;

/** What a command answers, before it has a format. */
export interface Answer {
  readonly type: string;
  readonly fields: Fields;
  /** The rows of csv and tsv; left out, the answer's fields are the one row. */
  readonly rows?: { readonly columns: readonly string[]; readonly values: readonly Fields[] };
  /** Lines for people, without the last newline; may be empty. */
  readonly human: string;
}

// Controls, formats (bidirectional, zero-width, tags), line and paragraph separators, lone surrogates, and all that is drawn as nothing.
// Made at need, because to look these classes up takes a twentieth of a command: most texts are plain, and that is seen without them.
let invisible: RegExp | undefined;
const INVISIBLE = String.raw`[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Default_Ignorable_Code_Point}]`;
const PLAIN = /^[\n\t\x20-\x7e]*$/;

function replaceInvisible(text: string, by: (found: string) => string): string {
  return text.replace((invisible ??= new RegExp(INVISIBLE, 'gu')), by);
}

/** Text for a person's terminal on one line: what cannot be seen is written as \x1b or \u{202e}. */
export function visible(text: string): string {
  return PLAIN.test(text) && !/[\n\t]/.test(text) ? text : replaceInvisible(text, escapeOne);
}

/** As `visible`, but newline and tab stay. */
export function visibleLines(text: string): string {
  return PLAIN.test(text) ? text : replaceInvisible(text, (found) => (found === '\n' || found === '\t' ? found : escapeOne(found)));
}

function escapeOne(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return code < 0x100 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
}

/** Bytes as text for `visibleLines`; a byte that is not UTF-8 is written as \xff. */
export function textOf(bytes: Uint8Array): { readonly text: string; readonly isUtf8: boolean } {
  const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  try {
    return { text: strict.decode(bytes), isUtf8: true };
  } catch {
    return { text: decodePieces(bytes, strict), isUtf8: false };
  }
}

function decodePieces(bytes: Uint8Array, strict: InstanceType<typeof TextDecoder>): string {
  let text = '';
  for (let at = 0; at < bytes.length;) {
    const lead = bytes[at]!;
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      text += strict.decode(bytes.subarray(at, at + length));
      at += length;
    } catch {
      text += `\\x${lead.toString(16).padStart(2, '0')}`;
      at += 1;
    }
  }
  return text;
}

const isTime = (key: string): boolean =>
  key === 'at' || key.endsWith('_at') || key === 'since' || key.endsWith('_since') || key === 'quiet_until';

/** The same value with every wall-clock field (ms) as RFC 3339 in UTC. */
export function withTimes(value: unknown, key = ''): unknown {
  if (typeof value === 'number' && isTime(key)) return rfc3339(value);
  if (Array.isArray(value)) return value.map((entry) => withTimes(entry));
  if (typeof value === 'object' && value !== null && !(value instanceof Uint8Array)) {
    return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, withTimes(entry, name)]));
  }
  return value;
}

function rfc3339(ms: number): string | null {
  return Math.abs(ms) <= 8.64e15 ? new Date(ms).toISOString() : null;
}

function json(value: unknown): string {
  const text = JSON.stringify(withTimes(value));
  if (PLAIN.test(text)) return text;
  return replaceInvisible(text, (found) =>
    Array.from({ length: found.length }, (_, i) => `\\u${found.charCodeAt(i).toString(16).padStart(4, '0')}`).join(''),
  );
}

/** One JSON object in the envelope, on one line, without a newline. */
export function envelope(type: string, fields: Fields): string {
  return json({ schema_version: SCHEMA_VERSION, ok: true, type, ...fields });
}

export function errorEnvelope(error: ErrorBody): string {
  return json({ schema_version: SCHEMA_VERSION, ok: false, type: 'error', error });
}

/** The answer in its format, with its last newline; empty when there is nothing to say. */
export function render(format: Format, answer: Answer): string {
  if (format === 'json') return `${envelope(answer.type, answer.fields)}\n`;
  if (format === 'human') return answer.human === '' ? '' : `${answer.human}\n`;
  const rows = answer.rows ?? { columns: Object.keys(answer.fields), values: [answer.fields] };
  return delimited(format, rows.columns, rows.values, isTerminal());
}

function delimited(format: 'csv' | 'tsv', columns: readonly string[], values: readonly Fields[], isTerminal: boolean): string {
  const separator = format === 'csv' ? ',' : '\t';
  const cell = (value: unknown, key: string): string => {
    const text = withoutFormula(cellText(withTimes(value, key)), value);
    // Into a pipe too: what reads it may be an agent's shell. The exact bytes are JSON's and --output's.
    const shown = isTerminal ? visible(text) : visibleLines(text);
    return /[",\t\r\n]/.test(shown) ? `"${shown.replaceAll('"', '""')}"` : shown;
  };
  const lines = [columns.join(separator), ...values.map((row) => columns.map((key) => cell(row[key], key)).join(separator))];
  return lines.map((line) => `${line}\r\n`).join('');
}

/** A spreadsheet runs a text that looks like a formula, and it may be a peer's: with an apostrophe in front it shows it. Numbers stay. */
function withoutFormula(text: string, value: unknown): string {
  return typeof value !== 'number' && /^\s*[=+\-@＝＋－＠]/.test(text) ? `'${text}` : text;
}

function cellText(value: unknown): string {
  if (value === null || value === undefined) return '';
  if (isWords(value)) return value.join(' ');
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Texts that can stand beside one another and still be told apart; anything else in a cell is JSON. */
function isWords(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string' && /^[^\s"[\]{}]+$/.test(entry));
}

/** Fields without those that are null, for the ones the contract marks as optional. */
export function withoutNull(fields: Fields, ...optional: readonly string[]): Fields {
  return Object.fromEntries(Object.entries(fields).filter(([key, value]) => value !== null || !optional.includes(key)));
}

/** Columns aligned for people, no borders. Cells are made harmless here. */
export async function table(head: readonly string[], rows: readonly (readonly string[])[]): Promise<string> {
  const { default: Table } = await import('cli-table3');
  const none = [
    'top',
    'top-mid',
    'top-left',
    'top-right',
    'bottom',
    'bottom-mid',
    'bottom-left',
    'bottom-right',
    'left',
    'left-mid',
    'mid',
    'mid-mid',
    'right',
    'right-mid',
  ];
  const drawn = new Table({
    head: head.map((cell) => paint('dim', cell)),
    chars: { ...Object.fromEntries(none.map((name) => [name, ''])), middle: '  ' },
    style: { 'padding-left': 0, 'padding-right': 0, head: [], border: [] },
  });
  drawn.push(...rows.map((row) => row.map((cell) => visible(cell) || '-')));
  return drawn
    .toString()
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n');
}

/** Short rows under one another, aligned, without a head; cells are made harmless here. */
export function rowsOf(rows: readonly (readonly string[])[]): string[] {
  const cells = rows.map((row) => row.map(visible));
  const widths: number[] = [];
  for (const row of cells) for (const [i, cell] of row.entries()) widths[i] = Math.max(widths[i] ?? 0, cell.length);
  return cells.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

/** Does a person's terminal show what is printed? */
function isTerminal(): boolean {
  // No other file can be one, and to be asked for that the module would have to be loaded.
  return isDevice() && process.getBuiltinModule('node:tty').isatty(1);
}

function isDevice(): boolean {
  try {
    return fstatSync(1).isCharacterDevice();
  } catch {
    return false; // closed
  }
}

const CODES = { dim: 2, bold: 1, red: 31, green: 32, yellow: 33 } as const;

/** Colour for a terminal only, and never the only carrier of a meaning. */
export function paint(style: keyof typeof CODES, text: string): string {
  return isTerminal() && !isColourRefused() ? `\x1b[${CODES[style]}m${text}\x1b[0m` : text;
}

/** "3 min ago". */
export function ago(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return '-';
  const past = Date.now() - ms;
  return past < 0 ? `in ${span(-past)}` : past < 1500 ? 'now' : `${span(past)} ago`;
}

/** True when that wall-clock time is further back than the span. */
export function isOlderThan(atMs: number, spanMs: number): boolean {
  return Date.now() - atMs > spanMs;
}

const SPAN_UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1000],
] as const;

/** A span in its two largest units, rounded to the smaller of them: a limit of 72 h never reads as 2 d. */
export function span(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${Math.round(ms / 100) / 10} s`;
  const largest = Math.max(
    0,
    SPAN_UNITS.findIndex(([, size]) => ms >= size),
  );
  const smallest = SPAN_UNITS[Math.min(largest + 1, 3)]!;
  let left = Math.round(ms / smallest[1]) * smallest[1];
  const parts: string[] = [];
  for (const [unit, size] of SPAN_UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0) parts.push(`${count} ${unit}`);
  }
  return parts.slice(0, 2).join(' ');
}

/** A number with its noun. */
export function count(number: number, one: string, several: string): string {
  return `${number} ${number === 1 ? one : several}`;
}

const MAX_NAMED = 8;

/** Names in one line: the first few, and how many more there are. */
export function listed(names: readonly string[]): string {
  const shown = names.slice(0, MAX_NAMED);
  return `${shown.join(', ')}${names.length > shown.length ? ` and ${names.length - shown.length} more` : ''}`;
}

/** Bytes for people. */
export function size(bytes: number): string {
  if (bytes < 1024) return bytes === 1 ? '1 byte' : `${bytes} bytes`;
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KiB`;
  return bytes < 1024 ** 3 ? `${(bytes / 1024 ** 2).toFixed(1)} MiB` : `${(bytes / 1024 ** 3).toFixed(1)} GiB`;
}

/** Writes to stdout and resolves when it was taken; a reader that has gone (EPIPE) is no error here. AxError `invalid_state`. */
export async function printOut(text: string | Uint8Array): Promise<void> {
  try {
    await printWhole(text);
  } catch (error) {
    const code = (error as { cause?: NodeJS.ErrnoException }).cause?.code;
    if (code !== 'EPIPE') throw error;
  }
}

/** As `printOut`, but a reader that has gone is an error as well. */
export async function printWhole(text: string | Uint8Array): Promise<void> {
  try {
    await writeStdout(text);
  } catch (error) {
    const why = (error as NodeJS.ErrnoException).code ?? String(error);
    throw new AxError('invalid_state', `the output could not be written (${why})`, { cause: error });
  }
}

/** One line for people on stderr. */
export function note(text: string): void {
  say(`ax: ${visible(text)}\n`);
}
