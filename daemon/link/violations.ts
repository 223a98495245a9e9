/**
 * What became of peers that sent what no honest peer sends: how long each is refused, and how often it is told.
 *
 * Owns the bans and the telling, both bounded: keys cost a stranger nothing, so neither memory nor log may grow with their
 * number. Does not close connections.
 */
import type { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import type { Clock } from '../clock/clock.ts';
import type { Log } from '../log.ts';

/** How long a peer that violated the protocol is refused, ms; how many such peers are remembered. */
const BAN_MS = 30_000;
const MAX_BANS = 1024;
/** A named peer's violations are told at most once in this time, ms. */
const TOLD_EVERY_MS = 60_000;

export interface Violator {
  readonly id: HostId;
  readonly address: string;
  /** Named by this host's owner. */
  readonly learned: boolean;
}

export class Violations {
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #bannedUntil = new Map<HostId, number>();
  /** Of named peers only: when they were told of last, and how many violations went untold since. */
  readonly #told = new Map<HostId, { at: number; untold: number }>();
  #byStrangers = 0;

  constructor(seams: { clock: Clock; log: Log }) {
    this.#clock = seams.clock;
    this.#log = seams.log;
  }

  /** Bans the peer. True when this one is told: of strangers all together the 1st, 2nd, 4th, 8th and so on; of a named peer one a minute. */
  add({ id, address, learned }: Violator, error: AxError): boolean {
    this.#ban(id);
    const fields = { peer: id, address, code: error.code, error: error.message };
    if (!learned) {
      this.#byStrangers += 1;
      if ((this.#byStrangers & (this.#byStrangers - 1)) !== 0) return false;
      this.#log.warn('link.violation', { ...fields, byStrangers: this.#byStrangers });
      return true;
    }
    const told = this.#told.get(id);
    if (told !== undefined && this.#clock.monotonic() - told.at < TOLD_EVERY_MS) {
      told.untold += 1;
      return false;
    }
    this.#log.warn('link.violation', { ...fields, untold: told?.untold ?? 0 });
    this.#told.set(id, { at: this.#clock.monotonic(), untold: 0 });
    return true;
  }

  /** How long the peer is still refused, ms; not positive when it is welcome. */
  banLeftMs(id: HostId): number {
    return (this.#bannedUntil.get(id) ?? 0) - this.#clock.monotonic();
  }

  /** Forgets what is over; called now and then. */
  sweep(): void {
    const now = this.#clock.monotonic();
    for (const [id, until] of this.#bannedUntil) if (until <= now) this.#bannedUntil.delete(id);
    for (const [id, { at, untold }] of this.#told) if (untold === 0 && now - at >= TOLD_EVERY_MS) this.#told.delete(id);
  }

  /** A peer is named no longer. */
  forget(id: HostId): void {
    this.#told.delete(id);
  }

  #ban(id: HostId): void {
    // Again at the end of the line: the one banned longest ago goes first when there are too many.
    this.#bannedUntil.delete(id);
    const [oldest] = this.#bannedUntil.keys();
    if (oldest !== undefined && this.#bannedUntil.size >= MAX_BANS) this.#bannedUntil.delete(oldest);
    this.#bannedUntil.set(id, this.#clock.monotonic() + BAN_MS);
  }
}
