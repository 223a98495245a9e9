/**
 * The seam to the channel for sandboxed sessions: lines come in through a pipe, answers go out as files.
 *
 * Owns the interface only. Real: fifo.ts. What a line means, who may ask and what is answered is sandbox-fetch.ts; the adapter knows
 * places, modes, sizes and times. Every line is hostile: anybody in any sandbox of this account may have written it.
 */

export interface BoxEvents {
  /** One whole line without newlines, not empty, of at most MAX_BOX_LINE_BYTES. */
  onRequest(line: Uint8Array): void;
}

export interface Box {
  /** Makes the pipe and listens; what an earlier life left is gone before. AxError `invalid_state`, `unsupported`. */
  start(events: BoxEvents): Promise<void>;
  /** Removes all of it, also what an earlier life left. Never rejects; started again with `start`. */
  stop(): Promise<void>;
  /**
   * Puts an answer there for BOX_ANSWER_MS under its nonce. False when it was not: not open, no nonce, the name is in use, too many
   * answers, too large, or a disk that takes nothing.
   */
  answer(nonce: string, bytes: Uint8Array): Promise<boolean>;
  /**
   * Keeps a body whole and durable where fetched bodies lie, for a reader that can write nothing; gives the path. A private file that holds
   * these very bytes already is not written again. AxError `invalid_state`.
   */
  keep(id: string, body: Uint8Array): Promise<string>;
}
