/**
 * Standard output and error where Node itself would swallow them.
 *
 * Owns one repair. In a sandbox that refuses to tell what a socket is (getsockname), Node takes a descriptor that is one for nothing and
 * gives a stream that takes every byte and writes none, without an error. A body would then count as read that nobody saw. Such a
 * stream is replaced by one that writes to the descriptor and reports what becomes of it.
 */
import { write } from 'node:fs';
import { Writable } from 'node:stream';
import { pause } from './wait.ts';

/** Between two tries at a descriptor that takes nothing at the moment, ms. */
const RETRY_MS = 5;

class Descriptor extends Writable {
  readonly fd: number;

  constructor(fd: number) {
    super({ decodeStrings: true });
    this.fd = fd;
  }

  override _write(chunk: Uint8Array, _encoding: string, done: (error?: Error | null) => void): void {
    write(this.fd, chunk, (error, written) => {
      if (error !== null && error.code !== 'EAGAIN') done(error);
      else if (error !== null) void pause(RETRY_MS).then(() => this._write(chunk, _encoding, done));
      else if (written < chunk.length) this._write(chunk.subarray(written), _encoding, done);
      else done();
    });
  }
}

/**
 * Makes both streams, when they are first asked for, such as swallow nothing; before anything is written to them. A reader that has closed
 * the pipe early is told by the write itself; unheard, the event would end the process with a stack.
 */
export function mendStreams(): void {
  for (const [name, fd] of [
    ['stdout', 1],
    ['stderr', 2],
  ] as const) {
    // Node makes each at the first look at it, and most commands use one of them.
    const node = Object.getOwnPropertyDescriptor(process, name) ?? {};
    const get = (): Writable => {
      Object.defineProperty(process, name, node);
      const value = heard(mendedOf(process[name], fd));
      Object.defineProperty(process, name, { configurable: true, enumerable: true, value });
      return value;
    };
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get });
  }
}

/** Every stream that writes is of a class of its own; the one that swallows is a bare Writable. */
function mendedOf(stream: Writable, fd: number): Writable {
  return stream.constructor === Writable ? new Descriptor(fd) : stream;
}

function heard(stream: Writable): Writable {
  return stream.on('error', () => {});
}
