/**
 * Where in a command line the cursor is: what kind of word is wanted there, read off the real command tree.
 *
 * Owns the walk over words that are already typed, and the kind of a value: from the placeholder a command declares, so that a new option
 * is completed without a word here. Pure: asks nobody, prints nothing, knows no shell.
 */
import type { Argument, Command, Option } from 'commander';
import { HARNESSES } from '../../protocol/address.ts';
import { FORMATS } from '../environment.ts';

/** What the word under the cursor is to be. */
export type Kind = 'files' | 'folders' | 'hosts' | 'agents' | 'addresses' | 'sessions' | 'messages' | 'received' | 'none';

export interface Candidate {
  readonly value: string;
  /** For the shells that show one. */
  readonly about?: string;
}

export interface Position {
  readonly kind: Kind;
  /** What the command tree itself offers: verbs, options, choices. */
  readonly fixed: readonly Candidate[];
  /** Typed of the value so far. */
  readonly typed: string;
  /** Stands before every value, as in `--format=`. */
  readonly before: string;
  /** The value of --state-dir and --host, where they were typed. */
  readonly stateDir: string | undefined;
  readonly host: string | undefined;
}

/** By option, where its placeholder alone does not tell. */
const BY_OPTION: Readonly<Record<string, Kind | readonly string[]>> = {
  '--agent': 'agents',
  '--harness': HARNESSES,
  '--format': FORMATS,
};

/** By the placeholder of an option or an argument. */
const BY_PLACEHOLDER: Readonly<Record<string, Kind>> = {
  dir: 'folders',
  path: 'files',
  file: 'files',
  host: 'hosts',
  'name@host': 'addresses',
  uuid: 'sessions',
  id: 'messages',
  agent: 'agents',
};
/** Values that a placeholder stands for, given by the caller: the actions of a grant, the states of a message. */
export type Vocabulary = Readonly<Record<string, readonly string[]>>;

/** Only what was received can be fetched and answered. */
const RECEIVED_ONLY: ReadonlySet<string> = new Set(['fetch', 'reply']);

interface Walk {
  at: Command;
  arguments: number;
  isRaw: boolean;
  pending: Option | undefined;
  stateDir: string | undefined;
  host: string | undefined;
}

/** `words` are those behind `ax`, the last the one under the cursor (perhaps empty). */
export function positionOf(root: Command, words: readonly string[], vocabulary: Vocabulary): Position {
  const walk: Walk = { at: root, arguments: 0, isRaw: false, pending: undefined, stateDir: undefined, host: undefined };
  for (const word of words.slice(0, -1)) step(walk, word);
  const typed = words.at(-1) ?? '';
  const { stateDir, host } = walk;
  const position = (found: Pick<Position, 'kind' | 'fixed'>, value = typed, before = ''): Position => ({
    ...found,
    fixed: found.fixed.filter((one) => one.value.startsWith(value)),
    typed: value,
    before,
    stateDir,
    host,
  });
  if (walk.pending !== undefined) return position(ofOption(walk, walk.pending, vocabulary));
  if (!walk.isRaw && typed.startsWith('-')) {
    const cut = typed.indexOf('=');
    if (cut < 0) return position({ kind: 'none', fixed: optionsOf(walk.at) });
    const option = optionNamed(walk.at, typed.slice(0, cut));
    const found = option === undefined ? NOTHING : ofOption(walk, option, vocabulary);
    return position(found, typed.slice(cut + 1), typed.slice(0, cut + 1));
  }
  const verbs = walk.isRaw || walk.arguments > 0 ? [] : verbsOf(walk.at);
  if (verbs.length > 0) return position({ kind: 'none', fixed: verbs });
  return position(ofArgument(walk, vocabulary));
}

const NOTHING = { kind: 'none', fixed: [] } as const;

function step(walk: Walk, word: string): void {
  if (walk.pending !== undefined) {
    keep(walk, walk.pending, word);
    walk.pending = undefined;
    return;
  }
  if (!walk.isRaw && word === '--') {
    walk.isRaw = true;
    return;
  }
  if (!walk.isRaw && word.startsWith('-') && word !== '-') {
    const cut = word.indexOf('=');
    const option = optionNamed(walk.at, cut < 0 ? word : word.slice(0, cut));
    if (option === undefined || !(option.required || option.optional)) return;
    if (cut < 0) walk.pending = option;
    else keep(walk, option, word.slice(cut + 1));
    return;
  }
  const next =
    walk.isRaw || walk.arguments > 0 ? undefined : walk.at.commands.find((one) => one.name() === word || one.aliases().includes(word));
  if (next === undefined) walk.arguments++;
  else walk.at = next;
}

function keep(walk: Walk, option: Option, value: string): void {
  if (option.long === '--state-dir') walk.stateDir = value;
  if (option.long === '--host' || option.long === '--node') walk.host = value;
}

function optionNamed(at: Command, flag: string): Option | undefined {
  return at.options.find((option) => option.long === flag || option.short === flag);
}

function optionsOf(at: Command): Candidate[] {
  const own = at.options.filter((option) => !option.hidden && option.long !== undefined && option.long !== null);
  return [...own.map((option) => ({ value: option.long ?? '', about: option.description })), { value: '--help', about: 'show help' }];
}

function verbsOf(at: Command): Candidate[] {
  // What the help shows; a hidden command is for programs.
  const shown = at
    .createHelp()
    .visibleCommands(at)
    .filter((command) => at.commands.includes(command));
  return shown.map((command) => ({ value: command.name(), about: command.description() }));
}

function ofOption(walk: Walk, option: Option, vocabulary: Vocabulary): Pick<Position, 'kind' | 'fixed'> {
  const named = BY_OPTION[option.long ?? ''];
  if (typeof named === 'string') return { kind: named, fixed: [] };
  const words = option.argChoices ?? named;
  if (words !== undefined) return fixedWords(words);
  return byPlaceholder(walk, /[<[]([^>\]]+)[>\]]/.exec(option.flags)?.[1] ?? '', vocabulary);
}

function ofArgument(walk: Walk, vocabulary: Vocabulary): Pick<Position, 'kind' | 'fixed'> {
  const declared = walk.at.registeredArguments;
  const last = declared.at(-1);
  const argument: Argument | undefined = declared[walk.arguments] ?? (last?.variadic === true ? last : undefined);
  if (argument === undefined) return NOTHING;
  if (argument.argChoices !== undefined) return fixedWords(argument.argChoices);
  return byPlaceholder(walk, argument.name(), vocabulary);
}

function byPlaceholder(walk: Walk, placeholder: string, vocabulary: Vocabulary): Pick<Position, 'kind' | 'fixed'> {
  const name = placeholder.replace(/\.\.\.$/, '');
  if (name.includes('|')) return fixedWords(name.split('|'));
  const words = vocabulary[name];
  if (words !== undefined) return fixedWords(words);
  const kind = BY_PLACEHOLDER[name] ?? 'none';
  return { kind: kind === 'messages' && RECEIVED_ONLY.has(walk.at.name()) ? 'received' : kind, fixed: [] };
}

const fixedWords = (words: readonly string[]): Pick<Position, 'kind' | 'fixed'> => ({
  kind: 'none',
  fixed: words.map((value) => ({ value })),
});
