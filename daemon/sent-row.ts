/**
 * The row of a sent message, and what the receiver's word makes of it.
 *
 * Owns the type of the outbox's rows, the keys under which its index finds them, and two pure decisions: what a signed receipt changes,
 * and what unsigned progress does. An answer that was overtaken on its way tells an older state: an end that is known stays. Writes
 * nothing; outbox.ts does.
 */
import type { Destination } from '../protocol/address.ts';
import type { Origin } from '../protocol/control.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import type { Progress, Receipt } from '../protocol/receipt.ts';
import { RECEIVER_ENDS } from '../protocol/states.ts';
import type { MessageKind, ReceiverState, SenderState, WithheldReason } from '../protocol/states.ts';
import { addressKey, seqKey } from './store/rows.ts';

export interface Cause {
  readonly code: string;
  readonly message: string;
  readonly at: number;
  /** How long the other host asked to wait, ms. */
  readonly retryAfterMs?: number;
}

/** What the receiver's host last told of a message. */
export interface Mirror {
  readonly state: ReceiverState;
  readonly at: number;
  readonly handedOut: boolean;
  /** When the body was first handed out, wall time of the receiver in ms, if it was told before the pickup. */
  readonly handedOutAt: number | null;
  readonly liveSession: boolean;
  readonly notice: string | null;
  /** Why that is `withheld`; absent in rows of an earlier build. */
  readonly noticeReason?: WithheldReason | null;
}

export interface RequestKey {
  readonly key: string;
  readonly fingerprint: string;
}

export interface Sent {
  readonly seq: number;
  readonly id: MessageId;
  readonly host: HostId;
  readonly to: Destination;
  readonly kind: MessageKind;
  readonly state: SenderState;
  /** Bytes may have left without an answer. */
  readonly uncertain: boolean;
  readonly cancelRequested: boolean;
  /** The encoded signed envelope; kept with the metadata. */
  readonly signed: Uint8Array;
  readonly digest: Uint8Array;
  readonly bytes: number;
  /** In how many pieces the sealed body lies; absent for one. */
  readonly pieces?: number;
  readonly createdAt: number;
  /** Running time, ms, of the send. */
  readonly createdRan: number;
  /** Running time, ms, at which forwarding ends. */
  readonly deadline: number;
  readonly cause: Cause | null;
  readonly storedAs: MessageKind | null;
  readonly receiver: Mirror | null;
  /** Both ends are this host. */
  readonly local: boolean;
  /** Name of the sending agent; null for the owner. */
  readonly agent: string | null;
  readonly origin: Origin;
  /** The caller's idempotency key and what it covered; lives as long as the row. */
  readonly request: RequestKey;
  readonly acceptedAt: number | null;
  readonly fetchedAt: number | null;
  /** Running time, ms, from which it may be forgotten; null while it is open. */
  readonly keptUntil: number | null;
}

export type NewSent = Pick<
  Sent,
  | 'id'
  | 'host'
  | 'to'
  | 'kind'
  | 'signed'
  | 'digest'
  | 'bytes'
  | 'pieces'
  | 'createdAt'
  | 'createdRan'
  | 'deadline'
  | 'local'
  | 'agent'
  | 'origin'
  | 'request'
> & { readonly state: 'queued' | 'forwarding' | 'accepted' };

/** What a verified receipt of the row's receiver changes in it. */
export function afterReceipt(row: Sent, receipt: Receipt): Partial<Sent> {
  const end = row.receiver !== null && RECEIVER_ENDS.has(row.receiver.state) && !RECEIVER_ENDS.has(receipt.state) ? row.receiver : null;
  const mirror: Mirror = {
    state: end?.state ?? receipt.state,
    at: end?.at ?? receipt.at,
    handedOut: row.receiver?.handedOut === true || receipt.outcome === 'too_late' || receipt.outcome === 'fetched',
    handedOutAt: row.receiver?.handedOutAt ?? (receipt.outcome === 'too_late' && !receipt.certain ? receipt.at : null),
    liveSession: receipt.liveSession,
    ...noticeAfter(row.receiver, receipt),
  };
  const told = { uncertain: false, storedAs: receipt.storedAs, receiver: mirror, cause: null, acceptedAt: row.acceptedAt ?? receipt.at };
  const settled = { ...told, cancelRequested: false };
  switch (receipt.outcome) {
    case 'fetched':
      return { ...settled, state: 'fetched', fetchedAt: receipt.at };
    case 'expired': {
      const message = 'nobody read it within its retention on the receiving host';
      return { ...settled, state: 'expired', cause: { code: 'expired', message, at: receipt.at } };
    }
    case 'cancelled':
      return { ...settled, acceptedAt: row.acceptedAt, state: 'cancelled' };
    case 'accepted':
    case 'too_late': {
      const stays = row.state === 'fetched' || row.state === 'cancelled' || (row.state === 'expired' && end !== null);
      const state = stays ? row.state : 'accepted';
      if (receipt.outcome === 'accepted') return { ...told, state };
      const message = receipt.certain ? 'the cancel came after pickup' : 'the cancel came after the body was handed out';
      return { ...settled, state, cause: { code: 'too_late', message, at: receipt.at } };
    }
  }
}

/** A receipt tells of no notice but why none is made; what was heard of one before stays. */
function noticeAfter(before: Mirror | null, { outcome, noticeReason }: Receipt): Pick<Mirror, 'notice' | 'noticeReason'> {
  const notice = before?.notice ?? null;
  if (notice === null && outcome === 'accepted' && noticeReason !== undefined) return { notice: 'withheld', noticeReason };
  return { notice, noticeReason: before?.noticeReason ?? null };
}

/** What unsigned progress tells of a row that was accepted; undefined when it is no news. Decides nothing. */
export function afterProgress(row: Sent, progress: Progress): Mirror | undefined {
  const old = row.receiver;
  const next = row.state === 'accepted' ? whileAccepted(old, progress) : sinceEnd(old, progress);
  return next === undefined || (old !== null && isSame(old, next)) ? undefined : next;
}

function whileAccepted(old: Mirror | null, progress: Progress): Mirror | undefined {
  if (old !== null && RECEIVER_ENDS.has(old.state) && !RECEIVER_ENDS.has(progress.state)) return undefined;
  return {
    state: progress.state,
    at: progress.at,
    handedOut: progress.handedOut || old?.handedOut === true,
    handedOutAt: old?.handedOutAt ?? (progress.handedOut && progress.state !== 'fetched' ? progress.at : null),
    liveSession: progress.liveSession,
    ...toldOfNotice(old, progress),
  };
}

/** Of a message that has ended here and there only what became of its notice is news: a harness may say that after the fetch. */
function sinceEnd(old: Mirror | null, progress: Progress): Mirror | undefined {
  return old?.state === progress.state && RECEIVER_ENDS.has(old.state) ? { ...old, ...toldOfNotice(old, progress) } : undefined;
}

/** A notice that is withheld no longer, and not made yet, is told by its absence; any other word about one stays. */
function toldOfNotice(old: Mirror | null, { notice, noticeReason }: Progress): Pick<Mirror, 'notice' | 'noticeReason'> {
  const before = old === null || old.notice === 'withheld' ? null : old.notice;
  return { notice: notice ?? before, noticeReason: noticeReason ?? null };
}

function isSame(one: Mirror, other: Mirror): boolean {
  return (
    one.state === other.state &&
    one.handedOut === other.handedOut &&
    one.notice === other.notice &&
    (one.noticeReason ?? null) === (other.noticeReason ?? null) &&
    one.liveSession === other.liveSession
  );
}

export type OpenState = 'queued' | 'forwarding' | 'deferred' | 'uncertain';

function isOpen(row: Sent): row is Sent & { readonly state: Exclude<OpenState, 'uncertain'> } {
  return row.state === 'queued' || row.state === 'forwarding' || row.state === 'deferred';
}

/** What an open row to another host counts as; any other counts as nothing. */
export function openStates(row: Sent): OpenState[] {
  return isOpen(row) && !row.local ? [row.state, ...(row.uncertain ? ['uncertain' as const] : [])] : [];
}

/** Is a row found by its state alone? What is on its way or accepted elsewhere is under its host, and costs no further key on that path. */
export function isByState({ state, local }: Pick<Sent, 'state' | 'local'>): boolean {
  return local || (state !== 'forwarding' && state !== 'accepted');
}

/** The index keys that follow a row's state. */
export function indexKeys(row: Sent): string[] {
  const seq = seqKey(row.seq);
  return [
    ...(isOpen(row) && !row.local ? [`h/${row.host}/${seq}`, `d/${seqKey(row.deadline)}/${seq}`] : []),
    ...(row.state === 'accepted' && !row.local ? [`w/${row.host}/${seq}`] : []),
    ...(row.state === 'expired' && row.uncertain && !row.local ? [`u/${row.host}/${seq}`] : []),
    ...(row.cancelRequested && !row.local ? [`c/${row.host}/${seq}`] : []),
    ...(row.state === 'refused' || row.state === 'expired' ? [`f/${seq}`] : []),
    ...(isByState(row) ? [`s/${row.state}/${seq}`] : []),
    ...(row.keptUntil === null ? [] : [`p/${seqKey(row.keptUntil)}/${seq}`]),
  ];
}

/** Where a list of sent messages looks: what was sent from that folder, or by an agent of one of these names. */
export interface SentFrom {
  readonly workspace: string;
  readonly agents: readonly string[];
}

/** The prefix of the index keys of what was sent from a folder (`w`), or by an agent (`n`, its name in small letters). */
export function sentFrom(what: 'w' | 'n', where: string): string {
  return `a/${what}/${what === 'w' ? addressKey('', where) : where}/`;
}

/** The index keys of where a row was sent from; they stay as long as the row. */
export function sentFromKeys(row: Pick<Sent, 'seq' | 'origin' | 'agent'>): string[] {
  return [
    ...(row.origin.workspace === null ? [] : [sentFrom('w', row.origin.workspace)]),
    ...(row.agent === null ? [] : [sentFrom('n', row.agent.toLowerCase())]),
  ].map((prefix) => `${prefix}${seqKey(row.seq)}`);
}
