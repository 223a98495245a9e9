/**
 * Bytes of a pipe that anybody writes to, as lines.
 *
 * Owns the bound: of a line that is longer than MAX_BOX_LINE_BYTES nothing is kept or passed on, up to its newline. Half a line is kept
 * until the next newline, which each writer puts before its own.
 */
import { MAX_BOX_LINE_BYTES } from '../../protocol/limits.ts';

const NEWLINE = 10;
const NOTHING = Buffer.alloc(0);

export class BoxLines {
  #rest: Buffer = NOTHING;
  #isTooLong = false;

  /** The lines that are whole with this piece, without their newlines and without the empty ones. */
  take(piece: Uint8Array): Buffer[] {
    const lines: Buffer[] = [];
    for (let from = 0; from <= piece.length;) {
      const end = piece.indexOf(NEWLINE, from);
      const part = piece.subarray(from, end < 0 ? piece.length : end);
      if (this.#rest.length + part.length > MAX_BOX_LINE_BYTES) this.#isTooLong = true;
      this.#rest = this.#isTooLong ? NOTHING : Buffer.concat([this.#rest, part]);
      if (end < 0) break;
      if (this.#rest.length > 0) lines.push(this.#rest);
      this.#rest = NOTHING;
      this.#isTooLong = false;
      from = end + 1;
    }
    return lines;
  }
}
