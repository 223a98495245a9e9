/**
 * Runs many simulated worlds and prints the seeds that broke a rule; `make sim` and nothing else calls it.
 *
 * SIM_SEEDS worlds (300) from FIRST (1) on, until MOST (10) broke; or only SEED, whose whole trace is then printed. COUNTS=1 says what
 * was reached. Exit status 1 when a rule broke.
 */
import { runSeed } from './scenario.ts';

const only = Number(process.env['SEED'] ?? '') || undefined;
const first = only ?? (Number(process.env['FIRST'] ?? '') || 1);
const count = only === undefined ? Number(process.env['SIM_SEEDS'] ?? '') || 300 : 1;
const most = Number(process.env['MOST'] ?? '') || 10;
const counts = new Map<string, number>();
const broken: number[] = [];
const began = performance.now();
for (let seed = first; seed < first + count && broken.length < most; seed++) {
  const run = await runSeed(seed);
  for (const [what, times] of run.counts) counts.set(what, (counts.get(what) ?? 0) + times);
  if (run.broken === undefined && only === undefined) continue;
  if (run.broken !== undefined) broken.push(seed);
  console.log(`seed ${seed}: ${run.broken ?? 'holds'} (${Math.round(run.lasted / 1000)} virtual s)`);
  for (const line of only === undefined ? run.trace.slice(-12) : run.trace) console.log(`  ${line}`);
  if (only !== undefined && run.error instanceof Error) console.log(run.error.stack);
}
const seconds = (performance.now() - began) / 1000;
if (process.env['COUNTS'] !== undefined)
  for (const [what, times] of [...counts].toSorted(([a], [b]) => a.localeCompare(b))) console.log(`${String(times).padStart(8)} ${what}`);
console.log(
  `${count} seeds in ${seconds.toFixed(1)} s, ${broken.length} broken${broken.length === 0 ? '' : `: ${broken.join(' ')} (replay one: make sim SEED=${broken[0]})`}`,
);
process.exitCode = broken.length === 0 ? 0 : 1;
