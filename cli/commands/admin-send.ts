/**
 * `ax admin send`: a person picks a live session anywhere and writes to it, as the owner of this host.
 *
 * Owns what is asked, in which order, and what is shown of a host and a session. Nothing goes to the daemon but questions until the last
 * confirmation; then it is one ordinary `message.send` without an agent, under one request id however often it is tried.
 */
import type { Command } from 'commander';
import type { HostRow, QueuedMessage, SessionHost, SessionRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { MAX_BODY_BYTES, MAX_SUBJECT_BYTES, SESSIONS_TIMEOUT_MS } from '../../protocol/limits.ts';
import { call, wasContacted } from '../client.ts';
import { action, asOwner, verb } from '../command.ts';
import { callWithBody } from '../sending.ts';
import { canAsk, Dialogue, nothingSent } from '../dialogue.ts';
import type { Choice } from '../dialogue.ts';
import { written } from '../editor.ts';
import { axCommand, editorCommand } from '../environment.ts';
import type { Environment } from '../environment.ts';
import type { Run } from '../options.ts';
import { ago, count, listed, rowsOf, size, visible } from '../output.ts';
import { noteQueued, printQueued } from '../queued.ts';
import { quietText } from './quiet.ts';
import { newRequestId } from '../random.ts';

/** The daemon bounds each host; this is for a daemon that answers late. */
const ASKING_MS = SESSIONS_TIMEOUT_MS + 7_000;
/** Longest text of a peer's in one column of a list, characters. */
const MAX_CELL = 48;

interface Picked {
  readonly host: SessionHost;
  readonly session: SessionRow;
}

interface Written {
  readonly subject: string;
  readonly body: Uint8Array;
}

export function addAdminSend(root: Command): void {
  const admin = root.commands.find((command) => command.name() === 'admin');
  if (admin === undefined) throw new Error('`admin` is declared before `admin send`');
  const send = verb(admin, 'send', 'on a terminal: pick a live session anywhere and write to it, as the owner', 'ax admin send');
  action(asOwner(send), adminSend);
}

async function adminSend(run: Run): Promise<void> {
  requireOwnerThere(run);
  // As the owner, also inside a harness's shell: the session of that shell is no part of the request.
  const environment: Environment = { ...run.environment, session: null, isNested: false };
  const dialogue = await Dialogue.open();
  let queued: QueuedMessage;
  try {
    const picked = await pick(dialogue, await sessionsOf(dialogue, environment));
    const text = await write(dialogue);
    await confirm(dialogue, picked, text);
    queued = await send(dialogue, environment, picked, text);
  } finally {
    dialogue.close();
  }
  noteQueued(queued);
  await printQueued(run, queued);
}

/** A guard-rail, then the terminal: AxError `invalid_state` inside an agent's shell, `usage` without a terminal. */
function requireOwnerThere({ environment, options }: Run): void {
  const instead = axCommand(environment.ax, 'send', '--host', 'HOST', '--session', 'UUID', '--harness', 'claude', '--message', 'TEXT');
  if (environment.harnessShell !== null && options['asOwner'] !== true)
    throw new AxError('invalid_state', '`ax admin send` writes as the owner of this host, which an agent is not', {
      fix: `send as your agent: ${instead}; or add --as-owner when the owner told you to`,
    });
  if (canAsk()) return;
  throw new AxError('usage', '`ax admin send` asks its questions on a terminal, and there is none', { fix: instead });
}

// --- where to ------------------------------------------------------------------------------------------------------------

async function sessionsOf(dialogue: Dialogue, environment: Environment): Promise<readonly SessionHost[]> {
  const listing = call<{ hosts: HostRow[] }>(environment, 'host.list', {}, { what: null, signal: dialogue.signal });
  const { hosts: known } = await dialogue.wait('asking the daemon which hosts it knows', listing);
  const names = ['this host', ...known.map((host) => short(host.name))];
  const asking = call<{ hosts: SessionHost[] }>(
    environment,
    'agent.sessions',
    {},
    { what: null, timeoutMs: ASKING_MS, signal: dialogue.signal },
  );
  const { hosts } = await dialogue.wait(`asking ${listed(names)} for their sessions`, asking);
  const down = hosts.filter((host) => host.state !== 'ok');
  const idle = hosts.filter((host) => host.state === 'ok' && host.sessions.length === 0);
  const causes = down.map((host) => `${short(host.host)} (${host.state}${host.error === null ? '' : `: ${host.error.message}`})`);
  const live = hosts.filter((host) => host.sessions.length > 0);
  if (live.length === 0) throw noSession(environment, idle, causes);
  if (causes.length > 0) dialogue.line(`not listed: ${causes.join('; ')}`);
  if (idle.length > 0) dialogue.line(`no live session: ${listed(idle.map((host) => short(host.host)))}`);
  return live;
}

function noSession(environment: Environment, idle: readonly SessionHost[], causes: readonly string[]): AxError {
  const told = [
    ...(idle.length === 0 ? [] : [`no live session on ${listed(idle.map((host) => short(host.host)))}`]),
    ...(causes.length === 0 ? [] : [`no answer from ${causes.join('; ')}`]),
  ];
  const words = ['send', '--host', 'HOST', '--destination-workspace', 'DIR', '--harness', 'claude', '--message', 'TEXT'];
  return new AxError('not_found', `there is no live session to pick: ${told.join('; ') || 'no host answered'}; nothing was sent`, {
    fix: `a message for a folder waits there until a session comes: ${axCommand(environment.ax, ...words)}`,
  });
}

async function pick(dialogue: Dialogue, hosts: readonly SessionHost[]): Promise<Picked> {
  const hostLines = rowsOf(hosts.map((host) => [short(host.host), count(host.sessions.length, 'live session', 'live sessions')]));
  const at = await dialogue.choose(
    'To which host?',
    asChoices(
      hostLines,
      hosts.map((host) => host.host_id),
    ),
  );
  const host = hosts[at];
  const sessions = host?.sessions ?? [];
  const lines = rowsOf(sessions.map(sessionCells));
  const hints = sessions.map((row) => `${row.session_id}${whyNoNotice(row)}`);
  const session = sessions[await dialogue.choose('To which session there?', asChoices(lines, hints))];
  if (host === undefined || session === undefined) throw new Error('a choice was made that was not offered');
  return { host, session };
}

function asChoices(labels: readonly string[], hints: readonly string[]): Choice<number>[] {
  return labels.map((label, value) => ({ value, label, hint: hints[value] ?? '' }));
}

/** What keeps a session from being told, as far as that host says. */
function whyNoNotice(row: SessionRow): string {
  if (!row.reachable) return `; gets no notice: ${row.reason ?? 'not reachable'}`;
  return row.quiet === true ? `; gets no notice now: its agent is quiet, ${quietText(row)}` : '';
}

/** Harness, agent, status, age, workspace: what tells one session from another. */
function sessionCells(row: SessionRow): string[] {
  const status = `${row.status}${row.reachable ? '' : ', not reachable'}${row.quiet === true ? ', quiet' : ''}`;
  return [short(row.harness), short(row.agent ?? 'no agent'), short(status), `started ${ago(row.started_at)}`, short(row.workspace, true)];
}

/** Text of a peer's for a list: harmless, and not longer than its column. */
function short(text: string, keepEnd = false): string {
  const characters = Array.from(visible(text));
  if (characters.length <= MAX_CELL) return characters.join('');
  return keepEnd ? `…${characters.slice(1 - MAX_CELL).join('')}` : `${characters.slice(0, MAX_CELL - 1).join('')}…`;
}

// --- what ----------------------------------------------------------------------------------------------------------------

async function write(dialogue: Dialogue): Promise<Written> {
  const subject = await dialogue.text('Subject (may stay empty)', wrongSubject);
  const editor = editorCommand();
  const how =
    editor === undefined
      ? 'here'
      : await dialogue.choose('The message', [
          { value: 'here', label: 'type it here' },
          { value: 'editor', label: `write it in ${short(editor)}` },
        ]);
  const body =
    how === 'editor'
      ? await dialogue.aside(() => written(editor ?? ''))
      : new TextEncoder().encode(await dialogue.lines('The message; Ctrl-D on an empty line ends it, Esc leaves'));
  if (new TextDecoder().decode(body).trim() === '') throw nothingSent('the message is empty');
  if (body.length > MAX_BODY_BYTES)
    throw new AxError('too_large', `the message has ${body.length} bytes; at most ${MAX_BODY_BYTES} are allowed: nothing was sent`, {
      details: { limit: MAX_BODY_BYTES },
    });
  return { subject, body };
}

function wrongSubject(value: string): string | undefined {
  const bytes = Buffer.byteLength(value, 'utf8');
  if (bytes > MAX_SUBJECT_BYTES) return `it has ${bytes} bytes; at most ${MAX_SUBJECT_BYTES} are allowed`;
  // Variation selectors choose how an emoji looks; everything else that cannot be seen is refused by the daemon as well.
  return visible(value.replaceAll(/[\ufe00-\ufe0f]/g, '')) === value.replaceAll(/[\ufe00-\ufe0f]/g, '')
    ? undefined
    : 'it holds a character that cannot be seen';
}

async function confirm(dialogue: Dialogue, { host, session }: Picked, { subject, body }: Written): Promise<void> {
  const lines = new TextDecoder().decode(body).trimEnd().split('\n').length;
  dialogue.line(`to ${session.agent ?? 'no agent yet'}: ${session.harness} in ${session.workspace} on ${host.host}`);
  dialogue.line(`session ${session.session_id}`);
  if (subject !== '') dialogue.line(`subject: ${subject}`);
  dialogue.line(`${count(lines, 'line', 'lines')}, ${size(body.length)}`);
  if (!(await dialogue.confirm('Send it as the owner of this host? Nobody can reply to that.'))) throw nothingSent('you said no');
}

// --- and off it goes -----------------------------------------------------------------------------------------------------

/** Sends; where the outcome is not known, asks whether to repeat the very same request. */
async function send(dialogue: Dialogue, environment: Environment, picked: Picked, text: Written): Promise<QueuedMessage> {
  const request = {
    host: picked.host.host_id,
    session: picked.session.session_id,
    harness: picked.session.harness,
    kind: 'message',
    ...(text.subject === '' ? {} : { subject: text.subject }),
    request_id: newRequestId(),
  };
  for (;;) {
    try {
      return await callWithBody<QueuedMessage>(environment, 'message.send', request, text.body, {
        what: 'the daemon to store the message',
      });
    } catch (error) {
      if (!(error instanceof AxError) || !error.retryable) throw error;
      dialogue.line(error.message);
      const isOpen = wasContacted(error);
      const question = `Try again? ${isOpen ? 'Whether it was stored is not known; the same request is never sent twice.' : 'Nothing was sent.'}`;
      if (!(await dialogue.confirm(question))) throw isOpen ? unknownOutcome(environment, error) : error;
    }
  }
}

function unknownOutcome(environment: Environment, error: AxError): AxError {
  return new AxError(error.code, `${error.message}; whether the message was stored is not known`, {
    fix: axCommand(environment.ax, 'messages', 'list', '--sent'),
    ...(error.details === undefined ? {} : { details: error.details }),
    cause: error,
  });
}
