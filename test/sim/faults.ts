/**
 * What goes wrong in one simulated world: how often, where and when, all chosen by the seed.
 *
 * Owns loss, copies, delay, partitions, resets, crashes (at any time, and on purpose at the moments where they hurt), full and failing
 * disks, clocks that are ahead, behind or set, machines that sleep and builds of another protocol; and `heal`, which ends all of it.
 * Knows nothing of what is right.
 */
import { PEER_PROTOCOL } from '../../protocol/version.ts';
import type { Fleet, Host } from './fleet.ts';
import type { World } from './world.ts';

/** Moments at which a crash finds bugs: the workload and the watcher name them. */
export type Moment = 'send' | 'deliver arrived' | 'piece arrived' | 'accepted' | 'cancel' | 'handed out' | 'confirm' | 'notice' | 'receipt';

/** Moments that come seldom. */
const READING: readonly Moment[] = ['handed out', 'confirm', 'receipt'];

interface Profile {
  readonly name: string;
  /** Mean virtual ms between crashes, partitions, resets, full or failing disks and clock steps; 0: never. */
  readonly crash: number;
  readonly split: number;
  readonly reset: number;
  readonly full: number;
  readonly step: number;
  /** The same between sleeps of a machine, and other builds of ax on one. */
  readonly sleep: number;
  readonly build: number;
  /** Probability of a crash at a named moment. */
  readonly moment: number;
  readonly lose: number;
  readonly duplicate: number;
  readonly slow: readonly number[];
}

const NONE: Omit<Profile, 'name'> = {
  crash: 0,
  split: 0,
  reset: 0,
  full: 0,
  step: 0,
  sleep: 0,
  build: 0,
  moment: 0,
  lose: 0,
  duplicate: 0,
  slow: [20],
};
/** Everything at once. */
const MIXED: Omit<Profile, 'name'> = {
  crash: 45_000,
  split: 45_000,
  reset: 45_000,
  full: 60_000,
  step: 60_000,
  sleep: 60_000,
  build: 90_000,
  moment: 0.04,
  lose: 0.1,
  duplicate: 0.25,
  slow: [20, 400, 8000],
};

const PROFILES: readonly Profile[] = [
  { ...NONE, name: 'calm' },
  { ...NONE, name: 'lossy', reset: 30_000, step: 60_000, lose: 0.15, duplicate: 0.2, slow: [20, 400, 4000] },
  { ...NONE, name: 'crashy', crash: 30_000, moment: 0.06, lose: 0.03, duplicate: 0.25, slow: [20, 60] },
  { ...NONE, name: 'split', split: 25_000, reset: 25_000, lose: 0.05, duplicate: 0.1, slow: [20, 1500] },
  { ...NONE, name: 'full', crash: 90_000, full: 20_000, moment: 0.02, lose: 0.05, duplicate: 0.15 },
  { ...NONE, name: 'slow', reset: 40_000, step: 30_000, lose: 0.05, duplicate: 0.3, slow: [8000, 25_000] },
  { ...NONE, name: 'sleepy', sleep: 20_000, step: 40_000, crash: 120_000, lose: 0.03, duplicate: 0.1, slow: [20, 400] },
  { ...NONE, name: 'builds', build: 30_000, reset: 60_000, lose: 0.03, duplicate: 0.1, slow: [20, 400] },
  { ...MIXED, name: 'mixed' },
];

const HOUR_MS = 3_600_000;

export class Faults {
  readonly profile: Profile;
  readonly #world: World;
  readonly #fleet: Fleet;
  #active = false;

  constructor(fleet: Fleet) {
    this.#fleet = fleet;
    this.#world = fleet.world;
    this.profile = this.#world.pick(PROFILES);
  }

  start(): void {
    const { profile } = this;
    this.#active = true;
    this.#world.note(`faults ${profile.name}`);
    const { faults } = this.#fleet.network;
    faults.loseRequest = profile.lose * this.#world.random();
    faults.loseAnswer = profile.lose * 1.5 * this.#world.random();
    faults.duplicate = profile.duplicate * this.#world.random();
    faults.maxDelayMs = this.#world.pick(profile.slow);
    this.#every(profile.crash, () => this.#crash(this.#world.pick(this.#fleet.hosts), 0));
    this.#every(profile.split, () => this.#split());
    this.#every(profile.reset, () => this.#reset());
    this.#every(profile.full, () => this.#fill());
    this.#every(profile.step, () => this.#step());
    this.#every(profile.sleep, () => this.#sleep());
    this.#every(profile.build, () => this.#otherBuild());
    // Clocks that are ahead or behind from the start: nothing that any two hosts say of the time needs to agree.
    if (profile.step > 0) for (const { machine } of this.#fleet.hosts) machine.skewMs = this.#world.between(-48, 48) * HOUR_MS;
  }

  /** The host is at a moment where a crash hurts: perhaps it comes, within what a flush or an answer takes. */
  moment(host: Host, what: Moment): void {
    if (!this.#active || !this.#world.chance(this.profile.moment * (READING.includes(what) ? 4 : 1))) return;
    this.#fleet.count(`crash near ${what}`);
    this.#crash(host, this.#world.random() * 40);
  }

  /** Everything works from here on; every daemon is booted again. Resolves when all run. */
  async heal(): Promise<void> {
    this.#active = false;
    this.#world.note('faults end');
    const { network, hosts } = this.#fleet;
    Object.assign(network.faults, { loseRequest: 0, loseAnswer: 0, duplicate: 0, mutate: 0, minDelayMs: 1, maxDelayMs: 20 });
    network.healAll();
    for (const host of hosts) {
      this.#space(host);
      host.machine.wake();
      if (host.machine.protocol !== PEER_PROTOCOL || host.life?.store.isBroken === true) await this.#install(host, PEER_PROTOCOL);
      for (;;) {
        if (host.life?.started === true) break;
        if (host.life === undefined) await this.#fleet.boot(host);
        else await this.#fleet.sleep(100);
      }
    }
  }

  /** Runs `act` at seed-chosen times with this mean pause while faults are on. */
  #every(meanMs: number, act: () => void): void {
    if (meanMs === 0) return;
    this.#world.after(-Math.log(1 - this.#world.random()) * meanMs, () => {
      if (!this.#active) return;
      act();
      this.#every(meanMs, act);
    });
  }

  #crash(host: Host, afterMs: number): void {
    this.#world.after(afterMs, () => {
      if (!this.#active || host.life === undefined) return;
      if (this.#world.chance(0.85)) this.#fleet.crash(host);
      else this.#fleet.stop(host).catch((error: unknown) => void this.#world.faults.push(error));
      this.#revive(host);
    });
  }

  /** Boots again after a while, as a supervisor or a person does. */
  #revive(host: Host): void {
    const pauseMs = this.#world.chance(0.7) ? this.#world.between(10, 2000) : this.#world.between(2000, 40_000);
    this.#world.after(pauseMs, () => {
      if (!this.#active || host.life !== undefined) return;
      this.#fleet.boot(host).then(
        (up) => {
          if (!up) this.#revive(host);
        },
        (error: unknown) => this.#world.faults.push(error),
      );
    });
  }

  #pair(): [Host, Host] {
    const first = this.#world.pick(this.#fleet.hosts);
    return [first, this.#world.pick(this.#fleet.hosts.filter((host) => host !== first))];
  }

  #split(): void {
    const [a, b] = this.#pair();
    const oneWay = this.#world.chance(0.4);
    this.#fleet.count(oneWay ? 'one-way partition' : 'partition');
    this.#fleet.network.partition(a.id, b.id, oneWay);
    this.#world.after(this.#world.between(500, 45_000), () => this.#fleet.network.heal(a.id, b.id));
  }

  #reset(): void {
    const [a, b] = this.#pair();
    this.#fleet.count('reset');
    this.#fleet.network.reset(a.id, b.id);
  }

  /** The disk fills up, or fails: flushes fail, or ax sees the little room in time. A store whose disk failed needs a new start. */
  #fill(): void {
    const host = this.#world.pick(this.#fleet.hosts);
    const { machine } = host;
    const drawn = this.#world.random();
    if (drawn < 0.3) machine.freeBytes = 1024;
    else {
      machine.storeFailure = drawn < 0.8 ? 'store_full' : 'internal';
      host.life?.store.failing(machine.storeFailure);
    }
    this.#world.note(`${host.name} disk ${drawn < 0.8 ? 'full' : 'fails'}`);
    this.#world.after(this.#world.between(20, 12_000), () => {
      this.#space(host);
      if (host.life?.store.isBroken === true) this.#crash(host, this.#world.between(0, 5000));
    });
  }

  #space(host: Host): void {
    host.machine.freeBytes = 2 ** 40;
    host.machine.storeFailure = undefined;
    host.life?.store.failing(undefined);
  }

  #step(): void {
    const { machine } = this.#world.pick(this.#fleet.hosts);
    machine.skewMs = this.#world.between(-400, 400) * 24 * HOUR_MS;
    this.#fleet.count('wall clock step');
  }

  /** A lid is closed, or a daemon stopped by a signal; its peers may notice, and drop the connection. */
  #sleep(): void {
    const host = this.#world.pick(this.#fleet.hosts);
    if (host.machine.isAsleep || host.life === undefined) return;
    const kind = this.#world.chance(0.6) ? 'suspended' : 'stopped';
    const ms = this.#world.chance(0.7) ? this.#world.between(200, 40_000) : this.#world.between(40_000, 400_000);
    this.#fleet.count(`machine ${kind}`);
    this.#world.note(`${host.name} ${kind} for ${ms} ms`);
    host.machine.sleep(kind);
    if (this.#world.chance(0.5))
      this.#world.after(ms / 2, () => {
        for (const other of this.#fleet.hosts) if (other !== host) this.#fleet.network.reset(host.id, other.id);
      });
    this.#world.after(ms, () => {
      if (!host.machine.isAsleep) return;
      this.#world.note(`${host.name} wakes`);
      host.machine.wake();
    });
  }

  /** Another build of ax for a while: newer or older, with no peer protocol in common; then this one again. */
  #otherBuild(): void {
    const host = this.#world.pick(this.#fleet.hosts);
    if (host.machine.protocol !== PEER_PROTOCOL || host.life?.started !== true || host.machine.isAsleep) return;
    const by = this.#world.chance(0.6) ? 1 : -1;
    this.#fleet.count(by > 0 ? 'newer build' : 'older build');
    const put = (range: typeof PEER_PROTOCOL | { min: number; max: number }): void =>
      void this.#install(host, range).catch((error: unknown) => void this.#world.faults.push(error));
    put({ min: PEER_PROTOCOL.min + by, max: PEER_PROTOCOL.max + by });
    this.#world.after(this.#world.between(3000, 60_000), () => {
      if (this.#active && host.life?.started === true) put(PEER_PROTOCOL);
    });
  }

  /** Stops the daemon, installs a build and starts it. */
  async #install(host: Host, protocol: Host['machine']['protocol']): Promise<void> {
    this.#world.note(`${host.name} installs a build of protocol ${protocol.min}-${protocol.max}`);
    await this.#fleet.stop(host);
    if (host.life !== undefined) this.#fleet.crash(host);
    host.machine.protocol = protocol;
    if (!(await this.#fleet.boot(host)) && this.#active) this.#revive(host);
  }
}
