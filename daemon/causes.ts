/**
 * Causes in words: what another host's refusal means for the person who sent the message, and what to do next.
 *
 * Owns one table, by code; only codes cross the peer wire, so the sentence is made here. A cause that this host found itself
 * (a deadline, a dial that failed, a lost cancel) already is a sentence and stays as it is; that two hosts have no protocol in common is
 * found at each greeting and made a sentence here. Never names a path of the other host.
 */
import type { CauseRow } from '../protocol/control.ts';
import type { ErrorCode } from '../protocol/errors.ts';
import { AX_VERSION, PEER_PROTOCOL } from '../protocol/version.ts';
import type { ProtocolRange } from '../protocol/version.ts';
import type { Cause } from './sent-row.ts';

export interface Explained {
  /** What is the matter, without a full stop. */
  readonly what: string;
  /** What to do next, or that nothing need be done. */
  readonly next: string;
}

type Words = (host: string, workspace: string) => Explained;

const both = (what: (host: string) => string, next: (host: string) => string): Words => {
  return (host) => ({ what: what(host), next: next(host) });
};
const allow = (host: string): string =>
  `its owner must allow it: on ${host}, ax host invite --grant read,write,notify; then here, ax host join CODE`;
const retried = (): string => 'nothing need be done: it is tried again';

const WORDS: Partial<Record<ErrorCode, Words>> = {
  not_found: (host, workspace) => ({
    what: `there is no folder ${workspace} on ${host}`,
    next: `look where its sessions work (ax agent sessions ${host}), or make the folder there, and send again`,
  }),
  untrusted_peer: both((host) => `${host} does not know this host`, allow),
  grant_missing: both(
    (host) => `${host} does not allow this host to leave messages there`,
    (host) =>
      `its owner must allow it, on ${host}: ax host grant HERE write notify (HERE: how ${host} calls this host); it then goes by itself`,
  ),
  throttled: both((host) => `${host} takes no more from this host for a while`, retried),
  busy: both((host) => `${host} is busy`, retried),
  shutting_down: both((host) => `ax on ${host} is starting or stopping`, retried),
  store_full: both(
    (host) => `the disk of ${host} is full`,
    (host) => `free space on ${host}; it is tried again`,
  ),
  limit: both(
    (host) => `too much from this host waits unread on ${host}`,
    (host) => `what waits must be read on ${host}; it is tried again`,
  ),
  too_large: both(
    (host) => `the message is larger than ${host} takes`,
    () => 'send less at a time',
  ),
  invalid_argument: (host, workspace) => ({
    what: `${host} does not take this message for ${workspace}`,
    next: `a folder with "<", ">", "$" or a backtick in its name has no sessions of ax; otherwise compare the versions: ax host show ${host}`,
  }),
  unsupported: both(
    (host) => `ax on ${host} does not serve that harness or kind of message`,
    (host) => `update ax on ${host}, or send to another harness`,
  ),
  key_conflict: both(
    (host) => `${host} holds another message under this id`,
    () => 'was the state folder of this host copied or set back? Send it again as a new message',
  ),
  invalid_state: both(
    (host) => `the state of the message on ${host} forbids it`,
    () => 'send it again as a new message',
  ),
  bad_signature: both(
    (host) => `${host} could not verify the message`,
    () => 'update ax on both hosts and send again',
  ),
  protocol_violation: both(
    (host) => `${host} and this host do not understand each other`,
    () => 'update ax on both hosts and send again',
  ),
};

/** The words for a cause that stands in an outbox row; `host` is the local name of the other host. */
export function explain(cause: Cause, host: string, workspace: string): Explained {
  const words = Object.hasOwn(WORDS, cause.code) ? WORDS[cause.code as ErrorCode] : undefined;
  return words?.(host, workspace) ?? { what: cause.message, next: '' };
}

/** The same as a row of an answer. */
export function causeRow(cause: Cause, host: string, workspace: string): CauseRow {
  const { code, at, retryAfterMs } = cause;
  return { code, message: sentence(cause, host, workspace), at, ...(retryAfterMs === undefined ? {} : { retry_after_ms: retryAfterMs }) };
}

/** Why nothing leaves for a host that speaks no common protocol; it is told of what waits, as long as it is so, and stands in no row. */
export function versionsApart(host: string, version: string | null, range: ProtocolRange, at: number): CauseRow {
  const isOlder = range.max < PEER_PROTOCOL.min;
  const [ours, theirs] = [`${PEER_PROTOCOL.min}-${PEER_PROTOCOL.max}`, `${range.min}-${range.max}`];
  const what = `${host} runs ax ${version ?? 'of an unknown version'} (peer protocol ${theirs}), this host ax ${AX_VERSION} (${ours})`;
  const next = isOlder ? `update ax there; then, on ${host}, ax daemon restart` : 'update ax on this host; then: ax daemon restart';
  return { code: 'update_required', message: `${what}: ${next}; it then goes by itself`, at };
}

/** The same as one sentence. */
export function sentence(cause: Cause, host: string, workspace: string): string {
  const { what, next } = explain(cause, host, workspace);
  return next === '' ? what : `${what}: ${next}`;
}
