/**
 * Agents and their attachments: which mailbox exists for which workspace, and which sessions read it.
 *
 * Owns the table `agents`: exactly one agent per (harness, workspace), its name unique on the host. An attachment binds it to
 * one session; several may live at once. Which sessions are alive is not known here: callers pass that in.
 */
import { AxError } from '../protocol/errors.ts';
import type { HarnessName } from '../protocol/address.ts';
import { addressKey, getRow, KnownRows, pack, under } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface Attachment {
  readonly sessionId: string;
  /** The process behind it: a cleared conversation keeps the process and gets a new session id. */
  readonly processKey: string;
  readonly attachedAt: number;
}

export interface Agent {
  readonly name: string;
  readonly harness: HarnessName;
  /** Canonical path. */
  readonly workspace: string;
  readonly createdAt: number;
  /** Newest last; ended ones are kept for a while for the listing. */
  readonly attachments: readonly Attachment[];
  /** Set while notices to it are withheld; it may have ended by itself (`quietLeft`). */
  readonly quiet?: Quiet | null;
}

/** How long an agent is quiet, by both clocks, ms; both null: until told otherwise. */
export interface Quiet {
  readonly untilWall: number | null;
  readonly untilRan: number | null;
}

/** For how many ms an agent is quiet still: 0 when it is not, Infinity when until told otherwise. It is over as soon as either clock says so. */
export function quietLeft(agent: Agent | undefined, times: { readonly now: () => number; readonly running: () => number }): number {
  const quiet = agent?.quiet ?? null;
  if (quiet === null) return 0;
  const left = Math.min((quiet.untilWall ?? Infinity) - times.now(), (quiet.untilRan ?? Infinity) - times.running());
  return Math.max(0, left);
}

/** Attachments remembered per agent. */
const MAX_ATTACHMENTS = 16;

export class Agents {
  readonly #known = new KnownRows<Agent>();
  readonly #store: Store;

  constructor(store: Store) {
    this.#store = store;
  }

  named(name: string, reader: StoreReader = this.#store): Agent | undefined {
    return this.#known.get(reader, 'agents', `n/${name.toLowerCase()}`);
  }

  at(harness: string, workspace: string, reader: StoreReader = this.#store): Agent | undefined {
    const pointer = getRow<{ name: string }>(reader, 'agents', `w/${addressKey(harness, workspace)}`);
    return pointer === undefined ? undefined : this.named(pointer.name, reader);
  }

  all(reader: StoreReader = this.#store): Agent[] {
    return reader.range('agents', under('n/')).map((entry) => this.#known.read(entry.key, entry.value));
  }

  /** The agent of a workspace under any harness. */
  ofWorkspace(workspace: string, reader: StoreReader = this.#store): Agent[] {
    return this.all(reader).filter((agent) => agent.workspace === workspace);
  }

  /** The agent a session is attached to. */
  ofSession(sessionId: string, reader: StoreReader = this.#store): Agent | undefined {
    return this.all(reader).find((agent) => agent.attachments.some((attachment) => attachment.sessionId === sessionId));
  }

  /**
   * Registers the agent of a workspace or finds it, and attaches a session. The same session again changes nothing; an
   * earlier conversation of the same process is detached. AxError `invalid_state` when the workspace has an agent of another
   * name, or the name belongs to another workspace.
   */
  attach(
    tx: StoreTransaction,
    wanted: { name: string; harness: HarnessName; workspace: string; session: Attachment; isLive: (sessionId: string) => boolean },
  ): { agent: Agent; created: boolean } {
    const existing = this.at(wanted.harness, wanted.workspace, tx);
    if (existing !== undefined && existing.name.toLowerCase() !== wanted.name.toLowerCase()) {
      throw new AxError('invalid_state', `this workspace already has the agent "${existing.name}"`, {
        fix: `use --name ${existing.name}, or: ax agent rename ${existing.name} ${wanted.name}`,
        details: { name: existing.name },
      });
    }
    const holder = this.named(wanted.name, tx);
    if (holder !== undefined && existing === undefined) {
      throw new AxError('invalid_state', `the name "${holder.name}" belongs to the agent of another workspace`, {
        fix: 'choose another --name',
        details: { workspace: holder.workspace },
      });
    }
    const before = existing?.attachments ?? [];
    const others = before.filter((old) => old.sessionId !== wanted.session.sessionId && old.processKey !== wanted.session.processKey);
    const kept = [
      ...others.filter((old) => !wanted.isLive(old.sessionId)).slice(-4),
      ...others.filter((old) => wanted.isLive(old.sessionId)),
    ];
    const same = before.find((old) => old.sessionId === wanted.session.sessionId && old.processKey === wanted.session.processKey);
    const agent: Agent = {
      name: existing?.name ?? wanted.name,
      harness: wanted.harness,
      workspace: wanted.workspace,
      createdAt: existing?.createdAt ?? wanted.session.attachedAt,
      attachments: [...kept, same ?? wanted.session].slice(-MAX_ATTACHMENTS),
      ...(existing?.quiet === undefined ? {} : { quiet: existing.quiet }),
    };
    this.#put(tx, agent);
    return { agent, created: existing === undefined };
  }

  rename(tx: StoreTransaction, name: string, newName: string): Agent {
    const agent = this.#require(tx, name);
    const holder = this.named(newName, tx);
    if (holder !== undefined && holder.name !== agent.name)
      throw new AxError('invalid_state', `the name "${newName}" belongs to another agent`);
    tx.remove('agents', `n/${agent.name.toLowerCase()}`);
    const renamed = { ...agent, name: newName };
    this.#put(tx, renamed);
    return renamed;
  }

  /** Makes an agent quiet, or (null) no longer so. AxError `not_found`. */
  setQuiet(tx: StoreTransaction, name: string, quiet: Quiet | null): Agent {
    const agent = { ...this.#require(tx, name), quiet };
    this.#put(tx, agent);
    return agent;
  }

  remove(tx: StoreTransaction, name: string): Agent {
    const agent = this.#require(tx, name);
    tx.remove('agents', `n/${agent.name.toLowerCase()}`);
    tx.remove('agents', `w/${addressKey(agent.harness, agent.workspace)}`);
    return agent;
  }

  #require(tx: StoreTransaction, name: string): Agent {
    const agent = this.named(name, tx);
    if (agent === undefined) throw new AxError('not_found', `there is no agent "${name}"`, { fix: 'ax agent list' });
    return agent;
  }

  #put(tx: StoreTransaction, agent: Agent): void {
    tx.put('agents', `n/${agent.name.toLowerCase()}`, pack(agent));
    tx.put('agents', `w/${addressKey(agent.harness, agent.workspace)}`, pack({ name: agent.name }));
  }
}
