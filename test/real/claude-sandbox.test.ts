/**
 * ax inside the Bash sandbox of a genuine Claude Code: what it says there, and the ways out.
 *
 * The host of the sessions runs an ax that lies where no agent may write. Commands are tried in a session without a terminal; what concerns
 * notices and their fetch, in sessions on one. What the permission rules cover without a sandbox is in claude-rules.test.ts.
 */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, readlinkSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { boxPaths } from '../../protocol/box.ts';
import type { Json } from '../e2e/processes.ts';
import type { ClaudeSession } from './claude.ts';
import { obedient } from './claude-model.ts';
import { ClaudeShell, runSteps, type Tried } from './claude-shell.ts';
import { ClaudeWorld } from './claude-world.ts';
import { PINS } from './install.ts';
import { matrix, NotInstallable } from './matrix.ts';
import { SafeAx } from './safe-ax.ts';
import { assertSandboxed, NEED_DAEMON, NO_MESSAGE } from './sandboxed.ts';
import { needTools } from './tools.ts';

/** What a user sets who wants commands to run unasked in the sandbox; the second for places where the program cannot make the first. */
const SANDBOX = { enabled: true, autoAllowBashIfSandboxed: true };
const SANDBOXES: readonly Json[] = [SANDBOX, { ...SANDBOX, enableWeakerNestedSandbox: true }];
const REFUSED = /a sandbox around this shell lets no command connect to the daemon/;
const WAYS = ['agent allow-rules --harness claude', 'agent sandbox-fetch on', 'dangerouslyDisableSandbox'];
const HOST = readlinkSync('/proc/self/ns/net');

interface Fixture {
  readonly ax: SafeAx;
  readonly world: ClaudeWorld;
  /** The settings under which there is a sandbox. */
  readonly sandbox: Json;
  /** A session without a terminal in it. */
  readonly shell: ClaudeShell;
}

const cell = matrix<Fixture>('claude', import.meta.filename, {
  make: async (installed) => {
    needTools('bwrap', 'socat');
    const ax = new SafeAx();
    let world: ClaudeWorld | undefined;
    try {
      world = await ClaudeWorld.make(installed, ax);
      world.b.env['PATH'] = `${dirname(ax.program)}${delimiter}${String(world.b.env['PATH'])}`;
      return { ax, world, ...(await sandboxed(world)) };
    } catch (error) {
      await world?.end();
      ax.end();
      throw error;
    }
  },
  end: async ({ ax, world }) => {
    await world.end();
    ax.end();
  },
});

/** The first settings under which commands run in a sandbox. */
async function sandboxed(world: ClaudeWorld): Promise<{ sandbox: Json; shell: ClaudeShell }> {
  let place = '';
  for (const sandbox of SANDBOXES) {
    const shell = await shellWith(world, sandbox);
    place = await shell.say('readlink /proc/self/ns/net');
    assert.equal(place.includes(HOST), false, 'there is a sandbox');
    if (place.includes('net:[')) return { sandbox, shell };
    await shell.session.end();
  }
  throw new NotInstallable(`Claude Code cannot make its sandbox here: ${place.slice(0, 200).replaceAll('\n', ' ')}`);
}

async function shellWith(world: ClaudeWorld, sandbox: Json): Promise<ClaudeShell> {
  return ClaudeShell.start(world.home, world.workspace('shell'), { sandbox });
}

/** Commands of a script, one after the other or all at once: what each printed, and its exit status. */
async function runScript(
  run: (command: string) => Promise<string>,
  folder: string,
  commands: readonly string[],
  atOnce = false,
): Promise<readonly { said: string; status: number }[]> {
  const whole = commands.map((command, i) => `{ ${command}\n} >out-${i} 2>&1; echo "[status $?]" >>out-${i}`);
  writeFileSync(join(folder, 'all.sh'), `${whole.map((one) => (atOnce ? `{ ${one}; } &` : one)).join('\n')}\nwait\necho "all done"\n`);
  assert.match(await run('sh all.sh'), /^all done/m);
  return commands.map((_, i) => {
    const text = readFileSync(join(folder, `out-${i}`), 'utf8');
    return { said: text, status: Number(/\[status (\d+)\]\n$/.exec(text)?.[1]) };
  });
}

/** Runs one command in a session on a terminal; nothing may be asked. */
async function runIn(world: ClaudeWorld, session: ClaudeSession, command: string): Promise<string> {
  const [said] = await runSteps(world.model, session.sessionId, () => session.say('go on'), [{ run: command }]);
  await session.untilStatus('idle');
  return said ?? '';
}

/** A session in the sandbox that was set up, outside of it, by an approval of its user's. */
async function attached({ ax, world, sandbox }: Fixture, name: string): Promise<ClaudeSession> {
  const session = await world.session(name, { settings: { sandbox } });
  const run = `${ax.program} agent setup --name ${name} --workspace ${session.cwd}`;
  const approve = async (): Promise<void> => {
    await session.say('set it up');
    await session.answer('Do you want to proceed?', /Yes$/);
  };
  const [said] = await runSteps(world.model, session.sessionId, approve, [{ run, outside: true }]);
  assert.match(said ?? '', /is set up for claude/);
  await session.untilStatus('idle');
  return session;
}

const turnOn = ({ ax, world }: Fixture): Promise<string> => ax.person(world.b, ['agent', 'sandbox-fetch', 'on'], /Turn it on\?/);
const turnOff = ({ ax, world }: Fixture): Promise<string> => ax.person(world.b, ['agent', 'sandbox-fetch', 'off']);

cell(
  'inside the Bash sandbox every command that needs the daemon ends with exit 3, sandboxed, and names the ways out',
  async ({ ax, shell }) => {
    const run = (command: string): Promise<string> => shell.say(command);
    const lines = NEED_DAEMON.map((command) => `${ax.program} --format json ${command}`);
    for (const [i, { said, status }] of (await runScript(run, shell.cwd, lines)).entries())
      assertSandboxed(`ax ${NEED_DAEMON[i]}`, said, status, WAYS);
    assert.match(await run(`${ax.program} messages list`), REFUSED);
    return `${NEED_DAEMON.length} commands: exit 3, code sandboxed, one line with rules, pipe and escalation`;
  },
);

cell('of the settings of the sandbox only allowAllUnixSockets lets ax reach its daemon', async ({ ax, world, sandbox }) => {
  const list = `${ax.program} messages list`;
  const tryWith = async (more: Json): Promise<{ said: string; asks: boolean }> => {
    const shell = await shellWith(world, { ...sandbox, ...more });
    const [tried] = await shell.run(list);
    await shell.session.end();
    return tried ?? assert.fail('nothing ran');
  };
  const asking = await tryWith({ autoAllowBashIfSandboxed: false });
  assert.equal(asking.asks, true, asking.said);
  assert.match((await tryWith({ network: { allowUnixSockets: [world.b.socketPath] } })).said, REFUSED);
  assert.match((await tryWith({ network: { allowAllUnixSockets: true } })).said, /^no messages for /);
  return 'allowUnixSockets with the path of the socket: still sandboxed; allowAllUnixSockets: ax works; without autoAllowBashIfSandboxed: asked';
});

cell(
  'the rules that ax writes there let setup and fetch run outside unasked and no other command; where they would let a whole line out, none is written',
  async (fixture, { installed }) => {
    const { ax, world, sandbox } = fixture;
    const bin = join(world.home.configDir, 'bin');
    mkdirSync(bin);
    symlinkSync(installed.binary, join(bin, 'claude'));
    const path = { PATH: `${bin}${delimiter}${String(world.b.env['PATH'])}` };
    if (installed.version !== PINS.claude.newest) return leftInside(fixture, path);
    world.home.settings({ sandbox });
    const read = (): Json => JSON.parse(readFileSync(join(world.home.configDir, 'settings.json'), 'utf8')) as Json;
    let loose: readonly string[];
    try {
      const shown = await ax.person(world.b, ['agent', 'allow-rules', '--harness', 'claude'], /and outside of the sandbox/, path);
      assert.match(shown.replaceAll('\n', ''), /warning: .* 2\.1\.332 and newer; .*Write these lines\?/);
      const patterns = [`${ax.program} messages fetch:*`, `${ax.program} agent setup:*`];
      assert.deepEqual(read()['sandbox'], { ...sandbox, excludedCommands: patterns });
      assert.deepEqual(
        read()['permissions'].allow,
        patterns.map((pattern) => `Bash(${pattern})`),
      );
      const session = await world.session('ruled');
      loose = await tryLines(fixture);
      const ran: string[] = [];
      world.model.script(session.sessionId, obedient(ran));
      await world.status(await world.send(session.cwd), { state: 'fetched' });
      assert.deepEqual(
        ran.map((command) => command.split(' ').slice(1, 3).join(' ')),
        ['agent setup', 'messages fetch'],
      );
      await session.end();
      await ax.person(world.b, ['agent', 'allow-rules', '--harness', 'claude', '--remove'], /Take these lines out\?/);
      assert.deepEqual([read()['sandbox'], read()['permissions']], [sandbox, undefined]);
    } finally {
      world.home.settings({});
    }
    assert.deepEqual(loose, []);
    return 'a notice was obeyed outside, unasked: fetched; send, list, && send, ./ax, another path: inside or asked, | head, | sh, cd, > too';
  },
);

/** For a version that is older than what ax trusts: the permissions alone are written, and the pipe is named. */
async function leftInside({ ax, world, sandbox }: Fixture, path: NodeJS.ProcessEnv): Promise<string> {
  world.home.settings({ sandbox });
  const read = (): Json => JSON.parse(readFileSync(join(world.home.configDir, 'settings.json'), 'utf8')) as Json;
  try {
    const shown = await ax.person(world.b, ['agent', 'allow-rules', '--harness', 'claude'], /then run unasked/, path);
    assert.match(shown.replaceAll('\n', ''), /warning: the two commands stay inside of the sandbox: .*agent sandbox-fetch on/);
    assert.deepEqual(read()['sandbox'], sandbox, 'nothing is excluded');
    assert.equal(read()['permissions'].allow.length, 2);
    await ax.person(world.b, ['agent', 'allow-rules', '--harness', 'claude', '--remove'], /Take these lines out\?/);
    assert.deepEqual([read()['sandbox'], read()['permissions']], [sandbox, undefined]);
  } finally {
    world.home.settings({});
  }
  return 'it would let the whole line out with a fetch in it: nothing was excluded, and the pipe was named instead';
}

/** Where each line runs under those rules; gives what runs outside as a whole because a fetch is part of it. */
async function tryLines({ ax, world }: Fixture): Promise<readonly string[]> {
  const shell = await ClaudeShell.start(world.home, world.workspace('lines'));
  const where = `echo "ran in $(readlink /proc/self/ns/net)"`;
  writeFileSync(join(shell.cwd, 'ax'), `#!/bin/sh\n${where}\n`, { mode: 0o755 });
  const fetch = `${ax.program} messages fetch`;
  const plain = `${fetch} ${NO_MESSAGE}`;
  const send = `${ax.program} send --to a@hosta hi`;
  const outside = [
    plain,
    `${plain} # a note`,
    `${fetch} --workspace '/path with space' ${NO_MESSAGE}`,
    `${plain} && ${plain}`,
    `${ax.program} agent setup --name lines --workspace ${shell.cwd}`,
  ];
  /** What is none of the two commands, alone or beside one of them. */
  const never = [
    `${plain} && ${send}`,
    `${plain}; ${send}`,
    `${plain}\n${send}`,
    `${plain}; ./ax`,
    `./ax messages fetch ${NO_MESSAGE}`,
    `bash -c "${plain}"`,
    `ax messages fetch ${NO_MESSAGE}`,
    `${dirname(ax.program)}/../bin/ax messages fetch ${NO_MESSAGE}`,
    `${ax.program} --state-dir ${world.b.stateDir} messages fetch ${NO_MESSAGE}`,
    `${ax.program} messages list`,
    send,
    `FOO=1 ${plain}`,
    `PATH=.:$PATH ${plain}`,
    `env ${plain}`,
    `${plain} &`,
  ];
  /** A fetch and what is harmless, or is taken for it. */
  const beside = ['| head', '| sh', `| sh -c '${where}'`, '> out.txt; cat out.txt', '; readlink /proc/self/ns/net'].map(
    (rest) => `${plain} ${rest}`,
  );
  const tried = await shell.run(...outside, ...never, ...beside, `cd . && ${plain}`);
  const isOutside = ({ said, asks }: Tried): boolean =>
    !asks && (/there is no message|is set up for claude/.test(said) || said.includes(HOST));
  assert.deepEqual(
    tried
      .filter(isOutside)
      .map(({ command }) => command)
      .filter((command) => never.includes(command)),
    [],
  );
  for (const one of tried.slice(0, outside.length)) assert.equal(isOutside(one), true, `${one.command}\n${one.said}`);
  for (const { command, said, asks } of tried.filter((one) => !isOutside(one)))
    assert.ok(asks || REFUSED.test(said) || said.includes('ran in net:'), `${command}\n${said}`);
  const { messages } = await world.b.ok(['messages', 'list', '--sent', '-a']);
  assert.deepEqual(messages, [], 'nothing was sent');
  await shell.session.end();
  const rest = tried.slice(outside.length + never.length).filter(isOutside);
  return rest.map(({ command }) => command.replace(plain, '').replace(/'.*'/, '...').trim());
}

cell('with the pipe turned on by a person, the fetch of a notice works inside the sandbox, unasked', async (fixture) => {
  const { ax, world } = fixture;
  assert.match(await turnOn(fixture), /on: sandboxed sessions can fetch through/);
  try {
    const session = await attached(fixture, 'piped');
    const ran: string[] = [];
    world.model.script(session.sessionId, obedient(ran));
    const id = await world.sendQuickly(session.cwd, 'through the pipe');
    await world.status(id, { state: 'fetched' });
    await session.untilStatus('idle');
    assert.equal(ran.length, 1);
    assert.match(ran[0] ?? '', new RegExp(` messages fetch ${id} .*--code [0-9a-f]{32}$`));
    assert.match(world.model.of(session.sessionId).at(-1)?.results[0] ?? '', /through the pipe/);
    const other = await runIn(world, session, `${ax.program} messages list; ${ax.program} send --to a@hosta hi; echo "status $?"`);
    assert.match(other, /^status 3$/m, 'nothing but fetch');
    await session.end();
  } finally {
    await turnOff(fixture);
  }
  return 'set up once by an approval; the notice carries a code, its fetch ran inside, the sender reads fetched; list and send stay refused';
});

cell('the pipe cannot be moved, replaced or misused from inside the sandbox', async (fixture) => {
  const { world, shell } = fixture;
  await turnOn(fixture);
  const { folder, requests, answers } = boxPaths(world.b.stateDir);
  const facts = (): readonly unknown[] => [statSync(requests).ino, statSync(requests).mode, readdirSync(folder).toSorted()];
  try {
    const before = facts();
    const target = await attached(fixture, 'target');
    await attack(fixture);
    assert.deepEqual(facts(), before);
    const [id, other] = await Promise.all([
      world.sendQuickly(target.cwd, 'for the target only'),
      world.sendQuickly(shell.cwd, 'for another folder'),
    ]);
    await world.untilTold(target.sessionId, id);
    await target.untilStatus('idle');
    const fetch = / messages fetch .*--code [0-9a-f]{32}$/m.exec(world.model.of(target.sessionId).at(-1)?.news ?? '')?.[0] ?? '';
    const right = `${fixture.ax.program}${fetch}`;
    // Rubbish first; and the right code in the right session's name, while that one is idle.
    const forged = `printf '\\n1 fetch %032d ${target.sessionId} ${id} %032d\\nhalf a line' 1 2 > ${requests}; head -c 100000 /dev/zero > ${requests}`;
    const nobody = [`${forged}; false`, `CLAUDE_CODE_SESSION_ID=${target.sessionId} ${right}`];
    const refused = async (run: (command: string) => Promise<string>, cwd: string, lines: readonly string[]): Promise<void> => {
      for (const { said, status } of await runScript(run, cwd, lines, true)) {
        assert.notEqual(status, 0, said);
        assert.doesNotMatch(said, /for the target only|for another folder/);
      }
      const { handed_out_at, state } = await world.b.status(id);
      assert.deepEqual([handed_out_at, state], [null, 'available']);
    };
    const inTarget = (command: string): Promise<string> => runIn(world, target, command);
    const inShell = (command: string): Promise<string> => shell.say(command);
    await refused(inShell, shell.cwd, nobody);
    // While it works: a wrong code, the id of another message, no code; and the right line in a session that was not told.
    const wrong = [right.replace(/.{4}$/, '0000'), right.replace(id, other), right.replace(/ --code .*/, '')];
    await Promise.all([refused(inTarget, target.cwd, wrong), refused(inShell, shell.cwd, [right])]);
    // Who reads the pipe meanwhile gets requests, and delays the answer.
    const [thief, served] = await runScript(inTarget, target.cwd, [`timeout 2 cat ${requests}`, right], true);
    assert.doesNotMatch(thief?.said ?? '', /for the target only/);
    assert.deepEqual([served?.status, served?.said.includes('for the target only')], [0, true], served?.said);
    await world.status(id, { state: 'fetched' });
    await target.end();
  } finally {
    await turnOff(fixture);
  }
  assert.throws(() => statSync(requests), { code: 'ENOENT' });
  assert.throws(() => statSync(answers), { code: 'ENOENT' });
  return 'read-only for the sandbox; rubbish is dropped; a wrong code, another id, another or an idle session: nothing; a reader of the pipe delays';
});

/** Everything that would put something else in the pipe's place, tried from the shell. */
async function attack({ world, shell }: Fixture): Promise<void> {
  const { folder, requests, answers } = boxPaths(world.b.stateDir);
  const attacks = [
    `unlink ${requests}`,
    `mv ${requests} ${requests}2`,
    `mv ${folder} ${folder}2`,
    `chmod 666 ${requests}`,
    `chmod 777 ${answers}`,
    `touch ${answers}/x`,
    `mkdir ${answers}/x`,
    `mv ${answers} ${answers}2`,
    `ln -s ${world.b.stateDir} ${answers}/x`,
    `ln ${requests} ${answers}/x`,
    `ln ${requests} linked`,
    `unshare -Ur unlink ${requests}`,
    `unshare -Urm sh -c 'mount -o remount,rw ${world.b.home}; unlink ${requests}'`,
  ];
  for (const [i, { said, status }] of (await runScript((command) => shell.say(command), shell.cwd, attacks)).entries()) {
    assert.notEqual(status, 0, `${attacks[i]}: ${said}`);
    assert.match(said, /Read-only file system|cross-device|not permitted/, `${attacks[i]}: ${said}`);
  }
}
