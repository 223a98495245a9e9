/**
 * Requests and answers on one libp2p stream: the opener asks, the other side answers, many under way, in any order.
 *
 * Owns the pairing of answers with requests and the bound on requests under way; not what they say, not connections.
 * A full house of requests stops the reading of further ones (the muxer's window then stops the asker); answers are
 * always read, so the two directions cannot wait for each other.
 * Invariant: each answer is taken once, by the request whose number it carries; anything else is a `protocol_violation`.
 */
import type { Stream } from '@libp2p/interface';
import { CHANNEL_HEADER_BYTES, MAX_REQUEST_NUMBER, channelFrameHeader, parseChannelFrame } from '../../protocol/channel.ts';
import { AxError } from '../../protocol/errors.ts';
import type { Limit } from './link.ts';
import { FrameIntake, FrameWriter, streamEnded } from './streams.ts';
import type { Outgoing } from './streams.ts';

/** A counting gate: at most `limit` holders, the rest wait in line. */
export class Slots {
  readonly #limit: number;
  #line: (() => void)[] = [];
  #taken = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get taken(): number {
    return this.#taken;
  }

  /** True when the caller holds a slot now; else `later` is called as soon as it does. Each take needs one release. */
  take(later: () => void): boolean {
    if (this.#taken >= this.#limit) {
      this.#line.push(later);
      return false;
    }
    this.#taken += 1;
    return true;
  }

  /** Takes one out of the line that does not want its slot any more. */
  leave(later: () => void): void {
    this.#line = this.#line.filter((other) => other !== later);
  }

  release(): void {
    const next = this.#line.shift();
    if (next === undefined) this.#taken -= 1;
    else next();
  }
}

/** What both ends of a stream need to know of the peer. */
export interface Heard {
  /** Called for each arrival. */
  readonly heard: () => void;
  /** The largest payload the peer may send at this moment, bytes; asked at each frame, because a peer may become known on the way. */
  readonly mostBytes: () => number;
}

interface Ask {
  readonly payload: Uint8Array;
  readonly resolve: (answer: Uint8Array) => void;
  readonly reject: (error: AxError) => void;
  /** 0 until it has its turn. */
  number: number;
  outgoing: Outgoing | undefined;
}

const timedOut = (sent: boolean): AxError => new AxError('timeout', 'the peer did not answer in time', { details: { sent } });

/** The asking end of a stream this host opened. `fault` is told the one AxError that makes the peer a violator. */
export class Asker {
  readonly #stream: Stream;
  readonly #writer: FrameWriter;
  readonly #intake: FrameIntake;
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
    this.#intake = new FrameIntake(stream, {
      heard: peer.heard,
      mostBytes: () => CHANNEL_HEADER_BYTES + peer.mostBytes(),
      frame: (bytes) => this.#answered(bytes),
      ended: (error) => {
        this.end();
        if (error?.code === 'protocol_violation') fault(error);
      },
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
  ask(payload: Uint8Array, limit: Limit): Promise<Uint8Array> {
    if (limit.isOver) return Promise.reject(timedOut(false));
    if (!this.isOpen) return Promise.reject(streamEnded(false));
    return new Promise((resolve, reject) => {
      const ask: Ask = { payload, resolve, reject, number: 0, outgoing: undefined };
      limit.onOver(() => this.#giveUp(ask));
      this.#line.push(ask);
      this.#next();
    });
  }

  /** Ends the stream; everything unanswered rejects. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#intake.stop();
    this.#stream.abort(streamEnded());
    const asks = [...this.#underWay.values(), ...this.#line.splice(0)];
    this.#underWay.clear();
    for (const ask of asks) ask?.reject(streamEnded(ask.outgoing?.sent ?? false));
  }

  #next(): void {
    while (!this.#ended && this.#underWay.size < this.#limit && this.#lastNumber < MAX_REQUEST_NUMBER) {
      const ask = this.#line.shift();
      if (ask === undefined) return;
      ask.number = this.#lastNumber += 1;
      this.#underWay.set(ask.number, ask);
      ask.outgoing = this.#writer.write(channelFrameHeader('request', ask.number, ask.payload.length), ask.payload);
    }
  }

  #giveUp(ask: Ask): void {
    const sent = ask.outgoing?.sent ?? false;
    if (ask.outgoing === undefined) this.#line = this.#line.filter((other) => other !== ask);
    else if (this.#underWay.get(ask.number) === ask) {
      // A request that left keeps its place: its answer must not be taken for garbage, nor the peer be given more work.
      if (sent) this.#underWay.set(ask.number, undefined);
      else this.#underWay.delete(ask.number);
      this.#writer.cancel(ask.outgoing);
    }
    ask.reject(timedOut(sent));
    this.#next();
  }

  #answered(frame: Uint8Array): void {
    const { number, payload } = parseChannelFrame(frame, 'answer');
    const ask = this.#underWay.get(number);
    if (ask === undefined && !this.#underWay.has(number)) throw new AxError('protocol_violation', 'an answer to no request');
    // Else what waits to leave would have no bound: it counts as long as it is not answered.
    if (ask?.outgoing?.sent === false) throw new AxError('protocol_violation', 'an answer to a request that has not left');
    this.#underWay.delete(number);
    ask?.resolve(payload);
    this.#next();
  }
}

export interface AnswererOptions extends Heard {
  /** Shared by all streams of one peer and channel. */
  readonly slots: Slots;
  readonly handle: (payload: Uint8Array) => Promise<Uint8Array>;
  /**
   * Told once that nothing more is answered: with nothing when the peer closed its direction, which says that it waits for no more answers;
   * else with the AxError `protocol_violation` of broken framing, with whatever `handle` rejected with, or with `unavailable`.
   */
  readonly ended: (error: unknown) => void;
}

/** The answering end of a stream the peer opened. A full house of requests holds the reading of further ones. */
export class Answerer {
  readonly #stream: Stream;
  readonly #writer: FrameWriter;
  readonly #intake: FrameIntake;
  readonly #options: AnswererOptions;
  /** In the line for a slot with the request that came last. */
  #waiting: (() => void) | undefined;
  #busy = 0;
  #hasEnded = false;

  constructor(stream: Stream, options: AnswererOptions) {
    this.#stream = stream;
    this.#options = options;
    this.#writer = new FrameWriter(stream);
    this.#intake = new FrameIntake(stream, {
      heard: options.heard,
      mostBytes: () => CHANNEL_HEADER_BYTES + options.mostBytes(),
      frame: (bytes) => this.#asked(bytes),
      ended: (error) => this.#end(error),
    });
  }

  /** Requests that are being handled. */
  get busy(): number {
    return this.#busy;
  }

  #asked(frame: Uint8Array): void {
    const { number, payload } = parseChannelFrame(frame, 'request');
    if (payload.length === 0) {
      this.#intake.hold();
      this.#writer.write(channelFrameHeader('answer', number, 0), payload, () => this.#intake.release());
      return;
    }
    const later = (): void => {
      this.#waiting = undefined;
      this.#handle(number, payload);
      this.#intake.release();
    };
    if (this.#options.slots.take(later)) return this.#handle(number, payload);
    this.#waiting = later;
    this.#intake.hold();
  }

  /** Holds a slot, until the answer was taken by the stream. */
  #handle(number: number, payload: Uint8Array): void {
    const { slots, handle } = this.#options;
    if (this.#hasEnded || this.#stream.status !== 'open') {
      slots.release();
      this.#end(streamEnded());
      return;
    }
    this.#busy += 1;
    const leave = (): void => {
      this.#busy -= 1;
      slots.release();
    };
    handle(payload)
      .then((answer) => this.#writer.write(channelFrameHeader('answer', number, answer.length), answer, leave))
      .catch((error: unknown) => {
        leave();
        this.#end(error);
      });
  }

  #end(error: unknown): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#intake.stop();
    if (this.#waiting !== undefined) this.#options.slots.leave(this.#waiting);
    this.#options.ended(error);
  }
}
