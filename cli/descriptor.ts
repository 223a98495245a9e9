/**
 * Writing to stdout itself, without the stream that Node makes of it.
 *
 * Owns that every byte is taken before the promise resolves. The stream takes longer to make than an answer takes to print, and in some sandboxes
 * it swallows what it is given (streams.ts). More than a pipe takes at once is written beside the event loop, so a slow reader stops nothing else.
 */
import { write, writeSync } from 'node:fs';
import { pause } from './wait.ts';

/** Between two tries at a descriptor that takes nothing at the moment, ms. */
const RETRY_MS = 5;

/** What a pipe with room takes at once, bytes: no thread has to be woken for it. */
const AT_ONCE = 4096;

let isGone = false;

/** Has a write to stdout found that nobody reads it any more? */
export function isStdoutGone(): boolean {
  return isGone;
}

/** Writes all of it to stdout; rejects with the system's error. */
export async function writeStdout(data: string | Uint8Array): Promise<void> {
  const bytes = typeof data === 'string' ? Buffer.from(data, 'utf8') : data;
  for (let at = 0; at < bytes.length;) {
    const taken = await writeSome(bytes.subarray(at));
    if (taken === 0) await pause(RETRY_MS);
    at += taken;
  }
}

/** Number of bytes that were taken; 0 when the descriptor takes none now. */
async function writeSome(bytes: Uint8Array): Promise<number> {
  try {
    return bytes.length <= AT_ONCE ? writeSync(1, bytes) : await writeAside(bytes);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return 0;
    isGone = true;
    throw error;
  }
}

function writeAside(bytes: Uint8Array): Promise<number> {
  return new Promise((resolve, reject) => {
    write(1, bytes, (error, taken) => (error === null ? resolve(taken) : reject(error)));
  });
}
