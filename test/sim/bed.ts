/**
 * A small simulated world for one rule: two hosts, paired, and the few steps a directed test needs.
 *
 * Owns the words of those tests (send, fetch, confirm, wait for a state). The checker of the random worlds watches here too, and
 * the end is judged by the same rules.
 */
import assert from 'node:assert/strict';
import type { Actor } from '../../daemon/addressing.ts';
import type { HarnessKind, Notice } from '../../daemon/harness/harness.ts';
import type { MessageStatus } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import type { Limits } from '../../protocol/limits.ts';
import { Checker } from './checker.ts';
import type { Ask } from './checker.ts';
import { Fleet, Gone, OWNER } from './fleet.ts';
import type { Host } from './fleet.ts';
import type { SimSession } from './harness.ts';
import { actorOf } from './reader.ts';
import { judgeEnd } from './verdict.ts';
import { World } from './world.ts';

export interface Bed {
  readonly world: World;
  readonly fleet: Fleet;
  readonly checker: Checker;
  readonly a: Host;
  readonly b: Host;
  send(from: Host, to: Host, key: string, workspace?: string, actor?: Actor, patienceMs?: number, harness?: HarnessKind): Promise<string>;
  status(host: Host, id: string): Promise<MessageStatus>;
  /** Fetches as a session; the token of the hand-out. */
  fetch(host: Host, session: SimSession, id: string): Promise<{ token: string; refetch: boolean }>;
  confirm(host: Host, id: string, token: string, sender: Host): Promise<void>;
  /** Waits until a message shows this state on `host`. */
  until(host: Host, id: string, state: string): Promise<void>;
}

export interface BedOptions {
  readonly grants?: readonly string[] | null;
  readonly judged?: boolean;
  readonly codex?: boolean;
  /** Of these the first two are paired. Default 2. */
  readonly hosts?: number;
  /** Largest piece of a body. */
  readonly pieceBytes?: number;
  /** Every host's, where they are not the default. */
  readonly limits?: Partial<Limits>;
  /** What a session that acts does with a notice; by default nothing. */
  readonly onAct?: (bed: Bed, host: Host, session: SimSession, notice: Notice) => Promise<void>;
}

/** A world of two hosts, booted and (unless told otherwise) paired; `story` runs in it, then its end is judged. */
export async function inWorld(seed: number, story: (bed: Bed) => Promise<void>, options: BedOptions = {}): Promise<void> {
  const world = new World(seed);
  const checker = new Checker(world);
  const act = async (host: Host, session: SimSession, notice: Notice): Promise<void> => options.onAct?.(bed, host, session, notice);
  const fleet = new Fleet(world, options.hosts ?? 2, checker, act, options.codex === true);
  for (const host of fleet.hosts) host.limits = { ...host.limits, ...options.limits };
  checker.fleet = fleet;
  fleet.pieceBytes = options.pieceBytes ?? fleet.pieceBytes;
  const [a, b] = fleet.hosts as [Host, Host];
  for (const host of fleet.hosts) for (const path of ['/alpha', '/beta']) host.folders.set(path, path);
  const status = async (host: Host, id: string): Promise<MessageStatus> =>
    (await fleet.call(host, 'admin.message_status', { id })) as unknown as MessageStatus;
  const bed: Bed = {
    world,
    fleet,
    checker,
    a,
    b,
    status,
    send: async (from, to, key, workspace = '/alpha', actor = OWNER, patienceMs, harness = 'claude') => {
      const ask: Ask = checker.asks.get(key) ?? {
        key,
        from,
        to,
        workspace,
        body: new Uint8Array(Buffer.from(`${key}|body`)),
        id: undefined,
      };
      checker.asked(ask);
      const sent = await fleet.call(
        from,
        'message.send',
        { host: from === to ? 'Localhost' : to.name, harness, workspace, body: ask.body, request_id: key },
        actor,
        patienceMs,
      );
      checker.sendReturned(ask, String(sent['message_id']));
      return String(sent['message_id']);
    },
    fetch: async (host, session, id) => {
      const begun = checker.begun(host, id);
      checker.fetchBegun(host, id);
      const result = await fleet.call(host, 'message.fetch', { id }, actorOf(session));
      checker.fetched(host, result as never, begun);
      return { token: String(result['hand_out']), refetch: result['refetch'] === true };
    },
    confirm: async (host, id, token, sender) => {
      checker.confirmBegun(host, id, token);
      await fleet.call(host, 'message.confirm', { id, hand_out: token });
      checker.confirmed(host, id, sender.id);
    },
    until: async (host, id, state) => {
      const end = world.time + 2 * 3_600_000;
      for (;;) {
        const shown = await status(host, id).then(
          (now) => now.state,
          (error: Error) =>
            error instanceof Gone || (error instanceof AxError && error.code === 'message_not_found') ? 'not there' : Promise.reject(error),
        );
        if (shown === state) return;
        if (world.time > end) throw new Error(`${host.name} ${id} is ${shown} and never became ${state}`);
        await fleet.sleep(100);
      }
    },
  };
  let finished = false;
  const run = async (): Promise<void> => {
    for (const host of fleet.hosts) await fleet.boot(host);
    if (options.grants !== null) await pair(bed, options.grants);
    await story(bed);
    await fleet.sleep(1000);
    if (options.judged !== false) judgeEnd(fleet, checker);
    finished = true;
  };
  run().catch((error: unknown) => void world.faults.push(error));
  const ended = await world.run(() => finished, 24 * 3_600_000);
  if (world.faults.length > 0) throw world.faults[0];
  assert.equal(ended, 'done');
}

/** `b` allows `a` these actions; `a` allows `b` what a pairing gives. */
async function pair(bed: Bed, grants?: readonly string[]): Promise<void> {
  const { fleet, a, b } = bed;
  const { code } = await fleet.call(b, 'host.invite', { grants });
  await fleet.call(a, 'host.join', { code, name: b.name });
  await fleet.sleep(500);
}

/** A session of `host` that acts on nothing by itself, set up as the agent of its folder. */
export async function attached(bed: Bed, host: Host, workspace = '/alpha', agents = host.agents): Promise<SimSession> {
  const session = agents.add({ workspace, behaviour: 'drops' });
  await bed.fleet.sleep(100);
  await bed.fleet.call(host, 'agent.setup', { name: workspace.slice(1), workspace }, actorOf(session));
  return session;
}

export const seeds = (count: number): number[] => Array.from({ length: count }, (_, index) => index + 1);

/** Holds back the answer to the next delivery at `b` for some seconds; everything else stays fast. */
export function holdAnswer(bed: Bed, ms: number): void {
  const { checker, b, fleet } = bed;
  checker.onMoment = (host, what) => {
    if (host !== b || what !== 'accepted') return;
    checker.onMoment = () => undefined;
    Object.assign(fleet.network.faults, { minDelayMs: ms, maxDelayMs: ms });
    fleet.world.after(0, () => Object.assign(fleet.network.faults, { minDelayMs: 1, maxDelayMs: 5 }));
  };
}
