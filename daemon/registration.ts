/**
 * Registration: `ax agent setup` and what else changes agents.
 *
 * Owns the rules of becoming attached: the session is live and proved, its own folder is the workspace, one agent per
 * workspace and harness. Waiting messages become available before setup returns. Detaching never loses messages.
 */
import type { HarnessName } from '../protocol/address.ts';
import { AxError } from '../protocol/errors.ts';
import type { AgentRow, SessionEnvironment, WaitingRow } from '../protocol/control.ts';
import { parseName, parseSessionId } from '../protocol/ids.ts';
import { fetchCommand, requireNoticeSafe, setupCommand } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { parseWorkspace } from '../protocol/paths.ts';
import { quietLeft } from './agents.ts';
import type { Agent, Agents } from './agents.ts';
import type { Clock } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Events } from './events.ts';
import type { Files } from './files/files.ts';
import type { Session, SessionClaim } from './harness/harness.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Notices } from './notices.ts';
import type { Store, StoreTransaction } from './store/store.ts';

export interface RegistrationDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly running: () => number;
  readonly ax: AxCommand;
  readonly files: Files;
  readonly discovery: Discovery;
  readonly agents: Agents;
  readonly inbox: Inbox;
  readonly notices: Notices;
  readonly events: Events;
  /** A code for the command that setup prints, while the channel for sandboxed sessions is open. */
  readonly makeCode?: () => string | undefined;
  /** Something changed at an address. */
  readonly onChanged: (harness: string, workspace: string) => void;
  /** A message's state changed: its sender's host may be told. */
  readonly onMessage: (row: Received) => void;
}

export interface SetupResult {
  readonly agent: { readonly name: string; readonly harness: string; readonly workspace: string };
  readonly attachment: { readonly session_id: string; readonly state: string };
  /** The oldest unread messages. */
  readonly waiting: readonly WaitingRow[];
  /** How many there are in all. */
  readonly waiting_count: number;
  readonly warnings: readonly string[];
  readonly next: string | null;
}

/** Waiting messages listed at once. */
const LISTED = 20;

export class Registration {
  readonly #deps: RegistrationDeps;
  #isStopped = false;

  constructor(deps: RegistrationDeps) {
    this.#deps = deps;
  }

  /** Registers the agent of the calling session's workspace and attaches the session; durable on return. */
  async setup(params: { name: unknown; workspace: unknown }, environment: SessionEnvironment | null): Promise<SetupResult> {
    const { store, clock, files, discovery, agents, inbox, notices, events, ax } = this.#deps;
    const name = parseName(params.name, 'an agent name');
    const typed = parseWorkspace(params.workspace);
    if (environment === null) {
      throw new AxError(
        'invalid_state',
        'setup runs inside the shell of a live session, which exports what identifies it; this shell belongs to none',
        { fix: `in the conversation, run: ${setupCommand(ax, name, typed)}` },
      );
    }
    const workspace = await files.canonicalFolder(typed);
    if (workspace === undefined) throw new AxError('not_found', `the workspace ${typed} does not exist`);
    requireNoticeSafe(workspace, 'a workspace path');
    const session = await discovery.prove(claimOf(environment));
    if (session.workspace !== workspace && (await files.canonicalFolder(session.workspace)) === undefined)
      throw new AxError(
        'invalid_state',
        `this session began in ${session.workspace}, which is gone or was moved: it stays at that address`,
        {
          fix: `start or resume a session in ${workspace}, and set that one up`,
          details: { session_workspace: session.workspace, workspace },
        },
      );
    if (session.workspace !== workspace) {
      throw new AxError('invalid_argument', `this session works in ${session.workspace}, not in ${workspace}`, {
        fix: setupCommand(ax, name, session.workspace),
        details: { session_workspace: session.workspace, workspace },
      });
    }
    const result = await store.write((tx) => {
      const attached = agents.attach(tx, {
        name,
        harness: session.harness,
        workspace,
        session: { sessionId: session.sessionId, processKey: session.processKey, attachedAt: clock.now() },
        isLive: (id) => discovery.isLive(id),
      });
      // With an agent there, what came since is available already.
      const opened = attached.created ? inbox.setAvailable(tx, session.harness, workspace, true) : [];
      const waiting = inbox.unread(session.harness, workspace, LISTED, tx);
      if (attached.created) events.add(tx, { type: 'agent.registered', subject: attached.agent.name });
      events.add(tx, { type: 'agent.attached', subject: attached.agent.name, detail: session.sessionId });
      this.#tell(tx, opened);
      notices.toldBySelf(tx, session.sessionId, inbox.newestUnread(session.harness, workspace, tx), clock.now());
      const code = waiting.length > 0 ? this.#deps.makeCode?.() : undefined;
      const messages = waiting.map(({ sender, id }) => ({ sender, id }));
      if (code !== undefined) notices.allow(tx, code, { session: session.sessionId, harness: session.harness, workspace, messages });
      return { agent: attached.agent, opened, waiting, code, waitingCount: inbox.countUnread(session.harness, workspace, tx) };
    });
    for (const row of result.opened) this.#deps.onMessage(row);
    await this.#moveOn(session.harness, workspace);
    this.#deps.onChanged(session.harness, workspace);
    const oldest = result.waiting[0];
    return {
      agent: { name: result.agent.name, harness: result.agent.harness, workspace },
      attachment: { session_id: session.sessionId, state: 'live' },
      waiting: result.waiting.map(waitingRow),
      waiting_count: result.waitingCount,
      warnings: this.#warnings(result.agent, session, result.waitingCount),
      next: oldest === undefined ? null : fetchCommand(ax, oldest.id, workspace, result.code),
    };
  }

  #warnings(agent: Agent, session: Session, waiting: number): string[] {
    const others = agent.attachments.filter(
      (attachment) => attachment.sessionId !== session.sessionId && this.#deps.discovery.isLive(attachment.sessionId),
    );
    return [
      ...(others.length === 0
        ? []
        : [
            `${others.length} other live session${others.length === 1 ? ' is' : 's are'} attached to this workspace: messages that name no session wake none of them`,
          ]),
      ...(session.reachable
        ? []
        : [`this session cannot be nudged (${session.reason ?? 'not reachable'}): look with "ax messages list" yourself`]),
      ...(this.#quietLeft(agent) > 0
        ? [
            `${agent.name} is quiet: no notice comes until that ends; look with "ax messages list", or end it: ax agent unquiet ${agent.name}`,
          ]
        : []),
      ...(waiting > LISTED ? [`${waiting} messages wait; the oldest ${LISTED} are listed`] : []),
    ];
  }

  list(): AgentRow[] {
    return this.#deps.agents.all().map((agent) => this.row(agent));
  }

  async rename(name: unknown, newName: unknown): Promise<AgentRow> {
    const { store, agents, events } = this.#deps;
    const to = parseName(newName, 'an agent name');
    const agent = await store.write((tx) => {
      const renamed = agents.rename(tx, parseName(name, 'an agent name'), to);
      events.add(tx, { type: 'agent.renamed', subject: renamed.name, detail: String(name) });
      return renamed;
    });
    return this.row(agent);
  }

  /** Removes an agent; what it has unread waits for the next setup. Returns how many. */
  async remove(name: unknown): Promise<{ name: string; waiting: number }> {
    const { store, agents, inbox, events } = this.#deps;
    const result = await store.write((tx) => {
      const agent = agents.remove(tx, parseName(name, 'an agent name'));
      const back = inbox.setAvailable(tx, agent.harness, agent.workspace, false);
      events.add(tx, { type: 'agent.removed', subject: agent.name });
      this.#tell(tx, back);
      return { agent, back, waiting: inbox.countUnread(agent.harness, agent.workspace, tx) };
    });
    for (const row of result.back) this.#deps.onMessage(row);
    await this.#moveOn(result.agent.harness, result.agent.workspace);
    this.#deps.onChanged(result.agent.harness, result.agent.workspace);
    return { name: result.agent.name, waiting: result.waiting };
  }

  /** Nothing more is moved; the next life of the daemon goes on. */
  stop(): void {
    this.#isStopped = true;
  }

  /** Goes on where an earlier life of the daemon left off moving messages. AxError as the store: what is left then waits for the next life. */
  async resume(): Promise<void> {
    for (const { harness, workspace } of this.#deps.inbox.moving()) await this.#moveOn(harness, workspace);
  }

  /** Moves what a change of the address's agent left, in small writes, so that others get their turn. */
  async #moveOn(harness: HarnessName, workspace: string): Promise<void> {
    const { store, inbox } = this.#deps;
    while (!this.#isStopped && inbox.isMoving(harness, workspace)) {
      const moved = await store.write((tx) => {
        const rows = inbox.moveOn(tx, harness, workspace);
        this.#tell(tx, rows);
        return rows;
      });
      for (const row of moved) this.#deps.onMessage(row);
    }
  }

  #tell(tx: StoreTransaction, rows: readonly Received[]): void {
    for (const { id, sender, state } of rows)
      if (state === 'available' || state === 'awaiting_setup')
        this.#deps.events.add(tx, { type: `message.${state}`, messageId: id, hostId: sender, state });
  }

  #quietLeft(agent: Agent): number {
    const { clock, running } = this.#deps;
    return quietLeft(agent, { now: () => clock.now(), running });
  }

  /** What a listing shows of an agent. */
  row(agent: Agent): AgentRow {
    const { inbox, discovery, clock } = this.#deps;
    const quietMs = this.#quietLeft(agent);
    return {
      name: agent.name,
      harness: agent.harness,
      workspace: agent.workspace,
      attachments: agent.attachments.map((attachment) => ({
        session_id: attachment.sessionId,
        state: discovery.isLive(attachment.sessionId) ? 'live' : 'ended',
        attached_at: attachment.attachedAt,
      })),
      waiting: inbox.countUnread(agent.harness, agent.workspace),
      quiet: quietMs > 0,
      quiet_until: quietMs > 0 && Number.isFinite(quietMs) ? clock.now() + quietMs : null,
    };
  }
}

export function waitingRow(row: Received): WaitingRow {
  return { message_id: row.id, kind: row.storedAs, bytes: row.bytes };
}

/** What a shell exported, as a claim to be proved. */
export function claimOf(environment: SessionEnvironment): SessionClaim {
  return {
    harness: environment.harness,
    sessionId: parseSessionId(environment.session_id),
    ...(environment.pid === null ? {} : { pid: environment.pid }),
    ...(environment.socket === null ? {} : { socket: environment.socket }),
    ...(environment.config_dir === null ? {} : { configDir: environment.config_dir }),
  };
}
