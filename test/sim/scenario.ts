/**
 * One seed, one world, one run: boot, pair, work under faults, heal, come to rest, judge.
 *
 * Owns the order of these and nothing else. The same seed gives the same trace. A broken rule or any error of the core ends
 * the run; the result then says which, with the last events.
 */
import { MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import { Checker } from './checker.ts';
import { Faults } from './faults.ts';
import { Fleet } from './fleet.ts';
import { judgeEnd, unsettled } from './verdict.ts';
import { Workload } from './workload.ts';
import { World } from './world.ts';

export interface Run {
  readonly seed: number;
  /** The first broken rule, or undefined. */
  readonly broken: string | undefined;
  readonly error: Error | undefined;
  readonly trace: readonly string[];
  readonly counts: ReadonlyMap<string, number>;
  /** Virtual ms the world lasted. */
  readonly lasted: number;
}

/** How many hosts a world has. */
const SIZES: readonly number[] = [2, 2, 2, 2, 3, 3, 3, 4, 4, 5];
/** Largest piece of a body: most bodies have fewer than 200 bytes. */
const PIECES: readonly number[] = [40, MAX_PIECE_BYTES, 100];
/** All of a world, rest included, takes no longer than this, virtual ms. */
const LIMIT_MS = 40 * 3_600_000;
/** How long a healed world may take to come to rest, virtual ms. */
const REST_MS = 12 * 3_600_000;

/** Runs the world of a seed. Never rejects for what the core does. */
export async function runSeed(seed: number): Promise<Run> {
  const world = new World(seed);
  const checker = new Checker(world);
  const fleet: Fleet = new Fleet(world, world.pick(SIZES), checker, (host, session, notice) => work.act(host, session, notice));
  checker.fleet = fleet;
  fleet.pieceBytes = PIECES[seed % PIECES.length]!;
  const faults = new Faults(fleet);
  checker.onMoment = (host, what) => faults.moment(host, what);
  const work: Workload = new Workload(fleet, checker, faults);
  let finished = false;
  const story = async (): Promise<void> => {
    for (const host of fleet.hosts) await fleet.boot(host);
    const early = world.chance(0.5);
    if (early) faults.start();
    work.pair();
    await fleet.sleep(world.between(100, 5000));
    if (!early) faults.start();
    const spanMs = world.between(20_000, 200_000);
    work.schedule(spanMs);
    await fleet.sleep(spanMs);
    await faults.heal();
    await work.settle();
    const end = world.time + REST_MS;
    for (;;) {
      await fleet.sleep(world.time < end - REST_MS + 60_000 ? 5000 : 60_000);
      if (!work.isIdle) continue;
      const open = unsettled(fleet, checker);
      if (open.length === 0) break;
      if (world.time > end) return checker.fail('a healed world comes to rest', open.slice(0, 5).join('; '));
    }
    judgeEnd(fleet, checker);
    finished = true;
  };
  let error: Error | undefined;
  try {
    story().catch((thrown: unknown) => void world.faults.push(thrown));
    const ended = await world.run(() => finished, LIMIT_MS);
    if (world.faults.length > 0) throw world.faults[0];
    if (ended !== 'done') throw new Error(`the world ended early: ${ended}`);
  } catch (thrown) {
    error = toError(thrown);
  }
  for (const [what, count] of Object.entries(fleet.network.counts)) fleet.counts.set(`net ${what}`, count);
  fleet.count(`profile ${faults.profile.name}`);
  return {
    seed,
    broken: error === undefined ? undefined : error.message,
    error,
    trace: world.trace,
    counts: fleet.counts,
    lasted: world.time,
  };
}

function toError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error('something that is no error was thrown', { cause: thrown });
}
