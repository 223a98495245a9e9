/**
 * The link to other hosts over libp2p: which connections exist, which one is used, whose are refused.
 *
 * Owns the peers, the choice between several connections to one and the bound on strangers. Streams and requests are
 * connection.ts, dialling is dialing.ts, the node's settings are node.ts, the pause for violators is violations.ts.
 * Two hosts that dial each other at once get two connections. Both stay usable; requests go over the one that the host with
 * the lower id dialled, as long as it has given a sign of life since the newest came up (it may be a corpse of the peer's
 * last crash); whichever side sees the other one idle for 30 s closes it, so that no request under way is cut.
 */
import type { Connection, Libp2p, Stream } from '@libp2p/interface';
import { AxError } from '../../protocol/errors.ts';
import { parseHostId } from '../../protocol/identity.ts';
import type { HostKey } from '../../protocol/identity.ts';
import type { HostId } from '../../protocol/ids.ts';
import { MAX_HELLO_BYTES } from '../../protocol/channel.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import type { Clock } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { PeerConnection, addressOf, orOver, peerSlots } from './connection.ts';
import type { ConnectionHooks } from './connection.ts';
import { Dialer } from './dialing.ts';
import type { Peer } from './dialing.ts';
import type { Channel, Limit, Link, LinkEvents, LinkStatus } from './link.ts';
import { ownAddresses, watchAddresses } from './moved.ts';
import { startNode } from './node.ts';
import { Violations } from './violations.ts';

/** Connections of peers never named, all together, and how long each may stay, ms. */
const MAX_STRANGERS = 16;
/** Of these from one network address, so that nobody alone keeps the others from pairing. */
const MAX_STRANGERS_PER_ADDRESS = 8;
const STRANGER_MS = 10_000;
/** Connections one peer may have at once. */
const CONNECTIONS_PER_PEER = 4;
const TICK_MS = 5000;
/** How often this machine's own addresses are looked at, ms: where one went, no connection may wait for its silence to be noticed. */
const MOVED_TICK_MS = 5000;
const SUPERSEDED_IDLE_MS = 30_000;
/** A sign of life this young needs no other, ms. */
const FRESH_MS = 1000;

export interface Libp2pLinkOptions {
  readonly key: HostKey;
  /** Multiaddrs to listen on; none makes a host that only dials. */
  readonly listen: readonly string[];
  /** This machine's own addresses; by default as the system lists them. */
  readonly ownAddresses?: () => ReadonlySet<string>;
  readonly clock: Clock;
  readonly log: Log;
}

/** The real link. Nothing happens before start(). */
export function createLibp2pLink(options: Libp2pLinkOptions): Link {
  return new Libp2pLink(options);
}

class Libp2pLink implements Link {
  readonly #options: Libp2pLinkOptions;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #peers = new Map<HostId, Peer>();
  readonly #connections = new Map<string, PeerConnection>();
  readonly #violations: Violations;
  readonly #dialer: Dialer;
  #node: Libp2p | undefined;
  /** Set between start() and stop(): no callback is made outside. */
  #events: LinkEvents | undefined;
  #cancelTick: () => void = () => undefined;
  #cancelMovedTick: () => void = () => undefined;

  constructor(options: Libp2pLinkOptions) {
    this.#options = options;
    this.#clock = options.clock;
    this.#log = options.log;
    this.#violations = new Violations(options);
    this.#dialer = new Dialer(options, {
      connection: (id) => this.#connections.get(id),
      best: (peer) => this.#best(peer),
      banLeftMs: (id) => this.#violations.banLeftMs(id),
      wrongKey: (id, address) => this.#events?.onTrouble(id, 'wrong_peer', address),
    });
  }

  async start(events: LinkEvents): Promise<void> {
    this.#events = events;
    try {
      this.#node = await startNode(this.#options.key, this.#options.listen, this.#clock, {
        opened: (connection) => this.#opened(connection),
        closed: (connection) => this.#closed(connection),
        incoming: (channel, stream, connection) => this.#incoming(channel, stream, connection),
        refuses: (peer, address) => this.#refuses(peer, address),
        trusts: (peer) => this.#hooks.trusts(peer as HostId),
        faulted: (error) => this.#log.error('link.internal', { message: error.stack ?? error.message }),
        violated: (connection, error) => this.#violated(connection.remotePeer.toString() as HostId, addressOf(connection), error),
      });
    } catch (error) {
      this.#events = undefined;
      throw error;
    }
    this.#dialer.start(this.#node);
    this.#tickLater();
    this.#movedTickLater(watchAddresses(this.#options.ownAddresses ?? ownAddresses));
    for (const peer of this.#peers.values()) this.#dialer.keep(peer);
  }

  async stop(): Promise<void> {
    const node = this.#node;
    this.#events = undefined;
    this.#node = undefined;
    this.#dialer.stop();
    this.#cancelTick();
    this.#cancelMovedTick();
    for (const peer of this.#peers.values()) peer.cancelRetry?.();
    await Promise.all([...this.#connections.values()].map((connection) => connection.close()));
    await node?.stop();
  }

  request(peerId: HostId, channel: Channel, bytes: Uint8Array, limit: Limit): Promise<Uint8Array> {
    const mostBytes = channel === 'hello' ? MAX_HELLO_BYTES : MAX_FRAME_BYTES;
    if (bytes.length > mostBytes) {
      const message = `a request of ${bytes.length} bytes; at most ${mostBytes} are allowed`;
      return Promise.reject(new AxError('too_large', message, { details: { limit: mostBytes, sent: false } }));
    }
    if (bytes.length === 0) return Promise.reject(new AxError('invalid_argument', 'a request holds at least one byte'));
    if (limit.isOver) {
      const message = 'the time for this request was over before it was sent';
      return Promise.reject(new AxError('timeout', message, { details: { sent: false } }));
    }
    const standing = this.#connected(peerId);
    if (standing === undefined) return this.#askOnNew(peerId, channel, bytes, limit);
    return standing.ask(channel, bytes, limit).catch((error: unknown) => {
      // A connection whose end had not been noticed: nothing left on it, so one more try on another is safe.
      if (!(error instanceof AxError) || error.code !== 'unavailable' || error.details?.['sent'] !== false) throw error;
      return this.#askOnNew(peerId, channel, bytes, limit);
    });
  }

  async #askOnNew(peerId: HostId, channel: Channel, bytes: Uint8Array, limit: Limit): Promise<Uint8Array> {
    const fresh = this.#connected(peerId) ?? (await orOver(this.#dialer.dial(this.#peers.get(peerId)), limit));
    return fresh.ask(channel, bytes, limit);
  }

  learn(peers: ReadonlyMap<HostId, readonly string[]>): void {
    for (const [id, addresses] of peers) {
      const peer = this.#peer(id);
      const changed =
        !peer.learned || addresses.length !== peer.addresses.length || addresses.some((address) => !peer.addresses.includes(address));
      peer.learned = true;
      if (!changed) continue;
      peer.addresses = [...addresses];
      peer.failures = 0;
      // A host that moved may have left a dead connection behind: the new address is dialled once that is known.
      for (const connection of peer.connections) if (this.#clock.monotonic() - connection.heardAt >= FRESH_MS) connection.probe('now');
      this.#dialer.keep(peer);
    }
    for (const peer of this.#peers.values()) {
      if (!peer.learned || peers.has(peer.id)) continue;
      peer.learned = false;
      this.#violations.forget(peer.id);
      peer.addresses = [];
      peer.cancelRetry?.();
      for (const connection of peer.connections) void connection.close();
      this.#forgetIfGone(peer);
    }
  }

  nudge(peerId: HostId): void {
    const peer = this.#peers.get(peerId);
    if (peer === undefined) return;
    peer.failures = 0;
    this.#dialer.keep(peer);
  }

  status(): LinkStatus {
    const listen = (this.#node?.getMultiaddrs() ?? []).map((address) => address.toString().replace(/\/p2p\/[^/]*$/, ''));
    return { listen, connected: [...this.#peers.values()].filter((peer) => peer.connections.length > 0).map((peer) => peer.id) };
  }

  #opened(connection: Connection): void {
    const id = orRefuse(() => parseHostId(connection.remotePeer.toString()));
    if (id === undefined || this.#events === undefined || this.#refuses(id, addressOf(connection))) {
      connection.abort(new Error('refused'));
      return;
    }
    const peer = this.#peer(id);
    const opened = new PeerConnection(connection, id, peer.slots, { clock: this.#clock, log: this.#log }, this.#hooks);
    this.#connections.set(connection.id, opened);
    peer.connections.push(opened);
    peer.cancelRetry?.();
    this.#log.debug('link.connected', { peer: id, address: opened.address, direction: opened.direction });
    for (const older of peer.connections) if (older !== opened) older.probe('now');
    if (!peer.learned) {
      this.#clock.after(STRANGER_MS, () => {
        if (!peer.learned && opened.isOpen) opened.abort('a stranger stayed too long');
      });
    }
    if (peer.connections.length === 1) this.#events.onPeer(id, true);
  }

  #closed(connection: Connection): void {
    const closed = this.#connections.get(connection.id);
    const peer = closed && this.#peers.get(closed.peer);
    this.#connections.delete(connection.id);
    if (closed === undefined || peer === undefined) return;
    peer.connections = peer.connections.filter((other) => other !== closed);
    this.#log.debug('link.disconnected', { peer: peer.id, address: closed.address });
    if (peer.connections.length > 0) return;
    this.#dialer.lost(peer, this.#clock.monotonic() - closed.openedAt);
    if (!peer.learned) this.#unstore(connection);
    this.#forgetIfGone(peer);
    this.#events?.onPeer(peer.id, false);
  }

  #incoming(channel: Channel, stream: Stream, connection: Connection): void {
    const known = this.#connections.get(connection.id);
    if (known === undefined) return stream.abort(new Error('refused'));
    known.answer(channel, stream);
  }

  readonly #hooks: ConnectionHooks = {
    trusts: (peer) => this.#peers.get(peer)?.learned === true,
    handle: (peer, channel, payload) =>
      this.#events?.onRequest(peer, channel, payload) ?? Promise.reject(new AxError('unavailable', 'this host is shutting down')),
    violated: (from, error) => this.#violated(from.peer, from.address, error),
  };

  #violated(id: HostId, address: string, error: AxError): void {
    const peer = this.#peers.get(id);
    const isTold = this.#violations.add({ id, address, learned: peer?.learned === true }, error);
    for (const connection of peer?.connections ?? []) connection.abort(error.message);
    if (isTold) this.#events?.onTrouble(id, 'protocol_violation', address);
  }

  #refuses(id: string, address: string): boolean {
    const peer = this.#peers.get(id as HostId);
    if (this.#violations.banLeftMs(id as HostId) > 0 || (peer?.connections.length ?? 0) >= CONNECTIONS_PER_PEER) return true;
    if (peer?.learned === true) return false;
    const strangers = [...this.#connections.values()].filter((connection) => this.#peers.get(connection.peer)?.learned !== true);
    const neighbours = strangers.filter((connection) => networkOf(connection.address) === networkOf(address));
    return strangers.length >= MAX_STRANGERS || neighbours.length >= MAX_STRANGERS_PER_ADDRESS;
  }

  #connected(id: HostId): PeerConnection | undefined {
    const peer = this.#peers.get(id);
    return peer === undefined || this.#node === undefined ? undefined : this.#best(peer);
  }

  /** The connection requests go over (see the header). */
  #best(peer: Peer): PeerConnection | undefined {
    const [only] = peer.connections;
    if (peer.connections.length === 1) return only!.isOpen ? only : undefined;
    const open = peer.connections.filter((connection) => connection.isOpen);
    const newest = open.at(-1);
    if (newest === undefined) return undefined;
    const preferred = this.#options.key.hostId < peer.id ? 'outbound' : 'inbound';
    return open.findLast((connection) => connection.direction === preferred && connection.heardAt >= newest.openedAt) ?? newest;
  }

  #tickLater(): void {
    this.#cancelTick = this.#clock.after(TICK_MS, () => {
      for (const peer of this.#peers.values()) {
        const best = this.#best(peer);
        best?.probe();
        for (const connection of peer.connections) if (connection !== best) this.#closeIfIdle(connection);
        this.#forgetIfGone(peer);
      }
      this.#violations.sweep();
      this.#tickLater();
    });
  }

  /** A machine that moved asks at once who still answers, and dials the others anew; who was nowhere in reach is tried soon as well. */
  #movedTickLater(hasMoved: () => boolean): void {
    this.#cancelMovedTick = this.#clock.after(MOVED_TICK_MS, () => {
      if (hasMoved()) {
        this.#log.info('link.moved', { connections: this.#connections.size });
        for (const connection of this.#connections.values()) connection.probe('moved');
        for (const peer of this.#peers.values()) if (peer.connections.length === 0) this.nudge(peer.id);
      }
      this.#movedTickLater(hasMoved);
    });
  }

  #closeIfIdle(connection: PeerConnection): void {
    if (this.#clock.monotonic() - connection.heardAt < SUPERSEDED_IDLE_MS) return;
    connection.isIdle().then(
      (idle) => (idle ? connection.close() : undefined),
      (error: unknown) => this.#log.error('link.close_failed', { error: String(error) }),
    );
  }

  #peer(id: HostId): Peer {
    let peer = this.#peers.get(id);
    if (peer === undefined) {
      peer = {
        id,
        slots: peerSlots(),
        addresses: [],
        learned: false,
        connections: [],
        dialing: undefined,
        failures: 0,
        cancelRetry: undefined,
      };
      this.#peers.set(id, peer);
    }
    return peer;
  }

  /** Drops what is known of a stranger that left, unless requests of it are still being answered. */
  #forgetIfGone(peer: Peer): void {
    if (peer.learned || peer.connections.length > 0 || peer.slots.wire.taken + peer.slots.hello.taken > 0) return;
    this.#peers.delete(peer.id);
  }

  /** The library keeps a record of everybody who ever opened a stream; strangers must not fill the memory with those. */
  #unstore(connection: Connection): void {
    this.#node?.peerStore
      .delete(connection.remotePeer)
      .catch((error: unknown) => this.#log.debug('link.unstore_failed', { error: String(error) }));
  }
}

/** Whose address it is: an IPv4 address, or the 64 bits of an IPv6 address that a network gives to one line. */
export function networkOf(address: string): string {
  const [, kind, host = ''] = address.split('/');
  if (kind !== 'ip6') return host;
  if (host.toLowerCase().startsWith('::ffff:') && host.includes('.')) return host.slice(7);
  const [head = '', tail] = host.split('::');
  const groups = head === '' ? [] : head.split(':');
  const behind = tail === undefined || tail === '' ? 0 : tail.split(':').length;
  const filled = tail === undefined ? groups : [...groups, ...Array.from({ length: Math.max(0, 8 - groups.length - behind) }, () => '0')];
  return filled
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(':');
}

function orRefuse<T>(parse: () => T): T | undefined {
  try {
    return parse();
  } catch (error) {
    if (error instanceof AxError) return undefined;
    throw error;
  }
}
