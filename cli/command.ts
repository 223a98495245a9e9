/**
 * How a command is declared: global flags, help with an example, and the way from parsed words to what a verb does.
 *
 * Owns the placing of the global flags (--state-dir and --profile stand before the noun only, the others anywhere) and the reading of
 * values typed as numbers, durations and lists.  What is wrong with a line as it
 * was typed, and is seen without a daemon, is AxError `usage` and nothing else (docs/adr/0011). Never prints.
 */
import { Command } from 'commander';
import { AxError } from '../protocol/errors.ts';
import { didYouMean } from '../protocol/nearest.ts';
import { FORMATS, readEnvironment } from './environment.ts';
import type { Environment, GlobalFlags } from './environment.ts';
import { AfterAnswer } from './failure.ts';
import { printOut, render, span } from './output.ts';
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

/** `send` has a --harness of its own: the destination's. */
type Owned = 'harness';

const ownFlags = new WeakMap<Command, ReadonlySet<string>>();

function addGlobalFlags(command: Command, owned: ReadonlySet<string>): void {
  const hidden = (flags: string, text: string): void => void command.addOption(command.createOption(flags, text).hideHelp());
  command.option('--format <format>', `${FORMATS.join(', ')} (AX_FORMAT)`);
  if (!owned.has('harness')) hidden('--harness <name>', 'harness this is called from (AX_HARNESS)');
  hidden('--harness-version <version>', 'its version (AX_HARNESS_VERSION)');
  hidden('--harness-session <id>', 'its session (AX_HARNESS_SESSION)');
  hidden('--local-workspace <dir>', 'folder this is called for (AX_LOCAL_WORKSPACE), default the working directory');
}

/** The root command: the global flags that stand before the noun. */
export function program(version: string): Command {
  const root = new Command('ax');
  root
    .description('Messages between agent sessions on different hosts')
    .version(version, '--version', 'print the version')
    .helpOption('-h, --help', 'show help')
    .enablePositionalOptions()
    .option('--state-dir <dir>', "the daemon's state folder (AX_STATE_DIR); before the noun only")
    .option('--profile <name>', 'reserved (AX_PROFILE); before the noun only')
    .option('--format <format>', `${FORMATS.join(', ')} (AX_FORMAT); anywhere`)
    .option('--harness <name>', 'origin: the harness this is called from (AX_HARNESS); anywhere, before `send` only')
    .option('--harness-version <version>', 'origin: its version (AX_HARNESS_VERSION); anywhere')
    .option('--harness-session <id>', 'origin: its session (AX_HARNESS_SESSION); anywhere')
    .option('--local-workspace <dir>', 'the folder this is called for (AX_LOCAL_WORKSPACE); anywhere; default the working directory')
    .addHelpText('after', '\nExample:\n  ax send --to builder@hostb --message "the build is red"\n')
    .exitOverride()
    .configureOutput({ writeOut: () => {}, writeErr: () => {} });
  return root;
}

export function noun(root: Command, name: string, summary: string, example: string): Command {
  const command = root.command(name).description(summary).helpOption('-h, --help', 'show help').enablePositionalOptions();
  addGlobalFlags(command, new Set());
  return command.addHelpText('after', `\nExample:\n  ${example}\n`);
}

/** Declares a verb; its help ends with the example. */
export function verb(parent: Command, words: string, summary: string, example: string, owned: readonly Owned[] = []): Command {
  const command = parent.command(words).description(summary).helpOption('-h, --help', 'show help');
  const own = new Set<string>(owned);
  ownFlags.set(command, own);
  addGlobalFlags(command, own);
  return command.addHelpText('after', `\nExample:\n  ${example}\n`);
}

export function action(command: Command, run: (run: Run) => Promise<void>): void {
  command.action(async () => {
    const environment = readEnvironment(globalFlags(command));
    await run({
      environment,
      args: command.args,
      options: command.opts<Options>(),
      print: (answer) =>
        printOut(render(environment.format, answer)).catch((error: unknown) => {
          throw new AfterAnswer(error);
        }),
    });
  });
}

/** The innermost place where a flag stands wins. */
function globalFlags(leaf: Command): GlobalFlags {
  const found: Record<string, unknown> = {};
  for (let command: Command | null = leaf; command !== null; command = command.parent) {
    const own = ownFlags.get(command);
    for (const [key, value] of Object.entries(command.opts<Options>())) {
      if (own?.has(key) !== true && !Object.hasOwn(found, key)) found[key] = value;
    }
  }
  const flag = (key: keyof GlobalFlags): string | undefined => (typeof found[key] === 'string' ? found[key] : undefined);
  return {
    stateDir: flag('stateDir'),
    profile: flag('profile'),
    format: flag('format'),
    harness: flag('harness'),
    harnessVersion: flag('harnessVersion'),
    harnessSession: flag('harnessSession'),
    localWorkspace: flag('localWorkspace'),
  };
}

/** Adds the flag that a verb which changes trust asks for inside an agent's shell. */
export function asOwner(command: Command): Command {
  return command.option('--as-owner', "inside an agent's shell: the owner told you to");
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
    throw new AxError('usage', error.message, { ...(error.fix === undefined ? {} : { fix: error.fix }), cause: error });
  }
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
