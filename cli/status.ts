/**
 * A message's status and history, as fields and for people: `admin status ID` and `messages show ID` print the same.
 *
 * Owns the wording only. Nothing here says more than the daemon said.
 */
import type { MessageStatus, WaitingRow } from '../protocol/control.ts';
import type { NoticeOutcome, WithheldReason } from '../protocol/states.ts';
import type { Environment } from './environment.ts';
import { axCommand } from './environment.ts';
import { readyFix } from './failure.ts';
import { ago, paint, rowsOf, size, span, visible, withoutNull } from './output.ts';
import type { Fields } from './output.ts';

export function statusFields(status: MessageStatus): Fields {
  return {
    ...withoutNull({ ...status }, 'receiver_state', 'receiver_at', 'receiver_notice', 'receiver_notice_reason', 'cause', 'stored_as'),
    destination: withoutNull({ ...status.destination }, 'session_id'),
  };
}

/** What a notice came to, for people; none of it says that the message was read. */
const NOTICE_WORDS: Record<NoticeOutcome, string> = {
  unverified: 'it may have reached the session or not',
  written: 'the session has it; nobody knows whether it was seen',
  held: 'the harness holds it until its user approves it there',
  approved: 'its user approved it',
  denied: 'its user denied it',
  lapsed: 'its user did not approve it in time',
  blocked: 'the session refuses messages from other programs',
  in_queue: 'waits in the queue of the Codex thread, until its running turn ends or somebody resumes it',
  left_queue: 'the Codex thread took it out of its queue; nobody knows whether the model acted on it',
  queue_paused: 'the user interrupted the Codex thread; its queue waits until they go on',
  failed: 'nothing reached the session; it is tried again',
  withheld: 'no session is told for now; the history says why',
};

const WITHHELD_WORDS: Record<WithheldReason, string> = {
  several: 'several sessions could be meant there, and ax does not choose; a send with --session names one',
  budget: 'its sender has used up the notices that are given in an hour; the session is told later',
  quiet: 'the agent there is quiet; the message is kept, and when that ends a session that lives there is told',
  no_right: 'its host may cause no notices there any more; on the host that has it: ax host grant HOST notify',
};

/** Why no session is told, in words; undefined for none, and for a reason that only a newer ax knows. */
export function withheldText(reason: string | null | undefined): string | undefined {
  return reason !== null && reason !== undefined && Object.hasOwn(WITHHELD_WORDS, reason)
    ? WITHHELD_WORDS[reason as WithheldReason]
    : undefined;
}

/** The outcome's own word with what it means, and why it is withheld; a word that only a newer ax knows stands alone. */
function noticeText(outcome: string, reason: string | null): string {
  const why = withheldText(reason);
  if (outcome === 'withheld' && why !== undefined) return `withheld (${reason}): ${why}`;
  const words = Object.hasOwn(NOTICE_WORDS, outcome) ? NOTICE_WORDS[outcome as NoticeOutcome] : undefined;
  return words === undefined ? visible(outcome) : `${outcome}: ${words}`;
}

/** How many wait, and the oldest of them; `count` is all there are where the daemon says so. */
export function waitingRows(waiting: readonly WaitingRow[], count: number | undefined, shown: number): string[] {
  const total = Math.max(count ?? 0, waiting.length);
  const listed = waiting.slice(0, shown).map((row) => `  ${row.message_id}  ${row.kind}  ${size(row.bytes)}`);
  return [`waiting: ${total}`, ...listed, ...(total > listed.length ? [`  and ${total - listed.length} more`] : [])];
}

const SIDES = { sender: 'sent from this host', receiver: 'received by this host', local: 'from this host to itself' } as const;

export function statusText(environment: Environment, status: MessageStatus): string {
  const { destination } = status;
  const lines = [
    `${paint('bold', status.message_id)}  ${visible(words(status))}`,
    `  ${SIDES[status.side]}: ${visible(status.from)} to ${visible(destination.harness)} in ${visible(destination.workspace)} on ${visible(destination.host)}, ${size(status.bytes)}`,
    ...(status.subject === null ? [] : [`  subject: ${visible(status.subject)}`]),
    ...(status.stored_as === 'note' ? ['  kept as a note: it causes no notice'] : []),
    ...(status.receiver_state === null || status.side !== 'sender'
      ? []
      : [`  there: ${visible(status.receiver_state)}, ${ago(status.receiver_at)}`]),
    ...(status.receiver_notice === null
      ? []
      : [
          // Of what was fetched nobody need be told any more what is not known.
          `  notice: ${status.state === 'fetched' ? visible(status.receiver_notice) : noticeText(status.receiver_notice, status.receiver_notice_reason ?? null)}`,
        ]),
    ...(status.cause === null
      ? []
      : [
          `  cause: ${visible(readyFix(status.cause.message, axCommand(environment.ax)))} (${visible(status.cause.code)}), ${ago(status.cause.at)}${waitText(status.cause.retry_after_ms)}`,
        ]),
    ...(status.remaining_ms === null ? [] : [`  time left: ${span(status.remaining_ms)}`]),
    ...rowsOf(status.history.map((row) => [`  ${row.seq}`, ago(row.at), row.state, row.detail ?? ''])),
  ];
  if (status.state === 'awaiting_setup' && status.side !== 'sender')
    lines.push(
      `next: in that agent's session, ${axCommand(environment.ax, 'agent', 'setup', '--name', 'NAME', '--workspace', destination.workspace)}`,
    );
  return lines.join('\n');
}

function words(status: MessageStatus): string {
  const extra = [
    ...(status.uncertain ? ['outcome of the last attempt unknown'] : []),
    ...(status.cancel_requested ? ['cancel requested'] : []),
    ...(status.handed_out_at !== null && status.fetched_at === null && status.state !== 'fetched' ? ['handed out, unconfirmed'] : []),
    ...(status.live_session === true && status.state !== 'fetched' ? ['a session is live there'] : []),
  ];
  return extra.length === 0 ? status.state : `${status.state} (${extra.join('; ')})`;
}

function waitText(ms: number | undefined): string {
  return ms === undefined ? '' : `; it asked to wait ${span(ms)}`;
}
