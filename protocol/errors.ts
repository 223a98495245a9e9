/**
 * The one error class and the one closed table of refusals: code, class, exit status, HTTP status.
 *
 * Owns what every part of ax may answer instead of a result. A code from a newer peer that is not in the table still
 * tells its reader what to do, because its class (try again or for good) travels beside it. Messages are for people; only
 * codes, the class and a retry time cross the peer wire.
 * Invariant: every refusal that leaves ax is an AxError whose code stands here.
 */

/** deferred: the receiver says "not now", try again; rejected: for good; local: never crosses the peer wire. */
export type ErrorClass = 'deferred' | 'rejected' | 'local';

interface ErrorRow {
  readonly class: ErrorClass;
  /** Would the very same call, made later, perhaps succeed? */
  readonly retryable: boolean;
  /** CLI exit status: 1 refused or failed, 2 usage, 3 this host's daemon cannot be used. */
  readonly exit: 1 | 2 | 3;
  readonly http: number;
}

const row = (cls: ErrorClass, http: number, retryable = cls === 'deferred', exit: 1 | 2 | 3 = 1): ErrorRow => ({
  class: cls,
  retryable,
  exit,
  http,
});

/** Every refusal of ax. Codes are only ever added. */
export const ERROR_TABLE = {
  invalid_argument: row('rejected', 400),
  too_large: row('rejected', 413),
  not_found: row('rejected', 404),
  message_not_found: row('rejected', 404),
  job_not_found: row('rejected', 404),
  host_not_found: row('rejected', 404),
  ambiguous_destination: row('local', 409),
  ambiguous_id: row('local', 409),
  ambiguous_host: row('local', 409),
  untrusted_peer: row('deferred', 403),
  grant_missing: row('deferred', 403),
  throttled: row('deferred', 429),
  limit: row('deferred', 429),
  busy: row('deferred', 503),
  store_full: row('deferred', 503),
  shutting_down: row('deferred', 503),
  bad_signature: row('rejected', 400),
  wrong_peer: row('rejected', 400),
  protocol_violation: row('rejected', 400),
  key_conflict: row('rejected', 409),
  key_retired: row('rejected', 409),
  invalid_state: row('rejected', 409),
  too_late: row('rejected', 409),
  expired: row('rejected', 409),
  no_reply_address: row('local', 409),
  update_required: row('rejected', 426),
  unsupported: row('rejected', 501),
  unavailable: row('local', 503, true),
  timeout: row('local', 503, true),
  wait_timeout: row('local', 503, true),
  daemon_unavailable: row('local', 503, true, 3),
  sandboxed: row('local', 503, false, 3),
  store_corrupt: row('local', 500, false),
  internal: row('local', 500, false),
  usage: row('local', 400, false, 2),
} as const satisfies Record<string, ErrorRow>;

export type ErrorCode = keyof typeof ERROR_TABLE;

/** What an error carries besides its sentence. Nothing secret, no path of another host. */
export type ErrorDetails = Record<string, string | number | boolean | null | readonly string[]>;

export interface AxErrorOptions {
  /** What to do next: a command ready to run, or the word "owner" plus one in details. */
  readonly fix?: string;
  readonly details?: ErrorDetails;
  readonly cause?: unknown;
}

/** The only error ax throws on purpose. Anything else is a programmer's error and crashes the process. */
export class AxError extends Error {
  readonly code: ErrorCode;
  readonly fix: string | undefined;
  readonly details: ErrorDetails | undefined;

  constructor(code: ErrorCode, message: string, options: AxErrorOptions = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.name = 'AxError';
    this.code = code;
    this.fix = options.fix;
    this.details = options.details;
  }

  get class(): ErrorClass {
    return ERROR_TABLE[this.code].class;
  }

  get retryable(): boolean {
    return ERROR_TABLE[this.code].retryable;
  }
}

export function isErrorCode(value: unknown): value is ErrorCode {
  return typeof value === 'string' && Object.hasOwn(ERROR_TABLE, value);
}

/** Turns anything thrown into an AxError: an AxError as it is, everything else as `internal` with its cause kept. */
export function toAxError(thrown: unknown): AxError {
  if (thrown instanceof AxError) return thrown;
  return new AxError('internal', thrown instanceof Error ? thrown.message : String(thrown), { cause: thrown });
}

/** The error half of the JSON envelope (lifecycle: Refusals), printed by the CLI and sent on the control socket. */
export interface ErrorBody {
  readonly code: string;
  readonly message: string;
  readonly retryable: boolean;
  readonly fix?: string;
  readonly details?: ErrorDetails;
}

export function errorBody(error: AxError): ErrorBody {
  return {
    code: error.code,
    message: error.message,
    retryable: error.retryable,
    ...(error.fix === undefined ? {} : { fix: error.fix }),
    ...(error.details === undefined ? {} : { details: error.details }),
  };
}
