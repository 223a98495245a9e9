/**
 * The rules every Store keeps, as one suite: bound to LMDB and to the simulated store, so that the two cannot drift apart.
 *
 * Owns what callers may rely on. It says nothing of what a `get` outside of a write shows before that write has resolved,
 * because there the two differ on purpose (the simulated one shows it early).
 */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { MAX_KEY_BYTES, type RangeOptions, type Store, type StoreReader, type StoreTransaction } from '../../daemon/store/store.ts';
import { commitRules } from './store-commits.ts';

export interface StoreSetup {
  readonly store: Store;
  /** Waits for a promise of the store; in a simulation this is what makes time pass. */
  wait<T>(promise: Promise<T>): Promise<T>;
  /** The same files opened again, after `store` was closed. */
  reopen(): Promise<Store>;
  /** Closes and removes everything. */
  end(): Promise<void>;
}

const bytes = (...values: number[]): Uint8Array => Uint8Array.from(values);
const keysOf = (store: StoreReader, options?: RangeOptions): string[] => store.range('inbox', options).map((entry) => entry.key);

/** Registers the suite; `open` gives a fresh, empty store for each test. */
export function storeContract(name: string, open: () => Promise<StoreSetup>): void {
  describe(`store contract: ${name}`, () => {
    let at: StoreSetup;
    let store: Store;
    const write = <T>(decide: (tx: StoreTransaction) => T): Promise<T> => at.wait(store.write(decide));
    const context: Context = {
      store: () => store,
      write,
      wait: (promise) => at.wait(promise),
      reopen: async () => {
        await at.wait(store.close());
        store = await at.reopen();
      },
    };
    beforeEach(async () => {
      at = await open();
      store = at.store;
    });
    afterEach(() => at.end());

    readingRules(context);
    writingRules(context);
    limitRules(context);
    orderRules(context);
    commitRules(context);
  });
}

/** What the rules are checked with. */
export interface Context {
  readonly store: () => Store;
  readonly write: <T>(decide: (tx: StoreTransaction) => T) => Promise<T>;
  readonly wait: <T>(promise: Promise<T>) => Promise<T>;
  readonly reopen: () => Promise<void>;
}

function readingRules({ store, write }: Context): void {
  test('a range includes its start, excludes its end, and keeps both when it runs backwards', async () => {
    await write((tx) => ['a', 'b', 'c', 'd', 'e'].forEach((key, i) => tx.put('inbox', key, bytes(i))));
    assert.deepEqual(keysOf(store()), ['a', 'b', 'c', 'd', 'e']);
    assert.deepEqual(keysOf(store(), { start: 'b', end: 'd' }), ['b', 'c']);
    assert.deepEqual(keysOf(store(), { start: 'b', end: 'd', reverse: true }), ['c', 'b']);
    assert.deepEqual(keysOf(store(), { start: 'bb', end: 'dd', reverse: true }), ['d', 'c']);
    assert.deepEqual(keysOf(store(), { reverse: true, limit: 2 }), ['e', 'd']);
    assert.deepEqual(keysOf(store(), { end: 'c', reverse: true }), ['b', 'a']);
    assert.deepEqual(keysOf(store(), { start: 'c' }), ['c', 'd', 'e']);
    assert.deepEqual(keysOf(store(), { start: 'd', end: 'b' }), []);
    assert.deepEqual(keysOf(store(), { start: 'b', end: 'b' }), []);
    assert.deepEqual(keysOf(store(), { end: '' }), []);
    assert.deepEqual(keysOf(store(), { limit: 0 }), []);
    assert.deepEqual(store().range('inbox', { start: 'b', limit: 1 }), [{ key: 'b', value: bytes(1) }]);
  });

  test('a count counts what a range lists, up to the limit', async () => {
    await write((tx) => ['a', 'b', 'c', 'd'].forEach((key) => tx.put('inbox', key, bytes())));
    assert.equal(store().count('inbox'), 4);
    assert.equal(store().count('inbox', { start: 'b', end: 'd' }), 2);
    assert.equal(store().count('inbox', { start: 'b', reverse: true }), 3);
    assert.equal(store().count('inbox', { limit: 3 }), 3);
    assert.equal(store().count('outbox'), 0);
    assert.equal(store().status().entries, 4);
  });

  test('keys are ordered by their UTF-8 bytes, forwards and backwards, whatever they hold', async () => {
    const text = fc.string({ unit: 'binary', minLength: 1, maxLength: 8 });
    const bound = fc.option(text, { nil: undefined });
    const input = fc.record({
      keys: fc.uniqueArray(text, { maxLength: 12 }),
      start: bound,
      end: bound,
      reverse: fc.boolean(),
      limit: fc.nat(6),
    });
    await fc.assert(
      fc.asyncProperty(input, async ({ keys, start, end, reverse, limit }) => {
        await write((tx) => {
          for (const { key } of tx.range('inbox')) tx.remove('inbox', key);
          for (const key of keys) tx.put('inbox', key, new TextEncoder().encode(key));
        });
        const order = (a: string, b: string): number => Buffer.compare(Buffer.from(a), Buffer.from(b));
        const within = keys
          .filter((key) => (start === undefined || order(key, start) >= 0) && (end === undefined || order(key, end) < 0))
          .sort(order);
        const expected = (reverse ? within.reverse() : within).slice(0, limit);
        const options = { ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }), reverse, limit };
        assert.deepEqual(
          store().range('inbox', options),
          expected.map((key) => ({ key, value: new TextEncoder().encode(key) })),
        );
        assert.equal(store().count('inbox', options), expected.length);
      }),
      { numRuns: 60 },
    );
  });

  test('bytes given out are plain copies that no later write changes', async () => {
    for (const size of [3, 5_000, 40_000, 300_000]) {
      const value = new Uint8Array(size).fill(1);
      await write((tx) => tx.put('inbox', 'k', value));
      const got = store().get('inbox', 'k');
      const listed = store().range('inbox')[0]?.value;
      for (let i = 0; i < 5; i++) await write((tx) => tx.put('inbox', 'k', new Uint8Array(size).fill(2)));
      await write((tx) => tx.remove('inbox', 'k'));
      store().get('inbox', 'other');
      for (const copy of [got, listed]) {
        assert.ok(copy !== undefined && Object.getPrototypeOf(copy) === Uint8Array.prototype && copy.buffer instanceof ArrayBuffer);
        assert.ok(copy.length === size && copy.buffer.byteLength === size && copy.every((byte) => byte === 1), `size ${size}`);
        copy.fill(7);
      }
    }
  });
}

function writingRules({ store, write, wait, reopen }: Context): void {
  test('a write resolves with what its callback returned, and is visible then', async () => {
    const result = await write((tx) => {
      tx.put('inbox', 'a', bytes(1));
      return { done: true };
    });
    assert.deepEqual(result, { done: true });
    assert.deepEqual(store().get('inbox', 'a'), bytes(1));
    assert.equal(store().get('inbox', 'b'), undefined);
    assert.equal(store().get('outbox', 'a'), undefined);
  });

  test('a write does not run before the caller’s turn is over', async () => {
    let ran = false;
    const written = store().write(() => void (ran = true));
    assert.equal(ran, false);
    await wait(written);
    assert.equal(ran, true);
  });

  test('a callback that throws leaves nothing of itself in any table, and its neighbours in the same commit stay', async () => {
    await write((tx) => {
      tx.put('inbox', 'kept', bytes(1));
      tx.put('events', 'kept', bytes(2));
    });
    const before = store().write((tx) => tx.put('seen', 'before', bytes(1)));
    const thrown = store().write((tx) => {
      tx.put('inbox', 'kept', bytes(9));
      tx.put('outbox', 'new', bytes(9));
      tx.remove('events', 'kept');
      tx.put('seen', 'before', bytes(9));
      tx.put('inbox_body', 'big', new Uint8Array(200_000));
      throw new Error('no');
    });
    const after = store().write((tx) => [
      tx.get('inbox', 'kept'),
      tx.get('outbox', 'new'),
      tx.get('events', 'kept'),
      tx.count('inbox_body'),
    ]);
    await wait(Promise.allSettled([before, thrown, after]));
    await assert.rejects(thrown, { message: 'no' });
    assert.deepEqual(await after, [bytes(1), undefined, bytes(2), 0]);
    await reopen();
    assert.deepEqual(store().get('inbox', 'kept'), bytes(1));
    assert.deepEqual(store().get('events', 'kept'), bytes(2));
    assert.deepEqual(store().get('seen', 'before'), bytes(1));
    assert.equal(store().status().entries, 3);
  });

  test('a callback that returns a promise is refused and rolled back', async () => {
    await assert.rejects(
      write(async (tx) => tx.put('inbox', 'a', bytes(1))),
      TypeError,
    );
    assert.equal(store().get('inbox', 'a'), undefined);
  });

  test('inside a write, reads see its own puts and removes', async () => {
    await write((tx) => tx.put('inbox', 'a', bytes(1)));
    await write((tx) => {
      tx.put('inbox', 'b', bytes(2));
      assert.deepEqual(tx.get('inbox', 'b'), bytes(2));
      tx.remove('inbox', 'a');
      assert.equal(tx.get('inbox', 'a'), undefined);
      tx.remove('inbox', 'never there');
      tx.put('inbox', 'b', bytes(3));
      assert.deepEqual(tx.range('inbox'), [{ key: 'b', value: bytes(3) }]);
      assert.equal(tx.count('inbox'), 1);
      assert.deepEqual(keysOf(tx, { reverse: true }), ['b']);
    });
    assert.deepEqual(keysOf(store()), ['b']);
  });

  test('a transaction kept beyond its callback refuses every use', async () => {
    let kept: StoreTransaction | undefined;
    await write((tx) => void (kept = tx));
    assert.throws(() => kept?.put('inbox', 'late', bytes(1)), /has ended/);
    assert.throws(() => kept?.get('inbox', 'late'), /has ended/);
    assert.equal(store().get('inbox', 'late'), undefined);
  });

  test('everything resolved is there after close and reopen, and a closed store refuses', async () => {
    await write((tx) => tx.put('inbox', 'a', bytes(1)));
    const first = store();
    const earlier = first.write((tx) => tx.put('inbox', 'b', bytes(2)));
    const closed = first.close();
    await wait(Promise.all([earlier, closed]));
    await assert.rejects(
      first.write(() => 1),
      { code: 'shutting_down' },
    );
    assert.throws(() => first.get('inbox', 'a'), { code: 'shutting_down' });
    await first.close();
    await reopen();
    assert.deepEqual(keysOf(store()), ['a', 'b']);
  });
}

function limitRules({ store, write, reopen }: Context): void {
  test('keys of 1 and of MAX_KEY_BYTES bytes are kept; empty, longer and ill-formed ones throw RangeError', async () => {
    const longest = ['k'.repeat(MAX_KEY_BYTES), 'ü'.repeat(MAX_KEY_BYTES / 2)];
    await write((tx) => ['x', ...longest].forEach((key, i) => tx.put('inbox', key, bytes(i))));
    assert.deepEqual(keysOf(store()), [longest[0], 'x', longest[1]]);
    assert.deepEqual(keysOf(store(), { start: `${longest[0]}!`, end: `${longest[1]}${'z'.repeat(5_000)}` }), ['x', longest[1]]);
    for (const key of ['', 'k'.repeat(MAX_KEY_BYTES + 1), 'ü'.repeat(MAX_KEY_BYTES / 2) + 'k', 'a\ud800']) {
      await assert.rejects(
        write((tx) => tx.put('inbox', key, bytes(1))),
        RangeError,
      );
      assert.throws(() => store().get('inbox', key), RangeError);
    }
    assert.equal(store().count('inbox'), 3);
  });

  test('empty values and values of several MiB come back as they were', async () => {
    const large = new Uint8Array(3 * 1024 * 1024 + 1).map((_, i) => (i * 31) % 251);
    await write((tx) => {
      tx.put('inbox', 'empty', bytes());
      tx.put('inbox', 'large', large);
      assert.deepEqual(tx.get('inbox', 'empty'), bytes());
      assert.equal(Buffer.compare(tx.get('inbox', 'large') ?? bytes(), large), 0);
    });
    await reopen();
    assert.deepEqual(store().get('inbox', 'empty'), bytes());
    assert.equal(Buffer.compare(store().get('inbox', 'large') ?? bytes(), large), 0);
    assert.deepEqual(
      store()
        .range('inbox')
        .map((entry) => entry.value.length),
      [0, large.length],
    );
  });

  test('one write may hold thousands of records, and is all there or not at all', async () => {
    const key = (i: number): string => String(i).padStart(6, '0');
    await write((tx) => {
      for (let i = 0; i < 5_000; i++) tx.put('events', key(i), new Uint8Array(64).fill(i % 256));
    });
    await assert.rejects(
      write((tx) => {
        for (let i = 0; i < 5_000; i++) tx.remove('events', key(i));
        throw new Error('no');
      }),
      { message: 'no' },
    );
    assert.equal(store().count('events'), 5_000);
    assert.deepEqual(store().get('events', key(4_321)), new Uint8Array(64).fill(4_321 % 256));
    await write((tx) => {
      for (let i = 0; i < 4_999; i++) tx.remove('events', key(i));
    });
    assert.deepEqual(
      store()
        .range('events')
        .map((entry) => entry.key),
      [key(4_999)],
    );
  });
}

function orderRules({ store, write, wait }: Context): void {
  test('writes run and resolve in the order of the calls, each seeing the ones before', async () => {
    const ended: number[] = [];
    const counter = (tx: StoreTransaction): number => tx.get('meta', 'n')?.[0] ?? 0;
    const all = Array.from({ length: 100 }, (_, i) =>
      store()
        .write((tx) => {
          const n = counter(tx);
          tx.put('meta', 'n', bytes(n + 1));
          return n;
        })
        .then((n) => {
          ended.push(i);
          return n;
        }),
    );
    assert.deepEqual(
      await wait(Promise.all(all)),
      Array.from({ length: 100 }, (_, i) => i),
    );
    assert.deepEqual(
      ended,
      Array.from({ length: 100 }, (_, i) => i),
    );
  });

  test('a write that only read what an unflushed one put settles after it, whether it returns or throws', async () => {
    const ended: string[] = [];
    const note = (name: string) => () => void ended.push(name);
    let inner: Promise<unknown> | undefined;
    const put = store().write((tx) => {
      tx.put('inbox', 'a', bytes(1));
      // Asked for while the first is being decided, so that it cannot be part of the same call order by luck.
      inner = store()
        .write((later) => later.get('inbox', 'a'))
        .then((found) => ended.push(`inner ${found?.[0]}`));
    });
    const first = put.then(note('put'));
    const read = store()
      .write((tx) => assert.deepEqual(tx.get('inbox', 'a'), bytes(1)))
      .then(note('read'));
    const refused = store()
      .write((tx) => {
        throw new Error(`found ${tx.get('inbox', 'a')?.[0]}`);
      })
      .catch((error: Error) => ended.push(error.message));
    await wait(Promise.all([first, read, refused]));
    await wait(inner ?? Promise.reject(new Error('the write did not run')));
    assert.deepEqual(ended, ['put', 'read', 'found 1', 'inner 1']);
  });

  test('a write asked for inside another’s callback runs after it, and stays when the outer one throws', async () => {
    let inner: Promise<unknown> | undefined;
    const outer = write((tx) => {
      inner = store().write((later) => later.put('inbox', 'inner', bytes(tx === later ? 0 : 1)));
      tx.put('inbox', 'outer', bytes(1));
      throw new Error('no');
    });
    await assert.rejects(outer, { message: 'no' });
    await wait(inner ?? Promise.reject(new Error('the write did not run')));
    assert.deepEqual(store().range('inbox'), [{ key: 'inner', value: bytes(1) }]);
  });
}
