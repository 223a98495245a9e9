/**
 * `ax agent allow-rules` as a person meets it: on a terminal, with what it shows, asks, writes and takes back.
 */
import assert from 'node:assert/strict';
import { chmodSync, chownSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import { Terminal } from '../real/terminal.ts';
import { CLAUDE_SHELL, MAIN, scripted } from './scripted.ts';
import type { Json, Scripted } from './scripted.ts';

const CHILD = join(import.meta.dirname, 'allow-rules-child.ts');

interface Seen {
  readonly status: number;
  readonly text: string;
}

class Person {
  readonly rig: Scripted;
  readonly claude: string;
  readonly codex: string;
  readonly env: Record<string, string>;

  constructor(rig: Scripted) {
    this.rig = rig;
    this.claude = join(rig.folder, 'claude');
    this.codex = join(rig.folder, 'codex');
    for (const folder of [this.claude, this.codex]) mkdirSync(folder, { mode: 0o700 });
    this.env = {
      PATH: join(rig.folder, 'bin'),
      HOME: rig.folder,
      XDG_STATE_HOME: rig.folder,
      CLAUDE_CONFIG_DIR: this.claude,
      CODEX_HOME: this.codex,
      NODE_COMPILE_CACHE: join(rig.folder, 'cache'),
      NO_COLOR: '1',
    };
  }

  get settings(): string {
    return join(this.claude, 'settings.json');
  }

  get rules(): string {
    return join(this.codex, 'rules', 'ax.rules');
  }

  /** Runs the line on a terminal; `key` is typed at the question, undefined when none may come. */
  async run(args: readonly string[], key: string | undefined, env: Record<string, string> = {}, script = CHILD): Promise<Seen> {
    const options = { env: { ...this.env, ...env }, cwd: this.rig.workspace, cols: 2000 };
    const terminal = new Terminal(process.execPath, [script, ...args], options);
    if (key !== undefined) {
      await terminal.until(/(Write these lines|Take these lines out)\?/);
      terminal.type(key);
    }
    const { status } = await terminal.ended;
    return { status, text: terminal.history() };
  }

  async json(args: readonly string[], key: string | undefined, env: Record<string, string> = {}): Promise<Json> {
    const { text } = await this.run([...args, '--format', 'json'], key, env);
    return JSON.parse(text.slice(text.indexOf('{"schema_version'))) as Json;
  }
}

async function person(t: TestContext): Promise<Person> {
  return new Person(await scripted(t));
}

const CLAUDE = ['agent', 'allow-rules', '--harness', 'claude'];
const CODEX = ['agent', 'allow-rules', '--harness', 'codex'];
const RULES = ['Bash(ax messages fetch:*)', 'Bash(ax agent setup:*)'];
const FILE = [
  '# Written by `ax agent allow-rules`. `ax agent allow-rules --harness codex --remove` takes these lines out again.',
  'host_executable(name="ax", paths=["/usr/local/bin/ax"])',
  'prefix_rule(pattern=["ax", "messages", "fetch"], decision="allow")',
  'prefix_rule(pattern=["ax", "agent", "setup"], decision="allow")',
  '',
].join('\n');

test('Claude Code: the change is shown, written after a yes with all else as it was, and taken back to the byte; both once only', async (t) => {
  const me = await person(t);
  const before =
    '{\n    "env": { "N": 1.0,  "a": "é" },\n    "permissions": {\n        "deny": ["Bash(x)"]\n    },\n    "2": 0, "1": 0\n}\n';
  writeFileSync(me.settings, before, { mode: 0o640 });
  const added = await me.run(CLAUDE, 'y');
  assert.equal(added.status, 0, added.text);
  assert.match(
    added.text,
    /^ax: warning: the daemon did not answer, .* was not checked\nax: \S+\/claude\/settings\.json:\n {4}4 - {9}"deny": \["Bash\(x\)"\]\n {4}4 \+ {9}"deny": \["Bash\(x\)"\],\n {4}5 \+ {9}"allow": \[\n/,
  );
  const list = RULES.map((rule) => `            "${rule}"`).join(',\n');
  assert.equal(readFileSync(me.settings, 'utf8'), before.replace('["Bash(x)"]', `["Bash(x)"],\n        "allow": [\n${list}\n        ]`));
  assert.equal(statSync(me.settings).mode & 0o777, 0o640);
  const again = await me.json(CLAUDE, undefined);
  assert.deepEqual([again['type'], again['state'], again['rules'], again['checked']], ['allow_rules', 'unchanged', RULES, true]);
  const removed = await me.json([...CLAUDE, '--remove'], 'y');
  assert.deepEqual([removed['harness'], removed['file'], removed['state'], removed['rules']], ['claude', me.settings, 'removed', RULES]);
  assert.equal(readFileSync(me.settings, 'utf8'), before);
  assert.equal((await me.json([...CLAUDE, '--remove'], undefined))['state'], 'unchanged');
  assert.deepEqual(readdirSync(me.claude), ['settings.json']);
  assert.equal(existsSync(join(me.rig.folder, 'ax', 'allow-rules.json')), false);
});

test('Claude Code: a file that had to be made goes again, and a rule that a person wrote stays', async (t) => {
  const me = await person(t);
  assert.equal((await me.json(CLAUDE, 'y'))['state'], 'added');
  assert.deepEqual(JSON.parse(readFileSync(me.settings, 'utf8')), { permissions: { allow: RULES } });
  assert.equal(statSync(me.settings).mode & 0o777, 0o600);
  assert.equal((await me.json([...CLAUDE, '--remove'], 'y'))['state'], 'removed');
  assert.equal(existsSync(me.settings), false);
  const own = `{"permissions":{"allow":["${RULES[1]}"]}}`;
  writeFileSync(me.settings, own);
  await me.json(CLAUDE, 'y');
  assert.deepEqual(JSON.parse(readFileSync(me.settings, 'utf8')).permissions.allow, [RULES[1], RULES[0]]);
  const removed = await me.json([...CLAUDE, '--remove'], 'y');
  assert.deepEqual([removed['rules'], readFileSync(me.settings, 'utf8')], [[RULES[0]], own]);
  assert.match(removed['notes'][0], /^Bash\(ax agent setup:\*\) in .* was not added by this command and stays/);
});

/** A `claude` on the PATH that answers `--version` so. */
function claudeSays(me: Person, says: string): void {
  const bin = join(me.rig.folder, 'bin');
  mkdirSync(bin, { recursive: true });
  writeFileSync(join(bin, 'claude'), `#!/bin/sh\n${says}\n`, { mode: 0o755 });
}

test('Claude Code: nothing is excluded from its sandbox unless the claude on the PATH says, in its own words and in time, that it is 2.1.332 or newer', async (t) => {
  const me = await person(t);
  const before = { sandbox: { enabled: true } };
  const inside = [
    undefined,
    'echo "2.1.331 (Claude Code)"',
    'echo "2.0.999 (Claude Code)"',
    'echo "2.1.248 (Claude Code)"',
    'echo "2.1.332"',
    'echo "v2.1.332 (Claude Code)"',
    'echo "2.1.332-beta (Claude Code)"',
    'printf "2.1.332 (Claude Code)\\nmore"',
    'echo "2.1.332 (Claude Code)" >&2',
    'echo "2.1.332 (Claude Code)"; exit 1',
    'while :; do echo "2.1.332 (Claude Code)"; done',
  ];
  for (const says of inside) {
    writeFileSync(me.settings, JSON.stringify(before));
    if (says !== undefined) claudeSays(me, says);
    const added = await me.json(CLAUDE, 'y');
    assert.deepEqual(JSON.parse(readFileSync(me.settings, 'utf8')), { ...before, permissions: { allow: RULES } }, says);
    assert.match(added['warnings'].at(-1), /stay inside of the sandbox: .*: ax agent sandbox-fetch on$/, says);
    await me.json([...CLAUDE, '--remove'], 'y');
  }
  for (const version of ['2.1.332', '2.1.400', '2.2.0', '3.0.0']) {
    writeFileSync(me.settings, JSON.stringify(before));
    claudeSays(me, `echo "${version} (Claude Code)"`);
    await me.json(CLAUDE, 'y');
    const { sandbox } = JSON.parse(readFileSync(me.settings, 'utf8')) as Json;
    assert.deepEqual(sandbox['excludedCommands'], ['ax messages fetch:*', 'ax agent setup:*'], version);
    if (version !== '3.0.0') await me.json([...CLAUDE, '--remove'], 'y');
  }
  claudeSays(me, 'echo "2.1.248 (Claude Code)"');
  const old = await me.json(CLAUDE, undefined);
  assert.match(old['warnings'].at(-1), /has them from before: take them out with ax agent allow-rules --harness claude --remove/);
});

test('Claude Code: where its sandbox is on and safe with it the commands are excluded from it too, in the very words of a notice', async (t) => {
  const me = await person(t);
  claudeSays(me, 'echo "2.1.332 (Claude Code)"');
  const before = '{"sandbox": {"enabled": true}}';
  writeFileSync(me.settings, before);
  const state = join(me.rig.folder, 'other');
  const words = `/usr/local/bin/ax --state-dir ${state}`;
  const added = await me.json(['--state-dir', state, ...CLAUDE], 'y', { TEST_AX_WORD: '/usr/local/bin/ax' });
  assert.match(added['warnings'].at(-1), /for Claude Code 2\.1\.332 and newer; in an older one .* runs outside of the sandbox as a whole/);
  const patterns = [`${words} messages fetch:*`, `${words} agent setup:*`];
  assert.deepEqual(JSON.parse(readFileSync(me.settings, 'utf8')), {
    sandbox: { enabled: true, excludedCommands: patterns },
    permissions: { allow: patterns.map((pattern) => `Bash(${pattern})`) },
  });
  await me.json(['--state-dir', state, ...CLAUDE, '--remove'], 'y', { TEST_AX_WORD: '/usr/local/bin/ax' });
  assert.equal(readFileSync(me.settings, 'utf8'), before);
});

test('Codex: the rules name the one file that is meant, count for later threads, and go with the file that held only them', async (t) => {
  const me = await person(t);
  const added = await me.run(CODEX, 'y');
  assert.equal(added.status, 0, added.text);
  assert.match(added.text, /^ax: warning: the daemon did not answer, .*\nax: \S+\/rules\/ax\.rules, a new file:\n {4}1 \+ # Written by/);
  assert.match(
    added.text,
    /\nadded to \S+\/rules\/ax\.rules; no `codex` is on the PATH: the rules could not be checked with it\nIt counts for threads of Codex started from now on; /,
  );
  assert.equal(readFileSync(me.rules, 'utf8'), FILE);
  const again = await me.json(CODEX, undefined);
  assert.deepEqual([again['state'], again['checked'], again['rules'].length], ['unchanged', false, 3]);
  assert.equal((await me.json([...CODEX, '--remove'], 'y'))['state'], 'removed');
  assert.equal(existsSync(me.rules), false);
  assert.equal((await me.json([...CODEX, '--remove'], undefined))['state'], 'unchanged');
});

test('a no, leaving, or a file that changed meanwhile leaves everything as it was', async (t) => {
  const me = await person(t);
  for (const [line, key] of [
    [CLAUDE, 'n'],
    [CODEX, '\r'],
    [CODEX, '\x1b'],
    [CLAUDE, '\x03'],
  ] as const) {
    const seen = await me.run(line, key);
    assert.equal(seen.status, 1, seen.text);
    assert.match(seen.text, /ax: nothing was changed in /);
  }
  assert.deepEqual([readdirSync(me.claude), readdirSync(me.codex)], [[], []]);
  writeFileSync(me.settings, '{}');
  const terminal = new Terminal(process.execPath, [CHILD, ...CLAUDE], { env: me.env, cwd: me.rig.workspace, cols: 2000 });
  await terminal.until('Write these lines?');
  writeFileSync(me.settings, '{"a":1}');
  terminal.type('y');
  assert.equal((await terminal.ended).status, 1);
  assert.match(terminal.history(), /was changed meanwhile: nothing was written/);
  assert.equal(readFileSync(me.settings, 'utf8'), '{"a":1}');
});

test("it is refused inside any harness's shell, without a terminal, and for an ax that an agent could replace", async (t) => {
  const me = await person(t);
  for (const env of [CLAUDE_SHELL, { CODEX_THREAD_ID: 'x' }, { AX_HARNESS: 'other' }]) {
    for (const line of [CLAUDE, [...CODEX, '--remove']]) {
      const seen = await me.run(line, undefined, env);
      assert.equal(seen.status, 1, seen.text);
      assert.match(
        seen.text,
        /is for a person: inside an agent's shell it is refused, whoever told the agent to\nfix: in your own terminal: \S*ax agent allow-rules/,
      );
    }
    assert.equal((await me.run([...CODEX, '--as-owner'], undefined, env)).status, 1);
  }
  const piped = await me.rig.ax(CLAUDE, { env: me.env });
  assert.equal(piped.code, 1);
  assert.match(piped.stderr, /^ax: `ax agent allow-rules --harness claude` shows a change and asks: it needs a terminal/);
  for (const line of [CLAUDE, CODEX]) {
    const seen = await me.run(line, undefined, {}, MAIN);
    assert.equal(seen.status, 1);
    assert.match(
      seen.text,
      /ax: no rule is safe for this ax: \S+ lies in .*; what an agent can replace would run unasked\nfix: install it /,
    );
  }
  assert.deepEqual([readdirSync(me.claude), readdirSync(me.codex)], [[], []]);
});

test('settings that are no strict JSON, lead elsewhere or belong to another are left alone', async (t) => {
  const me = await person(t);
  const refuses = async (text: string, why: RegExp): Promise<void> => {
    writeFileSync(me.settings, text);
    const seen = await me.run(CLAUDE, undefined);
    assert.equal(seen.status, 1, seen.text);
    assert.match(seen.text, why);
    assert.equal(readFileSync(me.settings, 'utf8'), text);
  };
  await refuses('{ // mine\n}', /is not strict JSON/);
  await refuses('[]', /is not a JSON object/);
  await refuses('{"permissions": {"allow": "Bash"}}', /"permissions\.allow" is not a list/);
  await refuses('{"permissions": 1, "permissions": {}}', /stands twice/);
  const elsewhere = join(me.rig.folder, 'dotfiles.json');
  writeFileSync(elsewhere, '{}');
  const linked = join(me.codex, 'rules');
  symlinkSync(me.rig.folder, linked);
  assert.match((await me.run(CODEX, undefined)).text, /outside of .*codex: ax does not write there/);
  writeFileSync(me.settings, '{}');
  if (process.getuid?.() === 0) {
    chownSync(me.settings, 4242, 4242);
    assert.match((await me.run(CLAUDE, undefined)).text, /settings\.json belongs to another user \(uid 4242\)/);
    chownSync(me.settings, 0, 0);
  }
  const inside = join(me.claude, 'real.json');
  writeFileSync(inside, '{}');
  const other = new Person(await scripted(t));
  symlinkSync(elsewhere, other.settings);
  assert.match((await other.run(CLAUDE, undefined)).text, /leads to .*dotfiles\.json, outside of/);
  assert.equal(readFileSync(elsewhere, 'utf8'), '{}');
});

test("Codex: what its own check says counts, and a second file that says what 'ax' is, is refused", async (t) => {
  const me = await person(t);
  const codex = join(me.env['PATH']!, 'codex');
  mkdirSync(dirname(codex));
  for (const [answer, why] of [
    ['echo \'{"decision":"allow"}\'', /nothing was written: with them `\.\/ax messages fetch` would run outside of the sandbox/],
    ["echo '{}'", /nothing was written: Codex does not let `ax messages fetch` through/],
    ['echo no', /gave no JSON/],
    ['echo broken >&2; exit 1', /`codex execpolicy check` failed \(broken\)/],
  ] as const) {
    writeFileSync(codex, `#!/bin/sh\n${answer}\n`);
    chmodSync(codex, 0o755);
    const seen = await me.run(CODEX, 'y');
    assert.equal(seen.status, 1);
    assert.match(seen.text, why);
    assert.deepEqual(readdirSync(dirname(me.rules)), []);
  }
  const clash = join(dirname(me.rules), 'default.rules');
  writeFileSync(clash, 'host_executable(\n  name="ax", paths=["/tmp/ax"])\n');
  assert.match((await me.run(CODEX, undefined)).text, /default\.rules already says which program is meant by "ax"/);
  assert.deepEqual(readdirSync(dirname(me.rules)), ['default.rules']);
});
