/**
 * Every command, from the whole tree: what a line gets that is no plain one (cli/plain-line.ts), and all that help and faults of a line need.
 *
 * Owns the streams of those commands that use them, and the end: what a command throws is told here, so that no error crosses from one bundle to the other (`make build` makes a
 * file of its own of this, dist/whole.cjs, which dist/ax.cjs loads when it is needed; docs/adr/0010).
 */
import { tell } from './failure.ts';
import { run } from './program.ts';
import { mendStreams } from './streams.ts';

/** Runs one command line (without node and script) and sets the exit status. Throws nothing. */
export async function runWhole(args: readonly string[]): Promise<void> {
  mendStreams();
  try {
    await run(args);
  } catch (error) {
    process.exitCode = await tell(error, args);
  }
}
