/**
 * One connection to a socket file, as a command needs it: bytes each way, and its end.
 *
 * Owns that a short command does not pay for node:net: to load that with all of Node's streams, and to connect by it, is a sixth of such a command.
 * So what net itself stands on is used, which Node gives under a deprecated name: only in versions that it was tried in, and whatever is
 * unusual in it, up to a connection that does not come about, is left to node:net, which does it again and tells what is wrong.
 * Invariant: of the two ways the one that is used shows in nothing but time (test/cli/wire.test.ts).
 */
import { EventEmitter } from 'node:events';

/** What both ways give: emits `data`, then at most one `error`, then `close`. */
export interface Wire extends EventEmitter {
  write(bytes: Uint8Array): unknown;
  /** Ends it at once; with an error, that is told first. */
  destroy(error?: Error): unknown;
  /** It keeps the process alive no longer. */
  unref(): unknown;
}

/** Major versions of Node whose handles are known to be as they are described here. */
const KNOWN: ReadonlySet<string> = new Set(['22', '24', '26']);
/** The longest path that every system takes; a longer one could be cut short. */
const MAX_PATH_BYTES = 103;
/** libuv's word for the end of what comes. */
const END_OF_FILE = -4095;

/** A handle answers with 0, or with a system's error as a negative number. */
interface Handle {
  onread: (bytes: ArrayBuffer | undefined) => void;
  connect(request: object, path: string): number;
  readStart(): number;
  writeBuffer(request: object, bytes: Uint8Array): number;
  unref(): void;
  close(): void;
}

interface Request {
  oncomplete: (status: number) => void;
  /** Keeps what is being written from being collected. */
  bytes?: Uint8Array;
}

interface Bindings {
  readonly pipe: {
    readonly Pipe: new (kind: number) => Handle;
    readonly PipeConnectWrap: new () => Request;
    readonly constants: { readonly SOCKET: number };
  };
  readonly stream: {
    readonly WriteWrap: new () => Request;
    /** What belongs to the call of `onread` that runs: two of its numbers are at these places. */
    readonly streamBaseState: Int32Array;
    readonly kReadBytesOrError: number;
    readonly kArrayBufferOffset: number;
  };
}

/** A connection to the socket at `path`; rejects with the system's error. */
export async function openWire(path: string): Promise<Wire> {
  return (await openQuick(path)) ?? openUsual(path);
}

/** The usual way, by node:net; exported for its test. */
export async function openUsual(path: string): Promise<Wire> {
  const { createConnection } = await import('node:net');
  return new Promise((resolve, reject) => {
    const socket = createConnection({ path });
    socket.once('error', reject);
    socket.once('connect', () => {
      socket.off('error', reject);
      resolve(socket);
    });
  });
}

/** The quick way; undefined where it is not there or no connection came about by it: nothing has been sent then. Exported for its test. */
export async function openQuick(path: string): Promise<Wire | undefined> {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) return undefined;
  const bindings = findBindings();
  if (bindings === undefined) return undefined;
  const { Pipe, PipeConnectWrap, constants } = bindings.pipe;
  const handle = new Pipe(constants.SOCKET);
  const request = new PipeConnectWrap();
  const status = await new Promise<number>((resolve) => {
    request.oncomplete = resolve;
    const failed = handle.connect(request, path);
    if (failed !== 0) resolve(failed);
  });
  const wire = status === 0 ? new HandleWire(handle, bindings.stream) : undefined;
  if (wire?.start() === true) return wire;
  handle.close();
  return undefined;
}

function findBindings(): Bindings | undefined {
  if (!KNOWN.has(process.versions.node.split('.', 1)[0] ?? '')) return undefined;
  const { binding } = process as unknown as { readonly binding: (name: string) => unknown };
  try {
    return { pipe: binding('pipe_wrap'), stream: binding('stream_wrap') } as Bindings;
  } catch {
    return undefined; // not allowed to this process
  }
}

class HandleWire extends EventEmitter implements Wire {
  readonly #handle: Handle;
  readonly #stream: Bindings['stream'];
  #isOver = false;

  constructor(handle: Handle, stream: Bindings['stream']) {
    super();
    this.#handle = handle;
    this.#stream = stream;
  }

  /** Begins to read; false when it cannot. */
  start(): boolean {
    const { streamBaseState, kReadBytesOrError, kArrayBufferOffset } = this.#stream;
    this.#handle.onread = (bytes) => {
      const length = streamBaseState[kReadBytesOrError] ?? END_OF_FILE;
      if (bytes !== undefined && length > 0) this.emit('data', new Uint8Array(bytes, streamBaseState[kArrayBufferOffset], length));
      else if (length < 0) this.destroy(length === END_OF_FILE ? undefined : broken('read', length));
    };
    return this.#handle.readStart() === 0;
  }

  write(bytes: Uint8Array): void {
    if (this.#isOver) return;
    const request = new this.#stream.WriteWrap();
    request.bytes = bytes;
    request.oncomplete = (status) => void (status < 0 && this.destroy(broken('write', status)));
    const failed = this.#handle.writeBuffer(request, bytes);
    if (failed !== 0) this.destroy(broken('write', failed));
  }

  destroy(error?: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#handle.close();
    // As a socket does it: never before whoever called has gone on.
    process.nextTick(() => {
      if (error !== undefined) this.emit('error', error);
      this.emit('close');
    });
  }

  unref(): void {
    if (!this.#isOver) this.#handle.unref();
  }
}

function broken(what: string, status: number): Error {
  return new Error(`${what} failed (${status})`);
}
