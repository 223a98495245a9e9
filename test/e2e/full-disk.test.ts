/**
 * Disks that are full or refuse writes, with real daemons: small file systems of their own for sender and receiver, and files made
 * unchangeable. Mounted in a mount namespace that ends with the child that this test starts (full-disk-child.ts), so that nothing is left.
 *
 * Needs root, or user namespaces; where neither is to be had the tests are skipped, counted, and fail where they ran before.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { NotInstallable } from '../real/install.ts';
import { ranOrSkipped } from '../ran-before.ts';

const CHILD = join(import.meta.dirname, 'full-disk-child.ts');
const ROUNDS = Number(process.env['FULL_DISK_ROUNDS'] ?? '') || 1;

function unshared(): string[] {
  const mounts = ['-m', '--propagation', 'private'];
  const ways = [mounts, ['-r', ...mounts]];
  const way = ways.find((words) => spawnSync('unshare', [...words, 'mount', '-t', 'tmpfs', 'ax-test', '/mnt']).status === 0);
  if (way === undefined) throw new NotInstallable('no file system can be mounted here');
  return way;
}

for (const [scenario, name] of [
  ['sender', 'a full disk of the sender: nothing new is taken, what is there is read, and it goes on by itself'],
  ['receiver', 'a full disk of the receiver: nothing is acknowledged or lost, the sender says store_full and when it is tried again'],
  ['refusing', 'a disk that refuses writes: the daemon says so, still shows what it has, and is whole after a restart'],
] as const)
  test(name, async (t) => {
    await ranOrSkipped(t, { kind: `${process.platform} mounts`, file: 'full-disk', name }, async () => {
      const words = [...unshared(), process.execPath, CHILD, scenario, String(ROUNDS)];
      const run = spawnSync('unshare', words, { encoding: 'utf8', timeout: 240_000 });
      if (run.status === 77) throw new NotInstallable(run.stdout);
      assert.equal(run.status, 0, `${run.stdout}\n${run.stderr}`);
      t.diagnostic(run.stdout.trim());
    });
  });
