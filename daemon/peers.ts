/**
 * The hosts this one is paired with: their ids, local names, addresses and what each may do here; and open invites.
 *
 * Owns the tables `peers` and `invites`. A host is known by its id; its name is a local label, unique here. Grants are what
 * this host's owner allows the other, stored on the destination only. Of an invite only the secret's hash is kept.
 */
import { AxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { MAX_NAME_CHARS, MAX_INVITE_TTL_MS } from '../protocol/limits.ts';
import type { GrantAction } from '../protocol/states.ts';
import { getRow, pack, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface Peer {
  readonly hostId: HostId;
  readonly name: string;
  /** Multiaddrs without /p2p; may be empty (a host that only dials). */
  readonly addresses: readonly string[];
  readonly grants: readonly GrantAction[];
  /** Counts changes of the grants. */
  readonly revision: number;
  readonly addedAt: number;
  readonly lastSeenAt: number | null;
  readonly version: string | null;
}

export interface Invite {
  readonly id: string;
  readonly secretHash: Uint8Array;
  readonly grants: readonly GrantAction[];
  readonly createdAt: number;
  /** Running time, ms, after which it is void. */
  readonly expires: number;
  /** Who redeemed it: the same host may ask again (its answer may have been lost), nobody else. */
  readonly usedBy: HostId | null;
}

/** Open invites at once. */
const MAX_INVITES = 100;

export class Peers {
  readonly #store: Store;
  readonly #ownName: string;

  /** `ownName` is how this host calls itself: no other host may carry it here. */
  constructor(store: Store, ownName: string) {
    this.#store = store;
    this.#ownName = ownName;
  }

  get(hostId: string, reader: StoreReader = this.#store): Peer | undefined {
    return getRow<Peer>(reader, 'peers', hostId);
  }

  all(reader: StoreReader = this.#store): Peer[] {
    return reader.range('peers').map((entry) => unpack<Peer>(entry.value));
  }

  /** Peers whose name equals `name` without regard to case. */
  named(name: string, reader: StoreReader = this.#store): Peer[] {
    const wanted = name.toLowerCase();
    return this.all(reader).filter((peer) => peer.name.toLowerCase() === wanted);
  }

  may(hostId: string, action: GrantAction, reader: StoreReader = this.#store): boolean {
    return this.get(hostId, reader)?.grants.includes(action) ?? false;
  }

  put(tx: StoreTransaction, peer: Peer): void {
    tx.put('peers', peer.hostId, pack(peer));
  }

  /** Adds a host or renews it: addresses are joined, grants replaced. A taken name gets the next free number behind it. */
  add(
    tx: StoreTransaction,
    fresh: { hostId: HostId; name: string; exactName: boolean; addresses: readonly string[]; grants: readonly GrantAction[]; now: number },
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
    const peer: Peer = {
      hostId: fresh.hostId,
      name,
      addresses: [...new Set([...fresh.addresses, ...(known?.addresses ?? [])])].slice(0, 16),
      grants: fresh.grants,
      revision: (known?.revision ?? 0) + 1,
      addedAt: known?.addedAt ?? fresh.now,
      lastSeenAt: known?.lastSeenAt ?? null,
      version: known?.version ?? null,
    };
    this.put(tx, peer);
    return peer;
  }

  rename(tx: StoreTransaction, hostId: HostId, name: string): Peer {
    const peer = this.get(hostId, tx);
    if (peer === undefined) throw new AxError('host_not_found', 'that host is not paired');
    if (name.toLowerCase() === this.#ownName.toLowerCase() || this.named(name, tx).some((other) => other.hostId !== hostId))
      throw nameTaken(name);
    const renamed = { ...peer, name };
    this.put(tx, renamed);
    return renamed;
  }

  /** Forgets a host, and the invites it has used: a code it still holds must not let it in again. */
  remove(tx: StoreTransaction, hostId: HostId): void {
    tx.remove('peers', hostId);
    for (const entry of tx.range('invites')) if (unpack<Invite>(entry.value).usedBy === hostId) tx.remove('invites', entry.key);
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

function nameTaken(name: string): AxError {
  return new AxError('invalid_state', `another host, or this one, is already called ${name}`, { fix: 'choose another name' });
}
