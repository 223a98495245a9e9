/**
 * The seam to other hosts: authenticated, encrypted request and answer between two host ids.
 *
 * Owns the interface only. Real: libp2p.ts (TCP, Noise, yamux). Simulated: a network with loss, duplication, delay,
 * reordering, partitions, resets. The same contract suite runs on both.
 * Bytes are opaque here; who may ask what is decided in the exchange. A request that fails says nothing about whether the
 * other side acted on it.
 */
import type { HostId } from '../../protocol/ids.ts';

/** `hello` is frozen for ever (one frame each way); `wire` carries everything else in the common protocol version. */
export type Channel = 'hello' | 'wire';

/** The time a request has, for whoever works on it at the moment: one listener, the last. Made by clock/within. */
export interface Limit {
  readonly isOver: boolean;
  /** Has `run` called when the time is over, in place of what was to be called before; not when it is over already. */
  onOver(run: () => void): void;
}

export interface LinkEvents {
  /**
   * A request from `peer`, authenticated by its connection. The result is the answer's bytes. A rejection with an AxError
   * of code `bad_signature`, `wrong_peer` or `protocol_violation` closes the connection without an answer.
   */
  onRequest(peer: HostId, channel: Channel, bytes: Uint8Array): Promise<Uint8Array>;
  /** The first connection to `peer` came up, or the last one went down. */
  onPeer(peer: HostId, up: boolean): void;
  /**
   * A dial found another key at a known address, or a peer misbehaved below the requests: for status and the log. Misbehaviour
   * that repeats is told less often: a named peer's once a minute, that of all others the 1st, 2nd, 4th, 8th time and so on.
   */
  onTrouble(peer: HostId, code: 'wrong_peer' | 'protocol_violation', address: string): void;
}

export interface LinkStatus {
  /** Addresses this host listens on, as multiaddrs without the /p2p part; wildcard addresses expanded to interfaces. */
  readonly listen: readonly string[];
  readonly connected: readonly HostId[];
}

export interface Link {
  /** Listens. Rejects with AxError `unavailable` naming the address when it cannot be bound. */
  start(events: LinkEvents): Promise<void>;
  /** Closes every connection and listener; requests under way reject. */
  stop(): Promise<void>;
  /**
   * Sends one request (at most MAX_FRAME_BYTES, on hello MAX_HELLO_BYTES) and resolves with the answer's bytes. Dials a known peer when there is no
   * connection. Rejects with AxError: `unavailable` (no address, refused, reset), `timeout` (the limit is over),
   * `wrong_peer` (another key answered), `update_required` (the peer does not speak this channel), `too_large`.
   * After a rejection bytes may have reached the peer, except with `details.sent === false`.
   */
  request(peer: HostId, channel: Channel, bytes: Uint8Array, limit: Limit): Promise<Uint8Array>;
  /**
   * Names the peers this host is paired with and where they may be dialled (multiaddrs, without /p2p). The link keeps one
   * connection to each peer that has an address, dialling again with growing pauses; a peer left out of the next call is
   * forgotten and its connections are closed. Peers never named may connect, few at a time and for 10 s.
   */
  learn(peers: ReadonlyMap<HostId, readonly string[]>): void;
  /** Dials at once (instead of at the next try). Resolves whether or not it worked. */
  nudge(peer: HostId): void;
  status(): LinkStatus;
}
