/**
 * The one way in which a test may be skipped: it needs something that this machine cannot have, and it never ran here before.
 *
 * Owns the markers of what ran, kept in the cache folder of the harnesses, outside the tree. A test skips by throwing NotInstallable;
 * the skip is counted by the reporter and told in the run's output. Where the same test ran before, it fails instead.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { cacheFolder, NotInstallable } from './real/install.ts';

export interface Skippable {
  /** What makes it the same test in another run: the harness and its version, or the kind of machine. */
  readonly kind: string;
  /** The test file's name without `.test.ts`. */
  readonly file: string;
  /** The rule. */
  readonly name: string;
}

/** Runs `body` and remembers that it ran; undefined when it threw NotInstallable and is skipped for that. */
export async function ranOrSkipped<T>(t: TestContext, what: Skippable, body: () => Promise<T>): Promise<T | undefined> {
  const digest = createHash('sha256').update(`${what.kind} ${what.file} ${what.name}`).digest('hex');
  const marker = join(cacheFolder(), 'ran', digest.slice(0, 32));
  let result: T;
  try {
    result = await body();
  } catch (error) {
    if (!(error instanceof NotInstallable)) throw error;
    assert.ok(!existsSync(marker), `this cell ran before on this machine and cannot run now: ${error.message}`);
    t.diagnostic(`SKIPPED ${what.kind} | ${what.name} | NOT TESTED: ${error.message}`);
    t.skip(error.message);
    return undefined;
  }
  mkdirSync(join(cacheFolder(), 'ran'), { recursive: true });
  writeFileSync(marker, `${what.kind}: ${what.name}\n`);
  return result;
}
