/**
 * The log as the core sees it: levels, a short event name, plain fields.
 *
 * Owns the interface only; the pino adapter is made in main.ts. No secret, body, subject or token is ever a field;
 * the text of a peer is never part of an event name.
 */

export type LogFields = Record<string, string | number | boolean | null | undefined | readonly string[]>;

export interface Log {
  debug(event: string, fields?: LogFields): void;
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  error(event: string, fields?: LogFields): void;
}

/** A log that keeps nothing. */
export const silentLog: Log = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
