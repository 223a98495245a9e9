/**
 * Puts a backup in the place of this host's store, with the daemon stopped.
 *
 * Owns the order: what is refused before anything changes, a copy that is opened, brought to the present schema and told what it no longer
 * knows while it is still aside, and the one step that decides. The caller holds the lock of the state folder. A second small composition
 * root: it sees the store's adapter and the core.
 */
import { existsSync, readdirSync, realpathSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { DaemonRestored } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import type { BackupRecord } from './backup/backup.ts';
import { commit, finishRestore, readBackup, stage } from './backup/restoring.ts';
import type { Clock } from './clock/clock.ts';
import { readHostKey } from './config.ts';
import { doubtOpen } from './doubts.ts';
import type { Log } from './log.ts';
import { migrate } from './migration.ts';
import { openLmdbStore } from './store/lmdb.ts';

export interface RestoreOptions {
  /** Canonical. */
  readonly stateDir: string;
  /** Absolute: a folder that `ax daemon backup` made. */
  readonly backup: string;
  readonly uid: number;
  readonly clock: Clock;
  readonly log: Log;
}

/** AxError `invalid_argument` (no backup), `invalid_state` (another host's, no key), `update_required`, `store_corrupt`, `store_full`. */
export async function restore(options: RestoreOptions): Promise<DaemonRestored> {
  const { stateDir, uid, clock, log } = options;
  finishRestore(stateDir);
  const backup = realFolder(options.backup);
  const record = readBackup(backup, uid);
  const key = requireKey(stateDir, backup, record, uid);
  const config = existsSync(join(stateDir, 'config.json'))
    ? 'here'
    : record.files.some(({ name }) => name === 'config.json')
      ? 'backup'
      : 'none';
  const staged = stage(stateDir, backup, record, uid, [
    ...(key === 'backup' ? ['host.key'] : []),
    ...(config === 'backup' ? ['config.json'] : []),
  ]);
  try {
    await prepare(staged, clock, log, record.made_at);
  } catch (error) {
    rmSync(staged, { recursive: true, force: true });
    throw error;
  }
  const kept = commit(stateDir);
  const { made_at, version, schema, host_id, with_key } = record;
  return {
    path: backup,
    made_at,
    version,
    schema,
    host_id,
    with_key,
    kept,
    key,
    config,
    warnings: [...(key === 'backup' ? [takenOver(host_id)] : []), ...warningsOf(record)],
  };
}

/** Opens the copy, so that a damaged one is found now, and makes it true; what that leaves beside the store goes. */
async function prepare(staged: string, clock: Clock, log: Log, madeAt: string): Promise<void> {
  const store = await openLmdbStore(join(staged, 'store'));
  try {
    await migrate(store, clock, log);
    await doubtOpen(store, clock, madeAt);
  } finally {
    await store.close();
  }
  for (const name of readdirSync(staged)) if (name.startsWith('store.')) rmSync(join(staged, name), { recursive: true });
}

function realFolder(folder: string): string {
  try {
    return realpathSync(folder);
  } catch (error) {
    throw new AxError('invalid_argument', `there is no folder ${folder}`, { cause: error });
  }
}

/** Where the key comes from; a store is restored under the key it was made with and under no other. */
function requireKey(stateDir: string, backup: string, record: BackupRecord, uid: number): 'here' | 'backup' {
  const carried = record.with_key ? readHostKey(backup, uid) : undefined;
  if (record.with_key && carried?.hostId !== record.host_id)
    throw new AxError(
      'store_corrupt',
      `${join(backup, 'host.key')} is not the key of the host that ${backup} is a backup of; nothing was changed`,
    );
  const present = readHostKey(stateDir, uid);
  if (present?.hostId === record.host_id) return 'here';
  if (present !== undefined)
    throw new AxError(
      'invalid_state',
      `${backup} is a backup of the host ${record.host_id}, and this state folder is the host ${present.hostId}`,
      {
        fix: 'restore it with --state-dir into the state folder of that host, or into a new one',
        details: { backup_host_id: record.host_id, host_id: present.hostId },
      },
    );
  if (carried !== undefined) return 'backup';
  throw new AxError('invalid_state', `${backup} was made without the host key, and there is none in ${stateDir}`, {
    fix: `put the host.key of ${record.host_id} into ${stateDir} first; without it no message can be opened`,
    details: { backup_host_id: record.host_id },
  });
}

/** Nothing here could tell whether that is the host which the person means. */
function takenOver(hostId: HostId): string {
  return `this state folder is the host ${hostId} now, by the key in the backup: make sure that it is yours, for whoever had the backup can pass for it`;
}

function warningsOf({ made_at: madeAt }: BackupRecord): string[] {
  return [
    `what came after ${madeAt} is unknown here: hosts that were removed and grants that were revoked since are back`,
    'messages that were read since are unread again; messages that were accepted since are gone here, though their senders go on showing them as `accepted`',
    'messages that were waiting here may have left since, and are offered again; their receivers keep one copy',
  ];
}
