/**
 * Sealing a body for its message: one piece in memory, several each into the store as soon as it is sealed.
 *
 * Owns the order: pieces are durable before the message that names them. One piece is sealed while the one before is being flushed, and
 * others get their turn in between; nothing holds a large body sealed as a whole.
 */
import { beginSealing } from '../protocol/envelope.ts';
import type { Draft, EnvelopeBytes } from '../protocol/envelope.ts';
import type { HostId } from '../protocol/ids.ts';
import { CUT_BYTES } from '../protocol/limits.ts';
import { release } from '../protocol/memory.ts';
import { spanOf } from '../protocol/pieces.ts';
import type { SealKeys } from '../protocol/seal.ts';
import type { Staged, Staging } from './staging.ts';
import type { Store, StoreTransaction } from './store/store.ts';
import type { Body } from './uploads.ts';

/** Pieces that may wait for their flush while the next is sealed: enough to keep the disk busy, and no long commit for others to wait for. */
const AHEAD = 2;

export interface SealingDeps {
  readonly store: Store;
  readonly staging: Staging;
  readonly self: HostId;
  readonly sealKeys: SealKeys;
  /** Largest piece, bytes. */
  readonly pieceBytes: number;
}

export interface Sealed extends EnvelopeBytes {
  /** The sealed body of one piece; null where its pieces are stored. */
  readonly piece: Uint8Array | null;
  readonly staged: Staged | undefined;
}

/** Seals; several pieces are durable when this resolves. Rejects as the store does; then none of them stays. */
export async function sealToStore(
  { store, staging, self, sealKeys, pieceBytes }: SealingDeps,
  draft: Omit<Draft, 'body'>,
  body: Body,
  isLocal: boolean,
  random: Uint8Array,
): Promise<Sealed> {
  // One that goes with its message is not cut; what comes by itself anyway comes in pieces that hold nothing up.
  const most = body.bytes <= pieceBytes ? pieceBytes : Math.min(pieceBytes, CUT_BYTES);
  const sealing = beginSealing(self, sealKeys, { ...draft, bytes: body.bytes }, random, most);
  const { cut } = sealing;
  const seal = (index: number): Uint8Array => {
    const { start, end } = spanOf(cut, index);
    return sealing.seal(index, body.slice(start, end));
  };
  if (cut.count === 1) {
    const piece = seal(0);
    return { ...sealing.finish(), piece, staged: undefined };
  }
  const staged = { id: draft.id, count: cut.count, local: isLocal ? self : null };
  const underWay: Promise<void>[] = [];
  try {
    for (let index = 0; index < cut.count; index++) {
      const piece = seal(index);
      body.dropTo(spanOf(cut, index).end);
      if (underWay.length >= AHEAD) await underWay.shift();
      const stored = store.write((tx) => staging.put(tx, staged, index, piece)).then(() => release(piece));
      stored.catch(() => undefined); // told by the one before it, when that fails first
      underWay.push(stored);
    }
    for (const stored of underWay) await stored;
  } catch (error) {
    await Promise.allSettled(underWay);
    await forgetSealed(store, staging, staged);
    throw error;
  }
  return { ...sealing.finish(), piece: null, staged };
}

/** The message could not be stored. Never rejects: what stays is removed by retention, later. */
export async function forgetSealed(store: Store, staging: Staging, staged: Staged | undefined): Promise<void> {
  if (staged !== undefined) await store.write((tx) => staging.drop(tx, staged)).catch(() => undefined);
}

/** The message is stored, in this transaction. */
export function settleSealed(staging: Staging, tx: StoreTransaction, { staged }: Sealed): void {
  if (staged !== undefined) staging.settle(tx, staged);
}

/** The message is not stored, in this transaction. */
export function dropSealed(staging: Staging, tx: StoreTransaction, { staged }: Sealed): void {
  if (staged !== undefined) staging.drop(tx, staged);
}
