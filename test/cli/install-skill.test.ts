/**
 * `ax agent install-skill`: whole, never nested, never over something unasked.
 */
import assert from 'node:assert/strict';
import { cpSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { KEYS, Terminal } from '../real/terminal.ts';
import { CLAUDE_SHELL, MAIN, scripted } from './scripted.ts';
import type { Scripted } from './scripted.ts';

const SOURCE = realpathSync(join(import.meta.dirname, '..', '..', 'skills', 'ax'));
const LINE = ['agent', 'install-skill'];

const envOf = (rig: Scripted): Record<string, string> => ({
  CLAUDE_CONFIG_DIR: join(rig.folder, 'claude'),
  CODEX_HOME: join(rig.folder, 'codex'),
});

function sameTree(folder: string): void {
  const list = (root: string): string[] => (readdirSync(root, { recursive: true }) as string[]).toSorted();
  assert.deepEqual(list(folder), list(SOURCE));
  for (const name of list(SOURCE)) {
    if (lstatSync(join(SOURCE, name)).isFile())
      assert.equal(readFileSync(join(folder, name), 'utf8'), readFileSync(join(SOURCE, name), 'utf8'));
  }
}

test('the skill is copied whole to each harness that is there, and a second time changes nothing', async (t) => {
  const rig = await scripted(t);
  const env = envOf(rig);
  const none = await rig.json(LINE, { env });
  assert.deepEqual([none.code, none.value['error'].code], [1, 'not_found']);
  mkdirSync(env['CODEX_HOME']!);
  const claude = join(env['CLAUDE_CONFIG_DIR']!, 'skills', 'ax');
  const codex = join(env['CODEX_HOME']!, 'skills', 'ax');
  const first = await rig.json(LINE, { env });
  assert.deepEqual(first.value['skills'], [{ harness: 'codex', path: codex, state: 'installed', link: false }]);
  assert.equal(existsSync(claude), false);
  const named = await rig.json([...LINE, '--harness', 'claude'], { env });
  assert.deepEqual([named.value['type'], named.value['skills'][0].state], ['skill_installed', 'installed']);
  for (const path of [claude, codex]) sameTree(path);
  const again = await rig.json(LINE, { env: { ...env, ...CLAUDE_SHELL } });
  assert.deepEqual(
    again.value['skills'].map((skill: { state: string }) => skill.state),
    ['unchanged', 'unchanged'],
  );
  assert.deepEqual(readdirSync(join(codex, '..')), ['ax'], 'nothing is left aside');
});

test('without a terminal nothing is overwritten: an older copy goes with --update, a folder of somebody else does not', async (t) => {
  const rig = await scripted(t);
  const env = envOf(rig);
  const claude = join(env['CLAUDE_CONFIG_DIR']!, 'skills', 'ax');
  const line = [...LINE, '--harness', 'claude'];
  await rig.ax(line, { env });
  writeFileSync(join(claude, 'references', 'cli.md'), 'older');
  const refused = await rig.ax(line, { env });
  assert.equal(refused.code, 1);
  assert.match(
    refused.stderr,
    /skills\/ax is there already and differs \(references\/cli\.md differs\): it is not overwritten\nfix: .*agent install-skill --harness claude --update\n$/,
  );
  // The other harness is not written either: all or nothing.
  mkdirSync(env['CODEX_HOME']!);
  assert.equal((await rig.ax(LINE, { env })).code, 1);
  assert.deepEqual(readdirSync(env['CODEX_HOME']!), []);
  const updated = await rig.json([...line, '--update'], { env });
  assert.equal(updated.value['skills'][0].state, 'updated');
  sameTree(claude);
  writeFileSync(join(claude, 'mine.md'), 'notes');
  const kept = await rig.ax([...line, '--update'], { env });
  assert.match(kept.stderr, /mine\.md is only there, and would go/);
  assert.equal(readFileSync(join(claude, 'mine.md'), 'utf8'), 'notes');
  const nested = join(env['CODEX_HOME']!, 'skills', 'ax', 'ax');
  cpSync(SOURCE, nested, { recursive: true });
  assert.match(
    (await rig.ax([...LINE, '--harness', 'codex', '--update'], { env })).stderr,
    /SKILL\.md is missing there; ax\/SKILL\.md is only there/,
  );
  assert.equal(existsSync(join(nested, 'ax')), false);
});

test('--link makes a link to this installation, which is then known; a link that leads elsewhere is not followed', async (t) => {
  const rig = await scripted(t);
  const env = envOf(rig);
  const codex = join(env['CODEX_HOME']!, 'skills', 'ax');
  const line = [...LINE, '--harness', 'codex'];
  assert.deepEqual((await rig.json([...line, '--link'], { env })).value['skills'], [
    { harness: 'codex', path: codex, state: 'installed', link: true },
  ]);
  assert.ok(lstatSync(codex).isSymbolicLink());
  assert.equal(realpathSync(codex), SOURCE);
  for (const more of [[], ['--link']]) assert.equal((await rig.json([...line, ...more], { env })).value['skills'][0].state, 'unchanged');
  const elsewhere = join(rig.folder, 'elsewhere');
  mkdirSync(join(env['CLAUDE_CONFIG_DIR']!, 'skills'), { recursive: true });
  cpSync(SOURCE, elsewhere, { recursive: true });
  symlinkSync(elsewhere, join(env['CLAUDE_CONFIG_DIR']!, 'skills', 'ax'));
  const refused = await rig.ax([...LINE, '--harness', 'claude', '--update'], { env });
  assert.match(refused.stderr, /differs \(is a link to \S+\/elsewhere\): it is not overwritten\nfix: in your own terminal/);
  // A skills folder that is the skill itself would put it into itself.
  const inside = join(rig.folder, 'inside');
  mkdirSync(inside);
  symlinkSync(SOURCE, join(inside, 'skills'));
  const into = await rig.ax(line, { env: { ...env, CODEX_HOME: inside } });
  assert.match(into.stderr, /the skill is not put into itself/);
  assert.equal(existsSync(join(SOURCE, 'ax')), false);
});

test('in a terminal it shows what differs and asks; only a yes replaces', async (t) => {
  const rig = await scripted(t);
  const claude = join(envOf(rig)['CLAUDE_CONFIG_DIR']!, 'skills', 'ax');
  mkdirSync(claude, { recursive: true });
  writeFileSync(join(claude, 'mine.md'), 'notes');
  const env = {
    ...envOf(rig),
    PATH: process.env['PATH'] ?? '',
    HOME: rig.folder,
    NODE_COMPILE_CACHE: join(rig.folder, 'cache'),
    NO_COLOR: '1',
  };
  for (const [key, status, left] of [
    [KEYS.enter, 1, ['mine.md']],
    ['y', 0, ['SKILL.md', 'references']],
  ] as const) {
    const terminal = new Terminal(process.execPath, [MAIN, ...LINE, '--harness', 'claude'], { env, cwd: rig.workspace, cols: 200 });
    const screen = await terminal.until(/Replace \S+\?/);
    assert.match(screen, /\n {2}SKILL\.md is missing there\n {2}mine\.md is only there, and would go\n/);
    terminal.type(key);
    assert.equal((await terminal.ended).status, status, terminal.history());
    assert.deepEqual(readdirSync(claude).toSorted(), [...left]);
  }
  sameTree(claude);
  assert.deepEqual(readdirSync(join(claude, '..')), ['ax']);
});
