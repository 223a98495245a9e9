/**
 * The two directions of one libp2p stream, each bounded: bytes in as an async source, frames out through a short queue.
 *
 * Owns back-pressure and coalescing; knows no request and no answer. The library's own async iterator buffers without
 * limit and its onDrain() stops waiting after the first time, so neither is used: reading pauses the stream when enough
 * waits to be taken, writing waits for 'drain' or 'close' events.
 * Invariant: besides what it was given this side holds at most READ_AHEAD_BYTES and one muxer window coming in, and one
 * batch going out.
 */
import type { Stream, StreamMessageEvent } from '@libp2p/interface';
import { Uint8ArrayList } from 'uint8arraylist';
import { AxError } from '../../protocol/errors.ts';

/** Frames written in one turn are joined up to this many bytes per send(): fewer, larger encrypted records. */
const BATCH_BYTES = 256 * 1024;

/** Bytes that may wait here before the stream is paused: enough to keep its window moving. */
const READ_AHEAD_BYTES = 256 * 1024;

/** What a stream that ended means for anybody still waiting on it. */
export function streamEnded(sent?: boolean): AxError {
  return new AxError('unavailable', 'the connection to the peer ended', sent === undefined ? {} : { details: { sent } });
}

/**
 * The bytes the other side sends, in order. Ends when it closed its direction; throws AxError `unavailable` when the
 * stream or its connection ended otherwise. `heard` is called for each arrival.
 */
export async function* bytesOf(stream: Stream, heard: () => void): AsyncGenerator<Uint8Array | Uint8ArrayList, void, undefined> {
  const arrived: (Uint8Array | Uint8ArrayList)[] = [];
  let arrivedBytes = 0;
  let state: 'open' | 'finished' | 'broken' = stream.status === 'open' ? 'open' : 'broken';
  let closedByPeer = false;
  let wake = (): void => undefined;
  const onMessage = (event: StreamMessageEvent): void => {
    heard();
    arrived.push(event.data);
    arrivedBytes += event.data.byteLength;
    if (arrivedBytes >= READ_AHEAD_BYTES && stream.readStatus === 'readable') stream.pause();
    wake();
  };
  const onRemoteClose = (): void => void (closedByPeer = true);
  const onEnd = (): void => {
    // 'end' also fires when the transport is lost; only after the peer's own close is it an orderly end.
    if (state === 'open') state = closedByPeer ? 'finished' : 'broken';
    wake();
  };
  const onClose = (): void => {
    if (state === 'open') state = 'broken';
    wake();
  };
  stream.addEventListener('message', onMessage);
  stream.addEventListener('remoteCloseWrite', onRemoteClose);
  stream.addEventListener('end', onEnd);
  stream.addEventListener('close', onClose);
  // Reads the flag through a call: the listeners above change it while this function waits.
  const now = (): typeof state => state;
  try {
    for (;;) {
      const next = arrived.shift();
      if (next !== undefined) {
        arrivedBytes -= next.byteLength;
        yield next;
        continue;
      }
      if (now() === 'finished') return;
      if (now() === 'broken') throw streamEnded();
      const woken = new Promise<void>((resolve) => void (wake = resolve));
      try {
        // Resuming hands over what waits in the stream at once, through onMessage, and opens the window.
        if (stream.readStatus === 'paused') stream.resume();
      } catch {
        // The connection is closing under the stream and takes no window update; no event may follow.
        state = 'broken';
        wake();
      }
      await woken;
    }
  } finally {
    stream.removeEventListener('message', onMessage);
    stream.removeEventListener('remoteCloseWrite', onRemoteClose);
    stream.removeEventListener('end', onEnd);
    stream.removeEventListener('close', onClose);
  }
}

/** A frame on its way out. */
export interface Outgoing {
  /** Its bytes were handed to the stream: from here on they may reach the peer. */
  sent: boolean;
  /** Takes it back if it was not handed over yet; its promise then rejects with `unavailable`. */
  cancel(): void;
  /** Resolves when the stream took it and has room again; rejects with AxError `unavailable` when the stream ended first. */
  readonly taken: Promise<void>;
}

interface Entry {
  readonly parts: readonly Uint8Array[];
  readonly bytes: number;
  readonly outgoing: { sent: boolean };
  readonly resolve: () => void;
  readonly reject: (error: AxError) => void;
}

/** Writes frames to one stream, those of one event-loop turn together. The caller bounds how many it has outstanding. */
export class FrameWriter {
  readonly #stream: Stream;
  #waiting: Entry[] = [];
  #unroomed: Entry[] = [];
  #scheduled = false;
  #ended = false;

  constructor(stream: Stream) {
    this.#stream = stream;
    // The library's own 'drain' listener goes on sending in a microtask; only after that does the flag say the truth.
    stream.addEventListener('drain', () => queueMicrotask(() => this.#pump()));
    stream.addEventListener('close', () => this.#end());
    if (stream.status !== 'open') this.#ended = true;
  }

  /** Queues one frame given in parts. */
  write(parts: readonly Uint8Array[]): Outgoing {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    // A writer that does not wait for room is not at fault when the stream ends.
    promise.catch(() => undefined);
    const state = { sent: false };
    const bytes = parts.reduce((sum, part) => sum + part.length, 0);
    const entry: Entry = { parts, bytes, outgoing: state, resolve, reject };
    const cancel = (): void => {
      if (state.sent) return;
      this.#waiting = this.#waiting.filter((other) => other !== entry);
      reject(streamEnded(false));
    };
    if (this.#ended) reject(streamEnded(false));
    else {
      this.#waiting.push(entry);
      this.#schedule();
    }
    return Object.assign(state, { cancel, taken: promise });
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#pump();
    });
  }

  #pump(): void {
    if (this.#ended || this.#stream.writableNeedsDrain) return;
    this.#roomAgain();
    while (this.#waiting.length > 0) {
      const batch = this.#takeBatch();
      try {
        this.#stream.send(new Uint8ArrayList(...batch.flatMap((entry) => entry.parts)));
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

  #takeBatch(): Entry[] {
    let count = 0;
    for (let bytes = 0; count < this.#waiting.length && (count === 0 || bytes + this.#waiting[count]!.bytes <= BATCH_BYTES); count++) {
      bytes += this.#waiting[count]!.bytes;
    }
    const batch = this.#waiting.splice(0, count);
    for (const entry of batch) entry.outgoing.sent = true;
    this.#unroomed.push(...batch);
    return batch;
  }

  #roomAgain(): void {
    for (const entry of this.#unroomed.splice(0)) entry.resolve();
  }

  #end(): void {
    this.#ended = true;
    for (const entry of [...this.#unroomed.splice(0), ...this.#waiting.splice(0)]) entry.reject(streamEnded(entry.outgoing.sent));
  }
}
