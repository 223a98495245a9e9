/**
 * What the simulation must have reached to count for anything, and a run over a range of seeds that says so.
 *
 * Owns the list of outcomes, states and accidents a few hundred worlds have to show; a zero in it means that the workload or the
 * faults have lost their grip and that a green run says nothing.
 */
import assert from 'node:assert/strict';
import { runSeed } from './scenario.ts';

/** Every one of these happens at least once in a hundred worlds. */
export const REQUIRED: readonly string[] = [
  ...['queued', 'forwarding', 'deferred', 'accepted', 'fetched', 'refused', 'expired', 'cancelled'].map((state) => `sender ${state}`),
  ...['awaiting_setup', 'available', 'fetched', 'expired', 'cancelled'].map((state) => `receiver ${state}`),
  ...['written', 'held', 'approved', 'denied', 'lapsed', 'blocked', 'failed', 'withheld'].map((outcome) => `notice ${outcome}`),
  'uncertain',
  'cancel_requested',
  'cancel says cancelled',
  'cancel says cancel_requested',
  'cancel answered cancelled',
  'cancel answered too_late',
  'admin.cancel too_late',
  'duplicate answered',
  'tombstone answered',
  'replayed',
  'refetch',
  'read_by_owner',
  'died between hand-out and confirm',
  'crash between hand-out and confirm',
  'crash',
  'graceful stop',
  'crash near send',
  'crash near deliver arrived',
  'crash near accepted',
  'crash near handed out',
  'store failure',
  'message.send ok',
  'message.send unanswered',
  'message.send store_full',
  'message.send unavailable',
  'message.send host_not_found',
  'message.send ambiguous_destination',
  'message.reply ok',
  'message.wait ok',
  'host.join ok',
  'host.add ok',
  'agent.setup ok',
  'agent.remove ok',
  'deliver answered not_found',
  'deliver answered grant_missing',
  'held for a host that does not know this one',
  'deliver answered store_full',
  'partition',
  'one-way partition',
  'reset',
  'wall clock step',
  'net lostRequests',
  'net lostAnswers',
  'net duplicates',
];

/** Runs `count` worlds from seed `first` on. Fails on the first broken rule, with its last events, and on anything not reached. */
export async function runSeeds(first: number, count: number): Promise<void> {
  const counts = new Map<string, number>();
  for (let seed = first; seed < first + count; seed++) {
    for (const [what, times] of await holds(seed)) counts.set(what, (counts.get(what) ?? 0) + times);
  }
  const missing = REQUIRED.filter((what) => (counts.get(what) ?? 0) === 0);
  assert.deepEqual(missing, [], `${count} worlds from seed ${first} on never reached these`);
}

/** One world in which every rule holds; what it reached. */
export async function holds(seed: number): Promise<ReadonlyMap<string, number>> {
  const run = await runSeed(seed);
  if (run.broken !== undefined) {
    assert.fail(`seed ${seed}: ${run.broken}\n${run.trace.slice(-30).join('\n')}\nreplay: make sim SEED=${seed}`);
  }
  return run.counts;
}
