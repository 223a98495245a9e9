/**
 * `ax send` and what it shares with `ax messages reply`: the body, the request id, the wait, and the words about where a message is.
 *
 * Owns that the request id exists before the first byte goes to the daemon, and that every failure after that prints the line that
 * repeats the very same request.
 */
import type { Command } from 'commander';
import { AxError, isErrorCode } from '../../protocol/errors.ts';
import type { MessageStatus, QueuedMessage } from '../../protocol/control.ts';
import { MAX_POLL_MS } from '../../protocol/limits.ts';
import { SENDER_ENDS } from '../../protocol/states.ts';
import type { SenderState } from '../../protocol/states.ts';
import { parseWorkspace, shellQuote } from '../../protocol/paths.ts';
import { readBody } from '../body.ts';
import type { Body } from '../body.ts';
import { call, wasContacted } from '../client.ts';
import { action, durationOption, textOption, verb } from '../command.ts';
import type { Options, Run } from '../command.ts';
import { axCommand, newRequestId } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { note, paint, span, visible, withoutNull } from '../output.ts';
import { AfterAnswer } from '../failure.ts';
import { pause, stopwatch } from '../wait.ts';

const DEFAULT_WAIT_MS = 60_000;
/** Not retryable as such, but they leave open what became of the request. */
const UNKNOWN: ReadonlySet<string> = new Set(['internal', 'protocol_violation', 'update_required']);

export function addSend(root: Command): void {
  const send = verb(
    root,
    'send [body]',
    'send a message to an agent or a session',
    'ax send --to builder@hostb --message "the build is red"',
    ['harness'],
  )
    .option('--to <name@host>', 'a registered agent')
    .option('--host <host>', 'alias, host id, multiaddr with /p2p/ID, or Localhost')
    .addOption(root.createOption('--node <host>', 'the same as --host').hideHelp())
    .option('--session <uuid>', 'with --host: the session whose destination it is')
    .option('--destination-workspace <dir>', 'with --host: the folder there, without looking for a session')
    .option('--harness <name>', 'with --host: claude or codex')
    .option('--note', 'a note: shown at the next look, causes no notice')
    .option('--reply-to <id>', 'the message this answers');
  addSendOptions(send);
  action(send, async (run) => {
    const { options } = run;
    const target = readTarget(options);
    const kind = options['note'] === true ? 'note' : 'message';
    await queue(run, 'message.send', run.args[0], {
      ...target,
      kind,
      reply_to: textOption(options, 'replyTo'),
      local_workspace: run.environment.localWorkspace,
    });
  });
}

/** The options that `send` and `reply` share. */
export function addSendOptions(command: Command): void {
  command
    .option('--message <text>', 'the body; or give it as text, with --file, or on stdin (-)')
    .option('--file <path>', 'the body, any bytes')
    .option('--subject <text>', 'one line for the reader')
    .option('--deadline <span>', 'how long to try to hand it over (default 72h)')
    .option('--retention <span>', 'how long the receiver keeps it (default 7d)')
    .option('--request-id <key>', 'repeats a request instead of sending twice')
    .option('--agent <name>', 'the agent that sends')
    .addOption(command.createOption('--wait <state>', 'return only when it is there').choices(['accepted', 'fetched']))
    .option('--timeout <span>', 'with --wait (default 60s)');
}

function readTarget(options: Options): Record<string, unknown> {
  const to = textOption(options, 'to');
  const host = textOption(options, 'host') ?? textOption(options, 'node');
  const session = textOption(options, 'session');
  const workspace = textOption(options, 'destinationWorkspace');
  const harness = textOption(options, 'harness');
  if ((to === undefined) === (host === undefined)) throw new AxError('usage', 'say where to: --to NAME@HOST, or --host HOST');
  if (to !== undefined) {
    if (session !== undefined || workspace !== undefined || harness !== undefined)
      throw new AxError('usage', '--session, --destination-workspace and --harness go with --host, not with --to');
    return { to };
  }
  if ((session === undefined) === (workspace === undefined))
    throw new AxError('usage', 'with --host, give either --session UUID or --destination-workspace DIR');
  if (harness === undefined) throw new AxError('usage', 'with --host, give --harness claude or --harness codex behind `send`');
  // Only its form is judged here: the folder is the other host's, and is signed as typed.
  if (workspace !== undefined) parseWorkspace(workspace);
  return { host, session, workspace, harness };
}

/** Reads the body, hands the message to the daemon, waits when asked to, and prints the answer. */
export async function queue(
  run: Run,
  method: 'message.send' | 'message.reply',
  positional: string | undefined,
  params: Record<string, unknown>,
): Promise<void> {
  const { options, environment } = run;
  const wait = textOption(options, 'wait');
  if (wait === undefined && textOption(options, 'timeout') !== undefined) throw new AxError('usage', '--timeout goes with --wait');
  const timeoutMs = durationOption(options, 'timeout', '--timeout') ?? DEFAULT_WAIT_MS;
  const spans = {
    deadline_ms: durationOption(options, 'deadline', '--deadline'),
    retention_ms: durationOption(options, 'retention', '--retention'),
  };
  const requestId = textOption(options, 'requestId') ?? newRequestId();
  const body = await readBody(positional, options);
  const request = {
    ...params,
    ...spans,
    body: body.bytes,
    subject: textOption(options, 'subject'),
    agent: textOption(options, 'agent'),
    request_id: requestId,
  };
  let queued: QueuedMessage;
  try {
    queued = await call<QueuedMessage>(environment, method, request, { what: 'the daemon to store the message' });
  } catch (error) {
    throw withRetry(environment, error, requestId, body);
  }
  for (const line of queued.notes) note(line);
  if (queued.from.agent === null && !queued.notes.some((line) => line.includes('reply'))) {
    note('sent as the owner of this host, not as an agent: nobody can reply to it');
  }
  if (wait === undefined) await printQueued(run, queued);
  else await waitFor(run, queued, wait as 'accepted' | 'fetched', timeoutMs);
}

async function printQueued(run: Run, queued: QueuedMessage): Promise<void> {
  await run.print({ type: 'message_queued', fields: queuedFields(queued), human: queuedText(run.environment, queued) });
}

function queuedFields(queued: QueuedMessage): Record<string, unknown> {
  const { destination, from, notes: _notes, ...rest } = queued;
  return {
    ...withoutNull(rest, 'stored_as'),
    destination: withoutNull({ ...destination }, 'session_id'),
    from: withoutNull({ ...from }, 'agent'),
    notes: queued.notes,
  };
}

function queuedText(environment: Environment, queued: QueuedMessage): string {
  const { destination, message_id: id } = queued;
  const lines = [
    `${paint('bold', queued.state)}  ${id}${queued.replayed ? '  (the same request as before: nothing was sent twice)' : ''}`,
    `  to ${destination.harness} in ${visible(destination.workspace)} on ${visible(destination.host)}, from ${visible(queued.from.agent ?? 'the owner')}`,
    `  ${whereItIs(queued.state, visible(destination.host), queued.live_session)}`,
    ...(queued.stored_as === 'note' && queued.kind !== 'note' ? ['  It is kept as a note: that host allows this one no notices.'] : []),
    `status: ${axCommand(environment.ax, 'admin', 'status', id)}`,
  ];
  return lines.join('\n');
}

/** Where a message is, that nobody has read it, and what will follow. */
export function whereItIs(state: string, host: string, isLive: boolean | null): string {
  const session = isLive === true ? 'a live session there is told' : 'a session there is told when one lives';
  switch (state) {
    case 'queued':
    case 'forwarding':
      return `Stored on this host; nobody has read it. It goes to ${host} as soon as that host answers; then ${session}.`;
    case 'deferred':
      return `Stored on this host; nobody has read it. ${host} does not take it now; ax tries again.`;
    case 'accepted':
      return `Stored on ${host}; nobody has read it. Next, ${session}, and fetches it.`;
    case 'awaiting_setup':
      return `Stored on ${host}; nobody has read it. No agent is set up for that folder yet; it waits for one.`;
    case 'available':
      return `Stored on ${host}; nobody has read it. Next, ${session}, and fetches it.`;
    case 'fetched':
      return 'The session has fetched it.';
    default:
      return 'Nobody has read it, and nothing more will follow.';
  }
}

/** The line that repeats this request, and never sends twice, on whatever happened after the daemon was asked. */
function withRetry(environment: Environment, thrown: unknown, requestId: string, body: Body): unknown {
  // After a refusal for good the very same request would be refused again.
  if (!(thrown instanceof AxError) || !wasContacted(thrown) || (!thrown.retryable && !UNKNOWN.has(thrown.code))) return thrown;
  const typed = process.argv.slice(2);
  const hasId = typed.some((word) => word === '--request-id' || word.startsWith('--request-id='));
  const cut = typed.indexOf('--');
  const at = cut < 0 ? typed.length : cut;
  const words = hasId ? typed : [...typed.slice(0, at), '--request-id', requestId, ...typed.slice(at)];
  const retry = `${[environment.ax.program, ...words].map(shellQuote).join(' ')}${body.isFromStdin ? '   (with the same bytes on stdin)' : ''}`;
  return new AxError(thrown.code, thrown.message, {
    ...(thrown.fix === undefined ? {} : { fix: thrown.fix }),
    details: { ...thrown.details, request_id: requestId, retry },
    cause: thrown,
  });
}

type Waited = MessageStatus & { readonly reached: boolean };

async function waitFor(run: Run, queued: QueuedMessage, until: 'accepted' | 'fetched', timeoutMs: number): Promise<void> {
  const { environment } = run;
  const id = queued.message_id;
  const passed = stopwatch();
  let state: string = queued.state;
  let shown = queued;
  let failure: AxError | undefined;
  for (;;) {
    const left = Math.max(1, Math.ceil(timeoutMs - passed()));
    const polled = stopwatch();
    let status: Waited;
    try {
      const what = `${id} to be ${until} (now ${state})`;
      status = await call<Waited>(environment, 'message.wait', { id, until, timeout_ms: Math.min(left, MAX_POLL_MS) }, { what });
    } catch (error) {
      failure = error instanceof AxError ? error : new AxError('internal', String(error), { cause: error });
      break;
    }
    state = status.state;
    shown = { ...queued, state: status.state as QueuedMessage['state'], live_session: status.live_session, stored_as: status.stored_as };
    if (status.reached) break;
    if (SENDER_ENDS.has(state as SenderState)) {
      failure = endedInstead(environment, status, until);
      break;
    }
    if (passed() >= timeoutMs) {
      failure = new AxError('wait_timeout', `${id} is ${state}, not ${until}, after ${span(timeoutMs)}; it stays on its way`, {
        fix: axCommand(environment.ax, 'admin', 'status', id),
        details: { message_id: id, state },
      });
      break;
    }
    // A daemon that answers early must not be asked in a tight loop.
    if (polled() < 50) await pause(50);
  }
  if (failure === undefined || environment.format !== 'json') await printQueued(run, shown);
  if (failure === undefined) return;
  throw environment.format === 'json' ? failure : new AfterAnswer(failure);
}

function endedInstead(environment: Environment, status: MessageStatus, until: string): AxError {
  const code = status.cause?.code;
  const known = isErrorCode(code) ? code : status.state === 'expired' ? 'expired' : 'invalid_state';
  return new AxError(
    known,
    `${status.message_id} is ${status.state} and will not be ${until}${status.cause === null ? '' : `: ${status.cause.message}`}`,
    {
      fix: axCommand(environment.ax, 'admin', 'status', status.message_id),
      details: { message_id: status.message_id, state: status.state },
    },
  );
}
