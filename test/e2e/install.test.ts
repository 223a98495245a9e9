/**
 * `make install` and `make uninstall` into a prefix of our own, on a system whose Node is too old, as it is on plain Debian.
 *
 * The system's `node` is played by a wrapper that says it is old; npm runs on the real one behind it. The installed `ax` then runs with a
 * PATH that holds no Node at all.
 */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { test } from 'node:test';
import { makeBed, ROOT, until } from './hosts.ts';
import { isAlive, runToEnd } from './processes.ts';
import type { Outcome } from './processes.ts';

/** The first program of that name on this process's PATH, outside node_modules. */
function onPath(name: string): string {
  const folders = (process.env['PATH'] ?? '').split(delimiter).filter((folder) => !folder.includes('node_modules'));
  const found = folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
  return found ?? assert.fail(`${name} is not on PATH`);
}

function tree(folder: string): string[] {
  return readdirSync(folder, { recursive: true }).map(String).toSorted();
}

test('make install brings an ax that works without any other Node, and make uninstall removes exactly that', async (t) => {
  const bed = makeBed(t);
  const [prefix, old, bare] = ['p', 'old', 'bare'].map((name) => join(bed.folder, name)) as [string, string, string];
  for (const folder of [join(prefix, 'bin'), join(prefix, 'lib', 'other'), old, bare]) mkdirSync(folder, { recursive: true });
  writeFileSync(join(prefix, 'bin', 'other'), 'not ours');
  writeFileSync(join(prefix, 'lib', 'other', 'file'), 'not ours');
  writeFileSync(join(old, 'node'), `#!/bin/sh\n[ "$1" = -e ] && exit 1\nexec '${onPath('node')}' "$@"\n`);
  chmodSync(join(old, 'node'), 0o755);
  for (const name of ['sh', 'env']) symlinkSync(onPath(name), join(bare, name));
  const before = tree(prefix);
  const make = (target: string): Promise<Outcome> =>
    runToEnd('make', ['-C', ROOT, target, `PREFIX=${prefix}`, `SYSTEM_NODES=${join(old, 'node')}`], {
      env: { ...process.env, PATH: `${old}${delimiter}${process.env['PATH'] ?? ''}`, NODE_OPTIONS: '' },
      cwd: ROOT,
    });

  const installed = await make('install');
  assert.equal(installed.status, 0, installed.stdout + installed.stderr);
  assert.match(installed.stdout, /Installed .*\/p\/bin\/ax, with its own Node 24\./);
  assert.deepEqual(tree(join(prefix, 'bin')), ['ax', 'other']);
  const host = bed.host('h');
  const program = [join(prefix, 'bin', 'ax')];
  const env = { PATH: bare };
  const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  assert.equal((await host.ax(['--version'], { program, env })).stdout, `${manifest.version}\n`);
  const down = await host.ax(['host', 'list'], { program, env });
  assert.equal(down.status, 3);
  assert.equal(down.stderr.includes(`fix: ${join(prefix, 'bin', 'ax')} daemon start`), true, down.stderr);
  const started = await host.ax(['--format', 'json', 'daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0'], { program, env });
  assert.equal(started.status, 0, started.stdout + started.stderr);
  const pid = Number(started.json['pid']);
  host.pid = pid;
  const status = await host.ax(['--format', 'json', 'daemon', 'status'], { program, env });
  assert.deepEqual([status.status, status.json['running'], status.json['pid']], [0, true, pid]);
  const stopped = await host.ax(['daemon', 'stop'], { program, env });
  assert.equal(stopped.status, 0, stopped.stderr);
  await until('the daemon to be gone', async () => !isAlive(pid) || 'alive');

  const removed = await make('uninstall');
  assert.equal(removed.status, 0, removed.stderr);
  assert.deepEqual(tree(prefix), before);
});

test('make install and make uninstall leave alone an ax that is not ours', async (t) => {
  const bed = makeBed(t);
  const prefix = join(bed.folder, 'p');
  mkdirSync(join(prefix, 'bin'), { recursive: true });
  writeFileSync(join(prefix, 'bin', 'ax'), '#!/bin/sh\necho another program\n');
  const before = tree(prefix);
  for (const target of ['install', 'uninstall']) {
    const outcome = await runToEnd('make', ['-C', ROOT, target, `PREFIX=${prefix}`], {
      env: process.env,
      cwd: ROOT,
    });
    assert.notEqual(outcome.status, 0);
    assert.match(outcome.stderr, /Not touched: .* is not an installation of ax\./);
    assert.deepEqual(tree(prefix), before);
    assert.match(readFileSync(join(prefix, 'bin', 'ax'), 'utf8'), /another program/);
  }
});
