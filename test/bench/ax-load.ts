/**
 * Load on ax alone, for whoever tunes it: `node test/bench/ax-load.ts --in-flight 64 --bytes 1024 --seconds 3`.
 *
 * Two daemons of dist/ with homes of their own, a closed loop, and one line per figure asked for: messages a second, latencies, processor
 * time and memory of both daemons. `--in-flight` takes a list. `--profile DIR` leaves CPU profiles in a folder there per host.
 */
import { mkdirSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { AxPair, AxSender } from './ax-pair.ts';
import { closedLoop } from './closed-loop.ts';
import { cpuSeconds, memory } from './process-cost.ts';

const { values } = parseArgs({
  options: {
    'in-flight': { type: 'string', default: '1,64,256' },
    bytes: { type: 'string', default: '1024' },
    seconds: { type: 'string', default: '3' },
    profile: { type: 'string' },
  },
});
const bytes = Number(values.bytes);
const seconds = Number(values.seconds);

const pair = await AxPair.start((host) => {
  if (values.profile === undefined) return;
  const folder = join(values.profile, host.name);
  mkdirSync(folder, { recursive: true });
  host.env['NODE_OPTIONS'] = `--cpu-prof --cpu-prof-interval=500 --cpu-prof-dir=${realpathSync(folder)}`;
});
try {
  await pair.warm(10_000);
  const workspace = pair.b.workspace('work');
  const body = new Uint8Array(bytes).fill(0x61);
  for (const inFlight of values['in-flight'].split(',').map(Number)) {
    const sender = await AxSender.open(pair.a, inFlight);
    let cpu: readonly number[] = [0, 0, 0];
    const result = await closedLoop({
      inFlight,
      warmMs: 1000,
      measureMs: seconds * 1000,
      send: (one) => sender.send(one, pair.b, workspace, body),
      onWindow: (edge) => {
        const now = [...pair.cpu(), cpuSeconds(process.pid)];
        cpu = edge === 'begins' ? now : now.map((spent, which) => spent - cpu[which]!);
      },
    });
    await sender.close();
    const [a, b] = [memory(pair.a.pid), memory(pair.b.pid)];
    const cores = cpu.map((spent) => (spent / seconds).toFixed(2)).join('/');
    process.stdout.write(
      `${String(inFlight).padStart(4)} in flight, ${bytes} B: ${result.perSecond.toFixed(0)} msg/s, p50 ${result.p50.toFixed(2)} ms, ` +
        `p99 ${result.p99.toFixed(2)} ms; cores ${cores}; RssAnon ${a.anonymous.toFixed(0)}/${b.anonymous.toFixed(0)} MiB (sender/receiver/load)\n`,
    );
  }
  // A profile is written by a daemon that ends in order.
  if (values.profile !== undefined) await Promise.all([pair.a.stop(), pair.b.stop()]);
} finally {
  await pair.end();
}
