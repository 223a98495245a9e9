/**
 * The sorted order of the keys of objects, remembered by the keys in the order in which an object has them.
 *
 * Owns the tree of the shapes that were encoded: a node stands for the keys on the way to it, and knows their bytes and their canonical
 * order once it was asked. Messages and rows have a few dozen shapes; the tree is bounded and begins anew when it is full.
 */

/** Keys of an object whose shape is remembered. */
const MAX_KEYS = 64;
/** Longest key that is remembered. */
const MAX_KEY_CHARS = 64;
/** Nodes of the tree, over all shapes. */
const MAX_NODES = 4096;

/** Keys as they are written, in canonical order, and where each of them stands in the object. */
export interface KeyOrder {
  readonly order: readonly number[];
  readonly keys: readonly Uint8Array[];
}

/** The keys of an object, or the first of them. */
export class Shape {
  readonly #keys: readonly string[];
  #followers: Map<string, Shape> | undefined;
  #sorted: KeyOrder | undefined;
  /** The key that came behind these last, and the shape with it. */
  nextKey: string | undefined;
  next: Shape | undefined;

  constructor(keys: readonly string[]) {
    this.#keys = keys;
  }

  sorted(): KeyOrder {
    this.#sorted ??= inOrder(this.#keys);
    return this.#sorted;
  }

  /** The shape with one more key; undefined when it is not to be remembered. */
  with(key: string): Shape | undefined {
    let shape = this.#followers?.get(key);
    if (shape === undefined) {
      if (this.#keys.length === MAX_KEYS || key.length > MAX_KEY_CHARS) return undefined;
      shape = new Shape([...this.#keys, key]);
      this.#followers ??= new Map();
      this.#followers.set(key, shape);
      if (++nodes > MAX_NODES) {
        root = new Shape([]);
        nodes = 0;
      }
    }
    this.nextKey = key;
    this.next = shape;
    return shape;
  }
}

let root = new Shape([]);
let nodes = 0;

/** The shape of an object without keys, where every other begins. */
export function noKeys(): Shape {
  return root;
}

/** Puts keys into canonical order: the shorter first, and those of one length by their bytes. */
export function inOrder(names: readonly string[]): KeyOrder {
  const keys = names.map(writtenKey);
  // The head in front of the text holds its length, so that the order of the bytes is the order wanted.
  const order = names.map((_, i) => i).sort((a, b) => Buffer.compare(keys[a]!, keys[b]!));
  return { order, keys: order.map((i) => keys[i]!) };
}

function writtenKey(name: string): Uint8Array {
  const text = Buffer.from(name);
  const { length } = text;
  const head =
    length < 24
      ? [0x60 | length]
      : length < 0x100
        ? [0x78, length]
        : length < 0x10000
          ? [0x79, length >> 8, length & 255]
          : [0x7a, length >>> 24, (length >> 16) & 255, (length >> 8) & 255, length & 255];
  return Uint8Array.of(...head, ...text);
}
