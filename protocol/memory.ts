/**
 * Giving back the memory of large byte strings as soon as their last reader is done.
 *
 * Owns the one rule by which that is safe. Left to the engine, such memory waits for a walk through its whole heap, which it begins after
 * some 64 MiB: at hundreds of MB a second these walks cost more than the ciphers and hashes of the same bytes.
 * Invariant: only the one owner of bytes releases them; whoever looks at them afterwards finds none.
 */

/** Less is left to the engine: it costs little, and Node's small Buffers share their memory. */
const WORTH_BYTES = 8 * 1024 + 1;
/** More of one frame than a record of the link (65,519) or a socket brings at once: with so much in it, memory holds one frame and no other. */
const FRAME_BYTES = 64 * 1024;

/**
 * Nobody looks at these bytes any more. They are given back where they are large and all of their memory, or all behind a head of so many
 * bytes, which nobody looks at either.
 */
export function release({ buffer, byteOffset, byteLength }: Uint8Array, head = 0): void {
  const isAll = byteLength + byteOffset === buffer.byteLength && (byteOffset === 0 || byteOffset === head);
  if (isAll && byteLength >= WORTH_BYTES && buffer instanceof ArrayBuffer) buffer.transfer(0);
}

/** The same for the most of a decoded frame, whose other parts were copied when it was decoded: the memory of the frame is given back. */
export function releaseFrame(bytes: Uint8Array): void {
  const { buffer, byteLength } = bytes;
  if (byteLength >= FRAME_BYTES && byteLength * 2 > buffer.byteLength && buffer instanceof ArrayBuffer) buffer.transfer(0);
  else release(bytes);
}

/** Memory of large bytes that nobody reads any more but who writes them out. */
const passing = new WeakSet<object>();

/** Gives bytes to whoever writes them out, who gives them back. Only for bytes that nobody else reads from now on. */
export function pass(bytes: Uint8Array): Uint8Array {
  if (bytes.byteLength >= WORTH_BYTES && bytes.byteLength === bytes.buffer.byteLength) passing.add(bytes.buffer);
  return bytes;
}

/**
 * These bytes were written out, as all that lie before them in what was passed on. With the last of these all of them are given back, at the
 * end of the running call: until then whoever cut them into parts may take their length off what it has left to send.
 */
export function releasePassed({ buffer, byteOffset, byteLength }: Uint8Array): void {
  const isLast = byteOffset + byteLength === buffer.byteLength;
  if (isLast && passing.delete(buffer) && buffer instanceof ArrayBuffer) queueMicrotask(() => void buffer.transfer(0));
}

/** New memory that holds whatever was there before: its one owner writes each byte of it before anybody reads one. */
export function unfilled(bytes: number): Uint8Array<ArrayBuffer> {
  return bytes < WORTH_BYTES ? new Uint8Array(bytes) : new Uint8Array(Buffer.allocUnsafeSlow(bytes).buffer);
}
