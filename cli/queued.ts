/**
 * The answer to a send or a reply: its fields, and the words about where the message is now and what will follow.
 *
 * Owns that a message which is stored is never told as a failure to send: when the answer itself cannot be printed, stderr has the id.
 * Nothing here says more than the daemon said: when a session looks is its own decision, and no word here foretells it; a repeated request gets the same words as the first.
 */
import { AxError } from '../protocol/errors.ts';
import type { QueuedMessage } from '../protocol/control.ts';
import { axCommand } from './environment.ts';
import type { Environment } from './environment.ts';
import { AfterAnswer } from './failure.ts';
import type { Run } from './options.ts';
import { note, paint, printWhole, render, visible, withoutNull } from './output.ts';
import { withheldText } from './status.ts';

/** What belongs to this answer and is no part of it: on stderr, in every format. */
export function noteQueued(queued: QueuedMessage): void {
  for (const line of queued.notes) note(line);
  if (queued.from.agent === null && !queued.notes.some((line) => line.includes('reply')))
    note('sent as the owner of this host: nobody can reply to it');
}

/** Prints the answer whole. AfterAnswer when stdout does not take it: the message is stored all the same. */
export async function printQueued(run: Run, queued: QueuedMessage): Promise<void> {
  const { environment } = run;
  const answer = { type: 'message_queued', fields: queuedFields(queued), human: queuedText(environment, queued) };
  try {
    await printWhole(render(environment.format, answer));
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new AfterAnswer(
      new AxError(
        'invalid_state',
        `the message is ${queued.state} as ${queued.message_id}: it was sent, but ${why}; do not send it again`,
        {
          fix: axCommand(environment.ax, 'admin', 'status', queued.message_id),
          details: { message_id: queued.message_id, state: queued.state },
          cause: error,
        },
      ),
    );
  }
}

function queuedFields(queued: QueuedMessage): Record<string, unknown> {
  const { destination, from, notes: _notes, ...rest } = queued;
  return {
    ...withoutNull(rest, 'stored_as', 'receiver_notice_reason'),
    destination: withoutNull({ ...destination }, 'session_id'),
    from: withoutNull({ ...from }, 'agent'),
    notes: queued.notes,
  };
}

function queuedText(environment: Environment, queued: QueuedMessage): string {
  const { destination, message_id: id } = queued;
  const isNote = queued.kind === 'note' || queued.stored_as === 'note';
  const lines = [
    `${paint('bold', queued.state)}  ${id}${queued.replayed ? '  (the same request as before: nothing was sent twice)' : ''}`,
    `  to ${destination.harness} in ${visible(destination.workspace)} on ${visible(destination.host)}, from ${visible(queued.from.agent ?? 'the owner')}`,
    `  ${whereItIs(queued, isNote)}`,
    ...(isNote || !LIVING.has(queued.state) ? [] : livingText(queued)),
    ...(queued.stored_as === 'note' && queued.kind !== 'note' ? ['  It is kept as a note: that host allows this one no notices.'] : []),
    `status: ${axCommand(environment.ax, 'admin', 'status', id)}`,
  ];
  return lines.join('\n');
}

/** States in which it matters whether a session lives there. */
const LIVING: ReadonlySet<string> = new Set(['queued', 'forwarding', 'accepted', 'available', 'awaiting_setup']);

/** Who could be told of it there, as far as that is known; whether and when it looks is not. */
function livingText({ destination, live_session: live, receiver_notice_reason: reason }: QueuedMessage): string[] {
  const why = withheldText(reason);
  if (why !== undefined) return [`  No session there is told for now (${visible(reason ?? '')}): ${why}.`];
  if (live === null) return [];
  return [
    `  ${live ? 'A' : 'No'} session of ${destination.harness} that can be told lives there now${live ? '; when it looks is its own decision' : ''}.`,
  ];
}

/** Where a message is, that nobody has read it, and what it waits for: of a note nobody is told. */
function whereItIs(queued: QueuedMessage, isNote: boolean): string {
  const host = visible(queued.destination.host);
  const waits = isNote ? 'it is shown at the next look there, and no session is told' : 'it waits there until a session fetches it';
  switch (queued.state) {
    case 'queued':
    case 'forwarding':
      return `Stored on this host; nobody has read it. It goes to ${host} as soon as that host answers; then ${waits}.`;
    case 'deferred':
      return `Stored on this host; nobody has read it. ${host} does not take it now; ax tries again.`;
    case 'accepted':
    case 'available':
      return `Stored on ${host}; nobody has read it. ${waits.replace(/^it/, 'It')}.`;
    case 'awaiting_setup':
      return `Stored on ${host}; nobody has read it. No agent is set up for that folder yet; it waits for one.`;
    case 'fetched':
      return 'The session has fetched it.';
    default:
      return 'Nobody has read it, and nothing more will follow.';
  }
}
