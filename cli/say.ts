/**
 * Lines for people on stderr, without the stream that Node makes of it.
 *
 * Owns that a line is out when the call returns, that a sandbox cannot make it vanish (streams.ts), and that a command which says one line
 * does not pay for a stream. Text is made harmless by whoever says it.
 */
import { writeSync } from 'node:fs';

let isAllSaid = true;

/** Is everything out that was said? False while the stream has a part of it. */
export function allSaid(): boolean {
  return isAllSaid;
}

/** Writes the text to stderr as it is. Where nobody reads it, nothing is thrown: the exit status has to do. */
export function say(text: string): void {
  const bytes = Buffer.from(text, 'utf8');
  let at = 0;
  try {
    while (at < bytes.length) at += writeSync(2, bytes, at);
  } catch (error) {
    // A descriptor that takes nothing at the moment is left to the stream, which waits.
    if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') return;
    isAllSaid = false;
    process.stderr.write(bytes.subarray(at));
  }
}
