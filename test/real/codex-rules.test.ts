/**
 * Codex's rules files as they really work: which command lines leave the sandbox under which form of a rule, on the genuine binary.
 *
 * These are the facts that the rules of `ax agent allow-rules` rest on. The program here is a script that tells in which network
 * namespace it runs: the host's own means outside. Every answer that a command line alone decides is compared with `codex execpolicy check`.
 */
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, mkdtempSync, readlinkSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runToEnd } from '../e2e/processes.ts';
import type { Json } from '../e2e/processes.ts';
import { codexEnv, CodexServer, type CodexClient, type ThreadOptions } from './codex-daemon.ts';
import { CodexModel } from './codex-model.ts';
import type { Installed } from './install.ts';
import { matrix, NotInstallable } from './matrix.ts';

/** Both of Codex's sandboxes, each with the approval policy that is usual for it. */
const MODES: readonly ThreadOptions[] = [
  { sandbox: 'workspace-write', approvalPolicy: 'never' },
  { sandbox: 'read-only', approvalPolicy: 'on-request' },
];

const WHERE = /^ran in (\S+)$/m;

class Rules {
  readonly home: string;
  readonly model: CodexModel;
  readonly server: CodexServer;
  owner: CodexClient;
  /** The program the rules are about. */
  readonly abs: string;
  readonly workspace: string;
  /** A copy of the program in a folder that the sandbox may write. */
  readonly writable: string;

  private constructor(home: string, model: CodexModel, server: CodexServer, owner: CodexClient) {
    [this.home, this.model, this.server, this.owner] = [home, model, server, owner];
    this.abs = join(home, 'bin', 'ax');
    this.workspace = join(home, 'ws');
    this.writable = join(home, 'tmp', 'ax');
  }

  static async make(installed: Installed): Promise<Rules> {
    const home = realpathSync(mkdtempSync(join(tmpdir().length > 30 ? '/tmp' : tmpdir(), 'axr-')));
    for (const folder of ['bin', 'ws', 'tmp', join('.codex', 'rules')]) mkdirSync(join(home, folder), { recursive: true, mode: 0o700 });
    const model = await CodexModel.start();
    const server = new CodexServer({ program: installed.binary, home, model: model.url, trusted: [join(home, 'ws')], config: [] });
    await server.start();
    const rules = new Rules(home, model, server, await server.client());
    writeFileSync(rules.abs, '#!/bin/sh\necho "ran in $(readlink /proc/self/ns/net)"\n', { mode: 0o755 });
    for (const copy of [rules.writable, join(rules.workspace, 'ax')]) copyFileSync(rules.abs, copy);
    // What a login shell finds as `ax`.
    writeFileSync(join(home, '.profile'), `export PATH="${join(home, 'bin')}:$PATH"\n`);
    const [probe] = await rules.run(MODES[0] ?? {}, '', ['ax']);
    if (probe === 'inside') return rules;
    await rules.end();
    assert.notEqual(probe, 'outside', 'there is a sandbox');
    throw new NotInstallable(`Codex cannot make its sandbox here: ${String(probe).slice(0, 200).replaceAll('\n', ' ')}`);
  }

  async end(): Promise<void> {
    await this.server.end();
    await this.model.stop();
    rmSync(this.home, { recursive: true, force: true });
  }

  /** Where each command ran, in a thread that was started after the rules were written: `inside`, `outside`, else what came instead. */
  async run(mode: ThreadOptions, rules: string, commands: readonly string[]): Promise<readonly string[]> {
    writeFileSync(join(this.home, '.codex', 'rules', 'ax.rules'), rules);
    return this.runIn(await this.owner.startThread(this.workspace, mode), commands);
  }

  async runIn(thread: string, commands: readonly string[]): Promise<readonly string[]> {
    const before = this.model.runs.length;
    this.model.script(thread, ...commands.map((run) => ({ run })), { say: 'done' });
    assert.equal(await this.owner.runTurn(thread, 'go'), 'completed');
    assert.deepEqual(this.owner.asked, [], 'nothing was asked');
    const ran = this.model.runs.slice(before);
    assert.deepEqual(
      ran.map((one) => one.command),
      commands,
    );
    return ran.map(({ output }) => {
      const where = WHERE.exec(output)?.[1];
      return where === undefined
        ? `did not run: ${output.slice(0, 300)}`
        : where === readlinkSync('/proc/self/ns/net')
          ? 'outside'
          : 'inside';
    });
  }

  /** What `codex execpolicy check` says of one argv: `allow`, or null where no rule matches. */
  async check(words: readonly string[]): Promise<string | null> {
    const file = join(this.home, '.codex', 'rules', 'ax.rules');
    const args = ['execpolicy', 'check', '-r', file, '--resolve-host-executables', ...words];
    const outcome = await runToEnd(this.server.setup.program, args, { env: codexEnv(this.server.setup), cwd: this.workspace });
    assert.equal(outcome.status, 0, outcome.stderr);
    return ((JSON.parse(outcome.stdout) as Json)['decision'] as string | undefined) ?? null;
  }

  /** The rules that ax installs. */
  get installed(): string {
    return [
      `host_executable(name="ax", paths=[${JSON.stringify(this.abs)}])`,
      'prefix_rule(pattern=["ax", "messages", "fetch"], decision="allow")',
      'prefix_rule(pattern=["ax", "agent", "setup"], decision="allow")\n',
    ].join('\n');
  }
}

const cell = matrix<Rules>('codex', import.meta.filename, { make: (installed) => Rules.make(installed), end: (rules) => rules.end() });

/** Asserts where commands run in both modes, as one table in the failure. */
async function assertWhere(rules: Rules, text: string, expected: Readonly<Record<string, string>>): Promise<void> {
  for (const mode of MODES) {
    const commands = Object.keys(expected);
    const places = await rules.run(mode, text, commands);
    assert.deepEqual(Object.fromEntries(commands.map((command, i) => [command, places[i]])), expected, JSON.stringify(mode));
  }
}

const bare = 'prefix_rule(pattern=["ax", "messages", "fetch"], decision="allow")\n';

cell('a bare name without host_executable is an escape: any file of that name runs outside', async (rules) => {
  const fetch = 'messages fetch 1';
  const expected = { [`ax ${fetch}`]: 'outside', [`${rules.abs} ${fetch}`]: 'outside', [`./ax ${fetch}`]: 'outside' };
  await assertWhere(rules, bare, { ...expected, [`${rules.writable} ${fetch}`]: 'outside', [`../ws/ax ${fetch}`]: 'outside' });
  assert.equal(await rules.check(['./ax', 'messages', 'fetch', '1']), 'allow');
  const list = `prefix_rule(pattern=[["ax", ${JSON.stringify(rules.abs)}], "messages", "fetch"], decision="allow")\n`;
  await assertWhere(rules, list, expected);
  return 'ax, its absolute path, ./ax and a copy in a writable folder all ran outside, unasked: never install this form';
});

cell('an absolute path alone allows exactly that spelling', async (rules) => {
  const fetch = 'messages fetch 1';
  const text = `prefix_rule(pattern=[${JSON.stringify(rules.abs)}, "messages", "fetch"], decision="allow")\n`;
  const other = rules.abs.replace(/\/bin\/ax$/, '/bin/../bin/ax');
  const inside = { [`./ax ${fetch}`]: 'inside', [`${rules.writable} ${fetch}`]: 'inside', [`../ws/ax ${fetch}`]: 'inside' };
  const expected = { [`ax ${fetch}`]: 'inside', [`${rules.abs} ${fetch}`]: 'outside', [`${other} ${fetch}`]: 'inside', ...inside };
  await assertWhere(rules, text, expected);
  await assertWhere(rules, `host_executable(name="ax", paths=[${JSON.stringify(rules.abs)}])\n${text}`, expected);
  assert.equal(await rules.check([rules.abs, 'messages', 'fetch', '1']), 'allow');
  assert.equal(await rules.check(['ax', 'messages', 'fetch', '1']), null);
  return 'only the literal path ran outside; the bare name, ./ax and copies stayed inside, with host_executable too';
});

cell('the installed form allows the bare name and the one path, and nothing of that name elsewhere', async (rules) => {
  const expected: Record<string, string> = {};
  for (const verb of ['messages fetch 1', 'agent setup --name foo']) {
    for (const name of ['ax', rules.abs]) expected[`${name} ${verb}`] = 'outside';
    for (const name of ['./ax', rules.writable, '../ws/ax']) expected[`${name} ${verb}`] = 'inside';
  }
  await assertWhere(rules, rules.installed, expected);
  for (const [command, place] of Object.entries(expected))
    assert.equal(await rules.check(command.split(' ')), place === 'outside' ? 'allow' : null, command);
  return 'ax and its absolute path ran outside, ./ax, ../ws/ax and a copy in TMPDIR inside; execpolicy check agrees';
});

cell('of the installed form only the two verbs leave the sandbox, with any arguments', async (rules) => {
  const outside = [
    'ax messages fetch 1',
    'ax messages fetch',
    "ax agent setup --workspace '/p a/th' --name foo",
    `ax agent setup --x 'a;b' "c|d"`,
  ];
  const inside = ['ax send bob hi', 'ax agent', 'ax agent sessions', 'ax messages list', 'ax --workspace /x messages fetch 1', 'ax'];
  const expected = Object.fromEntries([...outside.map((one) => [one, 'outside']), ...inside.map((one) => [one, 'inside'])]);
  await assertWhere(rules, rules.installed, expected);
  for (const one of inside) assert.equal(await rules.check(one.split(' ')), null, one);
  return 'setup and fetch ran outside with whatever follows them; send, list, sessions and an option before the noun inside';
});

cell('only a whole plain command leaves the sandbox', async (rules) => {
  const plain = ['ax messages fetch 1', 'ax   messages  fetch   1', `ax messages fetch "1"`, `ax messages fetch '1'`];
  const outside = [...plain, 'ax messages fetch 1\n', 'ax messages fetch 1 && ax agent setup'];
  const fetch = 'ax messages fetch 1';
  const inside = [
    `${fetch} | head`,
    `${fetch} 2>&1`,
    `${fetch} < /dev/null`,
    `${fetch} > /dev/stdout`,
    `${fetch}; true`,
    `${fetch}\ntrue`,
    `cd . && ${fetch}`,
    'ax messages fetch $(echo 1)',
    'ax messages fetch `echo 1`',
    'ax messages fetch $HOME',
    'ax messages fetch *',
    `FOO=1 ${fetch}`,
    `PATH=.:$PATH ${fetch}`,
    `env ${fetch}`,
    `timeout 5 ${fetch}`,
    `bash -lc "${fetch}"`,
    `"ax" messages fetch 1`,
    `${fetch} # comment`,
    `${fetch} && ax send bob hi`,
  ];
  const expected = Object.fromEntries([...outside.map((one) => [one, 'outside']), ...inside.map((one) => [one, 'inside'])]);
  await assertWhere(rules, rules.installed, expected);
  return `outside: plain words, quotes, extra spaces, && of two allowed ones; inside: ${inside.length} other forms (pipe, redirection, ;, cd, $, env ...)`;
});

cell('a rule counts for threads that start after it was written', async (rules) => {
  const command = 'ax messages fetch 1';
  const [mode] = MODES as [ThreadOptions];
  writeFileSync(join(rules.home, '.codex', 'rules', 'ax.rules'), '');
  const early = await rules.owner.startThread(rules.workspace, mode);
  assert.deepEqual(await rules.runIn(early, [command]), ['inside']);
  assert.deepEqual(await rules.run(mode, rules.installed, [command]), ['outside']);
  assert.deepEqual(await rules.runIn(early, [command]), ['inside']);
  assert.deepEqual(await rules.run(mode, '', [command]), ['inside']);
  writeFileSync(join(rules.home, '.codex', 'rules', 'ax.rules'), rules.installed);
  await rules.server.stop();
  await rules.server.start();
  rules.owner = await rules.server.client();
  await rules.owner.call('thread/resume', { threadId: early });
  assert.deepEqual(await rules.runIn(early, [command]), ['outside']);
  return 'a loaded thread keeps its old rules, until the app-server starts again; a new one has the new ones, an emptied file too';
});

cell('the strictest rule that matches wins, and a broken file allows nothing', async (rules) => {
  const command = 'ax messages fetch 1';
  const [mode] = MODES as [ThreadOptions];
  const [refused] = await rules.run(mode, `${rules.installed}prefix_rule(pattern=["ax"], decision="forbidden")\n`, [command]);
  assert.match(refused ?? '', /^did not run/);
  assert.deepEqual(await rules.run(mode, `${rules.installed}this is no rule(\n`, [command]), ['inside']);
  const untrusted: ThreadOptions = { sandbox: 'workspace-write', approvalPolicy: 'untrusted' };
  assert.deepEqual(await rules.run(untrusted, rules.installed, [command]), ['outside']);
  // A rule for the literal path is tried before the one for its name.
  const path = `prefix_rule(pattern=[${JSON.stringify(rules.abs)}, "messages", "fetch"], decision="allow")\n`;
  const ask = `host_executable(name="ax", paths=[${JSON.stringify(rules.abs)}])\nprefix_rule(pattern=["ax"], decision="prompt")\n${path}`;
  assert.deepEqual(await rules.run({ ...mode, approvalPolicy: 'on-request' }, ask, [`${rules.abs} messages fetch 1`]), ['outside']);
  const thread = await rules.owner.startThread(rules.workspace, { ...mode, approvalPolicy: 'on-request' });
  rules.model.script(thread, { run: 'ax send bob hi' }, { say: 'done' });
  const turn = await rules.owner.startTurn(thread, 'send it');
  assert.match(String((await rules.owner.approve(thread, 'decline'))['command']), /ax send bob hi/);
  await rules.owner.turnEnd(thread, turn);
  return 'forbidden beside allow: it did not run; a broken file: inside; policy untrusted: unasked; a prompt rule asks for what no allow rule names';
});
