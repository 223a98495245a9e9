/**
 * Broken inputs out of good ones: bytes that are flipped, cut, doubled and spliced, and trees (CBOR, JSON) with a node put in, taken out or
 * replaced by what a parser may trip over. The writer here writes what the real codec never would.
 */
import { decode } from '../../protocol/codec.ts';
import type { Value } from '../../protocol/codec.ts';
import type { Chance } from './chance.ts';

/** Bytes that stand for a node as they are, well-formed or not. */
class Raw {
  readonly bytes: Uint8Array;
  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

const raw = (...bytes: readonly number[]): Raw => new Raw(Uint8Array.from(bytes));

type Node = null | boolean | number | string | Uint8Array | Raw | Node[] | Map<Node, Node>;

const TEXTS = [
  '',
  '__proto__',
  'constructor',
  'prototype',
  'toString',
  'hasOwnProperty',
  'length',
  'x'.repeat(65),
  'y'.repeat(5000),
  '\u0000',
  '\u001b[2J',
  '\u202e',
  '\ufeff',
  '\u{e0041}',
  '../..',
  '/a',
  '/',
  'localhost',
  '12D3KooW',
  'deliver',
  'é'.repeat(40),
  'null',
  '0',
  '-1',
  '1e999',
];
const NUMBERS = [0, 1, -1, 23, 24, 255, 256, 65_535, 65_536, 2 ** 31, 2 ** 32, 2 ** 53 - 1, -(2 ** 53 - 1), 0.5, 1e300];
const RAWS = [
  raw(0xf7),
  raw(0xf9, 0x7e, 0),
  raw(0xf9, 0x7c, 0),
  raw(0xf9, 0x80, 0),
  raw(0xff),
  raw(0x9f, 0, 0xff),
  raw(0x5f, 0x41, 0, 0xff),
  raw(0xc1, 0),
  raw(0xc2, 0x49, 1, 0, 0, 0, 0, 0, 0, 0, 0),
  raw(0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
  raw(0x9a, 0xff, 0xff, 0xff, 0xff),
  raw(0xba, 0x7f, 0xff, 0xff, 0xff),
  raw(0x5a, 0xff, 0xff, 0xff, 0xff),
  raw(0x7b, 0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
  raw(0x18, 1),
  raw(0x62, 0xc3, 0x28),
  raw(0x63, 0xed, 0xa0, 0x80),
  raw(0x1c),
  raw(0xf8, 0x20),
  raw(0xa2, 0x61, 0x61, 0, 0x61, 0x61, 0),
];

function leaf(chance: Chance): Node {
  switch (chance.below(8)) {
    case 0:
      return null;
    case 1:
      return chance.oneIn(2);
    case 2:
      return chance.pick(NUMBERS);
    case 3:
      return chance.pick(TEXTS);
    case 4:
      return chance.bytes(chance.pick([0, 1, 11, 31, 32, 33, 64, 65, 300]));
    case 5:
      return chance.oneIn(3) ? chance.pick(RAWS) : chance.pick(TEXTS);
    case 6:
      return Array.from({ length: chance.pick([0, 1, 3, 20, 600]) }, () => 0);
    default:
      return nest(chance.pick([1, 1, 2, 3, 12, 13, 14, 15, 16, 17, 200, 20_000]), chance.oneIn(2));
  }
}

function nest(depth: number, isMap: boolean): Raw {
  return new Raw(Uint8Array.from([...Array.from({ length: depth }, () => (isMap ? [0xa1, 0x60] : [0x81])).flat(), 0]));
}

/** A CBOR input made from a good one: its tree changed one to four times, then sometimes its bytes. */
export function mutateCbor(chance: Chance, good: Uint8Array, others: readonly Uint8Array[]): Uint8Array {
  if (chance.oneIn(6)) return mutateBytes(chance, good, others);
  let tree = nodeOf(decode(good));
  for (let times = 1 + chance.below(chance.pick([1, 1, 2, 4])); times > 0; times--) tree = changed(chance, tree, others);
  const bytes = write(tree, chance);
  return chance.oneIn(12) ? mutateBytes(chance, bytes, others) : bytes;
}

function nodeOf(value: Value): Node {
  if (value instanceof Uint8Array || value === null || typeof value !== 'object') return value;
  if (Array.isArray(value)) return (value as readonly Value[]).map(nodeOf);
  return new Map(Object.entries(value).map(([key, entry]): [Node, Node] => [key, nodeOf(entry)]));
}

/** The tree with one node changed: walks down by chance and stops by chance. */
function changed(chance: Chance, node: Node, others: readonly Uint8Array[]): Node {
  if (Array.isArray(node) && node.length > 0 && !chance.oneIn(4)) return changedList(chance, node, others);
  if (node instanceof Map && node.size > 0 && !chance.oneIn(6)) return changedMap(chance, node, others);
  if (node instanceof Uint8Array && node.length > 0 && chance.oneIn(2)) return mutateBytes(chance, node, others);
  if (typeof node === 'string' && chance.oneIn(2)) return node.slice(0, chance.below(node.length + 1)) + chance.pick(TEXTS);
  if (typeof node === 'number' && chance.oneIn(2)) return node + chance.pick([-1, 1, 0.5, 2 ** 32]);
  return leaf(chance);
}

function changedList(chance: Chance, node: Node[], others: readonly Uint8Array[]): Node {
  const at = chance.below(node.length);
  switch (chance.below(5)) {
    case 0:
      return node.filter((_, i) => i !== at);
    case 1:
      return [...node.slice(0, at), leaf(chance), ...node.slice(at)];
    case 2:
      return [...node, ...Array.from({ length: chance.pick([1, 2, 17, 501]) }, () => node[at]!)];
    default:
      return node.map((entry, i) => (i === at ? changed(chance, entry, others) : entry));
  }
}

function changedMap(chance: Chance, node: Map<Node, Node>, others: readonly Uint8Array[]): Node {
  const entries = [...node];
  const at = chance.below(entries.length);
  const [key, value] = entries[at]!;
  switch (chance.below(8)) {
    case 0:
      entries.splice(at, 1);
      break;
    case 1:
      entries.push([chance.pick(TEXTS), leaf(chance)]);
      break;
    case 2:
      entries[at] = [chance.oneIn(2) ? chance.pick(TEXTS) : leaf(chance), value];
      break;
    case 3:
      entries.push([key, value]);
      return new Raw(writeMap(entries, chance));
    case 4:
      entries.push([
        '__proto__',
        new Map<Node, Node>([
          [key, value],
          ['polluted', true],
        ]),
      ]);
      break;
    default:
      entries[at] = [key, changed(chance, value, others)];
  }
  return new Map(entries);
}

function write(node: Node, chance: Chance): Uint8Array {
  if (node instanceof Raw) return node.bytes;
  if (node === null) return Uint8Array.of(0xf6);
  if (typeof node === 'boolean') return Uint8Array.of(node ? 0xf5 : 0xf4);
  if (typeof node === 'number') return writeNumber(node, chance);
  if (typeof node === 'string') return join(head(3, Buffer.byteLength(node), chance), Buffer.from(node));
  if (node instanceof Uint8Array) return join(head(2, node.length, chance), node);
  if (Array.isArray(node)) return join(head(4, node.length, chance), ...node.map((entry) => write(entry, chance)));
  return writeMap([...node], chance);
}

function writeMap(entries: readonly (readonly [Node, Node])[], chance: Chance): Uint8Array {
  return join(head(5, entries.length, chance), ...entries.flatMap((entry) => entry.map((part) => write(part, chance))));
}

function writeNumber(value: number, chance: Chance): Uint8Array {
  if (Number.isSafeInteger(value)) return value >= 0 ? head(0, value, chance) : head(1, -1 - value, chance);
  const bytes = new Uint8Array(9);
  bytes[0] = 0xfb;
  new DataView(bytes.buffer).setFloat64(1, value);
  return bytes;
}

/** A head, now and then longer than it need be or with a length that is not true. */
function head(major: number, length: number, chance: Chance): Uint8Array {
  const told = major >= 2 && chance.oneIn(1000) ? length + chance.pick([1, 100, 2 ** 31]) : length;
  const size = chance.oneIn(1000) ? 8 : told < 24 ? 0 : told < 256 ? 1 : told < 65_536 ? 2 : told < 2 ** 32 ? 4 : 8;
  const bytes = new Uint8Array(1 + size);
  bytes[0] = (major << 5) | (size === 0 ? told : 24 + Math.log2(size));
  for (let i = 0; i < size; i++) bytes[size - i] = Math.floor(told / 256 ** i) % 256;
  return bytes;
}

function join(...parts: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}

/** Bytes made from good ones without a thought for what they mean; sometimes bytes from nowhere. */
export function mutateBytes(chance: Chance, good: Uint8Array, others: readonly Uint8Array[]): Uint8Array {
  let bytes: Uint8Array = Uint8Array.from(good);
  for (let times = 1 + chance.below(3); times > 0; times--) {
    const at = chance.below(bytes.length + 1);
    const until = at + chance.below(bytes.length - at + 1);
    const other = chance.pick(others.length > 0 ? others : [good]);
    switch (chance.below(9)) {
      case 0:
        bytes = bytes.subarray(0, at);
        break;
      case 1:
        bytes = join(bytes.subarray(0, at), bytes.subarray(until));
        break;
      case 2:
        bytes = join(bytes.subarray(0, at), chance.bytes(1 + chance.below(8)), bytes.subarray(at));
        break;
      case 3:
        bytes = join(bytes.subarray(0, at), other.subarray(chance.below(other.length + 1)));
        break;
      case 4:
        bytes = join(bytes.subarray(0, until), bytes.subarray(at, until), bytes.subarray(until));
        break;
      case 5:
        bytes = chance.bytes(chance.below(64));
        break;
      default:
        bytes = bytes.map((byte, i) => (i === at ? (chance.oneIn(2) ? byte ^ (1 << chance.below(8)) : chance.below(256)) : byte));
    }
  }
  return bytes.length > 200_000 ? bytes.subarray(0, 200_000) : bytes;
}

/** A JSON text made from a good one: a value replaced, a key renamed, or its bytes broken. */
export function mutateJson(chance: Chance, good: Uint8Array, others: readonly Uint8Array[]): Uint8Array {
  if (chance.oneIn(3)) return mutateBytes(chance, good, others);
  if (chance.oneIn(20)) return Buffer.from(JSON.stringify(jsonLeaf(chance)));
  const value = JSON.parse(Buffer.from(good).toString()) as Record<string, unknown>;
  const text = JSON.stringify(value, (key, entry: unknown) => (key !== '' && chance.oneIn(5) ? jsonLeaf(chance) : entry));
  const keys = Object.keys(value);
  const renamed = chance.oneIn(3) ? text.replace(JSON.stringify(chance.pick(keys)), JSON.stringify(chance.pick(TEXTS))) : text;
  return Buffer.from(chance.oneIn(8) ? `${'['.repeat(5000)}${renamed}` : renamed);
}

function jsonLeaf(chance: Chance): unknown {
  return chance.pick<unknown>([
    null,
    true,
    0,
    -1,
    1.5,
    1e308,
    2 ** 53,
    [],
    {},
    [[]],
    { __proto__: null, a: 1 },
    '\ud800',
    chance.pick(TEXTS),
    chance.pick(TEXTS),
  ]);
}
