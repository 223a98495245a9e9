/**
 * A small client of the control socket, for tests that need hundreds of sends and fetches: one connection, many requests on it.
 *
 * Speaks protocol/frame and protocol/codec, as the CLI does, without a process per request. A connection that ends fails what is
 * under way with `lost`; whether such a request was carried out is then unknown, exactly as for a CLI whose daemon was killed.
 */
import { createConnection, type Socket } from 'node:net';
import { asFields, decode, encode } from '../../protocol/codec.ts';
import type { Method, SessionEnvironment } from '../../protocol/control.ts';
import { AxError, isErrorCode } from '../../protocol/errors.ts';
import { encodeFrame, FrameReader } from '../../protocol/frame.ts';
import { release } from '../../protocol/memory.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';

const ORIGIN = { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'test' };
const ANSWER_LIMIT_MS = 40_000;

/** The connection ended before the answer came. */
export class Lost extends Error {}

interface Waiting {
  readonly resolve: (result: Record<string, unknown>) => void;
  readonly reject: (error: Error) => void;
}

/** What was asked in one turn leaves in one write, and all answers of one chunk are told in one turn: load on a daemon is to cost little here. */
export class ControlClient {
  readonly #socket: Socket;
  readonly #reader = new FrameReader();
  readonly #waiting = new Map<number, Waiting>();
  readonly #ended: Promise<void>;
  #nextId = 1;
  #hasEnded = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('error', () => socket.destroy()); // told to every waiting request below
    socket.on('data', (chunk: Buffer) => this.#take(chunk));
    this.#ended = new Promise((resolve) => {
      socket.on('close', () => {
        this.#end('the connection ended');
        resolve();
      });
    });
  }

  /** AxError as the daemon answered, or Lost. */
  async call<T>(method: Method, params: Record<string, unknown> = {}, session: SessionEnvironment | null = null): Promise<T> {
    if (this.#hasEnded) throw new Lost(`${method}: not connected`);
    const id = this.#nextId++;
    const answer = new Promise<Record<string, unknown>>((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    this.#write(encode({ v: CONTROL_PROTOCOL, id, method, params, origin: ORIGIN, session }));
    const timer = setTimeout(() => this.#socket.destroy(), ANSWER_LIMIT_MS);
    try {
      return (await answer) as T;
    } finally {
      clearTimeout(timer);
    }
  }

  async close(): Promise<void> {
    this.#socket.destroy();
    await this.#ended;
  }

  #write(request: Uint8Array): void {
    const frame = encodeFrame(request);
    release(request);
    if (this.#socket.writableCorked === 0) {
      this.#socket.cork();
      process.nextTick(() => this.#socket.uncork());
    }
    this.#socket.write(frame, () => release(frame));
  }

  #take(chunk: Buffer): void {
    try {
      this.#reader.push(chunk);
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) this.#answered(frame);
    } catch (error) {
      this.#end(error instanceof Error ? error.message : String(error));
    }
  }

  #answered(frame: Uint8Array): void {
    const answer = asFields(decode(frame), 'an answer');
    const id = Number(answer['id']);
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (answer['ok'] === true) waiting?.resolve(asFields(answer['result'], 'a result'));
    else waiting?.reject(errorOf(asFields(answer['error'], 'an error')));
  }

  #end(why: string): void {
    this.#hasEnded = true;
    this.#socket.destroy();
    for (const waiting of this.#waiting.values()) waiting.reject(new Lost(why));
    this.#waiting.clear();
  }
}

function errorOf(body: Record<string, unknown>): AxError {
  const code = body['code'];
  const details = body['details'] as Record<string, string> | undefined;
  return new AxError(isErrorCode(code) ? code : 'internal', String(body['message']), details === undefined ? {} : { details });
}

/** Connects to a daemon's control socket; Lost when nobody listens. */
export async function connectControl(path: string): Promise<ControlClient> {
  const socket = createConnection({ path });
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve);
    socket.once('error', (error) => reject(new Lost(error.message)));
  });
  return new ControlClient(socket);
}
