/**
 * The whole command tree, and one run of it.
 *
 * Owns the list of nouns and how a fault of the command line becomes AxError `usage`. Help goes to stdout with status 0; a command
 * that is not complete shows its help on stderr with status 2.
 */
import { CommanderError } from 'commander';
import type { Command, OutputConfiguration } from 'commander';
import { AxError } from '../protocol/errors.ts';
import { AX_VERSION } from '../protocol/version.ts';
import { oneValueEach, program } from './command.ts';
import { addAdmin } from './commands/admin.ts';
import { addAdminSend } from './commands/admin-send.ts';
import { addAgent } from './commands/agent.ts';
import { addCompletion } from './commands/completion.ts';
import { addDaemon } from './commands/daemon.ts';
import { addDoctor } from './commands/doctor.ts';
import { addHost } from './commands/host.ts';
import { addMessages } from './commands/messages.ts';
import { addSend } from './commands/send.ts';
import { axCommand, axOf, formatOf } from './environment.ts';
import { printOut } from './output.ts';

/** The whole tree, ready to parse a line; what commander itself has to say goes to `output`. */
export function commandTree(output: OutputConfiguration): Command {
  const root = program(AX_VERSION).configureOutput(output);
  for (const add of [addSend, addMessages, addAgent, addHost, addDaemon, addAdmin, addAdminSend, addDoctor, addCompletion]) add(root);
  oneValueEach(root);
  return root;
}

/** Runs one command line (without node and script). Throws what it ended with. */
export async function run(args: readonly string[]): Promise<void> {
  let out = '';
  let err = '';
  const root = commandTree({ writeOut: (text) => void (out += text), writeErr: (text) => void (err += text) });
  const odd = unknownHelp(root, args);
  if (odd !== undefined) throw withHelp(root, args, new AxError('usage', `unknown command '${odd}'`));
  try {
    await root.parseAsync(withoutHelpWord(root, args), { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw withHelp(root, args, error);
    if (
      error.code === 'commander.helpDisplayed' ||
      error.code === 'commander.version' ||
      (error.code === 'commander.help' && error.exitCode === 0)
    ) {
      await printOut(out);
      return;
    }
    throw usageError(root, args, error, err);
  }
}

/** How ax shows what a line may hold, ready to run in this shell. */
function helpLine(args: readonly string[], words: readonly string[]): string {
  return axCommand(axOf(args), ...words, '--help');
}

/** A fault of the line that names no way out has the help of its command as one. */
function withHelp(root: Command, args: readonly string[], thrown: unknown): unknown {
  if (!(thrown instanceof AxError) || thrown.code !== 'usage' || thrown.fix !== undefined) return thrown;
  return new AxError('usage', thrown.message, {
    fix: helpLine(args, commandWords(root, args)),
    ...(thrown.details === undefined ? {} : { details: thrown.details }),
    cause: thrown,
  });
}

function usageError(root: Command, args: readonly string[], error: CommanderError, written: string): AxError {
  const words = commandWords(root, args);
  const fix = helpLine(args, words);
  if (error.code === 'commander.help') {
    if (formatOf(args) !== 'json') process.stderr.write(`${written}\n`);
    return new AxError('usage', `\`${['ax', ...words].join(' ')}\` needs ${words.length === 0 ? 'a command' : 'a verb'} behind it`, {
      fix,
    });
  }
  let message = error.message.replace(/^error: /, '').replaceAll(/\s*\n\s*/g, ' ');
  if (words.length > 0 && /^unknown option '--(state-dir|profile)/.test(message)) message += `; it stands before \`${words[0]}\` only`;
  return new AxError('usage', message, { fix });
}

/** `ax help messages fetch` is `ax messages fetch --help`, however deep. */
function withoutHelpWord(root: Command, args: readonly string[]): string[] {
  const at = helpAt(root, args);
  if (at < 0 || at === args.length - 1) return [...args];
  return [...args.slice(0, at), ...args.slice(at + 1), '--help'];
}

/** Where the word `help` stands in place of a command; -1 for nowhere. */
function helpAt(root: Command, args: readonly string[]): number {
  let at = root;
  for (const [i, arg] of args.entries()) {
    if (at.commands.length === 0) return -1; // what follows are words of that command
    if (arg === 'help' && !/^--[^=]+$/.test(args[i - 1] ?? '')) return i;
    at = find(at, arg) ?? at;
  }
  return -1;
}

/** The first word behind `help` that names no command, where there is one. */
function unknownHelp(root: Command, args: readonly string[]): string | undefined {
  const start = helpAt(root, args);
  if (start < 0) return undefined;
  let at = commandWords(root, args.slice(0, start)).reduce((node, word) => find(node, word) ?? node, root);
  for (const asked of args.slice(start + 1)) {
    if (asked.startsWith('-')) return undefined;
    const next = find(at, asked);
    if (next === undefined) return asked;
    at = next;
  }
  return undefined;
}

function find(at: Command, word: string): Command | undefined {
  return at.commands.find((command) => command.name() === word || command.aliases().includes(word));
}

/** The words of the line that name commands, as far as they go. */
function commandWords(root: Command, args: readonly string[]): string[] {
  const words: string[] = [];
  let at = root;
  for (const arg of args) {
    const next = find(at, arg);
    if (next === undefined) continue;
    words.push(next.name());
    at = next;
  }
  return words;
}
