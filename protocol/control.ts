/**
 * The requests on the control socket and the shape of every answer: the contract between the CLI and its daemon.
 *
 * Owns method names, request and response frames and the field names of results, which are the JSON the CLI prints (times
 * become RFC 3339 there). A request carries the control protocol's version; `daemon.hello` and `daemon.stop` are frozen, so that any CLI can
 * greet and stop any daemon. Times are wall-clock ms; spans end in `_ms`.
 */
import type { HarnessName } from './address.ts';
import type { ErrorBody } from './errors.ts';
import type { MessageKind, ReceiverState, SenderState } from './states.ts';

export const METHODS = [
  'daemon.hello',
  'daemon.stop',
  'daemon.status',
  'daemon.backup',
  'host.id',
  'host.invite',
  'host.join',
  'host.add',
  'host.list',
  'host.show',
  'host.rename',
  'host.remove',
  'host.ping',
  'host.grant',
  'host.revoke',
  'agent.setup',
  'agent.list',
  'agent.rename',
  'agent.remove',
  'agent.quiet',
  'agent.unquiet',
  'agent.sessions',
  'agent.sandbox_fetch',
  'message.send',
  'message.reply',
  'message.upload',
  'message.list',
  'message.show',
  'message.fetch',
  'message.part',
  'message.confirm',
  'message.wait',
  'admin.status',
  'admin.message_status',
  'admin.cancel',
  'admin.dead',
  'admin.retry',
  'admin.events',
] as const;
export type Method = (typeof METHODS)[number];

/** Caller-reported provenance, stored with what it makes; never sent to a peer, never an input to a decision. */
export interface Origin {
  readonly harness: string | null;
  readonly harness_version: string | null;
  readonly session_id: string | null;
  readonly workspace: string | null;
  readonly integration: string;
}

/** What a harness's shell exports about its session; proved by the daemon before it counts. */
export interface SessionEnvironment {
  readonly harness: HarnessName;
  /** Claude Code: the conversation's id; Codex: the thread's. */
  readonly session_id: string;
  /** Null where the harness exports none (Codex). */
  readonly pid: number | null;
  readonly socket: string | null;
  readonly config_dir: string | null;
}

export interface ControlRequest {
  readonly v: number;
  readonly id: number;
  readonly method: string;
  readonly params: Record<string, unknown>;
  readonly origin: Origin;
  /** Present when the caller runs inside a harness's shell. */
  readonly session: SessionEnvironment | null;
}

export type ControlResponse =
  | { readonly v: number; readonly id: number; readonly ok: true; readonly result: Record<string, unknown> }
  | { readonly v: number; readonly id: number; readonly ok: false; readonly error: ErrorBody };

export interface DaemonStatus {
  readonly running: boolean;
  readonly pid: number;
  readonly version: string;
  readonly protocol: number;
  readonly host_id: string;
  readonly name: string;
  readonly uptime_ms: number;
  readonly listen: readonly string[];
  readonly control: string;
  readonly warnings: readonly string[];
}

export interface DaemonBackup {
  /** Absolute. */
  readonly path: string;
  readonly bytes: number;
  /** RFC 3339. */
  readonly made_at: string;
  readonly version: string;
  readonly schema: number;
  readonly host_id: string;
  /** The host key is in it. */
  readonly with_key: boolean;
}

/** What the daemon's program answers after a restore. */
export interface DaemonRestored extends Omit<DaemonBackup, 'bytes'> {
  /** Where the store that was here is now. */
  readonly kept: string | null;
  /** Was the host key here, or did it come from the backup? */
  readonly key: 'here' | 'backup';
  readonly config: 'here' | 'backup' | 'none';
  readonly warnings: readonly string[];
}

/** A grant that holds in one workspace (null: everywhere) or for a while (`remaining_ms` null: until revoked). */
export interface GrantRow {
  readonly action: string;
  readonly workspace: string | null;
  readonly remaining_ms: number | null;
}

/** What another host may do here after a change of its grants. */
export interface HostGrants {
  readonly host_id: string;
  readonly name: string;
  /** Counts changes. */
  readonly revision: number;
  readonly grants: readonly string[];
  readonly grant_rules: readonly GrantRow[];
  readonly warnings: readonly string[];
}

export interface HostRow {
  readonly host_id: string;
  readonly name: string;
  readonly addresses: readonly string[];
  /** What it may do here in every workspace. */
  readonly grants: readonly string[];
  readonly grant_rules: readonly GrantRow[];
  /** `up`, `down`, `update_required`, `wrong_peer`, `untrusted` (the other side does not know this host). */
  readonly state: string;
  readonly last_seen_at: number | null;
  readonly rtt_ms: number | null;
  readonly version: string | null;
}

export interface AttachmentRow {
  readonly session_id: string;
  /** `live` or `ended`. */
  readonly state: string;
  readonly attached_at: number;
}

export interface AgentRow {
  readonly name: string;
  readonly harness: string;
  readonly workspace: string;
  readonly attachments: readonly AttachmentRow[];
  readonly waiting: number;
  /** Notices to it are withheld; an older daemon does not tell. */
  readonly quiet?: boolean;
  /** When that ends by itself; null when it is not quiet, or quiet until `unquiet`: `quiet` tells the two apart. */
  readonly quiet_until: number | null;
}

export interface WaitingRow {
  readonly message_id: string;
  readonly kind: MessageKind;
  readonly bytes: number;
}

export interface SessionRow {
  readonly harness: string;
  readonly session_id: string;
  readonly workspace: string;
  readonly status: string;
  readonly agent: string | null;
  readonly reachable: boolean;
  readonly reason: string | null;
  readonly version: string;
  readonly started_at: number;
  /** When `status` began; null when its harness or an older ax does not tell. */
  readonly status_since?: number | null;
  /** The agent of its folder gets no notices now; null when an older ax there does not tell. */
  readonly quiet?: boolean | null;
  /** When that ends by itself; null when it is not quiet, or quiet until `unquiet`. */
  readonly quiet_until?: number | null;
}

export interface SessionHost {
  readonly host: string;
  readonly host_id: string;
  readonly state: 'ok' | 'unavailable' | 'unsupported' | 'update_required';
  readonly error: ErrorBody | null;
  readonly sessions: readonly SessionRow[];
  /** What of an `ok` list may be old: a harness that gave no answer. An older daemon does not tell. */
  readonly warnings?: readonly string[];
}

export interface QueuedMessage {
  readonly message_id: string;
  readonly destination: {
    readonly host_id: string;
    readonly host: string;
    readonly harness: string;
    readonly workspace: string;
    readonly session_id: string | null;
  };
  readonly kind: MessageKind;
  readonly state: SenderState | ReceiverState;
  readonly stored_as: MessageKind | null;
  readonly live_session: boolean | null;
  /** Why no session is told of it now, as far as that is known: a word of WITHHELD_REASONS. */
  readonly receiver_notice_reason?: string | null;
  readonly from: { readonly host: string; readonly agent: string | null };
  readonly replayed: boolean;
  /** Words for people that belong with this answer. */
  readonly notes: readonly string[];
}

/** Why a message is not accepted, in words for its sender. */
export interface CauseRow {
  readonly code: string;
  readonly message: string;
  readonly at: number;
  /** How long, from `at` on, the other host asked to wait. */
  readonly retry_after_ms?: number;
}

export interface MessageRow {
  readonly message_id: string;
  readonly kind: MessageKind;
  readonly state: string;
  readonly harness: string;
  readonly workspace: string;
  readonly from: string;
  readonly to: string;
  readonly subject: string | null;
  readonly bytes: number;
  readonly received_at: number | null;
  readonly handed_out_at: number | null;
  readonly fetched_at: number | null;
}

/** A message that was refused or has expired, with why. */
export interface DeadRow extends MessageRow {
  /** A copy may have reached the other host all the same. */
  readonly uncertain: boolean;
  readonly cause: CauseRow | null;
  /** `admin retry` would take it now. */
  readonly can_retry: boolean;
}

export interface FetchedMessage {
  readonly message_id: string;
  /** What a confirmation and the parts are asked for under: a secret of this fetch's. Empty for an owner's read that is whole. */
  readonly hand_out: string;
  readonly from: string;
  readonly from_host: string;
  readonly can_reply: boolean;
  readonly subject: string | null;
  readonly sent_at: number;
  /** Empty when the body comes in parts. */
  readonly body: Uint8Array;
  /** In how many parts `message.part` gives the body; absent: it is here. */
  readonly parts?: number;
  readonly bytes: number;
  /** Null when the body comes in parts, which its reader makes it of; with `kept` it is there always. */
  readonly sha256: string | null;
  readonly first_fetched_at: number | null;
  readonly refetch: boolean;
  /** `session`: this fetch counts as pickup once confirmed. `owner`: it changes nothing. */
  readonly by: 'session' | 'owner';
  readonly workspace: string;
  /** The oldest other unread messages. */
  readonly waiting: readonly WaitingRow[];
  /** How many other unread messages there are in all; an older daemon does not tell. */
  readonly waiting_count?: number;
  /** Where the daemon put a long body for a reader that can write nothing; only through the channel for sandboxed sessions. */
  readonly kept?: string | null;
}

/** The channel through which a sandboxed session can fetch. */
export interface SandboxFetchState {
  /** What the user chose. */
  readonly enabled: boolean;
  /** Is the pipe there and read? */
  readonly open: boolean;
  /** Why not, although enabled. */
  readonly reason: string | null;
}

export interface HistoryRow {
  readonly seq: number;
  readonly at: number;
  readonly state: string;
  readonly detail: string | null;
}

export interface MessageStatus {
  readonly message_id: string;
  readonly side: 'sender' | 'receiver' | 'local';
  readonly state: string;
  readonly uncertain: boolean;
  readonly cancel_requested: boolean;
  readonly receiver_state: string | null;
  readonly receiver_at: number | null;
  readonly receiver_notice: string | null;
  /** Why it is `withheld`: `several`, `budget`, `quiet` or `no_right`; null where that is not told. */
  readonly receiver_notice_reason?: string | null;
  readonly handed_out_at: number | null;
  readonly fetched_at: number | null;
  readonly stored_as: MessageKind | null;
  readonly live_session: boolean | null;
  readonly cause: CauseRow | null;
  readonly destination: {
    readonly host_id: string;
    readonly host: string;
    readonly harness: string;
    readonly workspace: string;
    readonly session_id: string | null;
  };
  readonly from: string;
  readonly subject: string | null;
  readonly bytes: number;
  readonly remaining_ms: number | null;
  readonly history: readonly HistoryRow[];
}

/** What a row of attention is about, for programs; `what` is for people, and may be worded anew. */
export type AttentionCode =
  | 'store_failed'
  | 'disk_low'
  | 'host_id_twice'
  | 'peer_untrusted'
  | 'peer_update_required'
  | 'peer_wrong_key'
  | 'peer_down'
  | 'messages_deferred'
  | 'message_refused'
  | 'refused_here'
  | 'no_right'
  | 'not_reached'
  | 'agent_quiet'
  | 'no_session'
  | 'notices_withheld'
  | 'notices_held'
  | 'queue_paused'
  | 'unanswered';

export interface AttentionRow {
  readonly code: AttentionCode;
  readonly what: string;
  readonly since: number | null;
  readonly fix: string;
}

type Counts<State extends string> = Readonly<Record<State, number>>;

export interface AdminStatus {
  readonly daemon: DaemonStatus;
  readonly hosts: readonly HostRow[];
  /** `oldest_at`: since when the oldest of them waits; null when none does. An earlier build does not tell it. */
  readonly outbox: Counts<'queued' | 'forwarding' | 'deferred' | 'uncertain'> & { readonly oldest_at?: number | null };
  readonly inbox: Counts<'awaiting_setup' | 'available' | 'handed_out'> & { readonly oldest_at?: number | null };
  readonly notices: Record<string, number>;
  readonly store: { readonly path: string; readonly bytes: number; readonly free_bytes: number; readonly entries: number };
  readonly attention: readonly AttentionRow[];
}

export interface EventRow {
  readonly seq: number;
  readonly at: number;
  readonly type: string;
  readonly message_id: string | null;
  readonly host_id: string | null;
  readonly subject: string | null;
  readonly state: string | null;
  readonly detail: string | null;
}
