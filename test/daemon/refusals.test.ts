/**
 * What other hosts were refused: a short memory that no host can empty for another.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Peers } from '../../daemon/peers.ts';
import { Refusals } from '../../daemon/refusals.ts';
import { systemClock } from '../../daemon/clock/system.ts';
import { ALICE, BOB } from '../protocol/sample.ts';

test('a host that is refused again and again pushes out its own refusals only', () => {
  const peers = { get: (hostId: string) => ({ name: hostId }), may: () => false } as unknown as Peers;
  const refusals = new Refusals(systemClock, peers);
  refusals.note(ALICE.hostId, 'write', null);
  for (let i = 0; i < 200; i++) refusals.note(BOB.hostId, 'write', `/usr/dir${i}`);
  refusals.note(BOB.hostId, 'write', '/usr/dir199');
  const rows = refusals.rows().map(({ what }) => what);
  assert.equal(rows.filter((what) => what.startsWith(ALICE.hostId)).length, 1);
  const own = rows.filter((what) => what.startsWith(BOB.hostId));
  assert.equal(own.length, 8);
  assert.match(own.at(-1) ?? '', /dir199/);
});
