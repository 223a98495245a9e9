/**
 * `make test-big`: a host with MESSAGES (1,000,000) waiting messages beside one with 1,000, each with a real daemon.
 *
 * Says how long a start and each command take on both, and what memory the large one uses of its own; ends with 1 when a start takes a
 * second or a command more than 1.2 times as long. Times are the medians of many calls on the control socket. Needs some GB of disk.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { readHostKey } from '../../daemon/config.ts';
import { openLmdbStore } from '../../daemon/store/lmdb.ts';
import type { Method } from '../../protocol/control.ts';
import { Bed } from '../e2e/hosts.ts';
import type { Host } from '../e2e/hosts.ts';
import { bigId, fill, folderOf, FOLDERS } from './fill.ts';

const SMALL = 1000;
const BIG = Number(process.env['MESSAGES'] ?? '') || 1_000_000;
const CALLS = 40;
const RATIO = 1.2;
/** Below this a difference is the machine's, ms. */
const NOISE_MS = 1;

interface Filled {
  readonly host: Host;
  readonly messages: number;
  readonly starts: number[];
}

/** The quarter that the machine disturbed least, its slowest. */
const quartile = (values: readonly number[]): number => values.toSorted((one, other) => one - other)[values.length >> 2] ?? 0;

function anonymousMiB(pid: number): number {
  return Number(/RssAnon:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
}

/** A stopped host whose store holds so many messages. */
async function filled(bed: Bed, name: string, messages: number): Promise<Filled> {
  const host = await bed.running(name);
  await host.stop();
  const key = readHostKey(host.stateDir, process.getuid?.() ?? 0);
  if (key === undefined) throw new Error('the host has no key');
  for (let n = 0; n < 2 * FOLDERS; n++) host.workspace(folderOf('.', n));
  const store = await openLmdbStore(join(host.stateDir, 'store'));
  const began = performance.now();
  await fill(store, key, host.home, messages);
  await store.close();
  process.stdout.write(`${messages} messages: filled in ${((performance.now() - began) / 1000).toFixed(0)} s\n`);
  return { host, messages, starts: [] };
}

async function start({ host, starts }: Filled): Promise<void> {
  if (host.pid !== 0) await host.kill9();
  const from = performance.now();
  await host.start({ direct: true });
  starts.push(performance.now() - from);
}

const ASKED: readonly (readonly [string, Method, (at: Filled, n: number) => Record<string, unknown>])[] = [
  ['status', 'admin.status', () => ({})],
  ['status of a message', 'admin.message_status', ({ messages }, n) => ({ id: bigId(Math.floor((messages * n) / CALLS)) })],
  ['list', 'message.list', () => ({})],
  ['list of a folder', 'message.list', ({ host }) => ({ workspace: join(host.home, 'w7'), limit: 15 })],
  ['list of what was sent', 'message.list', () => ({ sent: true })],
  ['fetch', 'message.fetch', ({ messages }, n) => ({ id: bigId(Math.floor((messages * n) / CALLS)) })],
  ['show a host', 'host.show', () => ({ host: 'away' })],
];

const bed = new Bed();
try {
  const both = [await filled(bed, 'small', SMALL), await filled(bed, 'big', BIG)] as const;
  for (let n = 0; n < 6; n++) for (const one of both) await start(one);
  const row = (what: string, figures: readonly string[]): string =>
    `${what.padEnd(24)}${figures.map((text) => text.padStart(14)).join('')}\n`;
  const problems: string[] = [];
  // The first start after the fill finds the file in no cache of the daemon's, like those after it; all count.
  const starts = both.map((one) => quartile(one.starts));
  process.stdout.write(
    row(
      '',
      both.map((one) => String(one.messages)),
    ),
  );
  process.stdout.write(
    row(
      'start, ms',
      starts.map((ms) => ms.toFixed(0)),
    ),
  );
  // On a machine that is busy with other things even the small one takes longer than it may.
  if (starts[1]! > Math.max(1000, starts[0]! * RATIO)) problems.push('a start takes more than a second');
  for (const [name, method, params] of ASKED) {
    const times: [number[], number[]] = [[], []];
    for (let n = 0; n < CALLS; n++)
      for (const [which, one] of both.entries()) {
        const from = performance.now();
        await one.host.call(method, params(one, n));
        times[which]!.push(performance.now() - from);
      }
    const [small, big] = times.map(quartile) as [number, number];
    process.stdout.write(
      row(
        `${name}, ms`,
        [small, big].map((ms) => ms.toFixed(2)),
      ),
    );
    if (big > small * RATIO + NOISE_MS) problems.push(`${name} takes ${(big / small).toFixed(1)} times as long`);
  }
  const memory = both.map((one) => anonymousMiB(one.host.pid)) as [number, number];
  process.stdout.write(
    row(
      'anonymous memory, MiB',
      memory.map((mib) => mib.toFixed(0)),
    ),
  );
  if (memory[1] > memory[0] * RATIO + 10) problems.push('anonymous memory grows with the store');
  const { store } = await both[1].host.call<{ store: { bytes: number; entries: number } }>('admin.status');
  process.stdout.write(`store of the large one: ${(store.bytes / 1e6).toFixed(0)} MB, ${store.entries} entries\n`);
  for (const problem of problems) process.stdout.write(`FAILED ${problem}\n`);
  process.exitCode = problems.length === 0 ? 0 : 1;
} finally {
  await bed.end();
}
