/**
 * Granting: `ax host grant` and `ax host revoke`, what this host's owner allows another host.
 *
 * Owns the reading of what was asked, the event, and telling the other host to try again. A change counts from its transaction on, also
 * on open connections, because every request asks anew (peers.ts). Nothing that a grant lets in is undone by taking it back: what was
 * accepted stays, and wakes nobody any more.
 */
import type { GrantRow, HostGrants } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import { MAX_GRANT_MS } from '../protocol/limits.ts';
import { parseWorkspace } from '../protocol/paths.ts';
import { DEFAULT_GRANTS, GRANT_ACTIONS } from '../protocol/states.ts';
import type { GrantAction } from '../protocol/states.ts';
import type { Clock } from './clock/clock.ts';
import type { Events } from './events.ts';
import type { Files } from './files/files.ts';
import type { HostId } from '../protocol/ids.ts';
import type { Naming } from './naming.ts';
import type { GrantRule, Peer, Peers } from './peers.ts';
import type { Store } from './store/store.ts';

export interface GrantingDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly running: () => number;
  readonly files: Files;
  readonly naming: Naming;
  readonly peers: Peers;
  readonly events: Events;
  /** The grants of a host changed; it may be told, and its unread messages may be told of. */
  readonly onChanged: (host: HostId) => void;
}

export class Granting {
  readonly #deps: GrantingDeps;

  constructor(deps: GrantingDeps) {
    this.#deps = deps;
  }

  /** Allows more; durable and in effect on return. AxError as naming.host, parseGrants, peers.grant; `not_found` for a missing folder. */
  async grant(params: { host: unknown; actions: unknown; workspace: unknown; expiresMs: unknown }): Promise<HostGrants> {
    const { files, peers } = this.#deps;
    const forMs = params.expiresMs ?? null;
    if (forMs !== null && (typeof forMs !== 'number' || !Number.isSafeInteger(forMs) || forMs < 1000 || forMs > MAX_GRANT_MS))
      throw new AxError('invalid_argument', 'a grant that expires lasts from 1 s to 366 d');
    const typed = isNothing(params.workspace) ? null : parseWorkspace(params.workspace);
    const workspace = typed === null ? null : await files.canonicalFolder(typed);
    if (workspace === undefined) throw new AxError('not_found', `the workspace ${typed} does not exist on this host`);
    return this.#write(params, 'host.granted', workspace, (tx, hostId, actions) => peers.grant(tx, hostId, actions, workspace, forMs));
  }

  /** Takes back; durable and in effect on return. What was not granted is no error. AxError as `grant`. */
  async revoke(params: { host: unknown; actions: unknown; workspace: unknown }): Promise<HostGrants> {
    const { files, peers } = this.#deps;
    const typed = isNothing(params.workspace) ? null : parseWorkspace(params.workspace);
    const workspace = typed === null ? null : ((await files.canonicalFolder(typed)) ?? typed); // a folder that is gone still has its grants
    return this.#write(params, 'host.revoked', workspace, (tx, hostId, actions) => peers.revoke(tx, hostId, actions, workspace));
  }

  async #write(
    params: { host: unknown; actions: unknown },
    type: 'host.granted' | 'host.revoked',
    workspace: string | null,
    change: (tx: Parameters<Peers['grant']>[0], hostId: HostId, actions: readonly GrantAction[]) => Peer,
  ): Promise<HostGrants> {
    const { store, naming, peers, events, onChanged } = this.#deps;
    const host = naming.host(params.host);
    if (host.local) throw new AxError('invalid_argument', 'this host may do everything here; grants are for other hosts');
    if (!Array.isArray(params.actions) || params.actions.length === 0) throw new AxError('invalid_argument', 'name at least one action');
    const actions = parseGrants(params.actions);
    const { peer, isNew } = await store.write((tx) => {
      const before = peers.get(host.id, tx); // what was read outside may have changed while the folder was looked at
      const after = change(tx, host.id, actions);
      const isOther = after.revision !== before?.revision;
      if (isOther)
        events.add(tx, { type, hostId: host.id, subject: actions.join(','), ...(workspace === null ? {} : { detail: workspace }) });
      return { peer: after, isNew: isOther };
    });
    if (isNew) onChanged(host.id);
    return {
      host_id: peer.hostId,
      name: peer.name,
      revision: peer.revision,
      ...grantsOf(this.#deps, peer),
      warnings: warningsOf(peer, this.#deps.peers),
    };
  }
}

/** What a host may do here, for people and machines: `grants` everywhere, `grant_rules` in one workspace or for a while. */
export function grantsOf(
  { peers, clock, running }: Pick<GrantingDeps, 'peers' | 'clock' | 'running'>,
  peer: Peer,
): { readonly grants: readonly GrantAction[]; readonly grant_rules: readonly GrantRow[] } {
  const rules = peers.rulesOf(peer);
  const left = (rule: GrantRule): number | null =>
    rule.expiresAt === null || rule.expiresRan === null ? null : Math.min(rule.expiresAt - clock.now(), rule.expiresRan - running());
  const wide = rules.flatMap((rule) => (rule.workspace === null ? rule.action : []));
  return {
    grants: [...new Set([...peer.grants, ...wide])],
    grant_rules: rules.map((rule) => ({ action: rule.action, workspace: rule.workspace, remaining_ms: left(rule) })),
  };
}

function warningsOf(peer: Peer, peers: Peers): string[] {
  const lacksWrite = peers.may(peer.hostId, 'notify', null) && !peers.may(peer.hostId, 'write', null);
  return lacksWrite ? ['notify has no effect without write: a message must be left here before it can be told of'] : [];
}

function isNothing(value: unknown): value is undefined | null {
  return value === undefined || value === null;
}

/** Actions a host's owner allows; what a pairing gives when nothing is said. */
export function parseGrants(value: unknown): readonly GrantAction[] {
  if (value === undefined || value === null) return DEFAULT_GRANTS;
  const known: readonly string[] = GRANT_ACTIONS;
  if (!Array.isArray(value) || value.length > 16 || value.some((action) => typeof action !== 'string' || !known.includes(action))) {
    throw new AxError('invalid_argument', `grants are some of ${GRANT_ACTIONS.join(', ')}`);
  }
  return [...new Set(value as GrantAction[])];
}
