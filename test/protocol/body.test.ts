/** What becomes of a body at its reader. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { goesIntoFile } from '../../protocol/body.ts';
import { MAX_PRINTED_BYTES } from '../../protocol/limits.ts';

test('a body goes into a file when it is longer than what is printed, or no text', () => {
  assert.equal(goesIntoFile(Buffer.alloc(MAX_PRINTED_BYTES, 'a')), false);
  assert.equal(goesIntoFile(Buffer.alloc(MAX_PRINTED_BYTES + 1, 'a')), true);
  for (const noText of [Buffer.from([0xff]), Buffer.from('a\0b')]) assert.equal(goesIntoFile(noText), true);
});
