/**
 * `make uninstall` and `make install` as a person meets them: a daemon that still runs, a second time, a prefix that cannot be written.
 *
 * The installation is a stand-in of the same shape; the real one is installed in test/e2e.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import { outcomeOf } from './scripted.ts';
import type { Outcome } from './scripted.ts';

const ROOT = join(import.meta.dirname, '..', '..');

function make(...words: string[]): Promise<Outcome> {
  const env = { PATH: process.env['PATH'] ?? '', HOME: tmpdir() };
  return outcomeOf(spawn('make', ['-C', ROOT, '--no-print-directory', ...words], { env, stdio: ['ignore', 'pipe', 'pipe'] }));
}

function installation(t: TestContext): { readonly folder: string; readonly prefix: string } {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ax-uninstall-')));
  t.after(() => rmSync(folder, { recursive: true }));
  const prefix = join(folder, 'p');
  mkdirSync(join(prefix, 'lib', 'ax', 'dist'), { recursive: true });
  mkdirSync(join(prefix, 'bin'));
  writeFileSync(join(prefix, 'lib', 'ax', 'package.json'), '{\n  "name": "ax-agent-exchange"\n}\n');
  writeFileSync(join(prefix, 'lib', 'ax', 'dist', 'daemon.mjs'), "process.stdout.write('up');\nsetInterval(() => {}, 1000);\n");
  writeFileSync(join(prefix, 'bin', 'ax'), '#!/bin/sh\n# ax-agent-exchange\n');
  return { folder, prefix };
}

test('an installation whose daemon runs is removed only with FORCE=1, and the command that stops the daemon is told', async (t) => {
  if (process.platform !== 'linux') return; // there is no /proc to look into
  const { folder, prefix } = installation(t);
  const state = join(folder, 'a state');
  const daemon = spawn(process.execPath, [join(prefix, 'lib', 'ax', 'dist', 'daemon.mjs'), '--state-dir', state], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const ended = once(daemon, 'close');
  t.after(async () => {
    daemon.kill('SIGKILL');
    await ended;
  });
  await once(daemon.stdout, 'data');
  symlinkSync(prefix, join(folder, 'link'));
  for (const typed of [prefix, join(folder, 'link')]) {
    const refused = await make('uninstall', `PREFIX=${typed}`);
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /^Not removed: a daemon of this installation still runs\. Stop it first, or add FORCE=1:\n/);
    const line = `  ${join(typed, 'bin', 'ax')} --state-dir ${state.replace(' ', '\\ ')} daemon stop   (process ${daemon.pid})\n`;
    assert.ok(refused.stderr.includes(line), refused.stderr);
    assert.ok(existsSync(join(prefix, 'lib', 'ax', 'dist', 'daemon.mjs')) && existsSync(join(prefix, 'bin', 'ax')));
  }
  const forced = await make('uninstall', `PREFIX=${prefix}`, 'FORCE=1');
  assert.deepEqual([forced.code, forced.stderr], [0, '']);
  assert.equal(existsSync(join(prefix, 'lib', 'ax')) || existsSync(join(prefix, 'bin', 'ax')), false);
});

test('a second uninstall says that nothing is there', async (t) => {
  const { prefix } = installation(t);
  const first = await make('uninstall', `PREFIX=${prefix}`);
  assert.deepEqual([first.code, first.stderr, first.stdout.startsWith('Removed ')], [0, '', true]);
  const second = await make('uninstall', `PREFIX=${prefix}`);
  assert.deepEqual(second, { code: 0, stderr: '', stdout: `Nothing to remove: there is no ${prefix}/lib/ax and no ${prefix}/bin/ax.\n` });
});

test('a prefix that cannot be written is one line', async () => {
  const { code, stderr } = await make('-o', 'install-deps', '-o', 'build', 'install', 'PREFIX=/dev/null/p');
  assert.equal(code, 2);
  const own = stderr.split('\n').filter((line) => line !== '' && !line.startsWith('make'));
  assert.deepEqual(own, ['Cannot install: /dev/null/p/lib and /dev/null/p/bin must be folders that this user can write to.']);
});
