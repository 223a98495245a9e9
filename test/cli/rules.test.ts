/**
 * The rules themselves: which lines, for which ax, what is left of a file without them; and JSON edits that touch nothing else.
 */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { addItem, removeEmpty, removeItem } from '../../cli/json-text.ts';
import { pathWarnings, placeProblem, startedBy } from '../../cli/place.ts';
import { claudeRules } from '../../cli/rules-claude.ts';
import { codexRules, editedRules } from '../../cli/rules-codex.ts';
import { lineChanges } from '../../cli/settings-file.ts';
import { fetchCommand, setupCommand } from '../../protocol/notice.ts';
import { ID, scripted } from './scripted.ts';

const BARE = { program: 'ax' };
const NAMED = { program: '/opt/ax/bin/ax', stateDir: '/srv/state' };

test('a bare name is always tied to one file, a path gets a rule of its own, and the state folder is part of the rule', () => {
  assert.deepEqual(codexRules(BARE, '/usr/local/bin/ax'), [
    'host_executable(name="ax", paths=["/usr/local/bin/ax"])',
    'prefix_rule(pattern=["ax", "messages", "fetch"], decision="allow")',
    'prefix_rule(pattern=["ax", "agent", "setup"], decision="allow")',
  ]);
  assert.deepEqual(codexRules(NAMED, '/opt/ax/bin/ax'), [
    'prefix_rule(pattern=["/opt/ax/bin/ax", "--state-dir", "/srv/state", "messages", "fetch"], decision="allow")',
    'prefix_rule(pattern=["/opt/ax/bin/ax", "--state-dir", "/srv/state", "agent", "setup"], decision="allow")',
  ]);
  for (const ax of [BARE, NAMED]) {
    const lines = [fetchCommand(ax, ID as Parameters<typeof fetchCommand>[1], '/srv/app', 'code'), setupCommand(ax, 'b', '/srv/app')];
    const prefixes = claudeRules(ax).map((rule) => /^Bash\((.*):\*\)$/.exec(rule)?.[1] ?? '?');
    for (const [i, line] of lines.entries()) assert.ok(line.startsWith(`${prefixes[i]} `), `${line} is covered`);
    const patterns = codexRules(ax, '/usr/local/bin/ax')
      .slice(-2)
      .map((rule) => JSON.parse(/\[.*\]/.exec(rule)?.[0] ?? '') as string[]);
    for (const [i, line] of lines.entries()) assert.ok(line.startsWith(`${patterns[i]?.join(' ')} `), `${line} is covered`);
  }
});

test('the rules of two state folders live in one file, and each goes alone; lines of others stay', () => {
  const path = '/usr/local/bin/ax';
  const other = { program: 'ax', stateDir: '/srv/two' };
  const one = editedRules(null, BARE, path, false)!;
  const both = editedRules(one, other, path, false)!;
  assert.deepEqual([editedRules(both, other, path, false), editedRules(both, BARE, path, false)], [both, both]);
  assert.equal(editedRules(both, other, path, true), one);
  assert.equal(editedRules(one, BARE, path, true), null);
  assert.equal(editedRules(one, BARE, path, false), one);
  assert.match(editedRules(both, BARE, path, true)!, /host_executable/, 'the other bare rule needs it');
  const foreign = '# mine\nprefix_rule(\n  pattern=["git", "status"], decision="allow")\n';
  const mixed = editedRules(foreign, BARE, path, false)!;
  assert.ok(mixed.endsWith(foreign));
  assert.equal(editedRules(mixed, BARE, path, true), foreign);
  // Without the line that ties it a person's own bare rule would let any file named ax out of the sandbox.
  const bare = editedRules('prefix_rule(pattern=["ax", "host"], decision="allow")\n', BARE, path, false)!;
  assert.match(
    editedRules(bare, BARE, path, true)!,
    /^# Written.*\nhost_executable\(name="ax", paths=\["\/usr\/local\/bin\/ax"\]\)\nprefix_rule\(pattern=\["ax", "host"\]/,
  );
  // An ax that was moved: its old lines go, and the name means the new file.
  assert.equal(editedRules(one, BARE, '/usr/bin/ax', false), one.replace(path, '/usr/bin/ax'));
  assert.equal(editedRules(one, { program: '/opt/ax/bin/ax' }, '/opt/ax/bin/ax', false)!.includes('"ax"'), false);
});

test('an ax that an agent could replace gets no rule', (t) => {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ax-place-')));
  t.after(() => rmSync(folder, { recursive: true }));
  const put = (...parts: string[]): string => {
    const path = join(folder, ...parts);
    mkdirSync(join(path, '..'), { recursive: true, mode: 0o755 });
    writeFileSync(path, '', { mode: 0o755 });
    return path;
  };
  const problem = (path: string, workspaces: string[] = [], temporary = ['/nowhere']): string | undefined =>
    placeProblem({ word: path, path, files: [path] }, workspaces, temporary);
  assert.equal(problem('/usr/bin/env'), undefined);
  const plain = put('plain', 'ax');
  assert.match(problem(plain, [], [folder]) ?? '', /lies in .*, where agents may write/);
  assert.match(problem(plain, [join(folder, 'plain')]) ?? '', /the workspace of an agent/);
  mkdirSync(join(folder, 'repo', '.git'), { recursive: true });
  assert.match(problem(put('repo', 'bin', 'ax')) ?? '', /lies in a workspace \(there is .*\/repo\/\.git\)/);
  assert.match(problem(put('p', 'node_modules', '.bin', 'ax')) ?? '', /node_modules\/\.bin/);
  // The nearest folder is judged first: what lies above this one is different on each machine.
  const open = put('open', 'ax');
  for (const mode of [0o775, 0o757, 0o1777]) {
    chmodSync(join(folder, 'open'), mode);
    assert.match(problem(open) ?? '', /\/open may be written by others than its owner$/);
  }
  const link = join(folder, 'link');
  symlinkSync(put('repo', 'bin', 'other'), link);
  assert.match(
    placeProblem({ word: 'ax', path: '/usr/bin/env', files: ['/usr/bin/env', link] }, [], [join(folder, 'repo')]) ?? '',
    /where agents may write/,
  );
  const place = { word: 'ax', path: '/usr/local/bin/ax', files: [] };
  const search = ['/usr/bin', '.', '', '/p/node_modules/.bin', join(folder, 'open'), '/usr/local/bin', '.'];
  assert.deepEqual(
    pathWarnings(place, search, ['/nowhere']).map((warning) => /^"([^"]*)" comes before/.exec(warning)?.[1]),
    ['.', '', join(folder, 'open')],
  );
  assert.deepEqual(pathWarnings({ ...place, word: '/usr/local/bin/ax' }, search), []);
  assert.match(problem('/opt/a"x/ax') ?? '', /characters that a rule cannot hold/);
});

test('an ax whose Node the PATH of a session chooses gets no rule; of a launcher it is known what it starts', (t) => {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ax-place-')));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'ax');
  const started = (text: string): readonly string[] | string => {
    writeFileSync(file, text, { mode: 0o755 });
    return startedBy(file);
  };
  const launcher = (...lines: string[]): string => ['#!/bin/sh', '# ax', "lib='/opt/ax'", ...lines, 'exit 1', ''].join('\n');
  const own = '[ -x "$lib/node/bin/node" ] && exec "$lib/node/bin/node" "$lib/dist/ax.cjs" "$@"';
  const system = `[ -x '/usr/bin/node' ] && exec '/usr/bin/node' "$lib/bin/ax" "$@"`;
  const ownFiles = ['/opt/ax/node/bin/node', '/opt/ax/dist/ax.cjs'];
  assert.deepEqual(started(launcher(own)), ownFiles);
  assert.deepEqual(started(launcher(own, system, 'echo "ax: gone" >&2')), [...ownFiles, '/usr/bin/node', '/opt/ax/bin/ax']);
  assert.deepEqual(started(`#!/bin/sh\nexec '/usr/bin/node' '/opt/ax.cjs' "$@"\n`), ['/usr/bin/node', '/opt/ax.cjs']);
  assert.deepEqual(started('#!/usr/bin/node\n'), ['/usr/bin/node']);
  assert.deepEqual(started('\x7fELF'), []);
  for (const bad of [
    readFileSync(join(import.meta.dirname, '..', '..', 'bin', 'ax'), 'utf8'),
    '#!/usr/bin/env -S node --no-warnings\n',
    '#!node\n',
    '#!/bin/bash\nexec /usr/bin/node x\n',
    '#!/bin/sh\n',
    launcher(own, 'command -v node >/dev/null && exec node "$lib/bin/ax" "$@"'),
    launcher('exec node "$lib/bin/ax" "$@"'),
    launcher(`exec '/usr/bin/node' "$lib/bin/ax" "$@"; node x`),
    launcher('echo "$(node)" >&2', own),
    launcher("lib='/tmp'", own),
    ['#!/bin/sh', own, ''].join('\n'),
  ])
    assert.match(String(started(bad)), /leaves it to the PATH of the session which Node runs/, bad);
});

test('an ax whose state folder an agent could replace gets no rule', (t) => {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ax-place-')));
  t.after(() => rmSync(folder, { recursive: true }));
  const problem = (state: string, workspaces: string[] = [], temporary: string[] = ['/nowhere']): string =>
    placeProblem({ word: 'ax', path: '/usr/bin/env', files: ['/usr/bin/env'], stateDir: state }, workspaces, temporary) ?? '';
  assert.equal(problem('/usr/none/yet'), '');
  assert.match(problem('/tmp/state', [], ['/tmp']), /^of its state folder: \/tmp\/state lies in \/tmp, where agents may write/);
  assert.match(problem('/srv/w/state', ['/srv/w']), /the workspace of an agent/);
  mkdirSync(join(folder, 'open'));
  chmodSync(join(folder, 'open'), 0o777);
  assert.match(problem(join(folder, 'open', 'none')), /\/open may be written by others/);
  mkdirSync(join(folder, '.git'));
  mkdirSync(join(folder, 'state'));
  assert.match(problem(join(folder, 'state')), /lies in a workspace \(there is /);
});

test('an entry put into JSON and taken out again leaves the text as it was, to the byte', () => {
  const key = fc.oneof(fc.constantFrom('permissions', 'allow', 'sandbox', '1', 'a"b'), fc.string({ maxLength: 4 }));
  const value = fc.letrec((tie) => ({
    any: fc.oneof({ maxDepth: 3 }, fc.string(), fc.integer(), fc.constant(null), fc.array(tie('any'), { maxLength: 3 }), tie('object')),
    object: fc.dictionary(key, tie('any'), { maxKeys: 4 }),
  })).object;
  const list = fc.option(fc.array(fc.string(), { minLength: 1, maxLength: 3 }), { nil: undefined });
  const style = fc.constantFrom<string | number>(0, 2, 4, '\t');
  fc.assert(
    fc.property(value, list, style, fc.boolean(), (object, allow, indent, isWindows) => {
      const whole = { ...(object as object), permissions: allow === undefined ? undefined : { deny: [], allow } };
      const text = `${JSON.stringify(whole, null, indent)}\n`.replaceAll('\n', isWindows ? '\r\n' : '\n');
      const added = addItem(text, ['permissions', 'allow'], 'new');
      assert.deepEqual(JSON.parse(added.text), {
        ...(JSON.parse(text) as object),
        permissions: { ...whole.permissions, allow: [...(allow ?? []), 'new'] },
      });
      assert.deepEqual(added.made, allow === undefined ? ['permissions', 'permissions.allow'] : []);
      let back = removeItem(added.text, ['permissions', 'allow'], 'new');
      for (const path of added.made.toReversed()) back = removeEmpty(back, path.split('.'));
      assert.equal(back, text);
    }),
    { numRuns: 300 },
  );
});

test('numbers, odd spaces and the order of keys survive, and only changed lines are shown', () => {
  const text = '{ "b" : 1e400 ,\n   "10": 1.50, "2":[ ],\n "permissions":{"allow":["x" ]}}';
  const { text: added } = addItem(text, ['permissions', 'allow'], 'y');
  assert.equal(added, text.replace('"x" ', '"x", "y" '));
  assert.deepEqual(lineChanges(text, added), ['    3 -  "permissions":{"allow":["x" ]}}', '    3 +  "permissions":{"allow":["x", "y" ]}}']);
  assert.deepEqual(lineChanges('', 'a\nb\n'), ['    1 + a', '    2 + b']);
  assert.deepEqual(lineChanges('a\nb\nc\nd\n', 'a\nx\nc\nd\ny\n'), ['    2 - b', '    2 + x', '    5 + y']);
});

test('setup names only the rules that are missing, for the harness of the agent', async (t) => {
  const done = (harness: string): object => ({
    agent: { name: 'b', harness, workspace: '/w' },
    attachment: { session_id: 'u', state: 'live' },
    waiting: [],
    warnings: [],
    next: null,
  });
  const rig = await scripted(t, { 'agent.setup': () => done('codex') });
  const env = { CODEX_THREAD_ID: 'x', CODEX_HOME: join(rig.folder, 'cx'), CLAUDE_CONFIG_DIR: join(rig.folder, 'cl') };
  const args = ['agent', 'setup', '--name', 'b', '--workspace', '/w'];
  const rules = (await rig.json(args, { env })).value['allow_rules'] as string[];
  assert.equal(rules.length, 2);
  mkdirSync(join(rig.folder, 'cx', 'rules'), { recursive: true });
  writeFileSync(join(rig.folder, 'cx', 'rules', 'mine.rules'), `${rules[0]}\n`);
  assert.deepEqual((await rig.json(args, { env })).value['allow_rules'], [rules[1]]);
  rig.answers = { 'agent.setup': () => done('claude') };
  const missing = (await rig.json(args, { env })).value['allow_rules'] as string[];
  assert.match(missing.join(), /^Bash\(\S+\/bin\/ax --state-dir \S+ messages fetch:\*\),Bash\(\S+ --state-dir \S+ agent setup:\*\)$/);
  mkdirSync(env.CLAUDE_CONFIG_DIR);
  const settings = { sandbox: { enabled: true }, permissions: { allow: [missing[0]!] } };
  writeFileSync(join(env.CLAUDE_CONFIG_DIR, 'settings.json'), JSON.stringify(settings));
  assert.deepEqual(
    (await rig.json(args, { env })).value['allow_rules'],
    [missing[1]],
    'what leaves a sandbox is never asked for by an agent',
  );
  settings.permissions.allow.push(missing[1]!);
  writeFileSync(join(env.CLAUDE_CONFIG_DIR, 'settings.json'), JSON.stringify(settings));
  const { stdout } = await rig.ax(args, { env });
  assert.doesNotMatch(stdout, /prompts|allow-rules/);
});
