/**
 * `ax admin dead` and `ax admin retry`: messages that were refused or have expired, and another try for one of them.
 *
 * Owns the two verbs and their words. The list covers the whole host and says so: a list of one workspace would read as "all clear".
 */
import type { Command } from 'commander';
import type { DeadRow } from '../../protocol/control.ts';
import { MAX_LIST_ROWS } from '../../protocol/limits.ts';
import { call } from '../client.ts';
import { action, asOwner, verb } from '../command.ts';
import { axCommand, requireOwnOrOwner } from '../environment.ts';
import { beforeOption, messageId, wholeOption } from '../options.ts';
import type { Run } from '../options.ts';
import { ago, table, visible } from '../output.ts';
import type { Fields } from '../output.ts';
import { MESSAGE_COLUMNS } from './messages.ts';

export function addDead(admin: Command): void {
  const dead = verb(admin, 'dead', 'messages from here that were refused or have expired, and why', 'ax admin dead')
    .option('--limit <n>', `at most so many (up to ${MAX_LIST_ROWS})`)
    .option('--before <id>', 'older than this one');
  action(dead, listDead);
  const retry = asOwner(
    verb(admin, 'retry <id>', 'try a refused or expired message again, under the same id', 'ax admin retry 01hq3k5r8w'),
  );
  action(retry, async (run) => {
    const isOwner = run.options['asOwner'] === true;
    const params = { id: messageId(run.args[0]), ...(isOwner ? { as_owner: true } : {}) };
    requireOwnOrOwner(run.environment, 'admin.retry', params);
    const retried = await call<{ message_id: string; state: string; to: string }>(run.environment, 'admin.retry', params);
    const next = axCommand(run.environment.ax, 'admin', 'status', retried.message_id);
    const human = `${retried.message_id} is ${visible(retried.state)} for ${visible(retried.to)} again; nobody has read it yet\nnext: ${next}`;
    await run.print({ type: 'message_retried', fields: { ...retried }, human });
  });
}

async function listDead(run: Run): Promise<void> {
  const limit = wholeOption(run.options, 'limit', '--limit', 1);
  const params = { limit, before: beforeOption(run.options) };
  const found = await call<{ messages: DeadRow[]; scope: string }>(run.environment, 'admin.dead', params);
  const rows = found.messages.map((row) => [
    row.message_id,
    row.uncertain ? `${row.state}, uncertain` : row.state,
    row.to,
    row.workspace,
    row.cause === null ? '-' : `${ago(row.cause.at)}: ${row.cause.message}`,
    row.can_retry ? 'yes' : 'no',
  ]);
  const first = found.messages.find((row) => row.can_retry);
  const next = first === undefined ? '' : `\nnext: ${axCommand(run.environment.ax, 'admin', 'retry', first.message_id)}`;
  const human =
    rows.length === 0
      ? 'no message that was sent from this host was refused or has expired'
      : `${visible(found.scope)}:\n${await table(['MESSAGE', 'STATE', 'TO', 'WORKSPACE', 'WHY', 'RETRY'], rows)}${next}`;
  await run.print({
    type: 'message_list',
    fields: { ...found },
    rows: { columns: [...MESSAGE_COLUMNS, 'uncertain', 'cause', 'can_retry'], values: found.messages as unknown as Fields[] },
    human,
  });
}
