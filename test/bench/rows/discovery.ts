/**
 * Discovery of 50 sessions: how soon a change is seen, and what the daemon reads while nothing changes.
 *
 * Owns the scene: stand-in sessions as processes of their own, with records and sockets as the genuine ones have them. A session that turns
 * busy is seen when `agent.sessions` says so, which looks at everything anew. One that starts, ends or is killed is seen when the status of a
 * message for its folder says so, which looks at nothing: the daemon has to find out by itself. A full rescan shows in what the daemon reads
 * while nothing changes: a record has about 600 bytes, the state of its process 300. What it reads without any session is taken off. The
 * quiet time is a minute, within which the daemon looks at each session once.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Bed } from '../../e2e/hosts.ts';
import type { Host } from '../../e2e/hosts.ts';
import { startStandIn, type StandIn } from '../../standin/spawn.ts';
import { percentile } from '../figures.ts';
import { cpuSeconds, bytesRead } from '../process-cost.ts';
import type { Contestant, Row } from '../row.ts';

const SESSIONS = 50;
const QUICK_SESSIONS = 12;
const CHANGES = 10;
/** Times that a session comes and goes in a repeat: every second one is killed. */
const LIVES = 6;
const QUICK_LIVES = 2;
const LIMIT_MS = 20_000;
const QUIET_MS = 60_000;
const QUICK_QUIET_MS = 4000;
/** The same without a session, ms. */
const ALONE_MS = 10_000;
/** The daemon's slow look behind its watches comes about so often, ms. */
const TICK_MS = 2000;
const AT_ONCE = 5;

async function statusOf(host: Host, sessionId: string): Promise<string | undefined> {
  const { hosts } = await host.call<{ hosts: { sessions: { session_id: string; status: string }[] }[] }>('agent.sessions', {
    host: 'Localhost',
  });
  return hosts[0]?.sessions.find((row) => row.session_id === sessionId)?.status;
}

/** From the change in the session to the first answer that tells it, ms. */
async function seenAfter(host: Host, session: StandIn, cmd: 'busy' | 'idle'): Promise<number> {
  const from = performance.now();
  const changed = session.send({ cmd });
  while ((await statusOf(host, session.sessionId)) !== cmd) {
    if (performance.now() - from > LIMIT_MS) throw new Error('a change was not seen in time');
  }
  await changed;
  return performance.now() - from;
}

/** Waits until the daemon holds the folder of a message for one where a session lives, or for one where none does; gives the wall time, ms. */
async function seenUnasked(host: Host, messageId: string, isLive: boolean): Promise<number> {
  const from = performance.now();
  for (;;) {
    const status = await host.call<{ live_session: boolean }>('admin.message_status', { id: messageId });
    if (status.live_session === isLive) return Date.now();
    if (performance.now() - from > LIMIT_MS) throw new Error('a session that came or went was not seen in time');
  }
}

interface Lives {
  readonly came: readonly number[];
  readonly ended: readonly number[];
  readonly killed: readonly number[];
}

/** How soon the daemon sees by itself that a session comes, ends as it should, and is killed: ms each. */
async function seenLives(host: Host, count: number): Promise<Lives> {
  const lives = { came: [] as number[], ended: [] as number[], killed: [] as number[] };
  const cwd = host.workspace('coming');
  const sent = await host.ok(['send', '--host', 'Localhost', '--destination-workspace', cwd, '--harness', 'claude', 'hello']);
  const id = String(sent['message_id']);
  await host.untilStatus(id, { live_session: false });
  for (let n = 0; n < count; n++) {
    const options = { configDir: join(host.home, '.claude'), socketDir: join(host.home, 's'), cwd, autorun: false };
    const starting = startStandIn(options, host.env);
    try {
      const [session, seen] = await Promise.all([starting, seenUnasked(host, id, true)]);
      const { startedAt } = JSON.parse(readFileSync(session.record, 'utf8')) as { startedAt: number };
      lives.came.push(seen - startedAt);
      const isKilled = n % 2 === 0;
      const from = Date.now();
      const ending = isKilled ? session.kill() : session.stop();
      (isKilled ? lives.killed : lives.ended).push((await seenUnasked(host, id, false)) - from);
      await ending;
    } finally {
      await (await starting).stop();
    }
  }
  return lives;
}

interface Quiet {
  readonly bytesPerTick: number;
  /** Per cent of a core. */
  readonly cpu: number;
}

/** What a daemon does in a while in which nothing changes. */
async function quietCost(host: Host, ms: number): Promise<Quiet> {
  const [bytes, cpu, from] = [bytesRead(host.pid), cpuSeconds(host.pid), performance.now()];
  await new Promise((resolve) => setTimeout(resolve, ms));
  const took = performance.now() - from;
  return { bytesPerTick: (bytesRead(host.pid) - bytes) / (took / TICK_MS), cpu: (100 * (cpuSeconds(host.pid) - cpu)) / (took / 1000) };
}

function contestant(host: Host, sessions: readonly StandIn[], quietMs: number, lifeCount: number, alone: Quiet): Contestant {
  let turn = 0;
  const measure = async (): Promise<Record<string, number>> => {
    const times: number[] = [];
    for (let n = 0; n < CHANGES; n++) {
      const session = sessions[(turn += 7) % sessions.length]!;
      times.push(await seenAfter(host, session, 'busy'));
      await seenAfter(host, session, 'idle');
    }
    const lives = await seenLives(host, lifeCount);
    const quiet = await quietCost(host, quietMs);
    return {
      'seen p50 ms': percentile(times, 0.5),
      'seen slowest ms': Math.max(...times),
      'start seen slowest ms': Math.max(...lives.came),
      'end seen slowest ms': Math.max(...lives.ended),
      'kill -9 seen slowest ms': Math.max(...lives.killed),
      'bytes read per session and tick': (quiet.bytesPerTick - alone.bytesPerTick) / sessions.length,
      'CPU %': quiet.cpu,
      'CPU % without a session': alone.cpu,
    };
  };
  return { name: 'ax', measure };
}

export const discovery: Row = {
  name: 'discovery',
  title: `${SESSIONS} sessions: a change is seen, and nothing is read when nothing changes`,
  targets: [
    { what: 'a change is seen, slowest of 10, ms', of: (repeat) => repeat['ax']?.['seen slowest ms'], atMost: 500 },
    { what: 'a start is seen, unasked, ms', of: (repeat) => repeat['ax']?.['start seen slowest ms'], atMost: 500 },
    { what: 'an end is seen, unasked, ms', of: (repeat) => repeat['ax']?.['end seen slowest ms'], atMost: 500 },
    { what: 'a kill -9 is seen, unasked, ms', of: (repeat) => repeat['ax']?.['kill -9 seen slowest ms'], atMost: 500 },
    {
      what: 'bytes read per session and 2 s (a rescan: 900)',
      of: (repeat) => repeat['ax']?.['bytes read per session and tick'],
      atMost: 100,
    },
  ],
  setUp: async ({ pace }) => {
    const count = pace.isQuick ? QUICK_SESSIONS : SESSIONS;
    const bed = new Bed();
    try {
      const host = bed.host('many');
      await host.start({ direct: true, args: ['--listen', '/ip4/127.0.0.1/tcp/0', '--name', 'many'] });
      const quietMs = pace.isQuick ? QUICK_QUIET_MS : QUIET_MS;
      const alone = await quietCost(host, pace.isQuick ? QUICK_QUIET_MS : ALONE_MS);
      const sessions: StandIn[] = [];
      while (sessions.length < count) {
        const next = Array.from({ length: Math.min(AT_ONCE, count - sessions.length) }, (_none, n) => `w${sessions.length + n}`);
        sessions.push(...(await Promise.all(next.map((name) => host.session(host.workspace(name))))));
      }
      const notes =
        count === SESSIONS
          ? []
          : [
              `${count} sessions, not ${SESSIONS}`,
              `quiet for ${QUICK_QUIET_MS / 1000} s, too short for the look that each session gets within a minute`,
            ];
      return { contestants: [contestant(host, sessions, quietMs, pace.isQuick ? QUICK_LIVES : LIVES, alone)], notes, end: () => bed.end() };
    } catch (error) {
      await bed.end();
      throw error;
    }
  },
};
