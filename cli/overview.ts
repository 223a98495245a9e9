/**
 * What `ax admin status` shows: an overview of this host, or one message's whole history.
 *
 * Owns the wording of the overview only; nothing here says more than the daemon said.
 */
import type { AdminStatus, MessageStatus } from '../protocol/control.ts';
import { call } from './client.ts';
import { axCommand } from './environment.ts';
import { readyFix } from './failure.ts';
import { messageId } from './options.ts';
import type { Run } from './options.ts';
import { ago, paint, rowsOf, size, span, visible } from './output.ts';
import { statusFields, statusText } from './status.ts';

/** `ax admin status`, its words read. */
export async function showStatus(run: Run): Promise<void> {
  const id = run.args[0];
  if (id === undefined) {
    const told = await call<AdminStatus>(run.environment, 'admin.status');
    const called = axCommand(run.environment.ax);
    const overview = { ...told, attention: told.attention.map((row) => ({ ...row, fix: readyFix(row.fix, called) })) };
    await run.print({ type: 'admin_status', fields: { ...overview }, human: overviewText(overview) });
    return;
  }
  const found = await call<MessageStatus>(run.environment, 'admin.message_status', { id: messageId(id) });
  await run.print({ type: 'message_status', fields: statusFields(found), human: statusText(run.environment, found) });
}

function overviewText(overview: AdminStatus): string {
  const { daemon, outbox, inbox, store, attention } = overview;
  const up = overview.hosts.filter((host) => host.state === 'up').length;
  const notices = Object.entries(overview.notices).map(([outcome, count]) => `${count} ${outcome}`);
  const rows = [
    ['daemon', `${daemon.name}, ax ${daemon.version}, pid ${daemon.pid}, up ${span(daemon.uptime_ms)}`],
    ['hosts', `${overview.hosts.length} known, ${up} up`],
    [
      'outbox',
      `${outbox.queued} queued, ${outbox.forwarding} forwarding, ${outbox.deferred} deferred, ${outbox.uncertain} uncertain${oldest(outbox)}`,
    ],
    ['inbox', `${inbox.awaiting_setup} awaiting setup, ${inbox.available} available, ${inbox.handed_out} handed out${oldest(inbox)}`],
    ['notices', notices.join(', ') || 'none'],
    ['store', `${size(store.bytes)} in ${store.path}, ${store.entries} entries, ${size(store.free_bytes)} free`],
  ];
  const troubles = attention.flatMap((row) => [
    `${paint('yellow', '!')} ${visible(row.what)}${row.since === null ? '' : ` (${ago(row.since)})`}`,
    `  fix: ${visible(row.fix)}`,
  ]);
  return [...rowsOf(rows), ...daemon.warnings.map((warning) => `! ${visible(warning)}`), ...troubles].join('\n');
}

function oldest({ oldest_at: at = null }: AdminStatus['outbox' | 'inbox']): string {
  return at === null ? '' : `; the oldest ${ago(at)}`;
}
