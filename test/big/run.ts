/**
 * `make test-big`: a host with MESSAGES (1,000,000) waiting messages beside one with 1,000, each with a real daemon.
 *
 * Says how long a start and each command take on both, and what memory the large one uses of its own; ends with 1 when a start takes a
 * second or a command more than 1.2 times the work. A start is from the spawn of the daemon to its first answer on the control socket. Of a
 * command two times are told, quartiles of many calls in turns on both hosts once both have served each for a while: until its answer, and
 * the processor's in the daemon, which alone is judged: what else a machine is busy with is not in it. Linux. Needs some GB of disk.
 */
import { readdirSync, readFileSync } from 'node:fs';
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
/** Calls of each command before any is measured: a daemon that has just started compiles what it runs. */
const WARM_CALLS = 15;
const RATIO = 1.2;
/** Below this a difference is the machine's, ms; of starts more, each is a process of its own. */
const NOISE_MS = 0.3;
const START_NOISE_MS = 100;

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

/** Processor time of all threads of a process so far, ms. */
function busyMs(pid: number): number {
  const threads = readdirSync(`/proc/${pid}/task`);
  return threads.reduce((sum, id) => sum + Number(/^\d+/.exec(readFileSync(`/proc/${pid}/task/${id}/schedstat`, 'utf8'))), 0) / 1e6;
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
  await host.call('daemon.hello');
  starts.push(performance.now() - from);
}

const ASKED: readonly (readonly [string, Method, (at: Filled, n: number) => Record<string, unknown>])[] = [
  ['status', 'admin.status', () => ({})],
  ['status of a message', 'admin.message_status', ({ messages }, n) => ({ id: bigId(Math.floor((messages * n) / CALLS)) })],
  ['list', 'message.list', () => ({})],
  ['list of a folder', 'message.list', ({ host }) => ({ workspace: join(host.home, 'w7'), limit: 15 })],
  ['list of what was sent', 'message.list', () => ({ sent: true })],
  ['list of a rare state', 'message.list', () => ({ state: 'fetched' })],
  ['list of what is on its way', 'message.list', () => ({ sent: true, state: 'forwarding' })],
  ['fetch', 'message.fetch', ({ messages }, n) => ({ id: bigId(Math.floor((messages * n) / CALLS)) })],
  ['show a host', 'host.show', () => ({ host: 'away' })],
];

const bed = new Bed();
try {
  const both = [await filled(bed, 'small', SMALL), await filled(bed, 'big', BIG)] as const;
  for (let n = 0; n < 6; n++) for (const one of both) await start(one);
  const row = (what: string, figures: readonly string[]): string =>
    `${what.padEnd(44)}${figures.map((text) => text.padStart(16)).join('')}\n`;
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
  if (starts[1]! >= 1000) problems.push('a start takes a second or more');
  if (starts[1]! > starts[0]! * RATIO + START_NOISE_MS) problems.push('a start takes longer with a large store');
  for (let n = 0; n < WARM_CALLS; n++)
    for (const [, method, params] of ASKED) for (const one of both) await one.host.call(method, params(one, n));
  for (const [name, method, params] of ASKED) {
    const times: [number[], number[]] = [[], []];
    const work: [number[], number[]] = [[], []];
    for (let n = 0; n < CALLS; n++)
      for (const [which, one] of both.entries()) {
        const [from, before] = [performance.now(), busyMs(one.host.pid)];
        await one.host.call(method, params(one, n));
        times[which]!.push(performance.now() - from);
        work[which]!.push(busyMs(one.host.pid) - before);
      }
    const took = times.map((all) => quartile(all).toFixed(2));
    const [small, big] = work.map(quartile) as [number, number];
    const cells = [small, big].map((ms, which) => `${took[which]} (${ms.toFixed(2)})`);
    process.stdout.write(row(`${name}, ms (of them work)`, cells));
    if (big > small * RATIO + NOISE_MS) problems.push(`${name} takes ${(big / small).toFixed(1)} times the work`);
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
