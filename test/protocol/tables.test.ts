/**
 * The closed tables: states and their steps, refusals and their classes, versions.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import { AxError, ERROR_TABLE, errorBody, isErrorCode, toAxError } from '../../protocol/errors.ts';
import type { ErrorCode } from '../../protocol/errors.ts';
import { METHODS } from '../../protocol/control.ts';
import * as states from '../../protocol/states.ts';
import { AX_VERSION, commonProtocol, CONTROL_PROTOCOL, PEER_PROTOCOL } from '../../protocol/version.ts';

const ends = (from: string): boolean => (states.SENDER_ENDS as ReadonlySet<string>).has(from);

test('every state may be confirmed again', () => {
  for (const state of states.SENDER_STATES) assert.equal(states.senderMay(state, state), true);
  for (const state of states.RECEIVER_STATES) assert.equal(states.receiverMay(state, state), true);
});

test('a delivered or cancelled message takes no further step on either side', () => {
  for (const to of states.SENDER_STATES) {
    if (to !== 'fetched') assert.equal(states.senderMay('fetched', to), false);
    if (to !== 'cancelled') assert.equal(states.senderMay('cancelled', to), false);
  }
  for (const from of states.RECEIVER_ENDS) for (const to of states.RECEIVER_STATES) assert.equal(states.receiverMay(from, to), from === to);
});

test('an end of the sender is left only for what the receiver itself says, or when its owner has a refused or expired one tried again', () => {
  const told = new Set(['accepted', 'fetched', 'expired', 'cancelled']);
  for (const from of states.SENDER_STATES)
    for (const to of states.SENDER_STATES)
      if (ends(from) && from !== to && states.senderMay(from, to)) {
        const isRetry = to === 'queued' && (from === 'refused' || from === 'expired');
        assert.ok(told.has(to) || isRetry, `${from} to ${to}`);
      }
});

test('an accepted message never waits, is never refused and is never queued again', () => {
  for (const to of ['queued', 'forwarding', 'deferred', 'refused'] as const) assert.equal(states.senderMay('accepted', to), false);
});

test('every state can reach delivery unless it is an end', () => {
  const reach = <T extends string>(from: T, all: readonly T[], may: (a: T, b: T) => boolean): Set<T> => {
    const seen = new Set([from]);
    for (const one of seen) for (const next of all) if (may(one, next)) seen.add(next);
    return seen;
  };
  for (const state of states.SENDER_STATES)
    if (!ends(state)) assert.ok(reach(state, states.SENDER_STATES, states.senderMay).has('fetched'), state);
  for (const state of states.RECEIVER_STATES)
    if (!states.RECEIVER_ENDS.has(state)) assert.ok(reach(state, states.RECEIVER_STATES, states.receiverMay).has('fetched'), state);
});

test('a word about a notice never takes back a later one, and a queue may be paused and go on', () => {
  const ends = ['approved', 'denied', 'lapsed', 'blocked', 'left_queue', 'withheld'] as const;
  for (const end of ends)
    for (const other of states.NOTICE_OUTCOMES) assert.equal(states.noticeMay(end, other), false, `${end} to ${other}`);
  assert.ok(states.noticeMay('queue_paused', 'in_queue') && states.noticeMay('in_queue', 'queue_paused'));
  for (const from of ['held', 'in_queue', 'queue_paused', 'written'] as const)
    for (const to of ['unverified', 'written', 'failed', 'withheld'] as const)
      assert.equal(states.noticeMay(from, to), false, `${from} to ${to}`);
  for (const outcome of states.NOTICE_OUTCOMES) assert.equal(states.noticeMay('unverified', outcome), outcome !== 'withheld', outcome);
});

test('a pairing gives what lets messages cause notices, and nothing that runs', () => {
  assert.deepEqual([...states.DEFAULT_GRANTS].sort(), ['notify', 'read', 'write']);
  for (const words of [
    states.SENDER_STATES,
    states.RECEIVER_STATES,
    states.NOTICE_OUTCOMES,
    states.WITHHELD_REASONS,
    states.RECEIPT_OUTCOMES,
    states.EVENT_TYPES,
    states.GRANT_ACTIONS,
  ]) {
    assert.equal(new Set<string>(words).size, words.length);
    for (const word of words) assert.match(word, /^[a-z_]+(\.[a-z_]+)?$/);
  }
});

test('every refusal has a code of small letters, a class, an exit status and an HTTP status', () => {
  for (const [code, row] of Object.entries(ERROR_TABLE)) {
    assert.match(code, /^[a-z_]{1,64}$/);
    assert.ok(['deferred', 'rejected', 'local'].includes(row.class), code);
    assert.ok([1, 2, 3].includes(row.exit), code);
    assert.ok(row.http >= 400 && row.http < 600, code);
    if (row.class === 'deferred') assert.equal(row.retryable, true, code);
    if (row.class === 'rejected') assert.equal(row.retryable, false, code);
    if (row.exit !== 1) assert.equal(row.class, 'local', code);
  }
  assert.equal(ERROR_TABLE.usage.exit, 2);
  assert.equal(ERROR_TABLE.daemon_unavailable.exit, 3);
  assert.equal(ERROR_TABLE.sandboxed.exit, 3);
});

test('an error body holds what the table says and only what was given', () => {
  for (const code of Object.keys(ERROR_TABLE) as ErrorCode[]) {
    const body = errorBody(new AxError(code, 'why'));
    assert.deepEqual(body, { code, message: 'why', retryable: ERROR_TABLE[code].retryable });
  }
  const full = errorBody(new AxError('limit', 'why', { fix: 'wait', details: { limit: 3 }, cause: new Error('secret path') }));
  assert.deepEqual(full, { code: 'limit', message: 'why', retryable: true, fix: 'wait', details: { limit: 3 } });
});

test('only codes of the table are codes, names of object members are not', () => {
  fc.assert(
    fc.property(fc.anything(), (value) =>
      assert.equal(isErrorCode(value), typeof value === 'string' && Object.keys(ERROR_TABLE).includes(value)),
    ),
  );
  for (const name of ['toString', '__proto__', 'constructor', 'hasOwnProperty']) assert.equal(isErrorCode(name), false);
});

test('whatever was thrown becomes an AxError, an AxError stays itself', () => {
  const own = new AxError('busy', 'later');
  assert.equal(toAxError(own), own);
  for (const thrown of [new Error('x'), 'x', undefined, null, 7, {}]) assert.equal(toAxError(thrown).code, 'internal');
});

test('the version is the one in package.json', () => {
  const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string };
  assert.equal(AX_VERSION, manifest.version);
  assert.match(AX_VERSION, /^\d+\.\d+\.\d+$/);
});

test('the common protocol is the highest both speak, or none', () => {
  assert.equal(commonProtocol({ min: 1, max: 3 }, { min: 2, max: 5 }), 3);
  assert.equal(commonProtocol({ min: 1, max: 1 }, { min: 2, max: 2 }), undefined);
  const range = fc.tuple(fc.nat(9), fc.nat(9)).map(([a, b]) => ({ min: Math.min(a, b), max: Math.max(a, b) }));
  fc.assert(
    fc.property(range, range, (a, b) => {
      const both = Array.from({ length: 10 }, (_, n) => n).filter((n) => n >= a.min && n <= a.max && n >= b.min && n <= b.max);
      assert.equal(commonProtocol(a, b), both.at(-1));
      assert.equal(commonProtocol(b, a), both.at(-1));
    }),
  );
  assert.equal(commonProtocol(PEER_PROTOCOL, PEER_PROTOCOL), PEER_PROTOCOL.max);
});

test('the two frozen methods are there in this control protocol', () => {
  assert.ok(CONTROL_PROTOCOL >= 1);
  for (const method of ['daemon.hello', 'daemon.stop'] as const) assert.ok(METHODS.includes(method));
  assert.equal(new Set<string>(METHODS).size, METHODS.length);
});
