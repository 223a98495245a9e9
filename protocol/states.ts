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
  refused: ['queued', 'accepted', 'fetched', 'expired', 'cancelled'], // queued: its owner has it tried again
  expired: ['queued', 'accepted', 'fetched', 'cancelled'],
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

/**
 * Why a message's notice is `withheld`: several sessions could be meant, the sender's budget is used up, the agent is quiet, or the
 * sender's host may cause no notices there any more.
 */
export const WITHHELD_REASONS = ['several', 'budget', 'quiet', 'no_right'] as const;
export type WithheldReason = (typeof WITHHELD_REASONS)[number];

/**
 * What may become known of an attempt after what was known: words of a harness may come late, twice or in another order, and an earlier
 * one never takes back a later one. `failed` can be wrong (the session took it after all), so what a harness then says of it counts.
 * An attempt begins `unverified`, and that may be its own result as well.
 */
const NOTICE_STEPS: Record<NoticeOutcome, readonly NoticeOutcome[]> = {
  unverified: [
    'unverified',
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
  ],
  written: ['approved', 'held', 'denied', 'lapsed', 'blocked', 'in_queue', 'left_queue', 'queue_paused'],
  failed: ['approved', 'held', 'denied', 'lapsed', 'blocked', 'in_queue', 'left_queue', 'queue_paused'],
  held: ['approved', 'denied', 'lapsed', 'blocked'],
  in_queue: ['left_queue', 'queue_paused'],
  queue_paused: ['in_queue', 'left_queue'],
  approved: [],
  denied: [],
  lapsed: [],
  blocked: [],
  left_queue: [],
  withheld: [],
};

export function noticeMay(from: NoticeOutcome, to: NoticeOutcome): boolean {
  return NOTICE_STEPS[from].includes(to);
}

/** The harness still has it and will say what becomes of it: nothing more is sent to that session meanwhile. */
export const NOTICE_WAITS: ReadonlySet<NoticeOutcome> = new Set(['held', 'in_queue', 'queue_paused']);

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
  'message.retried',
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
  'agent.quiet',
  'agent.unquiet',
  'agent.removed',
  'host.paired',
  'host.added',
  'host.renamed',
  'host.removed',
  'host.granted',
  'host.revoked',
  'host.duplicate_id',
  'sandbox_fetch.on',
  'sandbox_fetch.off',
  'daemon.started',
  'daemon.restored',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];
