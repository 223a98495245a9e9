/**
 * Repeated requests: is a send the same as the one that its request id made a message of?
 *
 * Owns what is kept to know a request again, and the comparison. Of a body of one piece that is a keyed digest of all of it. Of a larger one
 * it is what the message keeps anyway: its signed envelope names the digest of each sealed piece, and the same body sealed again under the
 * same key gives the same pieces. So a large body is hashed once on its way, and twice only when it comes again.
 * Invariant: bytes that are sealed for a comparison go nowhere; of the large requests under one id one is stored at a time.
 */
import { decode } from '../protocol/codec.ts';
import { openerOf, readEnvelope } from '../protocol/envelope.ts';
import { AxError } from '../protocol/errors.ts';
import { readSigned } from '../protocol/hashtree.ts';
import type { HostId } from '../protocol/ids.ts';
import { MAX_PIECE_BYTES } from '../protocol/limits.ts';
import { cutInto, spanOf } from '../protocol/pieces.ts';
import { keyedDigest } from '../protocol/seal.ts';
import type { OwnKey, SealKeys } from '../protocol/seal.ts';
import type { Clock } from './clock/clock.ts';
import type { Sent } from './sent-row.ts';
import type { Body } from './uploads.ts';

/** Large requests that may wait for another one of their id. */
const MAX_WAITING = 4;

/** What a request id stands for. */
export interface Repeatable {
  readonly key: string;
  /** The request without its body. */
  readonly facts: string;
  /** Of these and the body; of a large one it covers only the length. Keyed: a stolen copy of the store must not confirm guesses of a body. */
  readonly fingerprint: string;
  readonly body: Body;
}

/** What the message of a request keeps of it. */
type Stored = Pick<Sent, 'bytes' | 'signed' | 'request'>;

export class Repeats {
  readonly #clock: Clock;
  readonly #self: HostId;
  readonly #sealKeys: SealKeys;
  readonly #ownKey: OwnKey;
  readonly #storing = new Map<string, Promise<void>>();
  #waiting = 0;

  constructor(clock: Clock, self: HostId, sealKeys: SealKeys) {
    this.#clock = clock;
    this.#self = self;
    this.#sealKeys = sealKeys;
    this.#ownKey = sealKeys.own('request fingerprint');
  }

  /** What is kept of a request with its message. */
  of(key: string, facts: string, body: Body): Repeatable {
    const covered = isLarge(body) ? Buffer.from(`${body.bytes} bytes`, 'ascii') : body.slice(0, body.bytes);
    return { key, facts, fingerprint: this.#fingerprint(facts, covered), body };
  }

  /**
   * Stores a request, when no other large one of its id is being stored: what that made is then there to be compared with. AxError `limit` when
   * too many wait for such a turn, each with all of its body.
   */
  async inTurn<T>({ key, body }: Repeatable, store: () => Promise<T>): Promise<T> {
    if (!isLarge(body)) return store();
    if (this.#storing.has(key) && this.#waiting >= MAX_WAITING)
      throw new AxError('limit', 'the same large bodies are being sent several times just now; try again', {
        details: { limit: MAX_WAITING },
      });
    this.#waiting += 1;
    for (let other = this.#storing.get(key); other !== undefined; other = this.#storing.get(key)) await other;
    this.#waiting -= 1;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#storing.set(key, promise);
    try {
      return await store();
    } finally {
      this.#storing.delete(key);
      resolve();
    }
  }

  /** Is it the request that made this message? All of its body is here still. Others get their turn in between. */
  async isSame(row: Stored, { facts, fingerprint, body }: Repeatable): Promise<boolean> {
    if (row.bytes !== body.bytes) return false;
    if (!isLarge(body)) return row.request.fingerprint === fingerprint;
    if (row.request.fingerprint === fingerprint) return this.#isSealedIn(row, body);
    // One that an earlier build stored, with a digest of all of the body.
    return row.request.fingerprint === this.#fingerprint(facts, await body.digest(this.#clock));
  }

  async #isSealedIn(row: Stored, body: Body): Promise<boolean> {
    const envelope = readEnvelope(readSigned(decode(row.signed), 'an envelope').payload);
    const opener = openerOf(this.#sealKeys, this.#self, envelope);
    const cut = cutInto(envelope.bytes, envelope.pieces.length);
    for (let index = 0; index < cut.count; index++) {
      const { start, end } = spanOf(cut, index);
      if (!opener.isPiece(index, body.slice(start, end))) return false;
      await new Promise<void>((resolve) => void this.#clock.after(0, resolve));
    }
    return true;
  }

  #fingerprint(facts: string, covered: Uint8Array): string {
    return keyedDigest(this.#ownKey, Buffer.from(facts, 'utf8'), covered);
  }
}

function isLarge(body: Body): boolean {
  return body.bytes > MAX_PIECE_BYTES;
}
