/**
 * Receipts and cancels: what the receiver's host signs about a message, and what the sender's host signs to withdraw one.
 *
 * Owns their payloads, signing and reading. A receipt covers the envelope's digest, both hosts, the outcome and the time; it
 * is believed only when the destination's own key signed it. A cancel is believed only from the host that sent the message.
 */
import { AxError } from './errors.ts';
import { asFields, bytes, decode, encode, flag, oneOf, optionalShown, optionalText, text, violation, whole } from './codec.ts';
import { requireSignature, signOne } from './hashtree.ts';
import type { Signed } from './hashtree.ts';
import { parseHostId } from './identity.ts';
import type { HostKey } from './identity.ts';
import { isMessageId } from './ids.ts';
import type { HostId, MessageId } from './ids.ts';
import { MESSAGE_KINDS, RECEIPT_OUTCOMES, RECEIVER_STATES, WITHHELD_REASONS } from './states.ts';
import type { MessageKind, ReceiptOutcome, ReceiverState, WithheldReason } from './states.ts';

const RECEIPT_VERSION = 1;
export const RECEIPT_CONTEXT = 'ax/1 receipt';

export interface Receipt {
  readonly outcome: ReceiptOutcome;
  readonly id: MessageId;
  /** SHA-256 of the envelope's payload, as the sender's cancel or envelope names it. */
  readonly digest: Uint8Array;
  readonly sender: HostId;
  readonly receiver: HostId;
  /** The receiver's wall time, ms; for people. */
  readonly at: number;
  /** The receiver's state of the message when it signed. */
  readonly state: ReceiverState;
  readonly storedAs: MessageKind;
  /** A live session was there for the destination when it signed. */
  readonly liveSession: boolean;
  /** With `accepted`: why no session was told when it signed, where that was known then; an older ax does not tell. */
  readonly noticeReason?: WithheldReason;
  /** With `too_late`: true when pickup is confirmed, false when the body was only handed out. */
  readonly certain: boolean;
}

export interface Cancel {
  readonly id: MessageId;
  readonly digest: Uint8Array;
  readonly sender: HostId;
  readonly receiver: HostId;
  readonly at: number;
}

export function signReceipt(key: HostKey, receipt: Omit<Receipt, 'receiver'>): Signed {
  return signOne(key, RECEIPT_CONTEXT, receiptPayload(key.hostId, receipt));
}

/** What `receiver` signs to say so. */
export function receiptPayload(receiver: HostId, receipt: Omit<Receipt, 'receiver'>): Uint8Array {
  const { storedAs, liveSession, noticeReason, ...rest } = receipt;
  return encode({
    v: RECEIPT_VERSION,
    ...rest,
    stored_as: storedAs,
    live_session: liveSession,
    notice_reason: noticeReason,
    receiver,
  });
}

/** Reads a receipt that `receiver` must have signed about a message of `sender`'s. AxError `bad_signature`, `wrong_peer`, `protocol_violation`. */
export function readReceipt(receiver: HostId, sender: HostId, signed: Signed): Receipt {
  requireSignature(receiver, RECEIPT_CONTEXT, signed);
  const fields = asFields(decode(signed.payload), 'a receipt');
  const parties = readParties(fields);
  if (parties.receiver !== receiver || parties.sender !== sender)
    throw new AxError('wrong_peer', 'the receipt is about a message of other hosts');
  const noticeReason = readReason(fields);
  return {
    ...parties,
    outcome: oneOf(fields, 'outcome', RECEIPT_OUTCOMES),
    at: whole(fields, 'at'),
    state: oneOf(fields, 'state', RECEIVER_STATES),
    storedAs: oneOf(fields, 'stored_as', MESSAGE_KINDS),
    liveSession: flag(fields, 'live_session'),
    certain: flag(fields, 'certain'),
    ...(noticeReason === undefined ? {} : { noticeReason }),
  };
}

/** A reason that only a newer ax knows tells nothing here. */
function readReason(fields: ReturnType<typeof asFields>): WithheldReason | undefined {
  const said = optionalText(fields, 'notice_reason', 32);
  return WITHHELD_REASONS.find((reason) => reason === said);
}

export function signCancel(key: HostKey, cancel: Omit<Cancel, 'sender'>): Signed {
  return signOne(key, 'ax/1 cancel', encode({ v: RECEIPT_VERSION, ...cancel, sender: key.hostId }));
}

/** Reads a cancel that `sender` must have signed for a message to `receiver`. AxError as readReceipt. */
export function readCancel(sender: HostId, receiver: HostId, signed: Signed): Cancel {
  requireSignature(sender, 'ax/1 cancel', signed);
  const fields = asFields(decode(signed.payload), 'a cancel');
  const parties = readParties(fields);
  if (parties.receiver !== receiver || parties.sender !== sender)
    throw new AxError('wrong_peer', 'the cancel is about a message of other hosts');
  return { ...parties, at: whole(fields, 'at') };
}

function readParties(fields: ReturnType<typeof asFields>): { id: MessageId; digest: Uint8Array; sender: HostId; receiver: HostId } {
  if (whole(fields, 'v') !== RECEIPT_VERSION) throw new AxError('update_required', 'signed in a version this host does not know');
  const id = text(fields, 'id', 26);
  if (!isMessageId(id)) throw violation('"id" is not a message id');
  return {
    id,
    digest: bytes(fields, 'digest', 32, 32),
    sender: parseHostId(text(fields, 'sender', 64)),
    receiver: parseHostId(text(fields, 'receiver', 64)),
  };
}

/** An update of a message's progress that is not signed: it only mirrors, it decides nothing. */
export interface Progress {
  readonly id: MessageId;
  readonly state: ReceiverState;
  readonly at: number;
  readonly handedOut: boolean;
  readonly liveSession: boolean;
  readonly notice?: string;
  /** Why the notice is withheld; only with `withheld`. */
  readonly noticeReason?: WithheldReason;
}

export function readProgress(value: Parameters<typeof asFields>[0]): Progress {
  const fields = asFields(value, 'a progress');
  const id = text(fields, 'id', 26);
  if (!isMessageId(id)) throw violation('"id" is not a message id');
  const notice = optionalShown(fields, 'notice', 32);
  const noticeReason = notice === 'withheld' ? readReason(fields) : undefined;
  return {
    id,
    state: oneOf(fields, 'state', RECEIVER_STATES),
    at: whole(fields, 'at'),
    handedOut: flag(fields, 'handed_out'),
    liveSession: flag(fields, 'live_session'),
    ...(notice === undefined ? {} : { notice }),
    ...(noticeReason === undefined ? {} : { noticeReason }),
  };
}

export function progressValue(progress: Progress): Record<string, unknown> {
  return {
    id: progress.id,
    state: progress.state,
    at: progress.at,
    handed_out: progress.handedOut,
    live_session: progress.liveSession,
    notice: progress.notice,
    notice_reason: progress.noticeReason,
  };
}
