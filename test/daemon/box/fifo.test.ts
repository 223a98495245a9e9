/**
 * The real channel for sandboxed sessions: a pipe and a folder of answers, and what can be done to them from outside.
 *
 * Whoever writes to the pipe here is another process or another open file, as a sandboxed shell would be.
 */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
} from 'node:fs';
import { rmSync, statSync, symlinkSync, unlinkSync, utimesSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import { promisify } from 'node:util';
import type { Box } from '../../../daemon/box/box.ts';
import { createFifoBox } from '../../../daemon/box/fifo.ts';
import { BoxLines } from '../../../daemon/box/lines.ts';
import { WATCH_ANSWER_MS, WATCH_MS, WINDOW_MS } from '../../../daemon/box/pipe.ts';
import { systemRandom } from '../../../daemon/clock/system.ts';
import { silentLog } from '../../../daemon/log.ts';
import { AxError } from '../../../protocol/errors.ts';
import { asFields, decode } from '../../../protocol/codec.ts';
import { BOX_ANSWER_MS, MAX_BOX_ANSWERS, MAX_BOX_LINE_BYTES, MAX_FRAME_BYTES } from '../../../protocol/limits.ts';
import { boxContract } from '../../contract/box.ts';
import { HandClock } from '../bed.ts';

const run = promisify(execFile);
const nonce = (n: number): string => n.toString(16).padStart(32, '0');
const ID = '01kb7t3v9m2q5r8w4x6y0z1a2c';
const OLD_ID = '01kb7t3v9m2q5r8w4x6y0z1a2b';
/** Lets what is ready in the event loop happen. */
const turn = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));
const uid = process.getuid?.() ?? 0;

class Rig {
  readonly stateDir: string;
  readonly clock = new HandClock();
  readonly lines: string[] = [];
  readonly said: string[] = [];
  readonly box: Box;
  #waiters: (() => void)[] = [];

  constructor(t: TestContext, change: { readonly uid?: number; readonly programs?: readonly string[] } = {}) {
    this.stateDir = realpathSync(mkdtempSync(join(tmpdir(), 'axb-')));
    const log = { ...silentLog, warn: (event: string) => this.#note(this.said, event) };
    this.box = createFifoBox({ stateDir: this.stateDir, uid, clock: this.clock, random: systemRandom, log, ...change });
    t.after(async () => {
      await this.box.stop();
      rmSync(this.stateDir, { recursive: true });
    });
  }

  get folder(): string {
    return join(this.stateDir, 'box');
  }

  get requests(): string {
    return join(this.folder, 'requests');
  }

  get answers(): string {
    return join(this.folder, 'answers');
  }

  start(): Promise<void> {
    return this.box.start({ onRequest: (line) => this.#note(this.lines, Buffer.from(line).toString('latin1')) });
  }

  /** As the CLI opens it. */
  open(): number {
    return openSync(this.requests, constants.O_WRONLY | constants.O_NONBLOCK);
  }

  write(text: string): void {
    const pipe = this.open();
    try {
      writeSync(pipe, text);
    } finally {
      closeSync(pipe);
    }
  }

  /** Resolves when `check` holds; looked at after each line and each word of the log. */
  async until(check: () => boolean): Promise<void> {
    while (!check()) await new Promise<void>((resolve) => void this.#waiters.push(resolve));
  }

  #note(list: string[], entry: string): void {
    list.push(entry);
    for (const wake of this.#waiters.splice(0)) wake();
  }
}

async function refused(work: Promise<unknown>, code: string, words: RegExp): Promise<void> {
  await assert.rejects(work, (error: unknown) => error instanceof AxError && error.code === code && words.test(error.message));
}

/** Writes until the pipe takes no more. */
function fill(pipe: number, piece: string): number {
  for (let bytes = 0; ;) {
    try {
      bytes += writeSync(pipe, piece);
    } catch (error) {
      assert.equal((error as NodeJS.ErrnoException).code, 'EAGAIN');
      return bytes;
    }
  }
}

boxContract('pipe', (t) => {
  const rig = new Rig(t);
  const there = (name: string): boolean => existsSync(join(rig.answers, name));
  return {
    box: rig.box,
    lines: rig.lines,
    start: () => rig.start(),
    write: (text) => {
      if (existsSync(rig.requests)) rig.write(text);
    },
    until: (condition) => rig.until(condition),
    answer: (name) => (there(name) ? (asFields(decode(readFileSync(join(rig.answers, name))), 'an answer')['n'] as number) : undefined),
    body: (path) => readFileSync(path),
    pass: (ms) => rig.clock.pass(ms),
    gone: async (name) => {
      while (there(name)) await turn();
    },
  };
});

test("what a process that was killed left half kept, under the same id, is in nobody's way", async (t) => {
  const rig = new Rig(t);
  const fetched = join(rig.stateDir, 'fetched');
  mkdirSync(fetched, { mode: 0o700 });
  for (let n = 0; n < 3; n++) writeFileSync(join(fetched, `.ax-${process.pid}-${n}.part`), 'half a body');
  assert.equal(readFileSync(await rig.box.keep(ID, Buffer.from('whole')), 'utf8'), 'whole');
});

test('pipe and folders are for the owner alone whatever the umask, and stop removes all of it', async (t) => {
  const rig = new Rig(t);
  const before = process.umask(0);
  t.after(() => process.umask(before));
  mkdirSync(rig.folder, { mode: 0o777 });
  await rig.start();
  assert.deepEqual(
    [rig.folder, rig.answers, rig.requests].map((path) => (statSync(path).mode & 0o777).toString(8)),
    ['700', '700', '200'],
  );
  assert.equal(lstatSync(rig.requests).isFIFO(), true);
  assert.equal(await rig.box.answer(nonce(1), Buffer.from('x')), true);
  await rig.box.stop();
  assert.deepEqual(readdirSync(rig.stateDir), []);
  assert.equal(await rig.box.answer(nonce(2), Buffer.from('x')), false);
});

test('what an earlier life left is gone after a start and after a stop: pipe, answers, files in their place', async (t) => {
  const rig = new Rig(t);
  const leave = (): void => {
    mkdirSync(rig.answers, { recursive: true });
    writeFileSync(join(rig.answers, nonce(1)), 'a body');
    writeFileSync(join(rig.answers, `.${nonce(2)}`), 'half a body');
    writeFileSync(rig.requests, 'no pipe');
  };
  leave();
  await rig.start();
  assert.deepEqual(readdirSync(rig.answers), []);
  assert.equal(lstatSync(rig.requests).isFIFO(), true);
  await rig.box.stop();
  leave();
  await rig.box.stop();
  assert.deepEqual(readdirSync(rig.stateDir), []);
  leave();
  writeFileSync(join(rig.answers, 'a file of the user'), 'kept');
  await rig.box.stop();
  assert.deepEqual(readdirSync(rig.answers), ['a file of the user']);
});

test('symbolic links in any place are refused or replaced, and what they lead to is never touched', async (t) => {
  const rig = new Rig(t);
  const target = join(rig.stateDir, 'target');
  mkdirSync(target);
  writeFileSync(join(target, 'precious'), 'kept');
  const isWhole = (): void => {
    assert.deepEqual(readdirSync(target), ['precious']);
    assert.equal(readFileSync(join(target, 'precious'), 'utf8'), 'kept');
    assert.equal(statSync(join(target, 'precious')).mode & 0o777, 0o644 & ~process.umask());
  };
  symlinkSync(target, rig.folder);
  await refused(rig.start(), 'invalid_state', /box is not a folder of this user$/);
  await rig.box.stop();
  isWhole();
  unlinkSync(rig.folder);
  mkdirSync(rig.folder, { mode: 0o700 });
  symlinkSync(target, rig.answers);
  await refused(rig.start(), 'invalid_state', /./);
  isWhole();
  await rig.box.stop();
  rmSync(rig.folder, { recursive: true, force: true });
  mkdirSync(rig.folder, { mode: 0o700 });
  symlinkSync(join(target, 'precious'), rig.requests);
  await rig.start();
  assert.equal(lstatSync(rig.requests).isFIFO(), true);
  symlinkSync(join(target, 'precious'), join(rig.answers, nonce(1)));
  assert.equal(await rig.box.answer(nonce(1), Buffer.from('mine')), true);
  assert.equal(lstatSync(join(rig.answers, nonce(1))).isFile(), true);
  symlinkSync(join(target, 'precious'), join(rig.answers, `.${nonce(2)}`));
  assert.equal(await rig.box.answer(nonce(2), Buffer.from('mine')), false);
  mkdirSync(join(rig.stateDir, 'fetched'), { mode: 0o700 });
  symlinkSync(join(target, 'precious'), join(rig.stateDir, 'fetched', ID));
  assert.equal(readFileSync(await rig.box.keep(ID, Buffer.from('body')), 'utf8'), 'body');
  isWhole();
});

test('a folder of another user and a system without mkfifo are refused with the reason', async (t) => {
  await refused(new Rig(t, { uid: uid + 1 }).start(), 'invalid_state', /is not a folder of this user/);
  await refused(new Rig(t, { programs: ['/nowhere/mkfifo'] }).start(), 'unsupported', /mkfifo/);
  await refused(new Rig(t, { programs: ['/bin/true', '/usr/bin/true'] }).start(), 'invalid_state', /requests cannot be opened \(ENOENT\)/);
});

test('half a line, a long one, and lines without end never reach or spoil the next request', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  rig.write('\nhalf of a');
  rig.write('\nwhole 1\n');
  await rig.until(() => rig.lines.includes('whole 1'));
  rig.write(`\n${'l'.repeat(MAX_BOX_LINE_BYTES + 1)}`);
  rig.write('\nwhole 2\n');
  await rig.until(() => rig.lines.includes('whole 2'));
  const pipe = rig.open();
  for (let n = 0; n < 60; n++) writeSync(pipe, 'x'.repeat(1000));
  closeSync(pipe);
  rig.write('\nwhole 3\n');
  await rig.until(() => rig.lines.includes('whole 3'));
  assert.deepEqual(rig.lines, ['half of a', 'whole 1', 'whole 2', 'whole 3']);
});

test('a line is put together from any pieces, bounded, and nothing of an endless one is kept', () => {
  const whole = Buffer.from(`\n\nab\n${'c'.repeat(MAX_BOX_LINE_BYTES)}\n${'d'.repeat(MAX_BOX_LINE_BYTES + 1)}\n\ne\nf`);
  for (const size of [1, 2, 3, 7, 1000, 4096]) {
    const lines = new BoxLines();
    const found: string[] = [];
    for (let at = 0; at < whole.length; at += size) found.push(...lines.take(whole.subarray(at, at + size)).map((line) => line.toString()));
    assert.deepEqual(found, ['ab', 'c'.repeat(MAX_BOX_LINE_BYTES), 'e'], `pieces of ${size}`);
  }
});

test('every line of many writers at once arrives whole', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  const line = `${'w'.repeat(150)}`;
  const script = 'i=0; while [ $i -lt 40 ]; do printf "\\n%s %s %s\\n" "$1" "$i" "$2" >"$3"; i=$((i+1)); done';
  await Promise.all(Array.from({ length: 12 }, (_, n) => run('/bin/sh', ['-c', script, 'sh', String(n), line, rig.requests])));
  await rig.until(() => rig.lines.length >= 480);
  const wanted = Array.from({ length: 480 }, (_, n) => `${Math.floor(n / 40)} ${n % 40} ${line}`);
  assert.deepEqual([...rig.lines].toSorted(), wanted.toSorted());
});

test('a flood stops being read, is told once as the full pipe is, and requests arrive again when its second is over', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  const pipe = rig.open();
  t.after(() => closeSync(pipe));
  rig.clock.pass(WATCH_MS - WINDOW_MS / 2);
  let sent = 0;
  while (rig.said.length === 0) {
    sent += fill(pipe, 'x'.repeat(512));
    assert.ok(sent < 4 * 1024 * 1024, 'the flood is read without end');
    await turn();
  }
  assert.match(rig.said.join(), /^somebody floods the request pipe/);
  // Not read any more, so that the pipe itself fills and stays full.
  while (fill(pipe, 'x'.repeat(512)) > 0) await turn();
  rig.clock.pass(WINDOW_MS / 2);
  await rig.until(() => rig.said.length > 1);
  assert.deepEqual(
    rig.said.map((word) => word.split(';')[0]),
    ['somebody floods the request pipe', 'the request pipe is full'],
  );
  rig.clock.pass(WINDOW_MS);
  while (!rig.lines.includes('again')) {
    fill(pipe, '\nagain\n');
    await turn();
  }
  assert.equal(rig.said.filter((word) => word.startsWith('somebody floods')).length, 1);
});

test('a pipe shrunk to one page still carries requests', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  // F_SETPIPE_SZ is 1031.
  await run('/usr/bin/perl', ['-e', 'open(my $p, "+<", $ARGV[0]) or die "$!"; fcntl($p, 1031, 4096) or die "$!"', rig.requests]).catch(
    async (error: { stderr?: string }) => {
      // Not root: the mode keeps this out, which an attacker gets around.
      assert.match(String(error.stderr), /Permission denied/);
      chmodSync(rig.requests, 0o600);
      await run('/usr/bin/perl', ['-e', 'open(my $p, "+<", $ARGV[0]) or die "$!"; fcntl($p, 1031, 4096) or die "$!"', rig.requests]);
    },
  );
  for (let n = 0; n < 10; n++) rig.write(`\n${n} ${'y'.repeat(150)}\n`);
  await rig.until(() => rig.lines.length === 10);
});

test('a reader that takes requests away is told in the log, once, whatever is written in the place of the watching line; the rest still arrive', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  chmodSync(rig.requests, 0o600);
  rig.write(`\n0 watch 99999999999999\n0 watch ${'0'.repeat(32)}\n0 watch ${'f'.repeat(32)}\n`);
  const thief = spawn('/bin/cat', [rig.requests], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => void thief.once('close', resolve));
  let stolen = '';
  thief.stdout.on('data', (piece: Buffer) => (stolen += piece.toString()));
  const isStolen = (): boolean => rig.said.some((word) => word.startsWith('somebody else reads'));
  for (let n = 0; n < 5000 && !isStolen(); n++) {
    const before = stolen;
    rig.clock.pass(WATCH_MS);
    for (let n = 0; n < 20 && stolen === before; n++) await turn();
    rig.clock.pass(WATCH_ANSWER_MS);
  }
  assert.equal(isStolen(), true, stolen);
  thief.kill('SIGKILL');
  await ended;
  for (let n = 0; n < 3; n++) {
    rig.clock.pass(WATCH_MS);
    rig.clock.pass(WATCH_ANSWER_MS);
  }
  assert.equal(rig.said.length, 1, rig.said.join());
  rig.write('\nmine\n');
  await rig.until(() => rig.lines.includes('mine'));
});

test('a pipe that was removed, or replaced by anything, is made anew', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  for (const replace of [
    (): void => unlinkSync(rig.requests),
    (): void => {
      unlinkSync(rig.requests);
      writeFileSync(rig.requests, '');
    },
    (): void => {
      unlinkSync(rig.requests);
      symlinkSync('/etc/hostname', rig.requests);
    },
  ]) {
    replace();
    const told = rig.said.length;
    rig.clock.pass(WATCH_MS);
    await rig.until(() => rig.said.length > told);
    while (lstatSync(rig.requests, { throwIfNoEntry: false })?.isFIFO() !== true) await turn();
    const seen = rig.lines.length;
    // It is there a moment before it is read: until then a writer is told that nobody reads.
    while (rig.lines.length === seen) {
      try {
        rig.write('\nanew\n');
      } catch (error) {
        assert.equal((error as NodeJS.ErrnoException).code, 'ENXIO');
      }
      await turn();
    }
  }
  assert.equal(
    rig.said.every((word) => word.startsWith('the request pipe was removed or replaced')),
    true,
    rig.said.join(),
  );
});

test('an answer stands under a hexadecimal nonce only, once, whole, for 30 s; of more than a hundred none is written', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  for (const bad of ['', '../x', 'x'.repeat(32), nonce(1).slice(1), `${nonce(1)}/`, 'A'.repeat(32)])
    assert.equal(await rig.box.answer(bad, Buffer.from('x')), false, bad);
  assert.equal(await rig.box.answer(nonce(0), Buffer.alloc(MAX_FRAME_BYTES + 1)), false);
  assert.equal(await rig.box.answer(nonce(0), Buffer.from('first')), true);
  assert.equal(await rig.box.answer(nonce(0), Buffer.from('second')), false);
  const path = join(rig.answers, nonce(0));
  assert.equal(readFileSync(path, 'utf8'), 'first');
  assert.equal(statSync(path).mode & 0o777, 0o600);
  const all = await Promise.all(Array.from({ length: MAX_BOX_ANSWERS + 20 }, (_, n) => rig.box.answer(nonce(n + 1), Buffer.from('x'))));
  assert.equal(all.filter(Boolean).length, MAX_BOX_ANSWERS - 1);
  assert.equal(readdirSync(rig.answers).length, MAX_BOX_ANSWERS);
  rig.clock.pass(BOX_ANSWER_MS - 1);
  assert.equal(readdirSync(rig.answers).length, MAX_BOX_ANSWERS);
  rig.clock.pass(1);
  while (readdirSync(rig.answers).length > 0) await turn();
  assert.equal(await rig.box.answer(nonce(0), Buffer.from('again')), true);
});

test('a kept body that is there already is not written again, unless it differs in a byte, a mode or a second name', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  const body = Buffer.alloc(3 * 1024 * 1024 + 1, 'k');
  const path = await rig.box.keep(ID, body);
  const again = async (): Promise<boolean> => {
    const { ino } = statSync(path);
    await rig.box.keep(ID, body);
    assert.deepEqual([readFileSync(path).equals(body), statSync(path).mode & 0o777, statSync(path).nlink], [true, 0o600, 1]);
    return statSync(path).ino === ino;
  };
  assert.equal(await again(), true);
  const other = Buffer.from(body);
  other[body.length - 1] = 0;
  const changes = [
    () => writeFileSync(path, other),
    () => writeFileSync(path, body.subarray(1)),
    () => chmodSync(path, 0o644),
    () => linkSync(path, join(rig.stateDir, 'second')),
  ];
  for (const [n, change] of changes.entries()) {
    change();
    assert.equal(await again(), false, `change ${n}`);
  }
});

test('a kept body lies whole and private where fetched ones lie, and those older than 30 days go', async (t) => {
  const rig = new Rig(t);
  await rig.start();
  const folder = join(rig.stateDir, 'fetched');
  mkdirSync(folder);
  chmodSync(folder, 0o755);
  const seconds = rig.clock.now() / 1000;
  for (const name of [OLD_ID, 'a file of the user']) {
    writeFileSync(join(folder, name), 'x');
    utimesSync(join(folder, name), seconds - 31 * 86_400, seconds - 31 * 86_400);
  }
  const path = await rig.box.keep(ID, Buffer.alloc(50_000, 'k'));
  assert.equal(path, join(folder, ID));
  assert.equal(readFileSync(path).equals(Buffer.alloc(50_000, 'k')), true);
  assert.deepEqual([statSync(folder).mode & 0o777, statSync(path).mode & 0o777], [0o700, 0o600]);
  assert.deepEqual(readdirSync(folder), [ID, 'a file of the user']);
  await assert.rejects(rig.box.keep('../x', Buffer.from('x')), RangeError);
});
