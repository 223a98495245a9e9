/** The stand-in Codex daemon is what the tests rest on: it queues, pauses and refuses as the genuine one, and tells who steers. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { lstatSync, mkdtempSync, readdirSync, readlinkSync, rmSync, statSync } from 'node:fs';
import { createConnection } from 'node:net';
import { dirname, join } from 'node:path';
import { tmpdir } from 'node:os';
import { test } from 'node:test';
import { introduction, PlainClient, type Answer } from './client.ts';
import type { Fault, StandInCodexOptions, ThreadOptions } from './options.ts';
import { startStandInCodex, type StandInCodex } from './spawn.ts';

interface Scene {
  readonly dir: string;
  readonly daemon: StandInCodex;
  readonly client: PlainClient;
}

async function withDaemon(options: Partial<StandInCodexOptions>, body: (scene: Scene) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir().length > 20 ? '/tmp' : tmpdir(), 'axk-'));
  const daemon = await startStandInCodex({ home: join(dir, 'h'), autorun: false, ...options });
  try {
    const client = await PlainClient.connect(daemon.socket);
    await body({ dir, daemon, client });
    client.end();
  } finally {
    await daemon.kill();
    rmSync(dir, { recursive: true, force: true });
  }
}

const add = (client: PlainClient, threadId: string, text: string, clientUserMessageId = `ax-${text}`): Promise<Answer> =>
  client.ask('thread/queue/add', { threadId, clientUserMessageId, input: [{ type: 'text', text }] });
const texts = (daemon: StandInCodex): string[] => daemon.all('turn').map((turn) => turn.text);
const refusal = async (answer: Promise<Answer>): Promise<string> => {
  const { error } = await answer;
  return `${error?.code} ${error?.message}`;
};

test('the socket is a link into a private folder, and both go with the daemon; a killed one leaves both', async () => {
  const dir = mkdtempSync(join('/tmp', 'axk-'));
  const options = { home: join(dir, 'h'), socketRoot: join(dir, 'r') };
  const connect = async (path: string): Promise<unknown> => {
    const socket = createConnection({ path });
    return once(socket, 'connect').then(
      () => socket.destroy(),
      (error: NodeJS.ErrnoException) => error.code,
    );
  };
  try {
    const daemon = await startStandInCodex(options);
    assert.equal(readlinkSync(daemon.socket), daemon.target);
    const modes = [dirname(daemon.socket), dirname(daemon.target), daemon.target].map((path) => statSync(path).mode & 0o777);
    assert.deepEqual(modes, [0o700, 0o700, 0o600]);
    await daemon.stop();
    assert.deepEqual(
      [...readdirSync(dirname(daemon.socket)), ...readdirSync(dirname(daemon.target))],
      [`${daemon.target.split('/').at(-1)}.lock`],
    );
    assert.equal(await connect(daemon.socket), 'ENOENT');
    const killed = await startStandInCodex(options);
    await killed.kill();
    assert.equal(await connect(killed.socket), 'ECONNREFUSED');
    const stale = await startStandInCodex(options);
    await stale.send({ cmd: 'stale_socket' });
    assert.equal(await connect(stale.socket), 'ECONNREFUSED');
    assert.equal(lstatSync(stale.target).isSocket(), true);
    await stale.kill();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test('a client introduces itself once; what is no request is ignored, and what is no WebSocket ends', async () => {
  await withDaemon({}, async ({ daemon, client }) => {
    const other = await PlainClient.connect(daemon.socket, { initialize: false });
    assert.equal(await refusal(other.ask('thread/loaded/list')), '-32600 Not initialized');
    assert.equal(await refusal(other.ask('initialize')), '-32600 Invalid request: missing field `clientInfo`');
    assert.match(await refusal(other.ask('thread/new')), /unknown variant/);
    other.say('no json');
    other.say('[1]');
    other.say(Buffer.from('{"id":9,"method":"initialize"}'));
    const { result } = await other.ask('initialize', introduction(false, ['configWarning']));
    assert.match(result?.['userAgent'], /^ax\/0\.171\.0 .* \(ax; 0\.1\.0\)$/);
    assert.equal(await refusal(other.ask('initialize', introduction(true, []))), '-32600 Already initialized');
    assert.equal(
      await refusal(other.ask('thread/queue/list', { threadId: 'x' })),
      '-32600 thread/queue/list requires experimentalApi capability',
    );
    assert.match(await refusal(other.ask('thread/new')), /^-32600 Invalid request: unknown variant `thread\/new`, expected one of /);
    assert.equal(await refusal(other.ask('thread/read')), '-32600 Invalid request: missing field `threadId`');
    assert.deepEqual(
      other.heard.flatMap((one) => one.method ?? []),
      ['remoteControl/status/changed'],
    );
    await client.until((one) => one.method === 'configWarning');
    for (const words of ['{"id":1,"method":"initialize"}\n', 'GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n']) {
      const socket = createConnection({ path: daemon.socket });
      let said = '';
      socket.on('data', (chunk) => (said += chunk.toString('utf8')));
      socket.on('error', () => socket.destroy()); // being cut off is the answer
      socket.write(words);
      await once(socket, 'close');
      assert.equal(said, '');
    }
  });
});

test('an idle thread runs what is queued, one turn for each in order; a busy one after its own turn', async () => {
  await withDaemon({}, async ({ daemon, client, dir }) => {
    const thread = await daemon.thread({ cwd: dir, turnless: true });
    await Promise.all(['1', '2', '3'].map((text) => add(client, thread, text)));
    await daemon.until((event) => event.event === 'turn' && event.text === '3');
    assert.deepEqual(texts(daemon), ['1', '2', '3']);
    await daemon.until((event) => event.event === 'turn_end' && daemon.all('turn_end').length === 3);
    await daemon.send({ cmd: 'turn', thread });
    const { result } = await add(client, thread, '4');
    assert.equal(result?.['queuedSubmission'].clientUserMessageId, 'ax-4');
    await daemon.send({ cmd: 'flags', thread, flags: ['waitingOnApproval'] });
    const read = await client.ask('thread/read', { threadId: thread });
    assert.deepEqual(read.result?.['thread'].status, { type: 'active', activeFlags: ['waitingOnApproval'] });
    const list = await client.ask('thread/queue/list', { threadId: thread });
    assert.deepEqual(
      list.result?.['data'].map((item: { clientUserMessageId: string }) => item.clientUserMessageId),
      ['ax-4'],
    );
    await daemon.send({ cmd: 'end_turn', thread, how: 'failed' });
    await daemon.until((event) => event.event === 'turn' && event.text === '4');
    assert.deepEqual(daemon.trespasses, []);
  });
});

test('after an interruption everything waits, across a restart too, until a turn of the user', async () => {
  await withDaemon({}, async ({ daemon, client, dir }) => {
    const thread = await daemon.thread({ cwd: dir });
    await daemon.send({ cmd: 'turn', thread });
    await add(client, thread, 'early');
    await daemon.send({ cmd: 'end_turn', thread, how: 'interrupted' });
    await add(client, thread, 'late');
    assert.deepEqual(await daemon.pending(thread), ['ax-early', 'ax-late']);
    await daemon.stop();
    const again = await startStandInCodex(daemon.options);
    const next = await PlainClient.connect(again.socket);
    assert.deepEqual((await next.ask('thread/loaded/list')).result, { data: [], nextCursor: null });
    const { result } = await next.ask('thread/read', { threadId: thread });
    assert.deepEqual([result?.['thread'].status.type, result?.['thread'].canAcceptDirectInput], ['notLoaded', null]);
    await again.send({ cmd: 'resume', thread });
    assert.deepEqual(await again.pending(thread), ['ax-early', 'ax-late']);
    await again.send({ cmd: 'turn', thread });
    await again.send({ cmd: 'end_turn', thread });
    await again.until((event) => event.event === 'turn' && event.text === 'late');
    assert.deepEqual(texts(again).slice(1), ['early', 'late']);
    await again.stop();
  });
});

test('what is not loaded keeps its items; a thread without a viewer is unloaded after a while, and everybody hears of it', async () => {
  await withDaemon({ unloadDelayMs: 50, ownerPollMs: 20 }, async ({ daemon, client, dir }) => {
    const [left, embedded] = [await daemon.thread({ cwd: dir }), await daemon.thread({ cwd: dir, embedded: true })];
    await daemon.send({ cmd: 'leave', thread: left });
    await client.until((one) => one.method === 'thread/closed' && one.params?.['threadId'] === left);
    await add(client, left, 'waits');
    await add(client, embedded, 'elsewhere');
    await daemon.until((event) => event.event === 'turn' && event.text === 'elsewhere');
    assert.deepEqual(await daemon.pending(left), ['ax-waits']);
    assert.deepEqual((await client.ask('thread/read', { threadId: embedded })).result?.['thread'].status, { type: 'notLoaded' });
    await daemon.send({ cmd: 'resume', thread: left });
    await daemon.until((event) => event.event === 'turn' && event.text === 'waits');
  });
});

test('every refusal of an item has its own words, and stores nothing', async () => {
  await withDaemon({}, async ({ daemon, client, dir }) => {
    const make = (options: Partial<ThreadOptions> = {}): Promise<string> => daemon.thread({ cwd: dir, ...options });
    const other = '0190aaaa-0000-7000-8000-000000000001';
    const cases: [string, RegExp][] = [
      ['a name', /^-32600 invalid thread id: /],
      [other, /^-32603 failed to read thread: .*no rollout found for thread id 0190aaaa/],
      [await make({ ephemeral: 'title' }), /^-32600 ephemeral thread does not support queued submissions: /],
      [await make({ archived: true }), /^-32600 session .* is archived\. Run /],
      [await make({ paused: true, filled: 100 }), /^-32600 queue cannot contain more than 100 submissions$/],
      [await make({ parent: other, direct: false }), /^-32600 direct app-server input is not allowed for multi-agent v2 sub-agents$/],
    ];
    for (const [thread, words] of cases) assert.match(await refusal(add(client, thread, 'x')), words);
    const thread = await make();
    assert.equal(
      await refusal(client.ask('thread/queue/add', { threadId: thread, clientUserMessageId: '', input: [] })),
      '-32600 only user input can be added to the user-message queue',
    );
    assert.match(await refusal(add(client, thread, 'x'.repeat(1_048_577))), /^-32602 Input exceeds/);
    assert.match(await refusal(client.ask('thread/queue/add', { threadId: thread, input: [] })), /missing field `clientUserMessageId`$/);
    assert.equal(daemon.all('queued').length, 0);
    const first = await client.ask('thread/queue/list', { threadId: cases[4]?.[0] });
    assert.deepEqual([first.result?.['data'].length, first.result?.['nextCursor']], [25, '25']);
    const all = await client.ask('thread/queue/list', { threadId: cases[4]?.[0], limit: 1000 });
    assert.deepEqual([all.result?.['data'].length, all.result?.['nextCursor']], [100, null]);
  });
});

test('whoever touches a running turn, a pause or a subscription is told as steering', async () => {
  await withDaemon({}, async ({ daemon, client, dir }) => {
    const thread = await daemon.thread({ cwd: dir });
    await daemon.send({ cmd: 'turn', thread });
    const input = [{ type: 'text', text: 'x' }];
    const asked: [string, object][] = [
      ['turn/start', { input }],
      ['turn/steer', { input }],
      ['turn/interrupt', { turnId: 'x' }],
      ['thread/resume', {}],
      ['thread/queue/start', {}],
      ['thread/inject_items', { items: [] }],
    ];
    for (const [method, params] of asked) await client.ask(method, { threadId: thread, ...params });
    await daemon.send({ cmd: 'state' });
    assert.deepEqual(
      daemon.all('STEERED').map((one) => one.method),
      asked.map(([method]) => method),
    );
    await client.ask('server/diagnostics');
    assert.equal(daemon.trespasses.includes('server/diagnostics'), true);
  });
});

test('a request goes wrong as it is told to, once, and the connection with it', async () => {
  await withDaemon({}, async ({ daemon, client, dir }) => {
    const thread = await daemon.thread({ cwd: dir, paused: true });
    const wrong = (fault: Fault): Promise<void> => daemon.fault('thread/queue/add', fault);
    await wrong({ kind: 'overload' });
    assert.match(await refusal(add(client, thread, 'a')), /^-32001 /);
    await wrong({ kind: 'unknown_variant' });
    assert.match(await refusal(add(client, thread, 'a')), /unknown variant `thread\/queue\/add`, expected/);
    await wrong({ kind: 'result', result: { queuedItem: 1 } });
    assert.deepEqual((await add(client, thread, 'a')).result, { queuedItem: 1 });
    await wrong({ kind: 'hold' });
    const held = add(client, thread, 'held');
    await daemon.until((event) => event.event === 'queued');
    await daemon.send({ cmd: 'release' });
    assert.notEqual((await held).result, undefined);
    for (const kind of ['silent_before', 'silent_after'] as const) {
      await wrong({ kind });
      void add(client, thread, kind).catch(() => undefined); // it ends with the connection
    }
    for (const kind of ['drop_before', 'drop_after'] as const) {
      await wrong({ kind });
      const one = await PlainClient.connect(daemon.socket);
      await assert.rejects(add(one, thread, kind), /the connection ended/);
    }
    assert.deepEqual(await daemon.pending(thread), ['ax-held', 'ax-silent_after', 'ax-drop_after']);
  });
});

test('commands have the environment of their thread and not that of another session', async () => {
  await withDaemon({ env: { EXTRA: 'x' } }, async ({ daemon, dir }) => {
    const thread = await daemon.thread({ cwd: dir });
    await daemon.send({
      cmd: 'run',
      thread,
      command: 'echo $CODEX_THREAD_ID $CODEX_SESSION_ID $CODEX_CI $CODEX_HOME $CODEX_VERSION [$CLAUDECODE] $EXTRA; pwd',
    });
    const { stdout } = await daemon.next('ran');
    assert.equal(stdout, `${thread} ${thread} 1 ${join(dir, 'h')} 0.171.0 [] x\n${dir}\n`);
  });
});
