/**
 * Giving back the memory of large byte strings as soon as their last reader is done.
 *
 * Owns the one rule by which that is safe. Left to the engine, such memory waits for a walk through its whole heap, which it begins after
 * some 64 MiB: at hundreds of MB a second these walks cost more than the ciphers and hashes of the same bytes.
 * Invariant: only the one owner of bytes releases them; whoever looks at them afterwards finds none.
 */

/** Less is left to the engine: it costs little, and Node's small Buffers share their memory. */
const WORTH_BYTES = 8 * 1024 + 1;
/** More than a socket or a record of the link brings at once: with so much in it, memory holds one frame and no other. */
const FRAME_BYTES = 64 * 1024;

/** Nobody looks at these bytes any more. They are given back where they are large and all of their memory. */
export function release({ buffer, byteLength }: Uint8Array): void {
  if (byteLength >= WORTH_BYTES && byteLength === buffer.byteLength && buffer instanceof ArrayBuffer) buffer.transfer(0);
}

/** The same for the most of a decoded frame, whose other parts were copied when it was decoded: the memory of the frame is given back. */
export function releaseFrame(bytes: Uint8Array): void {
  const { buffer, byteLength } = bytes;
  if (byteLength >= FRAME_BYTES && byteLength * 2 > buffer.byteLength && buffer instanceof ArrayBuffer) buffer.transfer(0);
  else release(bytes);
}
