/**
 * One simulated world: one seed, one event queue, one trace; every daemon's clock and every network delay lives in it.
 *
 * Owns virtual time and all chance. Nothing in a simulation waits for real time: `run` takes the earliest event, executes
 * it, lets every promise settle, and takes the next. The same seed gives the same trace.
 */
import type { Clock, Random } from '../../daemon/clock/clock.ts';

interface Scheduled {
  readonly at: number;
  readonly order: number;
  readonly run: () => void;
  cancelled: boolean;
}

export class World {
  readonly seed: number;
  /** Virtual ms since the world began. */
  time = 0;
  readonly trace: string[] = [];
  /** Errors thrown by anything that ran in the world; the runner fails on the first. */
  readonly faults: unknown[] = [];
  #order = 0;
  #heap: Scheduled[] = [];
  #state: number;

  constructor(seed: number) {
    this.seed = seed;
    this.#state = (seed ^ 0x9e3779b9) >>> 0;
  }

  /** Uniform in [0, 1): mulberry32. */
  random(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }

  chance(probability: number): boolean {
    return this.random() < probability;
  }

  /** A whole number from min to max, both included. */
  between(min: number, max: number): number {
    return min + Math.floor(this.random() * (max - min + 1));
  }

  pick<T>(from: readonly T[]): T {
    const item = from[this.between(0, from.length - 1)];
    if (item === undefined) throw new Error('pick from nothing');
    return item;
  }

  /** Schedules `run`; the result cancels it. Times are whole 1024ths of a ms, so that sums of them are exact and no timer seems early. */
  after(delayMs: number, run: () => void): () => void {
    const event: Scheduled = { at: this.time + Math.ceil(Math.max(0, delayMs) * 1024) / 1024, order: this.#order++, run, cancelled: false };
    this.#push(event);
    return () => {
      event.cancelled = true;
    };
  }

  note(line: string): void {
    this.trace.push(`${String(Math.round(this.time)).padStart(9)} ${line}`);
    if (this.trace.length > 20_000) this.trace.splice(0, 10_000);
  }

  /** Runs events until `until` says stop, the queue is empty, or `limitMs` of virtual time has passed. */
  async run(until: () => boolean, limitMs: number): Promise<'done' | 'empty' | 'limit'> {
    const end = this.time + limitMs;
    await this.settle();
    while (this.faults.length === 0) {
      if (until()) return 'done';
      const next = this.#pop();
      if (next === undefined) return 'empty';
      if (next.cancelled) continue;
      if (next.at > end) {
        this.#push(next);
        this.time = end;
        return 'limit';
      }
      this.time = next.at;
      next.run();
      await this.settle();
    }
    throw this.faults[0];
  }

  /** Lets every promise that can go on without an event go on. */
  async settle(): Promise<void> {
    await new Promise<void>((resolve) => setImmediate(resolve));
  }

  /** A daemon's clock: the world's time, off by `skewMs`; `alive` ends its timers when the daemon has crashed. */
  clock(skewMs: number, alive: () => boolean): Clock {
    const born = this.time;
    return {
      now: () => 1_790_000_000_000 + this.time + skewMs,
      monotonic: () => this.time - born,
      after: (delayMs, run) =>
        this.after(delayMs, () => {
          if (alive()) run();
        }),
    };
  }

  randomness(): Random {
    return {
      bytes: (length) => {
        const bytes = new Uint8Array(length);
        for (let i = 0; i < length; i++) bytes[i] = Math.floor(this.random() * 256);
        return bytes;
      },
    };
  }

  #push(event: Scheduled): void {
    const heap = this.#heap;
    heap.push(event);
    let at = heap.length - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!before(heap[at]!, heap[parent]!)) break;
      [heap[at], heap[parent]] = [heap[parent]!, heap[at]!];
      at = parent;
    }
  }

  #pop(): Scheduled | undefined {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop();
    if (top === undefined || last === undefined) return undefined;
    if (heap.length === 0) return top;
    heap[0] = last;
    let at = 0;
    for (;;) {
      const left = at * 2 + 1;
      const right = left + 1;
      let least = at;
      if (left < heap.length && before(heap[left]!, heap[least]!)) least = left;
      if (right < heap.length && before(heap[right]!, heap[least]!)) least = right;
      if (least === at) return top;
      [heap[at], heap[least]] = [heap[least]!, heap[at]!];
      at = least;
    }
  }
}

function before(a: Scheduled, b: Scheduled): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order);
}
