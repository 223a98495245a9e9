/**
 * The rules of the writes that share a commit: what each of them sees of the others, whatever they do.
 *
 * Part of the contract suite of store.ts, which owns how it is bound to a store.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { count } from '../../daemon/store/counts.ts';
import { lastSeq, nextSeq, unpack } from '../../daemon/store/rows.ts';
import type { StoreTransaction } from '../../daemon/store/store.ts';
import type { Context } from './store.ts';

const bytes = (...values: number[]): Uint8Array => Uint8Array.from(values);

type Step = {
  readonly what: 'put' | 'remove' | 'get' | 'range' | 'throw';
  readonly key: string;
  readonly reverse: boolean;
  readonly limit: number;
};

/** Takes one step in a write and in a plain map; what is read has to be the same in both. */
function take(tx: StoreTransaction, known: Map<string, number>, { what, key, reverse, limit }: Step, n: number): void {
  if (what === 'put') {
    tx.put('inbox', key, bytes(n));
    known.set(key, n);
  }
  if (what === 'remove') {
    tx.remove('inbox', key);
    known.delete(key);
  }
  if (what === 'get') assert.equal(tx.get('inbox', key)?.[0], known.get(key));
  if (what === 'throw') throw new Error('no');
  const within = [...known].filter(([k]) => k >= key).sort(([a], [b]) => (a < b ? -1 : 1));
  const expected = (reverse ? within.reverse() : within).slice(0, limit).map(([k, value]) => ({ key: k, value: bytes(value) }));
  if (what === 'range') assert.deepEqual(tx.range('inbox', { start: key, reverse, limit }), expected);
  if (what === 'range') assert.equal(tx.count('inbox', { start: key, limit }), expected.length);
}

export function commitRules({ store, write, wait, reopen }: Context): void {
  test('whatever the writes of one commit do, each sees what it wrote and what those before it left, and that is what stays', async () => {
    const key = fc.string({ unit: fc.constantFrom('a', 'b', 'ü'), minLength: 1, maxLength: 2 });
    const what = fc.constantFrom<Step['what'][]>('put', 'put', 'put', 'remove', 'get', 'range', 'range', 'throw');
    const steps = fc.array(fc.record<Step>({ what, key, reverse: fc.boolean(), limit: fc.integer({ min: 1, max: 6 }) }), { maxLength: 8 });
    let known = new Map<string, number>();
    let n = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(steps, { minLength: 1, maxLength: 8 }), async (jobs) => {
        const ends = jobs.map((job) =>
          store().write((tx) => {
            const own = new Map(known);
            for (const step of job) take(tx, own, step, (n = (n + 1) % 256));
            known = own;
          }),
        );
        const told = await wait(Promise.allSettled(ends));
        for (const [i, end] of told.entries())
          if (end.status === 'rejected') assert.equal((end.reason as Error).message, 'no', JSON.stringify(jobs[i]));
        const left = [...known].sort(([a], [b]) => (a < b ? -1 : 1)).map(([k, value]) => ({ key: k, value: bytes(value) }));
        assert.deepEqual(store().range('inbox'), left);
        for (const { key: k, value } of left) assert.deepEqual(store().get('inbox', k), value);
      }),
      { numRuns: 60 },
    );
  });

  test('a counter goes on from what the writes before it left, is read as any row, and is not moved by a write that throws', async () => {
    const add = (isBad: boolean): Promise<number> =>
      store().write((tx) => {
        const next = nextSeq(tx, 'x');
        count(tx, 'inbox', 'p/', 1);
        if (isBad) throw new Error('no');
        assert.equal(tx.count('meta', { start: 'seq/x', end: 'seq/x\0' }), 1);
        return next;
      });
    const all = [false, true, false, false, true].map(add);
    await wait(Promise.allSettled(all));
    await Promise.all([all[1], all[4]].map((bad) => assert.rejects(bad!, { message: 'no' })));
    assert.deepEqual(await Promise.all([all[0], all[2], all[3]]), [1, 2, 3]);
    assert.equal(lastSeq(store(), 'x'), 3);
    assert.deepEqual(unpack(store().get('meta', 'seq/x')!), { last: 3 });
    assert.deepEqual(
      store()
        .range('meta')
        .map((entry) => [entry.key, unpack(entry.value)]),
      [
        ['count/inbox/p/', { n: 3 }],
        ['seq/x', { last: 3 }],
      ],
    );
    await reopen();
    assert.equal(await write((tx) => nextSeq(tx, 'x')), 4);
  });
}
