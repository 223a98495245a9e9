/**
 * The machine that one simulated host runs on: its two clocks, whether it sleeps, its disk, and the build of ax that is installed there.
 *
 * Owns what outlives a daemon. While it sleeps nothing of its daemon runs: what comes is kept in order until it wakes. `suspended` is a
 * laptop with its lid closed (running time stands still), `stopped` a daemon under SIGSTOP (running time goes on, and every timer that
 * came due meanwhile fires at once). Another build speaks another range of peer protocols, which only its greetings show.
 */
import type { Clock } from '../../daemon/clock/clock.ts';
import { PEER_PROTOCOL } from '../../protocol/version.ts';
import type { ProtocolRange } from '../../protocol/version.ts';
import { encodeHello, encodeHelloAnswer, readHello, readHelloAnswer } from '../../protocol/wire.ts';
import type { World } from './world.ts';

export type Sleep = 'suspended' | 'stopped';

/** The wall clock of a world begins here, ms since 1970. */
const EPOCH_MS = 1_790_000_000_000;

export class Machine {
  /** How far its wall clock is off, ms. */
  skewMs = 0;
  freeBytes = 2 ** 40;
  /** While set, flushes of its store fail with it; after `internal` (the disk failed) the store stays broken until a restart. */
  storeFailure: 'store_full' | 'internal' | undefined;
  protocol: ProtocolRange = PEER_PROTOCOL;
  readonly #world: World;
  #sleep: { readonly kind: Sleep; readonly since: number } | undefined;
  /** Virtual ms that running time did not count, before the present sleep. */
  #uncounted = 0;
  #kept: (() => void)[] = [];

  constructor(world: World) {
    this.#world = world;
  }

  get isAsleep(): boolean {
    return this.#sleep !== undefined;
  }

  sleep(kind: Sleep): void {
    this.#sleep ??= { kind, since: this.#world.time };
  }

  /** What came meanwhile happens now, in the order in which it came. */
  wake(): void {
    const sleep = this.#sleep;
    if (sleep === undefined) return;
    if (sleep.kind === 'suspended') this.#uncounted += this.#world.time - sleep.since;
    this.#sleep = undefined;
    for (const run of this.#kept.splice(0)) run();
  }

  /** Now, or when it wakes. */
  whenAwake(run: () => void): void {
    if (this.#sleep === undefined) run();
    else this.#kept.push(run);
  }

  /** The same for a promise: it settles while the machine is awake. */
  async awake<T>(promise: Promise<T>): Promise<T> {
    const wait = (): Promise<void> => new Promise((resolve) => this.whenAwake(resolve));
    try {
      const value = await promise;
      if (this.isAsleep) await wait();
      return value;
    } catch (error) {
      if (this.isAsleep) await wait();
      throw error;
    }
  }

  /** Ms that the machine has been awake, as its monotonic clock counts them; grows over all lives of its daemon, and while none lives. */
  monotonic(): number {
    const now = this.#sleep?.kind === 'suspended' ? this.#sleep.since : this.#world.time;
    return now - this.#uncounted;
  }

  wall(): number {
    return EPOCH_MS + Math.floor(this.#world.time) + this.skewMs;
  }

  /** The clock of one life of the daemon; `alive` ends its timers. */
  clock(alive: () => boolean): Clock {
    const born = this.monotonic();
    const after = (delayMs: number, run: () => void): (() => void) => {
      const due = this.monotonic() + Math.max(0, delayMs);
      let cancel: () => void;
      let isCancelled = false;
      const arm = (ms: number): void => {
        cancel = this.#world.after(ms, () => this.whenAwake(fire));
      };
      const fire = (): void => {
        if (!alive() || isCancelled) return;
        const left = due - this.monotonic();
        if (left > 0) arm(left);
        else run();
      };
      arm(delayMs);
      return () => {
        isCancelled = true;
        cancel();
      };
    };
    return { now: () => this.wall(), monotonic: () => this.monotonic() - born, after };
  }

  /** A greeting that leaves, or the answer to one, as the installed build says it. */
  speaks(bytes: Uint8Array, isAnswer: boolean): Uint8Array {
    if (this.protocol === PEER_PROTOCOL) return bytes;
    return isAnswer
      ? encodeHelloAnswer({ ...readHelloAnswer(bytes), range: this.protocol })
      : encodeHello({ ...readHello(bytes), range: this.protocol });
  }

  /** One that arrives, as the installed build understands it: the core under it believes that it speaks PEER_PROTOCOL. */
  hears(bytes: Uint8Array, isAnswer: boolean): Uint8Array {
    if (this.protocol === PEER_PROTOCOL) return bytes;
    const by = PEER_PROTOCOL.min - this.protocol.min;
    const moved = (range: ProtocolRange): ProtocolRange => ({ min: range.min + by, max: range.max + by });
    if (isAnswer) {
      const answer = readHelloAnswer(bytes);
      return encodeHelloAnswer({ ...answer, range: moved(answer.range) });
    }
    const hello = readHello(bytes);
    return encodeHello({ ...hello, range: moved(hello.range) });
  }
}
