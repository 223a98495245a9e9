/**
 * A host with 100 peers under load, simulated: what waits, what is refused, who reconnects when. For scale.ts.
 *
 * Owns the model: when messages come, who is away, who reads. What ax does is taken from it: the limits of protocol/limits.ts, the growing
 * `Pause` of daemon/lane.ts, and the times of daemon/link/, which are private there and named below. Seeded: the same run each time.
 */
import type { Clock } from '../../daemon/clock/clock.ts';
import { Pause } from '../../daemon/lane.ts';
import type { Limits } from '../../protocol/limits.ts';
import { FORWARD_WINDOW, RETRY_CAP_MS, RETRY_FIRST_MS } from '../../protocol/limits.ts';
import { percentile } from './figures.ts';

const MINUTE = 60;
const MINUTE_MS = 60_000;
const HOUR = 3600;
const DAY = 24 * HOUR;
/** One step of the load, s. */
const STEP = 5;
/** A round trip between two hosts of an organisation, s: with the window it bounds what one lane moves. */
const ROUND_TRIP = 0.05;

/** Numbers from 0 to 1 that follow from `seed` (mulberry32). */
function chances(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function poisson(mean: number, chance: () => number): number {
  let count = 0;
  for (let rest = Math.exp(-mean), product = chance(); product > rest; product *= chance()) count++;
  return count;
}

/** The rate over a day as a multiple of its mean, `peak` at 14:00: exp(k cos) over its own mean, with the k that gives this peak. */
export function dayShape(peak: number): (hour: number) => number {
  const raw = (k: number, hour: number): number => Math.exp(k * Math.cos(((hour - 14) * Math.PI) / 12));
  const mean = (k: number): number => Array.from({ length: 240 }, (_, n) => raw(k, n / 10)).reduce((sum, one) => sum + one, 0) / 240;
  let [low, high] = [0, 50];
  while (high - low > 1e-6) {
    const k = (low + high) / 2;
    if (raw(k, 14) / mean(k) < peak) low = k;
    else high = k;
  }
  const whole = mean(low);
  return (hour) => raw(low, hour) / whole;
}

export interface Scene {
  readonly days: number;
  readonly peers: number;
  /** Sent to all peers together, and received from all, messages a day. */
  readonly perDay: number;
  readonly peak: number;
  readonly limits: Limits;
  readonly seed: number;
}

/** One peer: a machine that is always there, or a laptop with nights (22 to 6 h), weekends, and spells with a closed lid. */
interface Peer {
  readonly isLaptop: boolean;
  /** Its clock against this host's, h. */
  readonly zone: number;
  /** What it sends is read here at once; else only from 9 to 19 h on weekdays. */
  readonly isReadAlways: boolean;
  readonly pause: Pause;
  isUp: boolean;
  /** When its lid opens or closes next, s; when it is reached again after it came back, s. */
  lidAt: number;
  isLidOpen: boolean;
  readyAt: number;
  open: number;
  unreadHere: number;
  tokens: number;
}

export interface Outcome {
  readonly sent: number;
  readonly accepted: number;
  /** Looks at a lane that ended with the rate used up. */
  readonly throttled: number;
  /** Came while `waitingMessages` of its sender were unread here: answered `limit`, kept by the sender. */
  readonly limited: number;
  /** Once a minute, of all peers together or of the one with the most. */
  readonly samples: Readonly<
    Record<'open' | 'openMost' | 'unread' | 'unreadMost' | 'connections' | 'reconnects' | 'acceptedMost', number[]>
  >;
  /** The oldest that waited for a peer that was away, h. */
  readonly longestAwayHours: number;
}

/** Days from a Monday on, in steps of some seconds. */
export function simulateLoad(scene: Scene): Outcome {
  const chance = chances(scene.seed);
  const shape = dayShape(scene.peak);
  const table = Array.from({ length: 24 * 60 }, (_, minute) => shape(minute / 60));
  const shapeAt = (second: number): number => table[Math.floor((((second % DAY) + DAY) % DAY) / MINUTE)]!;
  let now = 0;
  const clock: Clock = { now: () => now * 1000, monotonic: () => now * 1000, after: () => () => undefined };
  const peers = Array.from({ length: scene.peers }, (_, n): Peer => {
    const isLaptop = n % 10 >= 4;
    const zone = isLaptop ? [0, 8, -8][n % 3]! : 0;
    const state = { isUp: true, lidAt: chance() * 2 * HOUR, isLidOpen: true, readyAt: 0, open: 0, unreadHere: 0 };
    return {
      isLaptop,
      zone,
      isReadAlways: n % 2 === 0,
      pause: new Pause(clock, () => undefined),
      tokens: scene.limits.messageBurst,
      ...state,
    };
  });
  const samples: Outcome['samples'] = {
    open: [],
    openMost: [],
    unread: [],
    unreadMost: [],
    connections: [],
    reconnects: [],
    acceptedMost: [],
  };
  const sum = { sent: 0, accepted: 0, throttled: 0, limited: 0 };
  const mean = (scene.perDay / scene.peers / DAY) * STEP;
  const minute = { reconnects: 0, accepted: new Array<number>(scene.peers).fill(0) };
  let longestAway = 0;
  const awaySince = new Array<number>(scene.peers).fill(0);

  for (; now < scene.days * DAY; now += STEP) {
    for (const [n, peer] of peers.entries()) {
      const wasUp = peer.isUp;
      step(peer, now, chance);
      if (peer.isUp && !wasUp) {
        peer.pause.end(); // Lane.clear(): the host is ready again
        minute.reconnects += 1;
        longestAway = Math.max(longestAway, now - awaySince[n]!);
      }
      if (!peer.isUp && wasUp) awaySince[n] = now;
      const fresh = poisson(mean * shapeAt(now), chance);
      sum.sent += fresh;
      peer.open += fresh;
      minute.accepted[n]! += push(peer, scene.limits, sum);
      const local = now + peer.zone * HOUR;
      if (peer.isUp) {
        const come = poisson(mean * shapeAt(local), chance);
        const room = Math.max(0, scene.limits.waitingMessages - peer.unreadHere);
        sum.limited += Math.max(0, come - room);
        peer.unreadHere += come; // counted past the bound, to show how far it would go
      }
      if (peer.isReadAlways || isOffice(now)) peer.unreadHere = 0;
    }
    if (now % MINUTE === 0) {
      sample(samples, peers, minute);
      minute.reconnects = 0;
      minute.accepted.fill(0);
    }
  }
  return { ...sum, samples, longestAwayHours: longestAway / HOUR };
}

function isOffice(second: number): boolean {
  const hour = (second % DAY) / HOUR;
  return isWeekday(second) && hour >= 9 && hour < 19;
}

const isWeekday = (second: number): boolean => ((Math.floor(second / DAY) % 7) + 7) % 7 < 5;

/** Whether the peer is there in this step. */
function step(peer: Peer, now: number, chance: () => number): void {
  if (!peer.isLaptop) return;
  if (now >= peer.lidAt) {
    peer.isLidOpen = !peer.isLidOpen;
    peer.lidAt = now - Math.log(1 - chance()) * (peer.isLidOpen ? 2 * HOUR : 15 * MINUTE);
  }
  const local = now + peer.zone * HOUR;
  const hour = (((local % DAY) + DAY) % DAY) / HOUR;
  const isAwake = peer.isLidOpen && hour >= 6 && hour < 22 && isWeekday(local);
  // A woken machine notices its dead connection (5 to 20 s) and dials after the first pause.
  if (!isAwake) peer.readyAt = now + 5 + chance() * 15 + (RETRY_FIRST_MS / 1000) * (0.5 + chance() / 2);
  peer.isUp = isAwake && now >= peer.readyAt;
}

/** What leaves for a peer in this step, all to one folder, as window and rate allow; the number accepted. */
function push(peer: Peer, limits: Limits, sum: { accepted: number; throttled: number }): number {
  peer.tokens = Math.min(limits.messageBurst, peer.tokens + (limits.messagesPerMinute / MINUTE) * STEP);
  if (!peer.isUp || peer.open === 0 || peer.pause.isOn) return 0;
  const wanted = Math.min(peer.open, (FORWARD_WINDOW / ROUND_TRIP) * STEP);
  const taken = Math.min(wanted, Math.floor(peer.tokens));
  if (taken > 0) peer.pause.reset();
  if (taken < wanted) {
    sum.throttled += 1;
    peer.pause.begin(1000 + MINUTE_MS / limits.messagesPerMinute); // as Rates asks for
  }
  peer.open -= taken;
  peer.tokens -= taken;
  sum.accepted += taken;
  return taken;
}

function sample(samples: Outcome['samples'], peers: readonly Peer[], minute: { reconnects: number; accepted: readonly number[] }): void {
  const total = (of: (peer: Peer) => number): number => peers.reduce((sum, peer) => sum + of(peer), 0);
  samples.open.push(total((peer) => peer.open));
  samples.openMost.push(Math.max(...peers.map((peer) => peer.open)));
  samples.unread.push(total((peer) => peer.unreadHere));
  samples.unreadMost.push(Math.max(...peers.map((peer) => peer.unreadHere)));
  samples.connections.push(total((peer) => (peer.isUp ? 1 : 0)));
  samples.reconnects.push(minute.reconnects);
  samples.acceptedMost.push(Math.max(...minute.accepted));
}

/** Of daemon/link/: connection.ts (PROBE_AFTER_MS of the side that dialled and of the other, PROBE_TIMEOUT_MS), libp2p.ts (TICK_MS), node.ts. */
const PROBE_AFTER = [30, 45] as const;
const PROBE_TIMEOUT = 15;
const TICK = 15;
const DIAL_TIMEOUT = 5;

export interface Herd {
  readonly connections: number;
  readonly cutSeconds: number;
  /** Packets vanish (true), or an end that is gone says so at once (false): a cut network, a restarted daemon. */
  readonly isSilent: boolean;
  /** Whether both hosts of a pair can dial, or only one (the other is behind a router). */
  readonly bothDial: boolean;
  readonly seed: number;
}

/** Seconds from the end of a cut of the whole network around a host until each of its connections is there again, sorted. */
export function simulateHerd(herd: Herd): number[] {
  const chance = chances(herd.seed);
  const one = (side: 0 | 1): number => {
    // Ticks of each daemon have a phase of their own; the last bytes were heard as the cut came.
    const phase = chance() * TICK;
    const noticed = herd.isSilent ? phase + Math.ceil((PROBE_AFTER[side] - phase) / TICK) * TICK + PROBE_TIMEOUT : 0;
    let failures = 1;
    for (let now = noticed; ; now += herd.isSilent ? DIAL_TIMEOUT : 0) {
      now += Math.min(RETRY_CAP_MS, RETRY_FIRST_MS * 2 ** (failures - 1)) * (0.0005 + chance() / 2000);
      if (now + (herd.isSilent ? DIAL_TIMEOUT : 0) >= herd.cutSeconds) return Math.max(0, now - herd.cutSeconds);
      failures += 1;
    }
  };
  const back = Array.from({ length: herd.connections }, () => (herd.bothDial ? Math.min(one(0), one(1)) : one(0)));
  return back.toSorted((a, b) => a - b);
}

/** The most of these times that lie within one second. */
export function mostPerSecond(times: readonly number[]): number {
  let most = 0;
  for (let from = 0, to = 0; to < times.length; to++) {
    while (times[to]! - times[from]! >= 1) from++;
    most = Math.max(most, to - from + 1);
  }
  return most;
}

/** 50th, 99th and 100th percentile. */
export const spreadOf = (values: readonly number[]): readonly [number, number, number] => [
  percentile(values, 0.5),
  percentile(values, 0.99),
  percentile(values, 1),
];
