/**
 * `ax send`: how its line is declared, and the options that it shares with `ax messages reply`.
 *
 * What a send does is in cli/sending.ts, which a plain line reaches without any of this (cli/plain-line.ts): a flag that is added
 * here is added there too, and a test holds the two against each other.
 */
import type { Command } from 'commander';
import { action, verb } from '../command.ts';
import { sendMessage } from '../sending.ts';

export function addSend(root: Command): void {
  const send = verb(
    root,
    'send [body]',
    'send a message to an agent or a session',
    'ax send --to builder@hostb --message "the build is red"',
    ['harness'],
  )
    .option('--to <name@host>', 'a registered agent')
    .option('--host <host>', 'alias, host id, multiaddr with /p2p/ID, or Localhost')
    .addOption(root.createOption('--node <host>', 'the same as --host').hideHelp())
    .option('--session <uuid>', 'with --host: the session whose destination it is')
    .option('--destination-workspace <dir>', 'with --host: the folder there, without looking for a session')
    .option('--harness <name>', 'with --host: claude or codex')
    .option('--note', 'a note: shown at the next look, causes no notice')
    .option('--reply-to <id>', 'the message this answers');
  addSendOptions(send);
  action(send, sendMessage);
}

/** The options that `send` and `reply` share. */
export function addSendOptions(command: Command): void {
  command
    .option('--message <text>', 'the body as text; other ways: as the last word, --file, or - for stdin')
    .option('--file <path>', 'the body, any bytes')
    .option('--subject <text>', 'one line for the reader')
    .option('--deadline <span>', 'how long to try to hand it over (default 72h)')
    .option('--retention <span>', 'how long the receiver keeps it (default 7d)')
    .option('--request-id <key>', 'repeats a request instead of sending twice')
    .option('--agent <name>', 'the agent that sends')
    .addOption(command.createOption('--wait <state>', 'return only when it is there').choices(['accepted', 'fetched']))
    .option('--timeout <span>', 'with --wait (default 60s)');
}
