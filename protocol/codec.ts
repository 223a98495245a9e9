/**
 * The one codec of the peer wire, the control socket and the store: CBOR, definite lengths, no tags; and the readers of its maps.
 *
 * Owns the small set of shape readers that turn a decoded value into typed fields; the bytes are the business of cbor-encode.ts and
 * cbor-decode.ts. Decoding gives a value or AxError `protocol_violation`, never another error; a reader takes the field it names or
 * throws the same.
 * Bytes that were signed are kept and never encoded again.
 */
import { violation } from './cbor-decode.ts';
import type { Value } from './cbor-decode.ts';
import { visibleText } from './ids.ts';

export { decode, violation } from './cbor-decode.ts';
export type { Value } from './cbor-decode.ts';
export { encode, Encoded, encodePassing } from './cbor-encode.ts';

export type Fields = { readonly [key: string]: Value };

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
