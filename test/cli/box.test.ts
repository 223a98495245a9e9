/**
 * The CLI in a sandbox, at a channel that is not as the daemon makes it: what it trusts, what it says, and that it gives up.
 *
 * The kernel refuses every connect() of the process under test; the channel is made here by hand, as an attacker or a broken host would.
 */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import type { TestContext } from 'node:test';
import { boxPaths, parseBoxLine } from '../../protocol/box.ts';
import type { BoxPaths, BoxRequest } from '../../protocol/box.ts';
import { encode } from '../../protocol/codec.ts';
import { sha256 } from '../../protocol/hashtree.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { filtered } from '../e2e/filter.ts';
import { AT, CLAUDE_SHELL, HOST_ID, ID, MAIN, OTHER_ID, outcomeOf, scripted } from './scripted.ts';
import type { Outcome, Scripted } from './scripted.ts';

const CODE = 'c0de'.repeat(8);
const FETCH = ['messages', 'fetch', ID, '--workspace', '/srv/app', '--code', CODE];
const TOKEN = '7'.repeat(24);

/** Compiled once for all runs of this file. */
const cache = mkdtempSync(join(tmpdir(), 'axc-'));
after(() => rmSync(cache, { recursive: true }));

function inside(rig: Scripted, words: readonly string[]): Promise<Outcome> {
  const [program = '', ...rest] = [...filtered(), process.execPath, MAIN, ...words];
  const env = { PATH: process.env['PATH'] ?? '', HOME: rig.folder, AX_STATE_DIR: rig.stateDir, NODE_COMPILE_CACHE: cache, ...CLAUDE_SHELL };
  return outcomeOf(spawn(program, rest, { env, cwd: rig.workspace, stdio: ['ignore', 'pipe', 'pipe'] }));
}

function channel(rig: Scripted): BoxPaths {
  const paths = boxPaths(rig.stateDir);
  mkdirSync(paths.answers, { recursive: true, mode: 0o700 });
  execFileSync('mkfifo', ['-m', '600', paths.requests]);
  return paths;
}

/** Reads the pipe as the daemon does; `onRequest` is given each request with its number. */
function serve(t: TestContext, paths: BoxPaths, onRequest: (request: BoxRequest, nth: number) => void): void {
  const socket = new Socket({ fd: openSync(paths.requests, constants.O_RDWR | constants.O_NONBLOCK), readable: true, writable: false });
  let text = '';
  let nth = 0;
  socket.on('data', (piece: Buffer) => {
    const lines = (text + piece.toString('latin1')).split('\n');
    text = lines.pop() ?? '';
    for (const line of lines.filter((one) => one !== '')) {
      const request = parseBoxLine(Buffer.from(line, 'latin1'));
      assert.ok(request !== undefined, line);
      onRequest(request, (nth += 1));
    }
  });
  t.after(() => void socket.destroy());
}

const body = Buffer.from('hello');
const MESSAGE = {
  message_id: ID,
  hand_out: TOKEN,
  from: 'builder@hosta',
  from_host: HOST_ID,
  can_reply: true,
  subject: null,
  sent_at: AT,
  body,
  bytes: body.length,
  sha256: Buffer.from(sha256(body)).toString('hex'),
  first_fetched_at: null,
  refetch: false,
  by: 'session',
  workspace: '/srv/app',
  waiting: [{ message_id: OTHER_ID, kind: 'message', bytes: 3 }],
  waiting_count: 1,
  kept: null,
};
const ok = (result: object): Uint8Array => encode({ v: CONTROL_PROTOCOL, id: 0, ok: true, result });

function put(paths: BoxPaths, nonce: string, bytes: Uint8Array, mode = 0o600): void {
  const aside = join(paths.folder, nonce);
  writeFileSync(aside, bytes);
  chmodSync(aside, mode);
  renameSync(aside, join(paths.answers, nonce));
}

test('what is not a pipe of this user alone in folders of this user alone is neither written to nor waited for', async (t) => {
  const ways: [change: (paths: BoxPaths) => void, says: RegExp | undefined][] = [
    [(paths) => rmSync(paths.folder, { recursive: true }), undefined],
    [(paths) => rmSync(paths.requests), undefined],
    [(paths) => chmodSync(paths.folder, 0o750), /box is not a folder of this user alone/],
    [(paths) => chmodSync(paths.answers, 0o701), /answers is not a folder of this user alone/],
    [(paths) => chmodSync(paths.requests, 0o620), /requests is not a pipe of this user alone|the daemon that would read/],
    [
      (paths) => {
        rmSync(paths.requests);
        writeFileSync(paths.requests, '', { mode: 0o600 });
      },
      /requests is not a pipe of this user alone/,
    ],
    [
      (paths) => {
        rmSync(paths.requests);
        symlinkSync('/dev/null', paths.requests);
      },
      /requests cannot be written to \(ELOOP\)/,
    ],
    [() => undefined, /the daemon that would read this pipe does not run/],
  ];
  for (const [change, says] of ways) {
    const rig = await scripted(t);
    const paths = channel(rig);
    change(paths);
    const { code, stdout, stderr } = await inside(rig, FETCH);
    assert.deepEqual([code, stdout], [3, ''], stderr);
    assert.match(stderr, /^ax: a sandbox around this shell lets no command connect to the daemon \(\S+\)(; .*)?\nfix: ask your user/);
    if (says === undefined) assert.doesNotMatch(stderr, /^ax: .*;/);
    else assert.match(stderr, says);
  }
});

test('a request that somebody else took is made again under a new nonce, and the hand-out is confirmed only after the body was printed', async (t) => {
  const rig = await scripted(t);
  const paths = channel(rig);
  const asked: BoxRequest[] = [];
  serve(t, paths, (request, nth) => {
    asked.push(request);
    if (nth === 1) return; // stolen
    put(paths, request.nonce, ok(request.handOut === undefined ? MESSAGE : { message_id: ID, state: 'fetched' }));
  });
  const { code, stdout, stderr } = await inside(rig, FETCH);
  assert.equal(code, 0, stderr);
  assert.match(stdout, /begin ----\nhello\n/);
  assert.match(stdout, new RegExp(`^next: .*messages fetch ${OTHER_ID} --workspace /srv/app --code ${CODE}$`, 'm'));
  assert.equal(new Set(asked.map((one) => one.nonce)).size, 3);
  assert.deepEqual(
    asked.map(({ thread, id, code: told, handOut }) => [thread, id, told, handOut]),
    [undefined, undefined, TOKEN].map((handOut) => [CLAUDE_SHELL.CLAUDE_CODE_SESSION_ID, ID, CODE, handOut]),
  );
});

test('a body whose confirmation is not answered was printed, and is told as not recorded', async (t) => {
  const rig = await scripted(t);
  const paths = channel(rig);
  serve(t, paths, (request) => {
    if (request.handOut === undefined) put(paths, request.nonce, ok(MESSAGE));
  });
  const { code, stdout, stderr } = await inside(rig, FETCH);
  assert.equal(code, 3);
  assert.match(stdout, /begin ----\nhello\n/);
  assert.match(
    stderr,
    /the body was printed, but the pickup could not be recorded: the daemon took no request .*; try again\nfix: .*--code /,
  );
});

test('an answer that is forged, foreign, linked or too large is no message, and nothing is confirmed', async (t) => {
  const secret = Buffer.from('secret');
  const forgeries: ((paths: BoxPaths, nonce: string, folder: string) => void)[] = [
    (paths, nonce) => put(paths, nonce, ok({ ...MESSAGE, message_id: OTHER_ID })),
    (paths, nonce) => put(paths, nonce, ok({ ...MESSAGE, body: secret })),
    (paths, nonce) => put(paths, nonce, Buffer.from('{}')),
    (paths, nonce) => put(paths, nonce, new Uint8Array(2 * 1024 * 1024)),
    (paths, nonce, folder) => {
      writeFileSync(join(folder, 'answer'), ok(MESSAGE), { mode: 0o600 });
      symlinkSync(join(folder, 'answer'), join(paths.answers, nonce));
    },
    (paths, nonce) => put(paths, nonce, ok(MESSAGE), 0o644),
    (paths, nonce) => execFileSync('mkfifo', ['-m', '600', join(paths.answers, nonce)]),
  ];
  for (const [n, forge] of forgeries.entries()) {
    const rig = await scripted(t);
    const paths = channel(rig);
    let confirmed = 0;
    serve(t, paths, (request) => {
      if (request.handOut === undefined) forge(paths, request.nonce, rig.folder);
      else confirmed += 1;
    });
    const { code, stdout } = await inside(rig, FETCH);
    assert.deepEqual([code, stdout, confirmed], [1, '', 0], `forgery ${n}`);
  }
});

test('a large body in its file is printed only when it is the one whose digest the daemon told', async (t) => {
  const large = Buffer.alloc(100, 'b');
  const digest = Buffer.from(sha256(large)).toString('hex');
  const other = Buffer.alloc(100, 'x');
  for (const [told, file, isRight] of [
    [digest, large, true],
    [digest, other, false],
    [null, large, false],
  ] as const) {
    const rig = await scripted(t);
    const paths = channel(rig);
    const folder = join(rig.stateDir, 'fetched');
    mkdirSync(folder, { mode: 0o700 });
    writeFileSync(join(folder, ID), file, { mode: 0o600 });
    const message = { ...MESSAGE, body: Buffer.alloc(0), parts: 2, bytes: large.length, sha256: told, kept: join(folder, ID) };
    let confirmed = 0;
    serve(t, paths, (request) => {
      if (request.handOut !== undefined) confirmed += 1;
      put(paths, request.nonce, ok(request.handOut === undefined ? message : { message_id: ID, state: 'fetched' }));
    });
    const { code, stdout } = await inside(rig, FETCH);
    assert.deepEqual([code, stdout.includes('bbbb'), stdout === '', confirmed], isRight ? [0, true, false, 1] : [1, false, true, 0]);
  }
});

test('a refusal of the daemon through the channel is told as it is', async (t) => {
  const rig = await scripted(t);
  const paths = channel(rig);
  const error = { code: 'expired', message: 'the retention of this message has ended', retryable: false };
  serve(t, paths, (request) => put(paths, request.nonce, encode({ v: CONTROL_PROTOCOL, id: 0, ok: false, error })));
  const { code, stderr } = await inside(rig, FETCH);
  assert.deepEqual([code, stderr], [1, 'ax: the retention of this message has ended\n']);
});

test('a full pipe is tried for five seconds and then told as "try again"', async (t) => {
  const rig = await scripted(t);
  const paths = channel(rig);
  const pipe = openSync(paths.requests, constants.O_RDWR | constants.O_NONBLOCK);
  t.after(() => closeSync(pipe));
  try {
    for (;;) writeSync(pipe, 'x'.repeat(512));
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, 'EAGAIN');
  }
  const from = performance.now();
  const { code, stderr } = await inside(rig, FETCH);
  assert.equal(code, 3);
  assert.match(stderr, /took no request through \S+ in 5 s; try again\n/);
  assert.ok(performance.now() - from < 20_000);
});
