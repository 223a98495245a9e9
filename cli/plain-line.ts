/**
 * Reads the plain lines of the three commands that run most, without the parser of all lines.
 *
 * Owns what is plain: every word is known and stands in a usual place, no value begins with a hyphen or is empty, nothing is given twice.
 * Everything else (help, faults, unusual spellings) is undefined here and is read by the whole tree, whose reading of a plain line is the same:
 * test/cli/quick.test.ts holds the two against each other, flag by flag. So a flag of these commands stands here too, or is only slower.
 */
import type { GlobalFlags } from './environment.ts';

export type PlainCommand = 'send' | 'messages fetch' | 'admin status';

export interface PlainLine {
  readonly command: PlainCommand;
  readonly flags: GlobalFlags;
  readonly args: readonly string[];
  readonly options: Readonly<Record<string, string | true>>;
}

interface Shape {
  /** Fewest and most words behind the command. */
  readonly words: readonly [number, number];
  /** Flags that take a value: any, or one of these. */
  readonly values: Readonly<Record<string, readonly string[] | null>>;
  readonly switches: readonly string[];
}

const ANYWHERE = ['--format', '--harness', '--harness-version', '--harness-session', '--local-workspace'];
const IN_FRONT = ['--state-dir', '--profile', ...ANYWHERE];

export const SHAPES: Readonly<Record<PlainCommand, Shape>> = {
  send: {
    words: [0, 1],
    values: {
      '--to': null,
      '--host': null,
      '--node': null,
      '--session': null,
      '--destination-workspace': null,
      '--harness': null,
      '--reply-to': null,
      '--message': null,
      '--file': null,
      '--subject': null,
      '--deadline': null,
      '--retention': null,
      '--request-id': null,
      '--agent': null,
      '--wait': ['accepted', 'fetched'],
      '--timeout': null,
    },
    switches: ['--note'],
  },
  'messages fetch': { words: [1, 1], values: { '--workspace': null, '--output': null, '--code': null }, switches: [] },
  'admin status': { words: [0, 1], values: {}, switches: [] },
};

/** The line (without node and script) as one of the three; undefined when it is none of them, or not plain. */
export function plainLine(typed: readonly string[]): PlainLine | undefined {
  const flags: Record<string, string> = {};
  const options: Record<string, string | true> = {};
  const args: string[] = [];
  let noun = '';
  let command: PlainCommand | undefined;
  for (let at = 0; at < typed.length; at++) {
    const word = typed[at] ?? '';
    const shape = command === undefined ? undefined : SHAPES[command];
    if (!word.startsWith('-') || word === '-') {
      if (shape !== undefined) args.push(word);
      else if (noun === '' && (word === 'messages' || word === 'admin')) noun = word;
      else if ((command = commandOf(noun, word)) === undefined) return undefined;
      continue;
    }
    const cut = word.indexOf('=');
    const name = cut < 0 ? word : word.slice(0, cut);
    if (shape?.switches.includes(name) === true) {
      if (cut >= 0 || !put(options, name, true)) return undefined;
      continue;
    }
    const value = cut < 0 ? typed[++at] : word.slice(cut + 1);
    if (value === undefined || value === '' || (value.startsWith('-') && value !== '-')) return undefined;
    if (shape !== undefined && Object.hasOwn(shape.values, name)) {
      if (shape.values[name]?.includes(value) === false || !put(options, name, value)) return undefined;
    } else if (!(noun === '' && shape === undefined ? IN_FRONT : ANYWHERE).includes(name) || !put(flags, name, value)) {
      return undefined;
    }
  }
  if (command === undefined) return undefined;
  const [fewest, most] = SHAPES[command].words;
  return args.length < fewest || args.length > most ? undefined : { command, flags, args, options };
}

function commandOf(noun: string, word: string): PlainCommand | undefined {
  const name = noun === '' ? word : `${noun} ${word}`;
  return Object.hasOwn(SHAPES, name) ? (name as PlainCommand) : undefined;
}

/** Keeps a value under the name that the verbs know it by: `--state-dir` is stateDir. False for a second one. */
function put<T>(into: Record<string, T>, name: string, value: T): boolean {
  const key = name.slice(2).replaceAll(/-([a-z])/g, (_found, letter: string) => letter.toUpperCase());
  if (Object.hasOwn(into, key)) return false;
  into[key] = value;
  return true;
}
