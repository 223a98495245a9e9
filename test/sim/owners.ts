/**
 * What the owners of simulated hosts do beside sending and reading: grant and take back, rename, remove and pair again, hush agents, look
 * after dead messages, and ask for everything that can be asked.
 *
 * Owns the bounds each owner has set, and the paths to every method of the local API that no other client here takes. Tells the checker
 * every fact; judges nothing itself.
 */
import type { HostGrants, MessageStatus } from '../../protocol/control.ts';
import { DEFAULT_LIMITS } from '../../protocol/limits.ts';
import type { Limits } from '../../protocol/limits.ts';
import type { Checker } from './checker.ts';
import type { Fleet, Host } from './fleet.ts';
import { WORKSPACES } from './lives.ts';
import { untilAnswered } from './pairs.ts';
import type { Pairs } from './pairs.ts';
import type { World } from './world.ts';

type Params = Record<string, unknown>;

const ACTIONS = [['write'], ['notify'], ['write', 'notify'], ['read'], ['read', 'write', 'notify'], ['exec']] as const;

export class Owners {
  readonly #world: World;
  readonly #fleet: Fleet;
  readonly #checker: Checker;
  readonly #pairs: Pairs;

  constructor(fleet: Fleet, checker: Checker, pairs: Pairs) {
    this.#world = fleet.world;
    this.#fleet = fleet;
    this.#checker = checker;
    this.#pairs = pairs;
  }

  /** One thing that an owner does. */
  act(): Promise<void> {
    const acts: readonly (readonly [number, () => Promise<void>])[] = [
      [8, () => this.#changeGrants()],
      [4, () => this.#lookAround()],
      [2, () => this.#rename()],
      [2, () => this.#hush()],
      [4, () => this.retrySome()],
      [1, () => this.#remove()],
    ];
    let drawn = this.#world.random() * acts.reduce((sum, [each]) => sum + each, 0);
    const [, act] = acts.find(([each]) => (drawn -= each) < 0) ?? acts[0]!;
    return act();
  }

  /** The bounds in the config of this world's hosts: those of most are the defaults, and are never met. */
  limits(): Limits {
    const world = this.#world;
    if (world.chance(0.6)) return DEFAULT_LIMITS;
    const limits = { ...DEFAULT_LIMITS };
    if (world.chance(0.4)) limits.waitingMessages = world.between(1, 5);
    if (world.chance(0.3)) limits.waitingBytes = world.between(100, 60_000);
    if (world.chance(0.2)) limits.keptMessages = world.between(3, 15);
    if (world.chance(0.4)) Object.assign(limits, { messageBurst: world.between(1, 2), messagesPerMinute: world.between(1, 6) });
    if (world.chance(0.3)) Object.assign(limits, { noticeBurst: world.between(1, 2), noticesPerHour: world.between(6, 30) });
    return limits;
  }

  /** At the end: no agent is hushed, what was missing is there, some bounds are raised, and dead messages get another chance. */
  async settle(): Promise<void> {
    const { hosts } = this.#fleet;
    for (const host of hosts) {
      if (this.#world.chance(0.5)) host.folders.set('/nowhere', '/nowhere');
      if (host.limits !== DEFAULT_LIMITS && this.#world.chance(0.5)) await this.#raise(host);
      const { agents } = await this.#fleet.call(host, 'agent.list', {});
      for (const { name, quiet } of agents as { name: string; quiet: boolean }[])
        if (quiet) await untilAnswered(this.#fleet, async () => void (await this.#fleet.call(host, 'agent.unquiet', { name })));
    }
    for (let n = hosts.length; n > 0; n--) await untilAnswered(this.#fleet, () => this.retrySome(), 3);
  }

  /** Its owner writes larger bounds into the config, and starts the daemon again. */
  async #raise(host: Host): Promise<void> {
    host.limits = DEFAULT_LIMITS;
    await this.#fleet.stop(host);
    await this.#fleet.boot(host);
    this.#fleet.count('bounds raised');
  }

  #two(): [Host, Host] {
    const first = this.#world.pick(this.#fleet.hosts);
    return [first, this.#world.pick(this.#fleet.hosts.filter((host) => host !== first))];
  }

  async #changeGrants(): Promise<void> {
    const [host, other] = this.#two();
    const params: Params = { host: other.name, actions: this.#world.pick(ACTIONS) };
    const drawn = this.#world.random();
    if (drawn > 0.35) params['workspace'] = drawn < 0.85 ? this.#world.pick(WORKSPACES) : drawn < 0.95 ? '/alias' : '/nowhere';
    const isGrant = this.#world.chance(0.6);
    if (isGrant && this.#world.chance(0.5)) params['expires_ms'] = this.#world.between(1000, 150_000);
    const answer = (await this.#fleet.call(host, isGrant ? 'host.grant' : 'host.revoke', params)) as unknown as HostGrants;
    this.#fleet.count(`${isGrant ? 'grant' : 'revoke'} ${params['workspace'] === undefined ? 'everywhere' : 'for a workspace'}`);
    if (params['expires_ms'] !== undefined) this.#fleet.count('grant with an end');
    this.#checker.rows.granted(host, other.id, answer.revision);
  }

  async #lookAround(): Promise<void> {
    const [host, other] = this.#two();
    for (const method of ['daemon.hello', 'daemon.status', 'host.id', 'host.list']) await this.#fleet.call(host, method, {});
    const { messages } = await this.#fleet.call(host, 'message.list', { sent: this.#world.chance(0.5), limit: 20 });
    for (const { message_id: id } of (messages as MessageStatus[]).slice(0, 2)) {
      await this.#fleet.call(host, 'message.show', { id });
      await this.#fleet.call(host, 'admin.message_status', { id });
    }
    await this.#fleet.call(host, 'host.show', { host: other.name });
    await this.#fleet.call(host, 'host.ping', { host: other.name, count: 1 });
  }

  /** Another name for a while. */
  async #rename(): Promise<void> {
    const [host, other] = this.#two();
    const [method, from, to] = this.#world.chance(0.5)
      ? ['host.rename', other.name, `${other.name}-renamed`]
      : ['agent.rename', this.#world.pick(WORKSPACES).slice(1), 'renamed'];
    const call = async (name: string, fresh: string): Promise<void> => {
      await this.#fleet.call(host, method, method === 'host.rename' ? { host: name, name: fresh } : { name, new_name: fresh });
    };
    await call(from, to);
    await this.#fleet.sleep(this.#world.between(0, 5000));
    await untilAnswered(this.#fleet, () => call(to, from), 20);
  }

  async #hush(): Promise<void> {
    const host = this.#world.pick(this.#fleet.hosts);
    const name = this.#world.pick(WORKSPACES).slice(1);
    const forMs = this.#world.chance(0.6) ? { for_ms: this.#world.between(1000, 120_000) } : {};
    await this.#fleet.call(host, 'agent.quiet', { name, ...forMs });
    await this.#fleet.sleep(this.#world.between(0, 60_000));
    if (this.#world.chance(0.5)) await this.#fleet.call(host, 'agent.unquiet', { name });
  }

  /** Has a dead message tried again; sometimes one that is not dead. */
  async retrySome(): Promise<void> {
    const host = this.#world.pick(this.#fleet.hosts);
    const { messages } = await this.#fleet.call(host, 'admin.dead', { limit: 100 });
    const dead = messages as { message_id: string; state: string }[];
    for (const { message_id: id, state } of dead) this.#checker.shown(host, 'sender', id, state, 'self');
    const any = [...this.#checker.asks.values()].find((ask) => ask.from === host && ask.id !== undefined)?.id;
    const id = dead.length > 0 && this.#world.chance(0.9) ? this.#world.pick(dead).message_id : any;
    if (id === undefined) return;
    this.#checker.retrying(id);
    await this.#fleet.call(host, 'admin.retry', { id });
    this.#checker.retried(host, id);
  }

  /** A host is forgotten, and after a while paired again from this side. */
  async #remove(): Promise<void> {
    const [host, other] = this.#two();
    await this.#fleet.call(host, 'host.remove', { host: other.name, cancel_pending: this.#world.chance(0.7) });
    if (this.#world.chance(0.2)) return;
    await this.#fleet.sleep(this.#world.between(1000, 30_000));
    await this.#pairs.add(host, other, undefined);
  }
}
