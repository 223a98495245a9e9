/**
 * The stand-in Codex daemon's socket: the files of it, WebSocket framing, and everything that can go wrong with a connection.
 *
 * Owns connections, the switches that break them, and broadcasts; what a request is answered with is methods.ts's. What is no request is
 * ignored without a word, and a connection ends without a close frame, as the genuine one was seen to do.
 */
import { createHash } from 'node:crypto';
import { chmodSync, existsSync, lstatSync, mkdirSync, realpathSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer, type Server, type Socket } from 'node:net';
import { dirname, join } from 'node:path';
import { WebSocketServer, type WebSocket } from 'ws';
import { RpcError, type Client, type Methods } from './methods.ts';
import type { ConnectionMode, Emit, Fault } from './options.ts';

const MAX_UNFRAGMENTED = 16_777_216;
const OVERLOADED = new RpcError(-32001, 'Server overloaded; retry later.');

export interface ServerOptions {
  readonly home: string;
  readonly socketRoot: string | undefined;
  readonly connections: ConnectionMode;
  readonly emit: Emit;
}

interface Request {
  readonly id: number | string;
  readonly method: string;
  readonly params: unknown;
}

class Connection implements Client {
  readonly number: number;
  readonly socket: WebSocket;
  isInitialized = false;
  isExperimental = false;
  optOut: ReadonlySet<string> = new Set();
  name = '';

  constructor(number: number, socket: WebSocket) {
    this.number = number;
    this.socket = socket;
  }

  notify(method: string, params: unknown): void {
    if (!this.isInitialized || this.optOut.has(method)) return;
    this.say(JSON.stringify({ method, params, emittedAtMs: Date.now() }));
  }

  say(text: string): void {
    if (this.socket.readyState === this.socket.OPEN) this.socket.send(text);
  }
}

export class SocketServer {
  /** The path that clients know. */
  readonly path: string;
  /** Where it really listens. */
  readonly target: string;
  mode: ConnectionMode;
  readonly #options: ServerOptions;
  readonly #methods: Methods;
  readonly #server: Server;
  readonly #http = createHttpServer((request) => request.socket.destroy()); // a plain GET: closed without an answer
  readonly #webSockets = new WebSocketServer({ noServer: true, perMessageDeflate: false, maxPayload: 64 * 1024 * 1024 });
  readonly #connections = new Set<Connection>();
  readonly #sockets = new Set<Socket>();
  #faults: { readonly method: string; readonly fault: Fault; times: number }[] = [];
  #held: (() => void)[] = [];
  #next = 1;

  constructor(options: ServerOptions, methods: Methods) {
    this.#options = options;
    this.#methods = methods;
    this.mode = options.connections;
    const folder = join(options.home, 'app-server-control');
    if (mkdirSync(folder, { recursive: true, mode: 0o700 }) !== undefined) chmodSync(folder, 0o700);
    this.path = join(folder, 'app-server-control.sock');
    this.target = options.socketRoot === undefined ? this.path : hiddenPath(this.path, options.socketRoot);
    this.#server = createServer((socket) => this.#onSocket(socket));
    this.#http.on('clientError', (_error, socket) => socket.destroy());
    this.#http.on('upgrade', (request, socket, head) => {
      this.#webSockets.handleUpgrade(request, socket, head, (webSocket) => this.#onConnection(webSocket));
    });
    this.#webSockets.on('headers', (headers) => {
      headers.push(`x-codex-websocket-max-unfragmented-message-bytes: ${MAX_UNFRAGMENTED}`);
    });
  }

  get connections(): number {
    return this.#connections.size;
  }

  async listen(): Promise<void> {
    for (const path of new Set([this.path, this.target])) rmSync(path, { force: true }); // a killed one leaves both
    if (this.target !== this.path) {
      mkdirSync(dirname(this.target), { recursive: true, mode: 0o700 });
      writeFileSync(`${this.target}.lock`, '', { mode: 0o600 });
    }
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(this.target, resolve);
    });
    chmodSync(this.target, 0o600);
    if (this.target !== this.path) symlinkSync(this.target, this.path);
  }

  /** A clean stop: both files are gone. */
  close(): void {
    this.cut();
    this.#server.close();
    this.removeSocket();
  }

  removeSocket(): void {
    for (const path of new Set([this.path, this.target])) if (isThere(path)) rmSync(path);
  }

  /** Nobody listens any more and the files stay, as after a kill. */
  leaveStale(): void {
    const aside = `${this.target}.aside`;
    renameSync(this.target, aside); // closing removes the file by its name
    this.#server.close();
    renameSync(aside, this.target);
    this.cut();
  }

  /** Breaks every connection. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** The next `times` requests of a method (`*`: any) go wrong. */
  fault(method: string, fault: Fault, times: number): void {
    this.#faults.push({ method, fault, times });
  }

  mend(): void {
    this.#faults = [];
    this.release();
  }

  /** Gives the answers that were held. */
  release(): void {
    for (const answer of this.#held.splice(0)) answer();
  }

  broadcast(method: string, params: unknown): void {
    for (const connection of this.#connections) connection.notify(method, params);
  }

  /** The same text to every client, whatever it is. */
  say(text: string): void {
    for (const connection of this.#connections) connection.say(text);
  }

  #onSocket(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('close', () => this.#sockets.delete(socket));
    socket.on('error', () => socket.destroy()); // a client that broke off
    if (this.mode === 'serve') this.#http.emit('connection', socket);
    if (this.mode === 'close') socket.destroy();
    if (this.mode === 'garbage') socket.end('\u0000\u001b]0;garbage\u0007 no HTTP\r\n\r\n'.repeat(100));
    if (this.mode === 'refuse') socket.end('HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n');
    if (this.mode === 'hang') socket.resume();
  }

  #onConnection(socket: WebSocket): void {
    const connection = new Connection(this.#next++, socket);
    const { emit } = this.#options;
    this.#connections.add(connection);
    emit({ event: 'connected', connection: connection.number });
    socket.close = () => socket.terminate(); // no close frame is answered
    socket.on('error', () => socket.terminate()); // a frame that is none
    socket.on('close', () => {
      this.#connections.delete(connection);
      emit({ event: 'closed', connection: connection.number });
    });
    socket.on('message', (data, isBinary) => {
      if (!isBinary) this.#onText(connection, (data as Buffer).toString('utf8'));
    });
  }

  #onText(connection: Connection, text: string): void {
    let value: Partial<Request>;
    try {
      value = JSON.parse(text) as Partial<Request>;
    } catch {
      return; // ignored, and the connection goes on
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value) || typeof value.method !== 'string') return;
    const { id, method, params } = value;
    if (id === undefined) return this.#options.emit({ event: 'notification', connection: connection.number, method });
    this.#onRequest(connection, { id, method, params });
  }

  #onRequest(connection: Connection, request: Request): void {
    const fault = this.#takeFault(request.method);
    const { method, params } = request;
    this.#options.emit({ event: 'request', connection: connection.number, method, params, fault: fault?.kind ?? null });
    if (fault?.kind === 'drop_before') return connection.socket.terminate();
    if (fault?.kind === 'silent_before') return;
    const wasInitialized = connection.isInitialized;
    const answer = this.#answer(connection, request, fault);
    if (fault?.kind === 'drop_after') return connection.socket.terminate();
    if (fault?.kind === 'silent_after') return;
    const give = (): void => connection.say(answer);
    if (fault?.kind === 'hold') this.#held.push(give);
    else if (fault?.kind === 'slow') setTimeout(give, fault.ms);
    else give();
    if (wasInitialized || !connection.isInitialized) return;
    connection.notify('configWarning', { summary: 'stand-in', details: null });
    connection.notify('remoteControl/status/changed', { status: 'disabled' });
  }

  #answer(connection: Connection, request: Request, fault: Fault | undefined): string {
    const { id, method, params } = request;
    if (fault?.kind === 'raw') return fault.text.replaceAll('$ID', JSON.stringify(id));
    if (fault?.kind === 'result') return JSON.stringify({ id, result: fault.result });
    try {
      if (fault?.kind === 'overload') throw OVERLOADED;
      if (fault?.kind === 'error') throw new RpcError(fault.code, fault.message);
      if (fault?.kind === 'unknown_variant') throw this.#methods.unknownVariant(method);
      return JSON.stringify({ id, result: this.#methods.answer(connection, method, params) });
    } catch (error) {
      if (!(error instanceof RpcError)) throw error;
      const { code, message, data } = error;
      this.#options.emit({ event: 'refused', method, code, message });
      return JSON.stringify({ id, error: { code, message, ...(data === undefined ? {} : { data }) } });
    }
  }

  #takeFault(method: string): Fault | undefined {
    const found = this.#faults.find((one) => one.method === method || one.method === '*');
    if (found === undefined) return undefined;
    found.times -= 1;
    if (found.times <= 0) this.#faults = this.#faults.filter((one) => one !== found);
    return found.fault;
  }
}

/** Where the genuine daemon puts the socket that the public path leads to, under `root` instead of `/tmp`. */
function hiddenPath(path: string, root: string): string {
  const whole = join(realpathSync(dirname(path)), 'app-server-control.sock');
  const uid = process.getuid?.() ?? 0;
  return join(root, `codex-daemon-${uid}`, createHash('sha256').update(whole).digest('hex'));
}

function isThere(path: string): boolean {
  return existsSync(path) || lstatSync(path, { throwIfNoEntry: false }) !== undefined;
}
