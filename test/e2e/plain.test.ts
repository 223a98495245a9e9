/**
 * The built CLI: the code that V8 made of the plain commands is of their very source, is taken by the Node it was made with, and is never
 * needed.
 */
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { codePath, scriptIn, sourcePath } from '../../cli/code.ts';
import { makeBed, ROOT } from './hosts.ts';

const DIST = join(ROOT, 'dist');

test('the code of the plain commands is taken by this Node, and by none for another source', async (t) => {
  assert.equal(scriptIn(DIST).cachedDataRejected, false);
  const bed = makeBed(t);
  const host = bed.host('h');
  const dist = join(bed.folder, 'dist');
  mkdirSync(dist);
  for (const name of ['ax.cjs', 'plain.cjs', 'plain.code', 'whole.cjs']) copyFileSync(join(DIST, name), join(dist, name));
  const program = [process.execPath, join(dist, 'ax.cjs')];
  const asked = async (): Promise<readonly unknown[]> => {
    const { status, json } = await host.ax(['--format', 'json', 'admin', 'status'], { program });
    return [status, json['error'].code];
  };
  const down = [3, 'daemon_unavailable'];
  assert.deepEqual(await asked(), down);
  // As long as before, which is all that V8 itself compares.
  writeFileSync(sourcePath(dist), readFileSync(sourcePath(dist), 'utf8').replace(/^\/\*.{16}/, '/*0123456789abcdef'));
  assert.equal(scriptIn(dist).cachedDataRejected, undefined);
  assert.deepEqual(await asked(), down);
  copyFileSync(sourcePath(DIST), sourcePath(dist));
  for (const content of ['', readFileSync(codePath(DIST)).subarray(0, 5000)]) {
    writeFileSync(codePath(dist), content);
    assert.deepEqual(await asked(), down);
  }
  rmSync(codePath(dist));
  assert.deepEqual(await asked(), down);
});
