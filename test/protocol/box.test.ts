/**
 * The request line of the channel for sandboxed sessions: exactly one form, and nothing that is nearly it.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { boxLine, isBoxWord, parseBoxLine } from '../../protocol/box.ts';
import type { BoxRequest } from '../../protocol/box.ts';
import { makeMessageId, makeUuid } from '../../protocol/ids.ts';
import { MAX_BOX_LINE_BYTES } from '../../protocol/limits.ts';

const bytes = (length: number): fc.Arbitrary<Uint8Array> => fc.uint8Array({ minLength: length, maxLength: length });
const hex = (length: number): fc.Arbitrary<string> => bytes(length).map((value) => Buffer.from(value).toString('hex'));
const request: fc.Arbitrary<BoxRequest> = fc.record({
  nonce: hex(16),
  thread: bytes(16).map(makeUuid),
  id: bytes(10).map((random) => makeMessageId(1_790_000_000_000, random)),
  code: hex(16),
  handOut: fc.option(hex(12), { nil: undefined }),
});

test('a request is read back from its line, which begins and ends with a newline and is far below PIPE_BUF', () => {
  fc.assert(
    fc.property(request, (asked) => {
      const line = boxLine(asked);
      assert.deepEqual([line[0], line.at(-1)], [10, 10]);
      assert.ok(line.length <= MAX_BOX_LINE_BYTES && MAX_BOX_LINE_BYTES < 4096);
      assert.deepEqual(parseBoxLine(line.subarray(1, -1)), { ...asked });
    }),
  );
});

test('a line with any byte changed, added or missing is no request, or another whole one', () => {
  fc.assert(
    fc.property(request, fc.nat(), fc.nat(255), fc.constantFrom('change', 'add', 'remove'), (asked, at, byte, how) => {
      const line = Buffer.from(boxLine(asked).subarray(1, -1));
      const place = at % line.length;
      const broken = Buffer.concat(
        [line.subarray(0, place), how === 'remove' ? '' : [byte], line.subarray(how === 'add' ? place : place + 1)].map((part) =>
          Buffer.from(part),
        ),
      );
      const read = parseBoxLine(broken);
      if (read !== undefined) assert.deepEqual(Buffer.from(boxLine(read).subarray(1, -1)), broken);
      if (how !== 'change') assert.equal(read, undefined);
    }),
  );
});

test('only fetch and confirm are words of a request, each with what belongs to it', () => {
  const line = (words: string): unknown => parseBoxLine(Buffer.from(words));
  const rest = `${'0'.repeat(32)} 0b6c1a52-6f0e-4d0c-9f6e-1f2d3c4b5a69 01kb7t3v9m2q5r8w4x6y0z1a2c ${'a'.repeat(32)}`;
  const token = 'b'.repeat(24);
  assert.notEqual(line(`1 fetch ${rest}`), undefined);
  assert.notEqual(line(`1 confirm ${rest} ${token}`), undefined);
  for (const wrong of [
    `1 fetch ${rest} ${token}`,
    `1 confirm ${rest}`,
    `1 send ${rest}`,
    `1 list ${rest}`,
    `2 fetch ${rest}`,
    `0 watch 1`,
    ` 1 fetch ${rest}`,
    `1 fetch ${rest} `,
    `1 fetch ${rest}\r`,
    `1 fetch ${rest}\n`,
    `1  fetch ${rest}`,
    `1 fetch ${rest.toUpperCase()}`,
    `1 fetch ../${rest.slice(3)}`,
    `1 fetch ${rest.replace('01kb', '81kb')}`,
    '',
  ])
    assert.equal(line(wrong), undefined, wrong);
  for (const wrong of ['', 'A'.repeat(32), '0'.repeat(31), `${'0'.repeat(32)}\n`, `../${'0'.repeat(29)}`, 1])
    assert.equal(isBoxWord(wrong), false);
});
