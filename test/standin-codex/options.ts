/**
 * The words between a stand-in Codex daemon and whoever started it: options, commands on its stdin, events on its stdout.
 *
 * Owns the shapes only; one JSON object per line in both directions. Whoever starts it plays the people in front of the threads; what
 * comes over its socket is ax. Behaviour: threads.ts (threads and queues), methods.ts (requests), server.ts (socket), daemon.ts.
 */

export interface StandInCodexOptions {
  /** CODEX_HOME; made when missing. Its socket path has 46 bytes more, and a socket path at most 107. */
  readonly home: string;
  /** Stands for `/tmp`: the public path becomes a symbolic link to `<socketRoot>/codex-daemon-<uid>/<hex>`. A plain socket when left out. */
  readonly socketRoot?: string;
  readonly version?: string;
  /** Instead of the one made from `version`. */
  readonly userAgent?: string;
  /** Does the model run the commands it is told about? Default true. */
  readonly autorun?: boolean;
  /** After a fetch the model answers the message with this. */
  readonly reply?: string;
  /** Commands the model runs in one turn; replies come on top. Default 5. */
  readonly maxRuns?: number;
  /** From an item in the queue of an idle thread to its turn, ms. Default 5. */
  readonly turnDelayMs?: number;
  /** A queued item's turn goes on until `end_turn`. Default false. */
  readonly holdTurns?: boolean;
  /** A loaded thread without a subscriber is unloaded after this, ms. Default 60000. */
  readonly unloadDelayMs?: number;
  /** An embedded owner looks for items of its threads this often, ms. Default 200 (the genuine one: seconds). */
  readonly ownerPollMs?: number;
  /** Loaded ids per page where the client names no limit; all when left out. */
  readonly pageSize?: number;
  readonly connections?: ConnectionMode;
  /** More environment for the threads' commands; null removes one. */
  readonly env?: Readonly<Record<string, string | null>>;
}

/** What becomes of new connections: served, never answered, closed at once, answered with what is no HTTP, or with a refusal. */
export type ConnectionMode = 'serve' | 'hang' | 'close' | 'garbage' | 'refuse';

/**
 * What goes wrong with a request. `drop_before`/`drop_after`: the connection breaks before or after the work; `silent_before`/
 * `silent_after`: no answer ever, without or with the work; `slow`: the answer comes `ms` later; `hold`: it comes with `release`.
 */
export type Fault =
  | { readonly kind: 'drop_before' | 'drop_after' | 'silent_before' | 'silent_after' | 'overload' | 'unknown_variant' | 'hold' }
  | { readonly kind: 'slow'; readonly ms: number }
  | { readonly kind: 'error'; readonly code: number; readonly message: string }
  /** Answered with this instead of the true result. */
  | { readonly kind: 'result'; readonly result: unknown }
  /** Answered with this text instead of a JSON answer; `$ID` in it becomes the request's id. */
  | { readonly kind: 'raw'; readonly text: string };

export interface ThreadOptions {
  readonly id?: string;
  readonly cwd: string;
  /** Default true. */
  readonly loaded?: boolean;
  readonly archived?: boolean;
  /** `title`: the short-lived helper of a TUI that makes the title. */
  readonly ephemeral?: boolean | 'title';
  /** A sub-agent of this thread. */
  readonly parent?: string;
  /** False: parent-owned sub-agent of a later kind. */
  readonly direct?: boolean;
  /** A fresh thread: no turn yet, no file. */
  readonly turnless?: boolean;
  readonly paused?: boolean;
  /** A TUI has it open, which keeps it loaded. Default true for a loaded thread. */
  readonly watched?: boolean;
  /** Lives in another process of this home: not loaded here, though its items are run there. */
  readonly embedded?: boolean;
  /** Somebody else's items in its queue. */
  readonly filled?: number;
  readonly preview?: string;
  readonly name?: string;
  readonly source?: unknown;
  /** More fields of the Thread object, or others instead. */
  readonly fields?: Readonly<Record<string, unknown>>;
}

export type TurnEnd = 'completed' | 'failed' | 'interrupted';

/** Commands, with `id` echoed in the answer (`ok` or `error`). `thread` is a thread's id. */
export type StandInCodexCommand =
  | { cmd: 'state' }
  | { cmd: 'open'; options: ThreadOptions }
  | { cmd: 'turn'; thread: string }
  | { cmd: 'end_turn'; thread: string; how?: TurnEnd }
  | { cmd: 'flags'; thread: string; flags: readonly string[] }
  | { cmd: 'system_error'; thread: string; on: boolean }
  | { cmd: 'leave'; thread: string }
  | { cmd: 'unload'; thread: string }
  | { cmd: 'resume'; thread: string }
  | { cmd: 'archive'; thread: string }
  | { cmd: 'cd'; thread: string; cwd: string }
  | { cmd: 'rename'; thread: string; name: string }
  | { cmd: 'fill'; thread: string; count: number }
  | { cmd: 'drop_items'; thread: string }
  | { cmd: 'start_queue'; thread: string }
  | { cmd: 'hold_turns'; value: boolean }
  | { cmd: 'autorun'; value: boolean }
  | { cmd: 'run'; thread: string; command: string }
  | { cmd: 'fault'; method: string; fault: Fault; times?: number }
  | { cmd: 'mend' }
  | { cmd: 'release' }
  | { cmd: 'connections'; mode: ConnectionMode }
  | { cmd: 'cut' }
  | { cmd: 'flood'; count: number; thread?: string; bytes?: number }
  | { cmd: 'say'; text: string }
  | { cmd: 'remove_socket' }
  | { cmd: 'stale_socket' };

/** Events. `at` is wall time, ms. */
export type StandInCodexEvent = { readonly at: number } & (
  | { readonly event: 'ready'; readonly pid: number; readonly socket: string; readonly target: string }
  | { readonly event: 'ok'; readonly id: number; readonly cmd: string; readonly thread: string | null; readonly state: StandInCodexState }
  | { readonly event: 'error'; readonly id: number; readonly message: string }
  | { readonly event: 'connected'; readonly connection: number }
  | { readonly event: 'closed'; readonly connection: number }
  | {
      readonly event: 'request';
      readonly connection: number;
      readonly method: string;
      readonly params: unknown;
      readonly fault: string | null;
    }
  | { readonly event: 'notification'; readonly connection: number; readonly method: string }
  | { readonly event: 'refused'; readonly method: string; readonly code: number; readonly message: string }
  /** The client asked for what touches a running turn, a person's pause, or who gets a thread's questions: ax never may. */
  | { readonly event: 'STEERED'; readonly method: string; readonly thread: string | null }
  | { readonly event: 'queued'; readonly thread: string; readonly item: string; readonly clientId: string; readonly text: string }
  | {
      readonly event: 'turn';
      readonly thread: string;
      readonly text: string;
      readonly clientId: string | null;
      readonly trigger: 'queue' | 'user';
    }
  | { readonly event: 'ran'; readonly command: string; readonly exit: number; readonly stdout: string; readonly stderr: string }
  | { readonly event: 'turn_end'; readonly thread: string; readonly how: TurnEnd; readonly runs: number }
  | { readonly event: 'unloaded'; readonly thread: string }
  | { readonly event: 'exiting' }
);

export interface StandInCodexState {
  readonly connections: number;
  readonly threads: readonly {
    readonly id: string;
    readonly status: string;
    readonly running: boolean;
    readonly paused: boolean;
    readonly queue: readonly { readonly id: string; readonly clientId: string }[];
  }[];
}

/** A new event; its time is set when it is printed. */
export type NewEvent = StandInCodexEvent extends infer E ? (E extends StandInCodexEvent ? Omit<E, 'at'> : never) : never;
export type Emit = (event: NewEvent) => void;
