/**
 * What other hosts were refused here for want of a right, so that this host's owner sees it and knows what to type.
 *
 * Owns a short memory of this life of the daemon: who asked, what was missing, since when. Whoever is refused tries again, so a restart
 * loses nothing for long. Bounded, and not durable: strangers can write it. Decides nothing.
 */
import type { HostId } from '../protocol/ids.ts';
import { shellQuote } from '../protocol/paths.ts';
import type { GrantAction } from '../protocol/states.ts';
import type { Clock } from './clock/clock.ts';
import type { Peers } from './peers.ts';

interface Refused {
  readonly host: HostId;
  /** Null: the host is not paired at all. */
  readonly action: GrantAction | null;
  /** Canonical; null when no workspace would have done. */
  readonly workspace: string | null;
  readonly since: number;
  last: number;
}

/** Refusals remembered: of paired hosts, of one of them, and of strangers; nobody can push out what is known of another. */
const MAX_KNOWN = 100;
const MAX_OF_HOST = 8;
const MAX_STRANGERS = 8;
/** How long one is shown after it happened last, ms. */
const SHOWN_MS = 3_600_000;

const EFFECT: Partial<Record<GrantAction, string>> = {
  read: 'asked for the sessions here and was refused',
  write: 'tried to leave messages here and was refused',
  notify: 'sends messages that are kept as notes and wake nobody',
};

export class Refusals {
  readonly #clock: Clock;
  readonly #peers: Peers;
  readonly #known = new Map<string, Refused>();
  readonly #strangers = new Map<HostId, Refused>();

  constructor(clock: Clock, peers: Peers) {
    this.#clock = clock;
    this.#peers = peers;
  }

  /** A paired host was refused an action, in a workspace or (null) anywhere. */
  note(host: HostId, action: GrantAction, workspace: string | null): void {
    const key = `${host} ${action} ${workspace ?? ''}`;
    const own = [...this.#known].filter(([, one]) => one.host === host).map(([known]) => known);
    if (own.length >= MAX_OF_HOST && !own.includes(key)) this.#known.delete(own[0]!);
    this.#keep(this.#known, key, { host, action, workspace }, MAX_KNOWN);
  }

  /** A host that is not paired asked for something only paired hosts get. */
  stranger(host: HostId): void {
    this.#keep(this.#strangers, host, { host, action: null, workspace: null }, MAX_STRANGERS);
  }

  #keep<K>(map: Map<K, Refused>, key: K, what: Pick<Refused, 'host' | 'action' | 'workspace'>, max: number): void {
    const now = this.#clock.now();
    const old = map.get(key);
    map.delete(key); // the newest stands last
    const [first] = map.keys();
    if (map.size >= max && first !== undefined) map.delete(first);
    map.set(key, { ...what, since: old?.since ?? now, last: now });
  }

  /** What still stands, as rows for people; what was granted, or paired, since is gone. */
  rows(): { readonly what: string; readonly since: number; readonly fix: string }[] {
    const isShown = (one: Refused): boolean => this.#clock.now() - one.last < SHOWN_MS;
    const known = [...this.#known.values()].filter(isShown).flatMap((one) => {
      const peer = this.#peers.get(one.host);
      if (peer === undefined || one.action === null || this.#peers.may(one.host, one.action, one.workspace)) return [];
      const where = one.workspace === null ? '' : ` (${one.workspace})`;
      const grant = `ax host grant ${shellQuote(peer.name)} ${one.action}`;
      const narrow = one.workspace === null ? '' : ` --workspace ${shellQuote(one.workspace)}`;
      return [
        {
          what: `${peer.name} ${EFFECT[one.action] ?? `was refused ${one.action}`}${where}`,
          since: one.since,
          fix: `if it should: ${grant}${narrow}; otherwise nothing need be done`,
        },
      ];
    });
    const strangers = [...this.#strangers.values()].filter((one) => isShown(one) && this.#peers.get(one.host) === undefined);
    return [
      ...known,
      ...strangers.map((one) => ({
        what: `the host ${one.host}, which is not paired with this one, tried to reach it`,
        since: one.since,
        fix: 'if it is yours: ax host invite here, then ax host join there; otherwise nothing need be done',
      })),
    ];
  }
}
