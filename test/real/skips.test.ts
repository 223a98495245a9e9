/** When a cell of the matrix may be skipped: only where its harness cannot be installed, loudly, and never where it ran before. */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { runToEnd, type Outcome } from '../e2e/processes.ts';
import { PINS } from './install.ts';

const ROOT = join(import.meta.dirname, '..', '..');

/** Runs one cell with an empty cache and an npm whose registry nobody answers for. */
async function runOffline(cache: string): Promise<Outcome> {
  const words = ['--test', '--test-reporter=./test/reporter.ts', 'test/real/skip-child.ts'];
  const env = {
    PATH: process.env['PATH'] ?? '',
    HOME: cache,
    AX_HARNESS_CACHE: cache,
    npm_config_registry: 'http://127.0.0.1:1',
    npm_config_fetch_retries: '0',
  };
  return runToEnd(process.execPath, words, { env, cwd: ROOT });
}

function makeCache(t: TestContext): string {
  const cache = mkdtempSync(join(tmpdir(), 'axc-'));
  t.after(() => rmSync(cache, { recursive: true, force: true }));
  return cache;
}

/** A cache that holds what looks like the pinned version. */
function fakeInstalled(cache: string): string {
  const { newest } = PINS.claude;
  const folder = join(cache, `claude@${newest}`, 'node_modules', '@anthropic-ai', 'claude-code-linux-x64');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'claude'), '#!/bin/sh\n');
  chmodSync(join(folder, 'claude'), 0o755);
  return join(cache, `claude@${newest}`);
}

test('a cell whose harness cannot be installed is skipped, counted, and says so', async (t) => {
  const cache = makeCache(t);
  const outcome = await runOffline(cache);
  assert.match(outcome.stdout, /0 passed, 0 failed, 1 skipped\n$/);
  assert.match(outcome.stdout, /SKIPPED claude \S+ \| a cell \| NOT TESTED: npm install @anthropic-ai\/claude-code@/);
  assert.equal(outcome.status, 0);
  assert.deepEqual(
    readdirSync(cache).filter((name) => name.startsWith('claude@')),
    [],
    'nothing half-installed stays',
  );
});

test('a cell that ran before on this machine fails where it cannot run now', async (t) => {
  const cache = makeCache(t);
  const installed = fakeInstalled(cache);
  const first = await runOffline(cache);
  assert.match(first.stdout, /1 passed, 0 failed\n$/);
  rmSync(installed, { recursive: true });
  const second = await runOffline(cache);
  assert.match(second.stdout, /this cell ran before on this machine/);
  assert.match(second.stdout, /0 passed, 1 failed\n$/);
  assert.equal(second.status, 1);
});
