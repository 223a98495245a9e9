/**
 * The framing of the peer wire and of the control socket: four bytes of length, big-endian, then the payload.
 *
 * Owns the two directions and nothing of what a payload means. Framing goes through it-pipe and it-length-prefixed with a
 * fixed 32-bit length in place of their varint.
 * Invariant: a length that is zero or over the limit is refused when its four bytes are there, before any payload is kept;
 * a framing fault is AxError `protocol_violation` and nothing else. Errors of the source itself pass through untouched.
 */
import { decode } from 'it-length-prefixed';
import type { LengthDecoderFunction } from 'it-length-prefixed';
import { pipe } from 'it-pipe';
import type { Uint8ArrayList } from 'uint8arraylist';
import { AxError } from './errors.ts';
import { MAX_FRAME_BYTES } from './limits.ts';

/** Bytes in front of each payload. */
export const FRAME_HEADER_BYTES = 4;

const LIBRARY_FAULTS = new Set(['ERR_INVALID_MSG_LENGTH', 'ERR_MSG_DATA_TOO_LONG', 'ERR_MSG_LENGTH_TOO_LONG', 'ERR_UNEXPECTED_EOF']);

/** One frame as one buffer; AxError `too_large` over `maxBytes`, `invalid_argument` for an empty payload. */
export function encodeFrame(payload: Uint8Array, maxBytes: number = MAX_FRAME_BYTES): Uint8Array {
  const frame = new Uint8Array(FRAME_HEADER_BYTES + payload.length);
  frame.set(frameHeader(payload.length, maxBytes));
  frame.set(payload, FRAME_HEADER_BYTES);
  return frame;
}

/** The header alone, for a payload written in parts right behind it; throws as encodeFrame. */
export function frameHeader(payloadBytes: number, maxBytes: number = MAX_FRAME_BYTES): Uint8Array {
  if (payloadBytes === 0) throw new AxError('invalid_argument', 'a frame holds at least one byte');
  if (payloadBytes > maxBytes) {
    throw new AxError('too_large', `a frame of ${payloadBytes} bytes; at most ${maxBytes} are allowed`, { details: { limit: maxBytes } });
  }
  const header = new Uint8Array(FRAME_HEADER_BYTES);
  new DataView(header.buffer).setUint32(0, payloadBytes);
  return header;
}

/**
 * The payloads of the frames in `source`, each 1 to `maxBytes` long, in order. Ends when the source ends between two
 * frames. Throws AxError `protocol_violation` for a bad length or an end inside a frame. Pulls only when pulled, so the
 * source's own back-pressure reaches its writer. A `maxBytes` that may change is a function, asked at each length.
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
