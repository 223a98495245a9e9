/**
 * What a verb is given, and how it reads the words of its line: numbers, spans, lists, message ids.
 *
 * Owns that what is wrong with a line as it was typed, and is seen without a daemon, is AxError `usage` and nothing else
 * (docs/adr/0011). It knows no command and no parser of lines; never prints.
 */
import { AxError } from '../protocol/errors.ts';
import { parseMessageIdPrefix } from '../protocol/ids.ts';
import { didYouMean } from '../protocol/nearest.ts';
import type { Environment } from './environment.ts';
import { span } from './output.ts';
import type { Answer } from './output.ts';

export type Options = Readonly<Record<string, unknown>>;

/** What a verb is given. */
export interface Run {
  readonly environment: Environment;
  readonly args: readonly string[];
  readonly options: Options;
  /** Writes the one answer of the command to stdout. */
  print(answer: Answer): Promise<void>;
}

export function textOption(options: Options, key: string): string | undefined {
  const value = options[key];
  return typeof value === 'string' ? value : undefined;
}

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A span such as 500ms, 30s, 15m, 72h or 7d of at least `min` ms, in ms; undefined when the option was not given. */
export function durationOption(options: Options, key: string, flag: string, min: number): number | undefined {
  const typed = textOption(options, key);
  if (typed === undefined) return undefined;
  const match = /^(\d{1,9})(ms|s|m|h|d)$/.exec(typed);
  const value = match === null ? 0 : Number(match[1]) * (UNITS[match[2] ?? ''] ?? 0);
  if (value < min || !Number.isSafeInteger(value))
    throw new AxError('usage', `${flag} takes a span of at least ${span(min)} with its unit, such as 30s, 15m, 72h or 7d`);
  return value;
}

/** A whole number of at least `min`; undefined when the option was not given. */
export function wholeOption(options: Options, key: string, flag: string, min: number): number | undefined {
  const typed = textOption(options, key);
  if (typed === undefined) return undefined;
  const value = /^\d{1,15}$/.test(typed) ? Number(typed) : -1;
  if (value < min) throw new AxError('usage', `${flag} takes a whole number from ${min} on`);
  return value;
}

/** What a parser of the protocol makes of a word of the line; what it refuses is a fault of the line: AxError `usage`. */
export function inLine<T>(parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    if (!(error instanceof AxError) || (error.code !== 'invalid_argument' && error.code !== 'too_large')) throw error;
    throw new AxError('usage', error.message, {
      ...(error.fix === undefined ? {} : { fix: error.fix }),
      ...(error.details === undefined ? {} : { details: error.details }),
      cause: error,
    });
  }
}

/** A message as it was typed: its id or the beginning of one, with `@HOST` behind where two hosts sent that. AxError `usage`. */
export function messageId(typed: string | undefined): string {
  inLine(() => parseMessageIdPrefix(typed?.replace(/@.*$/s, '')));
  return typed ?? '';
}

/** The message that a list goes on below. AxError `usage`. */
export function beforeOption(options: Options): string | undefined {
  const typed = textOption(options, 'before');
  return typed === undefined ? undefined : messageId(typed);
}

/** Words that must all be some of the known ones. AxError `usage`, naming them. */
export function known<T extends readonly string[] | undefined>(typed: T, what: string, words: readonly string[]): T {
  const odd = typed?.find((word) => !words.includes(word));
  if (odd === undefined) return typed;
  throw new AxError('usage', `"${odd}" is no ${what} (${words.join(', ')})${didYouMean(odd, words)}`);
}

/** For an option that may be given several times, each time with several values between commas. */
export function collect(value: string, before: readonly string[] | undefined): readonly string[] {
  const values = value
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '');
  return [...(before ?? []), ...values];
}

export function listOption(options: Options, key: string): readonly string[] | undefined {
  const value = options[key];
  return Array.isArray(value) ? (value as readonly string[]) : undefined;
}
