/**
 * Sealing: the body and the reader's headers are readable by the two hosts of a message and by nobody else.
 *
 * Owns the key agreement (X25519 keys mapped from the two Ed25519 host keys, tweetnacl's box.before, HKDF label), the
 * wrapped fresh content key, and the AEAD of each piece (AES-256-GCM, nonce = index, additional data = message id, both
 * hosts, index, count). Randomness is an argument; a content key is never used for two messages.
 * Limit, stated in the threat model: the keys are static, so either host's key opens the pair's stored mail.
 */
import { createCipheriv, createDecipheriv, createHmac, createSecretKey, hkdfSync } from 'node:crypto';
import type { KeyObject } from 'node:crypto';
import { ed25519 } from '@noble/curves/ed25519.js';
import nacl from 'tweetnacl';
import { AxError } from './errors.ts';
import { publicKeyOf } from './identity.ts';
import type { HostKey } from './identity.ts';
import type { HostId, MessageId } from './ids.ts';
import { release, unfilled } from './memory.ts';

const KEY_BYTES = 32;
const WRAP_NONCE_BYTES = 24;
const TAG_BYTES = 16;
/** Random bytes one sealing needs: the content key and the wrap's nonce. */
export const SEAL_RANDOM_BYTES = KEY_BYTES + WRAP_NONCE_BYTES;
/** Wrapped key as it travels: nonce, then the box. */
export const WRAP_BYTES = WRAP_NONCE_BYTES + KEY_BYTES + nacl.box.overheadLength;
/** What sealing adds to a piece, bytes. */
export const SEAL_OVERHEAD = TAG_BYTES;
/** Piece index that stands for the sealed headers. */
const HEADER_INDEX = 0xffffffff;

/** Binds a sealed piece to its place; all of it is authenticated, none of it secret. */
export interface SealPlace {
  readonly id: MessageId;
  readonly from: HostId;
  readonly to: HostId;
  readonly count: number;
}

/** A key that never leaves its host. */
export type OwnKey = KeyObject;

/** Keys shared with other hosts, kept per host: the agreement costs 0.4 ms, the wrap then almost nothing. */
export class SealKeys {
  readonly #secret: Uint8Array;
  readonly #shared = new Map<HostId, Uint8Array>();

  constructor(key: HostKey) {
    this.#secret = ed25519.utils.toMontgomerySecret(key.seed);
  }

  /** A key that only this host can make, for what it stores about secrets of its own. */
  own(label: string): OwnKey {
    return createSecretKey(new Uint8Array(hkdfSync('sha256', this.#secret, new Uint8Array(0), `ax/1 own ${label}`, KEY_BYTES)));
  }

  /** The key that wraps content keys between this host and `other`. */
  with(other: HostId): Uint8Array {
    const known = this.#shared.get(other);
    if (known !== undefined) return known;
    const agreed = nacl.box.before(ed25519.utils.toMontgomery(publicKeyOf(other)), this.#secret);
    const derived = new Uint8Array(hkdfSync('sha256', agreed, new Uint8Array(0), 'ax/1 seal wrap', KEY_BYTES));
    this.#shared.set(other, derived);
    return derived;
  }
}

/** HMAC-SHA-256 of the parts, each preceded by its length, in hexadecimal. */
export function keyedDigest(key: OwnKey, ...parts: readonly Uint8Array[]): string {
  const hmac = createHmac('sha256', key);
  for (const part of parts) hmac.update(`${part.length}:`).update(part);
  return hmac.digest('hex');
}

/** Wraps the content key for the pair. `random` holds SEAL_RANDOM_BYTES: content key, then nonce. */
export function wrapKey(pair: Uint8Array, random: Uint8Array): { readonly contentKey: Uint8Array; readonly wrap: Uint8Array } {
  if (random.length !== SEAL_RANDOM_BYTES) throw new RangeError(`sealing takes ${SEAL_RANDOM_BYTES} random bytes`);
  const contentKey = random.slice(0, KEY_BYTES);
  const nonce = random.slice(KEY_BYTES);
  return { contentKey, wrap: new Uint8Array(Buffer.concat([nonce, nacl.box.after(contentKey, nonce, pair)])) };
}

/** The content key out of its wrap; AxError `bad_signature` when it was not wrapped for this pair. */
export function unwrapKey(pair: Uint8Array, wrap: Uint8Array): Uint8Array {
  const opened =
    wrap.length === WRAP_BYTES ? nacl.box.open.after(wrap.slice(WRAP_NONCE_BYTES), wrap.slice(0, WRAP_NONCE_BYTES), pair) : null;
  if (opened === null || opened.length !== KEY_BYTES)
    throw new AxError('bad_signature', 'the content key was not wrapped for this pair of hosts');
  return opened;
}

export function sealHeaders(contentKey: Uint8Array, place: SealPlace, plain: Uint8Array): Uint8Array {
  return seal(contentKey, place, HEADER_INDEX, plain);
}

export function openHeaders(contentKey: Uint8Array, place: SealPlace, sealed: Uint8Array): Uint8Array {
  return open(contentKey, place, HEADER_INDEX, sealed);
}

/** Seals piece `index` of `place.count`. */
export function sealPiece(contentKey: Uint8Array, place: SealPlace, index: number, plain: Uint8Array): Uint8Array {
  return seal(contentKey, place, index, plain);
}

/** Opens piece `index`; AxError `bad_signature` when a byte or its place was changed. */
export function openPiece(contentKey: Uint8Array, place: SealPlace, index: number, sealed: Uint8Array): Uint8Array {
  return open(contentKey, place, index, sealed);
}

// A key as an object: Node looks three times as long at one that is given as bytes.

function nonceOf(index: number): Uint8Array {
  const nonce = Buffer.alloc(12);
  nonce.writeUInt32BE(index, 8);
  return nonce;
}

function placeBytes(place: SealPlace, index: number): Buffer {
  return Buffer.from(`ax/1 piece\0${place.id}\0${place.from}\0${place.to}\0${index}\0${place.count}`, 'ascii');
}

function seal(contentKey: Uint8Array, place: SealPlace, index: number, plain: Uint8Array): Uint8Array {
  const cipher = createCipheriv('aes-256-gcm', createSecretKey(contentKey), nonceOf(index));
  cipher.setAAD(placeBytes(place, index));
  const sealed = unfilled(plain.length + TAG_BYTES);
  const encrypted = cipher.update(plain);
  sealed.set(encrypted);
  release(encrypted);
  cipher.final(); // nothing: this mode holds no bytes back
  sealed.set(cipher.getAuthTag(), plain.length);
  return sealed;
}

function open(contentKey: Uint8Array, place: SealPlace, index: number, sealed: Uint8Array): Uint8Array {
  try {
    const decipher = createDecipheriv('aes-256-gcm', createSecretKey(contentKey), nonceOf(index), { authTagLength: TAG_BYTES });
    decipher.setAAD(placeBytes(place, index));
    decipher.setAuthTag(sealed.subarray(sealed.length - TAG_BYTES));
    const plain = decipher.update(sealed.subarray(0, sealed.length - TAG_BYTES));
    decipher.final(); // throws unless all of it is as it was sealed, and holds no bytes back
    return new Uint8Array(plain.buffer, plain.byteOffset, plain.length);
  } catch (error) {
    throw new AxError('bad_signature', 'a sealed piece does not open: it was changed or belongs elsewhere', { cause: error });
  }
}
