/**
 * 64 senders to 16 destinations with messages of mixed sizes: does every destination get its share?
 *
 * Owns the scene: four receiving daemons with four folders each, four senders to every folder, each of which sends the same four sizes in
 * turn. All wait for acceptances in one loop, so that only the daemons can favour a destination.
 */
import { AxSender, withoutLimits } from '../ax-pair.ts';
import { closedLoop } from '../closed-loop.ts';
import { leastShare } from '../figures.ts';
import { Bed, join2 } from '../../e2e/hosts.ts';
import type { Row } from '../row.ts';

const HOSTS = 4;
const FOLDERS = 4;
const SENDERS = 64;
const SIZES = [200, 1024, 16 * 1024, 128 * 1024];

export const fairness: Row = {
  name: 'fairness',
  title: '64 senders to 16 destinations (4 hosts x 4 folders), 200 B to 128 KiB',
  targets: [{ what: 'slowest destination, x its share', of: (repeat) => repeat['ax']?.['least share'], atLeast: 0.5 }],
  setUp: async ({ pace }) => {
    const bed = new Bed();
    try {
      const [from, ...receivers] = ['from', 'r0', 'r1', 'r2', 'r3'].slice(0, HOSTS + 1).map((name) => bed.host(name));
      if (from === undefined) throw new Error('no host');
      const all = [from, ...receivers];
      for (const host of all) withoutLimits(host);
      await Promise.all(all.map((host) => host.start({ direct: true, args: ['--listen', '/ip4/127.0.0.1/tcp/0', '--name', host.name] })));
      for (const receiver of receivers) await join2(from, receiver);
      const destinations = receivers.flatMap((host) =>
        Array.from({ length: FOLDERS }, (_none, n) => ({ host, workspace: host.workspace(`w${n}`) })),
      );
      const bodies = SIZES.map((bytes) => new Uint8Array(bytes).fill(0x61));
      const measure = async (): Promise<Record<string, number>> => {
        const sender = await AxSender.open(from, SENDERS);
        const result = await closedLoop({
          ...pace,
          measureMs: pace.measureMs * 2, // a share of few messages says little
          inFlight: SENDERS,
          send: (one, n) => {
            const { host, workspace } = destinations[one % destinations.length]!;
            return sender.send(one, host, workspace, bodies[n % bodies.length]!);
          },
        });
        await sender.close();
        const shares = destinations.map((_none, which) =>
          result.perSender.reduce((sum, count, one) => sum + (one % destinations.length === which ? count : 0), 0),
        );
        return { 'msg/s': result.perSecond, 'p50 ms': result.p50, 'p99 ms': result.p99, 'least share': leastShare(shares) };
      };
      return { contestants: [{ name: 'ax', measure }], end: () => bed.end() };
    } catch (error) {
      await bed.end();
      throw error;
    }
  },
};
