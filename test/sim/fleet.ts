/**
 * The hosts of one simulated world: for each a key, folders, agent sessions, and the daemon that createDaemon builds over the fakes.
 *
 * Owns booting, stopping, crashing and booting again from what the disk kept, and calls as a client makes them: the daemon may
 * die under a call. Everything that crosses a seam is shown to the watcher, which may judge it but never changes it.
 * Invariant: after a crash nothing of that life is heard of again.
 */
import type { Actor } from '../../daemon/addressing.ts';
import type { Clock } from '../../daemon/clock/clock.ts';
import { createDaemon } from '../../daemon/daemon.ts';
import type { Daemon } from '../../daemon/daemon.ts';
import type { Harness, Notice, Session } from '../../daemon/harness/harness.ts';
import type { Link } from '../../daemon/link/link.ts';
import type { Log, LogFields } from '../../daemon/log.ts';
import type { Store } from '../../daemon/store/store.ts';
import { AxError } from '../../protocol/errors.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import type { HostKey } from '../../protocol/identity.ts';
import type { HostId } from '../../protocol/ids.ts';
import { readRequest } from '../../protocol/wire.ts';
import type { WireRequest } from '../../protocol/wire.ts';
import { SimAgents, SimHarness } from './harness.ts';
import type { SimSession } from './harness.ts';
import { SimNetwork } from './network.ts';
import { SimStore } from './store.ts';
import type { StoreImage } from './store.ts';
import type { World } from './world.ts';

/** One run of a host's daemon. */
export interface Life {
  readonly number: number;
  readonly daemon: Daemon;
  readonly store: SimStore;
  /** Rises when a failed flush takes back what reads have shown. */
  rollbacks: number;
  alive: boolean;
  started: boolean;
  readonly onEnd: Set<() => void>;
}

export interface Host {
  readonly index: number;
  readonly name: string;
  readonly key: HostKey;
  readonly id: HostId;
  readonly agents: SimAgents;
  /** A path as typed, and the one it is. */
  readonly folders: Map<string, string>;
  skewMs: number;
  freeBytes: number;
  /** While set, every new store of this host fails with it. */
  storeFailure: 'store_full' | undefined;
  lives: number;
  life: Life | undefined;
  image: StoreImage | undefined;
}

export interface Watcher {
  /** A request has arrived and is about to be handled. */
  arrived(host: Host, peer: HostId, request: WireRequest): void;
  /** An answer is about to leave. */
  answered(host: Host, peer: HostId, request: WireRequest, answer: Uint8Array): void;
  /** A request is about to leave. */
  leaving(host: Host, peer: HostId, request: WireRequest): void;
  notifying(host: Host, session: Session, notice: Notice): void;
  notified(host: Host, session: Session, outcome: string): void;
  logged(host: Host, event: string, fields: LogFields | undefined): void;
  /** A life ended; `image` is what the disk holds. */
  ended(host: Host, image: StoreImage, crashed: boolean): void;
}

/** The daemon died under a call, or the client did: nobody knows what became of it. */
export class Gone extends Error {}

/** A call that is answered by nobody for this long is a fault of its own, virtual ms. */
const PATIENCE_MS = 120_000;
const KEYS = [11, 22, 33].map((byte) => hostKeyFromSeed(new Uint8Array(32).fill(byte)));
export const OWNER: Actor = {
  origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'cli' },
  session: null,
};

export class Fleet {
  readonly world: World;
  readonly network: SimNetwork;
  readonly hosts: readonly Host[];
  readonly counts = new Map<string, number>();
  readonly #watcher: Watcher;

  constructor(world: World, size: number, watcher: Watcher, onAct: (host: Host, session: SimSession, notice: Notice) => Promise<void>) {
    this.world = world;
    this.network = new SimNetwork(world);
    this.#watcher = watcher;
    this.hosts = KEYS.slice(0, size).map((key, index) => {
      const host: Host = {
        index,
        name: `h${index}`,
        key,
        id: key.hostId,
        agents: new SimAgents(world, (session, notice) => onAct(host, session, notice)),
        folders: new Map(),
        skewMs: 0,
        freeBytes: 2 ** 40,
        storeFailure: undefined,
        lives: 0,
        life: undefined,
        image: undefined,
      };
      return host;
    });
  }

  count(what: string): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }

  host(id: HostId): Host {
    const host = this.hosts.find((one) => one.id === id);
    if (host === undefined) throw new Error('no such host in this world');
    return host;
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => void this.world.after(ms, resolve));
  }

  /** What the disk of a host holds now. */
  disk(host: Host): StoreImage | undefined {
    return host.life?.store.image() ?? host.image;
  }

  /** Starts a host's daemon from what its disk holds. False when it died or could not start. */
  async boot(host: Host): Promise<boolean> {
    if (host.life !== undefined) return host.life.started;
    const { world } = this;
    const number = ++host.lives;
    const store = new SimStore(world, host.image, `${host.name}.${number}`);
    if (host.storeFailure !== undefined) store.failing(host.storeFailure);
    const alive = (): boolean => life.alive;
    const clock: Clock = { ...world.clock(0, alive), now: () => 1_790_000_000_000 + Math.floor(world.time) + host.skewMs };
    const harness = this.#watchedHarness(host, new SimHarness(host.agents, { alive }), alive);
    const seams = {
      clock,
      random: world.randomness(),
      store: this.#watchedStore(host, store, () => life),
      link: this.#watchedLink(host, alive),
      harnesses: [harness],
      files: { canonicalFolder: async (path: string) => host.folders.get(path) },
      log: this.#log(host, alive),
      key: host.key,
    };
    const daemon = createDaemon(seams, {
      name: host.name,
      announce: [],
      ax: { program: 'ax' },
      control: '/sim/control.sock',
      pid: number,
      onStop: () => undefined,
    });
    const life: Life = { number, daemon, store, rollbacks: 0, alive: true, started: false, onEnd: new Set() };
    host.life = life;
    world.note(`${host.name} boot ${number}`);
    try {
      await this.#within(life, daemon.start(), 'start');
      life.started = true;
      return true;
    } catch (error) {
      if (!(error instanceof Gone) && !(error instanceof AxError && error.code === 'store_full')) throw error;
      if (host.life === life) this.crash(host);
      return false;
    }
  }

  /** As kill -9. */
  crash(host: Host): void {
    const { life } = host;
    if (life === undefined) return;
    life.alive = false;
    host.life = undefined;
    host.image = life.store.crash();
    this.network.detach(host.id);
    this.count('crash');
    this.#watcher.ended(host, host.image, true);
    for (const end of life.onEnd) end();
  }

  /** As `ax daemon stop`. */
  async stop(host: Host): Promise<void> {
    const { life } = host;
    if (life === undefined || !life.started) return;
    this.world.note(`${host.name} stop`);
    life.started = false;
    try {
      await this.#within(life, life.daemon.stop(), 'stop');
    } catch (error) {
      if (error instanceof Gone) return;
      if (!(error instanceof AxError && error.code === 'store_full')) throw error;
    }
    if (host.life !== life) return;
    life.alive = false;
    host.life = undefined;
    host.image = life.store.image();
    this.count('graceful stop');
    this.#watcher.ended(host, host.image, false);
    for (const end of life.onEnd) end();
  }

  /** One local call. Throws AxError as answered, or Gone: the daemon is down, died under it, or the client gave up after `patienceMs`. */
  async call(
    host: Host,
    method: string,
    params: Readonly<Record<string, unknown>>,
    actor: Actor = OWNER,
    patienceMs?: number,
  ): Promise<Record<string, unknown>> {
    const { life } = host;
    if (life === undefined || !life.started) throw new Gone('the daemon is down');
    try {
      const result = await this.#within(life, life.daemon.call(method, params, actor), method, patienceMs);
      this.#said(host, method, params, 'ok', typeof result['message_id'] === 'string' ? result['message_id'] : '');
      return result;
    } catch (error) {
      if (error instanceof AxError) this.#said(host, method, params, error.code, error.message);
      else if (error instanceof Gone) this.#said(host, method, params, 'unanswered', error.message);
      if (error instanceof AxError && error.code === 'internal')
        throw new Error(`${host.name} ${method} answered internal: ${error.message}`, { cause: error });
      throw error;
    }
  }

  #said(host: Host, method: string, params: Readonly<Record<string, unknown>>, outcome: string, detail: string): void {
    this.count(`${method} ${outcome}`);
    const about = params['id'] ?? params['request_id'];
    this.world.note(`${host.name} ${method} ${typeof about === 'string' ? about : ''}: ${outcome} ${detail}`);
  }

  #within<T>(life: Life, promise: Promise<T>, what: string, patienceMs?: number): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const end = (): void => finish(() => reject(new Gone('the daemon died')));
      const giveUp = (): void =>
        finish(() =>
          reject(patienceMs === undefined ? new Error(`nobody answered ${what} within ${PATIENCE_MS} ms`) : new Gone('the client gave up')),
        );
      const cancel = this.world.after(patienceMs ?? PATIENCE_MS, giveUp);
      const finish = (settle: () => void): void => {
        cancel();
        life.onEnd.delete(end);
        settle();
      };
      life.onEnd.add(end);
      promise.then(
        (value) => finish(() => resolve(value)),
        (error: Error) => finish(() => reject(error)),
      );
    });
  }

  #watchedStore(host: Host, store: SimStore, life: () => Life): Store {
    return {
      get: (table, key) => store.get(table, key),
      range: (table, options) => store.range(table, options),
      count: (table, options) => store.count(table, options),
      close: () => store.close(),
      status: () => ({ ...store.status(), freeBytes: host.freeBytes }),
      write: (decide) =>
        store.write(decide).catch((error: unknown) => {
          if (error instanceof AxError && error.message.startsWith('the flush of')) {
            life().rollbacks++;
            this.count('store failure');
          }
          throw error;
        }),
    };
  }

  #watchedLink(host: Host, alive: () => boolean): Link {
    const link = this.network.link(host.id);
    const watcher = this.#watcher;
    return {
      start: (events) =>
        link.start({
          onPeer: (peer, up) => events.onPeer(peer, up),
          onTrouble: (peer, code, address) => events.onTrouble(peer, code, address),
          onRequest: async (peer, channel, bytes) => {
            const request = channel === 'wire' ? read(bytes) : undefined;
            if (request !== undefined) watcher.arrived(host, peer, request);
            const answer = await events.onRequest(peer, channel, bytes);
            if (request !== undefined && alive()) watcher.answered(host, peer, request, answer);
            return answer;
          },
        }),
      stop: () => link.stop(),
      request: (peer, channel, bytes, signal) => {
        const request = channel === 'wire' ? read(bytes) : undefined;
        if (request !== undefined && alive()) watcher.leaving(host, peer, request);
        return link.request(peer, channel, bytes, signal);
      },
      learn: (peers) => link.learn(peers),
      nudge: (peer) => link.nudge(peer),
      status: () => link.status(),
    };
  }

  #watchedHarness(host: Host, harness: SimHarness, alive: () => boolean): Harness {
    const watcher = this.#watcher;
    return {
      kind: harness.kind,
      start: (events) => harness.start(events),
      stop: () => harness.stop(),
      sessions: () => harness.sessions(),
      refresh: () => harness.refresh(),
      prove: (claim) => harness.prove(claim),
      notify: async (session, notice) => {
        if (alive()) watcher.notifying(host, session, notice);
        const result = await harness.notify(session, notice);
        if (alive()) watcher.notified(host, session, result.outcome);
        return result;
      },
    };
  }

  #log(host: Host, alive: () => boolean): Log {
    const at = (level: string) => (event: string, fields?: LogFields) => {
      if (!alive()) return;
      if (level !== 'debug') this.world.note(`${host.name} ${level}: ${event} ${JSON.stringify(fields ?? {})}`);
      if (level === 'error') this.#watcher.logged(host, event, fields);
    };
    return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
  }
}

/** A wire request, or undefined for bytes that are none. */
function read(bytes: Uint8Array): WireRequest | undefined {
  try {
    return readRequest(bytes);
  } catch (error) {
    if (error instanceof AxError) return undefined;
    throw error;
  }
}
