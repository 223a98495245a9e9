/**
 * `make bench-scale`: the figures of docs/scale.md, measured and simulated: what a host with 100 peers and 1 M messages a day needs.
 *
 * STORED sets how many messages are there before (20,000). Owns the list of what is measured (scale-costs.ts), what is simulated (scale-load.ts), and the sums over both. Prints and writes nothing.
 * Processor times stand beside one Ed25519 signature made in the same minute; `normal` is what they are where that takes 23 us. Counts and
 * bytes do not depend on the machine, but for what one commit gathers: a slow disk gathers more.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { weightOf } from '../../daemon/store/weights.ts';
import { DEFAULT_LIMITS, DEFAULT_RETENTION_MS, METADATA_RETENTION_MS } from '../../protocol/limits.ts';
import { childSeconds, Pair, signMicroseconds, usedSeconds, writtenBytes } from './scale-costs.ts';
import { mostPerSecond, simulateHerd, simulateLoad, spreadOf } from './scale-load.ts';
import type { Outcome } from './scale-load.ts';

const HOSTS = 10_000;
const PEERS = 100;
const PER_DAY = 1_000_000;
const PEAK = 5;
const BODY = new Uint8Array(1024).fill(0x61);
const DAY_MS = 86_400_000;
/** A signature on the machine to which processor times are scaled ("normal"), microseconds. */
const NORMAL_SIGN = 23;
/** Messages of others in each store before the first is measured: the deeper the trees, the more a commit writes. */
const STORED = Number(process.env['STORED'] ?? '') || 20_000;
/** Messages measured one at a time, 32 at a time, and grown old. */
const ALONE = 150;
const TOGETHER = 600;
const AGED = 600;
/** How much faster than the system's the clock of the aged pair runs: a tick of retention is a second. */
const HASTE = 10;
const IDLE_MINUTES = 2;
const RECONNECTS = 8;
const CLI_STARTS = 12;

const folder = mkdtempSync(join(tmpdir(), 'axs-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));

function say(what: string, ...figures: readonly (string | number)[]): void {
  const shown = figures.map((one) => (typeof one === 'string' ? one : Number(one.toPrecision(3)).toLocaleString('en')));
  process.stdout.write(`${what.padEnd(64)}${shown.map((text) => text.padStart(14)).join('')}\n`);
}

async function together(pair: Pair, messages: number): Promise<void> {
  let left = messages;
  const one = async (): Promise<void> => {
    while (left-- > 0) await pair.message(BODY);
  };
  await Promise.all(Array.from({ length: 32 }, one));
}

/** What a message costs on the way: measured over `count` of them, of both ends together. */
async function way(
  pair: Pair,
  count: number,
  run: () => Promise<void>,
): Promise<Record<'seconds' | 'written' | 'wire' | 'pieces' | 'commits', number>> {
  const read = (): number[] => [usedSeconds(), writtenBytes(), pair.wire.bytes, pair.wire.pieces, pair.commits()];
  const before = read();
  await run();
  const [seconds, written, wire, pieces, commits] = read().map((value, n) => (value - before[n]!) / count) as [
    number,
    number,
    number,
    number,
    number,
  ];
  if (commits < 0.05 || commits > 50) throw new Error(`${commits} commits for a message: LMDB keeps their number elsewhere now`);
  return { seconds, written: written - 2 * wire, wire, pieces, commits }; // what went over the wire was written by an end, then by the proxy
}

async function messageCosts(): Promise<{
  cpu: readonly [number, number];
  wire: number;
  pieces: number;
  written: readonly [number, number];
  commits: number;
}> {
  const pair = await Pair.open(join(folder, 'way'), 1, STORED);
  await together(pair, TOGETHER); // the daemons' code is compiled by now
  const signs = [signMicroseconds()];
  const many = await way(pair, TOGETHER, () => together(pair, TOGETHER));
  const alone = await way(pair, ALONE, async () => {
    for (let n = 0; n < ALONE; n++) await pair.message(BODY);
  });
  signs.push(signMicroseconds());
  await pair.close();
  const sign = (signs[0]! + signs[1]!) / 2;
  say('Ed25519 signature, us of CPU', sign);
  say(`ONE MESSAGE OF 1 KiB, both ends together, ${STORED} stored`, 'one at a time', '32 at a time');
  say('CPU, ms', alone.seconds * 1000, many.seconds * 1000);
  const normal = [alone, many].map(({ seconds }) => (seconds * NORMAL_SIGN) / sign) as [number, number];
  say('CPU, ms, normal', normal[0] * 1000, normal[1] * 1000);
  say('commits', alone.commits, many.commits);
  say('written to disk, KiB', alone.written / 1024, many.written / 1024);
  say('KiB a commit', alone.written / alone.commits / 1024, many.written / many.commits / 1024);
  say('bytes on TCP, both ways', alone.wire, many.wire);
  say('pieces (about packets with content)', alone.pieces, many.pieces);
  return { cpu: normal, wire: alone.wire, pieces: alone.pieces, written: [alone.written, many.written], commits: alone.commits };
}

/** What one message takes in both stores in each span of its life; gives the bytes in use of a host once it forgets as much as it takes in. */
async function diskCosts(pair: Pair): Promise<number> {
  const stages = [await pair.inUse()];
  await together(pair, AGED);
  stages.push(await pair.inUse());
  await pair.age(7.1, [['receiver', 'inbox_body', '0']]);
  stages.push(await pair.inUse());
  await pair.age(23.4, [
    ['sender', 'outbox', '0'],
    ['sender', 'events', 'm/'],
    ['receiver', 'events', 'm/'],
  ]);
  stages.push(await pair.inUse());
  await pair.age(7.2, [
    ['receiver', 'inbox', '0'],
    ['receiver', 'seen', ''],
  ]);
  stages.push(await pair.inUse());
  const each = (side: 0 | 1): number[] => stages.map((stage) => (stage[side] - stages[0]![side]) / AGED);
  const [sender, receiver] = [each(0), each(1)];
  const [bodies, rows] = [DEFAULT_RETENTION_MS / DAY_MS, METADATA_RETENTION_MS / DAY_MS];
  say('ONE MESSAGE IN THE STORES, bytes in use', 'sender', 'receiver');
  const spans = ['picked up (day 0)', `its body gone (day ${bodies})`, `events gone (day ${rows})`, `all gone (day ${bodies + rows})`];
  for (const [n, what] of spans.entries()) say(`  ${what}`, sender[n + 1]!, receiver[n + 1]!);
  const sent = sender[1]! * rows * PER_DAY;
  const received = (receiver[1]! * bodies + receiver[2]! * (rows - bodies) + receiver[3]! * bodies) * PER_DAY;
  say('kept at 1 M a day, GB', sent / 1e9, received / 1e9);
  const perPeer = PER_DAY / PEERS;
  const weight = weightOf(new Uint8Array(pair.signedBytes));
  say(
    `counted for one peer at ${perPeer} a day: messages; MB`,
    perPeer * (rows + bodies),
    (perPeer * (bodies * BODY.length + (rows + bodies) * weight)) / 1e6,
  );
  return sent + received;
}

async function connectionCosts(pair: Pair): Promise<{ idleBytes: number; reconnectMs: number; reconnectBytes: number }> {
  let [bytes, pieces] = [pair.wire.bytes, pair.wire.pieces];
  await new Promise((resolve) => setTimeout(resolve, (IDLE_MINUTES * 60_000) / HASTE));
  // The muxer's own keep-alive runs on the system's clock: each side pings twice a minute, 12 bytes and 18 of Noise, and is answered.
  const idleBytes = (pair.wire.bytes - bytes) / IDLE_MINUTES + 2 * 2 * 2 * 30;
  say('AN IDLE CONNECTION: bytes on TCP a minute, both ways', idleBytes);
  say('pieces a minute', (pair.wire.pieces - pieces) / IDLE_MINUTES + 8);
  [bytes, pieces] = [pair.wire.bytes, pair.wire.pieces];
  const seconds = usedSeconds();
  for (let n = 0; n < RECONNECTS; n++) {
    pair.wire.cut();
    await pair.untilDown();
    await pair.untilUp();
  }
  const spent = ((usedSeconds() - seconds) / RECONNECTS) * 1000;
  const reconnectMs = (spent * NORMAL_SIGN) / signMicroseconds();
  const reconnectBytes = (pair.wire.bytes - bytes) / RECONNECTS;
  say('A RECONNECT: CPU of both ends, ms; the same, normal', spent, reconnectMs);
  say('bytes on TCP', reconnectBytes);
  return { idleBytes, reconnectMs, reconnectBytes };
}

/** Seconds of one core that a start of the CLI takes, whatever it is asked: the least that a send or a fetch costs. */
function cliSeconds(): number {
  const before = childSeconds();
  const cli = join(import.meta.dirname, '..', '..', 'dist', 'ax.cjs');
  for (let n = 0; n < CLI_STARTS; n++)
    if (spawnSync(process.execPath, [cli, '--version']).status !== 0) throw new Error('dist/ax.cjs does not run: make build');
  const spent = (childSeconds() - before) / CLI_STARTS;
  const normal = (spent * NORMAL_SIGN) / signMicroseconds();
  say('A START OF THE CLI: CPU, ms; the same, normal', spent * 1000, normal * 1000);
  return normal;
}

function load(): Outcome {
  const outcome = simulateLoad({ days: 8, peers: PEERS, perDay: PER_DAY, peak: PEAK, limits: DEFAULT_LIMITS, seed: 1 });
  say(`8 DAYS FROM A MONDAY, ${PEERS} peers, ${PER_DAY} a day each way`, 'p50', 'p99', 'most');
  const words = {
    open: 'waiting to leave, all peers',
    openMost: 'waiting to leave, the fullest peer',
    unread: 'unread here, all peers',
    unreadMost: 'unread here, the fullest peer',
    connections: 'connections',
    reconnects: 'reconnects a minute',
    acceptedMost: 'accepted a minute by the busiest peer',
  } as const;
  for (const [key, what] of Object.entries(words)) say(`  ${what}`, ...spreadOf(outcome.samples[key as keyof Outcome['samples']]));
  say('  looks at a lane that ended with its rate used up', outcome.throttled);
  say(`  came while ${DEFAULT_LIMITS.waitingMessages} of the sender were unread, % of all`, (100 * outcome.limited) / outcome.sent);
  say('  longest absence of a peer, h', outcome.longestAwayHours);
  return outcome;
}

function herds(): void {
  say('AFTER A CUT, s until connected again', 'p50', 'p99', 'most', 'most in 1 s');
  const cuts = [
    ['10 min, packets vanish', 600, true],
    ['a restart of 5 s', 5, false],
  ] as const;
  for (const [what, cutSeconds, isSilent] of cuts)
    for (const connections of [PEERS, 10 * PEERS])
      for (const bothDial of [true, false]) {
        const times = simulateHerd({ connections, cutSeconds, isSilent, bothDial, seed: 3 });
        say(`  ${what}; ${connections} peers; ${bothDial ? 'both dial' : 'one dials'}`, ...spreadOf(times), mostPerSecond(times));
      }
}

process.stdout.write(`load average ${loadavg()[0]!.toFixed(1)}\n`);
const message = await messageCosts();
const aged = await Pair.open(join(folder, 'aged'), HASTE);
const connection = await connectionCosts(aged);
const disk = await diskCosts(aged);
await aged.close();
const cli = cliSeconds();
load();
herds();

const packets = 66; // Ethernet, IPv4 and TCP with time stamps, bytes; an answer without content for every second piece
const onWire = message.wire + message.pieces * 1.5 * packets;
const mean = PER_DAY / 86_400;
say('A HOST', 'mean', 'peak');
say('  messages a second, each way', mean, mean * PEAK);
say('  bytes on the network for one message', onWire);
say('  traffic of what it sends and gets, Mbit/s', (2 * mean * onWire * 8) / 1e6, (2 * mean * PEAK * onWire * 8) / 1e6);
say('  traffic of what it sends and gets, GB a day', (2 * PER_DAY * onWire) / 1e9);
say('  commits a second, one message at a time', mean * message.commits, mean * PEAK * message.commits);
say('  daemon: cores, one message at a time', mean * message.cpu[0], mean * PEAK * message.cpu[0]);
say('  daemon: cores, 32 at a time', mean * message.cpu[1], mean * PEAK * message.cpu[1]);
say('  a process for each send and each fetch: cores', mean * 2 * cli, mean * PEAK * 2 * cli);
say('  written to disk, MB/s, one message at a time', (mean * message.written[0]) / 1e6, (mean * PEAK * message.written[0]) / 1e6);
say(
  '  written to disk, TB a day, one at a time; 32 at a time',
  (PER_DAY * message.written[0]) / 1e12,
  (PER_DAY * message.written[1]) / 1e12,
);
say('  store at its full size, GB', disk / 1e9);
say('  keep-alive of 100 connections, kbit/s', (connection.idleBytes * PEERS * 8) / 60 / 1000);
say('ALL HOSTS: connections; messages a second at the mean', (HOSTS * PEERS) / 2, HOSTS * mean);
say('  traffic at the mean, Gbit/s; stores, PB', (HOSTS * mean * onWire * 8) / 1e9, (disk * HOSTS) / 1e15);
say('A RESTART with 100 peers: CPU of both ends, s, normal', (connection.reconnectMs * PEERS) / 1000);
