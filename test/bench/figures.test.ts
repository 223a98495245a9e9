/** The arithmetic of the benchmark, and the clock of its closed loop: what every figure in docs/benchmarks.md rests on. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { closedLoop } from './closed-loop.ts';
import { leastShare, median, percentile, spread } from './figures.ts';
import { judge, ratio, runRow, type Row } from './row.ts';
import { chosen, ROWS } from './rows.ts';
import { shown } from './report.ts';
import { Systems } from './systems.ts';

test('a percentile is one of the values, by nearest rank, in whatever order they come', () => {
  const values = [5, 1, 4, 2, 3];
  assert.deepEqual(
    [0, 0.2, 0.21, 0.5, 0.99, 1].map((share) => percentile(values, share)),
    [1, 1, 2, 3, 5, 5],
  );
  assert.deepEqual(values, [5, 1, 4, 2, 3]);
});

test('a median of an even number is the mean of the two in the middle', () => {
  assert.equal(median([4, 1, 3, 2]), 2.5);
  assert.equal(median([10, 9, 1]), 9);
  assert.deepEqual(spread([3, 1, 2, 9]), { median: 2.5, min: 1, max: 9 });
});

test('no sample is a broken run, not a zero', () => {
  for (const empty of [() => median([]), () => percentile([], 0.5), () => leastShare([]), () => leastShare([0, 0])])
    assert.throws(empty, /no samples/);
});

test('the least share is 1 when all are equal, and 0 when one got nothing', () => {
  assert.equal(leastShare([7, 7, 7]), 1);
  assert.equal(leastShare([0, 10]), 0);
  assert.equal(leastShare([5, 15]), 0.5);
});

test('a ratio is taken within each repeat and judged by its median; a contestant that is missing passes nothing', () => {
  const of = (repeat: Parameters<typeof ratio>[0]): number | undefined => ratio(repeat, ['ax', 'n'], ['other', 'n']);
  const repeats = [
    { ax: { n: 2 }, other: { n: 4 } },
    { ax: { n: 30 }, other: { n: 10 } },
    { ax: { n: 6 }, other: { n: 10 } },
  ];
  assert.deepEqual(judge({ what: 'x', of, atLeast: 0.6, aim: 1 }, repeats), {
    what: 'x',
    bound: '>= 0.6 (aim 1)',
    reached: { median: 0.6, min: 0.5, max: 3 },
    verdict: 'PASS',
  });
  assert.equal(judge({ what: 'x', of, atLeast: 0.7 }, repeats).verdict, 'MISSED');
  assert.equal(judge({ what: 'x', of, atMost: 0.5 }, repeats).verdict, 'MISSED');
  assert.equal(judge({ what: 'x', of, atMost: 1 }, [{ ax: { n: 1 } }]).verdict, 'NOT MEASURED');
});

test('contestants take turns, each repeat another one first, and a row is ended also when one of them fails', async () => {
  const turns: string[] = [];
  const measured = (name: string) => ({
    name,
    measure: async () => {
      turns.push(name);
      return { n: turns.length };
    },
  });
  const systems = new Systems({ warmMs: 0, measureMs: 1, isQuick: true }, false);
  const end = async (): Promise<void> => void turns.push('end');
  const row: Row = { name: 'r', title: 'r', targets: [], setUp: async () => ({ contestants: [measured('a'), measured('b')], end }) };
  const result = await runRow(row, systems, 3);
  assert.deepEqual(turns.splice(0), ['a', 'b', 'b', 'a', 'a', 'b', 'end']);
  assert.deepEqual(result.figures, { a: { n: { median: 4, min: 1, max: 5 } }, b: { n: { median: 3, min: 2, max: 6 } } });
  const failing = { name: 'f', measure: () => Promise.reject(new Error('broken')) };
  await assert.rejects(runRow({ ...row, setUp: async () => ({ contestants: [failing], end }) }, systems, 1), /broken/);
  assert.deepEqual(turns, ['end']);
});

test('a closed loop keeps so many sends under way, counts none of its warm-up, and leaves none behind', async () => {
  let underWay = 0;
  let most = 0;
  let begun = 0;
  const edges: number[] = [];
  const result = await closedLoop({
    inFlight: 3,
    warmMs: 20,
    measureMs: 20,
    send: async () => {
      begun++;
      most = Math.max(most, (underWay += 1));
      await new Promise((resolve) => setTimeout(resolve, 2));
      underWay--;
    },
    onWindow: () => void edges.push(begun),
  });
  assert.deepEqual([most, underWay], [3, 0]);
  assert.ok(
    edges[0]! > 0 && result.latencies.length <= edges[1]! - edges[0]! + 3,
    `${result.latencies.length} counted, ${edges.join(' to ')} begun`,
  );
  assert.equal(
    result.perSender.reduce((sum, count) => sum + count),
    result.latencies.length,
  );
  await assert.rejects(closedLoop({ inFlight: 2, warmMs: 1, measureMs: 1, send: () => Promise.reject(new Error('lost')) }), /lost/);
});

test('a window shorter than one send lasts until that has ended', async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  const { latencies, perSecond } = await closedLoop({
    inFlight: 1,
    warmMs: 0,
    measureMs: 1,
    send: () => promise, // under way when the window begins, and for 30 ms of it
    onWindow: (edge) => {
      if (edge === 'begins') setTimeout(resolve, 30);
    },
  });
  assert.equal(latencies.length, 1);
  assert.ok(perSecond > 0 && perSecond < 40, `${perSecond} a second in a window of 30 ms`);
});

test('a name that is no row is refused with those that are; none chosen is all', () => {
  assert.throws(() => chosen('idle,nothing'), /no row "nothing"; rows: .*idle/);
  assert.deepEqual(
    chosen('idle,inflight-1').map((row) => row.name),
    ['inflight-1', 'idle'],
  );
  assert.equal(chosen('').length, ROWS.length);
});

test('figures are shown with three digits and without a power of ten', () => {
  assert.deepEqual([0.03512, 1.4, 12.345, 123.4, 45_678.9].map(shown), ['0.0351', '1.4', '12.3', '123', '45,679']);
});
