/**
 * The keys of decoded maps: each known by its bytes, so that its text is made once and is the same string in every object.
 *
 * Owns a table of the keys that were seen and, for each, a guess which one comes next: in a message of a known form every key is the one
 * guessed, and only its bytes are compared. The table has a fixed number of places and begins anew after so many keys: hostile keys cost
 * their sender the guesses, and us no memory.
 * Invariant: a key's `next` is behind it in canonical order, so that a chain of guesses never comes to the same key twice.
 */

/** Longest key that is known, with its head. */
export const KNOWN_BYTES = 33;
const PLACES = 1024;
/** Keys made before all are forgotten: a forgotten one may live on as the guess of another. */
const MAX_MADE = 4 * PLACES;

const NO_BYTES = new Uint8Array(0);

export class Key {
  readonly text: string;
  /** Tells it from other known keys. */
  readonly number: number;
  /** As it is written, with its head. */
  readonly bytes: Uint8Array;
  /** It is set as any other: neither the prototype nor an index, for which the engine would make places for all indices below. */
  readonly isPlain: boolean;
  /** The one that came behind it last. */
  next: Key | undefined;
  #inside: Key | undefined;

  constructor(text: string, bytes: Uint8Array, number = 0) {
    this.text = text;
    this.number = number;
    this.bytes = bytes;
    this.isPlain = text !== '__proto__' && !/^\d/.test(text);
  }

  /** What stands before the first key of a map that is its value, or in its value. */
  get inside(): Key {
    this.#inside ??= new Key('', NO_BYTES);
    return this.#inside;
  }

  /** Does it stand there in these bytes? */
  isAt(data: Uint8Array, from: number): boolean {
    const { bytes } = this;
    const { length } = bytes;
    if (from + length > data.length) return false;
    for (let i = 0; i < length; i++) if (data[from + i] !== bytes[i]) return false;
    return true;
  }
}

let places: (Key | undefined)[] = [];
let made = 0;
let noKey = new Key('', NO_BYTES);
forgetKeys();

function forgetKeys(): void {
  places = Array.from({ length: PLACES }, () => undefined);
  noKey = new Key('', NO_BYTES);
  made = 0;
}

/** What stands before the first key of the outermost map. */
export function beforeKeys(): Key {
  return noKey;
}

/** The known key that has these bytes, head and all; it is guessed from now on behind `before`, if that is in order. */
export function knownKey(before: Key, data: Uint8Array, from: number, to: number): Key | undefined {
  const key = places[placeOf(data, from, to)];
  // Its own head says how long it is.
  if (key === undefined || !key.isAt(data, from)) return undefined;
  guess(before, key);
  return key;
}

/** Remembers a key that was not known. */
export function learnKey(before: Key, text: string, data: Uint8Array, from: number, to: number): Key {
  if (made === MAX_MADE) forgetKeys();
  made++;
  const key = new Key(text, Uint8Array.from(data.subarray(from, to)), made);
  places[placeOf(data, from, to)] = key;
  guess(before, key);
  return key;
}

function guess(before: Key, key: Key): void {
  if (Buffer.compare(before.bytes, key.bytes) < 0) before.next = key;
}

function placeOf(data: Uint8Array, from: number, to: number): number {
  let hash = 0;
  for (let i = from; i < to; i++) hash = (hash * 31 + data[i]!) | 0;
  return (hash ^ (hash >>> 10)) & (PLACES - 1);
}

/** Longest text that is looked up among those known. */
export const SHORT_TEXT = 16;
/** Short texts that came last: states, kinds and names are the same few again and again. */
const texts: string[] = Array.from({ length: PLACES }, () => '');

/** The ASCII text in these bytes if it was the last one to take its place; undefined if not. */
export function knownText(data: Uint8Array, from: number, to: number): string | undefined {
  const text = texts[placeOf(data, from, to)]!;
  if (text.length !== to - from) return undefined;
  for (let i = from; i < to; i++) if (data[i] !== text.charCodeAt(i - from)) return undefined;
  return text;
}

/** Remembers a text, unless it is more than ASCII: what is known must have one spelling. */
export function learnText(text: string, data: Uint8Array, from: number, to: number): void {
  if (text.length === to - from) texts[placeOf(data, from, to)] = text;
}

/** Fields that an object may get one by one before the engine keeps it as a hash table, which is slow to read, write and copy. */
export const FEW_FIELDS = 12;
const MAX_WIDE_FIELDS = 64;
const MAX_WIDE_SHAPES = 64;
/** One object of each shape with many fields: once the engine knows the shape as one that was declared, it keeps others of it as fast. */
const wideShapes = new Map<number, object>();

/** Takes note of the shape of an object with many fields; `shape` tells it from others. */
export function learnWide(shape: number, fields: object): void {
  if (wideShapes.has(shape)) return;
  const keys = Object.keys(fields);
  // Indices come first, and would have places made for all below them.
  if (keys.length > MAX_WIDE_FIELDS || /^\d/.test(keys[0]!)) return;
  if (wideShapes.size === MAX_WIDE_SHAPES) wideShapes.clear();
  const declared = {};
  for (const key of keys) Object.defineProperty(declared, key, { value: null, configurable: true, enumerable: true, writable: true });
  wideShapes.set(shape, declared);
}
