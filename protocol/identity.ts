/**
 * The identity of a host: one Ed25519 key pair whose public half, written as a libp2p peer id, is its host id.
 *
 * Owns the making of a host key from its seed, signing, strict verification, and the two-way map between public key and
 * host id. node:crypto signs and verifies; keys and signatures interchange with tweetnacl's (same seed, same bytes).
 * Invariant: a HostId that came out of this file names a canonical curve point that is not of small order, so no key is
 * accepted under which a signature holds for many messages. A signature is never an id.
 */
import { createHash, createPrivateKey, createPublicKey, sign as cryptoSign, verify as cryptoVerify } from 'node:crypto';
import type { KeyObject } from 'node:crypto';
import { ed25519 } from '@noble/curves/ed25519.js';
import { base58btc } from 'multiformats/bases/base58';
import { AxError } from './errors.ts';
import type { HostId } from './ids.ts';

export const SEED_BYTES = 32;
export const PUBLIC_KEY_BYTES = 32;
export const SIGNATURE_BYTES = 64;

/** Identity multihash (0x00, 36 bytes) of the protobuf PublicKey {type: Ed25519, data: 32 bytes}. */
const HOST_ID_PREFIX = Uint8Array.of(0x00, 0x24, 0x08, 0x01, 0x12, 0x20);
const HOST_ID_TEXT = /^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$/;
const PKCS8_PREFIX = Buffer.from('302e020100300506032b657004220420', 'hex');
const SPKI_PREFIX = Buffer.from('302a300506032b6570032100', 'hex');
/** Parsed keys kept, the oldest forgotten first: checking a key again costs some 0.4 ms, keeping all of them unbounded memory. */
const KEPT_KEYS = 512;

/** A host's own key. Never logged, never sent; whoever holds it is the host. */
export interface HostKey {
  readonly hostId: HostId;
  /** 32 bytes. */
  readonly publicKey: Uint8Array;
  /** 32 secret bytes; only for the link's handshake and the key agreement of sealing. */
  readonly seed: Uint8Array;
  /** Ed25519 signature of `bytes`, 64 bytes. The caller puts its context in front. */
  sign(bytes: Uint8Array): Uint8Array;
}

interface CheckedKey {
  readonly hostId: HostId;
  readonly raw: Uint8Array;
  readonly object: KeyObject;
}

const byId = new Map<string, CheckedKey>();

/** The host key that belongs to a 32-byte seed; RangeError for another length. */
export function hostKeyFromSeed(seed32: Uint8Array): HostKey {
  if (seed32.length !== SEED_BYTES) throw new RangeError(`a host key takes a seed of ${SEED_BYTES} bytes`);
  const seed = Uint8Array.from(seed32);
  const secret = createPrivateKey({ key: Buffer.concat([PKCS8_PREFIX, seed]), format: 'der', type: 'pkcs8' });
  const spki = createPublicKey(secret).export({ format: 'der', type: 'spki' });
  const publicKey = Uint8Array.from(spki.subarray(SPKI_PREFIX.length));
  const key = { hostId: hostIdOf(publicKey), publicKey, sign: (bytes: Uint8Array) => new Uint8Array(cryptoSign(null, bytes, secret)) };
  // Not enumerable: a key that slips into a log line or a JSON text must not take its seed along.
  return Object.defineProperty(key, 'seed', { value: seed, enumerable: false }) as unknown as HostKey;
}

/** The host id of a 32-byte public key; AxError `invalid_argument` for a key that is not canonical or of small order. */
export function hostIdOf(publicKey: Uint8Array): HostId {
  return checked(textOf(publicKey), publicKey).hostId;
}

/** The 32-byte public key of a host id; AxError `invalid_argument` as parseHostId. */
export function publicKeyOf(hostId: HostId): Uint8Array {
  return Uint8Array.from(lookUp(hostId).raw);
}

/** A host id from foreign text: an Ed25519 peer id in its one spelling; AxError `invalid_argument` for anything else. */
export function parseHostId(text: unknown): HostId {
  if (typeof text !== 'string') throw new AxError('invalid_argument', 'a host id must be a string');
  return lookUp(text).hostId;
}

/**
 * Whether `signature` was made over exactly `bytes` with the key of a host id or of a 32-byte public key. False for
 * everything else, also for a malformed or weak key and for a malleated signature (S not below the group order).
 */
export function verify(key: HostId | Uint8Array, bytes: Uint8Array, signature: Uint8Array): boolean {
  if (signature.length !== SIGNATURE_BYTES) return false;
  const parsed = orUndefined(() => (typeof key === 'string' ? lookUp(key) : checked(textOf(key), key)));
  return parsed !== undefined && cryptoVerify(null, bytes, parsed.object, signature);
}

/** Five groups of four letters and digits for two people to compare by voice: 80 bits of SHA-256 over the public key. */
export function fingerprint(hostId: HostId): string {
  const hex = createHash('sha256').update('ax/1 fingerprint').update(publicKeyOf(hostId)).digest('hex').slice(0, 20);
  return (hex.match(/.{4}/g) ?? []).join(' ');
}

function textOf(publicKey: Uint8Array): string {
  if (publicKey.length !== PUBLIC_KEY_BYTES) throw new AxError('invalid_argument', `a public key has ${PUBLIC_KEY_BYTES} bytes`);
  return base58btc.baseEncode(Buffer.concat([HOST_ID_PREFIX, publicKey]));
}

function lookUp(text: string): CheckedKey {
  const known = byId.get(text);
  if (known !== undefined) return known;
  const bytes = HOST_ID_TEXT.test(text) ? orUndefined(() => base58btc.baseDecode(text)) : undefined;
  const isHostId =
    bytes?.length === HOST_ID_PREFIX.length + PUBLIC_KEY_BYTES &&
    HOST_ID_PREFIX.every((byte, at) => bytes[at] === byte) &&
    base58btc.baseEncode(bytes) === text;
  if (bytes === undefined || !isHostId)
    throw new AxError('invalid_argument', 'not a host id (an Ed25519 peer id that begins with 12D3KooW)');
  return checked(text, bytes.subarray(HOST_ID_PREFIX.length));
}

function checked(text: string, publicKey: Uint8Array): CheckedKey {
  const known = byId.get(text);
  if (known !== undefined) return known;
  // zip215 = false: RFC 8032 decoding, which refuses y >= p and the other encodings of a point that has a canonical one.
  const point = orUndefined(() => ed25519.Point.fromBytes(publicKey, false));
  if (point === undefined || point.isSmallOrder()) throw new AxError('invalid_argument', 'this key is not a valid Ed25519 public key');
  const raw = Uint8Array.from(publicKey);
  const object = createPublicKey({ key: Buffer.concat([SPKI_PREFIX, raw]), format: 'der', type: 'spki' });
  const entry = { hostId: text as HostId, raw, object };
  if (byId.size >= KEPT_KEYS) {
    const oldest = byId.keys().next();
    if (!oldest.done) byId.delete(oldest.value);
  }
  byId.set(text, entry);
  return entry;
}

/** For libraries that answer foreign bytes by throwing: the value, or undefined. */
function orUndefined<T>(run: () => T): T | undefined {
  try {
    return run();
  } catch {
    return undefined;
  }
}
