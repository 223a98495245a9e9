/**
 * The hosts of one simulated world: for each a key, folders, agent sessions, and the daemon that createDaemon builds over the fakes.
 *
 * Owns booting, stopping, crashing and booting again from what the disk kept, and calls as a client makes them: the daemon may
 * die under a call. Everything that crosses a seam is shown to the watcher, which may judge it but never changes it.
 * Invariant: after a crash nothing of that life is heard of again.
 */
import type { Actor } from '../../daemon/addressing.ts';
import type { Box } from '../../daemon/box/box.ts';
import { createDaemon } from '../../daemon/daemon.ts';
import type { Daemon } from '../../daemon/daemon.ts';
import type { Notice, Session } from '../../daemon/harness/harness.ts';
import type { LogFields } from '../../daemon/log.ts';
import type { Table } from '../../daemon/store/store.ts';
import { AxError } from '../../protocol/errors.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import type { HostKey } from '../../protocol/identity.ts';
import type { HostId } from '../../protocol/ids.ts';
import { DEFAULT_LIMITS, MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import type { Limits } from '../../protocol/limits.ts';
import type { WireRequest } from '../../protocol/wire.ts';
import { SimCodexHarness } from './codex.ts';
import { Disk } from './disk.ts';
import { SimAgents, SimHarness } from './harness.ts';
import type { SimSession } from './harness.ts';
import { Machine } from './machine.ts';
import { SimNetwork } from './network.ts';
import type { Times } from './rights.ts';
import { SimStore } from './store.ts';
import type { StoreImage } from './store.ts';
import { isDiskError, watchedHarness, watchedLink, watchedLog, watchedStore } from './watched.ts';
import type { Watch } from './watched.ts';
import type { World } from './world.ts';

/** One run of a host's daemon. */
export interface Life {
  readonly number: number;
  readonly daemon: Daemon;
  readonly store: SimStore;
  /** Rises when a failed flush takes back what reads have shown. */
  rollbacks: number;
  /** Running time of all earlier lives as the disk told it, and the machine's monotonic time at the boot, ms. */
  readonly base: number;
  readonly born: number;
  alive: boolean;
  started: boolean;
  readonly onEnd: Set<() => void>;
}

export interface Host {
  readonly index: number;
  readonly name: string;
  readonly key: HostKey;
  readonly id: HostId;
  /** Sessions of Claude Code, and threads of Codex. */
  readonly agents: SimAgents;
  readonly threads: SimAgents;
  /** A path as typed, and the one it is. */
  readonly folders: Map<string, string>;
  /** Set: this host has a channel for sandboxed sessions. */
  box: Box | undefined;
  readonly machine: Machine;
  /** What its owner's config.json says; counts from the next boot on. */
  limits: Limits;
  lives: number;
  /** How long its earlier lives have run, ms. */
  ranBefore: number;
  life: Life | undefined;
  image: StoreImage | undefined;
}

export interface Watcher {
  /** A transaction changes a row. It is not durable yet, and may be undone. */
  applied(host: Host, table: Table, key: string, before: Uint8Array | undefined, after: Uint8Array | undefined): void;
  /** A request has arrived and is about to be handled. */
  arrived(host: Host, peer: HostId, request: WireRequest): void;
  /** An answer is about to leave. */
  answered(host: Host, peer: HostId, request: WireRequest, answer: Uint8Array): void;
  /** A request is about to leave. */
  leaving(host: Host, peer: HostId, request: WireRequest): void;
  notifying(host: Host, session: Session, notice: Notice): void;
  notified(host: Host, session: Session, notice: Notice, outcome: string): void;
  /** A later word of the harness about a notice. */
  heard(host: Host, notice: string, outcome: string): void;
  logged(host: Host, event: string, fields: LogFields | undefined): void;
  /** A life ended; `image` is what the disk holds. */
  ended(host: Host, image: StoreImage, crashed: boolean): void;
}

/** The daemon died under a call, or the client did: nobody knows what became of it. */
export class Gone extends Error {}

/** A call that is answered by nobody for this long is a fault of its own, virtual ms. */
const PATIENCE_MS = 600_000;
const KEYS = [11, 22, 33, 44, 55].map((byte) => hostKeyFromSeed(new Uint8Array(32).fill(byte)));
export const OWNER: Actor = {
  origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'cli' },
  session: null,
};

export class Fleet {
  readonly world: World;
  readonly network: SimNetwork;
  readonly hosts: readonly Host[];
  readonly counts = new Map<string, number>();
  /** Largest piece of a body in this world. */
  pieceBytes = MAX_PIECE_BYTES;
  readonly #watcher: Watcher;
  readonly #hasCodex: boolean;

  /** `hasCodex`: its daemons reach threads of Codex too. */
  constructor(
    world: World,
    size: number,
    watcher: Watcher,
    onAct: (host: Host, session: SimSession, notice: Notice) => Promise<void>,
    hasCodex = true,
  ) {
    this.world = world;
    this.#hasCodex = hasCodex;
    this.network = new SimNetwork(world);
    this.#watcher = watcher;
    this.network.isAsleep = (id) => this.host(id).machine.isAsleep;
    this.hosts = KEYS.slice(0, size).map((key, index) => {
      const host: Host = {
        index,
        name: `h${index}`,
        key,
        id: key.hostId,
        agents: new SimAgents(world, (session, notice) => onAct(host, session, notice)),
        threads: new SimAgents(world, (session, notice) => onAct(host, session, notice), 'codex'),
        folders: new Map(),
        box: undefined,
        machine: new Machine(world),
        limits: DEFAULT_LIMITS,
        lives: 0,
        ranBefore: 0,
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

  /** How long the daemons of a host have really run, in all lives, ms: what no crash takes back. */
  ran(host: Host): number {
    return host.ranBefore + (host.life === undefined ? 0 : host.machine.monotonic() - host.life.born);
  }

  /** What both clocks of a host say now: the wall's, and the running time that its daemon counts, ms. */
  times(host: Host): Times {
    const { life, machine } = host;
    return { wall: machine.wall(), ran: life === undefined ? 0 : Math.floor(life.base + machine.monotonic() - life.born) };
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
    const { machine } = host;
    const number = ++host.lives;
    machine.wake();
    const store = new SimStore(world, host.image, `${host.name}.${number}`);
    if (machine.storeFailure !== undefined) store.failing(machine.storeFailure);
    const alive = (): boolean => life.alive;
    const count = (what: string): void => this.count(what);
    const watch: Watch = { world, watcher: this.#watcher, host, life: () => life, alive, count };
    const claude = watchedHarness(watch, new SimHarness(host.agents, { alive }));
    const codex = watchedHarness(watch, new SimCodexHarness(host.threads, { alive }));
    const seams = {
      clock: machine.clock(alive),
      random: world.randomness(),
      store: watchedStore(watch, store),
      link: watchedLink(watch, this.network.link(host.id)),
      harnesses: this.#hasCodex ? [claude, codex] : [claude],
      files: { canonicalFolder: async (path: string) => host.folders.get(path) },
      log: watchedLog(watch),
      key: host.key,
      ...(host.box === undefined ? {} : { box: host.box }),
    };
    const daemon = createDaemon(seams, {
      name: host.name,
      announce: [],
      ax: { program: 'ax' },
      control: '/sim/control.sock',
      limits: host.limits,
      pieceBytes: this.pieceBytes,
      pid: number,
      onStop: () => undefined,
    });
    const base = new Disk(host.image).row<{ ms: number }>('meta', 'running')?.ms ?? 0;
    const born = machine.monotonic();
    const life: Life = { number, daemon, store, rollbacks: 0, base, born, alive: true, started: false, onEnd: new Set() };
    host.life = life;
    world.note(`${host.name} boot ${number}`);
    try {
      await this.#within(life, daemon.start(), 'start');
      life.started = true;
      return true;
    } catch (error) {
      if (!(error instanceof Gone) && !isDiskError(error)) throw error;
      if (host.life === life) this.crash(host);
      return false;
    }
  }

  /** As kill -9. */
  crash(host: Host): void {
    const { life } = host;
    if (life === undefined) return;
    host.ranBefore = this.ran(host);
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
      await this.#within(
        life,
        this.#whenAwake(host, () => life.daemon.stop()),
        'stop',
      );
    } catch (error) {
      if (error instanceof Gone) return;
      if (!isDiskError(error)) throw error;
    }
    if (host.life !== life) return;
    host.ranBefore = this.ran(host);
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
      const asked = this.#whenAwake(host, () => life.daemon.call(method, overSocket(params), actor));
      const result = await this.#within(life, asked, method, patienceMs);
      this.#said(host, method, params, 'ok', typeof result['message_id'] === 'string' ? result['message_id'] : '');
      return result;
    } catch (error) {
      if (error instanceof AxError) this.#said(host, method, params, error.code, error.message);
      else if (error instanceof Gone) this.#said(host, method, params, 'unanswered', error.message);
      if (error instanceof AxError && error.code === 'internal' && !isDiskError(error))
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

  /** A process that sleeps hears what it is asked only when it wakes. */
  #whenAwake<T>(host: Host, act: () => Promise<T>): Promise<T> {
    if (!host.machine.isAsleep) return act();
    return new Promise((resolve, reject) => host.machine.whenAwake(() => void act().then(resolve, reject)));
  }
}

/** Bytes that come over a socket are the daemon's own, who may give them back: the command keeps others. */
function overSocket(params: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(params).map(([name, value]) => [name, value instanceof Uint8Array ? value.slice() : value]));
}
