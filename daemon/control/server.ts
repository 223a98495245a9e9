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
import { encodeFrame, FrameReader } from '../../protocol/frame.ts';
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
/**
 * Requests of one connection begun in one turn of the event loop. What they lead to is on its way while the next ones are looked at, so that
 * the disk and the other host have work meanwhile, and no connection holds up another for long.
 */
const MOST_IN_TURN = 8;
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
    socket.on('close', () => connections.delete(connection));
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

/** Answers of one turn on their way into the socket. */
interface Batch {
  readonly answers: number;
  /** When its reader must have taken it. */
  readonly due: number;
}

/**
 * Serves until the client ends, misbehaves or is closed. Requests are taken as long as there is room for them, a few in one turn; answers of
 * one turn leave in one write. What must not take for ever is looked after by one timer.
 */
class Connection {
  readonly #socket: Socket;
  readonly #options: ControlOptions;
  readonly #reader = new FrameReader();
  #inFlight = 0;
  /** No further request is begun. */
  #closing = false;
  #hasClientEnded = false;
  /** More of what is here is taken in the next turn. */
  #isLater = false;
  /** Answers of this turn, encoded, and how many of those under way they answer. */
  #answers: Uint8Array[] = [];
  #answered = 0;
  /** Oldest first. */
  readonly #batches: Batch[] = [];
  /** When the frame that has begun must be whole. */
  #frameDue = Infinity;
  #watchedDue = Infinity;
  #cancelWatch = (): void => undefined;
  #whenIdle = (): void => undefined;

  constructor(socket: Socket, options: ControlOptions) {
    this.#socket = socket;
    this.#options = options;
    socket.on('data', (chunk: Buffer) => {
      this.#reader.push(chunk);
      this.#take();
    });
    socket.on('end', () => {
      this.#hasClientEnded = true;
      this.#take();
    });
    socket.on('error', (error) => {
      options.log.debug('control.connection_lost', { message: error.message });
      socket.destroy();
    });
    socket.on('close', () => {
      this.#closing = true;
      this.#cancelWatch();
      this.#whenIdle();
    });
  }

  async close(): Promise<void> {
    this.#closing = true;
    if (this.#inFlight > 0 && !this.#socket.destroyed) {
      const idle = new Promise<void>((resolve) => void (this.#whenIdle = resolve));
      const stop = this.#options.clock.after(CLOSE_TIMEOUT_MS, () => this.#socket.destroy());
      await idle;
      stop();
    }
    this.#socket.destroy();
  }

  get #isFull(): boolean {
    return this.#inFlight >= MAX_IN_FLIGHT || this.#socket.writableLength >= MAX_UNSENT_BYTES;
  }

  /** Begins what came and finds room, and stops the reading where there is none. */
  #take(): void {
    if (this.#isLater) return;
    try {
      for (let begun = 0; ; begun++) {
        if (this.#closing || this.#socket.destroyed) return;
        if (this.#isFull) break;
        if (begun === MOST_IN_TURN) return this.#takeLater();
        const frame = this.#reader.next();
        if (frame === undefined) return this.#tookAll();
        this.#frameDue = Infinity;
        this.#begin(frame);
      }
      // The time a frame has runs on only while it is read.
      this.#frameDue = Infinity;
      this.#socket.pause();
    } catch (error) {
      this.#fault(error);
    }
  }

  /** Takes the rest in the next turn; before that the socket is read once at most. */
  #takeLater(): void {
    this.#isLater = true;
    setImmediate(() => {
      this.#isLater = false;
      this.#take();
    });
  }

  #tookAll(): void {
    if (this.#hasClientEnded) {
      this.#reader.end();
      this.#closing = true;
      return this.#endIfIdle();
    }
    if (this.#reader.heldBytes === 0) this.#frameDue = Infinity;
    else if (this.#frameDue === Infinity) this.#watch((this.#frameDue = this.#options.clock.monotonic() + FRAME_TIMEOUT_MS));
    if (this.#socket.isPaused()) this.#socket.resume();
  }

  /** Reads one request and starts it; throws what ends the connection. */
  #begin(frame: Uint8Array): void {
    const fields = asFields(decode(frame), 'a request');
    const id = whole(fields, 'id');
    let request: Request;
    try {
      request = readRequest(id, fields);
    } catch (error) {
      if (!(error instanceof AxError) || error.code === 'protocol_violation') throw error;
      this.#inFlight += 1;
      return this.#answer(failure(id, error));
    }
    this.#inFlight += 1;
    const { method, params, actor } = request;
    this.#options.call(method, params, actor).then(
      (result) => this.#answer({ v: CONTROL_PROTOCOL, id, ok: true, result }),
      (error: unknown) => this.#answer(failure(id, this.#asRefusal(error, method))),
    );
  }

  #asRefusal(error: unknown, method: string): AxError {
    if (error instanceof AxError && error.code !== 'internal') return error;
    this.#options.log.error('control.internal', {
      method,
      message: error instanceof Error ? (error.stack ?? error.message) : String(error),
    });
    return new AxError('internal', `${method} failed inside the daemon; its log says more`);
  }

  /** Lets one request's answer leave at the end of this turn. */
  #answer(response: ControlResponse): void {
    this.#answered += 1;
    this.#send(response);
  }

  #send(response: ControlResponse): void {
    this.#answers.push(this.#frameOf(response));
    if (this.#answers.length === 1) process.nextTick(this.#flush);
  }

  readonly #flush = (): void => {
    const [answers, answered, socket] = [this.#answers, this.#answered, this.#socket];
    this.#answers = [];
    this.#answered = 0;
    if (socket.destroyed || !socket.writable) return this.#taken(answered);
    const due = this.#options.clock.monotonic() + ANSWER_TIMEOUT_MS;
    this.#batches.push({ answers: answered, due });
    const last = answers.pop()!;
    if (answers.length > 0) socket.cork();
    for (const answer of answers) socket.write(answer);
    socket.write(last, this.#batchTaken);
    if (answers.length > 0) socket.uncork();
    this.#watch(due);
  };

  /** Batches are taken in the order they were written. */
  readonly #batchTaken = (): void => this.#taken(this.#batches.shift()?.answers ?? 0);

  #taken(answers: number): void {
    this.#inFlight -= answers;
    if (this.#inFlight === 0) this.#whenIdle();
    if (this.#closing) this.#endIfIdle();
    else if (this.#socket.isPaused()) this.#take();
  }

  /** The client said that no more comes: with its last answer the connection ends. */
  #endIfIdle(): void {
    if (this.#hasClientEnded && this.#inFlight === 0) this.#socket.end(() => this.#socket.destroy());
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
  #fault(error: unknown): void {
    this.#closing = true;
    this.#frameDue = Infinity;
    this.#socket.pause();
    if (error instanceof AxError) {
      this.#options.log.warn('control.violation', { code: error.code, message: error.message });
      this.#send(failure(0, error));
      process.nextTick(() => this.#socket.end(() => this.#socket.destroy()));
    } else {
      this.#options.log.debug('control.connection_lost', { message: error instanceof Error ? error.message : String(error) });
      this.#socket.destroy();
    }
  }

  /** Sees to it that the timer runs out no later than this; one that runs out too early only looks. */
  #watch(due: number): void {
    if (due >= this.#watchedDue || this.#socket.destroyed) return;
    this.#cancelWatch();
    this.#watchedDue = due;
    this.#cancelWatch = this.#options.clock.after(due - this.#options.clock.monotonic(), () => {
      this.#watchedDue = Infinity;
      const now = this.#options.clock.monotonic();
      const answerDue = this.#batches[0]?.due ?? Infinity;
      if (answerDue <= now) this.#socket.destroy();
      else if (this.#frameDue <= now) this.#fault(slowFrame());
      this.#watch(Math.min(answerDue, this.#frameDue));
    });
  }
}

function slowFrame(): AxError {
  return new AxError('protocol_violation', `a frame was not finished within ${FRAME_TIMEOUT_MS / 1000} s`);
}
