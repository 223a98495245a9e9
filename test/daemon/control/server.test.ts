/**
 * The control socket under good, foreign and hostile clients, over a real Unix socket; only the clock is the test's own.
 */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import type { Socket } from 'node:net';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import fc from 'fast-check';
import type { Clock } from '../../../daemon/clock/clock.ts';
import { ANSWER_TIMEOUT_MS, FRAME_TIMEOUT_MS, MAX_CONNECTIONS, MAX_IN_FLIGHT, serveControl } from '../../../daemon/control/server.ts';
import type { ControlCall, ControlServer } from '../../../daemon/control/server.ts';
import { silentLog } from '../../../daemon/log.ts';
import type { Log } from '../../../daemon/log.ts';
import { decode, encode } from '../../../protocol/codec.ts';
import type { ControlResponse } from '../../../protocol/control.ts';
import { AxError } from '../../../protocol/errors.ts';
import { encodeFrame } from '../../../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../../../protocol/limits.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../../protocol/version.ts';
import { readFrames } from '../../framing.ts';

class TestClock implements Clock {
  #now = 0;
  readonly #timers = new Set<{ due: number; run: () => void }>();

  now(): number {
    return this.#now;
  }

  monotonic(): number {
    return this.#now;
  }

  after(delayMs: number, run: () => void): () => void {
    const timer = { due: this.#now + delayMs, run };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  get pending(): number {
    return this.#timers.size;
  }

  advance(ms: number): void {
    this.#now += ms;
    const due = [...this.#timers].filter((timer) => timer.due <= this.#now);
    for (const timer of due) if (this.#timers.delete(timer)) timer.run();
  }
}

interface Rig {
  readonly path: string;
  readonly clock: TestClock;
  readonly server: ControlServer;
  connect(): Promise<Socket>;
}

async function rig(t: TestContext, call: ControlCall, log: Log = silentLog): Promise<Rig> {
  const folder = mkdtempSync(join(tmpdir(), 'ax-ctl-'));
  const path = join(folder, 'control.sock');
  const clock = new TestClock();
  const server = await serveControl({ path, call, log, clock });
  const sockets: Socket[] = [];
  t.after(async () => {
    for (const socket of sockets) socket.destroy();
    await server.close();
    rmSync(folder, { recursive: true });
  });
  const connect = async (): Promise<Socket> => {
    const socket = createConnection({ path });
    sockets.push(socket);
    socket.on('error', () => socket.destroy());
    await once(socket, 'connect');
    return socket;
  };
  return { path, clock, server, connect };
}

const ORIGIN = { harness: null, harness_version: null, session_id: null, workspace: '/w', integration: 'cli' };

function request(fields: object = {}): Uint8Array {
  return encodeFrame(encode({ v: CONTROL_PROTOCOL, id: 7, method: 'host.id', params: {}, origin: ORIGIN, session: null, ...fields }));
}

async function* answers(socket: Socket): AsyncGenerator<ControlResponse> {
  for await (const frame of readFrames(socket)) yield decode(frame) as unknown as ControlResponse;
}

async function ask(socket: Socket, frame: Uint8Array): Promise<ControlResponse> {
  socket.write(frame);
  for await (const answer of answers(socket)) return answer;
  throw new Error('closed without an answer');
}

function errorOf(answer: ControlResponse): { code: string; message: string } {
  if (answer.ok) throw new Error('not a refusal');
  return answer.error;
}

const echo: ControlCall = async (method, params, actor) => ({ method, params, actor });

test('a request reaches the call with its params, origin and session, and the answer carries its number', async (t) => {
  const { connect } = await rig(t, echo);
  const session = { harness: 'claude', session_id: 's', pid: 12, socket: '/tmp/s', config_dir: null };
  const answer = await ask(await connect(), request({ id: 41, params: { body: new Uint8Array([0, 255]) }, session }));
  assert.deepEqual(answer, {
    v: CONTROL_PROTOCOL,
    id: 41,
    ok: true,
    result: { method: 'host.id', params: { body: new Uint8Array([0, 255]) }, actor: { origin: ORIGIN, session } },
  });
});

test('socket and folder are for the owner only', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'ax-ctl-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'made', 'control.sock');
  const server = await serveControl({ path, call: echo, log: silentLog, clock: new TestClock() });
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.equal(statSync(join(folder, 'made')).mode & 0o777, 0o700);
  await server.close();
  assert.equal(existsSync(path), false);
});

test('a folder that others may enter, a symbolic link and a file in the way are refused, a dead socket is replaced', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'ax-ctl-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const serve = (path: string): Promise<ControlServer> => serveControl({ path, call: echo, log: silentLog, clock: new TestClock() });
  mkdirSync(join(folder, 'open'), { mode: 0o700 });
  chmodSync(join(folder, 'open'), 0o750);
  await assert.rejects(serve(join(folder, 'open', 's')), { code: 'invalid_state', fix: `chmod 700 ${join(folder, 'open')}` });
  mkdirSync(join(folder, 'own'), { mode: 0o700 });
  symlinkSync(join(folder, 'own'), join(folder, 'link'));
  await assert.rejects(serve(join(folder, 'link', 's')), { code: 'invalid_state' });
  writeFileSync(join(folder, 'own', 'file'), '');
  await assert.rejects(serve(join(folder, 'own', 'file')), { code: 'invalid_state' });
  const dead = join(folder, 'own', 's');
  const other = createServer().listen(dead);
  await once(other, 'listening');
  const server = await serve(dead);
  assert.equal(statSync(dead).mode & 0o777, 0o600);
  await server.close();
  other.close();
});

test('another protocol version is told both versions; greeting and stopping work across versions', async (t) => {
  const { connect } = await rig(t, echo);
  const refused = errorOf(await ask(await connect(), request({ v: 99 })));
  assert.equal(refused.code, 'update_required');
  assert.match(refused.message, new RegExp(`${AX_VERSION}.* ${CONTROL_PROTOCOL}, .*99`));
  for (const method of ['daemon.hello', 'daemon.stop']) {
    const answer = await ask(await connect(), request({ v: 99, method, params: 'anything', origin: 3 }));
    assert.equal(answer.ok, true);
  }
  const unknown = errorOf(await ask(await connect(), request({ method: 'host.fly' })));
  assert.equal(unknown.code, 'update_required');
});

test('only codes of the table leave; what a fault says goes to the log', async (t) => {
  const logged: unknown[] = [];
  const log = { ...silentLog, error: (...entry: unknown[]) => void logged.push(entry) };
  const { connect } = await rig(
    t,
    async (_method, params) => {
      if (params['kind'] === 'refusal')
        throw new AxError('host_not_found', 'no such host', { fix: 'ax host list', details: { host: 'x' } });
      throw new TypeError('secret /path');
    },
    log,
  );
  const refusal = errorOf(await ask(await connect(), request({ params: { kind: 'refusal' } })));
  assert.deepEqual(refusal, {
    code: 'host_not_found',
    message: 'no such host',
    retryable: false,
    fix: 'ax host list',
    details: { host: 'x' },
  });
  assert.equal(logged.length, 0);
  const internal = errorOf(await ask(await connect(), request()));
  assert.equal(internal.code, 'internal');
  assert.doesNotMatch(internal.message, /secret/);
  assert.match(JSON.stringify(logged), /secret/);
});

test('an origin out of bounds is refused and the connection goes on', async (t) => {
  const { connect } = await rig(t, echo);
  const socket = await connect();
  const seen = answers(socket);
  socket.write(request({ origin: { ...ORIGIN, harness: 'a\u001b[2J' } }));
  assert.equal(errorOf((await seen.next()).value as ControlResponse).code, 'invalid_argument');
  socket.write(request({ origin: { ...ORIGIN, session_id: 'x'.repeat(300) } }));
  assert.equal(errorOf((await seen.next()).value as ControlResponse).code, 'too_large');
  socket.write(request());
  assert.equal(((await seen.next()).value as ControlResponse).ok, true);
});

test('an answer over the frame limit is refused as too large', async (t) => {
  const { connect } = await rig(t, async () => ({ body: new Uint8Array(MAX_FRAME_BYTES) }));
  assert.equal(errorOf(await ask(await connect(), request())).code, 'too_large');
});

test('bytes that are no request get one protocol_violation and a closed connection', async (t) => {
  const { connect } = await rig(t, echo);
  const huge = new Uint8Array(4);
  new DataView(huge.buffer).setUint32(0, MAX_FRAME_BYTES + 1);
  const inputs = [
    new TextEncoder().encode('GET / HTTP/1.1\r\n\r\n'),
    huge,
    new Uint8Array(4),
    encodeFrame(new Uint8Array([0xff, 0xff])),
    encodeFrame(encode('text')),
    encodeFrame(encode({ v: 1, method: 'host.id' })),
    request({ params: 5 }),
    request({ session: { harness: 'claude', session_id: 's', socket: '/s', pid: -1 } }),
  ];
  for (const input of inputs) {
    const socket = await connect();
    socket.write(input);
    const got: ControlResponse[] = [];
    for await (const answer of answers(socket)) got.push(answer);
    assert.deepEqual(
      got.map((answer) => errorOf(answer).code),
      ['protocol_violation'],
    );
  }
  assert.equal((await ask(await connect(), request())).ok, true);
});

test('a frame that begins and does not end is ended by the clock', async (t) => {
  const { connect, clock } = await rig(t, echo);
  const socket = await connect();
  const first = answers(socket);
  // A whole request first: its answer proves that the server has read the beginning of the second as well.
  socket.write(Buffer.concat([request(), request().subarray(0, 9)]));
  assert.equal(((await first.next()).value as ControlResponse).ok, true);
  clock.advance(FRAME_TIMEOUT_MS);
  const next = await first.next();
  assert.equal(errorOf(next.value as ControlResponse).code, 'protocol_violation');
  assert.equal((await first.next()).done, true);
});

test('a frame that goes on coming is ended all the same, ten seconds after it began', async (t) => {
  const { connect, clock } = await rig(t, echo);
  const socket = await connect();
  const first = answers(socket);
  const next = request();
  socket.write(Buffer.concat([request(), next.subarray(0, 9)]));
  assert.equal(((await first.next()).value as ControlResponse).ok, true);
  clock.advance(FRAME_TIMEOUT_MS - 1);
  // The answer to another connection proves that the server has had its turn since.
  socket.write(next.subarray(9, 12));
  assert.equal((await ask(await connect(), request())).ok, true);
  clock.advance(1);
  assert.equal(errorOf((await first.next()).value as ControlResponse).code, 'protocol_violation');
});

test('requests of one chunk are begun eight in a turn, in order, and the timer that watches them is one', async (t) => {
  /** How many were begun in each turn. */
  const turns: number[] = [];
  let isNew = true;
  const { connect, clock } = await rig(t, async () => {
    if (isNew) {
      isNew = false;
      turns.push(0);
      process.nextTick(() => void (isNew = true));
    }
    turns[turns.length - 1]! += 1;
    return {};
  });
  const socket = await connect();
  socket.write(Buffer.concat(Array.from({ length: 40 }, (_, id) => request({ id }))));
  const ids: number[] = [];
  for await (const answer of answers(socket)) if (ids.push(answer.id) === 40) break;
  assert.deepEqual(turns, [8, 8, 8, 8, 8]);
  assert.deepEqual(
    ids,
    Array.from({ length: 40 }, (_, id) => id),
  );
  assert.ok(clock.pending <= 1, `${clock.pending} timers`);
});

test('what comes in further chunks in the same turn waits for the next one as well', async (t) => {
  const turns: number[] = [];
  let isNew = true;
  const { connect } = await rig(t, async () => {
    if (isNew) {
      isNew = false;
      turns.push(0);
      setImmediate(() => void (isNew = true));
    }
    turns[turns.length - 1]! += 1;
    return {};
  });
  const socket = await connect();
  // Far more than one read brings: several chunks are here when the first of them is taken.
  const params = { pad: 'x'.repeat(4000) };
  socket.write(Buffer.concat(Array.from({ length: 40 }, (_, id) => request({ id, params }))));
  let answered = 0;
  for await (const answer of answers(socket)) if (answer.ok && (answered += 1) === 40) break;
  assert.equal(Math.max(...turns), 8, String(turns));
});

test(`no more than ${MAX_IN_FLIGHT} requests of a connection are under way at once`, async (t) => {
  const waiting: (() => void)[] = [];
  let most = 0;
  const { connect } = await rig(t, async () => {
    await new Promise<void>((resolve) => {
      waiting.push(resolve);
      most = Math.max(most, waiting.length);
      if (waiting.length === MAX_IN_FLIGHT) setImmediate(() => setImmediate(() => waiting.splice(0).forEach((release) => release())));
    });
    return {};
  });
  const socket = await connect();
  const total = MAX_IN_FLIGHT * 3;
  socket.write(Buffer.concat(Array.from({ length: total }, (_, id) => request({ id }))));
  const ids = new Set<number>();
  for await (const answer of answers(socket)) {
    ids.add(answer.id);
    if (ids.size === total) break;
  }
  assert.equal(most, MAX_IN_FLIGHT);
});

test('a client that does not read holds few answers and is closed by the clock', async (t) => {
  let calls = 0;
  const answered = Promise.withResolvers<void>();
  const { connect, clock } = await rig(t, async () => {
    calls += 1;
    if (calls === MAX_IN_FLIGHT) answered.resolve();
    return { body: new Uint8Array(100_000) };
  });
  const socket = await connect();
  socket.pause();
  const total = MAX_IN_FLIGHT * 8;
  socket.write(Buffer.concat(Array.from({ length: total }, (_, id) => request({ id }))));
  const closed = once(socket, 'close');
  // The first answers fill the socket's buffers; from then on no further request is begun.
  while (clock.pending === 0) await new Promise((resolve) => void setImmediate(resolve));
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => void setImmediate(resolve));
  assert.ok(calls <= MAX_IN_FLIGHT + 16, `${calls} calls for a client that reads nothing`);
  clock.advance(ANSWER_TIMEOUT_MS);
  socket.resume();
  await closed;
  assert.ok(calls < total);
});

test(`connection ${MAX_CONNECTIONS + 1} is told the limit`, async (t) => {
  const { connect } = await rig(t, echo);
  const sockets = await Promise.all(Array.from({ length: MAX_CONNECTIONS }, connect));
  const extra = await connect();
  for await (const answer of answers(extra)) assert.equal(errorOf(answer).code, 'limit');
  const first = sockets[0]!;
  assert.equal((await ask(first, request())).ok, true);
});

test('closing lets an answer under way go out, ends idle connections and removes the socket', async (t) => {
  const begun = Promise.withResolvers<void>();
  const release = Promise.withResolvers<void>();
  const { connect, server, path } = await rig(t, async () => {
    begun.resolve();
    await release.promise;
    return { late: true };
  });
  const idle = await connect();
  const busy = await connect();
  const answer = ask(busy, request());
  await begun.promise;
  const closing = server.close();
  release.resolve();
  assert.deepEqual((await answer).ok, true);
  await closing;
  assert.equal(existsSync(path), false);
  idle.resume();
  if (!idle.closed) await once(idle, 'close');
});

test('a client that half-closes after its request still gets the answer', async (t) => {
  const { connect } = await rig(t, echo);
  const socket = await connect();
  socket.end(request());
  const got: boolean[] = [];
  for await (const answer of answers(socket)) got.push(answer.ok);
  assert.deepEqual(got, [true]);
});

test('no bytes make the server fail', async (t) => {
  const { connect } = await rig(t, echo);
  const whole = request();
  await fc.assert(
    fc.asyncProperty(
      fc.oneof(
        fc.uint8Array({ maxLength: 300 }),
        fc.nat(whole.length * 8 - 1).map((bit) => flipped(whole, bit)),
      ),
      async (bytes) => {
        const socket = await connect();
        socket.end(bytes);
        for await (const frame of readFrames(socket)) assert.equal(typeof (decode(frame) as { ok?: unknown }).ok, 'boolean');
      },
    ),
    { numRuns: 300 },
  );
  assert.equal((await ask(await connect(), request())).ok, true);
});

function flipped(bytes: Uint8Array, bit: number): Uint8Array {
  const copy = Uint8Array.from(bytes);
  copy[bit >> 3]! ^= 1 << (bit & 7);
  return copy;
}
