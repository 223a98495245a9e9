/**
 * The seams of one life of a simulated daemon, each with the watcher at it and the machine's sleep around it.
 *
 * Owns that nothing of a dead daemon is heard of, that nothing of a sleeping one happens, and that everything which crosses a seam is
 * shown to the watcher first. Changes nothing that crosses.
 */
import type { Harness } from '../../daemon/harness/harness.ts';
import type { Link } from '../../daemon/link/link.ts';
import type { Log, LogFields } from '../../daemon/log.ts';
import type { Store } from '../../daemon/store/store.ts';
import { AxError } from '../../protocol/errors.ts';
import { readRequest } from '../../protocol/wire.ts';
import type { WireRequest } from '../../protocol/wire.ts';
import type { Host, Life, Watcher } from './fleet.ts';
import type { SimHarness } from './harness.ts';
import type { SimStore } from './store.ts';
import type { World } from './world.ts';

export interface Watch {
  readonly world: World;
  readonly watcher: Watcher;
  readonly host: Host;
  readonly life: () => Life;
  readonly alive: () => boolean;
  readonly count: (what: string) => void;
}

/** The error of a flush that the simulated disk failed. */
export function isDiskError(error: unknown): boolean {
  return error instanceof AxError && (error.code === 'store_full' || error.message.startsWith('the flush of'));
}

export function watchedStore({ host, life, alive, count, watcher }: Watch, store: SimStore): Store {
  const { machine } = host;
  store.onChange = (table, key, before, after) => {
    if (alive()) watcher.applied(host, table, key, before, after);
  };
  return {
    get: (table, key) => store.get(table, key),
    range: (table, options) => store.range(table, options),
    count: (table, options) => store.count(table, options),
    close: () => store.close(),
    status: () => ({ ...store.status(), freeBytes: machine.freeBytes }),
    write: (decide) =>
      machine.awake(
        store.write(decide).catch((error: unknown) => {
          if (error instanceof AxError && error.message.startsWith('the flush of')) {
            life().rollbacks++;
            count(error.code === 'internal' ? 'broken store' : 'store failure');
          }
          throw error;
        }),
      ),
  };
}

export function watchedLink({ host, alive, watcher }: Watch, link: Link): Link {
  const { machine } = host;
  const whenAlive = (run: () => void): void => machine.whenAwake(() => void (alive() && run()));
  return {
    start: (events) =>
      link.start({
        onPeer: (peer, up) => whenAlive(() => events.onPeer(peer, up)),
        onTrouble: (peer, code, address) => whenAlive(() => events.onTrouble(peer, code, address)),
        onRequest: async (peer, channel, bytes) => {
          if (machine.isAsleep) await new Promise<void>((resolve) => whenAlive(resolve));
          if (channel === 'hello') return machine.speaks(await events.onRequest(peer, channel, machine.hears(bytes, false)), true);
          const request = read(bytes);
          if (request !== undefined) watcher.arrived(host, peer, request);
          const answer = await events.onRequest(peer, channel, bytes);
          if (request !== undefined && alive()) watcher.answered(host, peer, request, answer);
          return answer;
        },
      }),
    stop: () => link.stop(),
    request: async (peer, channel, bytes, limit) => {
      if (channel === 'hello')
        return machine.hears(await machine.awake(link.request(peer, channel, machine.speaks(bytes, false), limit)), true);
      const request = read(bytes);
      if (request !== undefined && alive()) watcher.leaving(host, peer, request);
      return machine.awake(link.request(peer, channel, bytes, limit));
    },
    learn: (peers) => link.learn(peers),
    nudge: (peer) => link.nudge(peer),
    status: () => link.status(),
  };
}

export function watchedHarness({ host, alive, watcher, count }: Watch, harness: SimHarness): Harness {
  const { machine } = host;
  const whenAlive = (run: () => void): void => machine.whenAwake(() => void (alive() && run()));
  return {
    kind: harness.kind,
    start: (events) =>
      harness.start({
        onSessions: (sessions) => whenAlive(() => events.onSessions(sessions)),
        onNotice: (id, result) =>
          whenAlive(() => {
            count(`${harness.kind} says ${result.outcome}`);
            watcher.heard(host, id, result.outcome);
            events.onNotice(id, result);
          }),
      }),
    stop: () => harness.stop(),
    sessions: () => harness.sessions(),
    refresh: () => machine.awake(harness.refresh()),
    prove: (claim) => machine.awake(harness.prove(claim)),
    notify: async (session, notice) => {
      if (alive()) watcher.notifying(host, session, notice);
      const result = await machine.awake(harness.notify(session, notice));
      if (alive()) watcher.notified(host, session, notice, result.outcome);
      return result;
    },
  };
}

export function watchedLog({ host, alive, watcher, world }: Watch): Log {
  const at = (level: string) => (event: string, fields?: LogFields) => {
    if (!alive()) return;
    if (level !== 'debug') world.note(`${host.name} ${level}: ${event} ${JSON.stringify(fields ?? {})}`);
    if (level === 'error') watcher.logged(host, event, fields);
  };
  return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
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
