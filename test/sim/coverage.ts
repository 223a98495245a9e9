/**
 * What the simulation must have reached to count for anything, and a run over a range of seeds that says so.
 *
 * Owns the list of outcomes, states and accidents a few hundred worlds have to show; a zero in it means that the workload or the
 * faults have lost their grip and that a green run says nothing.
 */
import assert from 'node:assert/strict';
import { METHODS } from '../../protocol/control.ts';
import { runSeed } from './scenario.ts';

/** Methods that end or copy a process, or need a channel that these worlds lack; the tests of each are elsewhere. */
const ELSEWHERE: readonly string[] = [
  'daemon.stop', // test/e2e/main.test.ts; a graceful stop happens here by the fleet
  'daemon.backup', // test/e2e/backup.test.ts
  'message.upload', // test/e2e/large.test.ts
  'agent.sandbox_fetch', // rules-sandbox.test.ts
];

/** What refuses each method here, seldom ones left out. */
const REFUSALS: Readonly<Record<string, readonly string[]>> = {
  'message.send': [
    'unanswered',
    'store_full',
    'unavailable',
    'host_not_found',
    'ambiguous_destination',
    'not_found',
    'invalid_argument',
    'limit',
    'grant_missing',
    'untrusted_peer',
    'update_required',
  ],
  'message.fetch': ['invalid_state', 'expired', 'unanswered'],
  'message.confirm': ['unanswered'],
  'admin.cancel': ['too_late', 'invalid_state'],
  'admin.retry': ['invalid_state'],
  'agent.setup': ['invalid_state'],
  'agent.quiet': ['not_found'],
  'agent.rename': ['not_found'],
  'agent.remove': ['not_found'],
  'host.grant': ['host_not_found', 'invalid_state'],
  'host.revoke': ['host_not_found', 'invalid_state'],
  'host.ping': ['unavailable'],
  'host.join': ['unavailable'],
};

/** Every one of these happens at least once in 150 worlds. */
export const REQUIRED: readonly string[] = [
  ...METHODS.filter((method) => !ELSEWHERE.includes(method)).map((method) => `${method} ok`),
  ...Object.entries(REFUSALS).flatMap(([method, codes]) => codes.map((code) => `${method} ${code}`)),
  ...['queued', 'forwarding', 'deferred', 'accepted', 'fetched', 'refused', 'expired', 'cancelled'].map((state) => `sender ${state}`),
  ...['awaiting_setup', 'available', 'fetched', 'expired', 'cancelled'].map((state) => `receiver ${state}`),
  ...['written', 'held', 'approved', 'denied', 'lapsed', 'blocked', 'failed', 'withheld', 'unverified'].map(
    (outcome) => `notice ${outcome}`,
  ),
  ...['in_queue', 'left_queue', 'queue_paused'].map((outcome) => `notice ${outcome}`),
  'codex says left_queue',
  'codex says queue_paused',
  'codex notice again',
  'uncertain',
  'cancel_requested',
  'cancel says cancelled',
  'cancel says cancel_requested',
  'cancel answered cancelled',
  'cancel answered too_late',
  'duplicate answered',
  'offer answered all missing',
  'offer answered some missing',
  'offer answered none missing',
  'offer answered grant_missing',
  'offer answered not_found',
  'piece stored',
  'body in parts',
  'crash near piece arrived',
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
  'deliver answered not_found',
  'deliver answered grant_missing',
  'held for a host that does not know this one',
  'offer answered store_full',
  'partition',
  'one-way partition',
  'reset',
  'wall clock step',
  'machine suspended',
  'machine stopped',
  'broken store',
  'newer build',
  'older build',
  'bounds raised',
  'deliver answered limit',
  'deliver answered throttled',
  'grant everywhere',
  'grant for a workspace',
  'grant with an end',
  'revoke everywhere',
  'revoke for a workspace',
  'message kept as a note',
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
