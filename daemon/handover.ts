/**
 * Handing over one message of several pieces: offer it, send what is missing, deliver it.
 *
 * Owns the order of the requests of one attempt. The receiver keeps each piece durably by itself, so an attempt that ends anywhere loses
 * nothing: the next offer is answered with what is still missing. Only the last request, which has no piece, can make the message accepted.
 */
import { flag } from '../protocol/codec.ts';
import type { Encoded, Fields } from '../protocol/codec.ts';
import { AxError } from '../protocol/errors.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { PIECE_TIMEOUT_MS } from '../protocol/limits.ts';
import { release } from '../protocol/memory.ts';
import { cutInto } from '../protocol/pieces.ts';
import { readMissing } from '../protocol/wire.ts';
import type { OutgoingRequest } from '../protocol/wire.ts';
import type { Lane } from './lane.ts';
import type { Outbox } from './outbox.ts';
import type { Sent } from './sent-row.ts';

export interface HandOverDeps {
  readonly outbox: Outbox;
  readonly request: (host: HostId, request: OutgoingRequest, timeoutMs?: number) => Promise<Fields>;
  readonly running: () => number;
  /** Lets few pieces leave at a time, of all messages to that host: they take turns with small messages. */
  readonly pieces: Lane['pieces'];
}

/** A message of several pieces. */
type Large = Sent & { readonly pieces: number };

/** The answer with the receipt; undefined when the message has ended meanwhile, or shall. AxError as the link, or as the host refused. */
export async function handOver(deps: HandOverDeps, host: HostId, row: Large, envelope: Encoded): Promise<Fields | undefined> {
  let answer = await deps.request(host, { type: 'offer', envelope });
  const kept = new Set<number>();
  for (;;) {
    const missing = readMissing(answer, row.pieces);
    if (missing === undefined) return answer;
    // It says that it keeps a piece and then that it lacks it: whatever it is that drops them, another time.
    if (missing.some((index) => kept.has(index))) throw new AxError('busy', 'the receiving host did not keep the pieces it was sent');
    for (const index of missing) kept.add(index);
    await sendPieces(deps, host, row, missing);
    if (!isStillGoing(deps, row.id)) return undefined;
    answer = await deps.request(host, { type: 'deliver', envelope, pieces: [] });
  }
}

/** Nothing more leaves of a message that has ended meanwhile, or shall. */
function isStillGoing({ outbox, running }: HandOverDeps, id: MessageId): boolean {
  const row = outbox.get(id);
  return row?.state === 'forwarding' && !row.cancelRequested && row.deadline > running();
}

/** Sends pieces until all are there or one is not wanted any more; what is under way then comes to its end. Rejects with the first error. */
async function sendPieces(deps: HandOverDeps, host: HostId, { id, bytes, pieces }: Large, missing: readonly number[]): Promise<void> {
  const { each } = cutInto(bytes, pieces);
  let isOver = false;
  const send = async (index: number): Promise<void> => {
    const piece = isOver || !isStillGoing(deps, id) ? undefined : deps.outbox.body(id, index);
    if (piece === undefined) return;
    try {
      const answer = await deps.request(host, { type: 'piece', id, index, piece }, PIECE_TIMEOUT_MS);
      release(piece);
      isOver ||= !flag(answer, 'stored');
    } catch (error) {
      isOver = true;
      throw error;
    }
  };
  const ended = await Promise.allSettled(missing.map((index) => deps.pieces.pass(each, () => send(index))));
  const failed = ended.find((one) => one.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}
