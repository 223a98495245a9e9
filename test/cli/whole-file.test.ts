/**
 * A file that is written whole or not at all, which programs count on a PATH, and which kept bodies are ax's to remove.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import { programOn } from '../../cli/executable.ts';
import { putWhole, removeWhole } from '../../cli/whole-file.ts';
import { isKeptName } from '../../protocol/kept.ts';
import { ID } from './scripted.ts';

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'ax-whole-'));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

test('a write that fails at any step leaves the old file and nothing beside it', async (t) => {
  const folder = folderOf(t);
  const path = join(folder, 'file');
  await putWhole(path, 'old');
  assert.equal(statSync(path).mode & 0o777, 0o600);
  const no = (): Promise<never> => Promise.reject(new Error('no'));
  await assert.rejects(putWhole(path, 'new', { prepare: no }), /^Error: no$/);
  await assert.rejects(putWhole(path, 'new', { check: no }), /^Error: no$/);
  await assert.rejects(putWhole(path, 'new', { mayReplace: false }), { code: 'EEXIST' });
  assert.deepEqual([readdirSync(folder), readFileSync(path, 'utf8')], [['file'], 'old']);
  await putWhole(path, 'new', { check: async (aside) => assert.equal(readFileSync(aside, 'utf8'), 'new') });
  assert.deepEqual([readdirSync(folder), readFileSync(path, 'utf8')], [['file'], 'new']);
  await putWhole(join(folder, 'other'), 'x', { mayReplace: false });
  await removeWhole(path);
  assert.deepEqual(readdirSync(folder), ['other']);
  await assert.rejects(removeWhole(path), { code: 'ENOENT' });
});

test('a program on a PATH is a plain file that may be run, in an absolute folder', (t) => {
  const folder = folderOf(t);
  for (const name of ['folder', 'text', 'good']) mkdirSync(join(folder, name));
  mkdirSync(join(folder, 'folder', 'x'));
  writeFileSync(join(folder, 'text', 'x'), '', { mode: 0o644 });
  writeFileSync(join(folder, 'good', 'x'), '', { mode: 0o755 });
  const search = ['', '.', join(folder, 'none'), join(folder, 'folder'), join(folder, 'text')];
  assert.equal(programOn(search, 'x'), undefined);
  assert.equal(programOn([...search, join(folder, 'good')], 'x'), join(folder, 'good', 'x'));
});

test('of the folder of kept bodies only bodies and what a killed writer left are ever removed', () => {
  for (const name of [ID, '.ax-0123456789abcdef.part', '.ax-4242-7.part']) assert.equal(isKeptName(name), true, name);
  for (const name of ['notes.md', '.ax-.part', '.ax-x/../y.part', `${ID}.md`, '.git', '..']) assert.equal(isKeptName(name), false, name);
});
