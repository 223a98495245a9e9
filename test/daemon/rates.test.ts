/** Rates of new messages: a burst, then so many a minute, one host and one workspace not at the cost of another. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Rates } from '../../daemon/rates.ts';
import { AxError } from '../../protocol/errors.ts';
import { DEFAULT_LIMITS } from '../../protocol/limits.ts';
import { BOB, CAROL } from '../protocol/sample.ts';
import { HandClock } from './bed.ts';

const LIMITS = { ...DEFAULT_LIMITS, messagesPerMinute: 60, messageBurst: 10 };

/** How many pass, and how long the first that does not is told to wait. */
function pass(rates: Rates, host: typeof BOB.hostId, workspace: string): { count: number; waitMs: number } {
  for (let count = 0; ; count++) {
    try {
      rates.take(host, workspace);
    } catch (error) {
      assert.ok(error instanceof AxError && error.code === 'throttled');
      return { count, waitMs: Number(error.details?.['retry_after_ms']) };
    }
  }
}

test('a burst passes, then the rate, and who comes back when told gets through', () => {
  const clock = new HandClock();
  const rates = new Rates(clock, LIMITS);
  const first = pass(rates, BOB.hostId, '/w');
  assert.equal(first.count, 10);
  clock.pass(first.waitMs);
  assert.ok(pass(rates, BOB.hostId, '/w').count >= 1);
  clock.pass(60_000);
  assert.equal(pass(rates, BOB.hostId, '/w').count, 10, 'no more than a burst is saved up');
});

test('a host over its rate for one workspace takes nothing from another workspace or host', () => {
  const rates = new Rates(new HandClock(), LIMITS);
  pass(rates, BOB.hostId, '/w');
  assert.equal(pass(rates, BOB.hostId, '/v').count, 10);
  assert.equal(pass(rates, CAROL.hostId, '/w').count, 10);
});

test('many workspaces do not multiply what one host may do', () => {
  const rates = new Rates(new HandClock(), LIMITS);
  let sum = 0;
  for (let n = 0; n < 100; n++) sum += pass(rates, BOB.hostId, `/w${n}`).count;
  assert.equal(sum, 40);
});

test('what is refused takes nothing: waiting out the wider bound does not cost the narrower', () => {
  const clock = new HandClock();
  const rates = new Rates(clock, LIMITS);
  for (let n = 0; n < 4; n++) pass(rates, BOB.hostId, `/w${n}`);
  const waits = Array.from({ length: 50 }, () => pass(rates, BOB.hostId, '/fresh'));
  assert.ok(waits.every((one) => one.count === 0));
  clock.pass(3000);
  assert.ok(pass(rates, BOB.hostId, '/fresh').count >= 10);
});
