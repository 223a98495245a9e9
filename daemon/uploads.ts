/**
 * Bodies too large for one control request: a command hands its body over in parts, then asks to send it.
 *
 * Owns parts in memory, of this life of the daemon only: nothing is promised for them. Bounded in all; a body whose command has gone
 * quiet is dropped. What is taken is handed on part by part, so that no second copy of it is made.
 */
import { AxError } from '../protocol/errors.ts';
import { MAX_BODY_BYTES, MAX_PIECE_BYTES, MAX_UPLOADS_BYTES, UPLOAD_PAUSE_MS } from '../protocol/limits.ts';
import { releaseFrame } from '../protocol/memory.ts';
import { growingDigest } from '../protocol/pieces.ts';
import type { Clock } from './clock/clock.ts';

interface Upload {
  readonly parts: Uint8Array[];
  bytes: number;
  cancel: () => void;
}

const NAME = /^[0-9a-f]{32}$/;

/** Bodies that may be on their way in at the same time. */
const MAX_UPLOADS = 8;

export class Uploads {
  readonly #clock: Clock;
  readonly #uploads = new Map<string, Upload>();
  #bytes = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes the next part. Returns how many bytes are here. AxError `invalid_argument`, `too_large`, `limit` (try again), `invalid_state` (out of order). */
  add(name: unknown, index: unknown, part: unknown): number {
    if (typeof name !== 'string' || !NAME.test(name)) throw new AxError('invalid_argument', 'an upload is named by 32 hexadecimal digits');
    if (!(part instanceof Uint8Array) || part.length === 0 || part.length > MAX_PIECE_BYTES)
      throw new AxError('invalid_argument', `a part has 1 to ${MAX_PIECE_BYTES} bytes`);
    const upload = this.#uploads.get(name) ?? { parts: [], bytes: 0, cancel: () => undefined };
    if (upload.parts.length === 0 && this.#uploads.size >= MAX_UPLOADS)
      throw new AxError('limit', 'other commands are handing large bodies over just now; try again', { details: { limit: MAX_UPLOADS } });
    if (index !== upload.parts.length) throw new AxError('invalid_state', `part ${upload.parts.length} of the body is the next`);
    // Many small parts would cost far more than their bytes.
    if ((upload.parts.at(-1)?.length ?? MAX_PIECE_BYTES) < MAX_PIECE_BYTES)
      throw new AxError('invalid_argument', `every part but the last has ${MAX_PIECE_BYTES} bytes`);
    if (upload.bytes + part.length > MAX_BODY_BYTES)
      throw new AxError('too_large', `a body has at most ${MAX_BODY_BYTES} bytes`, { details: { limit: MAX_BODY_BYTES } });
    if (this.#bytes + part.length > MAX_UPLOADS_BYTES)
      throw new AxError('limit', 'other commands are handing large bodies over just now; try again', {
        details: { limit: MAX_UPLOADS_BYTES },
      });
    upload.parts.push(part);
    upload.bytes += part.length;
    this.#bytes += part.length;
    this.#uploads.set(name, upload);
    upload.cancel();
    upload.cancel = this.#clock.after(UPLOAD_PAUSE_MS, () => void this.#remove(name));
    return upload.bytes;
  }

  /** The body, which is forgotten here. AxError `busy` when there is none of that name: the daemon was started again, or the command was too slow. */
  take(name: unknown): Body {
    const upload = typeof name === 'string' ? this.#remove(name) : undefined;
    if (upload === undefined) throw new AxError('busy', 'the body is not here any more; send it again');
    return new Body(upload.parts);
  }

  #remove(name: string): Upload | undefined {
    const upload = this.#uploads.get(name);
    if (upload === undefined) return undefined;
    upload.cancel();
    this.#bytes -= upload.bytes;
    this.#uploads.delete(name);
    return upload;
  }
}

/** Some bytes of a body, and where they begin in it. */
interface Part {
  readonly bytes: Uint8Array;
  readonly start: number;
}

/** A body in parts of any size, which are its own. */
export class Body {
  readonly bytes: number;
  /** What is still here. */
  readonly #parts: Part[];

  constructor(parts: readonly Uint8Array[]) {
    let start = 0;
    this.#parts = parts.map((bytes) => ({ bytes, start: (start += bytes.length) - bytes.length }));
    this.bytes = start;
  }

  /** SHA-256 of all of it; others get their turn in between. */
  async digest(clock: Clock): Promise<Uint8Array> {
    const hash = growingDigest();
    for (const { bytes } of this.#parts) {
      for (let at = 0; at < bytes.length; at += MAX_PIECE_BYTES) {
        hash.update(bytes.subarray(at, at + MAX_PIECE_BYTES));
        await new Promise<void>((resolve) => void clock.after(0, resolve));
      }
    }
    return hash.end();
  }

  /** The bytes from `start` to `end`: a view where they lie in one part. */
  slice(start: number, end: number): Uint8Array {
    const found = this.#parts.flatMap(({ bytes, start: at }) =>
      at + bytes.length > start && at < end ? [bytes.subarray(Math.max(0, start - at), Math.min(bytes.length, end - at))] : [],
    );
    return found.length === 1 ? found[0]! : new Uint8Array(Buffer.concat(found));
  }

  /** Nobody asks for bytes before `end` any more: parts that lie before it are given back. */
  dropTo(end: number): void {
    for (let [first] = this.#parts; first !== undefined && first.start + first.bytes.length <= end; [first] = this.#parts) {
      this.#parts.shift();
      releaseFrame(first.bytes);
    }
  }
}
