/**
 * The codec of the control socket as a command needs it: CBOR, definite lengths, no tags, read as strictly as protocol/codec.ts reads.
 *
 * Owns no form of its own. To load the library behind that codec and to run it for the first time is an eighth of a whole command; this is
 * made for one request and one answer. test/cli/plain-cbor.test.ts holds the two against each other, on values and on broken bytes.
 * Decoding gives a value or AxError `protocol_violation`, never another error; a reader takes the field it names or throws the same.
 */
import type { Fields, Value } from '../protocol/codec.ts';
import { AxError } from '../protocol/errors.ts';

const MAX_DEPTH = 16;
/** Values and keys in one message. */
const MAX_ITEMS = 131_072;
const HEADS = 9;

function violation(message: string): AxError {
  return new AxError('protocol_violation', message);
}

/** Encodes a plain value: null, booleans, safe whole numbers, text, bytes, lists, and maps, whose fields that are undefined are left out. */
export function encode(value: unknown): Uint8Array {
  const parts: Uint8Array[] = [];
  put(parts, value);
  return Buffer.concat(parts);
}

function put(parts: Uint8Array[], value: unknown): void {
  if (value === null || value === undefined) parts.push(Uint8Array.of(0xf6));
  else if (typeof value === 'boolean') parts.push(Uint8Array.of(value ? 0xf5 : 0xf4));
  else if (typeof value === 'number') putNumber(parts, value);
  else if (typeof value === 'string') {
    const bytes = Buffer.from(value, 'utf8');
    parts.push(head(3, bytes.length), bytes);
  } else if (value instanceof Uint8Array) parts.push(head(2, value.length), value);
  else if (Array.isArray(value)) {
    parts.push(head(4, value.length));
    for (const entry of value as readonly unknown[]) put(parts, entry);
  } else if (typeof value === 'object') {
    const fields = Object.entries(value).filter(([, entry]) => entry !== undefined);
    parts.push(head(5, fields.length));
    for (const [key, entry] of fields) {
      put(parts, key);
      put(parts, entry);
    }
  } else throw new TypeError(`a ${typeof value} is no plain value`);
}

function putNumber(parts: Uint8Array[], value: number): void {
  if (!Number.isSafeInteger(value)) throw new TypeError('a request holds whole numbers only');
  parts.push(value < 0 ? head(1, -1 - value) : head(0, value));
}

/** A head with its number in the shortest form. */
function head(major: number, number: number): Uint8Array {
  const top = major << 5;
  if (number < 24) return Uint8Array.of(top | number);
  if (number < 0x100) return Uint8Array.of(top | 24, number);
  const bytes = Buffer.alloc(number < 0x10000 ? 3 : number < 0x100000000 ? 5 : HEADS);
  bytes[0] = top | (bytes.length === 3 ? 25 : bytes.length === 5 ? 26 : 27);
  if (bytes.length === 3) bytes.writeUInt16BE(number, 1);
  else if (bytes.length === 5) bytes.writeUInt32BE(number, 1);
  else bytes.writeBigUInt64BE(BigInt(number), 1);
  return bytes;
}

/** Decodes foreign bytes: one whole value, strict form, text that is UTF-8, text keys, at most 16 levels deep and 131,072 values and keys. */
export function decode(bytes: Uint8Array): Value {
  try {
    const reader = new Reader(bytes);
    const value = reader.value(0);
    reader.requireEnd();
    return value;
  } catch (error) {
    throw violation(`not a well-formed message: ${error instanceof Error ? error.message.slice(0, 120) : 'unknown'}`);
  }
}

class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;
  #items = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  requireEnd(): void {
    if (this.#at !== this.#bytes.length) throw new Error('bytes behind the value');
  }

  /** The next value; `depth` is the number of lists and maps around it. */
  value(depth: number): Value {
    if (++this.#items > MAX_ITEMS) throw new Error(`more than ${MAX_ITEMS} values`);
    const first = this.#view.getUint8(this.#at++);
    const major = first >> 5;
    const info = first & 31;
    if (major === 7) return this.#simple(info);
    const number = this.#number(info);
    if (major === 0) return number;
    if (major === 1) return requireSafe(-1 - number);
    if (major === 2) return this.#take(number).slice();
    if (major === 3) return this.#text(this.#take(number));
    if (major === 6) throw new Error('a tag');
    if (number > 0 && depth >= MAX_DEPTH) throw new Error(`nested deeper than ${MAX_DEPTH}`);
    return major === 4 ? this.#list(number, depth) : this.#map(number, depth);
  }

  #list(length: number, depth: number): Value {
    const values: Value[] = [];
    for (let i = 0; i < length; i++) values.push(this.value(depth + 1));
    return values;
  }

  #map(length: number, depth: number): Value {
    const fields: Record<string, Value> = {};
    for (let i = 0; i < length; i++) {
      const key = this.value(depth + 1);
      if (typeof key !== 'string') throw new Error('a key that is no text');
      if (key === '__proto__' || Object.hasOwn(fields, key)) throw new Error(`the key "${key}" may not stand here`);
      fields[key] = this.value(depth + 1);
    }
    return fields;
  }

  #simple(info: number): Value {
    if (info === 20 || info === 21) return info === 21;
    if (info === 22) return null;
    const width = info === 25 ? 2 : info === 26 ? 4 : info === 27 ? 8 : 0;
    if (width === 0) throw new Error('a simple value that is not known');
    const number =
      width === 2 ? half(this.#view.getUint16(this.#at)) : width === 4 ? this.#view.getFloat32(this.#at) : this.#view.getFloat64(this.#at);
    this.#at += width;
    if (!Number.isFinite(number)) throw new Error('a number that is none');
    return number;
  }

  /** The number of a head, in its shortest form and safe. */
  #number(info: number): number {
    if (info < 24) return info;
    const width = info === 24 ? 1 : info === 25 ? 2 : info === 26 ? 4 : info === 27 ? 8 : 0;
    if (width === 0) throw new Error('indefinite length');
    const at = this.#at;
    this.#at += width;
    if (width === 8) {
      const number = this.#view.getUint32(at) * 0x100000000 + this.#view.getUint32(at + 4);
      if (number < 0x100000000) throw new Error('a number longer than it needs to be');
      return requireSafe(number);
    }
    const number = width === 1 ? this.#view.getUint8(at) : width === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
    if (number < (width === 1 ? 24 : width === 2 ? 0x100 : 0x10000)) throw new Error('a number longer than it needs to be');
    return number;
  }

  #text(bytes: Uint8Array): string {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('utf8');
    // What is no UTF-8 shows as this character, and it may have been sent as well.
    return text.includes('\ufffd') ? new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes) : text;
  }

  #take(length: number): Uint8Array {
    if (length > this.#bytes.length - this.#at) throw new Error('the bytes end inside a value');
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }
}

function requireSafe(number: number): number {
  if (!Number.isSafeInteger(number)) throw new Error('a number that is too large');
  return number;
}

/** A number of 16 bits: one of sign, five of exponent, ten of fraction. */
function half(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size =
    exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction === 0 ? Infinity : NaN) : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/** The value as a map of fields. */
export function asFields(value: Value | undefined, what: string): Fields {
  if (typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array)) return value as Fields;
  throw violation(`${what} must be a map`);
}

/** The text of a field, at most so long. */
export function text(fields: Fields, key: string, maxChars: number): string {
  const value = own(fields, key);
  if (typeof value === 'string' && value.length <= maxChars) return value;
  throw violation(`"${key}" must be text of at most ${maxChars} characters`);
}

/** The whole number of a field, 0 or more. */
export function whole(fields: Fields, key: string): number {
  const value = own(fields, key);
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw violation(`"${key}" must be a whole number`);
}

/** A field that is true or false; false when it is not there. */
export function flag(fields: Fields, key: string): boolean {
  const value = own(fields, key) ?? false;
  if (typeof value === 'boolean') return value;
  throw violation(`"${key}" must be true or false`);
}

function own(fields: Fields, key: string): Value | undefined {
  return Object.hasOwn(fields, key) ? fields[key] : undefined;
}
