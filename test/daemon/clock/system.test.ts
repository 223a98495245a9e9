/** The real clock: never early, never overflowing, never keeping the process alive. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { systemClock, systemRandom } from '../../../daemon/clock/system.ts';

/** Resolves when the timer ran; the interval only keeps the test's process alive meanwhile. */
function elapsed(delayMs: number): Promise<number> {
  const start = systemClock.monotonic();
  const alive = setInterval(() => undefined, 1_000);
  return new Promise((resolve) => {
    systemClock.after(delayMs, () => {
      clearInterval(alive);
      resolve(systemClock.monotonic() - start);
    });
  });
}

test('a timer never runs before its delay has passed', async () => {
  const delays = Array.from({ length: 60 }, (_, i) => i * 0.7);
  const took = await Promise.all(delays.map(elapsed));
  took.forEach((ms, i) => assert.ok(ms >= delays[i]!, `${ms} < ${delays[i]}`));
});

test('a negative delay counts as none, and one that is not a number throws', async () => {
  assert.ok((await elapsed(-5)) >= 0);
  assert.throws(() => systemClock.after(Number.NaN, () => undefined), RangeError);
});

test('a delay longer than Node’s longest timer does not run at once', async () => {
  let ran = 0;
  const cancels = [2 ** 31, 2 ** 31 - 0.5, 2 ** 40, Infinity].map((delayMs) => systemClock.after(delayMs, () => ran++));
  await elapsed(30);
  assert.equal(ran, 0);
  for (const cancel of cancels) cancel();
});

test('a delay longer than Node’s longest timer runs when its last piece is over', (t) => {
  let now = 1_000;
  t.mock.method(performance, 'now', () => now);
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const piece = 2 ** 31 - 1;
  let ran = 0;
  systemClock.after(piece * 2 + 10, () => ran++);
  for (const step of [piece, piece, 9]) {
    now += step;
    t.mock.timers.tick(step);
    assert.equal(ran, 0);
  }
  now += 1;
  t.mock.timers.tick(1);
  assert.equal(ran, 1);
});

test('a cancelled timer does not run', async () => {
  let ran = false;
  systemClock.after(1, () => (ran = true))();
  await elapsed(20);
  assert.equal(ran, false);
});

test('a pending timer does not keep the process alive', () => {
  const file = JSON.stringify(join(import.meta.dirname, '../../../daemon/clock/system.ts'));
  const code = `import { systemClock } from ${file}; systemClock.after(3600_000, () => {}); process.stdout.write('end');`;
  const child = spawnSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8', timeout: 30_000 });
  assert.deepEqual([child.status, child.signal, child.stdout], [0, null, 'end']);
});

test('wall time is the system’s and running time does not go back', () => {
  assert.ok(Math.abs(systemClock.now() - Date.now()) < 1_000);
  let last = systemClock.monotonic();
  for (let i = 0; i < 1_000; i++) {
    const next = systemClock.monotonic();
    assert.ok(next >= last);
    last = next;
  }
});

test('random bytes are a plain array of the length asked for, and differ', () => {
  const a = systemRandom.bytes(32);
  assert.ok(a.length === 32 && Object.getPrototypeOf(a) === Uint8Array.prototype);
  assert.notDeepEqual(a, systemRandom.bytes(32));
  assert.equal(systemRandom.bytes(0).length, 0);
});
