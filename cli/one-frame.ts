/**
 * One frame each way on the control socket: four bytes of length, big-endian, then the payload.
 *
 * Owns no more of the framing than a command needs, which writes one frame and reads one: the streams of protocol/frame.ts, for
 * many, take longer to load than the answer takes to come. A test holds the two against each other.
 * Invariant: a length that is zero or over the limit is refused when its four bytes are there, before any payload is kept.
 */
import type { EventEmitter } from 'node:events';
import { AxError } from '../protocol/errors.ts';
import { MAX_FRAME_BYTES } from '../protocol/limits.ts';

const HEADER_BYTES = 4;

/** The payload as one frame; AxError `too_large` over MAX_FRAME_BYTES. */
export function frameOf(payload: Uint8Array): Uint8Array {
  if (payload.length > MAX_FRAME_BYTES) {
    throw new AxError('too_large', `a frame of ${payload.length} bytes; at most ${MAX_FRAME_BYTES} are allowed`, {
      details: { limit: MAX_FRAME_BYTES },
    });
  }
  const frame = new Uint8Array(HEADER_BYTES + payload.length);
  new DataView(frame.buffer).setUint32(0, payload.length);
  frame.set(payload, HEADER_BYTES);
  return frame;
}

/**
 * The payload of the first frame that comes; undefined when the source ends before one. AxError `protocol_violation` for a bad length or
 * an end inside; what the source itself fails with passes through.
 */
export async function readFrame(source: EventEmitter): Promise<Uint8Array | undefined> {
  return new Promise((resolve, reject) => {
    let chunks: Uint8Array[] = [];
    let have = 0;
    let due = 0;
    source.on('data', (chunk: Uint8Array) => {
      chunks.push(chunk);
      have += chunk.length;
      if (due === 0) {
        if (have < HEADER_BYTES) return;
        const whole = Buffer.concat(chunks);
        chunks = [whole];
        due = whole.readUInt32BE(0);
        if (due === 0) return reject(new AxError('protocol_violation', 'a frame of no bytes'));
        if (due > MAX_FRAME_BYTES) return reject(new AxError('protocol_violation', `a frame over the limit of ${MAX_FRAME_BYTES} bytes`));
      }
      if (have < HEADER_BYTES + due) return;
      const payload = Buffer.concat(chunks).subarray(HEADER_BYTES, HEADER_BYTES + due);
      resolve(new Uint8Array(payload.buffer, payload.byteOffset, payload.length));
    });
    source.once('error', reject);
    source.once('close', () => {
      if (have === 0) resolve(undefined);
      else reject(new AxError('protocol_violation', 'the bytes end inside a frame'));
    });
  });
}
