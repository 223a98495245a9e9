/**
 * What `ax send` and `ax messages reply` do: the body, the request id, the wait, and the words about where a message is.
 *
 * Owns that the request id exists before the first byte goes to the daemon, and that every failure after that prints the line that
 * repeats the very same request.
 */
import { parseAgentAt, parseHarness } from '../protocol/address.ts';
import { AxError, isErrorCode, toAxError } from '../protocol/errors.ts';
import type { ErrorDetails } from '../protocol/errors.ts';
import type { MessageStatus, Method, QueuedMessage } from '../protocol/control.ts';
import { MAX_PIECE_BYTES, MAX_POLL_MS, MAX_SUBJECT_BYTES } from '../protocol/limits.ts';
import { SENDER_ENDS } from '../protocol/states.ts';
import type { SenderState } from '../protocol/states.ts';
import { parseLabel, parseMessageId, parseRequestKey, parseSessionId } from '../protocol/ids.ts';
import { parseWorkspace, shellQuote } from '../protocol/paths.ts';
import { readBody } from './body.ts';
import type { Body } from './body.ts';
import { call, wasContacted } from './client.ts';
import type { CallOptions } from './client.ts';
import { axCommand } from './environment.ts';
import type { Environment } from './environment.ts';
import { AfterAnswer } from './failure.ts';
import { durationOption, inLine, textOption } from './options.ts';
import type { Options, Run } from './options.ts';
import { span } from './output.ts';
import { noteQueued, printQueued } from './queued.ts';
import { newRequestId } from './random.ts';
import { pause, stopwatch } from './wait.ts';

const DEFAULT_WAIT_MS = 60_000;
/** Not retryable as such, but they leave open what became of the request. */
const UNKNOWN: ReadonlySet<string> = new Set(['internal', 'protocol_violation', 'update_required']);

/** `ax send`, its words read. */
export async function sendMessage(run: Run): Promise<void> {
  const { options } = run;
  const target = readTarget(options);
  const replyTo = textOption(options, 'replyTo');
  if (replyTo !== undefined) inLine(() => parseMessageId(replyTo));
  const kind = options['note'] === true ? 'note' : 'message';
  await queue(run, 'message.send', run.args[0], {
    ...target,
    kind,
    reply_to: replyTo,
    local_workspace: run.environment.localWorkspace,
  });
}

function readTarget(options: Options): Record<string, unknown> {
  const to = textOption(options, 'to');
  const host = textOption(options, 'host') ?? textOption(options, 'node');
  const session = textOption(options, 'session');
  const workspace = textOption(options, 'destinationWorkspace');
  const harness = textOption(options, 'harness');
  if (to !== undefined && host !== undefined) throw new AxError('usage', 'say where to once: --to NAME@HOST or --host HOST, not both');
  if (to === undefined && host === undefined) throw new AxError('usage', 'say where to: --to NAME@HOST, or --host HOST');
  if (to !== undefined) {
    if (session !== undefined || workspace !== undefined || harness !== undefined)
      throw new AxError('usage', '--session, --destination-workspace and --harness go with --host, not with --to');
    inLine(() => parseAgentAt(to));
    return { to };
  }
  if (session !== undefined && workspace !== undefined)
    throw new AxError('usage', 'with --host, give --session UUID or --destination-workspace DIR, not both');
  if (session === undefined && workspace === undefined)
    throw new AxError('usage', 'with --host, give either --session UUID or --destination-workspace DIR');
  if (harness === undefined) throw new AxError('usage', 'with --host, give --harness claude or --harness codex behind `send`');
  // Only its form is judged here: the folder is the other host's, and is signed as typed.
  if (workspace !== undefined) inLine(() => parseWorkspace(workspace));
  if (session !== undefined) inLine(() => parseSessionId(session));
  inLine(() => parseHarness(harness));
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
  const timeoutMs = durationOption(options, 'timeout', '--timeout', 1) ?? DEFAULT_WAIT_MS;
  const spans = {
    deadline_ms: durationOption(options, 'deadline', '--deadline', 1000),
    retention_ms: durationOption(options, 'retention', '--retention', 1000),
  };
  const typedId = textOption(options, 'requestId');
  if (typedId !== undefined) inLine(() => parseRequestKey(typedId));
  const requestId = typedId ?? newRequestId();
  const subject = textOption(options, 'subject');
  if (subject !== undefined) inLine(() => parseLabel(subject, 'a subject', MAX_SUBJECT_BYTES));
  const body = await readBody(positional, options);
  const request = {
    ...params,
    ...spans,
    subject,
    agent: textOption(options, 'agent'),
    request_id: requestId,
  };
  const retry = retryLine(environment, requestId, body);
  let queued: QueuedMessage;
  try {
    queued = await callWithBody<QueuedMessage>(environment, method, request, body.bytes, { what: 'the daemon to store the message' });
  } catch (error) {
    throw withSession(environment, withRetry(error, requestId, retry), body);
  }
  noteQueued(queued);
  if (wait === undefined) await printQueued(run, queued);
  else await waitFor(run, queued, wait as 'accepted' | 'fetched', timeoutMs, { request_id: requestId, retry });
}

/** Asks for something with a body, in parts where it fits into no single request; AxError as `call`. */
export async function callWithBody<T>(
  environment: Environment,
  method: Method,
  params: object,
  body: Uint8Array,
  options: CallOptions,
): Promise<T> {
  if (body.length <= MAX_PIECE_BYTES) return call<T>(environment, method, { ...params, body }, options);
  return (await import('./large.ts')).callInParts<T>(environment, method, params, body, options);
}

/** Attaches the line that repeats this request, and never sends twice, to whatever happened after the daemon was asked. */
function withRetry(thrown: unknown, requestId: string, retry: string): unknown {
  // After a refusal for good the very same request would be refused again.
  if (!(thrown instanceof AxError) || !wasContacted(thrown) || (!thrown.retryable && !UNKNOWN.has(thrown.code))) return thrown;
  return withDetails(thrown, { request_id: requestId, retry });
}

function withDetails(error: AxError, details: ErrorDetails, message = error.message): AxError {
  return new AxError(error.code, message, {
    ...(error.fix === undefined ? {} : { fix: error.fix }),
    details: { ...error.details, ...details },
    cause: error,
  });
}

/** The line as it was typed, with the request id where it had none. */
function retryLine(environment: Environment, requestId: string, body: Body): string {
  const typed = process.argv.slice(2);
  const hasId = typed.some((word) => word === '--request-id' || word.startsWith('--request-id='));
  const at = endOfOptions(typed);
  return lineOf(environment, hasId ? typed : [...typed.slice(0, at), '--request-id', requestId, ...typed.slice(at)], body);
}

function endOfOptions(typed: readonly string[]): number {
  const cut = typed.indexOf('--');
  return cut < 0 ? typed.length : cut;
}

function lineOf(environment: Environment, words: readonly string[], body: Body): string {
  return `${[environment.ax.program, ...words].map(shellQuote).join(' ')}${body.isFromStdin ? '   (with the same bytes on stdin)' : ''}`;
}

/** Several sessions could be meant: the line that was typed, with one of them in place of what fits them all. */
function withSession(environment: Environment, thrown: unknown, body: Body): unknown {
  if (!(thrown instanceof AxError) || thrown.code !== 'ambiguous_destination') return thrown;
  const candidates = thrown.details?.['candidates'];
  const session = Array.isArray(candidates) ? /^[0-9a-f-]{36}(?= |$)/.exec(String(candidates[0]))?.[0] : undefined;
  const typed = process.argv.slice(2);
  const at = typed.findIndex((word) => /^--(?:to|destination-workspace)(?:=|$)/.test(word));
  const word = typed[at];
  if (session === undefined || word === undefined || at >= endOfOptions(typed)) return thrown;
  const hasValue = word.includes('=');
  const value = hasValue ? word.slice(word.indexOf('=') + 1) : (typed[at + 1] ?? '');
  const harness = thrown.details?.['harness'];
  const address = word.startsWith('--to')
    ? ['--host', value.slice(value.indexOf('@') + 1), '--harness', typeof harness === 'string' ? harness : 'claude']
    : [];
  const words = [...typed.slice(0, at), ...address, '--session', session, ...typed.slice(at + (hasValue ? 1 : 2))];
  return new AxError(thrown.code, thrown.message, {
    fix: `name the one you mean, as here the first: ${lineOf(environment, words, body)}`,
    ...(thrown.details === undefined ? {} : { details: thrown.details }),
    cause: thrown,
  });
}

type Waited = MessageStatus & { readonly reached: boolean };

/** Waits for the state; every failure carries what a script needs so as not to send twice: id, state, request id and the line to repeat. */
async function waitFor(
  run: Run,
  queued: QueuedMessage,
  until: 'accepted' | 'fetched',
  timeoutMs: number,
  again: ErrorDetails,
): Promise<void> {
  const { environment } = run;
  const id = queued.message_id;
  const passed = stopwatch();
  let shown = queued;
  let failure: AxError | undefined;
  for (;;) {
    const left = Math.max(1, Math.ceil(timeoutMs - passed()));
    const polled = stopwatch();
    let status: Waited;
    try {
      const what = `${id} to be ${until} (now ${shown.state})`;
      status = await call<Waited>(environment, 'message.wait', { id, until, timeout_ms: Math.min(left, MAX_POLL_MS) }, { what });
    } catch (error) {
      const cause = toAxError(error);
      failure = withDetails(cause, {}, `${id} was ${shown.state} when the wait for it failed; it stays on its way: ${cause.message}`);
      break;
    }
    shown = {
      ...queued,
      state: status.state as QueuedMessage['state'],
      live_session: status.live_session,
      stored_as: status.stored_as,
      receiver_notice_reason: status.receiver_notice_reason ?? null,
    };
    if (status.reached) break;
    if (SENDER_ENDS.has(status.state as SenderState)) {
      failure = endedInstead(environment, status, until);
      break;
    }
    if (passed() >= timeoutMs) {
      failure = new AxError(
        'wait_timeout',
        `${id} is ${status.state}, not ${until}, after ${span(timeoutMs)}; it stays on its way${status.cause === null ? '' : `. Why it waits: ${status.cause.message}`}`,
        {
          fix: axCommand(environment.ax, 'admin', 'status', id),
        },
      );
      break;
    }
    // A daemon that answers early must not be asked in a tight loop.
    if (polled() < 50) await pause(50);
  }
  if (failure === undefined || environment.format !== 'json') await printQueued(run, shown);
  if (failure === undefined) return;
  failure = withDetails(failure, { message_id: id, state: shown.state, ...again });
  throw environment.format === 'json' ? failure : new AfterAnswer(failure);
}

function endedInstead(environment: Environment, status: MessageStatus, until: string): AxError {
  const code = status.cause?.code;
  const known = isErrorCode(code) ? code : status.state === 'expired' ? 'expired' : 'invalid_state';
  return new AxError(
    known,
    `${status.message_id} is ${status.state} and will not be ${until}${status.cause === null ? '' : `: ${status.cause.message}`}`,
    { fix: axCommand(environment.ax, 'admin', 'status', status.message_id) },
  );
}
