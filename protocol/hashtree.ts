/**
 * Signed payloads: a hash tree whose root is signed, so that a group may share one signature and each member still
 * verifies alone.
 *
 * Owns the tree (leaf: SHA-256 of 0x00 and the payload; node: SHA-256 of 0x01 and both children), the signing contexts and
 * the encoding of a signed item. A single payload is a tree of one leaf and an empty path.
 * Invariant: a payload is verified as the bytes that came in, never encoded again; a context is never shared by two kinds.
 */
import { createHash, hash as oneShot, timingSafeEqual } from 'node:crypto';
import { AxError } from './errors.ts';
import { asList, encode, violation } from './codec.ts';
import type { Value } from './codec.ts';
import { verify } from './identity.ts';
import type { HostKey } from './identity.ts';
import type { HostId } from './ids.ts';
import { MAX_SIGNED_BYTES } from './limits.ts';

export type SigningContext = 'ax/1 envelope' | 'ax/1 receipt' | 'ax/1 cancel';

/** Longest path from a leaf to the root: groups of at most 65,536. */
const MAX_PATH = 16;
const HASH_BYTES = 32;
const SIGNATURE_BYTES = 64;
const JOINED_BYTES = 16 * 1024;

/** One step to the root: the sibling's hash and on which side it stands. */
export interface PathStep {
  readonly left: boolean;
  readonly hash: Uint8Array;
}

export interface Signed {
  readonly payload: Uint8Array;
  readonly path: readonly PathStep[];
  readonly signature: Uint8Array;
}

export function sha256(...parts: readonly Uint8Array[]): Uint8Array {
  const bytes = parts.reduce((sum, part) => sum + part.length, 0);
  // In one call where joining costs less than a hash object.
  if (parts.length === 1 || bytes <= JOINED_BYTES)
    return bytesOf(oneShot('sha256', parts.length === 1 ? parts[0]! : Buffer.concat(parts), 'binary'));
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return bytesOf(hash.digest('binary'));
}

/** A digest that Node gave as one character a byte: it takes Node a fifth of the time to make that instead of a Buffer. */
function bytesOf(text: string): Uint8Array {
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

/** A SHA-256 of parts that come one by one, for bodies too long to be hashed in one turn; `end` gives it in hexadecimal, once. */
export function sha256InParts(): { add(part: Uint8Array): void; end(): string } {
  const hash = createHash('sha256');
  return { add: (part) => void hash.update(part), end: () => hash.digest('hex') };
}

/** Compares two secrets (or their hashes) of equal length in constant time; other lengths are unequal. */
export function sameSecret(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}

const LEAF = Uint8Array.of(0);

function signedBytes(context: SigningContext, root: Uint8Array): Uint8Array {
  return Buffer.concat([Buffer.from(context, 'ascii'), LEAF, root]);
}

const scratch = new Uint8Array(1 + JOINED_BYTES);

function leafOf(payload: Uint8Array): Uint8Array {
  if (payload.length > JOINED_BYTES) return sha256(LEAF, payload);
  scratch[0] = 0;
  scratch.set(payload, 1);
  return sha256(scratch.subarray(0, 1 + payload.length));
}

function nodeOf(left: Uint8Array, right: Uint8Array): Uint8Array {
  scratch[0] = 1;
  scratch.set(left, 1);
  scratch.set(right, 1 + HASH_BYTES);
  return sha256(scratch.subarray(0, 1 + 2 * HASH_BYTES));
}

/** Signs a group of payloads with one signature; the items come back in the same order. At least one, at most 65,536. */
export function signGroup(key: HostKey, context: SigningContext, payloads: readonly Uint8Array[]): Signed[] {
  if (payloads.length === 0 || payloads.length > 2 ** MAX_PATH) throw new RangeError('a group has 1 to 65,536 payloads');
  const paths: PathStep[][] = payloads.map(() => []);
  let level = payloads.map(leafOf);
  for (let height = 0; level.length > 1; height++) {
    // Each node is a step for all members below its sibling; the last of an odd level has none and goes up as it is.
    const steps = level.map((hash, at) => ({ left: at % 2 === 0, hash }));
    for (const [member, path] of paths.entries()) {
      const step = steps[(member >> height) ^ 1];
      if (step !== undefined) path.push(step);
    }
    const next: Uint8Array[] = [];
    for (let at = 0; at < level.length; at += 2) next.push(at + 1 < level.length ? nodeOf(level[at]!, level[at + 1]!) : level[at]!);
    level = next;
  }
  const signature = key.sign(signedBytes(context, level[0]!));
  return payloads.map((payload, index) => ({ payload, path: paths[index]!, signature }));
}

/** Signs one payload. */
export function signOne(key: HostKey, context: SigningContext, payload: Uint8Array): Signed {
  return signGroup(key, context, [payload])[0]!;
}

/** Signatures of groups that were found good, the oldest forgotten first: the members of a group come one after the other. */
const provenGroups = new Set<string>();
const KEPT_GROUPS = 256;

/** Throws AxError `bad_signature` unless `signer` signed this payload in this context. */
export function requireSignature(signer: HostId, context: SigningContext, signed: Signed): void {
  let hash = leafOf(signed.payload);
  for (const step of signed.path) hash = step.left ? nodeOf(step.hash, hash) : nodeOf(hash, step.hash);
  // All that the verdict depends on.
  const group = `${signer} ${context} ${textOf(hash)} ${textOf(signed.signature)}`;
  if (signed.path.length > 0 && provenGroups.has(group)) return;
  if (!verify(signer, signedBytes(context, hash), signed.signature))
    throw new AxError('bad_signature', 'the signature does not belong to the host that sent it');
  if (signed.path.length === 0) return;
  if (provenGroups.size >= KEPT_GROUPS)
    for (const oldest of provenGroups) if (provenGroups.size >= KEPT_GROUPS) provenGroups.delete(oldest);
  provenGroups.add(group);
}

function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('latin1');
}

/** A signed item as a value: [payload, [[left, hash], ...], signature]. */
export function signedValue(signed: Signed): Value {
  return [signed.payload, signed.path.map((step) => [step.left, step.hash]), signed.signature];
}

export function encodeSigned(signed: Signed): Uint8Array {
  return encode(signedValue(signed));
}

/** Reads a signed item out of a decoded foreign value; throws AxError `protocol_violation`. Nothing is verified yet. */
export function readSigned(value: Value | undefined, what: string): Signed {
  const parts = asList(value, what, 3);
  const [payload, steps, signature] = parts;
  if (!(payload instanceof Uint8Array) || payload.length === 0 || payload.length > MAX_SIGNED_BYTES)
    throw violation(`${what}: payload of 1 to ${MAX_SIGNED_BYTES} bytes expected`);
  if (!(signature instanceof Uint8Array) || signature.length !== SIGNATURE_BYTES)
    throw violation(`${what}: signature of ${SIGNATURE_BYTES} bytes expected`);
  const path = asList(steps, `${what} path`, MAX_PATH).map((step): PathStep => {
    const [left, hash] = asList(step, `${what} step`, 2);
    if (typeof left !== 'boolean' || !(hash instanceof Uint8Array) || hash.length !== HASH_BYTES)
      throw violation(`${what}: a step is a side and ${HASH_BYTES} bytes`);
    return { left, hash };
  });
  return { payload, path, signature };
}
