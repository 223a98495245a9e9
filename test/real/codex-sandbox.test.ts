/**
 * ax inside the sandbox of a genuine Codex, in both of its modes: what it says there, and the ways out.
 *
 * The host of the Codex runs an ax that lies where no agent may write, and its home lies outside of /tmp, which one mode may write. The forms
 * of rules that Codex knows are in codex-rules.test.ts.
 */
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, readlinkSync, statSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { boxPaths } from '../../protocol/box.ts';
import { CodexBed } from './codex-bed.ts';
import type { ThreadOptions } from './codex-daemon.ts';
import type { Installed } from './install.ts';
import { matrix, NotInstallable } from './matrix.ts';
import { SafeAx } from './safe-ax.ts';
import { assertSandboxed, NEED_DAEMON } from './sandboxed.ts';

process.env['TMPDIR'] = '/var/tmp';

/** What the refusal names. */
const WAYS = ['agent allow-rules --harness codex', 'agent sandbox-fetch on', 'require_escalated'];
const MODES = ['workspace-write', 'read-only'] as const;
const asks = (sandbox: (typeof MODES)[number]): ThreadOptions => ({ sandbox, approvalPolicy: 'on-request' });

interface Fixture {
  readonly bed: CodexBed;
  readonly ax: SafeAx;
  readonly installed: Installed;
}

const cell = matrix<Fixture>('codex', import.meta.filename, {
  make: async (installed) => {
    const ax = new SafeAx();
    let bed: CodexBed | undefined;
    try {
      bed = await CodexBed.make(installed, { ax, config: [] });
      const { thread } = await bed.thread('probe', asks('read-only'));
      const place = await run(bed, thread, 'readlink /proc/self/ns/net');
      assert.equal(place.includes(readlinkSync('/proc/self/ns/net')), false, 'there is a sandbox');
      if (!place.includes('net:['))
        throw new NotInstallable(`Codex cannot make its sandbox here: ${place.slice(-200).replaceAll('\n', ' ')}`);
      return { bed, ax, installed };
    } catch (error) {
      await bed?.end();
      ax.end();
      throw error;
    }
  },
  end: async ({ bed, ax }) => {
    await bed.end();
    ax.end();
  },
});

/** What a command prints that the thread's model runs in a turn of its user's; nothing is asked. */
async function run(bed: CodexBed, thread: string, command: string): Promise<string> {
  bed.model.script(thread, { run: command }, { say: 'done' });
  assert.equal(await bed.owner.runTurn(thread, 'run it'), 'completed');
  assertUnasked(bed, thread);
  const ran = bed.model.runs.findLast((one) => one.thread === thread);
  assert.equal(ran?.command, command);
  return ran?.output ?? '';
}

/** What the last command of a thread printed; the threads of both modes are at work at the same time. */
const lastOf = (bed: CodexBed, thread: string): string => bed.model.runs.findLast((one) => one.thread === thread)?.output ?? '';

function assertUnasked(bed: CodexBed, thread: string): void {
  const asked = bed.owner.asked.filter((one) => one['params']['threadId'] === thread);
  assert.deepEqual(asked, [], 'nothing was asked');
}

/** Commands of one script: Codex cuts what is longer than its model would read. */
const AT_ONCE = 8;

/** The same for many commands, one after the other: what each printed, and its exit status. */
async function runAll(bed: CodexBed, thread: string, commands: readonly string[]): Promise<readonly { said: string; status: number }[]> {
  const outcomes: { said: string; status: number }[] = [];
  for (let at = 0; at < commands.length; at += AT_ONCE) {
    const some = commands.slice(at, at + AT_ONCE);
    const output = await run(bed, thread, some.map((command) => `${command}\necho "[status $?]"`).join('\n'));
    const parts = output.slice(output.indexOf('Output:\n') + 8).split(/^\[status (\d+)\]\n/m);
    assert.equal(parts.length, some.length * 2 + 1, output);
    for (const i of some.keys()) outcomes.push({ said: parts[i * 2] ?? '', status: Number(parts[i * 2 + 1]) });
  }
  return outcomes;
}

/** A person at a terminal, where `codex` is on the PATH, says yes to what ax asks; gives what the terminal showed. */
async function atTerminal({ bed, ax, installed }: Fixture, args: readonly string[], question?: RegExp): Promise<string> {
  return ax.person(bed.b, args, question, { PATH: `${dirname(installed.binary)}${delimiter}${String(bed.b.env['PATH'])}` });
}

const turnOff = (fixture: Fixture): Promise<string> => atTerminal(fixture, ['agent', 'sandbox-fetch', 'off']);

/** A thread that is set up, its first message fetched: by an approval of its user's, outside of the sandbox. */
async function attached({ bed, ax }: Fixture, name: string, mode: ThreadOptions): Promise<{ workspace: string; thread: string }> {
  const { workspace, thread } = await bed.thread(name, mode);
  const setup = `${ax.program} agent setup --name ${name} --workspace ${workspace}`;
  bed.model.script(thread, { run: setup, escalate: 'to set up the mailbox' }, { say: 'done' });
  const turn = await bed.owner.startTurn(thread, 'set it up');
  assert.match(String((await bed.owner.approve(thread))['command']), / agent setup /);
  assert.equal(await bed.owner.turnEnd(thread, turn), 'completed');
  assert.match(lastOf(bed, thread), /exited with code 0/);
  return { workspace, thread };
}

cell('inside the sandbox every command that needs the daemon ends with exit 3, sandboxed, and names the ways out', async ({ bed, ax }) => {
  const tryIn = async (mode: (typeof MODES)[number]): Promise<void> => {
    const { thread } = await bed.thread(`closed-${mode}`, asks(mode));
    const outcomes = await runAll(
      bed,
      thread,
      NEED_DAEMON.map((command) => `${ax.program} --format json ${command}`),
    );
    for (const [i, { said, status }] of outcomes.entries()) assertSandboxed(`${mode}: ax ${NEED_DAEMON[i]}`, said, status, WAYS);
    const human = await run(bed, thread, `${ax.program} messages list; echo "status $?"`);
    assert.match(human, /a sandbox around this shell lets no command connect/);
    // Codex hides what looks like a denial by the system from whoever reads the thread's history.
    assert.doesNotMatch(human, /permission denied|operation not permitted/i);
    // The variable is set outside too, where a rule or an approval lets a command run: the system's answer decides, never the variable.
    assert.match(await run(bed, thread, `env -u CODEX_SANDBOX_NETWORK_DISABLED ${ax.program} host id; echo "status $?"`), /^status 3$/m);
  };
  await Promise.all(MODES.map(tryIn));
  return `${NEED_DAEMON.length} commands in workspace-write and in read-only: exit 3, code sandboxed, one line with rule, pipe and escalation`;
});

cell('an approval of its user lets one command run outside', async (fixture) => {
  const { bed, ax } = fixture;
  const tryIn = async (mode: (typeof MODES)[number]): Promise<void> => {
    const { workspace, thread } = await attached(fixture, `approved-${mode}`, asks(mode));
    const id = await bed.send(workspace, 'by approval');
    await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
    await bed.untilTurns(thread, 3);
    const fetch = `${ax.program} messages fetch ${id} --workspace ${workspace}`;
    bed.model.script(thread, { run: fetch, escalate: 'to read the message' }, { say: 'read it' });
    const turn = await bed.owner.startTurn(thread, 'read it');
    await bed.owner.approve(thread);
    assert.equal(await bed.owner.turnEnd(thread, turn), 'completed');
    assert.match(lastOf(bed, thread), /by approval/);
    await bed.a.untilStatus(id, { state: 'fetched' });
  };
  await Promise.all(MODES.map(tryIn));
  return 'setup and fetch with require_escalated, each approved once, in both modes: fetched';
});

cell('with the pipe turned on by a person, the fetch of a notice works inside both sandboxes, unasked', async (fixture) => {
  const { bed, ax } = fixture;
  const text = await atTerminal(fixture, ['agent', 'sandbox-fetch', 'on'], /Turn it on\?/);
  assert.match(text, /on: sandboxed sessions can fetch through/);
  try {
    const tryIn = async (mode: (typeof MODES)[number]): Promise<void> => {
      const { workspace, thread } = await attached(fixture, `pipe-${mode}`, asks(mode));
      bed.model.obeying.add(thread);
      const id = await bed.send(workspace, `through the pipe in ${mode}`);
      await bed.a.untilStatus(id, { state: 'fetched' });
      await bed.owner.untilStatus(thread, 'idle');
      const ran = bed.model.runs.findLast((one) => one.thread === thread);
      assert.match(ran?.command ?? '', new RegExp(` messages fetch ${id} .*--code [0-9a-f]{32}$`));
      assert.match(ran?.output ?? '', new RegExp(`through the pipe in ${mode}`));
      assertUnasked(bed, thread);
      const other = await run(bed, thread, `${ax.program} messages list; ${ax.program} send --to a@hosta hi; echo "status $?"`);
      assert.match(other, /^status 3$/m, 'nothing but fetch');
    };
    await Promise.all(MODES.map(tryIn));
  } finally {
    await turnOff(fixture);
  }
  return 'workspace-write and read-only: the notice carries a code, its fetch ran inside, the sender reads fetched; list and send stay refused';
});

cell('the pipe cannot be moved, replaced or misused from inside', async (fixture) => {
  const { bed } = fixture;
  await atTerminal(fixture, ['agent', 'sandbox-fetch', 'on'], /Turn it on\?/);
  const { folder, requests, answers } = boxPaths(bed.b.stateDir);
  const facts = (): readonly unknown[] => [statSync(requests).ino, statSync(requests).mode, readdirSync(folder).toSorted()];
  const before = facts();
  try {
    const tryIn = async (mode: (typeof MODES)[number]): Promise<void> => {
      const { workspace, thread } = await attached(fixture, `target-${mode}`, asks(mode));
      const { thread: attacker } = await attached(fixture, `attacker-${mode}`, asks(mode));
      const attacks = [
        `unlink ${requests}`,
        `mv ${requests} ${requests}2`,
        `mv ${folder} ${folder}2`,
        `chmod 666 ${requests}`,
        `mkdir ${answers}/x`,
        `ln -s ${bed.b.stateDir} ${answers}/x`,
        `ln ${requests} ${answers}/x`,
        `unshare -Ur unlink ${requests}`,
      ];
      const outcomes = await runAll(
        bed,
        attacker,
        attacks.map((attack) => `${attack} 2>&1`),
      );
      for (const [i, { said, status }] of outcomes.entries()) {
        assert.notEqual(status, 0, `${mode}: ${attacks[i]}: ${said}`);
        assert.match(said, /Read-only file system|cross-device|Operation not permitted/, `${mode}: ${attacks[i]}`);
      }
      assert.deepEqual(facts(), before);
      const id = await bed.send(workspace, 'for the target only');
      await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
      const notice = (await bed.untilTurns(thread, 3)).at(-1)?.text ?? '';
      const fetch = notice.split('\n').at(-1) ?? '';
      assert.match(fetch, /--code [0-9a-f]{32}$/);
      const forged = `printf '\\n1 fetch %032d ${thread} ${id} %032d\\nrubbish half a line' 1 2 > ${requests}; head -c 100000 /dev/zero > ${requests}`;
      await run(bed, attacker, `${forged}; echo done`);
      // Even with the right code: another thread, and the right thread's name while that one is idle.
      for (const { said, status } of await runAll(bed, attacker, [fetch, `CODEX_THREAD_ID=${thread} ${fetch}`])) {
        assert.notEqual(status, 0, `${mode}: ${said}`);
        assert.equal(said.includes('for the target only'), false);
      }
      assert.deepEqual([(await bed.b.status(id))['handed_out_at'], (await bed.a.status(id))['state']], [null, 'accepted']);
      assert.match(await run(bed, thread, fetch), /for the target only/);
      await bed.a.untilStatus(id, { state: 'fetched' });
    };
    await Promise.all(MODES.map(tryIn));
  } finally {
    await turnOff(fixture);
  }
  assert.throws(() => statSync(requests), { code: 'ENOENT' });
  return 'read-only for the sandbox; rubbish and forged lines are dropped; the code serves its thread only, and only while that one works';
});

cell('with the installed rules setup and fetch run outside unasked, and nothing else does', async (fixture) => {
  const { bed, ax } = fixture;
  const shown = await atTerminal(fixture, ['agent', 'allow-rules', '--harness', 'codex'], /Write these lines\?/);
  assert.match(shown, /checked with `codex execpolicy check`/);
  const file = join(bed.b.home, '.codex', 'rules', 'ax.rules');
  assert.match(
    readFileSync(file, 'utf8'),
    new RegExp(`prefix_rule\\(pattern=\\["${ax.program}", "messages", "fetch"\\], decision="allow"\\)`),
  );
  const tryIn = async (mode: (typeof MODES)[number]): Promise<void> => {
    const { workspace, thread } = await bed.thread(`ruled-${mode}`, asks(mode));
    bed.model.obeying.add(thread);
    const id = await bed.send(workspace, `by rule in ${mode}`);
    await bed.a.untilStatus(id, { state: 'fetched' });
    await bed.owner.untilStatus(thread, 'idle');
    assertUnasked(bed, thread);
    const [setup, fetch] = bed.model.runs.filter((one) => one.thread === thread);
    assert.match(setup?.command ?? '', / agent setup /);
    assert.match(fetch?.output ?? '', new RegExp(`by rule in ${mode}`));
    // A pipe, a second command, another verb: inside.
    const plain = `${ax.program} messages fetch ${id} --workspace ${workspace}`;
    for (const line of [`${plain} | cat`, `${ax.program} send --to a@hosta hi`, `cd . && ${plain}`, `${ax.program} messages list`])
      assert.match(await run(bed, thread, line), /a sandbox around this shell/, `${mode}: ${line}`);
    // Programs of that name which an agent made.
    const script = join(bed.b.home, 'tmp', mode, 'ax');
    mkdirSync(dirname(script), { recursive: true });
    writeFileSync(script, '#!/bin/sh\necho "ran in $(readlink /proc/self/ns/net)"\n', { mode: 0o755 });
    copyFileSync(script, join(workspace, 'ax'));
    for (const escape of ['./ax', script, `../ruled-${mode}/ax`]) {
      const output = await run(bed, thread, `${escape} messages fetch 1`);
      assert.match(output, /ran in net:/, output);
      assert.equal(output.includes(readlinkSync('/proc/self/ns/net')), false, `${mode}: ${escape} ran outside`);
    }
  };
  await Promise.all(MODES.map(tryIn));
  await atTerminal(fixture, ['agent', 'allow-rules', '--harness', 'codex', '--remove'], /Take these lines out\?/);
  assert.throws(() => statSync(file), { code: 'ENOENT' });
  return 'workspace-write and read-only: setup and fetch outside, fetched; send, list, pipes, cd, ./ax and a copy in TMPDIR inside; --remove takes it back';
});
