/**
 * `ax daemon backup` and `ax daemon restore`: a copy of all that this host holds, and back.
 *
 * Owns what is asked and told. The running daemon makes the copy; a restore is done by the daemon's program while no daemon runs. Both are
 * the owner's: inside an agent's shell they need `--as-owner`.
 */
import type { Command } from 'commander';
import type { DaemonBackup, DaemonRestored } from '../../protocol/control.ts';
import { call } from '../client.ts';
import { action, asOwner, verb } from '../command.ts';
import { absolute, axCommand, requireOwner } from '../environment.ts';
import { askProgram } from '../launch.ts';
import type { Run } from '../options.ts';
import { note, visible } from '../output.ts';
import { awaiting } from '../wait.ts';

/** Long enough for any store; the daemon answers when the copy is on its disk. */
const BACKUP_TIMEOUT_MS = 6 * 3_600_000;

export function addBackup(daemon: Command): void {
  const backup = asOwner(
    verb(daemon, 'backup <dir>', 'a consistent copy of what this host holds, while it runs', 'ax daemon backup ./ax-backup'),
  ).option('--with-key', 'the host key too: whoever has the backup is then this host');
  action(backup, makeBackup);
  const restore = verb(
    daemon,
    'restore <dir>',
    'put a backup in the place of what is here; the daemon is stopped',
    'ax daemon restore ./ax-backup',
  );
  action(asOwner(restore), restoreBackup);
}

async function makeBackup(run: Run): Promise<void> {
  const { environment, options } = run;
  requireOwner(environment, options['asOwner'] === true, 'daemon backup');
  const params = {
    path: absolute(run.args[0] ?? ''),
    with_key: options['withKey'] === true,
    ...(options['asOwner'] === true ? { as_owner: true } : {}),
  };
  const made = await call<DaemonBackup>(environment, 'daemon.backup', params, {
    what: 'the daemon to copy the store',
    timeoutMs: BACKUP_TIMEOUT_MS,
  });
  const { path, bytes, made_at, version, schema, host_id, with_key } = made;
  if (with_key) note(`the host key is in it: whoever reads ${visible(path)} can pass for this host; keep it as you keep a private key`);
  const human = [
    `backup at ${visible(path)}, ${bytes} bytes`,
    with_key
      ? 'with the host key'
      : 'without the host key: it is of use only where that key is; keep a copy of host.key elsewhere, or use --with-key',
    `to restore: ${axCommand(environment.ax, 'daemon', 'stop')}; ${axCommand(environment.ax, 'daemon', 'restore', path)}`,
  ].join('\n');
  await run.print({ type: 'daemon_backup', fields: { path, bytes, made_at, version, schema, host_id, with_key }, human });
}

async function restoreBackup(run: Run): Promise<void> {
  const { environment, options } = run;
  requireOwner(environment, options['asOwner'] === true, 'daemon restore');
  const answer = await awaiting('the backup to be restored', askProgram(environment, ['--restore', absolute(run.args[0] ?? '')]));
  const { path, made_at, version, schema, host_id, with_key, kept, key, config, warnings } = answer as unknown as DaemonRestored;
  const human = [
    `restored ${visible(path)}, made ${visible(made_at)} by ax ${visible(version)}`,
    kept === null ? 'there was no store here' : `what was here is kept in ${visible(kept)}; remove it when you no longer need it`,
    ...(key === 'backup' ? ['the host key came from the backup'] : []),
    ...(config === 'backup' ? ['config.json came from the backup'] : []),
    ...warnings.map((warning) => `note: ${visible(warning)}`),
    `next: ${axCommand(environment.ax, 'daemon', 'start')}`,
  ].join('\n');
  const fields = { path, made_at, version, schema, host_id, with_key, kept, key, config, warnings };
  await run.print({ type: 'daemon_restored', fields, human });
}
