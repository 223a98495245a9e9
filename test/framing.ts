/**
 * Frames as it-pipe and it-length-prefixed read them: a second opinion on the daemon's own reader, and what the test clients read with.
 *
 * Owns no bound of its own: the same limits and the same violations as protocol/frame, found by code that is not ours.
 */
import { decode } from 'it-length-prefixed';
import type { LengthDecoderFunction } from 'it-length-prefixed';
import { pipe } from 'it-pipe';
import type { Uint8ArrayList } from 'uint8arraylist';
import { AxError } from '../protocol/errors.ts';
import { FRAME_HEADER_BYTES, FrameReader } from '../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../protocol/limits.ts';

const LIBRARY_FAULTS = new Set(['ERR_INVALID_MSG_LENGTH', 'ERR_MSG_DATA_TOO_LONG', 'ERR_MSG_LENGTH_TOO_LONG', 'ERR_UNEXPECTED_EOF']);

/**
 * The payloads of the frames in `source`, each 1 to `maxBytes` long, in order. Ends when the source ends between two
 * frames. Throws AxError `protocol_violation` for a bad length or an end inside a frame.
 */
export async function* readFrames(
  source: AsyncIterable<Uint8Array | Uint8ArrayList>,
  maxBytes: number | (() => number) = MAX_FRAME_BYTES,
): AsyncGenerator<Uint8Array, void, undefined> {
  // The library notices an end inside length or payload, but not one exactly between the two: this flag does.
  let payloadDue = false;
  const limit = typeof maxBytes === 'number' ? (): number => maxBytes : maxBytes;
  const options = {
    lengthDecoder: lengthDecoder(limit),
    maxLengthLength: FRAME_HEADER_BYTES,
    maxDataLength: Number.MAX_SAFE_INTEGER, // the decoder of lengths refuses what is too long
    onLength: () => void (payloadDue = true),
    onData: () => void (payloadDue = false),
  };
  const frames = pipe(source, (bytes: AsyncIterable<Uint8Array | Uint8ArrayList>) => decode(bytes, options));
  try {
    for await (const frame of frames) yield frame.subarray();
  } catch (error) {
    throw asViolation(error);
  }
  if (payloadDue) throw new AxError('protocol_violation', 'the bytes end inside a frame');
}

function lengthDecoder(limit: () => number): LengthDecoderFunction {
  const read = (buffer: Uint8ArrayList): number => {
    // The library takes a RangeError as "not enough bytes yet".
    if (buffer.byteLength < FRAME_HEADER_BYTES) throw new RangeError('length not complete');
    const length = buffer.getUint32(0);
    if (length === 0) throw new AxError('protocol_violation', 'a frame of no bytes');
    if (length > limit()) throw new AxError('protocol_violation', `a frame over the limit of ${limit()} bytes`);
    return length;
  };
  return Object.assign(read, { bytes: FRAME_HEADER_BYTES });
}

function asViolation(error: unknown): unknown {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  if (error instanceof AxError || typeof code !== 'string' || !LIBRARY_FAULTS.has(code)) return error;
  const message = code === 'ERR_UNEXPECTED_EOF' ? 'the bytes end inside a frame' : 'a length that cannot be read';
  return new AxError('protocol_violation', message, { cause: error });
}

/** The frames of one run, and what ended it early. */
export interface Cut {
  readonly frames: readonly Uint8Array[];
  readonly refused: AxError | undefined;
}

/** What the daemon's reader makes of bytes that come in these pieces, each asked for all the frames it completes; and then end. */
export function cutByReader(pieces: Iterable<Uint8Array>, maxBytes?: number): Cut {
  const reader = new FrameReader(maxBytes);
  const frames: Uint8Array[] = [];
  try {
    for (const piece of pieces) {
      reader.push(piece);
      for (let frame = reader.next(); frame !== undefined; frame = reader.next()) frames.push(Uint8Array.from(frame));
    }
    reader.end();
  } catch (error) {
    if (error instanceof AxError) return { frames, refused: error };
    throw error;
  }
  return { frames, refused: undefined };
}

/** The same by the library. */
export async function cutByLibrary(pieces: Iterable<Uint8Array>, maxBytes?: number): Promise<Cut> {
  const frames: Uint8Array[] = [];
  try {
    for await (const frame of readFrames(fromAsync(pieces), maxBytes)) frames.push(Uint8Array.from(frame));
  } catch (error) {
    if (error instanceof AxError) return { frames, refused: error };
    throw error;
  }
  return { frames, refused: undefined };
}

async function* fromAsync<T>(items: Iterable<T>): AsyncGenerator<T> {
  yield* items;
}
