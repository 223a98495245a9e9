/**
 * What every Link must do, as a suite: bound to the real link over loopback and to the simulated network.
 *
 * Owns the rules and the recording host; how hosts are made and how time passes is the bed's. Nothing here sleeps: a rule
 * waits for an event, or lets the clock of all hosts pass.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Limit } from '../../daemon/clock/within.ts';
import type { Channel, Link } from '../../daemon/link/link.ts';
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';

/** One host under test, with all it was told. `answer` may be replaced at any time; it echoes at first. */
export interface LinkHost {
  readonly id: HostId;
  readonly link: Link;
  readonly peers: { readonly peer: HostId; readonly up: boolean }[];
  readonly troubles: { readonly peer: HostId; readonly code: string; readonly address: string }[];
  readonly seen: { readonly peer: HostId; readonly channel: Channel; readonly bytes: Uint8Array }[];
  /** Are requests kept in `seen`? */
  keepsSeen: boolean;
  answer(peer: HostId, channel: Channel, bytes: Uint8Array): Promise<Uint8Array>;
}

export interface LinkBed {
  /** Makes and starts a host with a new key. One that is not dialable listens nowhere. */
  host(options?: { readonly dialable?: boolean }): Promise<LinkHost>;
  /** The host's daemon starts again with the same key at the same address; the old link was stopped. */
  restart(host: LinkHost): Promise<LinkHost>;
  /** Runs until the promise settles. */
  run<T>(promise: Promise<T>): Promise<T>;
  /** Runs until the condition holds; fails when it does not within a generous time. */
  until(condition: () => boolean, what: string): Promise<void>;
  /** Lets running time pass for every host. */
  pass(ms: number): Promise<void>;
  close(): Promise<void>;
}

/** A recording host around a link, for beds to use. */
export function recordingHost(id: HostId, link: Link): { host: LinkHost; start: () => Promise<void> } {
  const host: LinkHost = { id, link, peers: [], troubles: [], seen: [], keepsSeen: true, answer: async (_peer, _channel, bytes) => bytes };
  const start = (): Promise<void> =>
    link.start({
      onRequest: async (peer, channel, bytes) => {
        if (host.keepsSeen) host.seen.push({ peer, channel, bytes: Uint8Array.from(bytes) });
        return host.answer(peer, channel, bytes);
      },
      onPeer: (peer, up) => void host.peers.push({ peer, up }),
      onTrouble: (peer, code, address) => void host.troubles.push({ peer, code, address }),
    });
  return { host, start };
}

export const never = (): Limit => new Limit();
export const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text);
export const textOf = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
/** For assert.rejects: an AxError of this code, with these details among its own. */
export const refusal =
  (code: string, details: Record<string, unknown> = {}) =>
  (error: unknown): boolean => {
    assert.ok(error instanceof AxError, String(error));
    assert.equal(error.code, code, error.message);
    for (const [key, value] of Object.entries(details)) assert.equal(error.details?.[key], value, `details.${key}`);
    return true;
  };

/** Makes `host` known to `to`, with its addresses unless told otherwise. */
export function introduce(host: LinkHost, to: LinkHost, addresses: readonly string[] = host.link.status().listen): void {
  to.link.learn(new Map([[host.id, addresses]]));
}

export const isUp = (host: LinkHost, peer: LinkHost): boolean => host.link.status().connected.includes(peer.id);

/** A promise and its settling, for handlers that answer later. */
export function held<T>(): { promise: Promise<T>; release: (value: T) => void } {
  const { promise, resolve } = Promise.withResolvers<T>();
  return { promise, release: resolve };
}

export function linkContract(name: string, makeBed: () => LinkBed): void {
  const rule = (title: string, body: (bed: LinkBed) => Promise<void>): void => {
    test(`${name}: ${title}`, { timeout: 60_000 }, async () => {
      const bed = makeBed();
      try {
        await body(bed);
      } finally {
        await bed.close();
      }
    });
  };
  requestRules(rule);
  peerRules(rule);
  endingRules(rule);
}

type Rule = (title: string, body: (bed: LinkBed) => Promise<void>) => void;

/** Two hosts that know each other and are connected; only b is dialled. */
export async function pair(bed: LinkBed): Promise<[LinkHost, LinkHost]> {
  const [a, b] = [await bed.host(), await bed.host()];
  introduce(a, b, []);
  introduce(b, a);
  await bed.until(() => isUp(a, b) && isUp(b, a), 'the pair to connect');
  return [a, b];
}

function requestRules(rule: Rule): void {
  rule('a request is answered, on both channels, and names its sender', async (bed) => {
    const [a, b] = await pair(bed);
    b.answer = async (peer, channel, bytes) => bytesOf(`${peer === a.id ? 'a' : '?'} ${channel} ${textOf(bytes)}`);
    assert.equal(textOf(await bed.run(a.link.request(b.id, 'wire', bytesOf('one'), never()))), 'a wire one');
    assert.equal(textOf(await bed.run(a.link.request(b.id, 'hello', bytesOf('two'), never()))), 'a hello two');
  });

  rule('an answer belongs to its request, however they are ordered', async (bed) => {
    const [a, b] = await pair(bed);
    const waiting: (() => void)[] = [];
    b.answer = async (_peer, _channel, bytes) => {
      const gate = held<void>();
      waiting.push(() => gate.release());
      await gate.promise;
      return bytesOf(`re ${textOf(bytes)}`);
    };
    const asked = Array.from({ length: 100 }, (_, n) => a.link.request(b.id, 'wire', bytesOf(`question ${n}`), never()));
    await bed.until(() => waiting.length === 100, 'all requests to arrive');
    for (let n = 0; waiting.length > 0; n += 37) waiting.splice(n % waiting.length, 1)[0]?.();
    const answers = await bed.run(Promise.all(asked));
    assert.deepEqual(
      answers.map(textOf),
      Array.from({ length: 100 }, (_, n) => `re question ${n}`),
    );
  });

  rule('a request and an answer of the largest size pass, one byte more is too_large', async (bed) => {
    const [a, b] = await pair(bed);
    const largest = Uint8Array.from({ length: MAX_FRAME_BYTES }, (_, at) => (at * 31) & 0xff);
    assert.deepEqual(Buffer.from(await bed.run(a.link.request(b.id, 'wire', largest, never()))), Buffer.from(largest));
    const over = a.link.request(b.id, 'wire', new Uint8Array(MAX_FRAME_BYTES + 1), never());
    await assert.rejects(bed.run(over), refusal('too_large', { limit: MAX_FRAME_BYTES, sent: false }));
    assert.equal(b.seen.length, 1);
  });

  rule('requests flow both ways although only one side can be dialled', async (bed) => {
    const [hidden, open] = [await bed.host({ dialable: false }), await bed.host()];
    assert.deepEqual(hidden.link.status().listen, []);
    introduce(hidden, open, []);
    introduce(open, hidden);
    await bed.until(() => isUp(hidden, open) && isUp(open, hidden), 'the dial');
    assert.equal(textOf(await bed.run(hidden.link.request(open.id, 'wire', bytesOf('out'), never()))), 'out');
    assert.equal(textOf(await bed.run(open.link.request(hidden.id, 'wire', bytesOf('back'), never()))), 'back');
  });

  rule('a request to a named peer that is not connected yet dials it', async (bed) => {
    const [a, b] = [await bed.host(), await bed.host()];
    introduce(a, b, []);
    introduce(b, a);
    assert.equal(textOf(await bed.run(a.link.request(b.id, 'wire', bytesOf('first'), never()))), 'first');
  });

  rule('a peer without connection and address is unavailable, and nothing was sent', async (bed) => {
    const [a, b] = [await bed.host(), await bed.host()];
    await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('x'), never())), refusal('unavailable', { sent: false }));
    introduce(b, a, []);
    await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('x'), never())), refusal('unavailable', { sent: false }));
  });

  rule('a limit that is over ends a request with timeout, and its late answer harms nobody', async (bed) => {
    const [a, b] = await pair(bed);
    const gate = held<void>();
    b.answer = async (_peer, _channel, bytes) => {
      await gate.promise;
      return bytes;
    };
    const caller = new Limit();
    const slow = a.link.request(b.id, 'wire', bytesOf('slow'), caller);
    await bed.until(() => b.seen.length === 1, 'the request to arrive');
    caller.end();
    await assert.rejects(bed.run(slow), refusal('timeout', { sent: true }));
    gate.release();
    assert.equal(textOf(await bed.run(a.link.request(b.id, 'wire', bytesOf('next'), never()))), 'next');
    await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('x'), caller)), refusal('timeout', { sent: false }));
    assert.equal(isUp(a, b), true);
  });
}

function peerRules(rule: Rule): void {
  rule('a peer coming up and going down is told once, to both sides', async (bed) => {
    const [a, b] = await pair(bed);
    await bed.run(a.link.request(b.id, 'wire', bytesOf('x'), never()));
    await bed.run(b.link.request(a.id, 'wire', bytesOf('y'), never()));
    assert.deepEqual(a.peers, [{ peer: b.id, up: true }]);
    assert.deepEqual(b.peers, [{ peer: a.id, up: true }]);
    await bed.run(b.link.stop());
    await bed.until(() => !isUp(a, b), 'the end to be noticed');
    assert.deepEqual(a.peers.slice(1), [{ peer: b.id, up: false }]);
    assert.deepEqual(b.peers, [{ peer: a.id, up: true }], 'a stopped link makes no callback');
  });

  rule('a peer that restarts at its address is dialled again without being asked', async (bed) => {
    const [a, b] = await pair(bed);
    await bed.run(b.link.stop());
    await bed.until(() => !isUp(a, b), 'the end to be noticed');
    const again = await bed.restart(b);
    introduce(a, again, []);
    for (let seconds = 0; !isUp(a, again) && seconds < 60; seconds++) await bed.pass(1000);
    await bed.until(() => isUp(a, again), 'the second connection');
    assert.deepEqual(
      a.peers.map(({ up }) => up),
      [true, false, true],
    );
  });

  rule('a nudge dials at once', async (bed) => {
    const [a, b] = await pair(bed);
    await bed.run(b.link.stop());
    await bed.until(() => !isUp(a, b), 'the end to be noticed');
    const again = await bed.restart(b);
    introduce(a, again, []);
    a.link.nudge(again.id);
    await bed.until(() => isUp(a, again), 'the second connection');
  });

  rule('two hosts that dial each other at once serve each other', async (bed) => {
    const [a, b] = [await bed.host(), await bed.host()];
    introduce(a, b);
    introduce(b, a);
    await bed.until(() => isUp(a, b) && isUp(b, a), 'the dials');
    const many = Array.from({ length: 40 }, (_, n) => {
      const [from, to] = n % 2 === 0 ? [a, b] : [b, a];
      return from.link.request(to.id, 'wire', bytesOf(`${n}`), never());
    });
    assert.deepEqual((await bed.run(Promise.all(many))).map(textOf), [...many.keys()].map(String));
    await bed.pass(120_000);
    assert.equal(textOf(await bed.run(a.link.request(b.id, 'wire', bytesOf('still'), never()))), 'still');
    assert.deepEqual(
      [a.peers, b.peers].map((told) => told.length),
      [1, 1],
    );
  });

  rule('a peer left out of the next call is forgotten and its connection closed', async (bed) => {
    const [a, b] = await pair(bed);
    a.link.learn(new Map());
    await bed.until(() => !isUp(a, b) && !isUp(b, a), 'the connection to close');
    await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('x'), never())), refusal('unavailable', { sent: false }));
  });

  rule('a stranger is served, and cut off after 10 s', async (bed) => {
    const [stranger, b] = [await bed.host(), await bed.host()];
    introduce(b, stranger);
    assert.equal(textOf(await bed.run(stranger.link.request(b.id, 'hello', bytesOf('who'), never()))), 'who');
    await bed.pass(9000);
    assert.equal(isUp(b, stranger), true);
    await bed.pass(1100);
    await bed.until(() => b.peers.at(-1)?.up === false, 'the cut');
    assert.deepEqual(b.troubles, []);
  });

  rule('a stranger that is named in time stays', async (bed) => {
    const [stranger, b] = [await bed.host(), await bed.host()];
    introduce(b, stranger);
    await bed.run(stranger.link.request(b.id, 'hello', bytesOf('who'), never()));
    introduce(stranger, b, []);
    await bed.pass(20_000);
    assert.deepEqual(b.peers, [{ peer: stranger.id, up: true }]);
    assert.equal(textOf(await bed.run(b.link.request(stranger.id, 'wire', bytesOf('hi'), never()))), 'hi');
  });

  rule('another key at a known address is wrong_peer, reported with the address', async (bed) => {
    const [a, b, c] = [await bed.host(), await bed.host(), await bed.host()];
    const address = c.link.status().listen;
    introduce(b, a, address);
    await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('x'), never())), refusal('wrong_peer', { sent: false }));
    assert.deepEqual(a.troubles[0], { peer: b.id, code: 'wrong_peer', address: address[0] });
    assert.equal(isUp(a, c) || isUp(a, b), false);
    assert.deepEqual([...b.seen, ...c.seen], []);
  });
}

function endingRules(rule: Rule): void {
  const unanswered = async (bed: LinkBed): Promise<[LinkHost, LinkHost, Promise<unknown>]> => {
    const [a, b] = await pair(bed);
    b.answer = () => new Promise(() => undefined);
    const asked = a.link.request(b.id, 'wire', bytesOf('x'), never());
    await bed.until(() => b.seen.length === 1, 'the request to arrive');
    return [a, b, asked];
  };

  rule('stop rejects the requests of this host under way', async (bed) => {
    const [a, , asked] = await unanswered(bed);
    const rejected = assert.rejects(asked, refusal('unavailable', { sent: true }));
    await bed.run(a.link.stop());
    await bed.run(rejected);
    await assert.rejects(bed.run(a.link.request(a.id, 'wire', bytesOf('x'), never())), refusal('unavailable', { sent: false }));
  });

  rule('a peer that stops rejects the requests under way to it', async (bed) => {
    const [, b, asked] = await unanswered(bed);
    const rejected = assert.rejects(asked, refusal('unavailable', { sent: true }));
    await bed.run(b.link.stop());
    await bed.run(rejected);
  });

  for (const code of ['protocol_violation', 'bad_signature', 'wrong_peer'] as const) {
    rule(`a request refused with ${code} closes the connection without an answer, and the peer is slow to come back`, async (bed) => {
      const [a, b] = await pair(bed);
      b.answer = async () => {
        throw new AxError(code, 'as the test wants');
      };
      await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('bad'), never())), refusal('unavailable', { sent: true }));
      await bed.until(() => a.peers.at(-1)?.up === false && b.peers.at(-1)?.up === false, 'the connection to close');
      assert.deepEqual(
        b.troubles.map((trouble) => [trouble.peer, trouble.code]),
        [[a.id, 'protocol_violation']],
      );
      b.answer = async (_peer, _channel, bytes) => bytes;
      await assert.rejects(bed.run(a.link.request(b.id, 'wire', bytesOf('again'), never())), refusal('unavailable'));
      assert.equal(b.seen.length, 1, 'nothing of it is heard meanwhile');
      await bed.pass(31_000);
      a.link.nudge(b.id);
      await bed.until(() => isUp(a, b) && isUp(b, a), 'the return');
      assert.equal(textOf(await bed.run(a.link.request(b.id, 'wire', bytesOf('good'), never()))), 'good');
    });
  }
}
