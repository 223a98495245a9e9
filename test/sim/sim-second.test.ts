/** The whole core, simulated: the second half of the seeds of every test run, in a process of its own. */
import { test } from 'node:test';
import { runSeeds } from './coverage.ts';

test('every rule holds in the worlds 151 to 300, and they reach everything they must', async () => {
  await runSeeds(151, 150);
});
