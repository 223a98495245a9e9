/**
 * The muxer under a meter: what one connection may cost this host before anything on its streams is understood.
 *
 * Owns the muxer's settings, its bounds, and how often a window is filled up. The library answers every ping, takes every opening of a stream, collects a frame
 * of any announced length and queues without limit what the peer does not read; none of that passes through a stream, so the
 * bounds of streams.ts and conversation.ts do not see it.
 * Invariant: a connection that breaks a bound is ended inside the call that broke it; nothing behind it is looked at.
 */
import type { Connection, MessageStream, Stream, StreamMuxer, StreamMuxerFactory } from '@libp2p/interface';
import { yamux } from '@libp2p/yamux';
import { AxError } from '../../protocol/errors.ts';
import type { Clock } from '../clock/clock.ts';

/** Largest muxer window. A paused reader is sent up to this much, so it must stay under the stream's 4 MiB read buffer. */
const MAX_WINDOW_BYTES = 1024 * 1024;
/**
 * What may wait to be written on one connection, bytes; beyond it the connection ends. More than an honest peer can leave
 * unread: a full window on each of the four streams in use at most, and what the muxer itself says.
 */
export const MAX_UNSENT_BYTES = 6 * 1024 * 1024;
/** So long that a connection pings once. */
const PING_INTERVAL_MS = 24 * 3_600_000;
const FRAME_HEADER_BYTES = 12;
/** The counts below are of this span, ms. */
const SPAN_MS = 10_000;
/** An honest peer pings once, one of an older build twice a minute, and opens a handful of streams in a connection's life. */
const MAX_PINGS = 64;
const MAX_OPENINGS = 64;
/** Frames that carry nothing or next to nothing: window updates, ends of streams. A busy peer sends one for each frame it got. */
const MAX_BARE_FRAMES = 200_000;
const BARE_BYTES = 64;
/** All that a peer not named here may send: some hellos and some tries to pair. */
const MAX_STRANGER_FRAMES = 2048;
const MAX_STRANGER_BYTES = 1024 * 1024;

/** The muxer's own numbers (yamux specification). */
const DATA = 0;
const PING = 2;
const SYN = 1;
/** States of the library's stream in which a window update also says that the stream is opened, or that its opening was taken. */
const OPENING: ReadonlySet<number> = new Set([0, 2]);
/** A window is filled up when this share of it is used: the peer never stands still, and most small messages cost no frame back. */
const USED_SHARE = 1 / 4;

interface FrameHeader {
  readonly type: number;
  readonly flag: number;
  readonly streamID: number;
  readonly length: number;
}

/**
 * The two methods of the library's muxer that all input passes through, and the one that makes its streams. It calls each on the object, so
 * they can be replaced.
 */
interface Inside {
  onData(bytes: { readonly byteLength: number }): void;
  handleFrame(frame: { readonly header: FrameHeader }): void;
  _newStream(id: number, state: number, direction: string): StreamInside;
}

/** What the library's stream counts its window with. */
interface StreamInside {
  readonly state: number;
  readonly recvWindow: number;
  readonly recvWindowCapacity: number;
  sendWindowUpdate(): void;
}

export interface MeterHooks {
  /** Whether the owner named this peer, so that it may send more than a stranger. */
  trusts(peer: string): boolean;
  /** A bound was broken; the connection ends right after. */
  violated(connection: Connection, error: AxError): void;
}

/** The meters of all connections of one node. */
export class Meters {
  readonly #clock: Clock;
  readonly #hooks: MeterHooks;
  /** The list of a muxer's streams is what it and its connection both show, and stays the same one all their life. */
  readonly #byStreams = new WeakMap<readonly Stream[], Meter>();

  constructor(clock: Clock, hooks: MeterHooks) {
    this.#clock = clock;
    this.#hooks = hooks;
  }

  /** What stands in the node's `streamMuxers`. */
  muxers(): () => StreamMuxerFactory {
    const make = yamux({
      // The first ping measures the round trip, by which a window grows. Those after it, four frames a minute each way, would find nothing: the
      // library only logs a missing answer. The probe does (connection.ts), and keeps alive as well.
      keepAliveInterval: PING_INTERVAL_MS,
      maxInboundStreams: 8,
      maxOutboundStreams: 8,
      streamOptions: { maxStreamWindowSize: MAX_WINDOW_BYTES },
    });
    return () => {
      const plain = make();
      return { protocol: plain.protocol, createStreamMuxer: (stream) => this.#metered(stream, plain.createStreamMuxer(stream)) };
    };
  }

  /** Tells a meter whose connection it counts; until then it counts a stranger's. */
  opened(connection: Connection): void {
    const meter = this.#byStreams.get(connection.streams);
    if (meter !== undefined) meter.connection = connection;
  }

  #metered(below: MessageStream, muxer: StreamMuxer): StreamMuxer {
    below.maxWriteBufferLength = MAX_UNSENT_BYTES;
    const meter = new Meter(this.#clock, this.#hooks);
    this.#byStreams.set(muxer.streams, meter);
    const inside = muxer as unknown as Inside;
    const [onData, handleFrame, newStream] = [inside.onData.bind(muxer), inside.handleFrame.bind(muxer), inside._newStream.bind(muxer)];
    // What is thrown in here ends the muxer and its connection.
    inside.onData = (bytes) => {
      meter.arrived(bytes.byteLength);
      onData(bytes);
      meter.taken();
    };
    inside.handleFrame = (frame) => {
      meter.frame(frame.header);
      handleFrame(frame);
    };
    inside._newStream = (...init) => seldomUpdating(newStream(...init));
    return muxer;
  }
}

/** The library tells the peer of each frame that it was read: a record, a packet and a wake-up there for every message. */
function seldomUpdating(stream: StreamInside): StreamInside {
  const update = stream.sendWindowUpdate.bind(stream);
  stream.sendWindowUpdate = () => {
    const used = stream.recvWindow - stream.recvWindowCapacity;
    if (used >= stream.recvWindow * USED_SHARE || OPENING.has(stream.state)) update();
  };
  return stream;
}

class Meter {
  connection: Connection | undefined;
  readonly #clock: Clock;
  readonly #hooks: MeterHooks;
  #since: number;
  #pings = 0;
  #openings = 0;
  #bare = 0;
  #frames = 0;
  #bytes = 0;
  /** Bytes that arrived and belong to no whole frame yet. */
  #unfinished = 0;

  constructor(clock: Clock, hooks: MeterHooks) {
    this.#clock = clock;
    this.#hooks = hooks;
    this.#since = clock.monotonic();
  }

  arrived(bytes: number): void {
    const now = this.#clock.monotonic();
    if (now - this.#since >= SPAN_MS) {
      this.#since = now;
      this.#pings = this.#openings = this.#bare = this.#frames = this.#bytes = 0;
    }
    this.#unfinished += bytes;
    this.#bytes += bytes;
    if (this.#bytes > MAX_STRANGER_BYTES && this.#isStranger()) this.#fault(`more than ${MAX_STRANGER_BYTES} bytes from an unknown host`);
  }

  frame(header: FrameHeader): void {
    this.#unfinished -= FRAME_HEADER_BYTES + (header.type === DATA ? header.length : 0);
    this.#frames += 1;
    if (header.type !== DATA || header.length < BARE_BYTES) this.#bare += 1;
    if (header.type === PING) this.#pings += 1;
    else if ((header.flag & SYN) !== 0) this.#openings += 1;
    if (this.#pings > MAX_PINGS) this.#fault('too many pings');
    if (this.#openings > MAX_OPENINGS) this.#fault('too many streams opened');
    if (this.#bare > MAX_BARE_FRAMES) this.#fault('too many frames without content');
    if (this.#frames > MAX_STRANGER_FRAMES && this.#isStranger()) this.#fault('too many frames from an unknown host');
  }

  /** All whole frames were handled. What is left over is the beginning of one, and none longer than a window can be meant. */
  taken(): void {
    if (this.#unfinished > FRAME_HEADER_BYTES + MAX_WINDOW_BYTES) this.#fault('a frame longer than any window');
  }

  #isStranger(): boolean {
    return this.connection === undefined || !this.#hooks.trusts(this.connection.remotePeer.toString());
  }

  #fault(message: string): never {
    const error = new AxError('protocol_violation', message);
    if (this.connection !== undefined) this.#hooks.violated(this.connection, error);
    throw error;
  }
}
