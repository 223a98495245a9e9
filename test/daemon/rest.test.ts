/** Memory is given back at rest, and only then. */
import assert from 'node:assert/strict';
import { setImmediate as turn } from 'node:timers/promises';
import { test } from 'node:test';
import { LOOK_MS, restAtTimes, thisProcess } from '../../daemon/rest.ts';
import { HandClock } from './bed.ts';

const MIB = 1024 * 1024;

test('a process at rest collects once, again when it has grown, and never while it works', () => {
  const clock = new HandClock();
  const seen = { busy: 0.5, mib: 90, collected: 0 };
  const stop = restAtTimes(clock, {
    busyShare: () => seen.busy,
    resident: () => seen.mib * MIB,
    collect: () => {
      seen.collected += 1;
      seen.mib = 84;
    },
  });
  const after = (busy: number, mib: number): number => {
    Object.assign(seen, { busy, mib });
    clock.pass(LOOK_MS);
    return seen.collected;
  };
  assert.equal(after(0.5, 90), 0, 'it works');
  assert.equal(after(0.01, 90), 1, 'it rests, behind its start');
  assert.equal(after(0.01, 84), 1, 'there is nothing to give back');
  assert.equal(after(0.01, 87), 1, 'little grew');
  assert.equal(after(0.2, 110), 1, 'it works');
  assert.equal(after(0.01, 110), 2, 'the work is over');
  stop();
  assert.equal(after(0, 500), 2, 'it was stopped');
  assert.equal(clock.pending, 0);
});

test('the garbage of this process is gone behind a collection, and an idle process is seen as one', async () => {
  const own = thisProcess();
  const dropped = new WeakRef({ some: 'thing' });
  await turn(); // what a WeakRef was made of lives until the turn is over
  own.collect();
  assert.equal(dropped.deref(), undefined);
  assert.equal((globalThis as { gc?: unknown }).gc, undefined, 'nobody else got the function');
  assert.ok(own.resident() > 10 * MIB);
  own.busyShare();
  await new Promise((resolve) => void setTimeout(resolve, 300));
  assert.ok(own.busyShare() < 0.5);
});
