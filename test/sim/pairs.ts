/**
 * How the hosts of a simulated world come to know each other: by invite or by hand, at once or late, one way first or both.
 *
 * Owns what each allows the other, chosen by the seed, and the patience of the two people who do it: they try until it works.
 */
import { AxError } from '../../protocol/errors.ts';
import { Gone } from './fleet.ts';
import type { Fleet, Host } from './fleet.ts';
import type { World } from './world.ts';

export interface Meeting {
  readonly afterMs: number;
  readonly meet: () => Promise<void>;
}

export class Pairs {
  readonly #world: World;
  readonly #fleet: Fleet;

  constructor(fleet: Fleet) {
    this.#fleet = fleet;
    this.#world = fleet.world;
  }

  /** When and how each two hosts meet. */
  plan(): Meeting[] {
    const { hosts } = this.#fleet;
    const couples = hosts.flatMap((a) => hosts.filter((b) => a.index < b.index).map((b) => [a, b] as const));
    return couples.map(([a, b]) => ({
      afterMs: this.#world.chance(0.25) ? this.#world.between(5000, 90_000) : 0,
      meet: this.#world.chance(0.6) ? () => this.#invite(a, b) : () => this.#addBoth(a, b),
    }));
  }

  /** By hand, on one side. */
  add(at: Host, other: Host, grants: readonly string[] | undefined): Promise<void> {
    const address = `${this.#fleet.network.addressOf(other.id)}/p2p/${other.id}`;
    return untilAnswered(this.#fleet, async () => void (await this.#fleet.call(at, 'host.add', { name: other.name, address, grants })));
  }

  #grants(): readonly string[] | undefined {
    const drawn = this.#world.random();
    if (drawn < 0.75) return undefined;
    return drawn < 0.9 ? ['read', 'write'] : ['read'];
  }

  /** Invites and joins, with a new invite when the old one is void. */
  async #invite(a: Host, b: Host): Promise<void> {
    const grants = this.#grants();
    let isJoined = false;
    const join = async (code: unknown): Promise<void> => {
      await this.#fleet.call(b, 'host.join', { code, name: a.name, grants: this.#grants() });
      isJoined = true;
    };
    while (!isJoined) {
      await untilAnswered(this.#fleet, async () => {
        const { code } = await this.#fleet.call(a, 'host.invite', { grants });
        await untilAnswered(this.#fleet, () => join(code));
      });
      if (!isJoined) await this.#fleet.sleep(1000);
    }
  }

  async #addBoth(a: Host, b: Host): Promise<void> {
    const [first, second] = this.#world.chance(0.5) ? [a, b] : [b, a];
    await this.add(first, second, this.#grants());
    if (this.#world.chance(0.5)) await this.#fleet.sleep(this.#world.between(1000, 40_000)); // one-sided for a while
    await this.add(second, first, this.#grants());
  }
}

/** Tries until it is answered, as a person does; a refusal for good is an answer. Gives up after `tries`. */
export async function untilAnswered(fleet: Fleet, act: () => Promise<void>, tries = Infinity): Promise<void> {
  for (let left = tries; left > 0; left--) {
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof Gone) && !(error instanceof AxError)) throw error;
      if (error instanceof AxError && !error.retryable) return;
    }
    await fleet.sleep(fleet.world.between(500, 4000));
  }
}
