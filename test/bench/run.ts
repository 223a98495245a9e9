/**
 * `make bench` and `make bench-quick`: runs the rows, prints them, and writes the whole of a full run into docs/.
 *
 * ROWS names some rows; REPEATS sets how often each contestant has its turn (5); QUICK=1 makes everything short. Ends with 1 when a row
 * could not be run: then nothing is written, for a table with a hole in it would be read as a whole one. A missed target is no failure.
 */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ROOT } from '../e2e/hosts.ts';
import { lineText, page, rowText, surroundings } from './report.ts';
import { chosen, ROWS } from './rows.ts';
import { runRow, type Result } from './row.ts';
import { Systems, type Pace } from './systems.ts';

// All folders of a run are in one, which goes however the run ends: a million messages are some GB.
const folder = mkdtempSync(join(tmpdir(), 'axn-'));
chmodSync(folder, 0o755); // Postfix runs as another user
process.env['TMPDIR'] = folder;
process.on('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));

const isQuick = process.env['QUICK'] === '1';
const repeats = Number(process.env['REPEATS'] ?? '') || (isQuick ? 1 : 5);
const pace: Pace = isQuick ? { warmMs: 400, measureMs: 800, isQuick } : { warmMs: 1000, measureMs: 3000, isQuick };

const rows = chosen(process.env['ROWS'] ?? '');
const around = surroundings();
const systems = new Systems(pace, !isQuick);
const results: Result[] = [];
const began = performance.now();
if (!isQuick) process.stdout.write(`${around.machine}; load average ${around.load.toFixed(1)}\n\n`);
try {
  for (const row of rows) {
    try {
      const result = await runRow(row, systems, repeats);
      results.push(result);
      process.stdout.write(isQuick ? lineText(result) : `${rowText(result)}\n`);
    } catch (error) {
      process.stdout.write(`${row.name.padEnd(14)}BROKEN ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
      process.exitCode = 1;
    }
  }
} finally {
  await systems.end();
}
const isWhole = rows.length === ROWS.length && results.length === ROWS.length;
if (isWhole && !isQuick) {
  const told = { ...around, versions: { ...around.versions, ...systems.versions } };
  writeFileSync(join(ROOT, 'docs', 'benchmarks.md'), page(results, told));
  writeFileSync(join(ROOT, 'docs', 'benchmarks.json'), `${JSON.stringify({ ...told, repeats, rows: results }, null, 1)}\n`);
}
const missed = results.flatMap((result) => result.judged).filter((one) => one.verdict !== 'PASS').length;
process.stdout.write(`${results.length} rows in ${((performance.now() - began) / 1000).toFixed(0)} s; targets not met: ${missed}\n`);
