/**
 * The whole command tree, and one run of it.
 *
 * Owns the list of nouns and how a fault of the command line becomes AxError `usage`. Help goes to stdout with status 0; a command
 * that is not complete shows its help on stderr with status 2.
 */
import { CommanderError } from 'commander';
import type { Command } from 'commander';
import { AxError } from '../protocol/errors.ts';
import { AX_VERSION } from '../protocol/version.ts';
import { program } from './command.ts';
import { addAdmin } from './commands/admin.ts';
import { addAgent } from './commands/agent.ts';
import { addDaemon } from './commands/daemon.ts';
import { addHost } from './commands/host.ts';
import { addMessages } from './commands/messages.ts';
import { addSend } from './commands/send.ts';
import { formatOf } from './environment.ts';
import { printOut } from './output.ts';

/** Runs one command line (without node and script). Throws what it ended with. */
export async function run(args: readonly string[]): Promise<void> {
  const root = program(AX_VERSION);
  let out = '';
  let err = '';
  root.configureOutput({ writeOut: (text) => void (out += text), writeErr: (text) => void (err += text) });
  for (const add of [addSend, addMessages, addAgent, addHost, addDaemon, addAdmin]) add(root);
  try {
    await root.parseAsync([...args], { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
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

function usageError(root: Command, args: readonly string[], error: CommanderError, written: string): AxError {
  const words = commandWords(root, args);
  const fix = ['ax', ...words, '--help'].join(' ');
  const unknown = error.code === 'commander.help' ? unknownHelp(root, args) : undefined;
  if (unknown !== undefined) return new AxError('usage', `unknown command '${unknown}'`, { fix });
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

/** The word behind `help` that names no command, where there is one. */
function unknownHelp(root: Command, args: readonly string[]): string | undefined {
  let at = root;
  for (const [i, arg] of args.entries()) {
    if (arg === 'help') {
      const asked = args[i + 1];
      return asked === undefined || asked.startsWith('-') || find(at, asked) !== undefined ? undefined : asked;
    }
    at = find(at, arg) ?? at;
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
