/**
 * Every state word and the table of allowed steps, once, as data.
 *
 * Owns the states of a message on the sender's and the receiver's side and the outcomes of notices and receipts. The state
 * owners assert every step against these tables, so that an impossible step is a crash in a test and not a lie in a status.
 * Normative prose: protocol/README.md.
 */

export const SENDER_STATES = ['queued', 'forwarding', 'deferred', 'accepted', 'fetched', 'refused', 'expired', 'cancelled'] as const;
export type SenderState = (typeof SENDER_STATES)[number];

export const RECEIVER_STATES = ['awaiting_setup', 'available', 'fetched', 'expired', 'cancelled'] as const;
export type ReceiverState = (typeof RECEIVER_STATES)[number];

export const SENDER_ENDS: ReadonlySet<SenderState> = new Set(['fetched', 'refused', 'expired', 'cancelled']);
export const RECEIVER_ENDS: ReadonlySet<ReceiverState> = new Set(['fetched', 'expired', 'cancelled']);

/**
 * Steps a sender's entry may take. A state may always be confirmed again. The receiver's signed word about a late copy corrects an
 * expiry or a refusal that an earlier, unanswered copy made untrue; nothing else leaves an end.
 */
const SENDER_STEPS: Record<SenderState, readonly SenderState[]> = {
  queued: ['forwarding', 'deferred', 'accepted', 'fetched', 'refused', 'expired', 'cancelled'],
  forwarding: ['queued', 'deferred', 'accepted', 'fetched', 'refused', 'expired', 'cancelled'],
  deferred: ['forwarding', 'accepted', 'fetched', 'refused', 'expired', 'cancelled'],
  accepted: ['fetched', 'expired', 'cancelled'],
  fetched: [],
  refused: ['accepted', 'fetched', 'expired', 'cancelled'],
  expired: ['accepted', 'fetched', 'cancelled'],
  cancelled: [],
};

const RECEIVER_STEPS: Record<ReceiverState, readonly ReceiverState[]> = {
  awaiting_setup: ['available', 'fetched', 'expired', 'cancelled'], // fetched: the agent was removed between hand-out and confirmation
  available: ['awaiting_setup', 'fetched', 'expired', 'cancelled'],
  fetched: [],
  expired: [],
  cancelled: [],
};

export function senderMay(from: SenderState, to: SenderState): boolean {
  return from === to || SENDER_STEPS[from].includes(to);
}

export function receiverMay(from: ReceiverState, to: ReceiverState): boolean {
  return from === to || RECEIVER_STEPS[from].includes(to);
}

/** What became of one attempt to nudge a session. None of them is a delivery. */
export const NOTICE_OUTCOMES = [
  'written',
  'approved',
  'held',
  'denied',
  'lapsed',
  'blocked',
  'in_queue',
  'left_queue',
  'queue_paused',
  'failed',
  'unverified',
  'withheld',
] as const;
export type NoticeOutcome = (typeof NOTICE_OUTCOMES)[number];

/** What a signed receipt may say about a message. `too_late` answers a cancel that lost. */
export const RECEIPT_OUTCOMES = ['accepted', 'fetched', 'expired', 'cancelled', 'too_late'] as const;
export type ReceiptOutcome = (typeof RECEIPT_OUTCOMES)[number];

export const MESSAGE_KINDS = ['message', 'note'] as const;
export type MessageKind = (typeof MESSAGE_KINDS)[number];

/** What a host's owner may allow another host (lifecycle: Rights). */
export const GRANT_ACTIONS = ['read', 'write', 'notify', 'run', 'exec', 'cancel'] as const;
export type GrantAction = (typeof GRANT_ACTIONS)[number];
/** Given by a pairing when nothing else is said. */
export const DEFAULT_GRANTS: readonly GrantAction[] = ['read', 'write', 'notify'];

/** Types of the append-only event log. */
export const EVENT_TYPES = [
  'message.queued',
  'message.forwarding',
  'message.deferred',
  'message.accepted',
  'message.received',
  'message.available',
  'message.awaiting_setup',
  'message.handed_out',
  'message.fetched',
  'message.read_by_owner',
  'message.refused',
  'message.expired',
  'message.cancel_requested',
  'message.cancelled',
  'notice.attempt',
  'notice.outcome',
  'agent.registered',
  'agent.attached',
  'agent.renamed',
  'agent.removed',
  'host.paired',
  'host.added',
  'host.renamed',
  'host.removed',
  'host.duplicate_id',
  'daemon.started',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];
