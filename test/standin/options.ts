/**
 * The words between a stand-in session and whoever started it: options, commands on its stdin, events on its stdout.
 *
 * Owns the shapes only; one JSON object per line in both directions. Behaviour: session.ts, inbox.ts, model.ts.
 */

export type Inbound = 'accept' | 'hold' | 'refuse' | 'unset';
export type Autorun = boolean | 'setup-only';

export interface StandInOptions {
  /** Holds `sessions/`; made when missing. */
  readonly configDir: string;
  /** Holds `<pid>.sock`; made when missing. Keep it short: a socket path has at most 107 bytes. */
  readonly socketDir: string;
  readonly cwd: string;
  readonly name?: string;
  readonly sessionId?: string;
  /** How the user lets the session act; `bypass` makes unset inbound hold what names no mode. */
  readonly mode?: 'prompting' | 'bypass';
  readonly inbound?: Inbound;
  /** Held messages expire after this, ms; 0 is never. Default 300000. */
  readonly dialogTimeoutMs?: number;
  /** The user's answer to every held message, given at once; nobody answers when left out. */
  readonly decides?: 'approve' | 'deny';
  readonly kind?: 'interactive' | 'bg';
  /** `cli`, or `sdk-cli` for a script's session. */
  readonly entrypoint?: string;
  readonly version?: string;
  readonly peerProtocol?: number;
  readonly pidDomain?: string;
  /** Recorded instead of the true start of the process: a record whose pid was used again. */
  readonly procStart?: string;
  /** No socket at all, and no environment for it. */
  readonly bare?: boolean;
  /** `no-status`: an older program that records no status; `no-socket`: one that cannot be messaged. */
  readonly old?: 'no-status' | 'no-socket';
  /** False: the sender's process is taken for another than the listener's, so no receipt is sent. Default true. */
  readonly receipts?: boolean;
  /** As on Windows: the first line must name the peer token of the key file, or the connection is closed. Counts for nothing by default. */
  readonly requiresAuth?: boolean;
  /** Does the model run the commands it is told about? Default true. */
  readonly autorun?: Autorun;
  /** After a fetch the model answers the message with this. */
  readonly reply?: string;
  /** Commands the model runs in one turn; replies come on top. Default 5. */
  readonly maxRuns?: number;
  /** Idle time before queued messages start a turn, ms. Default 100. */
  readonly turnDelayMs?: number;
  /** Exported to the session's commands as CLAUDE_CONFIG_DIR; nothing when left out. */
  readonly claudeConfigDir?: string;
  /** More environment for the session's commands; null removes one. */
  readonly env?: Readonly<Record<string, string | null>>;
}

/** Commands, with `id` echoed in the answer (`ok` or `error`). */
export type StandInCommand =
  | { cmd: 'state' }
  | { cmd: 'busy' }
  | { cmd: 'boundary' }
  | { cmd: 'idle' }
  | { cmd: 'waiting'; waitingFor?: string }
  | { cmd: 'approve' }
  | { cmd: 'deny' }
  | { cmd: 'expire' }
  | { cmd: 'clear' }
  | { cmd: 'inbound'; value: Inbound }
  | { cmd: 'mode'; value: 'prompting' | 'bypass' }
  | { cmd: 'autorun'; value: Autorun }
  | { cmd: 'reply'; value: string | null }
  | { cmd: 'run'; command: string }
  | { cmd: 'truncate' }
  | { cmd: 'record'; text: string }
  | { cmd: 'rewrite' }
  | { cmd: 'zombie' }
  | { cmd: 'crash' }
  | { cmd: 'exit' };

/** Events. `at` is wall time, ms. */
export type StandInEvent = { readonly at: number } & (
  | {
      readonly event: 'ready';
      readonly pid: number;
      readonly procStart: string;
      readonly sessionId: string;
      readonly socket: string | null;
      readonly record: string;
    }
  | { readonly event: 'ok'; readonly id: number; readonly cmd: string; readonly state: StandInState }
  | { readonly event: 'error'; readonly id: number; readonly message: string }
  | { readonly event: 'status'; readonly status: string }
  | {
      readonly event: 'frame';
      readonly decision: 'queued' | 'held' | 'refused' | 'dropped';
      readonly cause: string;
      readonly content: string;
      readonly msg_id: string | null;
      readonly from: string | null;
      readonly session_id: string | null;
      readonly line: string;
    }
  | { readonly event: 'turn'; readonly contents: readonly string[]; readonly folded: boolean }
  | { readonly event: 'ran'; readonly command: string; readonly exit: number; readonly stdout: string; readonly stderr: string }
  | { readonly event: 'turn_end'; readonly runs: number }
  | { readonly event: 'receipt_sent'; readonly status: string; readonly orig_msg_id: string | null; readonly to: string }
  | { readonly event: 'receipt_skipped'; readonly status: string; readonly why: string }
  | { readonly event: 'cleared'; readonly sessionId: string; readonly previous: string }
  | { readonly event: 'exiting' }
);

export interface StandInState {
  readonly sessionId: string;
  readonly status: string;
  readonly queued: number;
  readonly held: number;
  /** Connections its socket ever took, and bytes that came on them; 0 without a socket. */
  readonly connections: number;
  readonly bytes: number;
}

/** A new event; its time is set when it is printed. */
export type NewEvent = StandInEvent extends infer E ? (E extends StandInEvent ? Omit<E, 'at'> : never) : never;
export type Emit = (event: NewEvent) => void;
