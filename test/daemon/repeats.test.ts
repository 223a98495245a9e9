/** Requests that come again: a large body is known by its sealed pieces, a small one by its digest, and one is stored at a time. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Repeats } from '../../daemon/repeats.ts';
import type { Clock } from '../../daemon/clock/clock.ts';
import { Body } from '../../daemon/uploads.ts';
import { sealMessage } from '../../protocol/envelope.ts';
import { encodeSigned, sha256 } from '../../protocol/hashtree.ts';
import { CUT_BYTES, MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import { keyedDigest } from '../../protocol/seal.ts';
import { ALICE, aliceKeys, draft, sealRandom } from '../protocol/sample.ts';

const clock: Clock = { now: () => 0, monotonic: () => 0, after: (_, run) => (queueMicrotask(run), () => undefined) };
const repeats = new Repeats(clock, ALICE.hostId, aliceKeys);
const LARGE = MAX_PIECE_BYTES + 10_001;

/** As a command hands it over: in parts that are not those it is sealed in. */
function bodyOf(bytes: number, changed?: number): Body {
  const whole = new Uint8Array(bytes).map((_, at) => at % 251);
  if (changed !== undefined) whole[changed]! ^= 1;
  return new Body([whole.subarray(0, MAX_PIECE_BYTES), whole.subarray(MAX_PIECE_BYTES)].filter((part) => part.length > 0));
}

function stored(bytes: number, fingerprint: string) {
  const body = bodyOf(bytes).slice(0, bytes);
  const { signed } = sealMessage(ALICE, aliceKeys, { ...draft, body }, sealRandom, bytes > MAX_PIECE_BYTES ? CUT_BYTES : MAX_PIECE_BYTES);
  return { bytes, signed: encodeSigned(signed), request: { key: 'k', fingerprint } };
}

test('a request is the same when its facts and every byte of its body are, whatever its size', async () => {
  for (const bytes of [1, MAX_PIECE_BYTES, LARGE]) {
    const row = stored(bytes, repeats.of('k', 'facts', bodyOf(bytes)).fingerprint);
    assert.equal(await repeats.isSame(row, repeats.of('k', 'facts', bodyOf(bytes))), true);
    assert.equal(await repeats.isSame(row, repeats.of('k', 'other facts', bodyOf(bytes))), false);
    for (const at of [0, bytes - 1]) assert.equal(await repeats.isSame(row, repeats.of('k', 'facts', bodyOf(bytes, at))), false);
  }
});

test('a body of another length is another one, also where it reads like what is kept of a large one', async () => {
  const row = stored(LARGE, repeats.of('k', 'facts', bodyOf(LARGE)).fingerprint);
  for (const bytes of [LARGE - 1, LARGE + 1, 1]) assert.equal(await repeats.isSame(row, repeats.of('k', 'facts', bodyOf(bytes))), false);
  const alike = repeats.of('k', 'facts', new Body([Buffer.from(`${LARGE} bytes`)]));
  assert.equal(alike.fingerprint, row.request.fingerprint);
  assert.equal(await repeats.isSame(row, alike), false);
});

test('a large request that an earlier build stored is known by the digest of all of its body', async () => {
  const digest = sha256(bodyOf(LARGE).slice(0, LARGE));
  const row = stored(LARGE, keyedDigest(aliceKeys.own('request fingerprint'), Buffer.from('facts'), digest));
  assert.equal(await repeats.isSame(row, repeats.of('k', 'facts', bodyOf(LARGE))), true);
  assert.equal(await repeats.isSame(row, repeats.of('k', 'facts', bodyOf(LARGE, 5))), false);
});

test('large requests of one id are stored one after the other, also when the first fails; others do not wait', async () => {
  const large = repeats.of('k', 'facts', bodyOf(LARGE));
  const gates = Array.from({ length: 3 }, () => Promise.withResolvers<number>());
  const begun: number[] = [];
  const store = (which: number) => () => (begun.push(which), gates[which]!.promise);
  const [first, second] = [repeats.inTurn(large, store(0)), repeats.inTurn(large, store(1))];
  const small = repeats.inTurn(repeats.of('k', 'facts', bodyOf(1)), store(2));
  const other = repeats.inTurn(repeats.of('l', 'facts', bodyOf(LARGE)), async () => 9);
  assert.equal(await other, 9);
  assert.deepEqual(begun, [0, 2]);
  gates[0]!.reject(new Error('no'));
  await assert.rejects(first, /no/);
  gates[1]!.resolve(1);
  gates[2]!.resolve(2);
  assert.deepEqual([await second, await small, begun], [1, 2, [0, 2, 1]]);
});

test('of large requests that come again while the first is being stored only some wait, each with its body; the others are refused', async () => {
  const gate = Promise.withResolvers<number>();
  const turn = (): Promise<number> => repeats.inTurn(repeats.of('k', 'facts', bodyOf(LARGE)), () => gate.promise);
  const taken = Array.from({ length: 5 }, turn);
  await assert.rejects(turn(), { code: 'limit' });
  assert.equal(await repeats.inTurn(repeats.of('l', 'facts', bodyOf(LARGE)), async () => 9), 9);
  gate.resolve(1);
  assert.deepEqual(await Promise.all(taken), [1, 1, 1, 1, 1]);
  assert.equal(await turn(), 1);
});
