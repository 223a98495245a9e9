/**
 * `node test/bench/flame.ts PROFILES BUNDLE OUT.svg`: the largest CPU profile of a folder as a flame graph, and where its time went.
 *
 * Owns the folding of samples and the picture: a box per function on the stack, as wide as its share of the busy time, coloured by the
 * package it is of. The daemon is one bundle: which file a line of it came from is read off the comments that the bundler leaves.
 */
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

interface Node {
  readonly id: number;
  readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
  readonly children?: readonly number[];
}
interface Profile {
  readonly nodes: readonly Node[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}
interface Box {
  readonly name: string;
  readonly part: string;
  time: number;
  readonly above: Map<string, Box>;
}

const WIDTH = 1600;
const ROW = 15;
const DEEPEST = 46;
/** Boxes narrower than this are left out, px. */
const LEAST = 0.6;
const COLOURS: Readonly<Record<string, string>> = {
  'ax daemon': '#e4572e',
  'ax protocol': '#f3a712',
  codec: '#a8c686',
  lmdb: '#669bbc',
  'libp2p, noise, yamux': '#9f86c0',
  'node:crypto': '#d4a5a5',
  node: '#c9c9c9',
  'garbage collector': '#7d7d7d',
  'other packages': '#e0d68a',
};

const [folder = '', bundle = '', out = ''] = process.argv.slice(2);
const files = readdirSync(folder).filter((name) => name.endsWith('.cpuprofile'));
const largest = files.toSorted((a, b) => statSync(join(folder, b)).size - statSync(join(folder, a)).size)[0];
if (largest === undefined || out === '') throw new Error('usage: flame.ts PROFILES BUNDLE OUT.svg, with a .cpuprofile in PROFILES');
const profile = JSON.parse(readFileSync(join(folder, largest), 'utf8')) as Profile;

/** For each line of the bundle the file it came from. */
const origins: string[] = [];
let origin = '';
for (const line of readFileSync(bundle, 'utf8').split('\n')) {
  if (/^\/\/ (node_modules|daemon|protocol)\//.test(line)) origin = line.slice(3);
  origins.push(origin);
}

function originOf({ callFrame: { url, lineNumber } }: Node): string {
  if (url.endsWith('/daemon.mjs')) return origins[lineNumber] ?? '';
  return /node_modules\/.*$/.exec(url)?.[0] ?? url;
}

function partOf(node: Node): string {
  const from = originOf(node);
  if (node.callFrame.functionName === '(garbage collector)') return 'garbage collector';
  if (from.startsWith('daemon/')) return 'ax daemon';
  if (from.startsWith('protocol/cbor-')) return 'codec';
  if (from.startsWith('protocol/')) return 'ax protocol';
  if (from.includes('/lmdb/')) return 'lmdb';
  if (/libp2p|chainsafe|noble|uint8array|multiformats|it-/.test(from)) return 'libp2p, noise, yamux';
  if (from.startsWith('node:') && /crypto/.test(from)) return 'node:crypto';
  return from.includes('node_modules') ? 'other packages' : 'node';
}

const byId = new Map(profile.nodes.map((node) => [node.id, node]));
const below = new Map(profile.nodes.flatMap((node) => (node.children ?? []).map((child) => [child, node.id] as const)));
const root: Box = { name: 'busy', part: 'node', time: 0, above: new Map() };
const shares = new Map<string, number>();
for (const [index, sample] of profile.samples.entries()) {
  const top = byId.get(sample);
  const time = profile.timeDeltas[index] ?? 0;
  if (top === undefined || time <= 0 || top.callFrame.functionName === '(idle)') continue;
  const stack: Node[] = [];
  for (let id: number | undefined = sample; id !== undefined; id = below.get(id)) stack.unshift(byId.get(id)!);
  root.time += time;
  // Native work counts for the nearest function that has a file.
  const named = stack.findLast((node) => node.callFrame.url !== '') ?? top;
  const part = top.callFrame.functionName === '(garbage collector)' ? 'garbage collector' : partOf(named);
  shares.set(part, (shares.get(part) ?? 0) + time);
  let box = root;
  for (const node of stack.slice(1, DEEPEST)) {
    const name = `${node.callFrame.functionName || '(unnamed)'} ${originOf(node).split('/').slice(-2).join('/')}`.trim();
    let next = box.above.get(name);
    if (next === undefined) box.above.set(name, (next = { name, part: partOf(node), time: 0, above: new Map() }));
    next.time += time;
    box = next;
  }
}

const percent = (time: number): string => `${((100 * time) / root.time).toFixed(1)} %`;
const escaped = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
const boxes: string[] = [];
let depth = 0;
function draw(box: Box, x: number, level: number): void {
  const width = (box.time / root.time) * WIDTH;
  if (width < LEAST) return;
  depth = Math.max(depth, level);
  const label =
    width > 40 ? `<text x="${(x + 2).toFixed(1)}" y="${level * ROW + 11}">${escaped(box.name.slice(0, width / 6.2))}</text>` : '';
  boxes.push(
    `<g><title>${escaped(box.name)}: ${percent(box.time)}</title><rect x="${x.toFixed(1)}" y="${level * ROW}" width="${width.toFixed(1)}" height="${ROW - 1}" fill="${COLOURS[box.part]}"/>${label}</g>`,
  );
  for (const next of [...box.above.values()].toSorted((a, b) => b.time - a.time)) {
    draw(next, x, level + 1);
    x += (next.time / root.time) * WIDTH;
  }
}
draw(root, 0, 2);
const legend = Object.entries(COLOURS).map(
  ([part, colour], index) =>
    `<rect x="${index * 176}" y="4" width="11" height="11" fill="${colour}"/><text x="${index * 176 + 15}" y="14">${part} ${percent(shares.get(part) ?? 0)}</text>`,
);
writeFileSync(
  out,
  `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${(depth + 1) * ROW}" font-family="monospace" font-size="10">${legend.join('')}\n${boxes.join('\n')}\n</svg>\n`,
);
for (const [part, time] of [...shares].toSorted((a, b) => b[1] - a[1])) process.stdout.write(`${percent(time).padStart(7)}  ${part}\n`);
