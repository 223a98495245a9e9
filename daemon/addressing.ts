/**
 * Addressing: who sends a message and where it goes, from what the caller typed and what this host can see.
 *
 * Owns no state. What this host can see to be ambiguous is refused at once, with the candidates, and nothing is queued; a
 * session id only selects among sessions and is never part of the address. ax never picks by recency.
 */
import { parseAgentAt, parseHarness } from '../protocol/address.ts';
import type { HarnessName } from '../protocol/address.ts';
import { AxError } from '../protocol/errors.ts';
import { parseName, parseSessionId } from '../protocol/ids.ts';
import type { HostId } from '../protocol/ids.ts';
import { SESSIONS_CACHE_MS } from '../protocol/limits.ts';
import { requireNoticeSafe } from '../protocol/notice.ts';
import { parseWorkspace } from '../protocol/paths.ts';
import type { Origin, SessionEnvironment } from '../protocol/control.ts';
import type { Agent, Agents } from './agents.ts';
import type { Discovery, HostSessions } from './discovery.ts';
import type { Files } from './files/files.ts';
import type { Naming, ResolvedHost } from './naming.ts';

/** Who asks, as the control socket passes it on. */
export interface Actor {
  readonly origin: Origin;
  readonly session: SessionEnvironment | null;
}

export interface AddressingDeps {
  readonly files: Files;
  readonly naming: Naming;
  readonly discovery: Discovery;
  readonly agents: Agents;
  /** The host can be reached now: only then does a remembered list say that a session lives. */
  readonly isReady: (host: HostId) => boolean;
}

type Params = Readonly<Record<string, unknown>>;

/** Where a message goes, resolved. */
export interface Target {
  readonly host: ResolvedHost;
  readonly harness: HarnessName;
  readonly workspace: string;
  readonly session: string | undefined;
  /** What this host can see of it now; undefined when it cannot. */
  readonly live: boolean | undefined;
}

export class Addressing {
  readonly #deps: AddressingDeps;

  constructor(deps: AddressingDeps) {
    this.#deps = deps;
  }

  // --- who sends ---------------------------------------------------------------------------------------------------------

  /** The sending agent: named; else the one this shell's session is attached to; else the local workspace's; else the owner. */
  async sender(params: Params, actor: Actor): Promise<Agent | undefined> {
    const { agents, files } = this.#deps;
    if (params['agent'] !== undefined && params['agent'] !== null) {
      const name = parseName(params['agent'], 'an agent name');
      const agent = agents.named(name);
      if (agent === undefined) throw new AxError('not_found', `there is no agent "${name}" on this host`, { fix: 'ax agent list' });
      return agent;
    }
    if (actor.session !== null) {
      const agent = agents.ofSession(parseSessionId(actor.session.session_id));
      if (agent !== undefined) return agent;
    }
    if (params['local_workspace'] === undefined || params['local_workspace'] === null) return undefined;
    const typed = parseWorkspace(params['local_workspace']);
    const here = agents.ofWorkspace((await files.canonicalFolder(typed)) ?? typed);
    if (here.length > 1)
      throw new AxError('ambiguous_destination', 'several agents of this workspace could be the sender', {
        details: { candidates: here.map((agent) => `${agent.name} (${agent.harness})`) },
        fix: 'name one with --agent',
      });
    return here[0];
  }

  // --- to whom -----------------------------------------------------------------------------------------------------------

  async target(params: Params): Promise<Target> {
    if (params['to'] !== undefined && params['to'] !== null) return this.#agentTarget(params['to']);
    const { naming } = this.#deps;
    if (params['host'] === undefined || params['host'] === null)
      throw new AxError(
        'invalid_argument',
        'a destination is missing: --to NAME@HOST, or --host with --session or --destination-workspace',
      );
    const host = naming.host(params['host']);
    const session = params['session'] === undefined || params['session'] === null ? undefined : parseSessionId(params['session']);
    const harness = parseHarness(params['harness']);
    if (session !== undefined) return this.#sessionTarget(host, session, harness);
    const workspace = parseWorkspace(params['workspace']);
    return this.#workspaceTarget(host, harness, workspace);
  }

  async #agentTarget(typed: unknown): Promise<Target> {
    const { naming, agents } = this.#deps;
    const wanted = parseAgentAt(typed);
    const host = naming.host(wanted.host);
    const pick = (list: readonly { name: string; harness: HarnessName; workspace: string }[]) =>
      list.find((one) => one.name.toLowerCase() === wanted.name.toLowerCase());
    // A remembered list may be older than what is looked for: before it is refused, the host is asked.
    const agent = host.local ? pick(agents.all()) : (pick((await this.#list(host)).agents) ?? pick((await this.#list(host, 0)).agents));
    if (agent === undefined)
      throw new AxError('not_found', `there is no agent "${wanted.name}" on ${host.name}`, { fix: `ax agent sessions ${host.name}` });
    return this.#workspaceTarget(host, agent.harness, agent.workspace);
  }

  async #sessionTarget(host: ResolvedHost, session: string, harness: HarnessName): Promise<Target> {
    const pick = (list: HostSessions) => list.sessions.find((one) => one.sessionId === session);
    const found = host.local ? pick(await this.#deps.discovery.local()) : (pick(await this.#list(host)) ?? pick(await this.#list(host, 0)));
    if (found === undefined)
      throw new AxError('not_found', `there is no live session ${session} on ${host.name}`, { fix: `ax agent sessions ${host.name}` });
    if (host.local && (await this.#deps.files.canonicalFolder(found.workspace)) === undefined)
      throw new AxError('not_found', `the folder of that session, ${found.workspace}, is gone or was moved`, {
        fix: 'send to a session that was started where the folder is now: ax agent sessions Localhost',
      });
    if (found.harness !== harness) throw new AxError('invalid_argument', `that session belongs to ${found.harness}, not to ${harness}`);
    return { host, harness, workspace: parseWorkspace(found.workspace), session, live: true };
  }

  async #workspaceTarget(host: ResolvedHost, harness: HarnessName, typed: string): Promise<Target> {
    const { files, discovery } = this.#deps;
    const workspace = host.local ? await files.canonicalFolder(typed) : typed;
    if (workspace === undefined) throw new AxError('not_found', `the workspace ${typed} does not exist on this host`);
    requireNoticeSafe(workspace, 'a destination workspace');
    const candidatesOf = (list: HostSessions | undefined) => {
      const there = list?.sessions.filter((one) => one.harness === harness && one.workspace === workspace && one.reachable) ?? [];
      const attached = there.filter((one) => one.agent !== null);
      return attached.length > 0 ? attached : there;
    };
    let seen: HostSessions | undefined = host.local ? await discovery.local() : discovery.cached(host.id);
    // A remembered list may be older than an end of one of them: before it is called ambiguous, the host is asked; unseen is not ambiguous.
    if (!host.local && candidatesOf(seen).length > 1) seen = await discovery.of(host.id, 0).catch(() => undefined);
    const candidates = candidatesOf(seen);
    if (candidates.length > 1) {
      throw new AxError('ambiguous_destination', `${candidates.length} live sessions could be meant in ${workspace}; ax does not choose`, {
        details: { candidates: candidates.map((one) => `${one.sessionId} (${one.status}${one.agent === null ? '' : `, ${one.agent}`})`) },
        fix: `name one: ax send --host ${host.name} --harness ${harness} --session ${candidates[0]!.sessionId}`,
      });
    }
    return {
      host,
      harness,
      workspace,
      session: undefined,
      live: seen === undefined || !this.#sees(host) ? undefined : candidates.length > 0,
    };
  }

  async #list(host: ResolvedHost, maxAgeMs: number = SESSIONS_CACHE_MS): Promise<HostSessions> {
    try {
      return await this.#deps.discovery.of(host.id, maxAgeMs);
    } catch (error) {
      if (error instanceof AxError && (error.code === 'unavailable' || error.code === 'timeout')) {
        throw new AxError('unavailable', `${host.name} cannot be asked for its sessions now; nothing was queued`, {
          fix: `give the folder instead: --host ${host.name} --harness claude --destination-workspace DIR (or --harness codex)`,
          cause: error,
        });
      }
      throw error;
    }
  }

  #sees(host: ResolvedHost): boolean {
    return host.local || this.#deps.isReady(host.id);
  }

  liveAt(host: ResolvedHost, harness: string, workspace: string): boolean | undefined {
    if (host.local) return this.#deps.discovery.hasReachable(harness, workspace);
    if (!this.#sees(host)) return undefined;
    return this.#deps.discovery
      .cached(host.id)
      ?.sessions.some((one) => one.harness === harness && one.workspace === workspace && one.reachable);
  }
}

/** Refuses a message to the very session that sends it. */
export function refuseSelf(target: Target, sender: Agent | undefined, actor: Actor): void {
  const own = actor.session?.session_id;
  if (!target.host.local || own === undefined) return;
  const sameAddress = sender?.harness === target.harness && sender.workspace === target.workspace;
  if (target.session === own || (target.session === undefined && sameAddress))
    throw new AxError('invalid_argument', 'the destination is the sending session itself');
}
