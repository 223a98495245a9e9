/**
 * How often violations are told, and how long their peers are refused.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { Violations } from '../../../daemon/link/violations.ts';
import { silentLog } from '../../../daemon/log.ts';
import type { LogFields } from '../../../daemon/log.ts';
import { AxError } from '../../../protocol/errors.ts';
import { hostKeyFromSeed } from '../../../protocol/identity.ts';
import type { HostId } from '../../../protocol/ids.ts';
import { ManualClock } from './bed.ts';

const anyId = (): HostId => hostKeyFromSeed(randomBytes(32)).hostId;
const fault = new AxError('protocol_violation', 'a frame of no bytes');
const address = '/ip4/192.0.2.7/tcp/4001';

function make(): { clock: ManualClock; lines: LogFields[]; violations: Violations } {
  const clock = new ManualClock();
  const lines: LogFields[] = [];
  const violations = new Violations({ clock, log: { ...silentLog, warn: (_event, fields = {}) => void lines.push(fields) } });
  return { clock, lines, violations };
}

test('of the violations of strangers the 1st, 2nd, 4th, 8th and so on are told, whoever they are', () => {
  const { lines, violations } = make();
  const told = Array.from({ length: 1000 }, () => violations.add({ id: anyId(), address, learned: false }, fault));
  assert.equal(told.filter((isTold) => isTold).length, 10);
  assert.deepEqual(
    lines.map((line) => line['byStrangers']),
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
  );
});

test('of the violations of a named peer one a minute is told, with the number of those that were not', () => {
  const { clock, lines, violations } = make();
  const [one, other] = [anyId(), anyId()];
  for (let second = 0; second < 180; second++) {
    violations.add({ id: one, address, learned: true }, fault);
    if (second === 30) assert.equal(violations.add({ id: other, address, learned: true }, fault), true);
    clock.advance(1000);
    violations.sweep();
  }
  assert.deepEqual(
    lines.filter((line) => line['peer'] === one).map((line) => line['untold']),
    [0, 59, 59],
  );
});

test('a violator is refused for 30 s from its last violation, and of very many the oldest is let off first', () => {
  const { clock, violations } = make();
  const [early, late] = [anyId(), anyId()];
  for (const id of [early, late]) violations.add({ id, address, learned: false }, fault);
  clock.advance(20_000);
  violations.add({ id: early, address, learned: false }, fault);
  clock.advance(10_000);
  violations.sweep();
  assert.ok(violations.banLeftMs(early) > 0 && violations.banLeftMs(late) <= 0);
  for (let n = 0; n < 1024; n++) violations.add({ id: anyId(), address, learned: false }, fault);
  assert.ok(violations.banLeftMs(early) <= 0);
});
