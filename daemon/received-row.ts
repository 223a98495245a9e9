/**
 * A row of the inbox: its shape, what it counts as, and the keys under which the index finds it.
 *
 * Owns no table: the rows are written by inbox.ts alone, which says what each index is for.
 */
import type { HarnessName } from '../protocol/address.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import type { MessageKind, NoticeOutcome, ReceiverState, WithheldReason } from '../protocol/states.ts';
import { addressKey, bodyKey, seqKey } from './store/rows.ts';

/** What became of the last notice that spoke for a message; `detail` in words fixed by ax. */
export interface RowNotice {
  readonly outcome: NoticeOutcome;
  readonly at: number;
  readonly detail?: string;
  /** With `withheld`; absent in rows of an earlier build. */
  readonly reason?: WithheldReason;
  /** The attempt it is a word about; absent when there was none. */
  readonly attempt?: string;
}

/** One sender's unread messages (no notes) at an address; `session`: only those that name it. */
export interface Scope {
  readonly harness: string;
  readonly workspace: string;
  readonly sender: HostId;
  readonly session: string | null;
}

export interface HandOut {
  readonly token: string;
  readonly at: number;
  readonly session: string;
}

export interface Received {
  readonly seq: number;
  readonly id: MessageId;
  readonly sender: HostId;
  readonly state: ReceiverState;
  readonly storedAs: MessageKind;
  readonly signed: Uint8Array;
  readonly digest: Uint8Array;
  readonly bytes: number;
  /** In how many pieces the sealed body lies; absent for one. */
  readonly pieces?: number;
  readonly harness: HarnessName;
  /** Canonical. */
  readonly workspace: string;
  /** The session the send named, if any. */
  readonly hint: string | null;
  readonly sentAt: number;
  readonly receivedAt: number;
  /** Running time, ms, at which the body goes. */
  readonly expires: number;
  /** Hand-outs to the attached session, newest last, at most 8. */
  readonly handOuts: readonly HandOut[];
  readonly handedOutAt: number | null;
  readonly fetchedAt: number | null;
  readonly notice: RowNotice | null;
  readonly bodyKept: boolean;
}

/** What is remembered of a (sender, id): its digest and row, or a tombstone that a cancel left. */
export interface Seen {
  readonly digest: Uint8Array;
  readonly seq: number;
  readonly tombstone: boolean;
  readonly ran: number;
}

/** Unread messages of an address whose state still follows its agent: those after `after`. */
export interface Move {
  readonly harness: HarnessName;
  readonly workspace: string;
  readonly available: boolean;
  readonly after: number;
}

export type NewReceived = Omit<Received, 'seq' | 'handOuts' | 'handedOutAt' | 'fetchedAt' | 'notice' | 'bodyKept'>;

/** What is remembered of a (sender, id): its digest and row, or a tombstone that a cancel left. */
export interface Seen {
  readonly digest: Uint8Array;
  readonly seq: number;
  readonly tombstone: boolean;
  readonly ran: number;
}

/** What a cancel came to; `isNew`: that very cancel made it so. */
export interface Cancelled {
  readonly outcome: 'cancelled' | 'too_late' | 'expired';
  readonly row: Received | undefined;
  readonly isNew: boolean;
}

/** What a confirmation came to; `first`: it made the row `fetched`. */
export interface Confirmed {
  readonly row: Received;
  readonly first: boolean;
}

export type UnreadState = 'awaiting_setup' | 'available' | 'handed_out';

/** What an unread row counts as; a row that is read or ended counts as nothing. */
export function unreadStates(row: Received): UnreadState[] {
  if (row.state !== 'awaiting_setup' && row.state !== 'available') return [];
  return [row.handedOutAt === null ? row.state : 'handed_out'];
}

/** The index key of a row under its address, read or unread. */
export function addressIndex(row: Pick<Received, 'harness' | 'workspace' | 'seq'>): string {
  return `a/${addressKey(row.harness, row.workspace)}/${seqKey(row.seq)}`;
}

/** The prefix of the index keys of what ended in a state at an address. */
export function endedPrefix(state: ReceiverState, harness: string, workspace: string): string {
  return `s/${state}/${addressKey(harness, workspace)}/`;
}

/** The index key of a row that was read or has ended: it stays as long as the row. */
export function endedKeys(row: Pick<Received, 'state' | 'harness' | 'workspace' | 'seq'>): string[] {
  return isOpen(row) ? [] : [`${endedPrefix(row.state, row.harness, row.workspace)}${seqKey(row.seq)}`];
}

/** The index keys that a row has as long as it is unread. */
export function openKeys(row: Received): string[] {
  const [address, seq] = [addressKey(row.harness, row.workspace), seqKey(row.seq)];
  return [
    `o/${address}/${seq}`,
    ...(row.storedAs === 'message' ? [`n/${address}/${row.sender}/${seq}`] : []),
    ...(row.storedAs === 'message' && row.hint !== null ? [`m/${address}/${row.hint}/${row.sender}/${seq}`] : []),
  ];
}

/** The prefix of the index keys of a scope. */
export function scopePrefix({ harness, workspace, sender, session }: Scope): string {
  const address = addressKey(harness, workspace);
  return session === null ? `n/${address}/${sender}/` : `m/${address}/${session}/${sender}/`;
}

/** Not read yet, and not ended. */
export function isOpen(row: Pick<Received, 'state'>): boolean {
  return row.state === 'awaiting_setup' || row.state === 'available';
}

/** Where the sealed body of a row lies in `inbox_body`, or a piece of it where there are several. */
export function bodyKeyOf(row: Pick<Received, 'seq' | 'pieces' | 'sender' | 'id'>, index: number): string {
  return (row.pieces ?? 1) === 1 ? seqKey(row.seq) : bodyKey(row.sender, row.id, index);
}
