/** The lock of a state directory, tried by real processes: one holder, released by death, nothing followed or trusted. */
import assert from 'node:assert/strict';
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { after, test } from 'node:test';
import { takeLock } from '../../daemon/lock.ts';

const base = mkdtempSync(join(tmpdir(), 'ax-lock-'));
const started: ChildProcess[] = [];
after(() => {
  for (const child of started) child.kill('SIGKILL');
  rmSync(base, { recursive: true, force: true });
});
let made = 0;
const freshPath = (): string => join(base, `l${made++}`);

interface Taker {
  readonly child: ChildProcess;
  /** Tells it to try; resolves with what it printed. */
  attempt(): Promise<string>;
}

async function startTaker(path: string): Promise<Taker> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'lock-child.ts'), path], { stdio: ['pipe', 'pipe', 'inherit'] });
  started.push(child);
  const lines: Interface = createInterface({ input: child.stdout });
  const line = async (): Promise<string> => String((await once(lines, 'line'))[0]);
  assert.equal(await line(), 'ready');
  return {
    child,
    attempt: () => {
      const answer = line();
      child.stdin.write('go\n');
      return answer;
    },
  };
}

test('of two processes that try at the same moment exactly one wins, 20 times over', async () => {
  const path = freshPath();
  const takers = await Promise.all([startTaker(path), startTaker(path)]);
  for (let i = 0; i < 20; i++) {
    const answers = await Promise.all(takers.map((taker) => taker.attempt()));
    const winner = answers.indexOf('won');
    assert.deepEqual(answers.filter((answer) => answer === 'won').length, 1, answers.join());
    assert.match(answers[1 - winner]!, /^invalid_state/);
    takers[winner]!.child.kill('SIGKILL');
    await once(takers[winner]!.child, 'close');
    takers[winner] = await startTaker(path);
  }
});

test('a holder killed with -9 gives the lock to the next taker, whatever pid its file names', async () => {
  const path = freshPath();
  const holder = await startTaker(path);
  assert.equal(await holder.attempt(), 'won');
  assert.equal(readFileSync(path, 'utf8').split('\n')[0], String(holder.child.pid));
  await assert.rejects(takeLock(path), {
    code: 'invalid_state',
    message: new RegExp(`another daemon holds this directory \\(process ${holder.child.pid}\\)`),
  });
  const second = await startTaker(path);
  assert.equal(await second.attempt(), `invalid_state ${holder.child.pid}`);
  holder.child.kill('SIGKILL');
  await once(holder.child, 'close');
  writeFileSync(path, `${process.pid}\n`);
  const lock = await takeLock(path);
  assert.equal(await second.attempt(), `invalid_state ${process.pid}`);
  lock.release();
  lock.release();
  assert.equal(await second.attempt(), 'won');
});

test('a lock is not shared within one process either, and not inherited by what the holder starts', async () => {
  const path = freshPath();
  const lock = await takeLock(path);
  await assert.rejects(takeLock(path), { code: 'invalid_state' });
  const sleeper = spawn('sh', ['-c', 'read line'], { stdio: ['pipe', 'ignore', 'inherit'] });
  started.push(sleeper);
  await once(sleeper, 'spawn');
  lock.release();
  (await takeLock(path)).release();
});

test('the lock file is 0600, whatever the umask and whatever it was', async () => {
  const path = freshPath();
  const old = process.umask(0);
  try {
    (await takeLock(path)).release();
    assert.equal(statSync(path).mode & 0o777, 0o600);
    chmodSync(path, 0o666);
    (await takeLock(path)).release();
    assert.equal(statSync(path).mode & 0o777, 0o600);
  } finally {
    process.umask(old);
  }
});

test('a symbolic link, a folder and a FIFO in its place are refused, and a link’s target is left alone', async () => {
  const target = freshPath();
  writeFileSync(target, 'precious');
  const link = freshPath();
  symlinkSync(target, link);
  await assert.rejects(takeLock(link), { code: 'invalid_state', message: /symbolic link/ });
  assert.equal(readFileSync(target, 'utf8'), 'precious');
  const folder = freshPath();
  mkdirSync(folder);
  await assert.rejects(takeLock(folder), { code: 'invalid_state', message: /not a regular file/ });
  const fifo = freshPath();
  assert.equal(spawnSync('mkfifo', [fifo]).status, 0);
  await assert.rejects(takeLock(fifo), { code: 'invalid_state', message: /not a regular file/ });
});

test('a folder that does not exist is an error that names the path', async () => {
  const path = join(freshPath(), 'lock');
  await assert.rejects(takeLock(path), { code: 'internal', message: new RegExp(path) });
});

const HERE = { id: '0123456789abcdef', name: 'here' };
const THERE = { id: 'fedcba9876543210', name: 'there' };

test('a lock that a daemon of another machine holds names that machine and no process of this one', async () => {
  const path = freshPath();
  const lock = await takeLock(path, { machine: THERE });
  await assert.rejects(takeLock(path, { machine: HERE }), (error: Error & { details?: object }) => {
    assert.match(error.message, /a daemon on another machine \(there\) holds this directory/);
    assert.deepEqual(error.details, { machine: 'there' });
    return true;
  });
  lock.release();
});

test('a folder that another machine wrote to a moment ago is not taken, though its lock is free; a quiet one is, and one given back', async () => {
  const aliveFile = freshPath();
  writeFileSync(aliveFile, '');
  const path = freshPath();
  const left = `4711\n${THERE.id} ${THERE.name}\n`;
  writeFileSync(path, left);
  const take = (machine: typeof HERE | undefined): ReturnType<typeof takeLock> => takeLock(path, { aliveFile, machine });
  for (let tries = 0; tries < 2; tries++)
    await assert.rejects(take(HERE), {
      code: 'invalid_state',
      message: /on another machine \(there\) seems to use this folder: it wrote there \d+ s ago/,
    });
  assert.equal(readFileSync(path, 'latin1'), left); // the other's record stands
  (await take(THERE)).release(); // the same machine after a crash
  assert.equal(readFileSync(path, 'latin1'), '');
  (await take(HERE)).release(); // given back: a folder that was moved is free at once
  writeFileSync(path, left);
  const longAgo = new Date(statSync(aliveFile).mtimeMs - 200_000);
  utimesSync(aliveFile, longAgo, longAgo);
  (await take(HERE)).release();
  writeFileSync(path, left);
  (await take(undefined)).release(); // a machine that cannot be told from others refuses nobody
});

test('a record that nobody of ours wrote decides nothing', async () => {
  const aliveFile = freshPath();
  writeFileSync(aliveFile, '');
  for (const left of ['', '1', 'x\ny z', `1\n${'f'.repeat(600)}`, '1\nfedcba9876543210 \u001b[31m\n', '\0\0\0']) {
    const path = freshPath();
    writeFileSync(path, left);
    (await takeLock(path, { aliveFile, machine: HERE })).release();
  }
});
