/**
 * Requests and answers on one libp2p stream: the opener asks, the other side answers, many under way, in any order.
 *
 * Owns the pairing of answers with requests and the bound on requests under way; not what they say, not connections.
 * A full house of requests stops the reading of further ones (the muxer's window then stops the asker); answers are
 * always read, so the two directions cannot wait for each other.
 * Invariant: each answer is taken once, by the request whose number it carries; anything else is a `protocol_violation`.
 */
import type { Stream } from '@libp2p/interface';
import {
  CHANNEL_HEADER_BYTES,
  MAX_CHANNEL_FRAME_BYTES,
  MAX_REQUEST_NUMBER,
  channelHeader,
  parseChannelFrame,
} from '../../protocol/channel.ts';
import type { ChannelKind } from '../../protocol/channel.ts';
import { AxError } from '../../protocol/errors.ts';
import { frameHeader, readFrames } from '../../protocol/frame.ts';
import { FrameWriter, bytesOf, streamEnded } from './streams.ts';
import type { Outgoing } from './streams.ts';

function framed(kind: ChannelKind, number: number, payload: Uint8Array): Uint8Array[] {
  const header = channelHeader(kind, number);
  return [frameHeader(header.length + payload.length, MAX_CHANNEL_FRAME_BYTES), header, payload];
}

/** A counting gate: at most `limit` holders, the rest wait in line. */
export class Slots {
  readonly #limit: number;
  readonly #line: (() => void)[] = [];
  #taken = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get taken(): number {
    return this.#taken;
  }

  /** Resolves when this caller holds a slot; each take needs one release. */
  async take(): Promise<void> {
    if (this.#taken < this.#limit) this.#taken += 1;
    else await new Promise<void>((resolve) => this.#line.push(resolve));
  }

  release(): void {
    const next = this.#line.shift();
    if (next === undefined) this.#taken -= 1;
    else next();
  }
}

interface Ask {
  readonly payload: Uint8Array;
  readonly resolve: (answer: Uint8Array) => void;
  readonly reject: (error: AxError) => void;
  outgoing: Outgoing | undefined;
}

const timedOut = (sent: boolean): AxError => new AxError('timeout', 'the peer did not answer in time', { details: { sent } });

/** What both ends of a stream need to know of the peer. */
export interface Heard {
  /** Called for each arrival. */
  readonly heard: () => void;
  /** The largest payload the peer may send at this moment, bytes; asked at each frame, because a peer may become known on the way. */
  readonly mostBytes: () => number;
}

/** The frames the peer sends on a stream, each under the bound of the moment it began in. */
function framesOf(stream: Stream, { heard, mostBytes }: Heard): AsyncGenerator<Uint8Array, void, undefined> {
  return readFrames(bytesOf(stream, heard), () => CHANNEL_HEADER_BYTES + mostBytes());
}

/** The asking end of a stream this host opened. `fault` is told the one AxError that makes the peer a violator. */
export class Asker {
  readonly #stream: Stream;
  readonly #writer: FrameWriter;
  readonly #limit: number;
  /** Requests sent and unanswered; undefined stands for one whose caller has given up but whose answer may still come. */
  readonly #underWay = new Map<number, Ask | undefined>();
  #line: Ask[] = [];
  #lastNumber = 0;
  #ended = false;

  constructor(stream: Stream, limit: number, peer: Heard, fault: (error: AxError) => void) {
    this.#stream = stream;
    this.#limit = limit;
    this.#writer = new FrameWriter(stream);
    this.#readAnswers(peer).catch((error: unknown) => {
      if (!(error instanceof AxError)) throw error;
      this.end();
      if (error.code === 'protocol_violation') fault(error);
    });
  }

  get isOpen(): boolean {
    return !this.#ended && this.#stream.status === 'open' && this.#lastNumber < MAX_REQUEST_NUMBER;
  }

  /** Requests that wait for their answer or for their turn. */
  get busy(): number {
    return this.#underWay.size + this.#line.length;
  }

  /** Sends one request; rejects with `unavailable` or `timeout`, both with `details.sent`. */
  ask(payload: Uint8Array, signal: AbortSignal): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(timedOut(false));
      if (!this.isOpen) return reject(streamEnded(false));
      const onAbort = (): void => this.#giveUp(ask);
      const settled = (run: () => void): void => {
        signal.removeEventListener('abort', onAbort);
        run();
      };
      const ask: Ask = {
        payload,
        outgoing: undefined,
        resolve: (answer) => settled(() => resolve(answer)),
        reject: (error) => settled(() => reject(error)),
      };
      signal.addEventListener('abort', onAbort, { once: true });
      this.#line.push(ask);
      this.#next();
    });
  }

  /** Ends the stream; everything unanswered rejects. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#stream.abort(streamEnded());
    const asks = [...this.#underWay.values(), ...this.#line.splice(0)];
    this.#underWay.clear();
    for (const ask of asks) ask?.reject(streamEnded(ask.outgoing?.sent ?? false));
  }

  #next(): void {
    while (!this.#ended && this.#underWay.size < this.#limit && this.#lastNumber < MAX_REQUEST_NUMBER) {
      const ask = this.#line.shift();
      if (ask === undefined) return;
      this.#lastNumber += 1;
      this.#underWay.set(this.#lastNumber, ask);
      ask.outgoing = this.#writer.write(framed('request', this.#lastNumber, ask.payload));
    }
  }

  #giveUp(ask: Ask): void {
    const sent = ask.outgoing?.sent ?? false;
    ask.outgoing?.cancel();
    this.#line = this.#line.filter((other) => other !== ask);
    for (const [number, other] of this.#underWay) {
      if (other !== ask) continue;
      // A request that left keeps its place: its answer must not be taken for garbage, nor the peer be given more work.
      if (sent) this.#underWay.set(number, undefined);
      else this.#underWay.delete(number);
    }
    ask.reject(timedOut(sent));
    this.#next();
  }

  async #readAnswers(peer: Heard): Promise<void> {
    for await (const frame of framesOf(this.#stream, peer)) {
      const { number, payload } = parseChannelFrame(frame, 'answer');
      if (!this.#underWay.has(number)) throw new AxError('protocol_violation', 'an answer to no request');
      const ask = this.#underWay.get(number);
      this.#underWay.delete(number);
      ask?.resolve(payload);
      this.#next();
    }
    throw streamEnded();
  }
}

export interface AnswererOptions extends Heard {
  /** Shared by all streams of one peer and channel. */
  readonly slots: Slots;
  readonly handle: (payload: Uint8Array) => Promise<Uint8Array>;
}

/**
 * Answers the requests on a stream the peer opened until it ends. Resolves when the peer closed its direction, which says
 * that it waits for no more answers. Rejects with the AxError `protocol_violation` of broken framing, with whatever
 * `handle` rejected with, or with `unavailable`.
 */
export async function answerRequests(stream: Stream, options: AnswererOptions): Promise<void> {
  const writer = new FrameWriter(stream);
  const failed = Promise.withResolvers<never>();
  failed.promise.catch(() => undefined);
  const one = async (number: number, payload: Uint8Array): Promise<void> => {
    try {
      const answer = await options.handle(payload);
      await writer.write(framed('answer', number, answer)).taken;
    } catch (error) {
      failed.reject(error);
    } finally {
      options.slots.release();
    }
  };
  const read = async (): Promise<void> => {
    for await (const frame of framesOf(stream, options)) {
      const { number, payload } = parseChannelFrame(frame, 'request');
      if (payload.length === 0) {
        await writer.write(framed('answer', number, payload)).taken;
        continue;
      }
      await options.slots.take();
      if (stream.status !== 'open') {
        options.slots.release();
        throw streamEnded();
      }
      void one(number, payload);
    }
  };
  await Promise.race([read(), failed.promise]);
}
