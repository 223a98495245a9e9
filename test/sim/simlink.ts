/**
 * One daemon's end of the simulated network: the Link interface over SimNetwork.
 *
 * Owns what a real link owns for its host: the named peers, the dialling with growing pauses, the pause for violators.
 * Callbacks are made only between start() and stop() or a crash; after a crash promises of this link never settle, as those
 * of a dead process.
 */
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import { MAX_FRAME_BYTES, RETRY_CAP_MS, RETRY_FIRST_MS } from '../../protocol/limits.ts';
import type { Limit } from '../../daemon/clock/within.ts';
import type { Channel, Link, LinkEvents, LinkStatus } from '../../daemon/link/link.ts';
import type { Flight, SimNetwork } from './network.ts';

const BAN_MS = 30_000;
const MOST_FLAPS = 4;

interface Known {
  addresses: readonly string[];
  failures: number;
  dialing: Promise<void> | undefined;
  cancelRetry: (() => void) | undefined;
}

export class SimLink implements Link {
  readonly hostId: HostId;
  readonly dialable: boolean;
  readonly #network: SimNetwork;
  readonly #known = new Map<HostId, Known>();
  readonly #bannedUntil = new Map<HostId, number>();
  #events: LinkEvents | undefined;

  constructor(network: SimNetwork, hostId: HostId, dialable: boolean) {
    this.#network = network;
    this.hostId = hostId;
    this.dialable = dialable;
  }

  async start(events: LinkEvents): Promise<void> {
    this.#events = events;
    for (const id of this.#known.keys()) this.#keep(id);
  }

  async stop(): Promise<void> {
    this.kill();
    for (const wire of this.#network.wiresOf(this)) {
      for (const flight of wire.flights)
        if (flight.from === this) flight.settle(new AxError('unavailable', 'this host is shutting down', { details: { sent: true } }));
      this.#network.world.after(this.#network.delayMs(), () => this.#network.drop(wire, 'stopped'));
    }
  }

  async request(peer: HostId, channel: Channel, bytes: Uint8Array, limit: Limit): Promise<Uint8Array> {
    if (bytes.length > MAX_FRAME_BYTES)
      throw new AxError('too_large', 'the request is too large', { details: { limit: MAX_FRAME_BYTES, sent: false } });
    if (bytes.length === 0) throw new AxError('invalid_argument', 'a request holds at least one byte');
    if (limit.isOver) throw timedOut(false);
    if (this.#network.wire(this, peer) === undefined) await this.#orOver(this.#dial(peer), limit);
    return this.#send(peer, channel, bytes, limit);
  }

  learn(peers: ReadonlyMap<HostId, readonly string[]>): void {
    for (const [id, addresses] of peers) {
      const known = this.#known.get(id) ?? { addresses: [], failures: 0, dialing: undefined, cancelRetry: undefined };
      if (this.#known.has(id) && addresses.join() === known.addresses.join()) continue;
      known.addresses = [...addresses];
      known.failures = 0;
      this.#known.set(id, known);
      this.#keep(id);
    }
    for (const [id, known] of this.#known) {
      if (peers.has(id)) continue;
      known.cancelRetry?.();
      this.#known.delete(id);
      const wire = this.#network.wire(this, id);
      if (wire !== undefined) this.#network.drop(wire, 'forgotten');
    }
  }

  nudge(peer: HostId): void {
    const known = this.#known.get(peer);
    if (known === undefined) return;
    known.failures = 0;
    this.#keep(peer);
  }

  status(): LinkStatus {
    const listen = this.dialable && this.isRunning ? [this.#network.addressOf(this.hostId)] : [];
    return { listen, connected: this.#network.wiresOf(this).map((wire) => this.#network.farEnd(wire, this).hostId) };
  }

  // What the network uses.

  get isRunning(): boolean {
    return this.#events !== undefined;
  }

  /** No callback from here on: the process is gone, or the link stopped. */
  kill(): void {
    this.#events = undefined;
    for (const known of this.#known.values()) known.cancelRetry?.();
  }

  knows(peer: HostId): boolean {
    return this.#known.has(peer);
  }

  refuses(peer: HostId): boolean {
    return (this.#bannedUntil.get(peer) ?? 0) > this.#network.world.time;
  }

  wentUp(peer: HostId): void {
    this.#known.get(peer)?.cancelRetry?.();
    this.#events?.onPeer(peer, true);
  }

  wentDown(peer: HostId): void {
    const known = this.#known.get(peer);
    if (known !== undefined) {
      known.failures = Math.min(known.failures + 1, MOST_FLAPS);
      this.#retryLater(peer, known);
    }
    this.#events?.onPeer(peer, false);
  }

  async receive(peer: HostId, channel: Channel, bytes: Uint8Array): Promise<Uint8Array> {
    if (this.#events === undefined) throw new AxError('unavailable', 'not running');
    return this.#events.onRequest(peer, channel, bytes.slice()); // a copy that comes twice is other memory, and its receiver's own
  }

  violatedBy(peer: HostId, address: string): void {
    this.#bannedUntil.set(peer, this.#network.world.time + BAN_MS);
    this.#events?.onTrouble(peer, 'protocol_violation', address);
  }

  #send(peer: HostId, channel: Channel, bytes: Uint8Array, limit: Limit): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      const wire = this.#network.wire(this, peer);
      if (limit.isOver) return reject(timedOut(false));
      if (wire === undefined || !this.isRunning)
        return reject(new AxError('unavailable', 'the connection ended', { details: { sent: false } }));
      let settled = false;
      const flight: Flight = {
        from: this,
        to: this.#network.farEnd(wire, this),
        channel,
        bytes: Uint8Array.from(bytes),
        settle: (outcome) => {
          if (settled) return;
          settled = true;
          wire.flights.delete(flight);
          if (outcome instanceof AxError) reject(outcome);
          else resolve(outcome);
        },
      };
      limit.onOver(() => flight.settle(timedOut(true)));
      this.#network.carry(wire, flight);
    });
  }

  #keep(peer: HostId): void {
    const known = this.#known.get(peer);
    if (!this.isRunning || known === undefined || known.addresses.length === 0 || this.#network.wire(this, peer) !== undefined) return;
    if (this.refuses(peer)) return this.#retryLater(peer, known);
    this.#dial(peer).catch((error: unknown) => {
      if (!(error instanceof AxError)) this.#network.world.faults.push(error);
    });
  }

  #retryLater(peer: HostId, known: Known): void {
    known.cancelRetry?.();
    if (!this.isRunning) return;
    const pauseMs = Math.min(RETRY_CAP_MS, RETRY_FIRST_MS * 2 ** Math.max(0, known.failures - 1));
    const banLeftMs = (this.#bannedUntil.get(peer) ?? 0) - this.#network.world.time;
    const jitteredMs = pauseMs * (0.5 + this.#network.world.random() / 2);
    known.cancelRetry = this.#network.world.after(Math.max(jitteredMs, banLeftMs), () => this.#keep(peer));
  }

  #dial(peer: HostId): Promise<void> {
    const known = this.#known.get(peer);
    if (!this.isRunning || known === undefined || known.addresses.length === 0 || this.refuses(peer)) {
      return Promise.reject(new AxError('unavailable', 'the host is not connected and cannot be dialled', { details: { sent: false } }));
    }
    known.dialing ??= this.#dialEach(peer, known).finally(() => {
      known.dialing = undefined;
    });
    return known.dialing;
  }

  async #dialEach(peer: HostId, known: Known): Promise<void> {
    let failure = new AxError('unavailable', 'the host cannot be reached', { details: { sent: false } });
    for (const address of known.addresses) {
      const error = await new Promise<AxError | undefined>((resolve) => this.#network.dial(this, peer, address, resolve));
      if (error === undefined) return;
      if (error.code === 'wrong_peer') this.#events?.onTrouble(peer, 'wrong_peer', address);
      if (failure.code !== 'wrong_peer') failure = error;
    }
    known.failures += 1;
    if (this.#known.get(peer) === known) this.#retryLater(peer, known);
    throw failure;
  }

  #orOver(promise: Promise<void>, limit: Limit): Promise<void> {
    return new Promise((resolve, reject) => {
      limit.onOver(() => reject(timedOut(false)));
      promise.then(resolve, reject);
    });
  }
}

const timedOut = (sent: boolean): AxError => new AxError('timeout', 'the peer did not answer in time', { details: { sent } });
