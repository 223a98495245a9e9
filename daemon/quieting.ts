/**
 * Quieting: `ax agent quiet` and `ax agent unquiet`, an agent to which no notice is given for a while.
 *
 * Owns which agent is meant and who may say so: an agent's shell quiets its own agent, another only when told that it acts for the owner.
 * What is sent meanwhile is accepted and kept as ever, and can be fetched; its senders see why nobody is told. Nothing a sender can say
 * overrides it. It ends by itself as soon as either clock says so (agents.ts), by `unquiet`, or with the agent.
 */
import type { AgentRow } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import { parseName } from '../protocol/ids.ts';
import { MAX_QUIET_MS, MIN_QUIET_MS } from '../protocol/limits.ts';
import { parseWorkspace } from '../protocol/paths.ts';
import type { Actor } from './addressing.ts';
import { quietLeft } from './agents.ts';
import type { Agent, Agents } from './agents.ts';
import type { Clock } from './clock/clock.ts';
import type { Events } from './events.ts';
import type { Files } from './files/files.ts';
import type { Store, StoreReader } from './store/store.ts';

type Params = Readonly<Record<string, unknown>>;

export interface QuietingDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly running: () => number;
  readonly files: Files;
  readonly agents: Agents;
  readonly events: Events;
  readonly row: (agent: Agent) => AgentRow;
  /** Notices to an address may be given again, or may not. */
  readonly onChanged: (harness: string, workspace: string) => void;
}

export class Quieting {
  readonly #deps: QuietingDeps;

  constructor(deps: QuietingDeps) {
    this.#deps = deps;
  }

  /** Makes an agent quiet for `for_ms`, or until `unquiet`; durable and in effect on return. AxError as `#agent`, `invalid_argument`. */
  async quiet(params: Params, actor: Actor): Promise<{ agent: AgentRow }> {
    const { store, clock, running, agents, events } = this.#deps;
    const forMs = params['for_ms'] ?? null;
    if (forMs !== null && (typeof forMs !== 'number' || !Number.isSafeInteger(forMs) || forMs < MIN_QUIET_MS || forMs > MAX_QUIET_MS))
      throw new AxError('invalid_argument', 'an agent is quiet for 1 s to 366 d, or until it is unquiet');
    const folder = await this.#folder(params);
    const agent = await store.write((tx) => {
      const { name } = this.#agent(tx, params, folder, actor);
      const [untilWall, untilRan] = forMs === null ? [null, null] : [clock.now() + forMs, running() + forMs];
      events.add(tx, {
        type: 'agent.quiet',
        subject: name,
        detail: forMs === null ? 'until unquiet' : `for ${Math.round(forMs / 1000)} s`,
      });
      return agents.setQuiet(tx, name, { untilWall, untilRan });
    });
    this.#deps.onChanged(agent.harness, agent.workspace);
    return { agent: this.#deps.row(agent) };
  }

  /** Ends that; `was_quiet` says whether there was something to end. AxError as `#agent`. */
  async unquiet(params: Params, actor: Actor): Promise<{ agent: AgentRow; was_quiet: boolean }> {
    const { store, clock, running, agents, events } = this.#deps;
    const folder = await this.#folder(params);
    const { agent, wasQuiet } = await store.write((tx) => {
      const before = this.#agent(tx, params, folder, actor);
      const { name } = before;
      const left = quietLeft(before, { now: () => clock.now(), running });
      if (left > 0) events.add(tx, { type: 'agent.unquiet', subject: name });
      return { agent: agents.setQuiet(tx, name, null), wasQuiet: left > 0 };
    });
    this.#deps.onChanged(agent.harness, agent.workspace);
    return { agent: this.#deps.row(agent), was_quiet: wasQuiet };
  }

  /**
   * The agent meant: the one named, the one of this shell's session, or the one of the local workspace. AxError `not_found`,
   * `ambiguous_destination` (with the candidates), `invalid_state` (not this session's own). Decided in the transaction that changes it:
   * a name may pass to another agent at any time.
   */
  #agent(tx: StoreReader, params: Params, folder: string | undefined, actor: Actor): Agent {
    const own = actor.session === null ? undefined : this.#deps.agents.ofSession(actor.session.session_id, tx);
    const agent = this.#named(tx, params['name']) ?? own ?? this.#ofWorkspace(tx, folder);
    if (actor.session !== null && agent.name !== own?.name && params['as_owner'] !== true)
      throw new AxError('invalid_state', `"${agent.name}" is not the agent of this session`, {
        fix: 'its own session or the owner of the host does this; add --as-owner when the owner told you to',
      });
    return agent;
  }

  /** The local workspace, canonical; undefined where an agent is named, or none was told. */
  async #folder(params: Params): Promise<string | undefined> {
    const typed = params['local_workspace'] ?? null;
    if (typed === null || (params['name'] ?? null) !== null) return undefined;
    const workspace = parseWorkspace(typed);
    return (await this.#deps.files.canonicalFolder(workspace)) ?? workspace;
  }

  #named(tx: StoreReader, typed: unknown): Agent | undefined {
    if (typed === undefined || typed === null) return undefined;
    const name = parseName(typed, 'an agent name');
    const agent = this.#deps.agents.named(name, tx);
    if (agent === undefined) throw new AxError('not_found', `there is no agent "${name}"`, { fix: 'ax agent list' });
    return agent;
  }

  #ofWorkspace(tx: StoreReader, folder: string | undefined): Agent {
    const workspace = parseWorkspace(folder);
    const [agent, ...others] = this.#deps.agents.ofWorkspace(workspace, tx);
    if (agent === undefined) throw new AxError('not_found', `no agent is set up for ${workspace}`, { fix: 'ax agent list' });
    if (others.length > 0)
      throw new AxError('ambiguous_destination', 'several agents of this workspace could be meant', {
        details: { candidates: [agent, ...others].map((one) => `${one.name} (${one.harness})`) },
        fix: 'name one of them',
      });
    return agent;
  }
}
