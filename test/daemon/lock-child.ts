/** Run by lock.test.ts: waits for a line, tries to take the lock, prints what came of it, and lives until its input ends. */
import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';
import { takeLock } from '../../daemon/lock.ts';
import { toAxError } from '../../protocol/errors.ts';

const path = process.argv[2] ?? assert.fail('no path');
console.log('ready');
for await (const _ of createInterface({ input: process.stdin })) {
  await takeLock(path).then(
    () => console.log('won'),
    (error: unknown) => console.log(`${toAxError(error).code} ${String(toAxError(error).details?.['pid'] ?? '-')}`),
  );
}
