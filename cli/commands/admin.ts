/**
 * `ax admin`: what this host's daemon holds, one message's whole history, cancelling, and the event log. The first two are cli/overview.ts.
 *
 * Owns the following of the log: it asks again from where it was, so that nothing is skipped and nothing is shown twice.
 */
import type { Command } from 'commander';
import type { EventRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { MAX_POLL_MS } from '../../protocol/limits.ts';
import { call } from '../client.ts';
import { action, noun, verb } from '../command.ts';
import { isStdoutGone } from '../descriptor.ts';
import { requireOwnOrOwner } from '../environment.ts';
import { messageId, wholeOption } from '../options.ts';
import type { Run } from '../options.ts';
import { ago, envelope, printOut, render, table, visible } from '../output.ts';
import type { Fields } from '../output.ts';
import { showStatus } from '../overview.ts';
import { pause, stopwatch } from '../wait.ts';
import { addDead } from './dead.ts';

const EVENT_COLUMNS = ['seq', 'at', 'type', 'message_id', 'host_id', 'subject', 'state', 'detail'];

interface Events {
  readonly events: readonly EventRow[];
  readonly next_seq: number;
  readonly oldest_seq: number;
}

export function addAdmin(root: Command): void {
  const admin = noun(root, 'admin', 'State of the daemon and of messages', 'ax admin status');
  const status = verb(admin, 'status [id]', "an overview, or one message's whole history", 'ax admin status');
  action(status, showStatus);
  const cancel = verb(admin, 'cancel <id>', 'withdraw a message that was not handed out', 'ax admin cancel 01hq3k5r8w').option(
    '--as-owner',
    "inside an agent's shell: the owner told you to",
  );
  action(cancel, async (run) => {
    const asOwner = run.options['asOwner'] === true;
    const params = { id: messageId(run.args[0]), ...(asOwner ? { as_owner: true } : {}) };
    requireOwnOrOwner(run.environment, 'admin.cancel', params);
    const cancelled = await call<{ message_id: string; state: string }>(run.environment, 'admin.cancel', params);
    const words =
      cancelled.state === 'cancelled'
        ? 'is cancelled: nobody has read it, nobody will'
        : 'is not cancelled yet: its host was asked, and decides';
    await run.print({ type: 'message_cancel', fields: { ...cancelled }, human: `${cancelled.message_id} ${words}` });
  });
  addDead(admin);
  const events = verb(admin, 'events', 'the event log', 'ax admin events --since 100')
    .option('--follow', 'go on as they come')
    .option('--since <seq>', 'only those after this number')
    .option('--limit <n>', 'at most so many');
  action(events, showEvents);
}

async function showEvents(run: Run): Promise<void> {
  const { environment, options } = run;
  const limit = wholeOption(options, 'limit', '--limit', 1);
  if (limit !== undefined && options['follow'] === true) throw new AxError('usage', '--follow has no end: --limit does not go with it');
  let since = wholeOption(options, 'since', '--since', 0);
  if (options['follow'] !== true) {
    const found = await call<Events>(environment, 'admin.events', { since, limit });
    const rows = found.events.map(eventRow);
    await run.print({
      type: 'event_list',
      fields: { ...found },
      rows: { columns: EVENT_COLUMNS, values: found.events as unknown as Fields[] },
      human: rows.length === 0 ? 'no events' : await table(['SEQ', 'AGE', 'EVENT', 'MESSAGE', 'STATE', 'ABOUT'], rows),
    });
    return;
  }
  let isFirst = true;
  // Ends with the reader of stdout, or with the daemon.
  while (!isStdoutGone()) {
    const passed = stopwatch();
    const found: Events = await call<Events>(
      environment,
      'admin.events',
      { since, wait_ms: MAX_POLL_MS },
      { what: isFirst ? 'the next event' : null },
    );
    await printOut(eventLines(run, found.events, isFirst));
    isFirst = false;
    since = found.next_seq;
    if (found.events.length === 0 && passed() < 50) await pause(50);
  }
}

function eventLines(run: Run, events: readonly EventRow[], isFirst: boolean): string {
  const { format } = run.environment;
  if (format === 'json') return events.map((event) => `${envelope('event', { event })}\n`).join('');
  if (format === 'human') return events.map((event) => `${eventRow(event).map(visible).join('  ')}\n`).join('');
  const text = render(format, {
    type: 'event_list',
    fields: {},
    rows: { columns: EVENT_COLUMNS, values: events as unknown as Fields[] },
    human: '',
  });
  return isFirst ? text : text.slice(text.indexOf('\n') + 1);
}

function eventRow(event: EventRow): string[] {
  return [
    String(event.seq),
    ago(event.at),
    event.type,
    event.message_id ?? '-',
    event.state ?? '-',
    [event.subject, event.detail].filter((part) => part !== null).join(', '),
  ];
}
