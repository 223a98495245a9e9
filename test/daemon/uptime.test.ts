/**
 * Running time over the real store: all lives added up, never back, no matter what the wall clock does.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Uptime, UPTIME_FLUSH_MS } from '../../daemon/uptime.ts';
import { HandClock, openBed } from './bed.ts';

test('running time goes on where the last flush left it, and only running counts', async () => {
  const bed = await openBed();
  const first = new HandClock();
  const one = new Uptime(bed.store, first);
  assert.deepEqual([one.now(), one.thisLife()], [0, 0]);
  first.pass(90_000);
  assert.deepEqual([one.now(), one.thisLife()], [90_000, 90_000]);
  await bed.write((tx) => one.flush(tx));
  const second = new HandClock();
  second.wall += 999_999_999; // a week of downtime
  second.ran = 5_000_000; // another process counts from somewhere else
  const two = new Uptime(await bed.reopen(), second);
  assert.deepEqual([two.now(), two.thisLife()], [90_000, 0]);
  second.pass(10);
  assert.deepEqual([two.now(), two.thisLife()], [90_010, 10]);
});

test('a step of the wall clock changes nothing', async () => {
  const bed = await openBed();
  const clock = new HandClock();
  const uptime = new Uptime(bed.store, clock);
  clock.pass(1000);
  for (const step of [-1e12, 1e12]) {
    clock.wall += step;
    assert.equal(uptime.now(), 1000);
  }
});

test('running time never goes back behind a flush and loses less than a minute by a crash, over many lives', async () => {
  const bed = await openBed();
  let flushed = 0;
  let lived = 0;
  for (let life = 0; life < 12; life++) {
    const clock = new HandClock();
    clock.ran = life * 1234.567;
    const uptime = new Uptime(bed.store, clock);
    assert.equal(uptime.now(), flushed);
    let last = uptime.now();
    for (let minute = 0; minute < life % 4; minute++) {
      clock.pass(UPTIME_FLUSH_MS);
      await bed.write((tx) => uptime.flush(tx));
      assert.ok(uptime.now() >= last && Number.isSafeInteger(uptime.now()));
      last = flushed = uptime.now();
    }
    clock.pass(59_999.4);
    lived = uptime.now();
    assert.ok(lived - flushed <= UPTIME_FLUSH_MS);
  }
});
