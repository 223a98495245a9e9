/**
 * One open connection to one peer: its streams, the asking on them, the answering of them, and whether it still lives.
 *
 * Owns at most one stream of its own per channel, opened at the first request and replaced when it ends, and the probe
 * that finds a dead connection and keeps a quiet one alive; the muxer's own pings do not. Does not dial and does not choose
 * between connections.
 */
import type { Connection, Stream } from '@libp2p/interface';
import type { HostId } from '../../protocol/ids.ts';
import { AxError } from '../../protocol/errors.ts';
import { MAX_HELLO_BYTES, MAX_STRANGER_BYTES } from '../../protocol/channel.ts';
import { MAX_FRAME_BYTES, MAX_REQUESTS_PER_PEER } from '../../protocol/limits.ts';
import type { Clock } from '../clock/clock.ts';
import { Limit as TimeLimit } from '../clock/within.ts';
import type { Log } from '../log.ts';
import { Answerer, Asker, Slots } from './conversation.ts';
import type { Heard } from './conversation.ts';
import type { Channel, Limit } from './link.ts';
import { streamEnded } from './streams.ts';

/** The protocol id of each channel. `/ax/hello/1` never changes; a later wire gets the next number. */
export const PROTOCOLS: Readonly<Record<Channel, string>> = { hello: '/ax/hello/1', wire: '/ax/wire/1' };

/** Silence after which the side that dialled, and a little later the other, asks whether the peer still lives, ms. */
const PROBE_AFTER_MS = { outbound: 40_000, inbound: 50_000 } as const;
/** An unanswered probe without any sign of life in this time ends the connection, ms; sooner where there is a reason to think it dead. */
const PROBE_TIMEOUT_MS = { silent: 15_000, now: 15_000, moved: 8000 } as const;
/** Opening a stream: two round trips, ms. */
const OPEN_TIMEOUT_MS = 10_000;
/** Hellos one peer may have under way here. */
const MAX_HELLOS_PER_PEER = 4;

export type PeerSlots = Readonly<Record<Channel, Slots>>;

/** The bound on requests under way for one peer; outlives its connections, or reconnecting would lift it. */
export function peerSlots(): PeerSlots {
  return { hello: new Slots(MAX_HELLOS_PER_PEER), wire: new Slots(MAX_REQUESTS_PER_PEER) };
}

export interface ConnectionHooks {
  /** Whether this host's owner named the peer. */
  trusts(peer: HostId): boolean;
  handle(peer: HostId, channel: Channel, payload: Uint8Array): Promise<Uint8Array>;
  /** The peer sent what no honest peer sends; this connection is closed right after. */
  violated(from: PeerConnection, error: AxError): void;
}

const CLOSING_CODES = new Set(['protocol_violation', 'bad_signature', 'wrong_peer']);

export class PeerConnection {
  readonly peer: HostId;
  readonly address: string;
  readonly direction: 'inbound' | 'outbound';
  readonly openedAt: number;
  readonly #connection: Connection;
  readonly #slots: PeerSlots;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #hooks: ConnectionHooks;
  readonly #askers = new Map<Channel, Promise<Asker>>();
  /** Those of the channels that a request went over already: what most requests need, without waiting for a promise. */
  readonly #ready = new Map<Channel, Asker>();
  readonly #answerers = new Set<Answerer>();
  /** Once trusted, always: a peer that is forgotten loses its connections, and what is still on the way is no violation. */
  #trusted = false;
  #heardAt: number;
  /** How often something arrived. */
  #arrivals = 0;
  #probing = false;

  constructor(connection: Connection, peer: HostId, slots: PeerSlots, seams: { clock: Clock; log: Log }, hooks: ConnectionHooks) {
    this.#connection = connection;
    this.#slots = slots;
    this.#clock = seams.clock;
    this.#log = seams.log;
    this.#hooks = hooks;
    this.peer = peer;
    this.address = addressOf(connection);
    this.direction = connection.direction;
    this.openedAt = this.#heardAt = seams.clock.monotonic();
  }

  get isOpen(): boolean {
    return this.#connection.status === 'open';
  }

  /** Monotonic ms of the last bytes that arrived on one of its streams, or of its opening. */
  get heardAt(): number {
    return this.#heardAt;
  }

  /** Nothing asked and nothing being answered. */
  async isIdle(): Promise<boolean> {
    for (const answerer of this.#answerers) if (answerer.busy > 0) return false;
    const askers = await Promise.allSettled(this.#askers.values());
    return askers.every((asker) => asker.status === 'rejected' || asker.value.busy === 0);
  }

  /** One request on this connection; AxError as Link.request. An empty payload is the keep-alive. */
  ask(channel: Channel, payload: Uint8Array, limit: Limit): Promise<Uint8Array> {
    const arrivals = this.#arrivals;
    const ready = this.#ready.get(channel);
    const answered = ready?.isOpen === true ? ready.ask(payload, limit) : this.#askOnNew(channel, payload, limit);
    return answered.catch((error: unknown) => {
      // Not a word since: it may be dead, and what waits for the peer waits until that is known.
      if (error instanceof AxError && error.code === 'timeout' && this.#arrivals === arrivals) this.probe('now');
      throw error;
    });
  }

  async #askOnNew(channel: Channel, payload: Uint8Array, limit: Limit): Promise<Uint8Array> {
    const asker = await orOver(this.#asker(channel), limit);
    this.#ready.set(channel, asker);
    return asker.ask(payload, limit);
  }

  /** Answers a stream the peer opened, until it ends. */
  answer(channel: Channel, stream: Stream): void {
    const answerer = new Answerer(stream, {
      ...this.#bounds(channel),
      slots: this.#slots[channel],
      handle: (payload) => this.#hooks.handle(this.peer, channel, payload),
      ended: (error) => {
        this.#answerers.delete(answerer);
        this.#answeringEnded(channel, stream, error);
      },
    });
    this.#answerers.add(answerer);
  }

  #answeringEnded(channel: Channel, stream: Stream, error: unknown): void {
    if (error instanceof AxError && CLOSING_CODES.has(error.code)) return this.#violated(error);
    stream.abort(streamEnded());
    if (error === undefined || (error instanceof AxError && error.code === 'unavailable')) return;
    // An answer could not be made: the peer must not wait for it, so the connection goes; it is no fault of the peer's.
    this.#log.error('link.request_failed', { peer: this.peer, channel, error: error instanceof Error ? error.message : 'unknown' });
    this.abort('a request could not be answered');
  }

  /** Asks for a sign of life when it was silent for long (or at once, with another `why`), and ends the connection when none comes. */
  probe(why: 'silent' | 'now' | 'moved' = 'silent'): void {
    const silentMs = this.#clock.monotonic() - this.#heardAt;
    if (this.#probing || !this.isOpen || (why === 'silent' && silentMs < PROBE_AFTER_MS[this.direction])) return;
    this.#probing = true;
    const askedAt = this.#clock.monotonic();
    const limit = new TimeLimit();
    const cancel = this.#clock.after(PROBE_TIMEOUT_MS[why], () => limit.end());
    this.ask('hello', new Uint8Array(0), limit)
      .then(this.#heard, (error: unknown) => {
        if (this.#heardAt > askedAt) return;
        this.#log.info('link.silent', { peer: this.peer, address: this.address, silentMs, error: String(error) });
        this.abort('the peer gave no sign of life');
      })
      .finally(() => {
        cancel();
        this.#probing = false;
      })
      .catch((error: unknown) => this.#log.error('link.probe_failed', { error: String(error) }));
  }

  /** Ends the connection at once; requests under way on it reject with `unavailable`. */
  abort(reason: string): void {
    this.#connection.abort(new Error(reason));
  }

  /** Ends the connection in order: what was written is delivered first. Resolves when it is closed. */
  async close(): Promise<void> {
    // Open streams would make the muxer wait for the peer's half of each.
    for (const stream of this.#connection.streams.slice()) stream.abort(streamEnded());
    // The library's close() misses a connection that dies under it and then waits for its time-out.
    const gone = new Promise<void>((resolve) => this.#connection.addEventListener('close', () => resolve(), { once: true }));
    try {
      if (this.isOpen) await Promise.race([this.#connection.close(), gone]);
    } catch (error) {
      this.abort(String(error));
    }
  }

  readonly #heard = (): void => {
    this.#heardAt = this.#clock.monotonic();
    this.#arrivals += 1;
  };

  #bounds(channel: Channel): Heard {
    const onWire = (): number => {
      this.#trusted ||= this.#hooks.trusts(this.peer);
      return this.#trusted ? MAX_FRAME_BYTES : MAX_STRANGER_BYTES;
    };
    return { heard: this.#heard, mostBytes: channel === 'hello' ? () => MAX_HELLO_BYTES : onWire };
  }

  #violated(error: AxError): void {
    this.#hooks.violated(this, error);
    this.abort(error.message);
  }

  async #asker(channel: Channel): Promise<Asker> {
    for (let known = this.#askers.get(channel); known !== undefined; known = this.#askers.get(channel)) {
      const asker = await known;
      if (asker.isOpen) return asker;
      // Callers that waited for the same dead stream share the one the first of them opens next.
      if (this.#askers.get(channel) === known) break;
    }
    const opening = this.#open(channel);
    this.#askers.set(channel, opening);
    opening.catch(() => {
      if (this.#askers.get(channel) === opening) this.#askers.delete(channel);
    });
    return opening;
  }

  async #open(channel: Channel): Promise<Asker> {
    const limit = deadline(this.#clock, OPEN_TIMEOUT_MS);
    try {
      const stream = await this.#connection.newStream(PROTOCOLS[channel], { signal: limit.signal });
      const most = channel === 'wire' ? MAX_REQUESTS_PER_PEER : MAX_HELLOS_PER_PEER;
      return new Asker(stream, most, this.#bounds(channel), (error) => this.#violated(error));
    } catch (error) {
      if (error instanceof Error && error.name === 'UnsupportedProtocolError') {
        const message = `the peer does not speak ${PROTOCOLS[channel]}`;
        throw new AxError('update_required', message, { cause: error, details: { sent: false, protocol: PROTOCOLS[channel] } });
      }
      // A connection that opens no stream is of no use, whatever its status says (a muxer that said good-bye, for one).
      this.abort('no stream could be opened');
      throw new AxError('unavailable', 'the connection to the peer ended', { cause: error, details: { sent: false } });
    } finally {
      limit.clear();
    }
  }
}

/** Where the peer of a connection is, without its id. */
export function addressOf(connection: Connection): string {
  return connection.remoteAddr.toString().replace(/\/p2p\/[^/]*$/, '');
}

/** A signal that aborts `delayMs` of running time from now; clear() it when the work is done. */
export function deadline(clock: Clock, delayMs: number): { readonly signal: AbortSignal; clear(): void } {
  const controller = new AbortController();
  return { signal: controller.signal, clear: clock.after(delayMs, () => controller.abort()) };
}

/** The promise's outcome, or AxError `timeout` with `details.sent` false when the time is over first. */
export function orOver<T>(promise: Promise<T>, limit: Limit): Promise<T> {
  return new Promise((resolve, reject) => {
    const over = (): void => reject(new AxError('timeout', 'the peer could not be reached in time', { details: { sent: false } }));
    if (limit.isOver) over();
    limit.onOver(over);
    promise.then(resolve, reject);
  });
}
