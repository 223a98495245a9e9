/**
 * The house rules, as tests: who may import whom, what may be named where, how a file looks.
 *
 * Owns the tables below and nothing else; docs/ARCHITECTURE.md explains them. A new file in a known place needs no entry
 * here; a new place does. Reads the sources as text with regular expressions: a rule too subtle for that is not here.
 * Invariant: passes on an empty tree, so it never asserts that a file exists.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix, relative } from 'node:path';
import { test } from 'node:test';

const ROOT = join(import.meta.dirname, '..');

type Rank = 'R0' | 'R1' | 'R2' | 'R3' | 'R4' | 'R5' | 'R6' | 'cli';

/** First match wins. */
const RANKS: readonly (readonly [pattern: RegExp, rank: Rank])[] = [
  [/^protocol\/[^/]+\.ts$/, 'R0'],
  [/^daemon\/(main|restore)\.ts$/, 'R6'],
  [/^daemon\/log\.ts$/, 'R1'],
  // The row of a table and pure decisions on it, for its owner and its readers.
  [/^daemon\/[a-z]+-row\.ts$/, 'R1'],
  [/^daemon\/(config|lock|rest|log-[a-z]+)\.ts$/, 'R5'],
  [/^daemon\/daemon\.ts$/, 'R4'],
  [/^daemon\/(outbox|inbox|receipts|notices|agents|peers|events|uptime)\.ts$/, 'R2'],
  [/^daemon\/control\/methods[^/]*\.ts$/, 'R4'],
  // The file named after its folder is the interface of the seam; its siblings implement it.
  [/^daemon\/([a-z-]+)\/\1\.ts$/, 'R1'],
  // Helpers over a seam's interface, for the core.
  [/^daemon\/(store\/(rows|weights|counts)|clock\/within)\.ts$/, 'R1'],
  [/^daemon\/(clock|store|link|harness|verifier|files|log|control|box|backup)\/.+\.ts$/, 'R5'],
  [/^daemon\/[^/]+\.ts$/, 'R3'],
  [/^cli\/((commands|completion|doctor)\/)?[^/]+\.ts$/, 'cli'],
];

/** Which ranks a rank may import, never in a cycle. */
const MAY_IMPORT: Readonly<Record<Rank, readonly Rank[]>> = {
  R0: ['R0'],
  R1: ['R0'],
  R2: ['R0', 'R1'],
  R3: ['R0', 'R1', 'R2', 'R3'],
  R4: ['R0', 'R1', 'R2', 'R3', 'R4'],
  R5: ['R0', 'R1'],
  R6: ['R0', 'R1', 'R2', 'R3', 'R4', 'R5', 'R6'],
  cli: ['cli'],
};

const CLI_MAY_IMPORT_OF_PROTOCOL = new Set([
  'control',
  'errors',
  'states',
  'limits',
  'paths',
  'address',
  'ids',
  'kept',
  'nearest',
  'notice',
  'settings',
  'frame',
  'codec',
  'version',
  'box',
  'body',
]);
/** Never reached from cli/, not even through the modules above. */
const CLI_NEVER_REACHES = /^(daemon\/.*|protocol\/(identity|seal|hashtree|envelope|receipt)\.ts)$/;

const BUFFERS = /^uint8arraylist$/;
/** Packages and node: modules: who may import which. */
const MAY_IMPORT_PACKAGE: readonly (readonly [file: RegExp, packages: RegExp])[] = [
  [/^protocol\//, /^(node:crypto|tweetnacl|multiformats\/.+|@noble\/.+|@libp2p\/(crypto|peer-id)(\/.*)?)$/],
  [
    /^daemon\/(store|link|harness|clock|verifier|files|log|box|backup)\/(?!(store|link|harness|clock|verifier|files|log|box|backup|rows|weights|within)\.ts$)/,
    /^node:/,
  ],
  [/^daemon\/(config|lock|rest|log-[a-z]+)\.ts$/, /^node:/],
  [/^daemon\/store\/rows\.ts$/, /^node:crypto$/],
  [/^daemon\/control\/(?!methods)/, /^node:/],
  [/^daemon\/store\/lmdb[^/]*\.ts$/, /^lmdb$/],
  [/^daemon\/link\/(?!link\.ts)/, /^(libp2p|@libp2p\/.+|@chainsafe\/.+|@multiformats\/.+)$/],
  [/^daemon\/link\/(?!link\.ts)/, BUFFERS],
  [/^daemon\/harness\/codex-rpc\.ts$/, /^ws$/],
  [/^daemon\/backup\/folder\.ts$/, /^it-pipe$/],
  [/^daemon\/lock\.ts$/, /^fs-native-extensions$/],
  [/^daemon\/(log-[a-z]+\.ts|log\/.*)$/, /^pino$/],
  [/^cli\//, /^(node:.*|commander|@clack\/prompts|cli-table3)$/],
];

const CLOCK = /^daemon\/clock\/system\.ts$/;
const CLI_HOMES = /^cli\/(main|client|environment|output|wait)\.ts$/;
/** What may be named only at home. */
const AT_HOME: readonly (readonly [what: string, pattern: RegExp, homes: readonly RegExp[]])[] = [
  ['the wall clock', /\bDate\.now\b|\bnew Date\(\s*\)|\bperformance\.now\b|\bprocess\.hrtime\b/, [CLOCK, CLI_HOMES]],
  ['Math.random', /\bMath\.random\b/, []],
  // Adapters are not simulated: jitter and foreign ids there may be drawn directly.
  [
    'randomness',
    /\brandomBytes\b|\brandomUUID\b|\bgetRandomValues\b|\brandomFill(Sync)?\b|\brandomInt\b/,
    [CLOCK, /^cli\/random\.ts$/, /^daemon\/(link|harness)\//],
  ],
  ['timers', /\bset(Timeout|Interval)\b|\bAbortSignal\.timeout\b|\bnode:timers\b/, [CLOCK, CLI_HOMES]],
  ['the environment', /\bprocess\.env\b/, [/^daemon\/(main|config)\.ts$/, CLI_HOMES]],
  ['the console', /\bconsole\./, [/^cli\/(main|output)\.ts$/]],
];

const MAX_LINES = 400;

interface Import {
  readonly specifier: string;
  /** Path relative to the project, for a relative import. */
  readonly target: string | undefined;
  readonly isTypeOnly: boolean;
}

interface Source {
  readonly path: string;
  readonly text: string;
  /** Without comments. */
  readonly code: string;
  /** Without comments and without the contents of quoted strings. */
  readonly bare: string;
  readonly imports: readonly Import[];
}

const COMMENT_OR_STRING = /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"/g;
const IMPORT =
  /(?:^|[;}\s])(import|export)(\s+type\b)?(?:\s+[\w*{][^;'"()]*?\s*from)?\s*(['"])([^'"\n]+)\3|\bimport\(\s*(['"])([^'"\n]+)\5/g;

function importsOf(path: string, code: string): Import[] {
  return [...code.matchAll(IMPORT)].map((match) => {
    const specifier = match[4] ?? match[6] ?? '';
    const target = specifier.startsWith('.') ? posix.normalize(posix.join(dirname(path), specifier)) : undefined;
    return { specifier, target, isTypeOnly: match[2] !== undefined };
  });
}

function read(folder: string): Source[] {
  const absolute = join(ROOT, folder);
  if (!existsSync(absolute)) return [];
  return readdirSync(absolute, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts') && !entry.name.endsWith('.d.ts'))
    .map((entry) => {
      const file = join(entry.parentPath, entry.name);
      const path = relative(ROOT, file).replaceAll('\\', '/');
      const text = readFileSync(file, 'utf8');
      const code = text.replace(COMMENT_OR_STRING, (found) => (found.startsWith('/') ? ' ' : found));
      const bare = text.replace(COMMENT_OR_STRING, (found) => (found.startsWith('/') ? ' ' : "''"));
      return { path, text, code, bare, imports: importsOf(path, code) };
    })
    .toSorted((a, b) => (a.path < b.path ? -1 : 1));
}

const sources = [...read('protocol'), ...read('daemon'), ...read('cli')];
const tests = read('test');
const byPath = new Map(sources.map((source) => [source.path, source]));

function rankOf(path: string): Rank | undefined {
  return RANKS.find(([pattern]) => pattern.test(path))?.[1];
}

function none(problems: readonly string[]): void {
  assert.equal(problems.length, 0, `\n  ${problems.join('\n  ')}\n`);
}

/** A path through imports that ends where it began, if there is one. */
function findCycle(): string[] | undefined {
  const done = new Set<string>();
  const visit = (path: string, trail: string[]): string[] | undefined => {
    if (trail.includes(path)) return [...trail.slice(trail.indexOf(path)), path];
    if (done.has(path)) return undefined;
    for (const { target } of byPath.get(path)?.imports ?? []) {
      const cycle = target === undefined ? undefined : visit(target, [...trail, path]);
      if (cycle) return cycle;
    }
    done.add(path);
    return undefined;
  };
  for (const path of byPath.keys()) {
    const cycle = visit(path, []);
    if (cycle) return cycle;
  }
  return undefined;
}

test('the import scan sees every form of import', () => {
  const code = [
    "import a from './a.ts';",
    "import type { B } from './b.ts';",
    "import {\n  c,\n  type C,\n} from './c.ts';",
    "import './d.ts';",
    "export * from './e.ts';",
    "export { f } from './f.ts';",
    "const g = await import('./g.ts');",
    'import * as h from "./h.ts";',
    'import def, { i } from "./i.ts";',
    "export const x = 'not an import';",
  ].join('\n');
  assert.deepEqual(
    importsOf('cli/x.ts', code).map((found) => found.target),
    'abcdefghi'.split('').map((letter) => `cli/${letter}.ts`),
  );
});

test('every source file has a rank', () => {
  none(sources.filter(({ path }) => rankOf(path) === undefined).map(({ path }) => `${path}: no rank; name its place in RANKS`));
});

test('imports between source files go down the ranks', () => {
  const problems: string[] = [];
  for (const { path, imports } of sources) {
    const rank = rankOf(path);
    for (const { target, specifier } of imports) {
      if (rank === undefined || target === undefined || target.endsWith('.json')) continue;
      const other = rankOf(target);
      if (rank === 'cli' && other === 'R0') {
        if (!CLI_MAY_IMPORT_OF_PROTOCOL.has(posix.basename(target, '.ts'))) problems.push(`${path} imports ${target}, which cli/ may not`);
        continue;
      }
      // One adapter may be several files, and a helper stands beside its interface; different seams stay apart.
      const isOwnSeam =
        (rank === 'R5' || rank === 'R1') && other === rank && dirname(path) === dirname(target) && dirname(path) !== 'daemon';
      // A row names the keys under which an index finds it.
      const isRowsKey = path.endsWith('-row.ts') && target === 'daemon/store/rows.ts';
      if (other === undefined || (!MAY_IMPORT[rank].includes(other) && !isOwnSeam && !isRowsKey)) {
        problems.push(`${path} (${rank}) imports ${specifier} (${other ?? 'no rank'})`);
      }
    }
  }
  none(problems);
});

test('no cycle of imports', () => {
  const cycle = findCycle();
  none(cycle ? [cycle.join(' -> ')] : []);
});

test('the CLI reaches neither the daemon nor keys, sealing and signing', () => {
  const problems: string[] = [];
  const seen = new Set<string>();
  const visit = (path: string, trail: string): void => {
    if (seen.has(path)) return;
    seen.add(path);
    if (CLI_NEVER_REACHES.test(path)) problems.push(trail);
    for (const { target, isTypeOnly } of byPath.get(path)?.imports ?? []) {
      if (target !== undefined && !isTypeOnly) visit(target, `${trail} -> ${target}`);
    }
  };
  for (const { path } of sources) if (path.startsWith('cli/')) visit(path, path);
  none(problems);
});

test('libraries are imported only where they belong', () => {
  const problems: string[] = [];
  for (const { path, imports } of sources) {
    if (rankOf(path) === 'R6') continue;
    for (const { specifier, target } of imports) {
      if (target !== undefined) continue;
      const isAllowed = MAY_IMPORT_PACKAGE.some(([file, packages]) => file.test(path) && packages.test(specifier));
      if (!isAllowed) problems.push(`${path} imports ${specifier}`);
    }
  }
  none(problems);
});

test('clock, randomness, timers, environment and console are named only at home', () => {
  const problems: string[] = [];
  for (const { path, bare, code } of sources) {
    for (const [what, pattern, homes] of AT_HOME) {
      if (homes.some((home) => home.test(path))) continue;
      const found = pattern.exec(pattern.source.includes('node:') ? code : bare);
      if (found) problems.push(`${path} uses ${what}: ${found[0]}`);
    }
  }
  none(problems);
});

test("programs are started in seven places, for this host's owner only: none is for a peer's words, over SSH, or into a terminal", () => {
  const starts = sources.filter(({ code }) => /\bnode:child_process\b/.test(code)).map(({ path }) => path);
  // The daemon makes its pipe; the CLI looks for an ax, opens the owner's editor, starts the daemon and asks harnesses and service managers.
  const places = ['box/pipe', 'doctor/machine', 'editor', 'launch', 'rules-claude', 'rules-codex', 'service-manager'];
  assert.deepEqual(
    starts.toSorted(),
    places.map((name) => `${name === 'box/pipe' ? 'daemon' : 'cli'}/${name}.ts`).toSorted((one, other) => (one < other ? -1 : 1)),
  );
  const foreign = /['"`/](ssh|scp|tmux|screen|xdotool|osascript|tty)['"`\s]|TIOCSTI|\/dev\/(pts|tty)|node-pty/;
  none(sources.flatMap(({ path, code }) => (foreign.test(code) ? `${path} names ${foreign.exec(code)?.[0]}` : [])));
});

test('every source file starts with a header of 3 to 10 lines', () => {
  const problems: string[] = [];
  for (const { path, text } of [...sources, ...tests]) {
    const body = text.replace(/^#![^\n]*\n/, '');
    const header = /^\/\*[\s\S]*?\*\//.exec(body)?.[0] ?? /^(\/\/[^\n]*\n)+/.exec(body)?.[0] ?? '';
    const lines = header.split('\n').filter((line) => !/^\s*(\/\*+|\*\/)\s*$/.test(line));
    const said = lines.filter((line) => /[a-z]/i.test(line)).length;
    const isWrong = path.startsWith('test/') ? said === 0 : lines.length < 3 || said > 10;
    if (isWrong) problems.push(`${path}: ${lines.length} lines of header`);
  }
  none(problems);
});

test(`no source file is longer than ${MAX_LINES} lines`, () => {
  none(
    sources
      .map(({ path, text }) => ({ path, lines: text.trimEnd().split('\n').length }))
      .filter(({ lines }) => lines > MAX_LINES)
      .map(({ path, lines }) => `${path}: ${lines} lines`),
  );
});

test('no drawer folders and no barrels', () => {
  const drawer = /(^|\/)(utils?|common|core|types|helpers|shared)\/|(^|\/)(utils?|helpers|common|index)\.ts$/;
  none([...sources, ...tests].filter(({ path }) => drawer.test(path)).map(({ path }) => path));
});

test('every relative import names its .ts file, and the file is there', () => {
  const problems: string[] = [];
  for (const { path, imports } of [...sources, ...tests]) {
    if (path === 'test/tidy.test.ts') continue;
    for (const { specifier, target } of imports) {
      if (target === undefined) continue;
      if (!/\.(ts|json)$/.test(specifier)) problems.push(`${path} imports ${specifier} without .ts`);
      else if (!existsSync(join(ROOT, target))) problems.push(`${path} imports ${specifier}, which does not exist`);
    }
  }
  none(problems);
});

test('no test is skipped or focused', () => {
  const pattern =
    /\b(?:test|it|describe|suite|t)\.(?:only|skip|todo)\(|(?<!-)\b(?:only|skip|todo):\s*(?!false)|\b(?:xit|xdescribe|fit|fdescribe)\(/;
  // What needs something that a machine may lack may be skipped there; one file decides that for all of them.
  const homes = ['test/ran-before.ts', 'test/tidy.test.ts'];
  none(tests.filter(({ path, bare }) => !homes.includes(path) && pattern.test(bare)).map(({ path }) => path));
});

test('the version in the sources is the one in package.json', () => {
  const version = byPath.get('protocol/version.ts')?.text.match(/AX_VERSION = '([^']+)'/)?.[1];
  const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  assert.equal(version ?? manifest.version, manifest.version);
});
