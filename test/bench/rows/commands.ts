/**
 * `ax send`, `ax messages fetch` and `ax admin status` from fork to exit, beside a Node that runs an empty file.
 *
 * Owns the scene: the bundled CLI against two running daemons, page cache warm, output to a pipe. `send` returns when the message is durable
 * at the sender; `fetch` is the owner's and prints a 1 KiB body. What is compared is Node's own start, which no command of it can be under.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AxSender } from '../ax-pair.ts';
import { median } from '../figures.ts';
import { BUNDLE } from '../../e2e/hosts.ts';
import type { Host } from '../../e2e/hosts.ts';
import { runToEnd } from '../../e2e/processes.ts';
import { ratio, type Contestant, type Row, type Target } from '../row.ts';

/** Runs of each command in one repeat; their median is the sample. */
const RUNS = 5;
const QUICK_RUNS = 3;

async function timed(host: Host, args: readonly string[]): Promise<number> {
  const { status, stderr, ms } = await runToEnd(process.execPath, args, { env: host.env, cwd: host.home });
  if (status !== 0) throw new Error(`${args.join(' ')} ended with ${status}: ${stderr}`);
  return ms;
}

function contestant(name: string, host: Host, args: readonly string[], runs: number): Contestant {
  return {
    name,
    measure: async () => {
      const times: number[] = [];
      for (let n = 0; n < runs; n++) times.push(await timed(host, args));
      return { ms: median(times) };
    },
  };
}

const target = (name: string): Target => ({
  what: `${name}, x an empty script`,
  of: (repeat) => ratio(repeat, [name, 'ms'], ['empty script', 'ms']),
  atMost: 1.5,
});

export const commands: Row = {
  name: 'commands',
  title: 'Commands from fork to exit, warm',
  targets: ['ax send', 'ax messages fetch', 'ax admin status'].map(target),
  setUp: async (systems) => {
    const { a, b, bed } = await systems.pair();
    const workspace = b.workspace('commands');
    const empty = join(bed.folder, 'empty.cjs');
    writeFileSync(empty, '');
    const sender = await AxSender.open(a, 1);
    const id = await sender.send(0, b, workspace, new Uint8Array(1024).fill(0x61));
    await sender.close();
    const send = [BUNDLE, 'send', '--host', b.name, '--harness', 'claude', '--destination-workspace', workspace, 'x'.repeat(1024)];
    const runs = systems.pace.isQuick ? QUICK_RUNS : RUNS;
    const contestants = [
      contestant('empty script', a, [empty], runs),
      contestant('ax send', a, send, runs),
      contestant('ax messages fetch', b, [BUNDLE, 'messages', 'fetch', id], runs),
      contestant('ax admin status', a, [BUNDLE, 'admin', 'status'], runs),
    ];
    for (const one of contestants) await one.measure(); // warm
    return { contestants };
  },
};
