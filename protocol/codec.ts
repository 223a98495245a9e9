/**
 * The one codec of the peer wire, the control socket and the store: CBOR, definite lengths, no tags.
 *
 * Owns encoding and the strict decoding of foreign bytes, and the small set of shape readers that turn a decoded value
 * into typed fields. Decoding gives a value or AxError `protocol_violation`, never another error; a reader takes the field
 * it names or throws the same.
 * Bytes that were signed are kept and never encoded again.
 */
import { decode as cborDecode, encode as cborEncode, Token, Tokenizer, Type } from 'cborg';
import { AxError } from './errors.ts';
import { visibleText } from './ids.ts';

export type Value = null | boolean | number | string | Uint8Array | readonly Value[] | { readonly [key: string]: Value };
export type Fields = { readonly [key: string]: Value };

const MAX_DEPTH = 16;
/** Values and keys in one message. The fullest honest ones (session lists) have half of it; a frame of single-byte items would hold the event loop ten times longer. */
const MAX_ITEMS = 131_072;

/** Encodes a plain value. Keys whose value is undefined are left out. */
export function encode(value: unknown): Uint8Array {
  return plain(cborEncode(value, WITHOUT_UNDEFINED));
}

/** The library and Node hand out Buffers, whose `slice` is a view and not a copy. */
function plain(bytes: Uint8Array): Uint8Array {
  return bytes.constructor === Uint8Array ? bytes : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

const WITHOUT_UNDEFINED = { ignoreUndefinedProperties: true } as const;

const STRICT = {
  strict: true,
  allowIndefinite: false,
  allowUndefined: false,
  allowInfinity: false,
  allowNaN: false,
  allowBigInt: false,
  rejectDuplicateMapKeys: true,
  useMaps: false,
} as const;
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The library drops a byte order mark and mends broken UTF-8, so that other bytes give the same text: here each text has one spelling. */
class StrictText extends Tokenizer {
  constructor(bytes: Uint8Array) {
    super(plain(bytes), STRICT);
  }

  override next(): Token {
    const start = this.pos();
    const token = super.next();
    const head = this.data[start]!;
    if (head >> 5 !== 3) return token;
    const at = start + 1 + lengthBytes(head & 31);
    const isSuspect = this.data[at] === 0xef || String(token.value).includes('\ufffd');
    return isSuspect ? new Token(Type.string, utf8.decode(this.data.subarray(at, this.pos())), token.encodedLength) : token;
  }
}

/** Decodes foreign bytes: one whole value, strict form, text that is UTF-8, text keys, at most 16 levels deep and 131,072 values and keys. */
export function decode(bytes: Uint8Array): Value {
  let value: unknown;
  try {
    guardShape(bytes);
    value = cborDecode(bytes, { ...STRICT, tokenizer: new StrictText(bytes) });
  } catch (error) {
    throw violation(`not a well-formed message: ${error instanceof Error ? error.message.slice(0, 120) : 'unknown'}`);
  }
  return value as Value;
}

/** Walks the headers of the bytes without building anything, so that neither depth nor number of values can exhaust stack or time. */
function guardShape(bytes: Uint8Array): void {
  const open: number[] = [];
  let at = 0;
  for (let items = 0; at < bytes.length; items++) {
    if (items === MAX_ITEMS) throw new Error(`more than ${MAX_ITEMS} values`);
    const head = bytes[at]!;
    const major = head >> 5;
    const size = lengthBytes(head & 31);
    if (size < 0) throw new Error('indefinite length');
    let length = head & 31;
    if (size > 0) {
      length = 0;
      for (let i = 1; i <= size; i++) length = length * 256 + (bytes[at + i] ?? 0);
    }
    at += 1 + size;
    if (major === 2 || major === 3) at += length;
    let children = major === 4 ? length : major === 5 ? length * 2 : major === 6 ? 1 : 0;
    if (children > 0) {
      open.push(children);
      if (open.length > MAX_DEPTH) throw new Error(`nested deeper than ${MAX_DEPTH}`);
      continue;
    }
    while (open.length > 0) {
      children = open[open.length - 1]! - 1;
      open[open.length - 1] = children;
      if (children > 0) break;
      open.pop();
    }
  }
}

/** Bytes of length behind a head with this low part; negative for an indefinite length or a reserved one. */
function lengthBytes(info: number): number {
  return info < 24 ? 0 : info === 24 ? 1 : info === 25 ? 2 : info === 26 ? 4 : info === 27 ? 8 : -1;
}

export function violation(message: string): AxError {
  return new AxError('protocol_violation', message);
}

/** The value as a map of fields. */
export function asFields(value: Value | undefined, what: string): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof Uint8Array)
    throw violation(`${what} must be a map`);
  return value as Fields;
}

export function asList(value: Value | undefined, what: string, max: number): readonly Value[] {
  if (!Array.isArray(value)) throw violation(`${what} must be a list`);
  if (value.length > max) throw violation(`${what} has ${value.length} entries; at most ${max}`);
  return value as readonly Value[];
}

export function text(fields: Fields, key: string, maxChars: number): string {
  const value = own(fields, key);
  if (typeof value !== 'string') throw violation(`"${key}" must be text`);
  if (value.length > maxChars) throw violation(`"${key}" is longer than ${maxChars} characters`);
  return value;
}

export function optionalText(fields: Fields, key: string, maxChars: number): string | undefined {
  const value = own(fields, key);
  return value === undefined || value === null ? undefined : text(fields, key, maxChars);
}

/** Text for people to read: what cannot be seen in it or would change its surroundings becomes U+FFFD. */
export function shown(fields: Fields, key: string, maxChars: number): string {
  return visibleText(text(fields, key, maxChars));
}

export function optionalShown(fields: Fields, key: string, maxChars: number): string | undefined {
  const value = optionalText(fields, key, maxChars);
  return value === undefined ? undefined : visibleText(value);
}

/** A whole number from `min` to `max` (Number.MAX_SAFE_INTEGER when left out). */
export function whole(fields: Fields, key: string, min = 0, max = Number.MAX_SAFE_INTEGER): number {
  const value = own(fields, key);
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < min || value > max)
    throw violation(`"${key}" must be a whole number from ${min} to ${max}`);
  return value;
}

export function optionalWhole(fields: Fields, key: string, min = 0, max = Number.MAX_SAFE_INTEGER): number | undefined {
  const value = own(fields, key);
  return value === undefined || value === null ? undefined : whole(fields, key, min, max);
}

export function flag(fields: Fields, key: string): boolean {
  const value = own(fields, key);
  if (value === undefined || value === null) return false;
  if (typeof value !== 'boolean') throw violation(`"${key}" must be true or false`);
  return value;
}

export function optionalFlag(fields: Fields, key: string): boolean | undefined {
  const value = own(fields, key);
  return value === undefined || value === null ? undefined : flag(fields, key);
}

export function bytes(fields: Fields, key: string, max: number, min = 0): Uint8Array {
  const value = own(fields, key);
  if (!(value instanceof Uint8Array)) throw violation(`"${key}" must be bytes`);
  if (value.length > max || value.length < min) throw violation(`"${key}" has ${value.length} bytes; from ${min} to ${max} are allowed`);
  return value;
}

export function oneOf<T extends string>(fields: Fields, key: string, allowed: readonly T[]): T {
  const value = own(fields, key);
  if (typeof value !== 'string' || !(allowed as readonly string[]).includes(value))
    throw violation(`"${key}" must be one of ${allowed.join(', ')}`);
  return value as T;
}

function own(fields: Fields, key: string): Value | undefined {
  return Object.hasOwn(fields, key) ? fields[key] : undefined;
}
