/**
 * What an idle daemon costs, with no peer and with 100: memory beside a bare libp2p process with as many connections, and processor time.
 *
 * Owns the scene: all processes idle at the same time and are measured over the same span, so that they take nothing from each other.
 * Bare libp2p is there twice: with its packages as npm installs them, and bundled as the daemon is, which is the harder comparison.
 * The daemon's 100 peers are 100 real cores with real links in one other process (many-peers.ts), each paired by an invitation of its own.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { HELLO_INTERVAL_MS } from '../../../protocol/limits.ts';
import { Bed, until } from '../../e2e/hosts.ts';
import type { Host } from '../../e2e/hosts.ts';
import { killGroup, launch } from '../../e2e/processes.ts';
import type { Json } from '../../e2e/processes.ts';
import { PlainChild } from '../plain-child.ts';
import { cpuSeconds, memory } from '../process-cost.ts';
import { ratio, type Contestant, type Row, type Sample, type Target } from '../row.ts';

const PEERS = 100;
const QUICK_PEERS = 10;
/** A whole round: the hellos and probes of all peers come in bursts, and a part of a round would hold all of them or none. */
const SPAN_MS = HELLO_INTERVAL_MS;
const QUICK_SPAN_MS = 4000;
/** After the last connection: what starts and connections leave to do is done, and what they left in memory has been looked at, ms. */
const SETTLE_MS = 20_000;
const QUICK_SETTLE_MS = 1000;

/** Pairs a daemon with so many hosts, all of one other process; gives that process's end. */
async function withPeers(host: Host, folder: string, count: number): Promise<() => void> {
  mkdirSync(folder, { recursive: true });
  const program = join(import.meta.dirname, '..', 'many-peers.ts');
  const child = launch(process.execPath, [program, JSON.stringify({ folder })], { env: host.env, cwd: folder });
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => (said += text));
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]();
  for (let n = 0; n < count; n++) {
    const { code } = await host.call<{ code: string }>('host.invite');
    child.stdin?.write(`${code}\n`);
    if ((await lines.next()).done === true) throw new Error(`a peer did not join: ${said}`);
  }
  await until(`${count} peers up`, async () => {
    const { hosts } = await host.call<{ hosts: Json[] }>('host.list');
    const up = hosts.filter((row) => row['state'] === 'up').length;
    return up === count ? true : `${up} are`;
  });
  return () => killGroup(child.pid ?? 0);
}

/** A bare process with so many connections, and another that holds their other ends. */
async function bare(connections: number, form: 'bundle' | 'packages'): Promise<readonly [PlainChild, ...PlainChild[]]> {
  const listener = new PlainChild('bare-libp2p.ts', { nodes: 1 }, form);
  const address = String((await listener.line())['addresses'][0]);
  if (connections === 0) return [listener];
  const dialler = new PlainChild('bare-libp2p.ts', { nodes: connections, dial: address });
  await dialler.line();
  return [listener, dialler];
}

/** All at once over one span: one contestant whose figures are told apart by name. */
function together(pids: Readonly<Record<string, number>>, spanMs: number): Contestant {
  const measure = async (): Promise<Sample> => {
    const before = Object.entries(pids).map(([name, pid]) => [name, pid, cpuSeconds(pid)] as const);
    const from = performance.now();
    await new Promise((resolve) => setTimeout(resolve, spanMs));
    const seconds = (performance.now() - from) / 1000;
    const figures = before.flatMap(([name, pid, cpu]) => {
      const { rss: resident, anonymous } = memory(pid);
      return [
        [`${name}: CPU %`, (100 * (cpuSeconds(pid) - cpu)) / seconds],
        [`${name}: RSS MiB`, resident],
        [`${name}: RSS without files MiB`, anonymous],
      ];
    });
    return Object.fromEntries(figures) as Sample;
  };
  return { name: 'idle', measure };
}

const rss = (what: string, peers: string, form: string): Target => ({
  what: `${what}, x bare libp2p, ${form}`,
  of: (repeat) => ratio(repeat, ['idle', `ax, ${peers}: RSS MiB`], ['idle', `${form}, ${peers}: RSS MiB`]),
  atMost: 1.3,
});

export const idle: Row = {
  name: 'idle',
  title: 'Idle daemon without peers and with many (a round of hellos each)',
  mostRepeats: 5,
  targets: [
    rss('RSS without peers', 'none', 'packages'),
    rss('RSS with peers', 'many', 'packages'),
    rss('RSS without peers', 'none', 'bundle'),
    rss('RSS with peers', 'many', 'bundle'),
    { what: 'CPU without peers, % of a core', of: (repeat) => repeat['idle']?.['ax, none: CPU %'], atMost: 0.1 },
    { what: 'CPU with peers, % of a core', of: (repeat) => repeat['idle']?.['ax, many: CPU %'], atMost: 0.3 },
  ],
  setUp: async ({ pace }) => {
    const peers = pace.isQuick ? QUICK_PEERS : PEERS;
    const bed = new Bed();
    const ends: (() => void)[] = [];
    const end = async (): Promise<void> => {
      for (const one of ends) one();
      await bed.end();
    };
    try {
      const [alone, busy] = [bed.host('alone'), bed.host('many')];
      for (const host of [alone, busy]) await host.start({ direct: true, args: ['--listen', '/ip4/127.0.0.1/tcp/0', '--name', host.name] });
      ends.push(await withPeers(busy, join(bed.folder, 'peers'), peers));
      const pids: Record<string, number> = { 'ax, none': alone.pid, 'ax, many': busy.pid };
      for (const form of ['packages', 'bundle'] as const)
        for (const [count, label] of [[0, 'none'] as const, [peers, 'many'] as const]) {
          const [listener, ...others] = await bare(count, form);
          ends.push(...[listener, ...others].map((child) => () => child.end()));
          pids[`${form}, ${label}`] = listener.pid;
        }
      await new Promise((resolve) => setTimeout(resolve, pace.isQuick ? QUICK_SETTLE_MS : SETTLE_MS));
      const spanMs = pace.isQuick ? QUICK_SPAN_MS : SPAN_MS;
      const notes = [`many: ${peers} peers; measured over ${spanMs / 1000} s`];
      return { contestants: [together(pids, spanMs)], notes, end };
    } catch (error) {
      await end();
      throw error;
    }
  },
};
