/**
 * Entry of the `ax` command: prints the version at once, runs a plain line of the most frequent commands with little more than it needs
 * (cli/quick.ts), and everything else from the whole tree (cli/whole.ts).
 *
 * Owns that choice. The exit status is 0 done, 1 refused or failed, 2 usage, 3 this host's daemon cannot be used. With --format json an error
 * is the envelope on stdout; otherwise one line on stderr and, where there is one, a `fix:` line.
 */
import { AX_VERSION } from '../protocol/version.ts';
import { writeStdout } from './descriptor.ts';
import { plainLine } from './plain-line.ts';
import { allSaid } from './say.ts';

async function main(args: readonly string[]): Promise<void> {
  if (args.length === 1 && args[0] === '--version') {
    await writeStdout(`${AX_VERSION}\n`).catch(() => undefined); // a reader that has gone wants nothing
    return;
  }
  const line = plainLine(args);
  if (line !== undefined) {
    const { runQuick } = await import('./quick.ts');
    if (await runQuick(line, args)) {
      // All is out: to end here is quicker than to take everything apart first.
      if (allSaid()) process.exit();
      return;
    }
  }
  const { runWhole } = await import('./whole.ts');
  await runWhole(args);
}

void main(process.argv.slice(2));
