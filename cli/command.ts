/**
 * How a command is declared: global flags, help with an example, and the way from parsed words to what a verb does.
 *
 * Owns the placing of the global flags (--state-dir and --profile stand before the noun only, the others anywhere) and that an option
 * which takes one value is given once. What a verb makes of its words is in options.ts. Never prints.
 */
import { Command } from 'commander';
import { AxError } from '../protocol/errors.ts';
import { FORMATS, readEnvironment } from './environment.ts';
import type { GlobalFlags } from './environment.ts';
import { printer } from './failure.ts';
import type { Options, Run } from './options.ts';

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
      print: printer(environment),
    });
  });
}

const GLOBAL: ReadonlySet<string> = new Set([
  '--state-dir',
  '--profile',
  '--format',
  '--harness',
  '--harness-version',
  '--harness-session',
  '--local-workspace',
]);

/**
 * Makes a second value of an option that takes one AxError `usage`, in a command and all below it: `--to A --to B` must not be told as
 * sent when B alone gets it. A global flag may stand in several places (`globalFlags`).
 */
export function oneValueEach(command: Command): void {
  for (const option of command.options) {
    const name = option.attributeName();
    const isGlobal = GLOBAL.has(option.long ?? '') && ownFlags.get(command)?.has(name) !== true;
    if (isGlobal || option.isBoolean() || option.parseArg !== undefined) continue;
    let given = 0;
    command.on(`option:${option.name()}`, () => {
      given += 1;
      if (given > 1) throw new AxError('usage', `${option.long} is given more than once, and takes one value`);
    });
  }
  for (const below of command.commands) oneValueEach(below);
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
