/**
 * What a run of the benchmark says: lines on the terminal, docs/benchmarks.md and docs/benchmarks.json.
 *
 * Pure but for reading what machine and versions these are. Owns every word around the figures, above all what differs between the systems:
 * a ratio without that is a lie. Figures have three digits, for no more of them is the same in the next run.
 */
import { readFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, loadavg, platform, release, totalmem } from 'node:os';
import { join } from 'node:path';
import { ROOT } from '../e2e/hosts.ts';
import type { Spread } from './figures.ts';
import type { Judged, Result } from './row.ts';

export interface Surroundings {
  readonly machine: string;
  /** Of the last minute when the run began: other work is in every figure. */
  readonly load: number;
  readonly versions: Readonly<Record<string, string>>;
}

const LIBRARIES = ['libp2p', '@libp2p/tcp', '@chainsafe/libp2p-noise', '@libp2p/yamux', 'lmdb'];

export function surroundings(): Surroundings {
  const read = (file: string): { version: string } => JSON.parse(readFileSync(join(ROOT, file), 'utf8')) as { version: string };
  const libraries = LIBRARIES.map((name) => [name, read(join('node_modules', name, 'package.json')).version] as const);
  const memory = `${Math.round(totalmem() / 2 ** 30)} GiB`;
  return {
    machine: `${availableParallelism()} cores (${cpus()[0]?.model.trim() ?? 'unknown'}), ${memory}, ${platform()} ${release()} ${arch()}`,
    load: loadavg()[0] ?? 0,
    versions: { ax: read('package.json').version, Node: process.versions.node, ...Object.fromEntries(libraries) },
  };
}

/** Three digits, without a power of ten. */
export function shown(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString('en-US');
  return String(Number(value.toPrecision(3)));
}

function spreadOf({ median, min, max }: Spread): string {
  return min === max ? shown(median) : `${shown(median)} (${shown(min)} - ${shown(max)})`;
}

/** How a target stands: the margin over or under its bound is left to the reader. */
function reachedOf({ reached }: Judged): string {
  return reached === undefined ? 'not measured' : spreadOf(reached);
}

/** One row on a terminal. */
export function rowText(result: Result): string {
  const lines = [`${result.name}: ${result.title}; ${result.repeats} repeats`];
  for (const one of result.judged)
    lines.push(`  ${one.verdict.padEnd(12)} ${one.what.padEnd(52)} ${reachedOf(one).padEnd(24)} ${one.bound}`);
  for (const [contestant, figures] of Object.entries(result.figures)) lines.push(`    ${contestant}: ${figuresText(figures)}`);
  for (const note of result.notes) lines.push(`  NOTE ${note}`);
  return `${lines.join('\n')}\n`;
}

/** One row on one line, for a quick run. */
export function lineText({ name, judged, figures, notes }: Result): string {
  const targets = judged.map(({ what, verdict, reached, bound }) =>
    reached === undefined ? `NOT MEASURED ${what}` : `${verdict} ${what} ${shown(reached.median)} (${bound})`,
  );
  const told = Object.entries(figures).map(([contestant, own]) => `${contestant}: ${figuresText(own, false)}`);
  return `${name.padEnd(14)}${(targets.length > 0 ? targets : told).join('; ')}${notes.map((note) => ` [${note}]`).join('')}\n`;
}

function figuresText(figures: Readonly<Record<string, Spread>>, isFull = true): string {
  return Object.entries(figures)
    .map(([name, spread]) => `${name} ${isFull ? spreadOf(spread) : shown(spread.median)}`)
    .join(', ');
}

/** docs/benchmarks.md. */
export function page(results: readonly Result[], { machine, load, versions }: Surroundings): string {
  const targets = results.flatMap((result) =>
    result.judged.map((one) => `| ${result.title} | ${one.what} | ${one.bound} | ${reachedOf(one)} | ${one.verdict} |`),
  );
  const figures = results.flatMap((result) =>
    Object.entries(result.figures).flatMap(([contestant, own]) =>
      Object.entries(own).map(([name, spread]) => `| ${result.name} | ${contestant} | ${name} | ${spreadOf(spread)} |`),
    ),
  );
  const notes = results.flatMap((result) => result.notes.map((note) => `- \`${result.name}\`: ${note}.`));
  const told = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  return `# Benchmarks

Written by \`make bench\`; the same figures are in [benchmarks.json](benchmarks.json). \`make bench-quick\` prints a line per row in less than
a minute and writes nothing; \`make bench ROWS=inflight-64,idle\` runs some rows and writes nothing either.

Machine: ${machine}; load average ${shown(load)} when the run began. ${told.join(', ')}.

Absolute figures move by a third between runs on such a machine, so ratios are what is judged. All contestants of a row take turns, one after
the other in every repeat. A ratio is taken within a repeat; what stands here is the median over the repeats, with the least and the greatest.
A missed target is a report, not an error.

## Targets

| Work | What | Target | Reached (min - max) | |
| --- | --- | --- | --- | --- |
${targets.join('\n')}
${notes.length === 0 ? '' : `\n${notes.join('\n')}\n`}
## What differs between the systems

${DIFFERENCES}

## All figures

| Row | Who | Figure | Median (min - max) |
| --- | --- | --- | --- |
${figures.join('\n')}
`;
}

const DIFFERENCES = `- **ax** is two daemons. Each message is sealed and signed by the sender's, written durably there, sent over Noise, verified and
  written durably by the receiver's, answered with a signed receipt, and that is verified and written durably by the sender's. Its time ends
  when the sender's public event log tells of the acceptance, which is after that last flush; following the log costs the sender's daemon
  work, and that is in the figure. The messages wait in a folder in which no agent is set up. The limits on rates and numbers of messages are
  raised in config.json, and the daemons have taken 5,000 messages before anything is counted, as the engine compiles what runs often.
- **Redis Streams** is one server: XADD with \`appendfsync always\`, on one TCP connection with as many commands under way as there are
  senders. In clear and unsigned; one durable write where ax makes three; the client keeps nothing, so a crash of it loses what was under way.
  Rewriting of its file is off.
- **Postfix** is one server: queue accept, which syncs the queue file before it answers. One SMTP connection a sender (an \`smtpd\` each), in
  clear and unsigned; nothing is delivered, the messages are held. Limits on clients and the pause for mail that comes in faster than it
  leaves are off. A mail also has headers, and is logged.
- **Raw Noise+yamux** is one stream between two bare libp2p processes with the daemon's libraries: encrypted, but nothing is hashed, sealed,
  signed or stored.
- **Bare libp2p** has the same transports, encryption and muxer, made and listening, without the connection monitor (the daemon has none
  either): no store, no harness, no control socket. It is there twice: \`packages\` as npm installs them, \`bundle\` as the daemon is bundled.
- **The empty script** is the same Node with a file of no bytes.
- Load and servers share the cores of one machine, over loopback; a disk with a write-back cache makes syncs cheap for all of them alike.`;
