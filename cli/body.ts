/**
 * The body of a message out of the command line: exactly one of the positional text, --message, --file, or stdin.
 *
 * Owns the limits that are checked before the daemon is asked (not empty, at most MAX_BODY_BYTES); never holds more than the limit
 * and one byte. The bytes are taken as they are.
 */
import { promises } from 'node:fs';
import { AxError } from '../protocol/errors.ts';
import { MAX_BODY_BYTES } from '../protocol/limits.ts';
import { textOption } from './options.ts';
import type { Options } from './options.ts';
import { size } from './output.ts';
import { awaiting } from './wait.ts';

export interface Body {
  readonly bytes: Uint8Array;
  /** The same line typed again does not hold the body: it came through stdin. */
  readonly isFromStdin: boolean;
}

const MISSING = 'the body is missing';
const HOW = 'give it as text, with --message TEXT, with --file PATH, or on stdin';

/** AxError `usage` for none or several sources and for no bytes; of a file `invalid_argument` (empty, unreadable), `too_large`, `not_found`. */
export async function readBody(positional: string | undefined, options: Options): Promise<Body> {
  const message = textOption(options, 'message');
  const file = textOption(options, 'file');
  if (file === '') throw new AxError('usage', '--file needs the path of a file');
  const given = [positional, message, file].filter((source) => source !== undefined).length;
  if (given > 1) throw new AxError('usage', 'give the body once: as text, with --message, with --file, or on stdin');
  if (given === 0 && process.stdin.isTTY) {
    throw new AxError('usage', MISSING, { fix: HOW });
  }
  const isFromStdin = given === 0 || positional === '-' || file === '-';
  let bytes: Uint8Array;
  if (isFromStdin) bytes = await awaiting('the body on stdin', readUpTo(process.stdin));
  else if (file !== undefined) bytes = await readFileBody(file);
  else bytes = requireFits(new TextEncoder().encode(positional ?? message ?? ''));
  if (bytes.length > 0) return { bytes, isFromStdin };
  if (file !== undefined && file !== '-')
    throw new AxError('invalid_argument', `the body is empty: there is nothing in ${file}`, { fix: HOW });
  throw new AxError('usage', given === 0 ? MISSING : 'the body is empty', { fix: HOW });
}

function tooLarge(found: string): AxError {
  return new AxError('too_large', `the body has ${found}; at most ${MAX_BODY_BYTES} bytes (${size(MAX_BODY_BYTES)}) are allowed`, {
    details: { limit: MAX_BODY_BYTES },
  });
}

function requireFits(bytes: Uint8Array): Uint8Array {
  if (bytes.length > MAX_BODY_BYTES) throw tooLarge(`${bytes.length} bytes`);
  return bytes;
}

async function readUpTo(source: AsyncIterable<Uint8Array | string>): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of source) {
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
    chunks.push(bytes);
    length += bytes.length;
    if (length > MAX_BODY_BYTES) throw tooLarge(`more than ${MAX_BODY_BYTES} bytes`);
  }
  return new Uint8Array(Buffer.concat(chunks));
}

async function readFileBody(path: string): Promise<Uint8Array> {
  const file = await promises.open(path, 'r').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') throw new AxError('not_found', `there is no file ${path}`, { cause: error });
    throw new AxError('invalid_argument', `the file ${path} cannot be read (${error.code ?? error.message})`, { cause: error });
  });
  try {
    const found = await file.stat();
    if (found.isDirectory()) throw new AxError('invalid_argument', `${path} is a folder`);
    if (found.isFile() && found.size > MAX_BODY_BYTES) throw tooLarge(`${found.size} bytes`);
    return await awaiting(`the end of ${path}`, readUpTo(file.createReadStream({ autoClose: false })));
  } finally {
    await file.close();
  }
}
