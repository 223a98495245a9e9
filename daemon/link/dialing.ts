/**
 * Keeping a connection to every named peer: who is dialled, at which address, and how long to wait after a failure.
 *
 * Owns the pauses (growing, jittered, by the clock seam) and the one dial under way per peer that all its callers share;
 * not the connections themselves. A peer is dialled when it is named, when its last connection goes, when somebody has a
 * request for it, and when nudged.
 */
import { randomInt } from 'node:crypto';
import type { Libp2p } from '@libp2p/interface';
import { multiaddr } from '@multiformats/multiaddr';
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import { RETRY_CAP_MS, RETRY_FIRST_MS } from '../../protocol/limits.ts';
import type { Clock } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { deadline } from './connection.ts';
import type { PeerConnection, PeerSlots } from './connection.ts';
import { dialReason, isWrongKey } from './node.ts';

const DIAL_TIMEOUT_MS = 6000;
/** A connection that lived this long was a success: the next pause is the first again, ms. */
const STABLE_MS = 30_000;
/** A peer that takes connections and drops them is up (restarting, or not trusting this host yet): its pauses end here. */
const MOST_FLAPS = 4;

/** What is known of one peer, named or connected. */
export interface Peer {
  readonly id: HostId;
  readonly slots: PeerSlots;
  /** In the order they are tried: the last one that worked first. */
  addresses: readonly string[];
  /** Named by this host's owner; everybody else is a stranger. */
  learned: boolean;
  /** Oldest first. */
  connections: PeerConnection[];
  dialing: Promise<PeerConnection> | undefined;
  failures: number;
  cancelRetry: (() => void) | undefined;
}

export interface DialerHooks {
  /** The connection made under a libp2p connection id, if it was accepted here. */
  connection(id: string): PeerConnection | undefined;
  /** The connection in use to a peer, for one that arrived while it was being dialled. */
  best(peer: Peer): PeerConnection | undefined;
  banLeftMs(id: HostId): number;
  wrongKey(id: HostId, address: string): void;
}

export class Dialer {
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #hooks: DialerHooks;
  #node: Libp2p | undefined;

  constructor(seams: { clock: Clock; log: Log }, hooks: DialerHooks) {
    this.#clock = seams.clock;
    this.#log = seams.log;
    this.#hooks = hooks;
  }

  start(node: Libp2p): void {
    this.#node = node;
  }

  /** From here on nothing is dialled. Retries are cancelled by their peers' owner. */
  stop(): void {
    this.#node = undefined;
  }

  /** Sees to it that a named peer with addresses has a connection, a dial under way or a next try. */
  keep(peer: Peer): void {
    if (!this.#shouldDial(peer)) return;
    if (this.#hooks.banLeftMs(peer.id) > 0) return this.#retryLater(peer);
    this.dial(peer).catch((error: unknown) =>
      this.#log.debug('link.dial_failed', { peer: peer.id, error: String(error), failures: peer.failures }),
    );
  }

  /** The last connection to a peer went down, having lived `livedMs`. */
  lost(peer: Peer, livedMs: number): void {
    peer.failures = livedMs >= STABLE_MS ? 1 : Math.min(peer.failures + 1, MOST_FLAPS);
    this.#retryLater(peer);
  }

  /** Joins the dial under way or begins one; AxError `unavailable` or `wrong_peer`, both with `details.sent` false. */
  async dial(peer: Peer | undefined): Promise<PeerConnection> {
    const refuse = (message: string): AxError => new AxError('unavailable', message, { details: { sent: false } });
    if (this.#node === undefined) throw refuse('this host is shutting down');
    if (peer === undefined || peer.addresses.length === 0) throw refuse('the host is not connected and no address is known for it');
    if (this.#hooks.banLeftMs(peer.id) > 0) throw refuse('the host violated the protocol and is left alone for a while');
    peer.dialing ??= this.#dialEach(this.#node, peer).finally(() => {
      peer.dialing = undefined;
    });
    return peer.dialing;
  }

  #shouldDial(peer: Peer): boolean {
    return this.#node !== undefined && peer.learned && peer.addresses.length > 0 && peer.connections.length === 0;
  }

  #retryLater(peer: Peer): void {
    peer.cancelRetry?.();
    if (!this.#shouldDial(peer)) return;
    const pauseMs = Math.min(RETRY_CAP_MS, RETRY_FIRST_MS * 2 ** Math.min(20, Math.max(0, peer.failures - 1)));
    const jitteredMs = (pauseMs * (500 + randomInt(501))) / 1000;
    peer.cancelRetry = this.#clock.after(Math.max(jitteredMs, this.#hooks.banLeftMs(peer.id)), () => this.keep(peer));
  }

  /** Address after address: the library dials them in turn as well, but does not say which one had the wrong key. */
  async #dialEach(node: Libp2p, peer: Peer): Promise<PeerConnection> {
    const reasons: string[] = [];
    let wrongAt: string | undefined;
    for (const address of peer.addresses) {
      const limit = deadline(this.#clock, DIAL_TIMEOUT_MS);
      try {
        const { id } = await node.dial(multiaddr(`${address}/p2p/${peer.id}`), { signal: limit.signal });
        peer.addresses = [address, ...peer.addresses.filter((other) => other !== address)];
        const opened = this.#hooks.connection(id);
        if (opened?.isOpen === true) return opened;
        reasons.push(`${address}: closed at once`);
      } catch (error) {
        reasons.push(`${address}: ${dialReason(error)}`);
        if (isWrongKey(error)) {
          wrongAt = address;
          this.#hooks.wrongKey(peer.id, address);
        }
      } finally {
        limit.clear();
      }
      const arrived = this.#hooks.best(peer);
      if (arrived !== undefined) return arrived;
    }
    peer.failures += 1;
    this.#retryLater(peer);
    if (wrongAt !== undefined)
      throw new AxError('wrong_peer', `another host answers at ${wrongAt}`, { details: { sent: false, address: wrongAt } });
    throw new AxError('unavailable', `the host cannot be reached (${reasons.join('; ')})`, { details: { sent: false } });
  }
}
