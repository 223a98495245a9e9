/**
 * One connection to Codex's shared daemon: a WebSocket over its Unix socket, requests with ids and limits in time, notifications.
 *
 * Owns the framing and its bounds. The server is foreign: what is no answer to a question of ours is dropped, a flood is read slowly, an
 * oversized frame ends the connection. It answers nothing that the server asks.
 * Invariant: only the methods named here are ever sent; none of them starts, steers, interrupts, resumes or subscribes to anything.
 */
import { createConnection } from 'node:net';
import type { RawData, WebSocket } from 'ws';
import { AX_VERSION } from '../../protocol/version.ts';
import type { Clock } from '../clock/clock.ts';
import { errorCode } from './places.ts';
import { fieldsOf, parseVersion } from './codex-thread.ts';
import type { DaemonVersion } from './codex-thread.ts';

type Method = 'initialize' | 'thread/loaded/list' | 'thread/read' | 'thread/queue/list' | 'thread/queue/add';

/** How long the daemon may take to accept a connection, and to answer one request, ms. */
const CONNECT_LIMIT_MS = 2000;
const ANSWER_LIMIT_MS = 5000;
/** Largest frame that is taken, bytes: what the daemon itself sends in one piece. */
const MAX_FRAME_BYTES = 16 * 1024 * 1024;
/** Frames and bytes that are read in one window of time; what is beyond waits in the socket. */
const WINDOW_MS = 1000;
const MAX_WINDOW_FRAMES = 2000;
const MAX_WINDOW_BYTES = 4 * MAX_FRAME_BYTES;
/** Notifications ax has no use for; some carry names or settings of the user's. */
const NOT_WANTED = ['configWarning', 'thread/readState/changed', 'thread/name/updated', 'remoteControl/status/changed'];

/** What a refusal means to ax; its text goes no further. */
export type Refusal = 'unsupported' | 'overloaded' | 'not loaded' | 'unknown thread' | 'archived' | 'ephemeral' | 'full' | 'other';

/** `lost`: no answer came, in time or at all; `wasSent` is false when the request certainly did not leave. */
export type Answer =
  | { readonly kind: 'result'; readonly result: unknown }
  | { readonly kind: 'refused'; readonly refusal: Refusal }
  | { readonly kind: 'lost'; readonly wasSent: boolean };

export interface RpcOptions {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly onNotification: (method: string, params: unknown) => void;
  /** Called once, when an opened connection has ended, whoever ended it. */
  readonly onClose: () => void;
}

const REFUSALS: readonly (readonly [beginning: RegExp, refusal: Refusal])[] = [
  [/^Invalid request/, 'unsupported'],
  [/requires experimentalApi/, 'unsupported'],
  [/^thread not loaded/, 'not loaded'],
  [/no rollout found|^invalid thread id/, 'unknown thread'],
  [/ is archived/, 'archived'],
  [/^ephemeral thread/, 'ephemeral'],
  [/^queue cannot contain more/, 'full'],
];

/** What the `error` of an answer means. Never throws. */
export function parseRefusal(error: unknown): Refusal {
  const fields = fieldsOf(error);
  const code = fields?.['code'];
  if (code === -32001) return 'overloaded';
  if (code === -32601) return 'unsupported';
  const message = fields?.['message'];
  const text = typeof message === 'string' ? message.slice(0, 256) : '';
  return REFUSALS.find(([beginning]) => beginning.test(text))?.[1] ?? 'other';
}

/** One frame as JSON, or undefined for what is none. */
export function parseFrame(text: string): Record<string, unknown> | undefined {
  try {
    return fieldsOf(JSON.parse(text));
  } catch {
    return undefined; // not JSON: the request it should have answered runs into its limit
  }
}

/** An open connection that has introduced itself. */
export class CodexRpc {
  readonly #ws: WebSocket;
  readonly #options: RpcOptions;
  readonly #pending = new Map<number, (answer: Answer) => void>();
  readonly #abort = (): void => this.close();
  #lastId = 0;
  #version: DaemonVersion = { text: 'unknown', isSupported: false };
  #window = { at: Number.NEGATIVE_INFINITY, frames: 0, bytes: 0 };
  #cancelPause: () => void = () => {};

  private constructor(ws: WebSocket, options: RpcOptions) {
    this.#ws = ws;
    this.#options = options;
    ws.on('message', (data, isBinary) => this.#onMessage(data, isBinary));
    ws.on('ping', () => this.#count(1));
    ws.once('close', () => this.#onClose());
    options.signal.addEventListener('abort', this.#abort, { once: true });
    if (options.signal.aborted) this.close();
  }

  /** Connects to a socket that was checked, and initializes. `absent`: nobody listens; `silent`: anything else went wrong. Never rejects. */
  static async open(target: string, options: RpcOptions): Promise<CodexRpc | 'absent' | 'silent'> {
    const ws = await openSocket(target, options);
    if (typeof ws === 'string') return ws;
    const rpc = new CodexRpc(ws, options);
    const answer = await rpc.request('initialize', {
      clientInfo: { name: 'ax', title: 'ax', version: AX_VERSION },
      capabilities: { experimentalApi: true, optOutNotificationMethods: NOT_WANTED },
    });
    if (answer.kind === 'lost') {
      rpc.close();
      return 'silent';
    }
    rpc.#version = parseVersion(answer.kind === 'result' ? answer.result : undefined);
    if (answer.kind === 'result') rpc.#send(JSON.stringify({ method: 'initialized' }));
    return rpc;
  }

  /** The daemon's version; not supported when it would not take our introduction. */
  get version(): DaemonVersion {
    return this.#version;
  }

  get isOpen(): boolean {
    return this.#ws.readyState === this.#ws.OPEN;
  }

  /** One request; its answer, or `lost` after ANSWER_LIMIT_MS or when the connection ends. Never rejects. */
  request(method: Method, params: object): Promise<Answer> {
    if (!this.isOpen) return Promise.resolve({ kind: 'lost', wasSent: false });
    const id = ++this.#lastId;
    return new Promise((resolve) => {
      const end = (answer: Answer): void => {
        cancelLimit();
        this.#pending.delete(id);
        resolve(answer);
      };
      const cancelLimit = this.#options.clock.after(ANSWER_LIMIT_MS, () => end({ kind: 'lost', wasSent: true }));
      this.#pending.set(id, end);
      this.#send(JSON.stringify({ id, method, params }));
    });
  }

  /** Ends the connection at once. The daemon answers no close frame, so none is waited for. */
  close(): void {
    this.#ws.terminate();
  }

  #send(text: string): void {
    this.#ws.send(text, (error) => {
      if (error) this.close(); // the close event tells everybody who waits
    });
  }

  #onMessage(data: RawData, isBinary: boolean): void {
    const bytes = Array.isArray(data) ? Buffer.concat(data) : Buffer.isBuffer(data) ? data : Buffer.from(data);
    this.#count(bytes.length);
    const frame = isBinary ? undefined : parseFrame(bytes.toString('utf8'));
    if (frame === undefined) return;
    const { id, method } = frame;
    if (typeof method === 'string') {
      if (id === undefined && !this.#options.signal.aborted) this.#options.onNotification(method, frame['params']);
      return; // with an id it is a question to a client that takes part: ax does not
    }
    const waiting = typeof id === 'number' ? this.#pending.get(id) : undefined;
    if (waiting === undefined) return;
    if (frame['error'] !== undefined) waiting({ kind: 'refused', refusal: parseRefusal(frame['error']) });
    else waiting({ kind: 'result', result: frame['result'] });
  }

  /** Stops reading for a while when more comes than a daemon with many threads has to say. */
  #count(bytes: number): void {
    const { clock, signal } = this.#options;
    const now = clock.monotonic();
    if (now - this.#window.at >= WINDOW_MS) this.#window = { at: now, frames: 0, bytes: 0 };
    this.#window.frames += 1;
    this.#window.bytes += bytes;
    if (this.#ws.isPaused || signal.aborted) return;
    if (this.#window.frames <= MAX_WINDOW_FRAMES && this.#window.bytes <= MAX_WINDOW_BYTES) return;
    this.#ws.pause();
    this.#cancelPause = clock.after(WINDOW_MS, () => this.#ws.resume());
  }

  #onClose(): void {
    this.#cancelPause();
    this.#options.signal.removeEventListener('abort', this.#abort);
    for (const end of this.#pending.values()) end({ kind: 'lost', wasSent: true });
    this.#options.onClose();
  }
}

async function openSocket(target: string, options: RpcOptions): Promise<WebSocket | 'absent' | 'silent'> {
  const { clock, signal } = options;
  const { WebSocket: Opened } = await import('ws'); // with all of HTTP and TLS behind it, which a host without Codex never needs
  return new Promise((resolve) => {
    const ws = new Opened('ws://localhost/', {
      createConnection: () => createConnection({ path: target }),
      perMessageDeflate: false,
      maxPayload: MAX_FRAME_BYTES,
    });
    const end = (result: WebSocket | 'absent' | 'silent'): void => {
      cancelLimit();
      signal.removeEventListener('abort', abort);
      if (typeof result === 'string') ws.terminate();
      resolve(result);
    };
    const abort = (): void => end('silent');
    const cancelLimit = clock.after(CONNECT_LIMIT_MS, abort);
    ws.once('open', () => end(ws));
    // Stays for the connection's life: an error there is followed by its close.
    ws.on('error', (error) => end(['ECONNREFUSED', 'ENOENT'].includes(errorCode(error)) ? 'absent' : 'silent'));
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
  });
}
