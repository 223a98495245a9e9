/**
 * The world of a Claude Code cell: the sender's host A and host B with genuine sessions, paired, both with real daemons.
 *
 * Owns what cells share: sending from A, waiting for what B lists and for what a session's model was told, and the end of it all.
 */
import { randomUUID } from 'node:crypto';
import { Bed, until, type Host } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import { ClaudeHome, type ClaudeSession, type SessionOptions } from './claude.ts';
import { ClaudeModel } from './claude-model.ts';
import type { SafeAx } from './safe-ax.ts';
import type { Installed } from './install.ts';
import type { Fixture } from './matrix.ts';

/** One row of `ax agent sessions`. */
export interface Listed {
  readonly session_id: string;
  readonly workspace: string;
  readonly status: string;
  readonly agent: string | null;
  readonly reachable: boolean;
  readonly reason?: string;
}

export class ClaudeWorld {
  readonly a: Host;
  readonly b: Host;
  readonly model: ClaudeModel;
  readonly home: ClaudeHome;
  readonly #bed: Bed;
  #workspaces = 0;

  private constructor(bed: Bed, hosts: readonly [Host, Host], model: ClaudeModel, installed: Installed) {
    this.#bed = bed;
    [this.a, this.b] = hosts;
    this.model = model;
    this.home = new ClaudeHome(installed, this.b, model);
  }

  /** `ax` is what host B runs; the project's own when left out. */
  static async make(installed: Installed, ax?: SafeAx): Promise<ClaudeWorld> {
    const bed = new Bed();
    try {
      return new ClaudeWorld(bed, ax === undefined ? await bed.pair() : await ax.pair(bed), await ClaudeModel.start(), installed);
    } catch (error) {
      await bed.end();
      throw error;
    }
  }

  async end(): Promise<void> {
    await this.home.end();
    await this.model.stop();
    await this.#bed.end();
  }

  /** A fresh folder of host B. */
  workspace(name: string): string {
    this.#workspaces += 1;
    return this.b.workspace(`${name}-${this.#workspaces}`);
  }

  /** A session in a fresh folder, idle, and listed by B. */
  async session(name: string, options: Omit<SessionOptions, 'cwd'> = {}): Promise<ClaudeSession> {
    const session = await this.home.session({ ...options, cwd: this.workspace(name) });
    await this.untilListed(session.sessionId);
    return session;
  }

  /** Sends from A to a folder on B, as a person would; gives the message's id. */
  async send(workspace: string): Promise<string> {
    const words = ['send', '--host', this.b.name, '--destination-workspace', workspace, '--harness', 'claude', '--message', 'hello'];
    const queued = await this.a.ok(words);
    return String(queued['message_id']);
  }

  /** Sends from A to a session on B by its id. */
  async sendTo(sessionId: string): Promise<string> {
    const words = ['send', '--host', this.b.name, '--session', sessionId, '--harness', 'claude', '--message', 'hello'];
    return String((await this.a.ok(words))['message_id']);
  }

  /** As `send`, on A's control socket, without a process for each. */
  async sendQuickly(workspace: string, text: string): Promise<string> {
    const what = { host: this.b.name, harness: 'claude', workspace, body: Buffer.from(text), request_id: randomUUID() };
    const queued = await this.a.call<{ message_id: string }>('message.send', what);
    return queued.message_id;
  }

  /** What B lists now; a list that was not there in time is no empty one, and is asked for again. */
  async listed(): Promise<readonly Listed[]> {
    let rows: readonly Listed[] = [];
    await until('the list of B', async () => {
      const { hosts } = await this.b.call<{ hosts: { state: string; sessions: Listed[] }[] }>('agent.sessions', { host: 'Localhost' });
      rows = hosts[0]?.sessions ?? [];
      return hosts[0]?.state === 'ok' || JSON.stringify(hosts);
    });
    return rows;
  }

  /** Waits until B lists a session, with the fields wanted; gives the row. */
  async untilListed(sessionId: string, wanted: Partial<Listed> = {}): Promise<Listed> {
    let found: Listed | undefined;
    await until(`session ${sessionId} listed as ${JSON.stringify(wanted)}`, async () => {
      found = (await this.listed()).find((row) => row.session_id === sessionId);
      const isSo = found !== undefined && Object.entries(wanted).every(([key, value]) => found?.[key as keyof Listed] === value);
      return isSo ? true : JSON.stringify(found);
    });
    if (found === undefined) throw new Error('not reached');
    return found;
  }

  async untilUnlisted(sessionId: string): Promise<void> {
    await until(`session ${sessionId} gone from the list`, async () =>
      (await this.listed()).some((row) => row.session_id === sessionId) ? 'still listed' : true,
    );
  }

  /** Waits until the session's model was told of a message (its id stands in every notice of it). */
  async untilTold(sessionId: string, messageId: string): Promise<void> {
    await until(`session ${sessionId} told of ${messageId}`, async () =>
      this.model.count(sessionId, messageId) > 0 ? true : `${this.model.of(sessionId).length} turns without it`,
    );
  }

  /** A message's status on A, as `ax admin status` tells it, once it is as wanted. */
  async status(messageId: string, wanted: Json): Promise<Json> {
    await this.a.untilStatus(messageId, wanted);
    return this.a.status(messageId);
  }
}

export const WORLD: Fixture<ClaudeWorld> = { make: (installed) => ClaudeWorld.make(installed), end: (world) => world.end() };
