/**
 * The simulated network: Links for the daemons of one world, with every fault a real one has, all chosen by the seed.
 *
 * Owns connections between links, what travels on them and what becomes of it: delay, reordering, loss of a request or of
 * an answer, a second copy, mutated bytes, resets, partitions one and two ways, crashed hosts, a wrong key at an address.
 * No fault is on by default. Everything happens in events of the world; a request under way ends by an answer, by its
 * caller's signal, or by `unavailable` when its connection goes.
 */
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import type { Channel, Link } from '../../daemon/link/link.ts';
import { readAnswer } from '../../protocol/wire.ts';
import { SimLink } from './simlink.ts';
import type { World } from './world.ts';

/** Probabilities per request, and the delay of one way. A delay drawn per copy is also what reorders. */
export interface NetworkFaults {
  loseRequest: number;
  loseAnswer: number;
  duplicate: number;
  mutate: number;
  minDelayMs: number;
  maxDelayMs: number;
}

/** One connection between two running links; `first` dialled. */
export interface Wire {
  readonly first: SimLink;
  readonly second: SimLink;
  readonly flights: Set<Flight>;
  open: boolean;
}

/** One request under way. */
export interface Flight {
  readonly from: SimLink;
  readonly to: SimLink;
  readonly channel: Channel;
  readonly bytes: Uint8Array;
  /** Only the first call counts. */
  settle(outcome: Uint8Array | AxError): void;
}

const VIOLATIONS = new Set(['protocol_violation', 'bad_signature', 'wrong_peer']);
const STRANGER_MS = 10_000;
const MAX_STRANGERS = 16;

export class SimNetwork {
  readonly world: World;
  readonly faults: NetworkFaults = { loseRequest: 0, loseAnswer: 0, duplicate: 0, mutate: 0, minDelayMs: 1, maxDelayMs: 20 };
  /** What happened, for the workload's own checks that its faults were reached. */
  readonly counts = { delivered: 0, lostRequests: 0, lostAnswers: 0, duplicates: 0, mutated: 0, resets: 0, connects: 0 };
  /** A process that does not run completes no handshake; what stands already is kept up by its system. */
  isAsleep: (host: HostId) => boolean = () => false;
  readonly #links = new Map<HostId, SimLink>();
  /** Where each host lives, and who answers at an address now. */
  readonly #homes = new Map<HostId, string>();
  readonly #addresses = new Map<string, HostId>();
  readonly #wires = new Set<Wire>();
  /** One entry per direction that carries nothing: "from>to". */
  readonly #cuts = new Set<string>();

  constructor(world: World) {
    this.world = world;
  }

  /** A link for a host, not started. Made again for a restart: the earlier link of that host must be stopped or detached. */
  link(hostId: HostId, options: { readonly dialable?: boolean } = {}): Link {
    const link = new SimLink(this, hostId, options.dialable ?? true);
    this.#links.set(hostId, link);
    return link;
  }

  /** The address of a host, the same for its whole life. */
  addressOf(hostId: HostId): string {
    const known = this.#homes.get(hostId);
    if (known !== undefined) return known;
    const address = `/ip4/10.0.${Math.floor(this.#homes.size / 250)}.${(this.#homes.size % 250) + 1}/tcp/4001`;
    this.#homes.set(hostId, address);
    this.#addresses.set(address, hostId);
    return address;
  }

  /** From now on `hostId` answers at `address`: a dial that expects another host finds a wrong key. */
  takeOver(address: string, hostId: HostId): void {
    this.#addresses.set(address, hostId);
  }

  /** The host's process dies: no goodbye. Others notice soon (its system closes the sockets) or late (the machine died). */
  detach(hostId: HostId): void {
    const link = this.#links.get(hostId);
    if (link === undefined) return;
    this.world.note(`net   crash ${short(hostId)}`);
    link.kill();
    for (const wire of this.wiresOf(link)) {
      const noticedMs = this.world.chance(0.8) ? this.delayMs() : this.world.between(1000, 60_000);
      this.world.after(noticedMs, () => this.drop(wire, 'peer died'));
    }
  }

  /** Nothing gets from `a` to `b` any more, nor back unless `oneWay`. Standing connections die only when it is noticed. */
  partition(a: HostId, b: HostId, oneWay = false): void {
    this.world.note(`net   partition ${short(a)} ${oneWay ? '->' : '<->'} ${short(b)}`);
    this.#cuts.add(`${a}>${b}`);
    if (!oneWay) this.#cuts.add(`${b}>${a}`);
    const wire = this.#between(a, b);
    if (wire === undefined) return;
    this.world.after(this.world.between(5000, 60_000), () => {
      if (this.#cut(a, b)) this.drop(wire, 'partition noticed');
    });
  }

  heal(a: HostId, b: HostId): void {
    this.world.note(`net   heal ${short(a)} ${short(b)}`);
    this.#cuts.delete(`${a}>${b}`);
    this.#cuts.delete(`${b}>${a}`);
  }

  healAll(): void {
    if (this.#cuts.size > 0) this.world.note('net   heal all');
    this.#cuts.clear();
  }

  /** The connection between two hosts breaks now; both see it. */
  reset(a: HostId, b: HostId): void {
    const wire = this.#between(a, b);
    if (wire === undefined) return;
    this.counts.resets += 1;
    this.drop(wire, 'reset');
  }

  delayMs(): number {
    return this.world.between(this.faults.minDelayMs, this.faults.maxDelayMs);
  }

  // What links use.

  wiresOf(link: SimLink): Wire[] {
    return [...this.#wires].filter((wire) => wire.first === link || wire.second === link);
  }

  wire(link: SimLink, peer: HostId): Wire | undefined {
    return this.wiresOf(link).find((wire) => this.farEnd(wire, link).hostId === peer);
  }

  farEnd(wire: Wire, link: SimLink): SimLink {
    return wire.first === link ? wire.second : wire.first;
  }

  /** Dials: after a while `done` hears undefined (connected) or why not. */
  dial(from: SimLink, expected: HostId, address: string, done: (error: AxError | undefined) => void): void {
    const owner = this.#addresses.get(address);
    const unreachable = owner === undefined || this.#cut(from.hostId, owner);
    this.world.after(unreachable ? this.world.between(10, 6000) : 2 * this.delayMs(), () => {
      if (!from.isRunning) return;
      const to = owner === undefined ? undefined : this.#links.get(owner);
      if (this.wire(from, expected)?.open === true) return done(undefined);
      const isDeaf = this.isAsleep(from.hostId) || (to !== undefined && this.isAsleep(to.hostId));
      if (to === undefined || !to.isRunning || !to.dialable || to === from || isDeaf || this.#cut(from.hostId, to.hostId)) {
        return done(new AxError('unavailable', 'the host cannot be reached', { details: { sent: false } }));
      }
      if (to.hostId !== expected)
        return done(new AxError('wrong_peer', `another host answers at ${address}`, { details: { sent: false, address } }));
      if (!this.#admits(to, from.hostId))
        return done(new AxError('unavailable', 'the host refused the connection', { details: { sent: false } }));
      this.#connect(from, to);
      done(undefined);
    });
  }

  /** Sends a request over a wire; its fate is drawn here. */
  carry(wire: Wire, flight: Flight): void {
    wire.flights.add(flight);
    if (this.world.chance(this.faults.loseRequest)) {
      this.counts.lostRequests += 1;
      return this.#lose(wire, flight);
    }
    const twice = this.world.chance(this.faults.duplicate);
    if (twice) this.counts.duplicates += 1;
    const copies = { left: twice ? 2 : 1, isTaken: false };
    for (let copy = copies.left; copy > 0; copy--) {
      // A copy that was in the receiver's hands when the connection broke is still acted on; one on its way is not.
      const arrivesAnyway = this.world.chance(0.5);
      this.world.after(this.delayMs(), () => {
        if (wire.open || arrivesAnyway) this.#deliver(wire, flight, copies);
      });
    }
  }

  /** Ends a connection: both ends that still run are told, what is under way on it rejects. */
  drop(wire: Wire, why: string): void {
    if (!wire.open) return;
    wire.open = false;
    this.#wires.delete(wire);
    this.world.note(`net   down ${short(wire.first.hostId)} ${short(wire.second.hostId)} (${why})`);
    for (const flight of wire.flights) flight.settle(ended());
    wire.first.wentDown(wire.second.hostId);
    wire.second.wentDown(wire.first.hostId);
  }

  #connect(from: SimLink, to: SimLink): void {
    // A corpse: the wire of an earlier life of one of the two that nobody noticed yet.
    const stale = this.#between(from.hostId, to.hostId);
    if (stale !== undefined) this.drop(stale, 'replaced');
    const wire: Wire = { first: from, second: to, flights: new Set(), open: true };
    this.#wires.add(wire);
    this.counts.connects += 1;
    this.world.note(`net   up ${short(from.hostId)} ${short(to.hostId)}`);
    for (const [link, peer] of [
      [from, to.hostId],
      [to, from.hostId],
    ] as const) {
      if (!link.knows(peer)) this.world.after(STRANGER_MS, () => (link.knows(peer) ? undefined : this.drop(wire, 'stranger')));
    }
    from.wentUp(to.hostId);
    to.wentUp(from.hostId);
  }

  #admits(link: SimLink, peer: HostId): boolean {
    if (link.refuses(peer)) return false;
    return link.knows(peer) || this.wiresOf(link).filter((wire) => !link.knows(this.farEnd(wire, link).hostId)).length < MAX_STRANGERS;
  }

  #deliver(wire: Wire, flight: Flight, copies: { left: number; isTaken: boolean }): void {
    const { from, to } = flight;
    if (this.#cuts.has(`${from.hostId}>${to.hostId}`) || !to.isRunning) return;
    this.counts.delivered += 1;
    to.receive(from.hostId, flight.channel, this.#perhapsMutated(flight.bytes)).then(
      (answer) => {
        copies.left--;
        const isRefused = flight.channel === 'wire' && isRefusal(answer);
        copies.isTaken ||= !isRefused;
        // A real connection carries a request once. A second copy is there to find what is not proof against one; a refusal is told
        // only when no copy was taken or can be any more, as of a request that was carried once.
        if (!isRefused || (copies.left === 0 && !copies.isTaken)) this.#answer(wire, flight, answer);
      },
      (error: unknown) => {
        if (!to.isRunning) return;
        if (!(error instanceof AxError) || !VIOLATIONS.has(error.code)) return void this.world.faults.push(error);
        to.violatedBy(from.hostId, this.addressOf(from.hostId));
        this.drop(wire, error.code);
      },
    );
  }

  #answer(wire: Wire, flight: Flight, answer: Uint8Array): void {
    if (!flight.to.isRunning) return;
    if (this.world.chance(this.faults.loseAnswer)) {
      this.counts.lostAnswers += 1;
      return this.#lose(wire, flight);
    }
    this.world.after(this.delayMs(), () => {
      if (!wire.open || this.#cuts.has(`${flight.to.hostId}>${flight.from.hostId}`)) return;
      flight.settle(this.#perhapsMutated(answer));
    });
  }

  /** Lost: the caller hears of it by its own clock, or because the connection breaks over it. */
  #lose(wire: Wire, flight: Flight): void {
    if (this.world.chance(0.5)) return;
    this.world.after(this.delayMs(), () => {
      flight.settle(ended());
      wire.flights.delete(flight);
    });
  }

  #perhapsMutated(bytes: Uint8Array): Uint8Array {
    const copy = Uint8Array.from(bytes);
    if (copy.length === 0 || !this.world.chance(this.faults.mutate)) return copy;
    this.counts.mutated += 1;
    const at = this.world.between(0, copy.length - 1);
    copy[at] = copy[at]! ^ (1 << this.world.between(0, 7));
    return copy;
  }

  #between(a: HostId, b: HostId): Wire | undefined {
    return [...this.#wires].find((wire) => [a, b].includes(wire.first.hostId) && [a, b].includes(wire.second.hostId));
  }

  /** A connection needs both directions. */
  #cut(a: HostId, b: HostId): boolean {
    return this.#cuts.has(`${a}>${b}`) || this.#cuts.has(`${b}>${a}`);
  }
}

const ended = (): AxError => new AxError('unavailable', 'the connection to the peer ended', { details: { sent: true } });
const short = (id: HostId): string => id.slice(-6);

/** Is this the answer "no" of a daemon? Tests of the network alone answer with any bytes. */
function isRefusal(answer: Uint8Array): boolean {
  try {
    return !readAnswer(answer).ok;
  } catch (error) {
    if (error instanceof AxError) return false;
    throw error;
  }
}
