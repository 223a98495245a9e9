/**
 * Every number that bounds something, in one place, each with its unit and its reason.
 *
 * Owns sizes, times and counts that more than one part must agree on. A limit that is hit answers its caller with a code
 * and this number; none is only logged.
 */

const KIB = 1024;
const MIB = 1024 * KIB;
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Largest piece of a body, bytes: what is sealed, sent, stored and handed over a socket as one unit. A body up to this is one piece. */
export const MAX_PIECE_BYTES = 1 * MIB;
/** What a larger body is cut into, bytes, where MAX_PIECES allows: whatever else a host does waits for one of these at a time. */
export const CUT_BYTES = 256 * KIB;
/** Pieces of one message. */
export const MAX_PIECES = 64;
/** Largest body of a message, bytes. */
export const MAX_BODY_BYTES = MAX_PIECES * MAX_PIECE_BYTES;
/** Largest request or answer on the peer wire and on the control socket, bytes: one piece and room for what describes it. */
export const MAX_FRAME_BYTES = 1 * MIB + 64 * KIB;
/** Largest signed payload (envelope, receipt, cancel), bytes. */
export const MAX_SIGNED_BYTES = 32 * KIB;
/** Strings that end up in records: names, versions, session labels; bytes of UTF-8. */
export const MAX_LABEL_BYTES = 256;
/** Subject line, bytes of UTF-8. */
export const MAX_SUBJECT_BYTES = 200;
/** A workspace path, bytes of UTF-8 (PATH_MAX on Linux). */
export const MAX_PATH_BYTES = 4096;
/** Names of hosts and agents, characters. */
export const MAX_NAME_CHARS = 64;

/** How long a sender keeps trying to hand a message to the receiver's daemon, running time, ms. */
export const DEFAULT_DEADLINE_MS = 72 * HOUR;
export const MAX_DEADLINE_MS = 14 * DAY;
/** How long a receiver keeps an accepted message, running time from acceptance, ms. */
export const DEFAULT_RETENTION_MS = 7 * DAY;
export const MAX_RETENTION_MS = 30 * DAY;
/** Metadata of settled messages, events and seen ids live on this long, running time, ms; longer than any deadline. */
export const METADATA_RETENTION_MS = 30 * DAY;

/** An invite's life when no --ttl is given, and the longest one, ms. */
export const DEFAULT_INVITE_TTL_MS = 15 * MINUTE;
export const MAX_INVITE_TTL_MS = 1 * DAY;

/** Longest life of a grant that expires, ms. */
export const MAX_GRANT_MS = 366 * DAY;
/** Shortest and longest time for which an agent is made quiet, when it has an end, ms. */
export const MIN_QUIET_MS = 1 * SECOND;
export const MAX_QUIET_MS = 366 * DAY;

/** First and longest pause between forwarding attempts to one host, ms. */
export const RETRY_FIRST_MS = 1 * SECOND;
export const RETRY_CAP_MS = 5 * MINUTE;
/** How long one request to a peer may take before its outcome is unknown, ms. */
export const REQUEST_TIMEOUT_MS = 20 * SECOND;
/** Asking a peer for its sessions inside another command, ms. */
export const SESSIONS_TIMEOUT_MS = 3 * SECOND;
/** A harness adapter that has not looked, proved or nudged within this is gone on without, ms; a look ends well before whoever asks for it. */
export const HARNESS_LOOK_MS = 2 * SECOND;
export const HARNESS_STEP_MS = 10 * SECOND;
/** A session list younger than this answers `--session` without asking again, ms. */
export const SESSIONS_CACHE_MS = 60 * SECOND;
/**
 * How often two connected hosts greet, in turn: keeps last_seen and the round trip fresh, ms. Twice the silence after which a connection is probed,
 * so that a hello comes where a probe would be due, and between two of them one probe is enough.
 */
export const HELLO_INTERVAL_MS = 80 * SECOND;
/** Messages on their way to one peer at the same time, and about how many bytes of bodies: on a slow line each has its answer in time. */
export const FORWARD_WINDOW = 256;
export const FORWARD_WINDOW_BYTES = 8 * MIB;
/** Of these, messages of several pieces. */
export const LARGE_WINDOW = 2;
/** Bytes of pieces under way to one peer, or one piece: so many fill a long line; and as long as small messages go there too, which wait behind few. */
export const PIECE_WINDOW_BYTES = 2 * MIB;
export const SHARED_WINDOW_BYTES = 768 * KIB;
/** How long the smaller of these holds after the last small message left, ms: the next one of a conversation must not meet a full line. */
export const SHARED_AFTER_MS = 1 * SECOND;
/** How long one piece may take, ms: on a slow line longer than a request that says little. */
export const PIECE_TIMEOUT_MS = 60 * SECOND;
/** Messages of several pieces that one peer may have here half, and their bytes when whole; more push out the one offered longest ago. */
export const MAX_ARRIVING_PER_PEER = 8;
export const MAX_ARRIVING_BYTES_PER_PEER = 256 * MIB;
/** How long half a message is kept after it was last offered, running time, ms. */
export const ARRIVING_KEPT_MS = 1 * DAY;
/** How long pieces of a message that is being stored for sending may lie there without it, running time, ms: a crash leaves them. */
export const STAGED_KEPT_MS = 1 * HOUR;
/** Bodies that commands of this host are handing to their daemon, bytes in all; and the longest pause in one of them, ms. */
export const MAX_UPLOADS_BYTES = 2 * MAX_BODY_BYTES;
export const UPLOAD_PAUSE_MS = 30 * SECOND;
/** Requests one peer may have under way here at the same time. */
export const MAX_REQUESTS_PER_PEER = 128;

/** Unread messages one peer may have waiting here, and their bytes. */
export const MAX_WAITING_PER_PEER = 10_000;
export const MAX_WAITING_BYTES_PER_PEER = 1024 * MIB;
/** What the store keeps of one peer in all, read, unread and ended: messages, and their bytes on disk. */
export const MAX_KEPT_PER_PEER = 200_000;
export const MAX_KEPT_BYTES_PER_PEER = 2048 * MIB;
/** Cancel tombstones kept for one peer. */
export const MAX_TOMBSTONES_PER_PEER = 10_000;
/** Free bytes under which nothing new is accepted or queued. */
export const MIN_FREE_BYTES = 32 * MIB;

/** Least time between two notices to one attachment, ms. */
export const NOTICE_SPACING_MS = 2 * SECOND;
/** First pause before a notice nobody acted on is sent again (only to an idle session), ms; doubles each time. */
export const NOTICE_RESEND_MS = 2 * MINUTE;
/** Attempts on one outstanding notice in all. */
export const NOTICE_ATTEMPTS = 4;
/** Notices per peer and workspace: a burst, then so many an hour. */
export const NOTICE_BURST = 10;
export const NOTICES_PER_HOUR = 30;

/** New messages of one host for one workspace: a burst, then so many a minute; over all workspaces, four times that. */
export const MESSAGE_BURST = 6000;
export const MESSAGES_PER_MINUTE = 3000;

/** The bounds that a host's owner may set in config.json; the rest of this file is fixed. */
export interface Limits {
  readonly messagesPerMinute: number;
  readonly messageBurst: number;
  readonly noticesPerHour: number;
  readonly noticeBurst: number;
  readonly waitingMessages: number;
  readonly waitingBytes: number;
  readonly keptMessages: number;
  readonly keptBytes: number;
  readonly minFreeBytes: number;
}

export const DEFAULT_LIMITS: Limits = {
  messagesPerMinute: MESSAGES_PER_MINUTE,
  messageBurst: MESSAGE_BURST,
  noticesPerHour: NOTICES_PER_HOUR,
  noticeBurst: NOTICE_BURST,
  waitingMessages: MAX_WAITING_PER_PEER,
  waitingBytes: MAX_WAITING_BYTES_PER_PEER,
  keptMessages: MAX_KEPT_PER_PEER,
  keptBytes: MAX_KEPT_BYTES_PER_PEER,
  minFreeBytes: MIN_FREE_BYTES,
};

/** A message listing: default and largest number of rows. */
export const DEFAULT_LIST_ROWS = 50;
export const MAX_LIST_ROWS = 500;
/** How long one long poll on the control socket may wait, ms. */
export const MAX_POLL_MS = 25 * SECOND;

/** A body longer than this goes into a file, and only its head is printed, bytes: harnesses cut long output without a word. */
export const MAX_PRINTED_BYTES = 16 * KIB;
/** A request through the pipe for sandboxed sessions, bytes; below PIPE_BUF (4096), so that lines never mix. */
export const MAX_BOX_LINE_BYTES = 1 * KIB;
/** Answers that lie in the folder of the channel at the same time, and how long each may, ms. */
export const MAX_BOX_ANSWERS = 100;
export const BOX_ANSWER_MS = 30 * SECOND;
/** Requests served through the channel: a burst and so many a second, per session and in all. */
export const BOX_BURST = 10;
export const BOX_PER_SECOND = 5;
export const BOX_PER_SECOND_IN_ALL = 50;

/** Where a host listens unless told otherwise: this TCP port. */
export const USUAL_PORT = 19_264;
