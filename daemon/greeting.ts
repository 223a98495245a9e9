/**
 * Greetings: who is there, which protocol both speak, and whether a host id is alive in two places.
 *
 * Owns the hello exchange (frozen for ever), whose turn it is, and what it teaches about each host: up or down, ready or not and why, version,
 * round trip, last seen. A host is `ready` when it is paired, connected and shares a protocol. Nothing here is durable but the time
 * and version a paired host was last seen with.
 * A copied key shows as a nonce that comes back after another one was seen: two lives of one id at the same time.
 */
import { AxError, toAxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { HELLO_INTERVAL_MS, REQUEST_TIMEOUT_MS } from '../protocol/limits.ts';
import { AX_VERSION, commonProtocol, PEER_PROTOCOL } from '../protocol/version.ts';
import type { ProtocolRange } from '../protocol/version.ts';
import { encodeHello, encodeHelloAnswer, readHello, readHelloAnswer } from '../protocol/wire.ts';
import { within } from './clock/within.ts';
import type { Clock } from './clock/clock.ts';
import type { Events } from './events.ts';
import type { Link } from './link/link.ts';
import type { Log } from './log.ts';
import type { Peers } from './peers.ts';
import type { Store } from './store/store.ts';

export type HostState = 'up' | 'down' | 'update_required' | 'wrong_peer' | 'untrusted';

/** What is known of a host at this moment. */
export interface HostView {
  connected: boolean;
  ready: boolean;
  state: HostState;
  rttMs: number | null;
  range: ProtocolRange | null;
  version: string | null;
  lastSeenAt: number | null;
}

interface Nonces {
  current: string;
  readonly past: Set<string>;
  /** Monotonic ms of the last sign of a second life; -Infinity when there was none. */
  duplicateAt: number;
}

/**
 * A hello teaches both sides, so two connected hosts say it in turn: whoever heard one speaks an interval later, whoever said one waits longer
 * than that for the other, and says it all the same when none came. Also against a host that always speaks first the own one, by which the
 * round trip is measured and a host learns what the other thinks of it, is at most twice the interval old, ms.
 */
const OTHERS_TURN_MS = 1.5 * HELLO_INTERVAL_MS;
const OWN_LATEST_MS = 2 * HELLO_INTERVAL_MS;
/** A greeting host is greeted back at most this often, ms, so that two hosts never answer each other for ever. */
const REGREET_MS = 1000;
/** How long trouble with a host is shown after its last sign, ms. */
const FADE_MS = 2 * HELLO_INTERVAL_MS;
/** How long a copied key is warned of after the last sign of its second life, ms: a promise of the protocol, whatever the interval. */
const COPY_LAPSE_MS = 3_600_000;
const MAX_PAST_NONCES = 64;
const MAX_NONCE_HOSTS = 4096;

export interface GreetingDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly link: Link;
  readonly log: Log;
  readonly peers: Peers;
  readonly events: Events;
  readonly nonce: string;
  /** A host became ready: its queues may move. */
  readonly onReady: (host: HostId) => void;
  /** A host that this one is paired with does not know it. */
  readonly onUntrusted: (host: HostId) => void;
}

export class Greeting {
  readonly #deps: GreetingDeps;
  readonly #views = new Map<HostId, HostView>();
  readonly #nonces = new Map<HostId, Nonces>();
  readonly #timers = new Map<HostId, () => void>();
  /** A host told that it saw this host's own id twice. */
  #copied: { readonly by: HostId; readonly at: number; readonly seen: number } | undefined;
  /** Monotonic ms of the last hello said to a host. */
  readonly #greeted = new Map<HostId, number>();
  /** Monotonic ms of the last hello of a paired host. */
  readonly #heard = new Map<HostId, number>();
  #stopped = false;

  constructor(deps: GreetingDeps) {
    this.#deps = deps;
  }

  stop(): void {
    this.#stopped = true;
    for (const cancel of this.#timers.values()) cancel();
    this.#timers.clear();
  }

  view(host: HostId): HostView {
    let view = this.#views.get(host);
    if (view === undefined) {
      view = { connected: false, ready: false, state: 'down', rttMs: null, range: null, version: null, lastSeenAt: null };
      this.#views.set(host, view);
    }
    return view;
  }

  isReady(host: HostId): boolean {
    return this.#views.get(host)?.ready ?? false;
  }

  /** The link's news of a connection. */
  peerChanged(host: HostId, up: boolean): void {
    const view = this.view(host);
    view.connected = up;
    this.#timers.get(host)?.();
    this.#timers.delete(host);
    if (up) {
      if (this.#deps.peers.get(host) !== undefined) void this.greet(host);
      return;
    }
    view.ready = false;
    if (view.state === 'up') view.state = 'down';
    else if (this.#deps.peers.get(host) !== undefined) this.#fade(host);
    if (this.#deps.peers.get(host) === undefined) this.#forget(host);
  }

  /** What was wrong with a host is shown for a while after the last sign of it; then it is simply down. */
  #fade(host: HostId): void {
    this.#timers.get(host)?.();
    this.#timers.set(
      host,
      this.#deps.clock.after(FADE_MS, () => {
        const view = this.view(host);
        if (!view.connected) view.state = 'down';
      }),
    );
  }

  #forget(host: HostId): void {
    this.#views.delete(host);
    this.#greeted.delete(host);
    this.#heard.delete(host);
    this.#nonces.delete(host);
  }

  trouble(host: HostId, code: 'wrong_peer' | 'protocol_violation'): void {
    if (code !== 'wrong_peer' || this.view(host).connected || this.#deps.peers.get(host) === undefined) return;
    this.view(host).state = 'wrong_peer';
    this.#fade(host);
  }

  /** Says hello and learns; never rejects. Repeats while the connection lives. */
  async greet(host: HostId): Promise<void> {
    if (this.#stopped) return;
    this.#timers.get(host)?.();
    this.#timers.delete(host);
    const before = this.#deps.clock.monotonic();
    this.#greeted.set(host, before);
    try {
      await this.hello(host);
      const view = this.view(host);
      view.rttMs = Math.max(0, this.#deps.clock.monotonic() - before);
    } catch (error) {
      const failed = toAxError(error);
      this.#deps.log.debug('hello failed', { host, code: failed.code });
    }
    if (!this.#stopped && this.view(host).connected) {
      const { state, ready } = this.view(host);
      // It greeted while this hello was under way: it may have come to know this host since it answered.
      const isOld = state === 'untrusted' && (this.#heard.get(host) ?? Number.NEGATIVE_INFINITY) >= before;
      this.#greetIn(host, isOld ? REGREET_MS : ready ? this.#untilNext(host, before) : HELLO_INTERVAL_MS / 8);
    }
  }

  /** After an own hello it is the other's turn; where both spoke at once, of the two the one's with the lower nonce. */
  #untilNext(host: HostId, saidAt: number): number {
    const isAtOnce = (this.#heard.get(host) ?? Number.NEGATIVE_INFINITY) >= saidAt;
    return isAtOnce && this.#deps.nonce < (this.#nonces.get(host)?.current ?? '') ? HELLO_INTERVAL_MS : OTHERS_TURN_MS;
  }

  /** A host that is ready has said hello: the next own one is due an interval later, unless the last was too long ago. */
  #putOff(host: HostId): void {
    if (!this.#timers.has(host)) return; // one is under way, and plans the next
    const latest = (this.#greeted.get(host) ?? Number.NEGATIVE_INFINITY) + OWN_LATEST_MS - this.#deps.clock.monotonic();
    this.#greetIn(host, Math.max(0, Math.min(HELLO_INTERVAL_MS, latest)));
  }

  /** Greets as soon as the last greeting is long enough ago. */
  greetSoon(host: HostId): void {
    this.#greetIn(host, Math.max(0, (this.#greeted.get(host) ?? -Infinity) + REGREET_MS - this.#deps.clock.monotonic()));
  }

  /** A host was just paired by its own request: it will greet once it has stored this one; if it does not, it is greeted. */
  expect(host: HostId): void {
    if (this.view(host).connected) this.#greetIn(host, 2 * REGREET_MS);
  }

  /** Greets in a while, instead of when it was planned before. */
  #greetIn(host: HostId, ms: number): void {
    this.#timers.get(host)?.();
    this.#timers.set(
      host,
      this.#deps.clock.after(ms, () => void this.greet(host)),
    );
  }

  /** One hello, its answer taken in. AxError as the link throws, or `update_required`, `untrusted_peer`. */
  async hello(host: HostId): Promise<HostView> {
    const { link, clock, nonce } = this.#deps;
    const bytes = await within(clock, REQUEST_TIMEOUT_MS, (limit) =>
      link.request(host, 'hello', encodeHello({ range: PEER_PROTOCOL, version: AX_VERSION, nonce }), limit),
    );
    const answer = readHelloAnswer(bytes);
    const view = this.view(host);
    if (answer.duplicate) this.#copied = { by: host, at: clock.now(), seen: clock.monotonic() };
    if (answer.nonce !== '' && this.#deps.peers.get(host) !== undefined) this.#meet(host, answer.nonce);
    view.range = answer.range;
    view.version = answer.version === '' ? null : answer.version;
    await this.#seen(host, view.version);
    if (commonProtocol(PEER_PROTOCOL, answer.range) === undefined) {
      view.state = 'update_required';
      view.ready = false;
      throw updateRequired(view.version ?? 'of another version', answer.range);
    }
    if (!answer.known) {
      view.state = 'untrusted';
      view.ready = false; // nothing is sent to a host that would only refuse it; what waits says why
      this.#deps.onUntrusted(host);
      return view;
    }
    const wasReady = view.ready && view.state === 'up';
    view.state = 'up';
    view.ready = view.connected;
    if (view.ready && !wasReady) this.#deps.onReady(host);
    return view;
  }

  /** Answers a hello. An unknown host learns the protocol range and nothing else. */
  async answer(host: HostId, bytes: Uint8Array): Promise<Uint8Array> {
    const hello = readHello(bytes);
    const peer = this.#deps.peers.get(host);
    const duplicate = peer !== undefined && this.#meet(host, hello.nonce); // a stranger's nonces are no business of this host's warnings
    if (peer !== undefined) {
      const view = this.view(host);
      view.range = hello.range;
      view.version = hello.version;
      this.#heard.set(host, this.#deps.clock.monotonic());
      await this.#seen(host, hello.version);
      // A host that greets may just have paired with us or come back: what waits for it may move now.
      if (view.ready) this.#putOff(host);
      else if (view.connected && view.state !== 'update_required') this.greetSoon(host);
    }
    // A stranger learns the protocol range and nothing else: no version, and no nonce to recognise this host by.
    const isKnown = peer !== undefined;
    return encodeHelloAnswer({
      range: PEER_PROTOCOL,
      version: isKnown ? AX_VERSION : '',
      nonce: isKnown ? this.#deps.nonce : '',
      known: isKnown,
      duplicate,
    });
  }

  /** Hosts whose id was seen alive twice, and whether this host's own id was. */
  warnings(): { readonly copies: readonly HostId[]; readonly self: { readonly by: HostId; readonly at: number } | undefined } {
    const self = this.#copied !== undefined && this.#deps.clock.monotonic() - this.#copied.seen < COPY_LAPSE_MS ? this.#copied : undefined;
    return { copies: [...this.#nonces].filter(([, nonces]) => this.#isCopy(nonces)).map(([host]) => host), self };
  }

  #meet(host: HostId, nonce: string): boolean {
    let nonces = this.#nonces.get(host);
    if (nonces === undefined) {
      if (this.#nonces.size >= MAX_NONCE_HOSTS) return false;
      nonces = { current: nonce, past: new Set(), duplicateAt: -Infinity };
      this.#nonces.set(host, nonces);
    }
    if (nonces.current !== nonce) {
      if (nonces.past.has(nonce)) {
        const isNews = !this.#isCopy(nonces);
        nonces.duplicateAt = this.#deps.clock.monotonic();
        if (isNews) this.#tellCopy(host);
      }
      if (nonces.past.size >= MAX_PAST_NONCES) nonces.past.clear();
      nonces.past.add(nonces.current);
      nonces.current = nonce;
    }
    return this.#isCopy(nonces);
  }

  /** A second life counts for a while after its last sign: when the copy was stopped, the warning lapses. */
  #isCopy(nonces: Nonces): boolean {
    return this.#deps.clock.monotonic() - nonces.duplicateAt < COPY_LAPSE_MS;
  }

  #tellCopy(host: HostId): void {
    const { store, events, log } = this.#deps;
    log.warn('the same host id is alive in two places', { host });
    void store
      .write((tx) => events.add(tx, { type: 'host.duplicate_id', hostId: host }))
      .catch((error: unknown) => log.error('event not stored', { reason: toAxError(error).message }));
  }

  /** Remembers when and with which version a host was seen. A full disk loses that and not the greeting. */
  async #seen(host: HostId, version: string | null): Promise<void> {
    const { store, peers, clock, log } = this.#deps;
    this.view(host).lastSeenAt = clock.now();
    const peer = peers.get(host);
    if (
      peer === undefined ||
      (peer.version === version && peer.lastSeenAt !== null && clock.now() - peer.lastSeenAt < 10 * HELLO_INTERVAL_MS)
    )
      return;
    try {
      await store.write((tx) => peers.seen(tx, host, clock.now(), version));
    } catch (error) {
      log.warn('last seen not stored', { host, reason: toAxError(error).message });
    }
  }
}

/** The sentence for two builds without a common protocol. */
export function updateRequired(version: string, range: ProtocolRange): AxError {
  const theirsIsOlder = range.max < PEER_PROTOCOL.min;
  return new AxError(
    'update_required',
    `that host runs ax ${version} (peer protocol ${range.min}-${range.max}); this one runs ax ${AX_VERSION} (${PEER_PROTOCOL.min}-${PEER_PROTOCOL.max})`,
    {
      fix: theirsIsOlder ? 'update ax on that host' : 'update ax on this host',
    },
  );
}
