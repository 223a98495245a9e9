/**
 * Foreign bytes to values: CBOR read once, in its one strict form, within bounds of depth and number.
 *
 * Owns the reading and every refusal: what is no text key, no shortest number, no UTF-8, a key that was there before, a tag, an
 * indefinite length, a number that is not finite or not safe, bytes behind the value. Nothing is made for an announced length before its
 * bytes are there. Bytes read have memory of their own, except a byte string that is half of the memory it came in or more: that one
 * is a view, so whoever keeps it keeps at most twice its length, and nobody may write into bytes that were decoded.
 * Gives a value or throws AxError `protocol_violation`; what is remembered of keys is bounded.
 */
import { beforeKeys, FEW_FIELDS, Key, KNOWN_BYTES, knownKey, knownText, learnKey, learnText, learnWide, SHORT_TEXT } from './cbor-keys.ts';
import { AxError } from './errors.ts';

export type Value = null | boolean | number | string | Uint8Array | readonly Value[] | { readonly [key: string]: Value };

const MAX_DEPTH = 16;
/** Values and keys in one message. The fullest honest ones (session lists) have half of it; a frame of single-byte items would hold the event loop ten times longer. */
const MAX_ITEMS = 131_072;
/** Byte strings below this length are copied; their copies lie in the heap of the engine up to 64. */
const VIEW_BYTES = 65;
const NOTHING = new Uint8Array(0);
/** What Buffer.toString calls, after making a Buffer and checks that cost as much as the call. */
const native = Buffer.prototype as unknown as { utf8Slice(this: Uint8Array, from: number, to: number): string };
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The bytes that are read, and where. */
let data: Uint8Array = NOTHING;
let at = 0;
let items = 0;

/** Decodes foreign bytes: one whole value, strict form, text that is UTF-8, text keys, at most 16 levels deep and 131,072 values and keys. */
export function decode(bytes: Uint8Array): Value {
  // Node's Buffers have a `slice` that is a view and not a copy.
  data = bytes.constructor === Uint8Array ? bytes : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  at = 0;
  items = 0;
  try {
    const value = readValue(0, beforeKeys());
    if (at !== data.length) throw malformed('bytes behind the value');
    return value;
  } finally {
    data = NOTHING;
  }
}

/** What every refusal of foreign bytes is. */
export function violation(message: string): AxError {
  return new AxError('protocol_violation', message);
}

function malformed(why: string): AxError {
  return violation(`not a well-formed message: ${why}`);
}

/** The next value; `depth` is the number of lists and maps around it, and `inside` stands before the first key of a map. */
function readValue(depth: number, inside: Key): Value {
  if (++items > MAX_ITEMS) throw malformed(`more than ${MAX_ITEMS} values`);
  if (at >= data.length) throw malformed('the bytes end before the value');
  const head = data[at++]!;
  const major = head >> 5;
  if (major === 7) return readSimple(head);
  const info = head & 31;
  const number = info < 24 ? info : readNumber(info);
  switch (major) {
    case 0:
      return number;
    case 1:
      return readNegative(number);
    case 2:
      return readBytes(number);
    case 3:
      return readText(number);
    case 4:
      return readList(number, depth, inside);
    case 5:
      return readMap(number, depth, inside);
    default:
      throw malformed('a tag');
  }
}

/** The number behind a head whose low part does not hold it, in its shortest form. */
function readNumber(info: number): number {
  if (info > 27) throw malformed('indefinite length');
  const from = at;
  at += 1 << (info - 24);
  if (at > data.length) throw malformed('the bytes end inside a number');
  let number: number;
  if (info === 24) number = data[from]!;
  else if (info === 25) number = data[from]! * 0x100 + data[from + 1]!;
  else number = read32(from);
  if (info === 27) {
    const low = read32(from + 4);
    if (number === 0) throw malformed('a number longer than it needs to be');
    if (number > 0x1fffff) throw malformed('a number that is too large');
    return number * 0x100000000 + low;
  }
  if (number < (info === 24 ? 24 : info === 25 ? 0x100 : 0x10000)) throw malformed('a number longer than it needs to be');
  return number;
}

function read32(from: number): number {
  return data[from]! * 0x1000000 + ((data[from + 1]! << 16) | (data[from + 2]! << 8) | data[from + 3]!);
}

function readSimple(head: number): Value {
  if (head === 0xf4) return false;
  if (head === 0xf5) return true;
  if (head === 0xf6) return null;
  if (head < 0xf9 || head > 0xfb) throw malformed('a value of no kind that is taken');
  const from = take(head === 0xf9 ? 2 : head === 0xfa ? 4 : 8);
  const view = new DataView(data.buffer, data.byteOffset + from, at - from);
  const number = head === 0xf9 ? halfOf(view.getUint16(0)) : head === 0xfa ? view.getFloat32(0) : view.getFloat64(0);
  if (!Number.isFinite(number)) throw malformed('a number that is not finite');
  return number;
}

/** A number of 16 bits: one of sign, five of exponent, ten of fraction. */
function halfOf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return NaN;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

function readNegative(number: number): number {
  if (number === Number.MAX_SAFE_INTEGER) throw malformed('a number that is too large');
  return -1 - number;
}

/** Moves over so many bytes, which must be there, and tells where they begin. */
function take(length: number): number {
  const from = at;
  if (length > data.length - from) throw malformed('the bytes end inside a value');
  at = from + length;
  return from;
}

function readBytes(length: number): Uint8Array {
  const from = take(length);
  const isView = length >= VIEW_BYTES && data.buffer.byteLength <= 2 * length;
  return isView ? data.subarray(from, at) : data.slice(from, at);
}

function readText(length: number): string {
  const from = take(length);
  if (length > SHORT_TEXT) return nativeText(from);
  const known = knownText(data, from, at);
  if (known !== undefined) return known;
  const text = nativeText(from);
  learnText(text, data, from, at);
  return text;
}

function nativeText(from: number): string {
  const text = native.utf8Slice.call(data, from, at);
  // What is no UTF-8 shows as this character, and it may have been sent as well.
  if (!text.includes('\ufffd')) return text;
  try {
    return utf8.decode(data.subarray(from, at));
  } catch {
    throw malformed('text that is not UTF-8');
  }
}

/** What is inside a list or a map lies one level deeper, and has a byte at least for each value and key. */
function enter(count: number, depth: number): void {
  if (count === 0) return;
  if (depth >= MAX_DEPTH) throw malformed(`nested deeper than ${MAX_DEPTH}`);
  if (count > MAX_ITEMS) throw malformed(`more than ${MAX_ITEMS} values`);
  if (count > data.length - at) throw malformed('the bytes end inside a value');
}

function readList(length: number, depth: number, inside: Key): Value[] {
  enter(length, depth);
  const values: Value[] = [];
  for (let i = 0; i < length; i++) values.push(readValue(depth + 1, inside));
  return values;
}

function readMap(length: number, depth: number, inside: Key): Value {
  enter(2 * length, depth);
  const fields: Record<string, Value> = {};
  let before = inside;
  let isSorted = true;
  let shape = 0;
  for (let i = 0; i < length; i++) {
    if (++items > MAX_ITEMS) throw malformed(`more than ${MAX_ITEMS} values`);
    let key = before.next;
    if (key !== undefined && key.isAt(data, at)) at += key.bytes.length;
    else {
      key = readKey(before);
      isSorted &&= key === before.next;
    }
    // Keys in order are all different, and those of our own messages are in order.
    if (!isSorted && Object.hasOwn(fields, key.text)) throw malformed('the same key twice');
    const value = readValue(depth + 1, key.inside);
    if (key.isPlain) fields[key.text] = value;
    // Read-only, so that the engine makes one place for an index and none for those below it.
    else Object.defineProperty(fields, key.text, { value, configurable: true, enumerable: true });
    before = key;
    shape = (shape * 31 + key.number) | 0;
  }
  if (length > FEW_FIELDS) learnWide(shape, fields);
  return fields;
}

/** A key that is not the one expected. */
function readKey(before: Key): Key {
  const from = at;
  const head = at < data.length ? data[at++]! : 0;
  if (head >> 5 !== 3) throw malformed('a key that is no text');
  const info = head & 31;
  const length = info < 24 ? info : readNumber(info);
  const isShort = at - from + length <= KNOWN_BYTES;
  if (isShort) {
    take(length);
    const known = knownKey(before, data, from, at);
    if (known !== undefined) return known;
    at -= length;
  }
  const text = readText(length);
  return isShort ? learnKey(before, text, data, from, at) : new Key(text, NOTHING);
}
