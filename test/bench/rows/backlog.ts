/**
 * A host with a backlog of a million waiting messages beside one with a thousand: send, accept, fetch, status, start and memory.
 *
 * Owns the scene: two filled hosts (test/big/fill.ts), and a third that sends to both, so that an acceptance is timed on the far side of a
 * real link. `few` is the host with a thousand, `many` the other. BACKLOG sets another number; a quick run takes 10,000.
 */
import { join } from 'node:path';
import { readHostKey } from '../../../daemon/config.ts';
import { openLmdbStore } from '../../../daemon/store/lmdb.ts';
import { bigId, fill, folderOf, FOLDERS } from '../../big/fill.ts';
import { Bed, join2 } from '../../e2e/hosts.ts';
import type { Host } from '../../e2e/hosts.ts';
import { AxSender, withoutLimits } from '../ax-pair.ts';
import { median } from '../figures.ts';
import { memory } from '../process-cost.ts';
import { ratio, type Contestant, type Row, type Sample, type Target } from '../row.ts';

const SMALL = 1000;
const FULL = 1_000_000;
const QUICK = 10_000;
/** Calls of each kind in one repeat; their median is the sample. */
const CALLS = 25;
/** Not counted: after its start a daemon's code is not yet compiled. */
const WARM_CALLS = 10;
const ROW = 'backlog';

interface Filled {
  readonly label: string;
  readonly host: Host;
  readonly messages: number;
}

/** A stopped host whose store holds so many waiting messages, and a tenth as many that wait to leave. */
async function filled(bed: Bed, label: string, messages: number): Promise<Filled> {
  const host = bed.host(label);
  withoutLimits(host);
  await host.start({ direct: true, args: ['--listen', '/ip4/127.0.0.1/tcp/0', '--name', label] });
  await host.stop();
  const key = readHostKey(host.stateDir, process.getuid?.() ?? 0);
  if (key === undefined) throw new Error('the host has no key');
  for (let n = 0; n < 2 * FOLDERS; n++) host.workspace(folderOf('.', n));
  const store = await openLmdbStore(join(host.stateDir, 'store'));
  await fill(store, key, host.home, messages);
  await store.close();
  return { label, host, messages };
}

/** A new life of its daemon: from its start to its ready line, ms. */
async function restarted({ host }: Filled): Promise<number> {
  await host.kill9();
  const from = performance.now();
  await host.start({ direct: true });
  return performance.now() - from;
}

type Call = (one: Filled, key: string, n: number) => Promise<unknown>;

function calls(sender: AxSender): Readonly<Record<string, Call>> {
  const body = new Uint8Array(1024).fill(0x61);
  const draft = { host: 'away', workspace: '/far', harness: 'claude', kind: 'message', body };
  return {
    send: ({ host }, key) => host.call('message.send', { ...draft, request_id: key }),
    accept: ({ host }) => sender.send(0, host, join(host.home, 'all'), body),
    fetch: ({ host, messages }, _key, n) => host.call('message.fetch', { id: bigId(Math.floor((messages * n) / (WARM_CALLS + CALLS))) }),
    status: ({ host }) => host.call('admin.status'),
  };
}

/** One repeat: both start anew, then calls of each kind, one host after the other each time, so that both meet the same moods. */
async function measure(both: readonly Filled[], probe: Host, life: number): Promise<Sample> {
  const figures: Record<string, number> = {};
  for (const one of both) {
    figures[`${one.label}: start ms`] = await restarted(one);
    await Promise.all([one.host.untilUp(probe), probe.untilUp(one.host)]);
  }
  const sender = await AxSender.open(probe, 1);
  for (const [kind, call] of Object.entries(calls(sender))) {
    const times = both.map((): number[] => []);
    for (let n = 0; n < WARM_CALLS + CALLS; n++)
      for (const [which, one] of both.entries()) {
        const from = performance.now();
        await call(one, `${kind}-${life}-${n}`, n);
        if (n >= WARM_CALLS) times[which]!.push(performance.now() - from);
      }
    for (const [which, one] of both.entries()) figures[`${one.label}: ${kind} ms`] = median(times[which]!);
  }
  await sender.close();
  for (const one of both) figures[`${one.label}: RssAnon MiB`] = memory(one.host.pid).anonymous;
  return figures;
}

const compared = (what: string, figure: string): Target => ({
  what: `${what}, x that with ${SMALL}`,
  of: (repeat) => ratio(repeat, [ROW, `many: ${figure}`], [ROW, `few: ${figure}`]),
  atMost: 1.2,
});

export const backlog: Row = {
  name: ROW,
  title: 'A backlog of a million waiting messages, beside a thousand',
  targets: [
    compared('send', 'send ms'),
    compared('accept', 'accept ms'),
    compared('fetch', 'fetch ms'),
    compared('status', 'status ms'),
    { what: 'daemon start, ms', of: (repeat) => repeat[ROW]?.['many: start ms'], atMost: 1000 },
    compared('anonymous memory', 'RssAnon MiB'),
  ],
  setUp: async ({ pace }) => {
    const messages = Number(process.env['BACKLOG'] ?? '') || (pace.isQuick ? QUICK : FULL);
    const bed = new Bed();
    try {
      const both = [await filled(bed, 'few', SMALL), await filled(bed, 'many', messages)];
      const probe = bed.host('probe');
      withoutLimits(probe);
      await Promise.all([probe, ...both.map(({ host }) => host)].map((host) => host.start({ direct: true })));
      for (const { host } of both) await join2(host, probe);
      let lives = 0;
      const contestant: Contestant = { name: ROW, measure: () => measure(both, probe, (lives += 1)) };
      const notes = messages === FULL ? [] : [`the backlog was ${messages} messages, not ${FULL}`];
      return { contestants: [contestant], notes, end: () => bed.end() };
    } catch (error) {
      await bed.end();
      throw error;
    }
  },
};
