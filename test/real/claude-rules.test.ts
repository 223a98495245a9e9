/**
 * Claude Code's permission rules as they really work: which command lines run unasked under what `ax agent allow-rules` writes.
 *
 * The rules are written by that command, from a person's terminal, into the settings of an isolated home; the ax they are about lies where no
 * agent may write. What asks its user comes back as an error, because nobody can answer: the program itself counts those.
 */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { ClaudeShell, runSteps, type Tried } from './claude-shell.ts';
import { ClaudeWorld } from './claude-world.ts';
import { matrix } from './matrix.ts';
import { SafeAx } from './safe-ax.ts';
import { NO_MESSAGE } from './sandboxed.ts';
import { KEYS, Terminal } from './terminal.ts';

interface Fixture {
  readonly ax: SafeAx;
  readonly world: ClaudeWorld;
}

const cell = matrix<Fixture>('claude', import.meta.filename, {
  make: async (installed) => {
    const ax = new SafeAx();
    try {
      const world = await ClaudeWorld.make(installed, ax);
      // A bare `ax` is found too, in every session.
      world.b.env['PATH'] = `${dirname(ax.program)}${delimiter}${String(world.b.env['PATH'])}`;
      return { ax, world };
    } catch (error) {
      ax.end();
      throw error;
    }
  },
  end: async ({ ax, world }) => {
    await world.end();
    ax.end();
  },
});

const CHILD = join(import.meta.dirname, '..', 'cli', 'allow-rules-child.ts');
/** The beginning of what ax itself says, whatever it says. */
const AX_SAYS = /^(?:Exit code \d\n)?(?:ax: |\S+ is set up for )/;

interface Rows {
  readonly unasked: readonly string[];
  readonly asked: readonly string[];
}

/** The lines of the table, but for `< FILE`, which some versions ask for and some do not: neither command reads its input; `ax` is the word that the rules are about, `others` are other ways to call that program. */
function rows(ax: string, others: readonly string[], workspace: string): Rows {
  const fetch = `${ax} messages fetch`;
  const plain = `${fetch} ${NO_MESSAGE}`;
  return {
    unasked: [
      plain,
      plain.replaceAll(' ', '   '),
      fetch,
      `${plain} # a note`,
      `${plain} --workspace '/path with space'`,
      `${fetch} --workspace '/path with space' ${NO_MESSAGE}`,
      `${fetch} "a;b"`,
      `${fetch} "$HOME"`,
      `${plain} | head`,
      `${plain} 2>&1`,
      `${plain} && ${plain}`,
      `timeout 5 ${plain}`,
      `${ax} agent setup --name one --workspace '${workspace}'`,
      `${ax} agent setup --x 'a;b' "c|d"`,
    ],
    asked: [
      `${plain} | sh`,
      `${plain}; ${ax} send --to a@hosta hi`,
      `${plain} && ${ax} send --to a@hosta hi`,
      `${plain}\n${ax} send --to a@hosta hi`,
      `${plain} > out.txt`,
      `${fetch} $(echo ${NO_MESSAGE})`,
      `${fetch} \`echo ${NO_MESSAGE}\``,
      `${plain} &`,
      `cd /tmp && ${plain}`,
      `FOO=1 ${plain}`,
      `PATH=.:$PATH ${plain}`,
      `env ${plain}`,
      `bash -c "${plain}"`,
      `./ax messages fetch ${NO_MESSAGE}`,
      ...others.map((other) => `${other} messages fetch ${NO_MESSAGE}`),
      `${fetch}42`,
      `${fetch}all 1`,
      `${ax} --state-dir /tmp/x messages fetch ${NO_MESSAGE}`,
      `${ax} send --to a@hosta hi`,
      `${ax} messages list`,
      `${ax} messages reply ${NO_MESSAGE} hi`,
      `${ax} agent list`,
      `${ax} agent allow-rules --harness claude`,
      `${ax} agent sandbox-fetch on`,
    ],
  };
}

/** Tries all of it in one session; every line that ran was ax's to answer, every other one left nothing behind. */
async function tryRows({ world }: Fixture, name: string, ax: string, others: readonly string[]): Promise<Rows> {
  const workspace = world.workspace(name);
  const fake = join(workspace, 'ax');
  writeFileSync(fake, '#!/bin/sh\ntouch fake-ran\n', { mode: 0o755 });
  const { unasked, asked } = rows(ax, others, workspace);
  const shell = await ClaudeShell.start(world.home, workspace);
  try {
    const tried = await shell.run(...unasked, ...asked);
    for (const one of tried.slice(0, unasked.length)) assertRan(one);
    const ran = tried.slice(unasked.length).filter((one) => !one.asks || AX_SAYS.test(one.said));
    assert.deepEqual(ran.map(told), []);
    for (const left of ['out.txt', 'fake-ran']) assert.equal(existsSync(join(workspace, left)), false, left);
    const { messages } = await world.b.ok(['messages', 'list', '--sent', '-a']);
    assert.deepEqual(messages, [], 'nothing was sent');
  } finally {
    await shell.session.end();
  }
  return { unasked, asked };
}

const told = ({ command, said }: Tried): string => `${command}\n${said}`;

function assertRan(tried: Tried): void {
  assert.equal(tried.asks, false, told(tried));
  assert.match(tried.said, AX_SAYS, told(tried));
}

const settingsOf = ({ world }: Fixture): string => readFileSync(join(world.home.configDir, 'settings.json'), 'utf8');

cell('the rules that ax writes let its two commands run unasked, and nothing beside them', async (fixture) => {
  const { ax, world } = fixture;
  world.home.settings({});
  await ax.person(world.b, ['agent', 'allow-rules', '--harness', 'claude'], /Write these lines\?/);
  const { allow } = JSON.parse(settingsOf(fixture)).permissions;
  assert.deepEqual(allow, [`Bash(${ax.program} messages fetch:*)`, `Bash(${ax.program} agent setup:*)`]);
  const same = join(dirname(ax.program), '..', 'bin', '..', 'bin', 'ax').replace('/bin/ax', '/bin/../bin/ax');
  const { unasked, asked } = await tryRows(fixture, 'whole-path', ax.program, ['ax', same]);
  await ax.person(world.b, ['agent', 'allow-rules', '--harness', 'claude', '--remove'], /Take these lines out\?/);
  // Claude Code has rewritten the file meanwhile.
  assert.doesNotMatch(settingsOf(fixture), /permissions|messages fetch/);
  return `${unasked.length} lines ran (any arguments, # note, 2>&1, | head, &&, timeout); ${asked.length} asked (send, ;, >, $(), &, cd, FOO=1, env, ax, ./ax ...)`;
});

cell('the rules for an ax on every PATH cover the bare word, and no path to it', async (fixture) => {
  const { ax, world } = fixture;
  world.home.settings({});
  const terminal = new Terminal(process.execPath, [CHILD, 'agent', 'allow-rules', '--harness', 'claude'], {
    env: world.b.env,
    cwd: world.b.home,
  });
  await terminal.until('Write these lines?');
  terminal.type(`${KEYS.left}${KEYS.enter}`);
  assert.equal((await terminal.ended).status, 0, terminal.history());
  assert.deepEqual(JSON.parse(settingsOf(fixture)).permissions.allow, ['Bash(ax messages fetch:*)', 'Bash(ax agent setup:*)']);
  const { unasked, asked } = await tryRows(fixture, 'bare-word', 'ax', [ax.program]);
  return `the same ${unasked.length} lines with the bare word ran; ${asked.length} asked, ./ax and the whole path among them`;
});

cell('what those rules leave free opens nothing: no file outside of the workspace, no other workspace', async (fixture) => {
  const { ax, world } = fixture;
  const workspace = world.workspace('free');
  const out = join(world.b.home, 'ax-out.txt');
  mkdirSync(join(workspace, '.claude'));
  world.home.settings({ permissions: { allow: [`Bash(${ax.program} messages fetch:*)`, `Bash(${ax.program} agent setup:*)`] } });
  const session = await world.home.session({ cwd: workspace });
  try {
    await world.untilListed(session.sessionId);
    const lines = (id: string): readonly string[] => [
      `${ax.program} agent setup --name root --workspace /`,
      `${ax.program} agent setup --name free --workspace ${workspace}`,
      `${ax.program} messages fetch ${id} --output ${out}`,
      `${ax.program} messages fetch ${id} --workspace / --output ${out}`,
      `${ax.program} messages fetch ${id} --output .claude/settings.json`,
    ];
    const id = await world.send(workspace);
    await world.untilTold(session.sessionId, id);
    await session.untilStatus('idle');
    const steps = lines(id).map((run) => ({ run }));
    const said = await runSteps(world.model, session.sessionId, () => session.say('try them'), steps);
    for (const [i, wanted] of [
      /^Exit code 1\nax: this session works in \S+, not in \/$/m,
      /^free is set up /m,
      /^Exit code 1\nax: inside an agent's shell --output stays in the workspace /,
      /^Exit code 1\nax: message \w+ is not for \/$/m,
      /^Exit code 1\nax: inside an agent's shell --output takes no hidden file or folder$/m,
    ].entries())
      assert.match(said[i] ?? '', wanted);
    assert.deepEqual([existsSync(out), existsSync(join(workspace, '.claude', 'settings.json'))], [false, false]);
    assert.equal((await world.a.status(id))['fetched_at'], null);
    return 'setup of another folder, --output outside of the workspace or hidden, --workspace /: ran unasked, and ax refused each';
  } finally {
    await session.end();
  }
});
