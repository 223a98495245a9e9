/**
 * Renders what the last runs of the matrix saw into docs/harnesses.md, between its markers: `make harness-table`.
 *
 * Owns the form of the table only: the cells are those of the test files, in their order, and the words are what the tests saw.
 * Versions that are not pinned any more are left out; a version that has not run here is not made up.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PINS, type HarnessName } from './install.ts';
import { RESULTS_FOLDER, type Results } from './matrix.ts';

const PAGE = join(import.meta.dirname, '..', '..', 'docs', 'harnesses.md');

/** Pure: the Markdown table of one harness, newest version first; the same words of two versions share a row. */
function render(results: readonly Results[]): string {
  const rows: { cell: string; versions: string[]; seen: string }[] = [];
  for (const { version, cells } of results) {
    for (const { cell, seen } of cells) {
      const same = rows.find((row) => row.cell === cell && row.seen === seen);
      const last = rows.findLastIndex((row) => row.cell === cell);
      if (same !== undefined) same.versions.push(version);
      else rows.splice(last < 0 ? rows.length : last + 1, 0, { cell, versions: [version], seen });
    }
  }
  const escaped = (text: string): string => text.replaceAll('|', '\\|').replaceAll('<', '&lt;');
  const lines = rows.map(({ cell, versions, seen }) => `| ${escaped(cell)} | ${versions.join(', ')} | ${escaped(seen)} |`);
  return ['| Cell | Version | Seen |', '| --- | --- | --- |', ...lines].join('\n');
}

const all = existsSync(RESULTS_FOLDER)
  ? readdirSync(RESULTS_FOLDER)
      .filter((name) => name.endsWith('.json'))
      .toSorted()
      .map((name) => JSON.parse(readFileSync(join(RESULTS_FOLDER, name), 'utf8')) as Results)
      .filter(({ file }) => existsSync(join(import.meta.dirname, `${file}.test.ts`)))
  : [];
let page = readFileSync(PAGE, 'utf8');
for (const harness of Object.keys(PINS) as HarnessName[]) {
  const versions = [PINS[harness].newest, PINS[harness].older];
  const mine = versions.flatMap((version) => all.filter((one) => one.harness === harness && one.version === version));
  const pattern = new RegExp(`(<!-- table: ${harness} -->\n)[\\s\\S]*?(\n<!-- end -->)`);
  if (!pattern.test(page)) throw new Error(`docs/harnesses.md has no marker "<!-- table: ${harness} -->"`);
  if (mine.length === 0) process.stderr.write(`${harness}: nothing has run here; its table stays as it is. Run: make test-real-all\n`);
  else page = page.replace(pattern, (_, head: string, tail: string) => `${head}\n${render(mine)}\n${tail}`);
}
writeFileSync(PAGE, page);
