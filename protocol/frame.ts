/**
 * The framing of the peer wire and of the control socket: four bytes of length, big-endian, then the payload.
 *
 * Owns the two directions and nothing of what a payload means. Both are synchronous: who reads asks for frames as long as it wants some, and
 * all that one chunk brought can be handled in one turn.
 * Invariant: a length that is zero or over the limit is refused when its four bytes are there, before any payload is kept;
 * a framing fault is AxError `protocol_violation` and nothing else. Errors of the source itself pass through untouched.
 */
import { AxError } from './errors.ts';
import { MAX_FRAME_BYTES } from './limits.ts';
import { release, unfilled } from './memory.ts';

/** Bytes in front of each payload. */
export const FRAME_HEADER_BYTES = 4;
/** Chunks that were taken, from which on their places are given up. */
const MANY_CHUNKS = 64;
const NOTHING = new Uint8Array(0);

/** One frame as one buffer; AxError `too_large` over `maxBytes`, `invalid_argument` for an empty payload. */
export function encodeFrame(payload: Uint8Array, maxBytes: number = MAX_FRAME_BYTES): Uint8Array {
  const frame = frameHeader(payload.length, maxBytes, payload.length);
  frame.set(payload, FRAME_HEADER_BYTES);
  return frame;
}

/** The header alone, for a payload written in parts right behind it, with room for the first `room` bytes of that; throws as encodeFrame. */
export function frameHeader(payloadBytes: number, maxBytes: number = MAX_FRAME_BYTES, room = 0): Uint8Array {
  if (payloadBytes === 0) throw new AxError('invalid_argument', 'a frame holds at least one byte');
  if (payloadBytes > maxBytes) {
    throw new AxError('too_large', `a frame of ${payloadBytes} bytes; at most ${maxBytes} are allowed`, { details: { limit: maxBytes } });
  }
  const header = new Uint8Array(FRAME_HEADER_BYTES + room);
  writeUint32(header, 0, payloadBytes);
  return header;
}

/** Writes a whole number below 2^32, big-endian. */
export function writeUint32(bytes: Uint8Array, at: number, value: number): void {
  bytes[at] = value >>> 24;
  bytes[at + 1] = value >>> 16;
  bytes[at + 2] = value >>> 8;
  bytes[at + 3] = value;
}

/**
 * Takes bytes as they come and gives the payloads of the frames in them, each 1 to `maxBytes` long, in order. A payload that lies in one chunk
 * is a view on it, any other is copied together once. A `maxBytes` that may change is a function, asked at each length.
 */
export class FrameReader {
  readonly #limit: () => number;
  readonly #head: number;
  /** Not taken yet from `#first` on, and of that one from `#at` on. An index: to shift a long list moves all of it. */
  #chunks: Uint8Array[] = [];
  #first = 0;
  #at = 0;
  #held = 0;
  /** Of the first of these a payload was given out. */
  #isSeen = false;
  /** The payload whose length was read, if any: its length, and its bytes so far when they come in several chunks. */
  #due = 0;
  #filling: Uint8Array | undefined;
  #filled = 0;

  /** `head`: bytes that may lie in front of a chunk in its memory, of whoever cut it off, and that nobody reads any more. */
  constructor(maxBytes: number | (() => number) = MAX_FRAME_BYTES, head = 0) {
    this.#head = head;
    this.#limit = typeof maxBytes === 'number' ? (): number => maxBytes : maxBytes;
  }

  /** Bytes that came and belong to no frame given out yet. */
  get heldBytes(): number {
    return this.#held + this.#filled;
  }

  /** Takes the next bytes of the source in, which are this reader's from here on. Looks at nothing. */
  push(chunk: Uint8Array): void {
    if (chunk.length === 0) return;
    this.#chunks.push(chunk);
    this.#held += chunk.length;
  }

  /** The next whole payload, or undefined as long as there is none. Throws AxError `protocol_violation` for a bad length. */
  next(): Uint8Array | undefined {
    if (this.#due === 0) {
      if (this.#held < FRAME_HEADER_BYTES) return undefined;
      this.#due = this.#readLength();
    }
    if (this.#filling === undefined) {
      const first = this.#chunks[this.#first];
      if (first !== undefined && first.length - this.#at >= this.#due) {
        this.#isSeen = true;
        return this.#done(this.#take(this.#due));
      }
      this.#filling = unfilled(this.#due);
    }
    while (this.#filled < this.#due && this.#held > 0) {
      const chunk = this.#chunks[this.#first]!;
      const length = Math.min(this.#due - this.#filled, chunk.length - this.#at);
      this.#filling.set(chunk.subarray(this.#at, this.#at + length), this.#filled);
      this.#filled += length;
      this.#skip(length);
    }
    return this.#filled < this.#due ? undefined : this.#done(this.#filling);
  }

  /** No more bytes will come. Throws AxError `protocol_violation` inside a frame; frames that are whole must have been taken. */
  end(): void {
    if (this.#due > 0 || this.#held > 0) throw new AxError('protocol_violation', 'the bytes end inside a frame');
  }

  #done(payload: Uint8Array): Uint8Array {
    this.#due = this.#filled = 0;
    this.#filling = undefined;
    return payload;
  }

  #readLength(): number {
    let length = 0;
    for (let n = 0; n < FRAME_HEADER_BYTES; n++) {
      length = length * 256 + this.#chunks[this.#first]![this.#at]!;
      this.#skip(1);
    }
    if (length === 0) throw new AxError('protocol_violation', 'a frame of no bytes');
    if (length > this.#limit()) throw new AxError('protocol_violation', `a frame over the limit of ${this.#limit()} bytes`);
    return length;
  }

  /** The next `bytes` bytes, all in the first chunk. */
  #take(bytes: number): Uint8Array {
    const taken = this.#chunks[this.#first]!.subarray(this.#at, this.#at + bytes);
    this.#skip(bytes);
    return taken;
  }

  #skip(bytes: number): void {
    this.#at += bytes;
    this.#held -= bytes;
    const chunk = this.#chunks[this.#first]!;
    if (this.#at < chunk.length) return;
    if (!this.#isSeen) release(chunk, this.#head);
    this.#isSeen = false;
    this.#chunks[this.#first++] = NOTHING;
    this.#at = 0;
    if (this.#first === this.#chunks.length) {
      this.#chunks = [];
      this.#first = 0;
    } else if (this.#first >= MANY_CHUNKS && this.#first * 2 >= this.#chunks.length) {
      this.#chunks.splice(0, this.#first);
      this.#first = 0;
    }
  }
}
