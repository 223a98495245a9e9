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
    return new Uint8Array(oneShot('sha256', parts.length === 1 ? parts[0]! : Buffer.concat(parts), 'buffer'));
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return new Uint8Array(hash.digest());
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
const NODE = Uint8Array.of(1);

function signedBytes(context: SigningContext, root: Uint8Array): Uint8Array {
  return Buffer.concat([Buffer.from(context, 'ascii'), LEAF, root]);
}

/** Signs a group of payloads with one signature; the items come back in the same order. At least one, at most 65,536. */
export function signGroup(key: HostKey, context: SigningContext, payloads: readonly Uint8Array[]): Signed[] {
  if (payloads.length === 0 || payloads.length > 2 ** MAX_PATH) throw new RangeError('a group has 1 to 65,536 payloads');
  const paths: PathStep[][] = payloads.map(() => []);
  let level = payloads.map((payload, index) => ({ hash: sha256(LEAF, payload), members: [index] }));
  while (level.length > 1) {
    const next: typeof level = [];
    for (let i = 0; i < level.length; i += 2) {
      const left = level[i]!;
      const right = level[i + 1];
      if (right === undefined) {
        next.push(left);
        continue;
      }
      for (const member of left.members) paths[member]!.push({ left: false, hash: right.hash });
      for (const member of right.members) paths[member]!.push({ left: true, hash: left.hash });
      next.push({ hash: sha256(NODE, left.hash, right.hash), members: [...left.members, ...right.members] });
    }
    level = next;
  }
  const signature = key.sign(signedBytes(context, level[0]!.hash));
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
  let hash = sha256(LEAF, signed.payload);
  for (const step of signed.path) hash = step.left ? sha256(NODE, step.hash, hash) : sha256(NODE, hash, step.hash);
  // All that the verdict depends on.
  const group = `${signer} ${context} ${Buffer.from(hash).toString('base64')} ${Buffer.from(signed.signature).toString('base64')}`;
  if (signed.path.length > 0 && provenGroups.has(group)) return;
  if (!verify(signer, signedBytes(context, hash), signed.signature))
    throw new AxError('bad_signature', 'the signature does not belong to the host that sent it');
  if (signed.path.length === 0) return;
  if (provenGroups.size >= KEPT_GROUPS)
    for (const oldest of provenGroups) if (provenGroups.size >= KEPT_GROUPS) provenGroups.delete(oldest);
  provenGroups.add(group);
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
