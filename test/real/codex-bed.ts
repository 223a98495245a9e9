/**
 * What the cells of a genuine Codex share: two paired hosts, a genuine app-server on the second one, its model, and its user's client.
 *
 * Owns the making and the end of these, and the few questions every cell asks. Each cell takes a workspace and threads of its own.
 */
import assert from 'node:assert/strict';
import { Bed, until } from '../e2e/hosts.ts';
import type { Host } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import type { SafeAx } from './safe-ax.ts';
import { CodexServer, type CodexClient, type CodexSetup } from './codex-daemon.ts';
import { CodexModel } from './codex-model.ts';
import type { Installed } from './install.ts';

export interface CodexBedOptions {
  /** Lines of config.toml instead of the usual ones: no approvals, no sandbox, idle threads nobody watches are unloaded after 1 s. */
  readonly config?: readonly string[];
  /** The ax that the host of the Codex runs; the project's own when left out. */
  readonly ax?: SafeAx;
  /** Workspaces the terminal asks no question about. */
  readonly trusted?: readonly string[];
}

const CONFIG = ['approval_policy = "never"', 'sandbox_mode = "danger-full-access"', 'thread_unload_delay_secs = 1'];

export class CodexBed {
  readonly bed: Bed;
  /** The sender's host. */
  readonly a: Host;
  /** The host of the Codex. */
  readonly b: Host;
  readonly model: CodexModel;
  readonly server: CodexServer;
  /** The user of the Codex; replaced by `reopen`. */
  owner: CodexClient;

  private constructor(bed: Bed, a: Host, b: Host, model: CodexModel, server: CodexServer, owner: CodexClient) {
    this.bed = bed;
    this.a = a;
    this.b = b;
    this.model = model;
    this.server = server;
    this.owner = owner;
  }

  static async make(installed: Installed, options: CodexBedOptions = {}): Promise<CodexBed> {
    const bed = new Bed();
    const model = await CodexModel.start();
    let server: CodexServer | undefined;
    try {
      const [a, b] = options.ax === undefined ? await bed.pair() : await options.ax.pair(bed);
      const trusted = (options.trusted ?? []).map((name) => b.workspace(name));
      const setup: CodexSetup = { program: installed.binary, home: b.home, model: model.url, trusted, config: options.config ?? CONFIG };
      server = new CodexServer(setup);
      await server.start();
      return new CodexBed(bed, a, b, model, server, await server.client());
    } catch (error) {
      await server?.end();
      await model.stop();
      await bed.end();
      throw error;
    }
  }

  async end(): Promise<void> {
    await this.server.end();
    await this.model.stop();
    await this.bed.end();
    assert.deepEqual(this.model.faults, [], 'the model understood every request');
  }

  /** Starts the app-server again after a stop or a kill, with a new client for its user. */
  async reopen(): Promise<void> {
    await this.server.start();
    this.owner = await this.server.client();
  }

  /** A workspace with one thread in it that has had one turn of its user's. */
  async thread(name: string, options: Parameters<CodexClient['startThread']>[1] = {}): Promise<{ workspace: string; thread: string }> {
    const workspace = this.b.workspace(name);
    const thread = await this.owner.startThread(workspace, options);
    this.model.script(thread, { say: 'good morning' });
    assert.equal(await this.owner.runTurn(thread, 'good morning'), 'completed');
    return { workspace, thread };
  }

  /** Sends from the first host to a folder of the second; gives the message's id. */
  async send(workspace: string, body = 'hello', ...more: readonly string[]): Promise<string> {
    const where = ['--host', 'hostb', '--destination-workspace', workspace, '--harness', 'codex'];
    return String((await this.a.ok(['send', ...where, ...more, body]))['message_id']);
  }

  /** The Codex sessions of the second host, as the first one is told of them now; asked again where the answer was not there in time. */
  async listed(): Promise<readonly Json[]> {
    let rows: readonly Json[] = [];
    await until('the list of hostb', async () => {
      const { hosts } = await this.a.call<{ hosts: { state: string; sessions: Json[] }[] }>('agent.sessions', { host: 'hostb' });
      rows = hosts[0]?.sessions ?? [];
      return hosts[0]?.state === 'ok' || JSON.stringify(hosts);
    });
    return rows.filter((row) => row['harness'] === 'codex');
  }

  async row(thread: string): Promise<Json | undefined> {
    return (await this.listed()).find((row) => row['session_id'] === thread);
  }

  /** Waits until a thread is listed with that status; gives its row. */
  async untilListed(thread: string, status: string): Promise<Json> {
    let row: Json | undefined;
    await until(`thread ${thread} to be listed as ${status}`, async () => {
      row = await this.row(thread);
      return row?.['status'] === status || JSON.stringify(row ?? 'not listed');
    });
    return row as Json;
  }

  async untilGone(thread: string): Promise<void> {
    await until(`thread ${thread} to be listed no more`, async () => {
      const row = await this.row(thread);
      return row === undefined || JSON.stringify(row);
    });
  }

  /** A turn of the user's own whose answer is held back; resolves when the model is at it. Gives its id. */
  async busyTurn(thread: string, text = 'a long task'): Promise<string> {
    this.model.script(thread, { hold: true });
    const turn = await this.owner.startTurn(thread, text);
    await until('the turn to be under way', async () => this.model.isHolding(thread) || 'no request yet');
    return turn;
  }

  /** Waits until a thread has had that many turns, the first ones included; gives them. */
  async untilTurns(thread: string, count: number): Promise<ReturnType<CodexModel['turns']>> {
    await until(`turn ${count} of ${thread}`, async () => {
      const turns = this.model.turns(thread);
      return turns.length >= count || JSON.stringify(turns);
    });
    await until(`the turns of ${thread} to end`, async () => {
      const { type } = await this.owner.status(thread);
      return type === 'idle' || type === 'systemError' || String(type);
    });
    return this.model.turns(thread);
  }

  /** Marks of what waits in a thread's queue and is ax's. */
  async ours(thread: string): Promise<readonly string[]> {
    return (await this.owner.queue(thread)).map((item) => item.mark).filter((mark) => mark.startsWith('ax-'));
  }
}

/** The triggers of turns, in order. */
export const triggers = (turns: ReturnType<CodexModel['turns']>): readonly string[] => turns.map((turn) => turn.trigger);
