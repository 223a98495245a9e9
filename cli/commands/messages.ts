/**
 * `ax messages`: list, show, fetch, reply.
 *
 * Owns how their lines are declared, and the list. Listing and showing change nothing; what a fetch does is in cli/fetching.ts, which a plain
 * line reaches without any of this (cli/plain-line.ts).
 */
import type { Command } from 'commander';
import type { MessageRow, MessageStatus } from '../../protocol/control.ts';
import { MAX_LIST_ROWS } from '../../protocol/limits.ts';
import { RECEIVER_STATES, SENDER_STATES } from '../../protocol/states.ts';
import { call } from '../client.ts';
import { action, verb, noun } from '../command.ts';
import { absolute, axCommand, requireLocalWorkspace } from '../environment.ts';
import { fetchMessage } from '../fetching.ts';
import { beforeOption, known, messageId, textOption, wholeOption } from '../options.ts';
import type { Run } from '../options.ts';
import { ago, size, table, visible } from '../output.ts';
import type { Fields } from '../output.ts';
import { queue } from '../sending.ts';
import { statusFields, statusText } from '../status.ts';
import { addSendOptions } from './send.ts';

export const MESSAGE_COLUMNS = [
  'message_id',
  'kind',
  'state',
  'harness',
  'workspace',
  'from',
  'to',
  'subject',
  'bytes',
  'received_at',
  'handed_out_at',
  'fetched_at',
];

export function addMessages(root: Command): void {
  const messages = noun(root, 'messages', 'List, read and answer messages', 'ax messages list');
  const list = verb(messages, 'list', 'messages of the local workspace; changes nothing', 'ax messages list --state available')
    .alias('ls')
    .option('--workspace <dir>', 'another workspace of this host')
    .option('-a, --all', 'of every workspace')
    .option('--sent', 'the ones sent from here')
    .option('--state <state>', `only those: ${RECEIVER_STATES.join(', ')}; with --sent: ${SENDER_STATES.join(', ')}`)
    .option('--limit <n>', `at most so many (up to ${MAX_LIST_ROWS})`)
    .option('--before <id>', 'older than this one');
  action(list, listMessages);
  const show = verb(messages, 'show <id>', 'metadata and history, never the body; changes nothing', 'ax messages show 01hq3k5r8w');
  action(show, async (run) => {
    const status = await call<MessageStatus>(run.environment, 'message.show', { id: messageId(run.args[0]) });
    await run.print({ type: 'message', fields: statusFields(status), human: statusText(run.environment, status) });
  });
  const fetch = verb(
    messages,
    'fetch <id>',
    "read a message; a session's own fetch is what tells the sender it arrived",
    'ax messages fetch 01hq3k5r8w --workspace /srv/app',
  )
    .option('--workspace <dir>', 'the workspace it was sent to')
    .option('--output <file>', 'write the exact bytes to a file')
    .option('--code <code>', 'from the notice; used in a sandbox only');
  action(fetch, fetchMessage);
  const reply = verb(messages, 'reply <id> [body]', 'answer to the sender of a message', 'ax messages reply 01hq3k5r8w --file answer.md');
  addSendOptions(reply.option('--note', 'a note: shown at the next look, causes no notice'));
  action(reply, async (run) => {
    await queue(run, 'message.reply', run.args[1], { id: messageId(run.args[0]), kind: run.options['note'] === true ? 'note' : 'message' });
  });
}

async function listMessages(run: Run): Promise<void> {
  const { environment, options } = run;
  const typed = textOption(options, 'workspace');
  const isAll = options['all'] === true;
  const workspace = isAll
    ? undefined
    : typed === undefined
      ? requireLocalWorkspace(environment, 'add -a or --workspace DIR')
      : absolute(typed);
  const isSent = options['sent'] === true;
  const limit = wholeOption(options, 'limit', '--limit', 1);
  const state = textOption(options, 'state');
  if (state !== undefined)
    known([state], isSent ? 'state of a sent message' : 'state of a received message', isSent ? SENDER_STATES : RECEIVER_STATES);
  const params = { workspace, sent: isSent, state, limit, before: beforeOption(options) };
  const { messages, scope } = await call<{ messages: MessageRow[]; scope: unknown }>(environment, 'message.list', params);
  const rows = messages.map((row) => [
    row.message_id,
    shownState(row),
    isSent ? row.to : row.from,
    row.subject ?? '-',
    size(row.bytes),
    ago(isSent ? madeAt(row.message_id) : row.received_at),
    ...(isAll ? [row.workspace] : []),
  ]);
  const where = workspace === undefined ? '' : ` ${isSent ? 'from' : 'for'} ${visible(workspace)}`;
  const widened = axCommand(environment.ax, 'messages', 'list', ...(isSent ? ['--sent'] : []), '-a');
  const empty = `no ${isSent ? 'sent ' : ''}messages${where}${workspace === undefined ? '' : `; \`${widened}\` shows every workspace`}`;
  const head = [
    'MESSAGE',
    'STATE',
    isSent ? 'TO' : 'FROM',
    'SUBJECT',
    'SIZE',
    isSent ? 'SENT' : 'ARRIVED',
    ...(isAll ? ['WORKSPACE'] : []),
  ];
  await run.print({
    type: 'message_list',
    fields: { messages, scope },
    rows: { columns: MESSAGE_COLUMNS, values: messages as unknown as Fields[] },
    human: messages.length === 0 ? empty : await table(head, rows),
  });
}

/** When a message was made: the first ten characters of its id are that time, wall-clock ms, in base32. */
function madeAt(id: string): number {
  let time = 0;
  for (const digit of id.slice(0, 10)) time = time * 32 + '0123456789abcdefghjkmnpqrstvwxyz'.indexOf(digit);
  return time;
}

function shownState(row: MessageRow): string {
  const isNote = row.kind === 'note' ? 'note, ' : '';
  return isNote + (row.handed_out_at !== null && row.fetched_at === null ? 'handed out, unconfirmed' : row.state);
}
