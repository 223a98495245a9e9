/** The whole core, simulated: the seeds that once broke it, and the first half of those of every test run. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { holds, runSeeds } from './coverage.ts';
import { runSeed } from './scenario.ts';

const kept = JSON.parse(readFileSync(new URL('seeds.json', import.meta.url), 'utf8')) as {
  readonly seeds: readonly { readonly seed: number; readonly caught: string }[];
};

test('every seed that once broke a rule holds', async () => {
  for (const { seed } of kept.seeds) await holds(seed);
});

test('every rule holds in the worlds 1 to 150, and they reach everything they must', async () => {
  await runSeeds(1, 150);
});

test('the same seed gives the same trace', async () => {
  assert.deepEqual((await runSeed(7)).trace, (await runSeed(7)).trace);
});
