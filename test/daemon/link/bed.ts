/**
 * The bed for the real link: hosts on loopback with ports of the system's choice, and a clock that the test moves.
 *
 * Owns nothing of the link itself. Time moves in steps of a second with turns of the event loop in between, so that what
 * travels over loopback gets its chance before the next timer.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import type { Clock } from '../../../daemon/clock/clock.ts';
import { createLibp2pLink } from '../../../daemon/link/libp2p.ts';
import type { Libp2pLinkOptions } from '../../../daemon/link/libp2p.ts';
import { silentLog } from '../../../daemon/log.ts';
import type { Log } from '../../../daemon/log.ts';
import { hostKeyFromSeed } from '../../../protocol/identity.ts';
import type { HostKey } from '../../../protocol/identity.ts';
import { recordingHost } from '../../contract/link.ts';
import type { LinkBed, LinkHost } from '../../contract/link.ts';

export class ManualClock implements Clock {
  #now = 0;
  #timers: { at: number; run: () => void }[] = [];

  now(): number {
    return 1_790_000_000_000 + this.#now;
  }

  monotonic(): number {
    return this.#now;
  }

  after(delayMs: number, run: () => void): () => void {
    const timer = { at: this.#now + delayMs, run };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  /** Moves time and runs what falls due, in order. */
  advance(ms: number): void {
    const end = this.#now + ms;
    for (;;) {
      const next = this.#timers.filter((timer) => timer.at <= end).toSorted((x, y) => x.at - y.at)[0];
      if (next === undefined) break;
      this.#timers = this.#timers.filter((timer) => timer !== next);
      this.#now = Math.max(this.#now, next.at);
      next.run();
    }
    this.#now = end;
  }
}

export async function turns(count: number): Promise<void> {
  for (let n = 0; n < count; n++) await new Promise<void>((resolve) => void setImmediate(resolve));
}

/** Turns enough, and long enough, for a round trip over loopback to finish well within some seconds of the manual clock. */
async function caughtUp(): Promise<void> {
  const from = performance.now();
  do await turns(50);
  while (performance.now() - from < 3);
}

/** Waits, turn by turn, until the condition holds; fails after 15 s of real time. */
export async function until(condition: () => boolean, what: string): Promise<void> {
  const end = performance.now() + 15_000;
  while (!condition()) {
    assert.ok(performance.now() < end, `waited too long for ${what}`);
    await turns(1);
  }
}

type OwnOptions = Pick<Libp2pLinkOptions, 'ownAddresses'>;

export interface RealBed extends LinkBed {
  host(options?: { readonly dialable?: boolean } & OwnOptions): Promise<LinkHost>;
  readonly clock: ManualClock;
  keyOf(host: LinkHost): HostKey;
  /** What all links of this bed logged at warn and error. */
  readonly logged: string[];
}

export function realBed(): RealBed {
  const clock = new ManualClock();
  const keys = new Map<string, HostKey>();
  const hosts: LinkHost[] = [];
  const logged: string[] = [];
  const log: Log = {
    ...silentLog,
    warn: (event) => void logged.push(event),
    error: (event, fields) => void logged.push(`${event} ${JSON.stringify(fields)}`),
  };
  const listens = new Map<string, readonly string[]>();
  const start = async (key: HostKey, listen: readonly string[], own: OwnOptions = {}): Promise<LinkHost> => {
    const { host, start: go } = recordingHost(key.hostId, createLibp2pLink({ key, listen, clock, log, ...own }));
    await go();
    keys.set(key.hostId, key);
    listens.set(key.hostId, host.link.status().listen);
    hosts.push(host);
    return host;
  };
  return {
    clock,
    logged,
    keyOf: (host) => keys.get(host.id)!,
    host: ({ dialable = true, ...own } = {}) => start(hostKeyFromSeed(randomBytes(32)), dialable ? ['/ip4/127.0.0.1/tcp/0'] : [], own),
    restart: (host) => start(keys.get(host.id)!, listens.get(host.id)!),
    run: (promise) => promise,
    until,
    pass: async (ms) => {
      for (let left = ms; left > 0; left -= 1000) {
        clock.advance(Math.min(1000, left));
        await caughtUp();
      }
    },
    close: async () => void (await Promise.all(hosts.map((host) => host.link.stop()))),
  };
}

/** A rule of the real link, with a bed of its own; what `cleanUp` was given runs before the bed is closed. */
export function rule(title: string, body: (bed: RealBed, cleanUp: (run: () => unknown) => void) => Promise<void>, skip = false): void {
  test(`libp2p: ${title}`, { timeout: 60_000, skip }, async () => {
    const bed = realBed();
    const last: (() => unknown)[] = [];
    try {
      await body(bed, (run) => last.push(run));
    } finally {
      for (const run of last) await run();
      await bed.close();
    }
  });
}
