/**
 * Fixed hosts, messages and byte helpers for the tests of protocol/ and for the fuzzing: nothing here is random.
 */
import type { Destination } from '../../protocol/address.ts';
import { sealMessage } from '../../protocol/envelope.ts';
import type { Draft, SealedMessage } from '../../protocol/envelope.ts';
import { AxError } from '../../protocol/errors.ts';
import type { ErrorCode } from '../../protocol/errors.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import type { HostKey } from '../../protocol/identity.ts';
import type { MessageId } from '../../protocol/ids.ts';
import { SEAL_RANDOM_BYTES, SealKeys } from '../../protocol/seal.ts';

/** Bytes that follow from `start` alone. */
export const counted = (length: number, start = 0): Uint8Array => Uint8Array.from({ length }, (_, i) => (start + i * 7) & 0xff);
export const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);
export const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
export const fromHex = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'hex'));

export const ALICE: HostKey = hostKeyFromSeed(counted(32, 1));
export const BOB: HostKey = hostKeyFromSeed(counted(32, 2));
export const CAROL: HostKey = hostKeyFromSeed(counted(32, 3));
export const aliceKeys = new SealKeys(ALICE);
export const bobKeys = new SealKeys(BOB);
export const carolKeys = new SealKeys(CAROL);

export const ID = '06c1f9k2m3n4p5q6r7s8t9v0w1' as MessageId;
export const OTHER_ID = '06c1f9k2m3n4p5q6r7s8t9v0w2' as MessageId;
export const SESSION = '11111111-2222-4333-8444-555555555555';
export const AT = 1_790_000_000_000;
export const toBob: Destination = { host: BOB.hostId, harness: 'claude', workspace: '/home/bob/app', session: SESSION };
export const draft: Draft = {
  id: ID,
  kind: 'message',
  to: toBob,
  sentAt: AT,
  retentionMs: 86_400_000,
  headers: { subject: 'the build', from: { name: 'alice', harness: 'claude', workspace: '/home/alice/app' }, replyTo: OTHER_ID },
  body: utf8('please run the tests'),
};
export const sealRandom = counted(SEAL_RANDOM_BYTES, 9);

/** The draft with changes, sealed by Alice for its destination. */
export function sealed(change: Partial<Draft> = {}): SealedMessage {
  return sealMessage(ALICE, aliceKeys, { ...draft, ...change }, sealRandom);
}

/** For assert.throws and assert.rejects: an AxError with one of these codes. */
export const refusal =
  (...codes: readonly ErrorCode[]) =>
  (error: unknown): boolean =>
    error instanceof AxError && codes.includes(error.code);

/** The value or the AxError; every other error fails the test. */
export function outcome<T>(run: () => T): T | AxError {
  try {
    return run();
  } catch (error) {
    if (error instanceof AxError) return error;
    throw error;
  }
}

/** The bytes with bit `bit` of byte `at` turned. */
export function flipped(bytes: Uint8Array, at: number, bit = 0): Uint8Array {
  const changed = Uint8Array.from(bytes);
  changed[at]! ^= 1 << bit;
  return changed;
}
