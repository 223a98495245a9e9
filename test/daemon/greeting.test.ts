/**
 * Two hosts that are up for each other greet in turn: who speaks when, and that neither is kept from speaking.
 *
 * Two greetings over one store (each knows the other as a peer of the same table), joined by a link that hands every hello straight over.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Events } from '../../daemon/events.ts';
import { Greeting } from '../../daemon/greeting.ts';
import type { Link } from '../../daemon/link/link.ts';
import { silentLog } from '../../daemon/log.ts';
import { Peers } from '../../daemon/peers.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import type { HostId } from '../../protocol/ids.ts';
import { HELLO_INTERVAL_MS } from '../../protocol/limits.ts';
import { AX_VERSION, PEER_PROTOCOL } from '../../protocol/version.ts';
import { encodeHello } from '../../protocol/wire.ts';
import { openBed, type Bed } from './bed.ts';

const [LOW, HIGH] = [1, 2].map((n) => hostKeyFromSeed(new Uint8Array(32).fill(n)).hostId) as [HostId, HostId];
const STEP_MS = 2000;

class Pair {
  readonly bed: Bed;
  /** Running time of every hello, by who said it. */
  readonly said = new Map<HostId, number[]>([
    [LOW, []],
    [HIGH, []],
  ]);
  readonly #greetings = new Map<HostId, Greeting>();

  private constructor(bed: Bed) {
    this.bed = bed;
  }

  static async open(): Promise<Pair> {
    const pair = new Pair(await openBed());
    const peers = new Peers(pair.bed.store, 'home', { now: () => pair.bed.clock.now(), running: pair.bed.running });
    await pair.bed.write((tx) => {
      for (const [name, hostId] of [['low', LOW] as const, ['high', HIGH] as const])
        peers.add(tx, { hostId, name, exactName: true, addresses: [], grants: [], now: pair.bed.clock.now() });
    });
    for (const host of [LOW, HIGH]) pair.#greetings.set(host, pair.#make(host, peers));
    return pair;
  }

  #make(host: HostId, peers: Peers): Greeting {
    const { store, clock, running } = this.bed;
    const request: Link['request'] = (peer, _channel, bytes) => {
      this.said.get(host)?.push(clock.monotonic());
      return this.of(peer).answer(host, bytes);
    };
    const link: Link = { request, start: never, stop: never, learn: never, nudge: never, status: never };
    const nonce = host === LOW ? 'a'.repeat(32) : 'b'.repeat(32);
    const events = new Events(store, clock, running);
    return new Greeting({ store, clock, link, log: silentLog, peers, events, nonce, onReady: () => undefined, onUntrusted: never });
  }

  of(host: HostId): Greeting {
    const greeting = this.#greetings.get(host);
    assert.ok(greeting !== undefined);
    return greeting;
  }

  /** Lets the time pass in steps, `each` behind every one of them. */
  async pass(ms: number, each: () => Promise<void> = async () => undefined): Promise<void> {
    for (let n = 0; n < ms / STEP_MS; n++) {
      this.bed.clock.pass(STEP_MS);
      for (let k = 0; k < 2; k++) {
        await this.bed.write(() => undefined); // what a hello writes down is written
        await turn();
      }
      await each();
    }
  }

  /** The longest time between two hellos of a host, ms. */
  longest(host: HostId): number {
    const times = this.said.get(host) ?? [];
    return Math.max(...times.slice(1).map((time, at) => time - (times[at] ?? 0)));
  }

  end(): void {
    for (const greeting of this.#greetings.values()) greeting.stop();
    assert.equal(this.bed.clock.pending, 0);
  }
}

function never(): never {
  throw new Error('not asked for here');
}

test('two hosts that are up greet in turn: one hello each interval, and each its own every two', async () => {
  const pair = await Pair.open();
  pair.of(LOW).peerChanged(HIGH, true);
  pair.of(HIGH).peerChanged(LOW, true);
  await pair.pass(20 * HELLO_INTERVAL_MS);
  assert.ok(pair.of(LOW).isReady(HIGH) && pair.of(HIGH).isReady(LOW));
  const [low, high] = [pair.said.get(LOW) ?? [], pair.said.get(HIGH) ?? []];
  // Both at the start, and from then on one or the other.
  assert.ok(low.length + high.length <= 22, `${low.length} and ${high.length}`);
  assert.ok(low.length >= 10 && high.length >= 10, `${low.length} and ${high.length}`);
  for (const host of [LOW, HIGH]) assert.ok(pair.longest(host) <= 2 * HELLO_INTERVAL_MS + STEP_MS, `${pair.longest(host)} ms`);
  pair.end();
});

test('a host that hears many hellos says its own all the same, every two intervals', async () => {
  const pair = await Pair.open();
  pair.of(LOW).peerChanged(HIGH, true);
  const hello = encodeHello({ range: PEER_PROTOCOL, version: AX_VERSION, nonce: 'b'.repeat(32) });
  await pair.pass(20 * HELLO_INTERVAL_MS, async () => void (await pair.of(LOW).answer(HIGH, hello)));
  assert.equal(pair.said.get(HIGH)?.length, 0);
  const said = pair.said.get(LOW)?.length ?? 0;
  assert.ok(said >= 10 && said <= 12, `${said}`);
  assert.ok(pair.longest(LOW) <= 2 * HELLO_INTERVAL_MS + STEP_MS, `${pair.longest(LOW)} ms`);
  pair.end();
});

test('a host whose partner says nothing goes on alone, and no later than an interval and a half', async () => {
  const pair = await Pair.open();
  pair.of(LOW).peerChanged(HIGH, true);
  await pair.pass(20 * HELLO_INTERVAL_MS);
  assert.equal(pair.said.get(HIGH)?.length, 0);
  assert.ok(pair.longest(LOW) <= 1.5 * HELLO_INTERVAL_MS + STEP_MS, `${pair.longest(LOW)} ms`);
  pair.end();
});

test('a copied key is warned of for an hour after the last sign of a second life', async () => {
  const pair = await Pair.open();
  for (const letter of ['b', 'c', 'b']) {
    const hello = encodeHello({ range: PEER_PROTOCOL, version: AX_VERSION, nonce: letter.repeat(32) });
    const answered = pair.of(LOW).answer(HIGH, hello);
    await pair.pass(STEP_MS);
    await answered;
  }
  const last = pair.bed.clock.monotonic() - STEP_MS;
  pair.bed.clock.pass(last + 3_599_000 - pair.bed.clock.monotonic());
  assert.deepEqual(pair.of(LOW).warnings().copies, [HIGH]);
  pair.bed.clock.pass(2000);
  assert.deepEqual(pair.of(LOW).warnings().copies, []);
  pair.end();
});
