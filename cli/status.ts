/**
 * A message's status and history, as fields and for people: `admin status ID` and `messages show ID` print the same.
 *
 * Owns the wording only. Nothing here says more than the daemon said.
 */
import type { MessageStatus, WaitingRow } from '../protocol/control.ts';
import type { Environment } from './environment.ts';
import { axCommand } from './environment.ts';
import { ago, paint, rowsOf, size, span, visible, withoutNull } from './output.ts';
import type { Fields } from './output.ts';

export function statusFields(status: MessageStatus): Fields {
  return {
    ...withoutNull({ ...status }, 'receiver_state', 'receiver_at', 'receiver_notice', 'cause', 'stored_as'),
    destination: withoutNull({ ...status.destination }, 'session_id'),
  };
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
    ...(status.receiver_notice === null ? [] : [`  notice: ${visible(status.receiver_notice)}`]),
    ...(status.cause === null
      ? []
      : [`  cause: ${visible(status.cause.message)} (${visible(status.cause.code)}), ${ago(status.cause.at)}`]),
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
