/**
 * Getting a fetched body out whole to stdout before it may count as picked up.
 *
 * Owns the rule that anything short of "every byte was taken" is an AxError `invalid_state`, after which the caller must not confirm.
 * Limit, known: a reader of a pipe that leaves is seen only by a later write. So the end of the text is held back for a moment and
 * then written; a reader that takes less than all and yet stays that long cannot be told from one that reads on.
 */
import { fstatSync, fsyncSync } from 'node:fs';
import { AxError } from '../protocol/errors.ts';
import { writeStdout } from './descriptor.ts';
import { awaiting, pause } from './wait.ts';

/** How long the last part is held back from a pipe, ms: `head -c1` is gone within a few. */
const HOLD_BACK_MS = 100;

function notTaken(cause: unknown): AxError {
  const code = (cause as NodeJS.ErrnoException).code;
  const why =
    code === 'EPIPE' || code === 'ECONNRESET'
      ? 'the output was closed before all of it was read'
      : `the output could not be written (${code ?? String(cause)})`;
  return new AxError('invalid_state', `${why}; the message does not count as fetched`, { cause });
}

/**
 * Writes both parts to stdout and resolves when all of it was taken, as far as the system can tell. Where nothing depends on that
 * (`isCounted` is false: no pickup will be confirmed), the end is not held back.
 */
export async function writeOut(first: string, last: string, isCounted: boolean): Promise<void> {
  const kind = fstatSync(1);
  if (isCounted && (kind.isFIFO() || kind.isSocket())) {
    await writePart(first);
    await pause(HOLD_BACK_MS);
    await writePart(last);
  } else {
    await writePart(first + last);
  }
  if (kind.isFile()) {
    try {
      fsyncSync(1);
    } catch (error) {
      throw notTaken(error);
    }
  }
}

async function writePart(text: string): Promise<void> {
  const written = writeStdout(text).catch((error: unknown) => {
    throw notTaken(error);
  });
  await awaiting('the reader of the output', written);
}
