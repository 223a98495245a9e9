/**
 * The hosts this one is paired with: their ids, local names, addresses and what each may do here; and open invites.
 *
 * Owns the tables `peers` and `invites`. A host is known by its id; its name is a local label, unique here. Grants are what
 * this host's owner allows the other, stored on the destination only: `grants` hold everywhere and until revoked, `rules` in one
 * workspace or until they expire. A rule is over as soon as either clock says so, the wall's or the running time: a clock set back
 * prolongs no right. Of an invite only the secret's hash is kept.
 */
import { AxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { MAX_NAME_CHARS, MAX_INVITE_TTL_MS } from '../protocol/limits.ts';
import { DEFAULT_GRANTS, GRANT_ACTIONS } from '../protocol/states.ts';
import type { GrantAction } from '../protocol/states.ts';
import { getRow, KnownRows, pack, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

/** A grant that holds in one workspace only, or for a while. */
export interface GrantRule {
  readonly action: GrantAction;
  /** Canonical; null: everywhere. */
  readonly workspace: string | null;
  /** When it ends, wall time and running time, ms; both null: when it is revoked. */
  readonly expiresAt: number | null;
  readonly expiresRan: number | null;
}

export interface Peer {
  readonly hostId: HostId;
  readonly name: string;
  /** Multiaddrs without /p2p; may be empty (a host that only dials). */
  readonly addresses: readonly string[];
  readonly grants: readonly GrantAction[];
  /** Absent where there never was one. */
  readonly rules?: readonly GrantRule[];
  /** Counts changes of the grants. */
  readonly revision: number;
  /** Running time of the last grant or revoke, ms; absent where there was none. */
  readonly changedRan?: number;
  readonly addedAt: number;
  readonly lastSeenAt: number | null;
  readonly version: string | null;
}

export interface Invite {
  readonly id: string;
  readonly secretHash: Uint8Array;
  readonly grants: readonly GrantAction[];
  readonly createdAt: number;
  /** Running time, ms; absent in those of older builds. */
  readonly createdRan?: number;
  /** Running time, ms, after which it is void. */
  readonly expires: number;
  /** Who redeemed it: the same host may ask again (its answer may have been lost), nobody else. */
  readonly usedBy: HostId | null;
}

/** What both clocks say now, ms. */
export interface Times {
  readonly now: () => number;
  readonly running: () => number;
}

/** Open invites at once. */
const MAX_INVITES = 100;
/** Grant rules of one host. */
const MAX_RULES = 64;

export class Peers {
  readonly #store: Store;
  readonly #known = new KnownRows<Peer>();
  readonly #ownName: string;
  readonly #times: Times;

  /** `ownName` is how this host calls itself: no other host may carry it here. */
  constructor(store: Store, ownName: string, times: Times) {
    this.#store = store;
    this.#ownName = ownName;
    this.#times = times;
  }

  get(hostId: string, reader: StoreReader = this.#store): Peer | undefined {
    return this.#known.get(reader, 'peers', hostId);
  }

  all(reader: StoreReader = this.#store): Peer[] {
    return reader.range('peers').map((entry) => this.#known.read(entry.key, entry.value));
  }

  /** Peers whose name equals `name` without regard to case. */
  named(name: string, reader: StoreReader = this.#store): Peer[] {
    const wanted = name.toLowerCase();
    return this.all(reader).filter((peer) => peer.name.toLowerCase() === wanted);
  }

  /** May that host do this in a workspace (canonical)? With null: in any workspace at all. Asked anew each time, so a change counts at once. */
  may(hostId: string, action: GrantAction, workspace: string | null, reader: StoreReader = this.#store): boolean {
    const peer = this.get(hostId, reader);
    if (peer === undefined) return false;
    const fits = (rule: GrantRule): boolean => rule.workspace === null || workspace === null || rule.workspace === workspace;
    return peer.grants.includes(action) || this.rulesOf(peer).some((rule) => rule.action === action && fits(rule));
  }

  /** For how many ms that host may do this in a workspace (canonical) still: Infinity when that has no end, 0 when it may not. */
  msLeft(hostId: string, action: GrantAction, workspace: string): number {
    const peer = this.get(hostId);
    if (peer === undefined) return 0;
    if (peer.grants.includes(action)) return Infinity;
    const [now, running] = [this.#times.now(), this.#times.running()];
    const fitting = this.rulesOf(peer).filter(
      (rule) => rule.action === action && (rule.workspace === null || rule.workspace === workspace),
    );
    return Math.max(0, ...fitting.map((rule) => Math.min((rule.expiresAt ?? Infinity) - now, (rule.expiresRan ?? Infinity) - running)));
  }

  /** May that host do this in every workspace there is? */
  mayEverywhere(hostId: string, action: GrantAction): boolean {
    const peer = this.get(hostId);
    return peer !== undefined && everywhere(peer.grants, this.rulesOf(peer)).includes(action);
  }

  /** The rules of a host that have not expired. */
  rulesOf(peer: Peer): readonly GrantRule[] {
    const [now, running] = [this.#times.now(), this.#times.running()];
    return (peer.rules ?? []).filter((rule) => (rule.expiresAt ?? Infinity) > now && (rule.expiresRan ?? Infinity) > running);
  }

  /**
   * Allows a host something more; the same action in the same workspace is replaced. AxError `host_not_found`, `invalid_state` (granted
   * everywhere already), `limit`.
   */
  grant(tx: StoreTransaction, hostId: HostId, actions: readonly GrantAction[], workspace: string | null, forMs: number | null): Peer {
    const peer = this.#require(tx, hostId);
    const isPlain = workspace === null && forMs === null;
    if (workspace !== null) this.#refuseEverywhere(peer, actions, 'a grant for');
    const isReplaced = (rule: GrantRule): boolean => actions.includes(rule.action) && (workspace === null || rule.workspace === workspace);
    const ends = forMs === null ? { expiresAt: null, expiresRan: null } : this.#after(forMs);
    const fresh = isPlain ? [] : actions.map((action): GrantRule => ({ action, workspace, ...ends }));
    const rules = [...this.rulesOf(peer).filter((rule) => !isReplaced(rule)), ...fresh];
    if (rules.length > MAX_RULES)
      throw new AxError('limit', `a host has at most ${MAX_RULES} grants with a workspace or an end`, { details: { limit: MAX_RULES } });
    const others = peer.grants.filter((action) => workspace !== null || !actions.includes(action));
    return this.#change(tx, peer, isPlain ? [...others, ...actions] : others, rules);
  }

  /** Takes something back: with a workspace, only what was granted for it; else every grant of these actions. AxError as `grant`. */
  revoke(tx: StoreTransaction, hostId: HostId, actions: readonly GrantAction[], workspace: string | null): Peer {
    const peer = this.#require(tx, hostId);
    if (workspace !== null) this.#refuseEverywhere(peer, actions, 'taking it back for');
    const isRevoked = (rule: GrantRule): boolean => actions.includes(rule.action) && (workspace === null || rule.workspace === workspace);
    const grants = workspace === null ? peer.grants.filter((action) => !actions.includes(action)) : peer.grants;
    return this.#change(
      tx,
      peer,
      grants,
      this.rulesOf(peer).filter((rule) => !isRevoked(rule)),
    );
  }

  #after(ms: number): { readonly expiresAt: number; readonly expiresRan: number } {
    return { expiresAt: this.#times.now() + ms, expiresRan: this.#times.running() + ms };
  }

  #refuseEverywhere(peer: Peer, actions: readonly GrantAction[], what: 'a grant for' | 'taking it back for'): void {
    const wide = everywhere(peer.grants, this.rulesOf(peer));
    const found = actions.find((action) => wide.includes(action));
    if (found === undefined) return;
    throw new AxError('invalid_state', `${peer.name} may ${found} in every workspace; ${what} one of them changes nothing`, {
      fix: `ax host revoke ${peer.name} ${found}; then grant it for the workspaces that are to keep it`,
    });
  }

  #change(tx: StoreTransaction, peer: Peer, grants: readonly GrantAction[], rules: readonly GrantRule[]): Peer {
    const ordered = GRANT_ACTIONS.filter((action) => grants.includes(action));
    const isSame = JSON.stringify([peer.grants, peer.rules ?? []]) === JSON.stringify([ordered, rules]);
    const next: Peer = isSame
      ? { ...peer, grants: ordered, rules }
      : { ...peer, grants: ordered, rules, revision: peer.revision + 1, changedRan: this.#times.running() };
    this.put(tx, next);
    return next;
  }

  #require(tx: StoreTransaction, hostId: HostId): Peer {
    const peer = this.get(hostId, tx);
    if (peer === undefined) throw new AxError('host_not_found', 'that host is not paired');
    return peer;
  }

  put(tx: StoreTransaction, peer: Peer): void {
    tx.put('peers', peer.hostId, pack(peer));
  }

  /** Adds a host or renews it: addresses are joined, grants replaced. A taken name gets the next free number behind it. */
  add(
    tx: StoreTransaction,
    fresh: {
      hostId: HostId;
      name: string;
      exactName: boolean;
      addresses: readonly string[];
      grants: readonly GrantAction[] | null;
      now: number;
    },
  ): Peer {
    const known = this.get(fresh.hostId, tx);
    const others = this.all(tx).filter((peer) => peer.hostId !== fresh.hostId);
    const taken = new Set([this.#ownName.toLowerCase(), ...others.map((peer) => peer.name.toLowerCase())]);
    let name = known !== undefined && !fresh.exactName ? known.name : fresh.name;
    if (taken.has(name.toLowerCase())) {
      if (fresh.exactName) throw nameTaken(name);
      const base = name.slice(0, MAX_NAME_CHARS - 8);
      let number = 2;
      while (taken.has(`${base}-${number}`.toLowerCase())) number++;
      name = `${base}-${number}`;
    }
    const changedRan = known !== undefined && fresh.grants !== null ? this.#times.running() : known?.changedRan;
    const peer: Peer = {
      hostId: fresh.hostId,
      name,
      addresses: [...new Set([...fresh.addresses, ...(known?.addresses ?? [])])].slice(0, 16),
      grants: fresh.grants ?? known?.grants ?? DEFAULT_GRANTS,
      ...(fresh.grants === null && known?.rules !== undefined ? { rules: known.rules } : {}),
      ...(changedRan === undefined ? {} : { changedRan }),
      revision: fresh.grants === null && known !== undefined ? known.revision : (known?.revision ?? 0) + 1,
      addedAt: known?.addedAt ?? fresh.now,
      lastSeenAt: known?.lastSeenAt ?? null,
      version: known?.version ?? null,
    };
    this.put(tx, peer);
    return peer;
  }

  rename(tx: StoreTransaction, hostId: HostId, name: string): Peer {
    const peer = this.#require(tx, hostId);
    if (name.toLowerCase() === this.#ownName.toLowerCase() || this.named(name, tx).some((other) => other.hostId !== hostId))
      throw nameTaken(name);
    const renamed = { ...peer, name };
    this.put(tx, renamed);
    return renamed;
  }

  /**
   * Forgets a host, the invites it has used, and all open ones: a code it still holds must not let it in again, and nobody knows who holds
   * which. Gives how many open ones are void now.
   */
  remove(tx: StoreTransaction, hostId: HostId): number {
    tx.remove('peers', hostId);
    let open = 0;
    for (const entry of tx.range('invites')) {
      const { usedBy, expires } = unpack<Invite>(entry.value);
      if (usedBy !== hostId && usedBy !== null) continue;
      if (usedBy === null && expires > this.#times.running()) open += 1;
      tx.remove('invites', entry.key);
    }
    return open;
  }

  /** What a host gets by an invite: null, what it has already, when its owner has changed that since the invite was made. */
  grantsBy(invite: Invite, known: Peer | undefined): readonly GrantAction[] | null {
    return known?.changedRan !== undefined && (invite.createdRan ?? 0) <= known.changedRan ? null : invite.grants;
  }

  /** Notes that a host was heard of, with the version it tells. */
  seen(tx: StoreTransaction, hostId: HostId, at: number, version: string | null): void {
    const peer = this.get(hostId, tx);
    if (peer !== undefined) this.put(tx, { ...peer, lastSeenAt: at, version: version ?? peer.version });
  }

  addInvite(tx: StoreTransaction, invite: Invite, running: number): void {
    const open = tx.range('invites').map((entry) => unpack<Invite>(entry.value));
    for (const old of open) if (old.expires + MAX_INVITE_TTL_MS <= running) tx.remove('invites', old.id); // kept for a while, so that it is told as expired
    if (open.filter((old) => old.expires > running).length >= MAX_INVITES) {
      throw new AxError('limit', `${MAX_INVITES} invites are open; wait for one to expire`, { details: { limit: MAX_INVITES } });
    }
    tx.put('invites', invite.id, pack(invite));
  }

  invite(id: string, reader: StoreReader = this.#store): Invite | undefined {
    return getRow<Invite>(reader, 'invites', id);
  }

  useInvite(tx: StoreTransaction, invite: Invite, by: HostId): void {
    tx.put('invites', invite.id, pack({ ...invite, usedBy: by }));
  }
}

function everywhere(grants: readonly GrantAction[], rules: readonly GrantRule[]): GrantAction[] {
  return [...grants, ...rules.flatMap((rule) => (rule.workspace === null ? rule.action : []))];
}

function nameTaken(name: string): AxError {
  return new AxError('invalid_state', `another host, or this one, is already called ${name}`, { fix: 'choose another name' });
}
