/**
 * A second opinion on the codec: the library that it replaced, set up as strictly.
 *
 * The bytes that it writes are those in signed payloads and in stores of earlier versions, so ours must be the same; and what it refuses
 * is refused.
 */
import { decode as cborDecode, encode as cborEncode, Token, Tokenizer, Type } from 'cborg';

const MAX_DEPTH = 16;
const MAX_ITEMS = 131_072;
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

export function encode(value: unknown): Uint8Array {
  return Uint8Array.from(cborEncode(value, { ignoreUndefinedProperties: true }));
}

/** Throws, whatever it is that it throws. */
export function decode(bytes: Uint8Array): unknown {
  guardShape(bytes);
  return cborDecode(bytes, { ...STRICT, tokenizer: new StrictText(bytes) });
}

/** The library drops a byte order mark and mends broken UTF-8. */
class StrictText extends Tokenizer {
  constructor(bytes: Uint8Array) {
    super(Uint8Array.from(bytes), STRICT);
  }

  override next(): Token {
    const start = this.pos();
    const token = super.next();
    const head = this.data[start]!;
    if (head >> 5 !== 3) return token;
    return new Token(Type.string, utf8.decode(this.data.subarray(start + 1 + lengthBytes(head & 31), this.pos())), token.encodedLength);
  }
}

/** The library has no bound of depth and number. */
function guardShape(bytes: Uint8Array): void {
  const open: number[] = [];
  let at = 0;
  for (let items = 0; at < bytes.length; items++) {
    if (items === MAX_ITEMS) throw new Error('too many values');
    const head = bytes[at]!;
    const major = head >> 5;
    const size = lengthBytes(head & 31);
    let length = size === 0 ? head & 31 : 0;
    for (let i = 1; i <= size; i++) length = length * 256 + (bytes[at + i] ?? 0);
    at += 1 + size;
    if (major === 2 || major === 3) at += length;
    const children = major === 4 ? length : major === 5 ? length * 2 : major === 6 ? 1 : 0;
    if (children > 0) {
      if (open.push(children) > MAX_DEPTH) throw new Error('too deep');
      continue;
    }
    while (open.length > 0 && --open[open.length - 1]! === 0) open.pop();
  }
}

/** Bytes of length behind a head with this low part. */
function lengthBytes(info: number): number {
  if (info > 27) throw new Error('indefinite length');
  return info < 24 ? 0 : 1 << (info - 24);
}
