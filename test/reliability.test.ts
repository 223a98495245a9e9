/** docs/reliability.md names tests by file and by rule: each is there, so that the table cannot tell of a test that is gone. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

const page = readFileSync(join(import.meta.dirname, '..', 'docs', 'reliability.md'), 'utf8');
/** As it stands between quotes in a source. */
const plain = (source: string): string => source.replaceAll("\\'", "'");

test('every test that docs/reliability.md names exists under that name', () => {
  const named = [...page.matchAll(/`([a-z0-9/-]+\.test\.ts)`: "([^"\n]+)"/g)];
  assert.ok(named.length > 80, `only ${named.length} found`);
  const missing = named.filter(([, file, name]) => {
    const path = join(import.meta.dirname, file!);
    return !existsSync(path) || !plain(readFileSync(path, 'utf8')).includes(name!);
  });
  assert.deepEqual(
    missing.map(([all]) => all),
    [],
  );
});

test('docs/reliability.md answers all seventy reports and all eighteen bars, in order', () => {
  const numbers = [...page.matchAll(/^\| (\d+) \|/gm)].map(([, number]) => Number(number));
  const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1);
  assert.deepEqual(numbers, [...upTo(70), ...upTo(18)]);
});
