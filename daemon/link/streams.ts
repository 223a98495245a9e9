/**
 * The two directions of one libp2p stream, each bounded: frames in as they come, frames out through a short queue.
 *
 * Owns back-pressure and coalescing; knows no request and no answer. The library's own async iterator buffers without
 * limit and its onDrain() stops waiting after the first time, so neither is used: reading pauses the stream when enough
 * waits to be taken, writing waits for 'drain' or 'close' events.
 * Invariant: besides what it was given this side holds at most READ_AHEAD_BYTES and one muxer window coming in, the frame that is not whole
 * yet, and one batch going out. No promise is made for a frame.
 */
import type { Stream, StreamMessageEvent } from '@libp2p/interface';
import { Uint8ArrayList } from 'uint8arraylist';
import { AxError } from '../../protocol/errors.ts';
import { FrameReader } from '../../protocol/frame.ts';

/** Frames written in one turn are joined up to this many bytes per send(): fewer, larger encrypted records. */
const BATCH_BYTES = 256 * 1024;

/** Bytes that may wait here before the stream is paused: enough to keep its window moving. */
const READ_AHEAD_BYTES = 256 * 1024;

/**
 * In the memory of a record the bytes of a stream begin behind the muxer's header of their frame, which was read: bytes that begin so far in
 * and go to the end of that memory share it with nothing else.
 */
const MUXER_HEADER_BYTES = 12;

/** What a stream that ended means for anybody still waiting on it. */
export function streamEnded(sent?: boolean): AxError {
  return new AxError('unavailable', 'the connection to the peer ended', sent === undefined ? {} : { details: { sent } });
}

export interface FrameTaker {
  /** Called for each arrival. */
  heard(): void;
  /** The largest frame the peer may send at this moment, bytes; asked at each frame, because a peer may become known on the way. */
  mostBytes(): number;
  /** One frame. May hold() the reading; an AxError it throws ends the reading. */
  frame(bytes: Uint8Array): void;
  /**
   * Told once, after the last frame: with nothing when the other side closed its direction between two frames, else with AxError
   * `protocol_violation` or, when the stream or its connection ended otherwise, `unavailable`.
   */
  ended(error: AxError | undefined): void;
}

/** Hands over the frames the other side sends, in order, all of one chunk in one turn. Begins by itself. */
export class FrameIntake {
  readonly #stream: Stream;
  readonly #taker: FrameTaker;
  readonly #reader: FrameReader;
  #isHeld = false;
  #isTaking = false;
  #isClosedByPeer = false;
  /** The other side's direction is closed: what is here is all. */
  #isComplete = false;
  #isOver = false;

  constructor(stream: Stream, taker: FrameTaker) {
    this.#stream = stream;
    this.#taker = taker;
    this.#reader = new FrameReader(() => taker.mostBytes(), MUXER_HEADER_BYTES);
    if (stream.status !== 'open') {
      queueMicrotask(() => this.#end(streamEnded()));
      return;
    }
    stream.addEventListener('message', this.#onMessage);
    stream.addEventListener('remoteCloseWrite', this.#onRemoteClose);
    stream.addEventListener('end', this.#onEnd);
    stream.addEventListener('close', this.#onClose);
  }

  /** No further frame until release(). The stream is paused as soon as enough waits here. */
  hold(): void {
    this.#isHeld = true;
  }

  release(): void {
    this.#isHeld = false;
    this.#take();
  }

  /** No further frame and no further word. */
  stop(): void {
    this.#isOver = true;
    this.#stream.removeEventListener('message', this.#onMessage);
    this.#stream.removeEventListener('remoteCloseWrite', this.#onRemoteClose);
    this.#stream.removeEventListener('end', this.#onEnd);
    this.#stream.removeEventListener('close', this.#onClose);
  }

  readonly #onMessage = (event: StreamMessageEvent): void => {
    if (this.#isOver) return;
    this.#taker.heard();
    const { data } = event;
    if (data instanceof Uint8Array) this.#reader.push(data);
    else for (const part of data) this.#reader.push(part);
    this.#take();
  };

  readonly #onRemoteClose = (): void => void (this.#isClosedByPeer = true);

  readonly #onEnd = (): void => {
    // 'end' also fires when the transport is lost; only after the peer's own close is it an orderly end.
    if (!this.#isClosedByPeer) return this.#end(streamEnded());
    this.#isComplete = true;
    this.#take();
  };

  readonly #onClose = (): void => {
    if (!this.#isComplete || this.#isHeld) this.#end(streamEnded());
  };

  #take(): void {
    // Resuming the stream hands over what waits in it at once, in the middle of this.
    if (this.#isTaking) return;
    this.#isTaking = true;
    try {
      do {
        this.#takeWhole();
      } while (this.#resumed());
    } catch (error) {
      if (!(error instanceof AxError)) throw error;
      this.#end(error);
    } finally {
      this.#isTaking = false;
    }
  }

  #takeWhole(): void {
    while (!this.#isHeld && !this.#isOver) {
      const frame = this.#reader.next();
      if (frame !== undefined) this.#taker.frame(frame);
      else if (!this.#isComplete) return;
      else {
        this.#reader.end();
        this.#end(undefined);
      }
    }
    if (!this.#isOver && this.#reader.heldBytes >= READ_AHEAD_BYTES && this.#stream.readStatus === 'readable') this.#stream.pause();
  }

  /** Goes on reading a paused stream when nothing holds it; true when that may have brought something. */
  #resumed(): boolean {
    if (this.#isHeld || this.#isOver || this.#stream.readStatus !== 'paused') return false;
    try {
      this.#stream.resume();
    } catch {
      // The connection is closing under the stream and takes no window update; no event may follow.
      throw streamEnded();
    }
    return true;
  }

  #end(error: AxError | undefined): void {
    if (this.#isOver) return;
    this.stop();
    this.#taker.ended(error);
  }
}

/** A frame on its way out. */
export interface Outgoing {
  /** Its bytes were handed to the stream: from here on they may reach the peer. */
  readonly sent: boolean;
}

interface Entry extends Outgoing {
  sent: boolean;
  readonly header: Uint8Array;
  readonly payload: Uint8Array;
  readonly settled: ((isTaken: boolean) => void) | undefined;
}

/** Writes frames to one stream, those of one event-loop turn together. The caller bounds how many it has outstanding. */
export class FrameWriter {
  readonly #stream: Stream;
  #waiting: Entry[] = [];
  /** Handed to the stream, which has had no room again since. */
  #unroomed: Entry[] = [];
  #isScheduled = false;
  #hasEnded = false;

  constructor(stream: Stream) {
    this.#stream = stream;
    // The library's own 'drain' listener goes on sending in a microtask; only after that does the flag say the truth.
    stream.addEventListener('drain', () => queueMicrotask(() => this.#pump()));
    stream.addEventListener('close', () => this.#end());
    if (stream.status !== 'open') this.#hasEnded = true;
  }

  /**
   * Queues one frame: its header, and the payload right behind it. `settled` is told once, when the stream took the frame and has room again
   * or when the stream ended first; never inside this call.
   */
  write(header: Uint8Array, payload: Uint8Array, settled?: (isTaken: boolean) => void): Outgoing {
    const entry: Entry = { sent: false, header, payload, settled };
    if (this.#hasEnded) {
      if (settled !== undefined) queueMicrotask(() => settled(false));
      return entry;
    }
    this.#waiting.push(entry);
    if (!this.#isScheduled) {
      this.#isScheduled = true;
      // Runs when all that was settled in this turn has had its say; an immediate would cost a look at every socket before.
      process.nextTick(this.#flush);
    }
    return entry;
  }

  /** Takes a frame back that was not handed over yet; it is not settled then. */
  cancel(outgoing: Outgoing): void {
    if (!outgoing.sent) this.#waiting = this.#waiting.filter((entry) => entry !== outgoing);
  }

  readonly #flush = (): void => {
    this.#isScheduled = false;
    this.#pump();
  };

  #pump(): void {
    if (this.#hasEnded || this.#stream.writableNeedsDrain) return;
    this.#roomAgain();
    while (this.#waiting.length > 0) {
      try {
        this.#stream.send(this.#takeBatch());
      } catch (error) {
        // The stream ended between its last event and now; what was in the batch may have left in part.
        this.#stream.abort(error instanceof Error ? error : new Error(String(error)));
        this.#end();
        return;
      }
      if (this.#stream.writableNeedsDrain) return;
      this.#roomAgain();
    }
  }

  #takeBatch(): Uint8ArrayList {
    const batch = new Uint8ArrayList();
    let count = 0;
    for (; count < this.#waiting.length; count++) {
      const entry = this.#waiting[count]!;
      if (count > 0 && batch.length + entry.header.length + entry.payload.length > BATCH_BYTES) break;
      entry.sent = true;
      batch.append(entry.header, entry.payload);
      if (entry.settled !== undefined) this.#unroomed.push(entry);
    }
    if (count === this.#waiting.length) this.#waiting = [];
    else this.#waiting.splice(0, count);
    return batch;
  }

  #roomAgain(): void {
    if (this.#unroomed.length === 0) return;
    for (const entry of this.#unroomed.splice(0)) entry.settled?.(true);
  }

  #end(): void {
    this.#hasEnded = true;
    for (const entry of [...this.#unroomed.splice(0), ...this.#waiting.splice(0)]) entry.settled?.(false);
  }
}
