/**
 * The three commands that scripts and agents run most, without the tree of all commands: `send`, `messages fetch`, `admin status`.
 *
 * Owns the handing over: a fault of the line, which the whole tree tells with the help that fits, ends here before anything was read or asked,
 * and the line is run again by cli/whole.ts. Everything else is the very code that the tree runs.
 * Invariant: nothing that this file reaches knows another command (test/cli/quick.test.ts).
 */
import { AxError } from '../protocol/errors.ts';
import { wasContacted } from './client.ts';
import { readEnvironment } from './environment.ts';
import { printer, tell } from './failure.ts';
import { fetchMessage } from './fetching.ts';
import type { Run } from './options.ts';
import { showStatus } from './overview.ts';
import type { PlainCommand, PlainLine } from './plain-line.ts';
import { sendMessage } from './sending.ts';

const RUNS: Readonly<Record<PlainCommand, (run: Run) => Promise<void>>> = {
  send: sendMessage,
  'messages fetch': fetchMessage,
  'admin status': showStatus,
};

/** Runs a plain line and sets the exit status; false when it is for the whole tree to tell what is wrong with it. Throws nothing. */
export async function runQuick({ command, flags, args, options }: PlainLine, typed: readonly string[]): Promise<boolean> {
  try {
    const environment = readEnvironment(flags);
    await RUNS[command]({ environment, args, options, print: printer(environment) });
  } catch (error) {
    if (error instanceof AxError && error.code === 'usage' && error.fix === undefined && !wasContacted(error)) return false;
    process.exitCode = await tell(error, typed);
  }
  return true;
}
