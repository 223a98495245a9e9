/**
 * 1 KiB messages at 1, 64 and 256 in flight: ax beside Redis Streams with a sync before each answer, and Postfix's queue.
 *
 * Owns the three rows that are the main job: from the call to the signed acceptance that is stored at the sender. The two others are one
 * server each, in clear and unsigned, whose client keeps nothing: what is compared is what a user gets, not the same work.
 */
import { AxSender } from '../ax-pair.ts';
import { MailClient, mailBody, RedisClient } from '../clients.ts';
import { closedLoop, type LoopResult } from '../closed-loop.ts';
import { ratio, type Contestant, type Row, type Sample, type Target } from '../row.ts';
import type { Systems } from '../systems.ts';

const BYTES = 1024;
/** Postfix serves a connection with a process of its own; so many are enough to see what it does with more. */
const MOST_MAIL = 64;

function figures({ perSecond, p50, p99 }: LoopResult): Sample {
  return { 'msg/s': perSecond, 'p50 ms': p50, 'p99 ms': p99 };
}

async function axContestant(systems: Systems, inFlight: number): Promise<Contestant> {
  const pair = await systems.pair();
  const workspace = pair.b.workspace('inflight');
  const body = new Uint8Array(BYTES).fill(0x61);
  return {
    name: 'ax',
    measure: async () => {
      const sender = await AxSender.open(pair.a, inFlight);
      const spent = { from: [0, 0] as readonly number[], ms: 0, cores: [0, 0] };
      const result = await closedLoop({
        ...systems.pace,
        inFlight,
        send: (one) => sender.send(one, pair.b, workspace, body),
        onWindow: (edge) => {
          const now = pair.cpu();
          if (edge === 'ends') spent.cores = now.map((one, which) => (one - spent.from[which]!) / ((performance.now() - spent.ms) / 1000));
          spent.from = now;
          spent.ms = performance.now();
        },
      });
      await sender.close();
      return { ...figures(result), 'cores of the sender': spent.cores[0]!, 'cores of the receiver': spent.cores[1]! };
    },
  };
}

function redisContestant(systems: Systems, port: number, inFlight: number): Contestant {
  const body = new Uint8Array(BYTES).fill(0x61);
  return {
    name: 'Redis',
    measure: async () => {
      const client = await RedisClient.open(port);
      const result = await closedLoop({ ...systems.pace, inFlight, send: () => client.add('bench', body) });
      client.close();
      return figures(result);
    },
  };
}

function postfixContestant(systems: Systems, port: number, inFlight: number): Contestant {
  const body = mailBody(BYTES);
  return {
    name: 'Postfix',
    measure: async () => {
      const clients = await Promise.all(Array.from({ length: inFlight }, () => MailClient.open(port)));
      const result = await closedLoop({ ...systems.pace, inFlight, send: (one) => clients[one]!.send(body) });
      for (const client of clients) client.close();
      return figures(result);
    },
  };
}

function inflight(inFlight: number, targets: readonly Target[]): Row {
  return {
    name: `inflight-${inFlight}`,
    title: `${inFlight} in flight, 1 KiB: control call to signed acceptance stored`,
    targets,
    setUp: async (systems) => {
      const contestants = [await axContestant(systems, inFlight)];
      const notes: string[] = [];
      const redis = await systems.redis();
      if (typeof redis === 'string') notes.push(redis);
      else contestants.push(redisContestant(systems, redis.port, inFlight));
      if (inFlight <= MOST_MAIL) {
        const postfix = await systems.postfix();
        if (typeof postfix === 'string') notes.push(postfix);
        else contestants.push(postfixContestant(systems, postfix.port, inFlight));
      }
      return { contestants, notes };
    },
  };
}

const toRedis = (repeat: Parameters<typeof ratio>[0]): number | undefined => ratio(repeat, ['ax', 'msg/s'], ['Redis', 'msg/s']);

export const inflight1 = inflight(1, [
  { what: 'p50, x Postfix', of: (repeat) => ratio(repeat, ['ax', 'p50 ms'], ['Postfix', 'p50 ms']), atMost: 1.4, aim: 1 },
]);
export const inflight64 = inflight(64, [
  { what: 'msg/s, x Redis', of: toRedis, atLeast: 0.35, aim: 0.6 },
  { what: 'msg/s, x Postfix', of: (repeat) => ratio(repeat, ['ax', 'msg/s'], ['Postfix', 'msg/s']), atLeast: 4 },
]);
export const inflight256 = inflight(256, [
  { what: 'msg/s, x Redis', of: toRedis, atLeast: 0.35, aim: 0.6 },
  { what: 'p99, ms', of: (repeat) => repeat['ax']?.['p99 ms'], atMost: 40 },
]);
