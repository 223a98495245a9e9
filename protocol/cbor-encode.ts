/**
 * Values to bytes: CBOR in one canonical form, which is definite lengths, shortest numbers, and keys sorted by length and then by bytes.
 *
 * Owns the writing of plain values (null, booleans, numbers, text, bytes, lists and maps) and what makes it cheap: one buffer that
 * all encodings are written into, and the sorted order of the keys of each shape of object, found again by following its keys.
 * Does not read bytes (cbor-decode.ts). Nothing handed out is written to again; what is remembered of shapes is bounded.
 */
import { inOrder, noKeys } from './cbor-shapes.ts';
import { AxError } from './errors.ts';
import { unfilled } from './memory.ts';

/** Room for many messages. One that is larger grows the room for itself alone. */
const ROOM_BYTES = 32 * 1024;
/** What is longer than this is never handed out as a part of the room. */
const PART_BYTES = 4 * 1024;
/** Byte strings from this length on are copied once, into the result, and not through the room. */
const LARGE_BYTES = 16 * 1024;
/** Longest text that is quicker written here than by a call to native code. */
const SHORT_CHARS = 32;
/** The decoder takes 16. Deeper than this is a value that holds itself. */
const MAX_DEPTH = 256;

/** A value that is encoded already: its bytes are written as they are. They must be one whole value. */
export class Encoded {
  readonly bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

let room = new Uint8Array(ROOM_BYTES);
let roomText = Buffer.from(room.buffer);
/** Where the encoding that runs has begun, and where it goes on. */
let start = 0;
let at = 0;
/** Values of the maps that are open, in the order of their keys. */
const fieldValues: unknown[] = [];
let fieldCount = 0;
/** Large byte strings of the encoding that runs, and where each belongs. */
let larges: { readonly at: number; readonly bytes: Uint8Array }[] = [];

/** Encodes a plain value into memory of its own. Keys whose value is undefined are left out. */
export function encode(value: unknown): Uint8Array {
  write(value);
  return taken();
}

/**
 * The same bytes for whoever writes them out and lets them go: short ones are a part of a room of 32 KiB, whose memory stays as long as
 * any part of it does. To make memory for each costs as much as the encoding.
 */
export function encodePassing(value: unknown): Uint8Array {
  write(value);
  return larges.length === 0 && at - start <= PART_BYTES ? room.subarray(start, at) : taken();
}

/** The encoding in memory of its own; its room is free again. */
function taken(): Uint8Array {
  const bytes = larges.length === 0 ? room.slice(start, at) : joined();
  at = start;
  if (room.length > ROOM_BYTES) renew(ROOM_BYTES);
  return bytes;
}

function write(value: unknown): void {
  start = at;
  fieldCount = 0;
  try {
    put(value, 0);
  } catch (error) {
    at = start;
    fieldValues.length = 0;
    larges = [];
    throw error;
  }
}

/** The bytes of the room with the large byte strings between them. */
function joined(): Uint8Array {
  const parts = larges;
  larges = []; // first: should there be no memory for all of it, nothing of this may be in the next encoding
  const bytes = unfilled(parts.reduce((sum, large) => sum + large.bytes.length, at - start));
  let from = start;
  let to = 0;
  for (const large of parts) {
    bytes.set(room.subarray(from, large.at), to);
    to += large.at - from;
    from = large.at;
    bytes.set(large.bytes, to);
    to += large.bytes.length;
  }
  bytes.set(room.subarray(from, at), to);
  return bytes;
}

/** Makes room for so many bytes more. What was handed out stays in the old one. */
function need(bytes: number): void {
  if (at + bytes > room.length) grow(bytes);
}

function grow(bytes: number): void {
  const old = room;
  const begun = start;
  const length = at - start;
  // What stands in `larges` counts from where the encoding has begun, which moves to the front.
  for (const [i, large] of larges.entries()) larges[i] = { at: large.at - begun, bytes: large.bytes };
  renew(Math.max(ROOM_BYTES, 2 * (length + bytes)));
  room.set(old.subarray(begun, begun + length));
  at = length;
}

function renew(bytes: number): void {
  room = new Uint8Array(bytes);
  roomText = Buffer.from(room.buffer);
  start = 0;
  at = 0;
}

function put(value: unknown, depth: number): void {
  if (typeof value === 'string') putText(value);
  else if (typeof value === 'number') putNumber(value);
  else if (typeof value === 'object' && value !== null) putObject(value, depth);
  else {
    const byte = value === null ? 0xf6 : value === true ? 0xf5 : value === false ? 0xf4 : value === undefined ? 0xf7 : -1;
    if (byte < 0) throw unencodable(typeof value);
    need(1);
    room[at++] = byte;
  }
}

function putObject(value: object, depth: number): void {
  if (depth === MAX_DEPTH) throw unencodable('value that holds itself');
  if (value instanceof Uint8Array) putBytes(value);
  else if (value instanceof Encoded) putRaw(value.bytes);
  else if (Array.isArray(value)) {
    putHead(0x80, value.length);
    for (let i = 0; i < value.length; i++) put(value[i], depth + 1);
  } else putMap(value, depth);
}

function putMap(fields: object, depth: number): void {
  const prototype: unknown = Object.getPrototypeOf(fields);
  if (prototype !== Object.prototype && prototype !== null) return putUnknownMap(fields, depth);
  const base = fieldCount;
  let count = 0;
  let shape = noKeys();
  for (const key in fields) {
    const value = (fields as Record<string, unknown>)[key];
    fieldValues[fieldCount++] = value;
    if (value !== undefined) count++;
    const next = shape.nextKey === key ? shape.next : shape.with(key);
    if (next === undefined) {
      fieldCount = base;
      return putUnknownMap(fields, depth);
    }
    shape = next;
  }
  const { order, keys } = shape.sorted();
  putHead(0xa0, count);
  for (let i = 0; i < order.length; i++) {
    const slot = base + order[i]!;
    const value = fieldValues[slot];
    if (value === undefined) continue;
    fieldValues[slot] = undefined;
    putKey(keys[i]!);
    put(value, depth + 1);
  }
  fieldCount = base;
}

/** A map whose keys are too many or too long to be remembered, or an object of some class. */
function putUnknownMap(fields: object, depth: number): void {
  if (Object.prototype.toString.call(fields) !== '[object Object]') throw unencodable(Object.prototype.toString.call(fields));
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  const { order, keys } = inOrder(entries.map(([key]) => key));
  putHead(0xa0, entries.length);
  for (const [i, from] of order.entries()) {
    putKey(keys[i]!);
    put(entries[from]![1], depth + 1);
  }
}

function putKey(key: Uint8Array): void {
  const { length } = key;
  need(length);
  const out = room;
  const to = at;
  for (let i = 0; i < length; i++) out[to + i] = key[i]!;
  at = to + length;
}

/** A head with its number in the shortest form. */
function putHead(major: number, number: number): void {
  need(9);
  if (number < 24) room[at++] = major | number;
  else if (number < 0x100) {
    room[at++] = major | 24;
    room[at++] = number;
  } else if (number < 0x10000) {
    room[at++] = major | 25;
    room[at++] = number >> 8;
    room[at++] = number;
  } else if (number < 0x100000000) {
    room[at++] = major | 26;
    put32(number);
  } else {
    room[at++] = major | 27;
    put32(number / 0x100000000);
    put32(number);
  }
}

function put32(number: number): void {
  room[at++] = number >>> 24;
  room[at++] = number >>> 16;
  room[at++] = number >>> 8;
  room[at++] = number;
}

function putNumber(value: number): void {
  if (!Number.isSafeInteger(value)) putFloat(value);
  else if (value >= 0) putHead(0, value);
  else putHead(0x20, -1 - value);
}

function putBytes(bytes: Uint8Array): void {
  putHead(0x40, bytes.length);
  putRaw(bytes);
}

function putRaw(bytes: Uint8Array): void {
  if (bytes.length >= LARGE_BYTES) larges.push({ at, bytes });
  else {
    need(bytes.length);
    room.set(bytes, at);
    at += bytes.length;
  }
}

function putText(text: string): void {
  const { length } = text;
  if (length > SHORT_CHARS) return putLongText(text);
  need(length + 2);
  const out = room;
  let to = at;
  if (length < 24) out[to++] = 0x60 | length;
  else {
    out[to++] = 0x78;
    out[to++] = length;
  }
  for (let i = 0; i < length; i++) {
    const code = text.charCodeAt(i);
    if (code > 127) return putLongText(text);
    out[to++] = code;
  }
  at = to;
}

function putLongText(text: string): void {
  if (text.length >= LARGE_BYTES) {
    const bytes = Buffer.from(text);
    putHead(0x60, bytes.length);
    larges.push({ at, bytes });
    return;
  }
  // A character is one byte as a rule, and three at the most.
  need(9 + 3 * text.length);
  const before = at;
  putHead(0x60, text.length);
  let bytes = roomText.write(text, at);
  if (bytes !== text.length) {
    at = before;
    putHead(0x60, bytes);
    bytes = roomText.write(text, at);
  }
  at += bytes;
}

const floatView = new DataView(new ArrayBuffer(8));

/** A number that is no whole one, or a whole one that is not safe: in 16, 32 or 64 bits, the fewest that hold it. */
function putFloat(value: number): void {
  need(9);
  const half = halfOf(value);
  if (half >= 0) {
    room[at++] = 0xf9;
    room[at++] = half >> 8;
    room[at++] = half;
  } else if (Math.fround(value) === value) {
    floatView.setFloat32(0, value);
    room[at++] = 0xfa;
    put32(floatView.getUint32(0));
  } else {
    floatView.setFloat64(0, value);
    room[at++] = 0xfb;
    put32(floatView.getUint32(0));
    put32(floatView.getUint32(4));
  }
}

/** The 16 bits of a number; negative when they cannot hold it. Below 2^-14 only powers of two get the short form. */
function halfOf(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  if (Math.fround(value) !== value) return -1;
  floatView.setFloat32(0, value);
  const bits = floatView.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >> 23) & 0xff) - 127;
  const fraction = bits & 0x7fffff;
  if (exponent === 128) return sign | 0x7c00;
  if (exponent < -24 || exponent > 15) return -1;
  if (exponent < -14) return fraction === 0 ? sign | (1 << (24 + exponent)) : -1;
  return (fraction & 0x1fff) === 0 ? sign | ((exponent + 15) << 10) | (fraction >> 13) : -1;
}

function unencodable(what: string): AxError {
  return new AxError('internal', `cannot encode a ${what}`);
}
