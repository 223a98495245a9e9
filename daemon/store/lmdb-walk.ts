/**
 * How LMDB is walked: bounds as it takes them, bytes as they leave it, and what a commit has written over it.
 *
 * Pure but for the bytes it copies; the store owns what is open.
 */
import { encodeKey, MAX_KEY_BYTES } from './store.ts';
import type { RangeOptions, StoreEntry } from './store.ts';
import type { Written } from './overlay.ts';

export interface Bounds {
  readonly start: Uint8Array;
  readonly end: Uint8Array;
  readonly limit: number;
  readonly reverse: boolean;
  readonly exclusiveStart: boolean;
  readonly inclusiveEnd: boolean;
}

export const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
export const LOWEST = Uint8Array.of(0);
/** Above every key: 0xff begins no UTF-8 text. */
const HIGHEST = Uint8Array.of(0xff);

/** lmdb's own way to say [start, end), or undefined if nothing can lie within. */
export function boundsOf({ start = '', end, reverse = false, limit = Infinity }: RangeOptions): Bounds | undefined {
  const low = start === '' ? LOWEST : bound(start);
  const high = end === undefined ? HIGHEST : bound(end);
  if (limit <= 0 || high.length === 0 || Buffer.compare(low, high) >= 0) return undefined;
  return reverse
    ? { start: high, end: low, limit, reverse, exclusiveStart: true, inclusiveEnd: true }
    : { start: low, end: high, limit, reverse, exclusiveStart: false, inclusiveEnd: false };
}

/** A bound may be longer than any key; what is beyond one byte more than a key cannot change the order. */
function bound(text: string): Uint8Array {
  return new TextEncoder().encode(text).subarray(0, MAX_KEY_BYTES + 1);
}

/** lmdb hands out a Buffer that may be part of a pool: a plain copy stays valid and shares memory with nothing. */
export function ownBytes(bytes: Uint8Array): Uint8Array {
  return bytes.byteLength === bytes.buffer.byteLength && bytes.buffer instanceof ArrayBuffer
    ? new Uint8Array(bytes.buffer)
    : new Uint8Array(bytes);
}

export const NO_ENTRIES: ReadonlyMap<string, Written> = new Map();

/** What LMDB has within the bounds, with what was written over it since. */
export function merged(below: readonly StoreEntry[], above: ReadonlyMap<string, Written>, { reverse, limit }: Bounds): StoreEntry[] {
  const entries = below.filter(({ key }) => !above.has(key));
  for (const [key, value] of above) if (value !== null) entries.push({ key, value });
  const sign = reverse ? -1 : 1;
  return entries.sort((a, b) => sign * Buffer.compare(encodeKey(a.key), encodeKey(b.key))).slice(0, limit);
}
