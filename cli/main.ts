/**
 * Entry of the `ax` command: prints the version at once, runs everything else, and turns errors into text, here and nowhere else.
 *
 * Owns the exit status (0 done, 1 refused or failed, 2 usage, 3 this host's daemon cannot be used). With --format json an error is the
 * envelope on stdout; otherwise one line on stderr and, where there is one, a `fix:` line.
 */
import { AX_VERSION } from '../protocol/version.ts';
import { mendStreams } from './streams.ts';

async function main(args: readonly string[]): Promise<void> {
  mendStreams();
  // A reader that has closed the pipe early is told by the write itself; unheard, the event would end the process with a stack.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
  if (args.length === 1 && args[0] === '--version') {
    process.stdout.write(`${AX_VERSION}\n`);
    return;
  }
  try {
    const { run } = await import('./program.ts');
    await run(args);
  } catch (error) {
    const { tell } = await import('./failure.ts');
    process.exitCode = await tell(error, args);
  }
}

void main(process.argv.slice(2));
