/**
 * What a restored store no longer knows: whatever happened between the backup and now.
 *
 * Owns the one correction that makes its word true again: a message that was waiting then may have left since, so none of them can be
 * called certain to have stayed here. Everything else a restore loses is only told (docs/operating.md); peers' retries and duplicates
 * settle the rest.
 */
import type { Clock } from './clock/clock.ts';
import { Events } from './events.ts';
import { Outbox } from './outbox.ts';
import type { Store } from './store/store.ts';
import { Uptime } from './uptime.ts';

/** Entries in one write. */
const BATCH = 500;

/** Marks every open entry of the outbox as one whose bytes may have left, and notes the restore in the event log. */
export async function doubtOpen(store: Store, clock: Clock, madeAt: string): Promise<void> {
  const uptime = new Uptime(store, clock);
  const events = new Events(store, clock, () => uptime.now());
  const outbox = new Outbox(store, () => uptime.now());
  for (let before: number | undefined; ;) {
    const rows = outbox.page(before, BATCH);
    const open = rows.filter((row) => !row.local && ['queued', 'forwarding', 'deferred'].includes(row.state));
    await store.write((tx) => outbox.leaving(tx, open));
    before = rows.at(-1)?.seq;
    if (rows.length < BATCH) break;
  }
  await store.write((tx) => events.add(tx, { type: 'daemon.restored', detail: `the backup of ${madeAt}` }));
}
