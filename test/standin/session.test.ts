/** The stand-in session is what the tests rest on: it holds and guards as the genuine program does, obeys only commands, and never stays behind. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { commandsIn } from './model.ts';
import type { StandInOptions } from './options.ts';
import { startStandIn, type StandIn } from './spawn.ts';

async function withStandIn(options: Partial<StandInOptions>, body: (standIn: StandIn, dir: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'axs-'));
  try {
    const standIn = await startStandIn({ configDir: join(dir, 'c'), socketDir: join(dir, 's'), cwd: dir, ...options });
    try {
      await body(standIn, dir);
    } finally {
      await standIn.stop();
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

async function write(standIn: StandIn, ...lines: readonly string[]): Promise<void> {
  const socket = createConnection({ path: standIn.socket });
  socket.resume();
  socket.on('error', () => socket.destroy()); // being cut off is one of the right answers
  const closed = new Promise<void>((resolve) => void socket.once('close', () => resolve()));
  socket.end(lines.join('\n'));
  await closed;
  await standIn.send({ cmd: 'state' });
}

const frame = (content: unknown, more: object = {}): string =>
  JSON.stringify({ type: 'user', message: { role: 'user', content }, ...more });
const decisions = (standIn: StandIn): string[] => standIn.all('frame').map((one) => `${one.decision} ${one.cause}`);

test('record, key and socket stand with their modes while it lives, and go with it', async () => {
  await withStandIn({}, async (standIn, dir) => {
    const record = JSON.parse(readFileSync(standIn.record, 'utf8')) as Record<string, unknown>;
    assert.deepEqual(
      [record['pid'], record['sessionId'], record['messagingSocketPath'], record['status']],
      [standIn.pid, standIn.sessionId, standIn.socket, 'idle'],
    );
    const mode = (path: string): number => statSync(path).mode & 0o777;
    assert.deepEqual([mode(join(dir, 'c', 'sessions')), mode(join(dir, 's')), mode(standIn.socket)], [0o700, 0o700, 0o600]);
    await standIn.stop();
    assert.deepEqual([...readdirSync(join(dir, 'c', 'sessions')), ...readdirSync(join(dir, 's'))], []);
  });
});

test('what is not a message is ignored, and the messages after it are taken', async () => {
  await withStandIn({ autorun: false }, async (standIn) => {
    await write(
      standIn,
      'not json',
      'null',
      '{"type":"auth","token":"x"}',
      '{"type":"new"}',
      frame(''),
      frame([]),
      frame('whole'),
      frame('without an end'),
    );
    assert.deepEqual(
      standIn.all('frame').map((one) => one.content),
      ['whole', 'without an end'],
    );
    await write(standIn, frame('other', { session_id: '00000000-0000-4000-8000-000000000000' }), frame('whole'));
    assert.deepEqual(decisions(standIn).slice(2), ['dropped session_id mismatch', 'dropped duplicate']);
  });
});

test('a burst of more than 30 is cut silently', async () => {
  await withStandIn({ autorun: false }, async (standIn) => {
    await write(standIn, ...Array.from({ length: 40 }, (_, at) => frame(`message ${at}`)));
    assert.deepEqual(decisions(standIn).filter((one) => one === 'dropped rate-limited').length, 10);
  });
});

test('what holds a message: the policy, or a mode that was not claimed', async () => {
  const wrapped = (mode: string): string => frame(`<cross-session-message from-name="x"${mode}>\ntext\n</cross-session-message>`);
  const cases: [Partial<StandInOptions>, string, string][] = [
    [{}, '', 'queued accepted'],
    [{}, ' from-mode="bypass"', 'held mode-mismatch'],
    [{ mode: 'bypass' }, '', 'held no-mode-asserted'],
    [{ mode: 'bypass' }, ' from-mode="bypass"', 'queued accepted'],
    [{ mode: 'bypass', inbound: 'accept' }, '', 'queued accepted'],
    [{ inbound: 'hold' }, '', 'held hold'],
    [{ inbound: 'refuse' }, '', 'refused refuse'],
  ];
  for (const [options, mode, expected] of cases) {
    await withStandIn({ autorun: false, ...options }, async (standIn) => {
      await write(standIn, wrapped(mode));
      assert.deepEqual(decisions(standIn), [expected]);
    });
  }
});

test('a held message is read once its user approves; an open question shows as waiting', async () => {
  await withStandIn({ mode: 'bypass', autorun: false }, async (standIn) => {
    await write(standIn, frame('text'));
    const { sessionId, status, queued, held } = await standIn.send({ cmd: 'state' });
    assert.deepEqual([sessionId, status, queued, held], [standIn.sessionId, 'waiting', 0, 1]);
    await standIn.send({ cmd: 'approve' });
    assert.deepEqual((await standIn.next('turn')).contents, ['text']);
  });
});

test('a busy session reads at the next tool boundary, in the same turn', async () => {
  await withStandIn({ autorun: false }, async (standIn) => {
    await standIn.send({ cmd: 'busy' });
    await write(standIn, frame('text'));
    assert.equal(standIn.all('turn').length, 0);
    await standIn.send({ cmd: 'boundary' });
    assert.deepEqual(
      standIn.all('turn').map((turn) => turn.folded),
      [true],
    );
  });
});

test('commands have the environment of their session and follow each other', async () => {
  await withStandIn({ env: { EXTRA: 'x' }, claudeConfigDir: '/somewhere' }, async (standIn) => {
    await standIn.send({
      cmd: 'run',
      command:
        'echo $CLAUDECODE $CLAUDE_PID $CLAUDE_CODE_SESSION_ID $CLAUDE_CODE_MESSAGING_SOCKET $CLAUDE_CODE_ENTRYPOINT $CLAUDE_CONFIG_DIR $EXTRA',
    });
    assert.equal((await standIn.next('ran')).stdout, `1 ${standIn.pid} ${standIn.sessionId} ${standIn.socket} cli /somewhere x\n`);
  });
});

test('where the token is required, a connection that does not begin with it is closed and delivers nothing', async () => {
  await withStandIn({ autorun: false, requiresAuth: true }, async (standIn, dir) => {
    const key = readdirSync(join(dir, 'c', 'sessions')).find((name) => name.endsWith('.key')) ?? '';
    const { peerToken: token } = JSON.parse(readFileSync(join(dir, 'c', 'sessions', key), 'utf8')) as { peerToken: string };
    const auth = (word: string): string => JSON.stringify({ type: 'auth', token: word });
    for (const lines of [[frame('none')], [auth('wrong'), frame('wrong')], [frame('late'), auth(token), frame('late')]])
      await write(standIn, ...lines);
    await write(standIn, auth(token), frame('right'));
    assert.deepEqual(
      standIn.all('frame').map((one) => one.content),
      ['right'],
    );
  });
});

test('only a line that is nothing but one ax command is a command', () => {
  const commands = [
    "/opt/x/ax messages fetch 01ab --workspace '/a b'",
    'ax agent setup --name a --workspace /w',
    "'/a b/ax' --state-dir /s messages fetch 01ab",
  ];
  for (const command of commands)
    for (const before of ['', '  ', '$ ', 'next: ', 'fix: ']) assert.deepEqual(commandsIn(`words\n${before}${command}\nmore`), [command]);
  const others = [
    'ax agent setup; rm x',
    'ax $(x)',
    'ax "a"',
    'run ax agent setup',
    'ax: a message waits',
    '/x/axe y',
    'ax a > b',
    'reply: ax messages reply 01 --file -   (words)',
    "ax 'a",
  ];
  for (const line of others) assert.deepEqual(commandsIn(line), [], line);
});

test('a stand-in whose starter is killed ends by itself and takes its files along', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'axs-'));
  const options: StandInOptions = { configDir: join(dir, 'c'), socketDir: join(dir, 's'), cwd: dir };
  const program = `import { startStandIn } from ${JSON.stringify(new URL('./spawn.ts', import.meta.url).href)};
    const standIn = await startStandIn(${JSON.stringify(options)});
    process.stdout.write(JSON.stringify({ socket: standIn.socket, record: standIn.record }) + '\\n');`;
  const starter = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const [line] = (await once(starter.stdout, 'data')) as [Buffer];
    const { socket: path, record } = JSON.parse(line.toString('utf8')) as { socket: string; record: string };
    const socket = createConnection({ path });
    socket.resume();
    await once(socket, 'connect');
    const closed = once(socket, 'close', { signal: AbortSignal.timeout(10_000) });
    starter.kill('SIGKILL');
    await closed;
    const { promise: gone, resolve } = Promise.withResolvers<void>();
    const look = (): void => (existsSync(record) ? void setImmediate(look) : resolve());
    look();
    await gone;
  } finally {
    starter.kill('SIGKILL');
    rmSync(dir, { recursive: true, force: true });
  }
});
