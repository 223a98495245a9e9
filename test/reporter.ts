/**
 * The reporter of every test run: a line per file, each failure in full, and `N passed, N failed` as the last line.
 *
 * Counts leaves only: a suite, or a test that has subtests, counts when it fails by itself (a hook, its own code). A file
 * that crashes, ends early or holds no test is a failure; so is a run without any test.
 * Invariant: the last line is what CI reads, and the exit status agrees with it.
 */
import { relative, resolve } from 'node:path';
import { inspect } from 'node:util';
import type { TestEvent } from 'node:test/reporters';

interface FileTally {
  passed: number;
  failed: number;
  skipped: number;
  tests: number;
  /** Children seen per nesting level since the last event one level up. */
  children: number[];
  failures: string[];
  notes: string[];
  output: string[];
  outputBytes: number;
  durationMs: number | undefined;
  isReported: boolean;
}

type Verdict = Extract<TestEvent, { type: 'test:pass' | 'test:fail' }>;

const MAX_OUTPUT_BYTES = 64 * 1024;
const SUMMARY_LINE = /^(tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) [\d.]+$/;
/** node:test only notes an error thrown after its test ended; here it is a failure. */
const LATE_ERROR = /generated asynchronous activity after the test ended/;
const tallies = new Map<string, FileTally>();

function tallyOf(file: string): FileTally {
  let tally = tallies.get(file);
  if (!tally) {
    tally = {
      passed: 0,
      failed: 0,
      skipped: 0,
      tests: 0,
      children: [],
      failures: [],
      notes: [],
      output: [],
      outputBytes: 0,
      durationMs: undefined,
      isReported: false,
    };
    tallies.set(file, tally);
  }
  return tally;
}

/** The file that was run: a test may be defined by a function of another one. */
function fileOf(data: { readonly file?: string | undefined }): string | undefined {
  return (data as { readonly entryFile?: string }).entryFile ?? data.file;
}

function shortName(path: string): string {
  return relative(process.cwd(), path);
}

function counts(n: { passed: number; failed: number; skipped: number }): string {
  return `${n.passed} passed, ${n.failed} failed${n.skipped > 0 ? `, ${n.skipped} skipped` : ''}`;
}

function indent(text: string, by: string): string {
  return text.replace(/^/gm, by);
}

function describeError(error: unknown): string {
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
  return typeof cause === 'string' ? cause : inspect(cause, { depth: 6, colors: false });
}

function failureType(verdict: Verdict): string {
  if (verdict.type === 'test:pass') return '';
  return (verdict.data.details.error as Error & { failureType?: string }).failureType ?? '';
}

function addFailure(tally: FileTally, file: string, name: string, error: string): void {
  tally.failed += 1;
  tally.failures.push(`FAILED ${file} > ${name}\n${indent(error, '    ')}\n`);
}

/** Books one verdict; `file` is the path relative to the project. */
function book(tally: FileTally, file: string, verdict: Verdict): void {
  const { name, nesting, skip, todo, details } = verdict.data;
  const isFile = nesting === 0 && (name === file || name === verdict.data.file);
  if (isFile) {
    if (verdict.type === 'test:fail' && failureType(verdict) !== 'subtestsFailed') {
      addFailure(tally, file, '(the file itself)', describeError(verdict.data.details.error));
    } else if (tally.tests === 0) {
      addFailure(tally, file, '(the file itself)', 'The file holds no test.');
    }
    return;
  }
  const hasChildren = (tally.children[nesting + 1] ?? 0) > 0;
  tally.children[nesting + 1] = 0;
  tally.children[nesting] = (tally.children[nesting] ?? 0) + 1;
  const isLeaf = details.type !== 'suite' && !hasChildren;
  if (isLeaf) tally.tests += 1;
  const isSkipped = (skip !== undefined && skip !== false) || (todo !== undefined && todo !== false);
  if (isSkipped) {
    if (isLeaf) tally.skipped += 1;
  } else if (verdict.type === 'test:pass') {
    if (isLeaf) tally.passed += 1;
  } else if (isLeaf || failureType(verdict) !== 'subtestsFailed') {
    addFailure(tally, file, name, describeError(verdict.data.details.error));
  }
}

function keepOutput(tally: FileTally, text: string): void {
  tally.outputBytes += text.length;
  if (tally.outputBytes <= MAX_OUTPUT_BYTES) tally.output.push(text);
}

/** The line of one file and its failures; empty when all that was said before. */
function report(path: string): string {
  const tally = tallyOf(path);
  if (tally.isReported && tally.failures.length === 0) return '';
  tally.isReported = true;
  const mark = tally.failed > 0 ? 'FAIL' : 'ok  ';
  const time = tally.durationMs === undefined ? '' : `  (${(tally.durationMs / 1000).toFixed(1)} s)`;
  let text = `${mark} ${shortName(path)}  ${counts(tally)}${time}\n`;
  for (const note of tally.notes.splice(0)) text += `     ${note}\n`;
  for (const failure of tally.failures.splice(0)) text += failure;
  if (tally.failed > 0 && tally.output.length > 0)
    text += `  output of ${shortName(path)}:\n${indent(tally.output.splice(0).join('').trimEnd(), '    | ')}\n`;
  return text;
}

export default async function* reporter(source: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  let isGoodRun = true;
  let current: string | undefined;
  for await (const event of source) {
    if (event.type === 'test:pass' || event.type === 'test:fail') {
      const path = resolve(fileOf(event.data) ?? event.data.name);
      // Verdicts come file by file, in order: the first one of another file ends the one before.
      if (current !== undefined && current !== path) yield report(current);
      current = path;
      book(tallyOf(path), shortName(path), event);
    } else if (event.type === 'test:stdout' || event.type === 'test:stderr') {
      keepOutput(tallyOf(resolve(event.data.file)), event.data.message);
    } else if (event.type === 'test:diagnostic' && event.data.file !== undefined && !SUMMARY_LINE.test(event.data.message)) {
      const { message } = event.data;
      const file = fileOf(event.data) ?? event.data.file;
      if (LATE_ERROR.test(message)) addFailure(tallyOf(resolve(file)), shortName(resolve(file)), '(after its test ended)', message);
      else tallyOf(resolve(file)).notes.push(message);
    } else if (event.type === 'test:summary') {
      if (event.data.file === undefined) isGoodRun = event.data.success;
      else tallyOf(resolve(event.data.file)).durationMs = event.data.duration_ms;
    }
  }
  for (const path of tallies.keys()) yield report(path);
  let passed = 0;
  let failed = 0;
  let skipped = 0;
  for (const tally of tallies.values()) {
    passed += tally.passed;
    failed += tally.failed;
    skipped += tally.skipped;
  }
  if (passed + failed + skipped === 0) {
    failed = 1;
    yield 'FAILED: no test ran.\n';
  } else if (!isGoodRun && failed === 0) {
    failed = 1;
    yield 'FAILED: the test runner reports a failure that belongs to no test.\n';
  }
  if (failed > 0) process.exitCode = 1;
  yield `${counts({ passed, failed, skipped })}\n`;
}
