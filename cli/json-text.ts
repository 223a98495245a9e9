/**
 * Small edits of a JSON text that leave every other byte of it as it is.
 *
 * Owns: where a value stands in the text, putting a string into a list, taking it out again, taking out what then is empty. Key order,
 * numbers, spaces and line ends outside of the edit are not touched. The text must be strict JSON with an object on top and no key twice in
 * one object: else AxError `invalid_state`, and nothing is changed.
 */
import { AxError } from '../protocol/errors.ts';

interface Member {
  readonly key: string;
  readonly start: number;
  readonly value: Node;
}

interface Node {
  readonly kind: 'object' | 'array' | 'plain';
  readonly start: number;
  readonly end: number;
  readonly members: readonly Member[];
  readonly items: readonly Node[];
}

type Path = readonly string[];

/** Deeper than any settings; far from where calls within calls run out. */
const MAX_DEPTH = 200;

/** The value of a strict JSON object text. `what` names the text in the error. */
export function parseObject(text: string, what: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new AxError('invalid_state', `${what} is not strict JSON (${(error as Error).message.replaceAll(/\s+/g, ' ')})`, {
      fix: `correct it by hand, then run the command again: ${what}`,
      cause: error,
    });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new AxError('invalid_state', `${what} is not a JSON object`, { fix: `correct it by hand, then run the command again: ${what}` });
  return value as Record<string, unknown>;
}

/** Reads a text that JSON.parse has taken. */
class Scanner {
  readonly #text: string;
  #at = 0;
  #depth = 0;

  constructor(text: string) {
    this.#text = text;
  }

  value(): Node {
    this.#blank();
    const start = this.#at;
    const first = this.#text[start];
    if (first === '{' || first === '[') return this.#nested(first, start);
    if (first === '"') this.#string();
    else while (this.#at < this.#text.length && !/[\s,\]}]/.test(this.#text[this.#at]!)) this.#at += 1;
    return { kind: 'plain', start, end: this.#at, members: [], items: [] };
  }

  #nested(first: '{' | '[', start: number): Node {
    if (this.#depth >= MAX_DEPTH) throw new AxError('invalid_state', `it is nested deeper than ${MAX_DEPTH} levels`);
    this.#depth += 1;
    const node = first === '{' ? this.#object(start) : this.#array(start);
    this.#depth -= 1;
    return node;
  }

  #object(start: number): Node {
    const members: Member[] = [];
    this.#at += 1;
    for (this.#blank(); this.#text[this.#at] !== '}'; this.#pass(',')) {
      const keyStart = this.#at;
      const key = this.#string();
      if (members.some((member) => member.key === key)) throw new AxError('invalid_state', `the key "${key}" stands twice in one object`);
      this.#pass(':');
      members.push({ key, start: keyStart, value: this.value() });
    }
    this.#at += 1;
    return { kind: 'object', start, end: this.#at, members, items: [] };
  }

  #array(start: number): Node {
    const items: Node[] = [];
    this.#at += 1;
    for (this.#blank(); this.#text[this.#at] !== ']'; this.#pass(',')) items.push(this.value());
    this.#at += 1;
    return { kind: 'array', start, end: this.#at, members: [], items };
  }

  /** Past the sign, where it stands here, and the blanks around it. */
  #pass(sign: string): void {
    this.#blank();
    if (this.#text[this.#at] === sign) this.#at += 1;
    this.#blank();
  }

  #string(): string {
    const start = this.#at;
    this.#at += 1;
    while (this.#text[this.#at] !== '"') this.#at += this.#text[this.#at] === '\\' ? 2 : 1;
    this.#at += 1;
    return JSON.parse(this.#text.slice(start, this.#at)) as string;
  }

  #blank(): void {
    while (/\s/.test(this.#text[this.#at] ?? '')) this.#at += 1;
  }
}

function scan(text: string): Node {
  return new Scanner(text).value();
}

function find(text: string, path: Path): Node | undefined {
  let node: Node | undefined = scan(text);
  for (const key of path) node = node?.members.find((member) => member.key === key)?.value;
  return node;
}

interface Style {
  readonly eol: string;
  readonly unit: string;
}

function styleOf(text: string): Style {
  return { eol: text.includes('\r\n') ? '\r\n' : '\n', unit: /\n([ \t]+)\S/.exec(text)?.[1] ?? '  ' };
}

/** The blanks at the start of the line that holds this place. */
function indentAt(text: string, at: number): string {
  return /^[ \t]*/.exec(text.slice(text.lastIndexOf('\n', at - 1) + 1))?.[0] ?? '';
}

/** A container with something in it goes on as it is written: each entry on its own line, or all on one. */
function isSpread(text: string, container: Node, firstStart: number | undefined): boolean {
  if (firstStart !== undefined) return text.slice(container.start, firstStart).includes('\n');
  return text.trim().includes('\n') || text.trim() === '{}';
}

function insert(text: string, container: Node, entry: (indent: string, isSpread: boolean) => string): string {
  const { eol, unit } = styleOf(text);
  const first = container.members[0]?.start ?? container.items[0]?.start;
  const last = container.members.at(-1)?.value.end ?? container.items.at(-1)?.end;
  const spread = isSpread(text, container, first);
  if (first !== undefined && last !== undefined) {
    const indent = indentAt(text, first);
    return `${text.slice(0, last)},${spread ? `${eol}${indent}` : ' '}${entry(indent, spread)}${text.slice(last)}`;
  }
  const outer = indentAt(text, container.start);
  const inside = spread ? `${eol}${outer}${unit}${entry(`${outer}${unit}`, true)}${eol}${outer}` : entry(outer, false);
  return `${text.slice(0, container.start + 1)}${inside}${text.slice(container.end - 1)}`;
}

/**
 * Puts the string at the end of the list at `path`; makes the list, and the objects above it, where they are missing, and names what it made
 * (paths joined with dots, outermost first). AxError `invalid_state` when something else stands there.
 */
export function addItem(text: string, path: Path, item: string): { readonly text: string; readonly made: readonly string[] } {
  const depth = path.findIndex((_key, i) => find(text, path.slice(0, i + 1)) === undefined);
  const known = find(text, depth < 0 ? path : path.slice(0, depth))!;
  if (known.kind !== (depth < 0 ? 'array' : 'object')) {
    throw new AxError(
      'invalid_state',
      `"${(depth < 0 ? path : path.slice(0, depth)).join('.')}" is not ${depth < 0 ? 'a list' : 'an object'}`,
    );
  }
  if (depth < 0) return { text: insert(text, known, () => JSON.stringify(item)), made: [] };
  const { eol, unit } = styleOf(text);
  const value = path.slice(depth + 1).reduceRight<unknown>((inner, key) => ({ [key]: inner }), [item]);
  const added = insert(text, known, (indent, spread) => {
    const written = JSON.stringify(value, null, spread ? unit : 0).replaceAll('\n', `${eol}${indent}`);
    return `${JSON.stringify(path[depth])}: ${written}`;
  });
  return { text: added, made: path.slice(depth).map((_key, i) => path.slice(0, depth + i + 1).join('.')) };
}

/** Cuts one of the siblings out, with the comma that belonged to it. */
function cut(text: string, container: Node, spans: readonly { readonly start: number; readonly end: number }[], at: number): string {
  const own = spans[at]!;
  const before = spans[at - 1];
  const after = spans[at + 1];
  if (before !== undefined) return text.slice(0, before.end) + text.slice(own.end);
  if (after !== undefined) return text.slice(0, own.start) + text.slice(after.start);
  return text.slice(0, container.start + 1) + text.slice(container.end - 1);
}

/** Takes the string out of the list at `path`, where it stands there. */
export function removeItem(text: string, path: Path, item: string): string {
  const list = find(text, path);
  const at = list?.items.findLastIndex(({ kind, start, end }) => kind === 'plain' && JSON.parse(text.slice(start, end)) === item) ?? -1;
  return list === undefined || at < 0 ? text : cut(text, list, list.items, at);
}

/** Takes the list or object at `path` away, where it is empty. */
export function removeEmpty(text: string, path: Path): string {
  const own = find(text, path);
  const parent = find(text, path.slice(0, -1));
  if (own === undefined || parent === undefined || own.kind === 'plain' || own.members.length + own.items.length > 0) return text;
  const spans = parent.members.map((member) => ({ start: member.start, end: member.value.end }));
  return cut(
    text,
    parent,
    spans,
    parent.members.findIndex((member) => member.value.start === own.start),
  );
}

/** AxError `invalid_state` when a key stands twice in one object: nobody can tell then which one counts. */
export function requireUnambiguous(text: string): void {
  scan(text);
}
