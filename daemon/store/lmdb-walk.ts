/**
 * How LMDB is spoken to: keys and values as it takes them and gives them, walks over a table, and what a commit has written over one.
 *
 * Owns no state but buffers that are used again at once; the store owns what is open.
 */
import type { Database } from 'lmdb';
import { compareKeys, MAX_KEY_BYTES } from './store.ts';
import type { RangeOptions, StoreEntry } from './store.ts';

/** Above every key: 0xff begins no UTF-8 text. */
const HIGHEST = Uint8Array.of(0xff);
const LOWEST = '\0';
type Bound = string | typeof HIGHEST;

export type Db = Database<Uint8Array, Bound>;

/** Keys are written straight into LMDB's own buffer. What they may be was checked before: a broken bound is mended, as by TextEncoder. */
const keyEncoder = {
  writeKey(key: Bound, target: Buffer, start: number): number {
    if (typeof key !== 'string') return (target.set(key, start), start + key.length);
    let at = start;
    for (let i = 0; i < key.length; i++) {
      const unit = key.charCodeAt(i);
      if (unit < 0x80) target[at++] = unit;
      else if (unit < 0xd800 || unit >= 0xe000) {
        if (unit >= 0x800) target[at++] = 0xe0 | (unit >> 12);
        target[at++] = unit < 0x800 ? 0xc0 | (unit >> 6) : 0x80 | ((unit >> 6) & 0x3f);
        target[at++] = 0x80 | (unit & 0x3f);
      } else return start + target.write(key, start);
    }
    return at;
  },
  readKey: (source: Buffer, start: number, end: number): string => source.toString('utf8', start, end),
};

/** A look at all of the buffer that lmdb reads small values into. */
let pool = new Uint8Array(0);

/** Where values are laid for lmdb to copy them from: of other memory it must find out, and keep, where it lies. */
const stage: Buffer & { start?: number; end?: number } = Buffer.allocUnsafeSlow(64 * 1024);
stage.start = 0;

const encoder = {
  encode(value: Uint8Array): Uint8Array {
    if (value.length > stage.length) return value;
    stage.set(value);
    stage.end = value.length;
    return stage;
  },
  /** What lmdb hands out lies in memory that it uses again: a plain copy stays valid and shares memory with nothing. */
  decode(bytes: Uint8Array): Uint8Array {
    if (pool.buffer !== bytes.buffer) pool = new Uint8Array(bytes.buffer as ArrayBuffer);
    return pool.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  },
};

export const FORMAT = { encoding: 'binary', keyEncoder, encoder } as const;

export interface Bounds {
  readonly start: Bound;
  readonly end: Bound;
  readonly limit: number;
  readonly reverse: boolean;
}

/** The bounds of a walk, or undefined if nothing can lie within. */
export function boundsOf({ start = '', end, reverse = false, limit = Infinity }: RangeOptions): Bounds | undefined {
  if (limit <= 0 || end === '' || (end !== undefined && compareKeys(start || LOWEST, end) >= 0)) return undefined;
  return { start: start === '' ? LOWEST : bound(start), end: end === undefined ? HIGHEST : bound(end), limit, reverse };
}

/** A bound may be longer than any key; what is beyond that cannot change the order. */
function bound(text: string): string {
  return text.length > MAX_KEY_BYTES ? text.slice(0, MAX_KEY_BYTES + 1) : text;
}

/** One way to walk a table, made once: lmdb reads the bounds anew at each walk, and a fresh iterable costs more than a short walk. */
export class Walk<T> {
  readonly #options = { start: LOWEST as Bound, end: LOWEST as Bound, reverse: false, exclusiveStart: false, inclusiveEnd: false };
  readonly #found: Iterable<T>;

  constructor(open: (options: object) => Iterable<T>) {
    this.#found = open(this.#options);
  }

  /** Calls `take` with what lies within the bounds, at most `limit`; returns how many. */
  run({ start, end, reverse }: Bounds, limit: number, take?: (item: T) => void): number {
    // lmdb's own way to say [start, end), from either end.
    Object.assign(this.#options, { start: reverse ? end : start, end: reverse ? start : end });
    this.#options.reverse = this.#options.exclusiveStart = this.#options.inclusiveEnd = reverse;
    const walk = this.#found[Symbol.iterator]();
    let taken = 0;
    try {
      for (; taken < limit; taken++) {
        const { done, value } = walk.next();
        if (done === true) break;
        take?.(value);
      }
    } finally {
      walk.return?.();
    }
    return taken;
  }
}

/** The walks over a table; what runs inside a commit has its own, since lmdb remembers how it once had to read. */
export class Walks {
  readonly inside: { readonly entries: Walk<StoreEntry>; readonly keys: Walk<Bound> };
  readonly outside: { readonly entries: Walk<StoreEntry>; readonly keys: Walk<Bound> };

  constructor(db: Db) {
    const pair = () => ({
      entries: new Walk<StoreEntry>((options) => db.getRange(options) as unknown as Iterable<StoreEntry>),
      keys: new Walk<Bound>((options) => db.getKeys(options)),
    });
    this.inside = pair();
    this.outside = pair();
  }
}

/** Does a key lie within? */
export function isWithin(key: string, { start, end }: Bounds): boolean {
  return compareKeys(start as string, key) <= 0 && (typeof end !== 'string' || compareKeys(key, end) < 0);
}

/** What LMDB has within the bounds, with what was written over it since (undefined: removed). */
export function merged(
  below: readonly StoreEntry[],
  above: ReadonlyMap<string, Uint8Array | undefined>,
  { reverse, limit }: Pick<Bounds, 'reverse' | 'limit'>,
): StoreEntry[] {
  const entries = below.filter(({ key }) => !above.has(key));
  for (const [key, value] of above) if (value !== undefined) entries.push({ key, value });
  const sign = reverse ? -1 : 1;
  return entries.sort((a, b) => sign * compareKeys(a.key, b.key)).slice(0, limit);
}
