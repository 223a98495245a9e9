/** The Claude Code adapter keeps the rules of the harness seam against genuine sessions, as it does against the stand-in. */
import { mkdirSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { until } from '../e2e/hosts.ts';
import { harnessContract, type HarnessRig, type RigBehaviour, type RigSession } from '../contract/harness.ts';
import { ClaudeRig } from '../daemon/harness/rig.ts';
import { ClaudeHome, type ClaudeSession, type SessionOptions } from './claude.ts';
import { ClaudeModel, type Step } from './claude-model.ts';
import type { Installed } from './install.ts';
import { matrix } from './matrix.ts';

const cell = matrix('claude', import.meta.filename);

const OPTIONS: Record<RigBehaviour, Omit<SessionOptions, 'cwd'>> = {
  acts: {},
  holds: { settings: { crossSessionInbound: 'hold' } },
  approves: { mode: 'bypassPermissions' },
  denies: { mode: 'bypassPermissions' },
  lapses: { mode: 'bypassPermissions', env: { CLAUDE_CODE_USER_DIALOG_TIMEOUT_MS: '1000' } },
  blocks: { settings: { crossSessionInbound: 'refuse' } },
};
/** What its user chooses in the dialog about a held message. */
const CHOICES: Partial<Record<RigBehaviour, RegExp>> = { approves: /Deliver this/, denies: /Deny/ };
const NOTICE = /<cross-session-message from-name="ax">\n([\s\S]*?)\n<\/cross-session-message>/g;

harnessContract<Installed>(
  'the rules of the seam',
  { taken: 'written', afterwards: [], hasReceipts: true, hasClear: true, exports: ['pid', 'socket'] },
  makeRig,
  (title, body) =>
    cell(
      title,
      async (_fixture, { installed }) => {
        await body(installed);
        return 'kept';
      },
      { isShown: false },
    ),
);

async function makeRig(installed: Installed): Promise<HarnessRig> {
  const rig = await new ClaudeRig().start();
  const model = await ClaudeModel.start();
  const runtime = join(rig.dir, 'r');
  mkdirSync(runtime, { mode: 0o700 });
  const env = { PATH: process.env['PATH'], HOME: rig.dir, CLAUDE_CONFIG_DIR: rig.configDir, XDG_RUNTIME_DIR: runtime, LANG: 'C.UTF-8' };
  const home = new ClaudeHome(installed, { home: rig.dir, env }, model);
  return {
    harness: rig.harness,
    lists: rig.lists,
    notices: rig.notices,
    add: async (behaviour) => {
      const cwd = join(rig.dir, `w${home.sessions.length}`);
      mkdirSync(cwd);
      const session = await home.session({ ...OPTIONS[behaviour], cwd });
      const choice = CHOICES[behaviour];
      // Its user answers when the dialog comes; a rule in which none comes ends the session before.
      if (choice !== undefined) void session.answer('Held message from another session', choice).catch(() => undefined);
      return new Genuine(session, model);
    },
    until: (check, what) => rig.until(check, what),
    drive: (work) => work,
    stop: async () => {
      await home.end();
      await model.stop();
      await rig.stop();
    },
  };
}

class Genuine implements RigSession {
  readonly workspace: string;
  readonly processKey: string;
  readonly #session: ClaudeSession;
  readonly #model: ClaudeModel;
  #last: { readonly id: string; readonly socket: string };
  #answer: ((step: Step) => void) | undefined;
  #barriers = 0;

  constructor(session: ClaudeSession, model: ClaudeModel) {
    const { pid, procStart } = session.record;
    this.workspace = session.cwd;
    this.processKey = `${pid}:${procStart}`;
    this.#session = session;
    this.#model = model;
    this.#last = { id: session.sessionId, socket: session.record.messagingSocketPath ?? '' };
  }

  sessionId(): string {
    return this.#last.id;
  }

  claim(): ReturnType<RigSession['claim']> {
    return { harness: 'claude', sessionId: this.#last.id, pid: this.#session.pid, socket: this.#last.socket };
  }

  /** What stood before a message of our own that comes after all others. */
  async received(): Promise<readonly string[]> {
    const barrier = `barrier ${(this.#barriers += 1)}`;
    const line = JSON.stringify({ type: 'user', message: { role: 'user', content: barrier } });
    connect(this.#last.socket).end(`${line}\n`).resume();
    await until('the barrier', async () => (this.#model.count(this.#last.id, barrier) > 0 ? true : 'not there'));
    return this.#model.of(this.#last.id).flatMap((turn) => [...turn.news.matchAll(NOTICE)].map((match) => match[1] ?? ''));
  }

  async setStatus(status: 'idle' | 'busy' | 'waiting'): Promise<void> {
    if (status === 'busy') {
      this.#model.script(this.#last.id, () => new Promise((resolve) => (this.#answer = resolve)));
      await this.#session.say('go on');
      await until('a turn', async () => (this.#answer === undefined ? 'none' : true));
    } else if (status === 'waiting') {
      this.#answer?.({ run: 'touch made-it' });
    } else {
      this.#model.script(this.#last.id, () => ({ say: 'ok' }));
      await this.#session.answer('Do you want to proceed?', /Yes$/);
    }
    await this.#session.untilStatus(status);
  }

  async clear(): Promise<void> {
    this.#last = { ...this.#last, id: await this.#session.clear() };
  }

  end(): Promise<void> {
    return this.#session.end();
  }

  crash(): Promise<void> {
    return this.#session.kill9();
  }
}
