/**
 * What a fetch that runs outside of a sandbox writes, against an agent that moves things about inside of it.
 */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, realpathSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { readEnvironment } from '../../cli/environment.ts';
import { keepWhole, writeFileWhole } from '../../cli/pickup.ts';
import { AxError } from '../../protocol/errors.ts';
import { ID, scripted } from './scripted.ts';

test('a folder that became a link after it was looked at is not written through', async (t) => {
  const rig = await scripted(t);
  const outside = join(rig.folder, 'outside');
  mkdirSync(join(outside, 'deep'), { recursive: true });
  symlinkSync(outside, join(rig.workspace, 'sub'));
  // The last part is the link, or one above it.
  for (const path of [join(rig.workspace, 'sub', 'x'), join(rig.workspace, 'sub', 'deep', 'x')]) {
    if (process.platform !== 'linux' && path.includes('deep')) continue;
    await assert.rejects(
      writeFileWhole(path, Buffer.from('evil'), false),
      (error) => error instanceof AxError && error.code === 'invalid_state',
    );
  }
  assert.deepEqual(readdirSync(outside, { recursive: true }), ['deep']);
  await writeFileWhole(join(rig.workspace, 'x'), Buffer.from('good'), false);
  assert.equal(readFileSync(join(rig.workspace, 'x'), 'utf8'), 'good');
  await assert.rejects(writeFileWhole(join(rig.workspace, 'x'), Buffer.from('evil'), false), /EEXIST/);
  assert.deepEqual(readdirSync(rig.workspace).toSorted(), ['sub', 'x']);
});

test('whatever answers at the socket cannot name the file that a long body goes into, nor its folder', async (t) => {
  const rig = await scripted(t);
  const environment = readEnvironment({ stateDir: rig.stateDir });
  for (const id of ['../x', '../../../../tmp/x', `${ID}/..`, ID.toUpperCase(), '']) {
    await assert.rejects(
      keepWhole(environment, id, Buffer.from('evil')),
      (error) => error instanceof AxError && error.code === 'protocol_violation',
    );
  }
  const home = join(rig.folder, 'home');
  mkdirSync(home);
  writeFileSync(join(home, 'kept'), 'old');
  symlinkSync(home, join(rig.stateDir, 'fetched'));
  await assert.rejects(keepWhole(environment, ID, Buffer.from('evil')), /is not a folder of this user/);
  assert.deepEqual(readdirSync(home), ['kept']);
});

test('setup and fetch read nothing of the folder they stand in', async (t) => {
  const rig = await scripted(t, {
    'agent.setup': () => Promise.reject(new AxError('invalid_argument', 'reached')),
    'message.fetch': () => Promise.reject(new AxError('invalid_argument', 'reached')),
  });
  const trap = join(rig.folder, 'trap');
  mkdirSync(join(trap, 'node_modules', 'commander'), { recursive: true });
  const touched = join(rig.folder, 'touched');
  const code = `require('node:fs').writeFileSync(${JSON.stringify(touched)}, '')`;
  for (const name of ['index.js', 'node_modules/commander/index.js', '.noderc.js']) writeFileSync(join(trap, name), code);
  writeFileSync(join(trap, 'package.json'), '{ broken');
  for (const name of ['config.json', '.env', '.ax.json', 'ax.json'])
    writeFileSync(join(trap, name), '{"state_dir":"/nowhere","listen":["/bad"]}');
  for (const name of ['ax', 'node', 'codex']) {
    writeFileSync(join(trap, name), `#!/bin/sh\n: > '${touched}'\n`);
    chmodSync(join(trap, name), 0o755);
  }
  const env = { CODEX_THREAD_ID: 'x', CODEX_HOME: join(rig.folder, 'cx') };
  for (const line of [
    ['agent', 'setup', '--name', 'b', '--workspace', rig.workspace],
    ['messages', 'fetch', ID, '--workspace', rig.workspace],
  ]) {
    const { stderr } = await rig.ax(line, { cwd: realpathSync(trap), env });
    assert.match(stderr, /^ax: reached\n/);
  }
  assert.equal(existsSync(touched), false);
});

test('of the folder for long bodies only old bodies, and what a killed command left, are removed', async (t) => {
  const rig = await scripted(t);
  const environment = readEnvironment({ stateDir: rig.stateDir });
  const folder = join(rig.stateDir, 'fetched');
  mkdirSync(folder, { mode: 0o700 });
  const old = ID.replace(/.$/, '0');
  const left = `.ax-${'0'.repeat(16)}.part`;
  const others = ['notes.txt', `${ID}.bak`, '.ax-mine.part'];
  for (const name of [old, left, ...others]) {
    writeFileSync(join(folder, name), 'x');
    utimesSync(join(folder, name), 1, 1);
  }
  await keepWhole(environment, ID, Buffer.from('body'));
  assert.deepEqual(readdirSync(folder).toSorted(), [ID, ...others].toSorted());
});
