/**
 * The control socket: the Unix socket on which a host's own commands ask their daemon.
 *
 * Owns the socket file and its folder (both for the owner only), frames and the limits per connection. It does not know what a method
 * does: that is `call`.
 * Invariant: whatever bytes arrive, the answer is an AxError's code or nothing, the process lives on, and what one client does
 * not read is bounded. Node has no SO_PEERCRED: who may connect is decided by owner and mode of file and folder alone.
 */
import { chmod, lstat, mkdir, unlink } from 'node:fs/promises';
import { createServer } from 'node:net';
import type { Server, Socket } from 'node:net';
import { dirname } from 'node:path';
import { asFields, decode, encode, whole } from '../../protocol/codec.ts';
import type { ControlResponse } from '../../protocol/control.ts';
import { AxError, errorBody } from '../../protocol/errors.ts';
import { encodeFrame, FRAME_HEADER_BYTES, readFrames } from '../../protocol/frame.ts';
import { shellQuote } from '../../protocol/paths.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import type { Clock } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { readRequest } from './request.ts';
import type { ControlActor, Request } from './request.ts';

/** Connections at the same time; one more is told `limit` and closed. */
export const MAX_CONNECTIONS = 256;
/** Requests of one connection under way or answered but not yet taken; more are not read until one is done. */
export const MAX_IN_FLIGHT = 64;
/** Unsent answers, bytes, from which on no further request of that connection is begun. */
const MAX_UNSENT_BYTES = 2 * 1024 * 1024;
/** A frame that has begun must be whole within this time, ms. */
export const FRAME_TIMEOUT_MS = 10_000;
/** An answer must be taken by its reader within this time, ms. */
export const ANSWER_TIMEOUT_MS = 30_000;
/** How long close() lets answers under way go out, ms. */
const CLOSE_TIMEOUT_MS = 2_000;

/** Answers one request; may throw an AxError. Anything else it throws is told as `internal` and logged. */
export type ControlCall = (method: string, params: Record<string, unknown>, actor: ControlActor) => Promise<Record<string, unknown>>;

export interface ControlOptions {
  /** Absolute path of the socket; its folder must be the owner's with mode 0700, and is made when it is missing. */
  readonly path: string;
  readonly call: ControlCall;
  readonly log: Log;
  readonly clock: Clock;
}

export interface ControlServer {
  /** Takes no more requests, lets answers under way go out for at most 2 s, closes every connection and removes the socket. */
  close(): Promise<void>;
}

/**
 * Listens on the Unix socket (mode 0600). The caller holds the daemon lock: a socket file found there is a dead daemon's and is
 * removed. Throws AxError `invalid_state` when the folder or the file in the socket's place is not what it must be.
 */
export async function serveControl(options: ControlOptions): Promise<ControlServer> {
  await requireOwnFolder(dirname(options.path));
  await removeStaleSocket(options.path);
  const connections = new Set<Connection>();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    if (connections.size >= MAX_CONNECTIONS) {
      refuseConnection(socket, options.clock);
      return;
    }
    const connection = new Connection(socket, options);
    connections.add(connection);
    void connection.run().finally(() => connections.delete(connection));
  });
  await listen(server, options.path);
  await chmod(options.path, 0o600);
  server.on('error', (error) => options.log.error('control.listen_failed', { message: error.message }));
  return {
    close: async () => {
      const closed = new Promise<void>((resolve) => void server.close(() => resolve()));
      await Promise.all([...connections].map((connection) => connection.close()));
      await closed;
    },
  };
}

async function listen(server: Server, path: string): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

async function requireOwnFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder, { mode: 0o700 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  const found = await lstat(folder);
  const fault = (what: string, fix?: string): AxError =>
    new AxError(
      'invalid_state',
      `${folder} ${what}; the control socket needs a folder that is only its owner's`,
      fix === undefined ? {} : { fix },
    );
  if (found.isSymbolicLink()) throw fault('is a symbolic link');
  if (!found.isDirectory()) throw fault('is not a folder');
  if (found.uid !== process.getuid?.()) throw fault('belongs to another user');
  if ((found.mode & 0o077) !== 0) throw fault('is open to other users', `chmod 700 ${shellQuote(folder)}`);
}

async function removeStaleSocket(path: string): Promise<void> {
  const found = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (found === undefined) return;
  if (!found.isSocket()) throw new AxError('invalid_state', `${path} is in the way: it is not a socket`);
  await unlink(path);
}

function refuseConnection(socket: Socket, clock: Clock): void {
  const error = new AxError('limit', `this daemon serves ${MAX_CONNECTIONS} connections at once and has them all`, {
    details: { limit: MAX_CONNECTIONS },
  });
  // A client that is gone before it reads this has lost nothing.
  socket.on('error', () => socket.destroy());
  socket.on(
    'close',
    clock.after(CLOSE_TIMEOUT_MS, () => socket.destroy()),
  );
  // A close over unread bytes would reach the client as a reset, and the answer never.
  socket.resume();
  socket.end(encodeFrame(encode(failure(0, error))));
}

function failure(id: number, error: AxError): ControlResponse {
  return { v: CONTROL_PROTOCOL, id, ok: false, error: errorBody(error) };
}

class Connection {
  readonly #socket: Socket;
  readonly #options: ControlOptions;
  /** Bytes of a frame that has begun but is not whole. */
  #partial = 0;
  #inFlight = 0;
  #closing = false;
  readonly #waiters = new Set<() => void>();

  constructor(socket: Socket, options: ControlOptions) {
    this.#socket = socket;
    this.#options = options;
    // Errors also end the iteration in run(); without a listener a failed write alone would crash the daemon.
    socket.on('error', () => socket.destroy());
    socket.on('close', () => this.#changed());
  }

  /** Serves until the client ends, misbehaves or is closed; never rejects. */
  async run(): Promise<void> {
    try {
      for await (const frame of readFrames(this.#chunks())) {
        this.#partial -= FRAME_HEADER_BYTES + frame.length;
        await this.#until(() => this.#inFlight < MAX_IN_FLIGHT && this.#socket.writableLength < MAX_UNSENT_BYTES);
        if (this.#closing || this.#socket.destroyed) break;
        this.#begin(frame);
      }
    } catch (error) {
      await this.#endWith(error);
    }
    await this.#until(() => this.#inFlight === 0);
    this.#socket.end(() => this.#socket.destroy());
  }

  async close(): Promise<void> {
    this.#closing = true;
    const stop = this.#options.clock.after(CLOSE_TIMEOUT_MS, () => this.#socket.destroy());
    await this.#until(() => this.#inFlight === 0);
    stop();
    this.#socket.destroy();
  }

  async *#chunks(): AsyncGenerator<Uint8Array> {
    const source = (this.#socket.iterator({ destroyOnReturn: false }) as AsyncIterableIterator<Buffer>)[Symbol.asyncIterator]();
    for (;;) {
      const stop = this.#partial > 0 ? this.#options.clock.after(FRAME_TIMEOUT_MS, () => void this.#endWith(slowFrame())) : undefined;
      const next = await source.next();
      stop?.();
      if (next.done === true) return;
      this.#partial += next.value.length;
      yield next.value;
    }
  }

  /** Reads one request and starts it; throws what ends the connection. */
  #begin(frame: Uint8Array): void {
    const fields = asFields(decode(frame), 'a request');
    const id = whole(fields, 'id');
    let request: Request | AxError;
    try {
      request = readRequest(id, fields);
    } catch (error) {
      if (!(error instanceof AxError) || error.code === 'protocol_violation') throw error;
      request = error;
    }
    this.#inFlight += 1;
    void this.#serve(id, request).finally(() => {
      this.#inFlight -= 1;
      this.#changed();
    });
  }

  async #serve(id: number, request: Request | AxError): Promise<void> {
    if (request instanceof AxError) {
      await this.#send(failure(id, request));
      return;
    }
    const { method, params, actor } = request;
    let response: ControlResponse;
    try {
      response = { v: CONTROL_PROTOCOL, id, ok: true, result: await this.#options.call(method, params, actor) };
    } catch (error) {
      response = failure(id, this.#asRefusal(error, method));
    }
    await this.#send(response);
  }

  #asRefusal(error: unknown, method: string): AxError {
    if (error instanceof AxError && error.code !== 'internal') return error;
    this.#options.log.error('control.internal', {
      method,
      message: error instanceof Error ? (error.stack ?? error.message) : String(error),
    });
    return new AxError('internal', `${method} failed inside the daemon; its log says more`);
  }

  /** Resolves when the answer was taken by the socket or the connection is gone. */
  async #send(response: ControlResponse): Promise<void> {
    if (this.#socket.destroyed || !this.#socket.writable) return;
    const frame = this.#frameOf(response);
    const stop = this.#options.clock.after(ANSWER_TIMEOUT_MS, () => this.#socket.destroy());
    await new Promise<void>((resolve) => void this.#socket.write(frame, () => resolve()));
    stop();
  }

  #frameOf(response: ControlResponse): Uint8Array {
    try {
      return encodeFrame(encode(response));
    } catch (error) {
      const refusal = error instanceof AxError ? error : this.#asRefusal(error, 'an answer');
      return encodeFrame(encode(failure(response.id, refusal)));
    }
  }

  /** One error answer where the client still takes it, then the end of the connection. */
  async #endWith(error: unknown): Promise<void> {
    if (error instanceof AxError) {
      this.#options.log.warn('control.violation', { code: error.code, message: error.message });
      await this.#send(failure(0, error));
    } else {
      this.#options.log.debug('control.connection_lost', { message: error instanceof Error ? error.message : String(error) });
    }
    this.#socket.destroy();
  }

  #changed(): void {
    const waiters = [...this.#waiters];
    this.#waiters.clear();
    for (const waiter of waiters) waiter();
  }

  /** Resolves when the condition holds or the connection is gone. */
  async #until(holds: () => boolean): Promise<void> {
    while (!holds() && !this.#socket.destroyed) await new Promise<void>((resolve) => this.#waiters.add(resolve));
  }
}

function slowFrame(): AxError {
  return new AxError('protocol_violation', `a frame was not finished within ${FRAME_TIMEOUT_MS / 1000} s`);
}
