/**
 * Identifiers: their grammar, their making from given randomness, and their parsing from foreign text.
 *
 * Owns message ids (26 characters of Crockford base32, lower case: 48 bits of time, 80 bits of randomness, so that a
 * notice can carry one anywhere and tables sort by age), request keys, and names of hosts and agents.
 * Pure: time and randomness are arguments. Every parser throws AxError `invalid_argument` and nothing else (a label too long: `too_large`).
 */
import { AxError } from './errors.ts';
import { MAX_LABEL_BYTES, MAX_NAME_CHARS } from './limits.ts';

export type MessageId = string & { readonly __brand: 'MessageId' };
export type HostId = string & { readonly __brand: 'HostId' };

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const MESSAGE_ID = /^[0-7][0-9a-hjkmnp-tv-z]{25}$/;
const MESSAGE_ID_PREFIX = /^[0-7][0-9a-hjkmnp-tv-z]{3,25}$/;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const REQUEST_KEY = /^[A-Za-z0-9._:-]{1,64}$/;
const NAME = new RegExp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,${MAX_NAME_CHARS - 1}}$`);
// Controls, format characters (bidirectional, zero-width, tags), line and paragraph separators, lone surrogates, and all else that is drawn
// as nothing. Variation selectors 1 to 16 may stay: they belong to emoji and are part of real file names.
// Made at need: to look these classes up takes a twentieth of a command, and most texts are seen to be plain without them.
const UNSAFE = String.raw`[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}[\p{Default_Ignorable_Code_Point}--[\ufe00-\ufe0f]]]`;
const PLAIN = /^[\x20-\x7e]*$/;
let unsafe: RegExp | undefined;
const unsafeCharacters = (): RegExp => (unsafe ??= new RegExp(UNSAFE, 'gv'));

/** Makes a message id from wall time (ms) and 10 random bytes. */
export function makeMessageId(nowMs: number, random: Uint8Array): MessageId {
  if (random.length !== 10) throw new RangeError('a message id takes 10 random bytes');
  let text = '';
  let time = Math.max(0, Math.min(2 ** 48 - 1, Math.floor(nowMs)));
  for (let i = 0; i < 10; i++) {
    text = ALPHABET.charAt(time % 32) + text;
    time = Math.floor(time / 32);
  }
  let bits = 0;
  let held = 0;
  for (const byte of random) {
    held = (held << 8) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      text += ALPHABET.charAt((held >> bits) & 31);
    }
    held &= (1 << bits) - 1;
  }
  return text as MessageId;
}

export function isMessageId(value: unknown): value is MessageId {
  return typeof value === 'string' && MESSAGE_ID.test(value);
}

/** A whole message id out of foreign text. */
export function parseMessageId(value: unknown): MessageId {
  if (isMessageId(value)) return value;
  throw new AxError('invalid_argument', 'a message id is 26 characters of 0-9 and a-z without i, l, o, u');
}

/** A message id or its beginning (4 characters at least), as people type it: in either case of letters, returned in lower case. */
export function parseMessageIdPrefix(value: unknown): string {
  const typed = typeof value === 'string' && /^[0-9a-z]+$/i.test(value) ? value.toLowerCase() : '';
  if (MESSAGE_ID_PREFIX.test(typed)) return typed;
  throw new AxError(
    'invalid_argument',
    'a message id is 26 characters of 0-9 and a-z without i, l, o, u, the first one 0-7; its first 4 or more will do',
  );
}

/** A session's UUID, lower case. */
export function parseSessionId(value: unknown): string {
  if (typeof value === 'string' && UUID.test(value)) return value;
  throw new AxError('invalid_argument', 'a session id is a lower-case UUID');
}

/** Formats 16 random bytes as a version 4 UUID. */
export function makeUuid(random: Uint8Array): string {
  if (random.length !== 16) throw new RangeError('a UUID takes 16 random bytes');
  const bytes = Uint8Array.from(random);
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

/** An idempotency key of the caller's (`--request-id`). */
export function parseRequestKey(value: unknown): string {
  if (typeof value === 'string' && REQUEST_KEY.test(value)) return value;
  throw new AxError('invalid_argument', 'a request id is 1 to 64 characters of A-Z a-z 0-9 . _ : -');
}

/** The name of an agent or the alias of a host. `Localhost` in any case is taken: it means this host. */
export function parseName(value: unknown, what: string): string {
  if (typeof value !== 'string' || !NAME.test(value)) {
    throw new AxError('invalid_argument', `${what} is 1 to ${MAX_NAME_CHARS} characters of A-Z a-z 0-9 . _ -, the first a letter or digit`);
  }
  if (value.toLowerCase() === 'localhost') throw new AxError('invalid_argument', `${what} cannot be "${value}": that name means this host`);
  return value;
}

/** Makes a name out of what a peer calls itself: unusable characters become `-`; falls back when nothing is left. */
export function nameFrom(foreign: unknown, fallback: string): string {
  const text = typeof foreign === 'string' ? foreign.slice(0, MAX_NAME_CHARS) : '';
  const cleaned = text.replaceAll(/[^A-Za-z0-9._-]/g, '-').replace(/^[^A-Za-z0-9]+/, '');
  return NAME.test(cleaned) && cleaned.toLowerCase() !== 'localhost' ? cleaned : fallback;
}

/** True when text holds a control, bidirectional, invisible or broken character: nothing that may stand in a record or on a terminal. */
export function hasUnsafeCharacters(text: string): boolean {
  return !PLAIN.test(text) && text.search(unsafeCharacters()) >= 0;
}

/** The text with each such character as U+FFFD. */
export function visibleText(text: string): string {
  return PLAIN.test(text) ? text : text.replaceAll(unsafeCharacters(), '\ufffd');
}

/** A label for a record: at most `maxBytes` of UTF-8 (else AxError `too_large`), nothing unsafe. */
export function parseLabel(value: unknown, what: string, maxBytes: number = MAX_LABEL_BYTES): string {
  if (typeof value !== 'string' || value.length === 0) throw new AxError('invalid_argument', `${what} must be a non-empty string`);
  const bytes = Buffer.byteLength(value, 'utf8');
  if (bytes > maxBytes)
    throw new AxError('too_large', `${what} has ${bytes} bytes; at most ${maxBytes} are allowed`, { details: { limit: maxBytes } });
  if (hasUnsafeCharacters(value)) throw new AxError('invalid_argument', `${what} must not contain control characters`);
  return value;
}
