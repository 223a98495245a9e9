/**
 * The Bash tool of a genuine Claude Code as its model sees it: command lines in, and what came of each.
 *
 * In a session without a terminal what would ask its user comes back as an error, since nobody can answer: `ClaudeShell` tells that apart.
 * Owns the order of the commands. Knows neither ax nor the sandbox.
 */
import assert from 'node:assert/strict';
import { until } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import type { ClaudeHome, ScriptSession } from './claude.ts';
import type { ClaudeModel, Step } from './claude-model.ts';

/** One command and what its tool said. */
export interface Tried {
  readonly command: string;
  readonly said: string;
  /** It would have asked the user: it did not run. */
  readonly asks: boolean;
}

/** For all commands of one turn, ms. */
const LIMIT_MS = 80_000;

/** A session's model runs the commands one after the other, once its user has said something; gives what the tool said of each. */
export async function runSteps(
  model: ClaudeModel,
  sessionId: string,
  say: () => unknown,
  steps: readonly Step[],
): Promise<readonly string[]> {
  const said: string[] = [];
  const queue = [...steps];
  let isOver = false;
  model.script(sessionId, ({ results }) => {
    said.push(...results);
    const next = queue.shift();
    isOver ||= next === undefined;
    return next ?? { say: 'done' };
  });
  await say();
  await until('the commands to end', async () => isOver || `${said.length} of ${steps.length} ran: ${said.at(-1)}`, LIMIT_MS);
  assert.equal(said.length, steps.length, said.join('\n'));
  return said;
}

export class ClaudeShell {
  readonly session: ScriptSession;
  readonly sessionId: string;
  readonly cwd: string;
  readonly #home: ClaudeHome;

  private constructor(home: ClaudeHome, session: ScriptSession, cwd: string) {
    this.#home = home;
    this.session = session;
    this.cwd = cwd;
    this.sessionId = session.record()?.sessionId ?? assert.fail(session.said);
  }

  /** `settings` count on top of the user's. Ends with its home, or by `session.end()`. */
  static async start(home: ClaudeHome, cwd: string, settings: Json = {}): Promise<ClaudeShell> {
    return new ClaudeShell(home, await home.script(cwd, ['--settings', JSON.stringify(settings)]), cwd);
  }

  /** Runs the commands in one turn of the user's. */
  async run(...commands: readonly string[]): Promise<readonly Tried[]> {
    const before = this.session.results().length;
    const steps = commands.map((run) => ({ run }));
    const said = await runSteps(this.#home.model, this.sessionId, () => this.session.say('go on'), steps);
    await until('the turn to end', async () => this.session.results().length > before || this.session.said.slice(-1000));
    // What it refuses because nobody can be asked it counts itself, by the words of the command.
    const denials = (this.session.results().at(-1)?.['permission_denials'] ?? []) as readonly Json[];
    const denied = new Set(denials.map((denial) => String(denial['tool_input']['command'])));
    return commands.map((command, i) => ({ command, said: said[i] ?? '', asks: denied.has(command) }));
  }

  /** The same for one command: what it printed. It must not ask. */
  async say(command: string): Promise<string> {
    const [tried] = await this.run(command);
    assert.equal(tried?.asks, false, `${command}: ${tried?.said}`);
    return tried?.said ?? '';
  }
}
