/**
 * The documents say what is there: names that the code owns stand in the page that explains them, and links lead somewhere.
 *
 * Each rule reads the names where the code has them (a table, a refusal, the text of the sources) and looks for them as words of the page.
 * Whether a sentence is true no test can tell; that something is missing one can.
 */
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { test } from 'node:test';
import { readConfig } from '../daemon/config.ts';
import { METHODS } from '../protocol/control.ts';
import { AxError, ERROR_TABLE } from '../protocol/errors.ts';
import { GRANT_ACTIONS, NOTICE_OUTCOMES, RECEIPT_OUTCOMES, RECEIVER_STATES, SENDER_STATES, WITHHELD_REASONS } from '../protocol/states.ts';

const ROOT = join(import.meta.dirname, '..');
const page = (path: string): string => readFileSync(join(ROOT, path), 'utf8');

function none(problems: readonly string[]): void {
  assert.equal(problems.length, 0, `\n  ${problems.join('\n  ')}\n`);
}

function filesBelow(folder: string, ending: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(ending))
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)).replaceAll('\\', '/'))
    .toSorted();
}

/** Which of `names` do not stand in the page as code of their own. */
function missingIn(path: string, names: readonly string[]): string[] {
  const codes = new Set([...page(path).matchAll(/`([^`\n]+)`/g)].flatMap((match) => [match[1]!, match[1]!.replace(/[?[{: ].*$/, '')]));
  return [...new Set(names)].filter((name) => !codes.has(name)).map((name) => `${path} does not name \`${name}\``);
}

test('every method of the control socket, every state, outcome and code stands in the specification', () => {
  none(missingIn('protocol/README.md', METHODS));
  none(
    missingIn('protocol/README.md', [
      ...Object.keys(ERROR_TABLE),
      ...SENDER_STATES,
      ...RECEIVER_STATES,
      ...RECEIPT_OUTCOMES,
      ...NOTICE_OUTCOMES,
      ...WITHHELD_REASONS,
      ...GRANT_ACTIONS,
    ]),
  );
});

test('every type of JSON that a command prints stands in the specification', () => {
  const types = filesBelow('cli', '.ts').flatMap((path) => [...page(path).matchAll(/\btype: '([a-z_]+)'/g)].map((match) => match[1]!));
  assert.ok(types.length > 30, `${types.length} types found`);
  none(missingIn('protocol/README.md', types));
});

test('the tree in ARCHITECTURE names every source file, and no file that is not there', () => {
  const [, block = ''] = /```\n(protocol\/[^]*?)```/.exec(page('docs/ARCHITECTURE.md')) ?? [];
  const named = new Set<string>();
  let [top, sub] = ['', ''];
  // The names stand before the first two spaces in a row; a folder ends in a slash, and what is in it is indented below it.
  for (const line of block.split('\n')) {
    const [, indent = '', rest = ''] = /^( *)(.*)$/.exec(line) ?? [];
    const names = rest.split(/ {2,}/)[0]!.split(' ').filter(Boolean);
    if (indent.length === 0) top = names[0] ?? '';
    if (indent.length <= 2) sub = '';
    if (indent.length === 2 && names.length === 1 && names[0]!.endsWith('/')) sub = names[0]!;
    if (!/^(protocol|daemon|cli)\/$/.test(top) || indent.length === 0) continue;
    for (const name of names) if (/^[a-z0-9-]+$/.test(name)) named.add(`${top}${sub}${name}.ts`);
  }
  const sources = ['protocol', 'daemon', 'cli'].flatMap((folder) => filesBelow(folder, '.ts')).filter((path) => !path.endsWith('.d.ts'));
  none(sources.filter((path) => !named.has(path)).map((path) => `${path} is not in the tree`));
  none([...named].filter((path) => !sources.includes(path)).map((path) => `${path} is in the tree, and nowhere else`));
});

test('ARCHITECTURE tells which files of protocol/ the CLI may import, as the house rules hold it', () => {
  const [, told = ''] = /\| cli \| `cli\/\*` \| of `protocol\/`: `([^`]+)`/.exec(page('docs/ARCHITECTURE.md')) ?? [];
  const [, held = ''] = /CLI_MAY_IMPORT_OF_PROTOCOL = new Set\(\[([^\]]+)\]/.exec(page('test/tidy.test.ts')) ?? [];
  assert.deepEqual(told.split(' ').toSorted(), [...held.matchAll(/'([a-z]+)'/g)].map((match) => match[1]!).toSorted());
});

test('every field of config.json stands in operating', () => {
  const folder = mkdtempSync(join(tmpdir(), 'ax-docs-'));
  try {
    // The refusal of an unknown field names the known ones.
    const fields = (settings: object): string[] => {
      writeFileSync(join(folder, 'config.json'), JSON.stringify(settings));
      try {
        readConfig(folder, { listen: [], name: undefined }, {});
      } catch (error) {
        assert.ok(error instanceof AxError);
        return (error.fix ?? '').replace('known fields: ', '').split(', ');
      }
      throw new Error('an unknown field was taken');
    };
    const known = [...fields({ unknown: 1 }), ...fields({ limits: { unknown: 1 } })];
    assert.ok(known.includes('listen') && known.includes('notice_burst'), known.join(' '));
    none(missingIn('docs/operating.md', known));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('every finding of ax doctor stands in operating', () => {
  const text = [...filesBelow('cli/doctor', '.ts'), 'cli/harness-settings.ts'].map(page).join('\n');
  const patterns = [
    /\bfinding\(\s*[^,()]+,\s*'([a-z_]+)'/g,
    /\bclash\('([a-z_]+)'/g,
    /^  ([a-z_]+): '(?:error|warning)',$/gm,
    /\bid: '([a-z_]+)', severity/g,
  ];
  const plain = patterns.flatMap((pattern) => [...text.matchAll(pattern)].map((match) => match[1]!));
  // Made of two words: what it is about, and what is wrong with it.
  const about = [...text.matchAll(/\bid: '([a-z_]+)'(?: as const)?, path:/g)].flatMap((match) =>
    ['kind', 'owner', 'mode'].map((fault) => `${match[1]!}_${fault}`),
  );
  const others = ['rules_missing_claude', 'rules_missing_codex', 'claude_inbound_hold', 'claude_inbound_refuse'];
  assert.ok(plain.length > 25 && about.length > 15, `${plain.length} and ${about.length} found`);
  none(missingIn('docs/operating.md', [...plain, ...about, ...others]));
});

test('every code of what needs attention stands in operating', () => {
  const [, union = ''] = /export type AttentionCode =([^;]+);/.exec(page('protocol/control.ts')) ?? [];
  const codes = [...union.matchAll(/'([a-z_]+)'/g)].map((match) => match[1]!);
  assert.ok(codes.length > 10, `${codes.length} codes found`);
  none(missingIn('docs/operating.md', codes));
});

test('every outcome of a notice stands in the page about the harnesses', () => {
  none(missingIn('docs/harnesses.md', NOTICE_OUTCOMES));
});

test('the decisions are numbered without a gap, and each stands in their index', () => {
  const records = readdirSync(join(ROOT, 'docs/adr'))
    .filter((name) => /^\d{4}-/.test(name))
    .toSorted();
  const index = page('docs/adr/README.md');
  for (const [i, name] of records.entries()) {
    const number = String(i + 1).padStart(4, '0');
    assert.ok(name.startsWith(`${number}-`), `${name} is the record number ${number}`);
    assert.match(page(`docs/adr/${name}`), new RegExp(`^# ${number}: .+\n\nStatus: `), name);
    assert.ok(index.includes(`](${name})`), `docs/adr/README.md does not list ${name}`);
  }
});

test('every package stands in the decision about dependencies', () => {
  const { dependencies, devDependencies } = JSON.parse(page('package.json')) as Record<'dependencies' | 'devDependencies', object>;
  const words = new Set(page('docs/adr/0001-dependencies.md').split(/[\s|,*]+/));
  none([...Object.keys(dependencies), ...Object.keys(devDependencies)].filter((name) => !words.has(name)));
});

test('every target of make that help lists stands in README or CONTRIBUTING', () => {
  const targets = [...page('Makefile').matchAll(/^([a-z0-9-]+):.*## /gm)].map((match) => match[1]!);
  const text = page('README.md') + page('CONTRIBUTING.md');
  assert.ok(targets.includes('test') && targets.includes('uninstall'));
  none(targets.filter((name) => !new RegExp(`make ${name}(?![a-z-])`).test(text)).map((name) => `make ${name}`));
});

test('every relative link in a document leads to a file, and to a heading that is there', () => {
  const anchors = (path: string): Set<string> =>
    new Set(
      [
        ...page(path)
          .replaceAll(/^```[^]*?^```$/gm, '')
          .matchAll(/^#+ (.*)$/gm),
      ].map((match) =>
        match[1]!
          .toLowerCase()
          .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
          .trim()
          .replaceAll(' ', '-'),
      ),
    );
  const folders = ['docs', 'protocol', 'skills', 'test', '.github'].filter((folder) => existsSync(join(ROOT, folder)));
  const documents = [
    ...readdirSync(ROOT).filter((name) => name.endsWith('.md')),
    ...folders.flatMap((folder) => filesBelow(folder, '.md')),
  ];
  const problems = documents.flatMap((path) =>
    [
      ...page(path)
        .replaceAll(/^```[^]*?^```$/gm, '')
        .matchAll(/\]\(([^)\s]+)\)/g),
    ].flatMap(([, link = '']) => {
      if (/^[a-z]+:/.test(link)) return [];
      const [file = '', anchor] = link.split('#');
      const target = file === '' ? path : relative(ROOT, join(ROOT, dirname(path), file));
      if (!existsSync(join(ROOT, target))) return [`${path}: ${link} leads nowhere`];
      if (anchor === undefined || statSync(join(ROOT, target)).isDirectory() || anchors(target).has(anchor)) return [];
      return [`${path}: ${link} names a heading that is not there`];
    }),
  );
  none(problems);
});
