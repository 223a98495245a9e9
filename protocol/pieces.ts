/**
 * How a body is cut into pieces: evenly, into as few as a largest size allows.
 *
 * Owns the arithmetic that both ends do alike. Size and number of pieces are in the signed envelope; where each piece begins and how long
 * it is follows from these two, so that nothing else has to be said or believed.
 */
import { createHash } from 'node:crypto';
import { violation } from './codec.ts';
import { MAX_BODY_BYTES, MAX_PIECE_BYTES, MAX_PIECES } from './limits.ts';

/** A body in `count` pieces of `each` bytes, of which the last may be shorter. */
export interface Cut {
  readonly bytes: number;
  readonly count: number;
  readonly each: number;
}

/** The fewest pieces of at most `most` bytes (1 to MAX_PIECE_BYTES); larger ones where that would be more than MAX_PIECES. */
export function cutBy(bytes: number, most: number = MAX_PIECE_BYTES): Cut {
  const count = Math.ceil(bytes / Math.max(most, Math.ceil(bytes / MAX_PIECES)));
  return { bytes, count, each: Math.ceil(bytes / count) };
}

/** What a body of `bytes` in `count` pieces looks like; AxError `protocol_violation` when none is cut so. */
export function cutInto(bytes: number, count: number): Cut {
  const each = Math.ceil(bytes / count);
  const isCut =
    count >= 1 && count <= MAX_PIECES && bytes <= MAX_BODY_BYTES && each <= MAX_PIECE_BYTES && Math.ceil(bytes / each) === count;
  if (!isCut) throw violation(`a body of ${bytes} bytes is not cut into ${count} pieces`);
  return { bytes, count, each };
}

/** Where piece `index` begins and ends in the body. */
export function spanOf({ bytes, each }: Cut, index: number): { readonly start: number; readonly end: number } {
  const start = index * each;
  return { start, end: Math.min(bytes, start + each) };
}

/** SHA-256 of bytes that come one after the other. */
export function growingDigest(): { update(part: Uint8Array): void; end(): Uint8Array } {
  const hash = createHash('sha256');
  return { update: (part) => void hash.update(part), end: () => new Uint8Array(hash.digest()) };
}
