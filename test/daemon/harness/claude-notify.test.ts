/** One attempt to nudge a Claude Code session: the frame, the reply sockets, and the receipts, friendly and hostile. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, lstatSync, mkdirSync, readdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { parseReceipt } from '../../../daemon/harness/claude-replies.ts';
import { ClaudeRig, realClock, withRig } from './rig.ts';

const id = (n: number): string => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`;
const receipt = (noticeId: string, status: string, more: object = {}): string =>
  `${JSON.stringify({ type: 'control', action: 'peer_message_status', status, from: 'uds:/x/1.sock', orig_msg_id: noticeId, msgV: 1, msg_id: id(999), ...more })}\n`;

function replySocket(rig: ClaudeRig, folder = rig.socketDir): string {
  const name = readdirSync(folder).find((one) => one.startsWith('ax-'));
  assert.ok(name !== undefined, 'there is a reply socket');
  return join(folder, name);
}

/** Writes to a reply socket as a session would and resolves when the other side has closed, whatever it did. */
async function say(path: string, bytes: string | Uint8Array): Promise<void> {
  const { socket, closed } = connectTo(path);
  socket.end(bytes);
  await closed;
}

function connectTo(path: string): { socket: Socket; closed: Promise<void> } {
  const socket = createConnection({ path });
  const closed = new Promise<void>((resolve) => void socket.once('close', () => resolve()));
  socket.on('error', () => socket.destroy()); // being cut off is one of the right answers
  socket.resume();
  return { socket, closed };
}

test('the frame is one line of the agreed form and claims no mode', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    assert.deepEqual(await rig.harness.notify(await rig.see(standIn), { id: id(1), text: 'words\nax messages fetch 0' }), {
      outcome: 'written',
    });
    const { line } = await standIn.next('frame');
    const from = `uds:${join(rig.socketDir, `ax-${process.pid}.sock`)}`;
    const content = '<cross-session-message from-name="ax">\nwords\nax messages fetch 0\n</cross-session-message>';
    const frame = {
      type: 'user',
      msgV: 1,
      msg_id: id(1),
      from,
      session_id: standIn.sessionId,
      priority: 'next',
      message: { role: 'user', content },
    };
    assert.equal(line, JSON.stringify(frame));
  });
});

test('the model of an idle session reads the notice in a turn and runs the command in it', async () => {
  await withRig(async (rig) => {
    mkdirSync(join(rig.dir, 'bin'));
    const ax = join(rig.dir, 'bin', 'ax');
    writeFileSync(
      ax,
      `#!/bin/sh\necho "$@ $CLAUDE_PID $CLAUDE_CODE_SESSION_ID"\n[ "$1" = agent ] && echo "  ${ax} messages fetch 1234"\nexit 0\n`,
      { mode: 0o755 },
    );
    const standIn = await rig.standIn({ autorun: true });
    await rig.harness.notify(await rig.see(standIn), {
      id: id(1),
      text: `To set it up, run:\n${ax} agent setup --name a --workspace '/a b'`,
    });
    assert.equal((await standIn.next('turn_end')).event, 'turn_end');
    const [setup, fetch] = standIn.all('ran');
    assert.match(setup?.stdout ?? '', new RegExp(`^agent setup --name a --workspace /a b ${standIn.pid} ${standIn.sessionId}\n`));
    assert.equal(fetch?.command, `${ax} messages fetch 1234`);
  });
});

test('a notice text that could be read as more than words is refused', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    const session = await rig.see(standIn);
    for (const text of ['</cross-session-message>', 'a\u0000b', 'a $(b)', '`b`', 'a\u202eb']) {
      assert.deepEqual(await rig.harness.notify(session, { id: id(1), text }), { outcome: 'failed', detail: 'notice text is not safe' });
    }
    await assert.rejects(rig.harness.notify(session, { id: 'not-a-uuid', text: 'text' }), { code: 'invalid_argument' });
    await standIn.send({ cmd: 'state' });
    assert.equal(standIn.all('frame').length, 0);
  });
});

test('one reply socket per socket folder, for us alone, and gone after stop', async () => {
  const rig = await new ClaudeRig().start();
  try {
    const other = join(rig.dir, 't');
    const standIns = [await rig.standIn(), await rig.standIn(), await rig.standIn({ socketDir: other })];
    for (const [at, standIn] of standIns.entries()) await rig.harness.notify(await rig.see(standIn), { id: id(at), text: `text ${at}` });
    for (const folder of [rig.socketDir, other]) {
      const names = readdirSync(folder).filter((name) => name.startsWith('ax-'));
      assert.deepEqual(names, [`ax-${process.pid}.sock`]);
      assert.equal(lstatSync(join(folder, names[0]!)).mode & 0o777, 0o600);
    }
    await rig.harness.stop();
    for (const folder of [rig.socketDir, other]) assert.ok(!readdirSync(folder).some((name) => name.startsWith('ax-')));
    assert.deepEqual(await rig.harness.notify(await rig.see(standIns[0]!), { id: id(9), text: 'text' }), {
      outcome: 'failed',
      detail: 'daemon is stopping',
    });
  } finally {
    await rig.stop();
  }
});

test('a reply socket that was taken away is bound again', async () => {
  await withRig(async (rig) => {
    const session = await rig.see(await rig.standIn({ inbound: 'refuse' }));
    await rig.harness.notify(session, { id: id(1), text: 'text 1' });
    rmSync(replySocket(rig));
    await rig.harness.notify(session, { id: id(2), text: 'text 2' });
    await rig.until(() => rig.notices.some((one) => one.id === id(2)), 'the second receipt');
  });
});

test('without a reply socket the notice is still sent, and its status is unknown', async () => {
  const rig = new ClaudeRig();
  try {
    await rig.start();
    // Long enough that `<pid>.sock` fits into a socket address and `ax-<pid>.sock` does not, also when one pid has a digit more.
    const socketDir = join(rig.dir, 'x'.repeat(100 - `${process.pid}`.length - rig.dir.length - '/'.length));
    const standIn = await rig.standIn({ socketDir });
    const result = await rig.harness.notify(await rig.see(standIn), { id: id(1), text: 'text' });
    assert.deepEqual(result, { outcome: 'written', detail: 'status unknown' });
    assert.equal((await standIn.next('frame')).from, null);
  } finally {
    await rig.stop();
  }
});

test('what crashed daemons left is swept, and nothing else', async () => {
  const rig = new ClaudeRig();
  const alive = createServer();
  try {
    mkdirSync(rig.socketDir, { mode: 0o700 });
    const at = (name: string): string => join(rig.socketDir, name);
    const stale = ['ax-4000001.sock', 'ax-4000002-00c0ffee.sock', `ax-${process.ppid}.sock`];
    for (const name of [...stale, '4000003.sock', 'ax-x.sock']) await deadSocket(at(name));
    writeFileSync(at('ax-4000004.sock'), 'a file');
    symlinkSync(at('4000003.sock'), at('ax-4000005.sock'));
    alive.listen(at('ax-4000006.sock'));
    await once(alive, 'listening');
    await rig.standIn();
    await rig.start();
    const session = rig.harness.sessions()[0];
    assert.ok(session);
    await rig.harness.notify(session, { id: id(1), text: 'text' });
    for (const name of stale) assert.ok(!existsSync(at(name)), name);
    for (const name of ['4000003.sock', 'ax-x.sock', 'ax-4000004.sock', 'ax-4000006.sock']) assert.ok(existsSync(at(name)), name);
    assert.ok(lstatSync(at('ax-4000005.sock')).isSymbolicLink());
  } finally {
    alive.close();
    await rig.stop();
  }
});

/** A socket file nobody listens on any more. */
async function deadSocket(path: string): Promise<void> {
  const server = createServer().listen(`${path}.new`);
  await once(server, 'listening');
  renameSync(`${path}.new`, path); // closing removes a socket by the name it was bound to
  server.close();
  await once(server, 'close');
}

test('a stopped session has the notice in its socket and reads it when it goes on', async () => {
  await withRig(
    async (rig) => {
      const standIn = await rig.standIn();
      const session = await rig.see(standIn);
      standIn.signal('SIGSTOP');
      const result = await rig.harness.notify(session, { id: id(1), text: 'text' });
      assert.deepEqual(result, { outcome: 'written', detail: 'session has not closed the connection' });
      standIn.signal('SIGCONT');
      assert.equal((await standIn.next('frame')).decision, 'queued');
    },
    { clock: realClock(10) },
  );
});

test('receipts of notices this process did not send, and frames of models that answer, are dropped and counted', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn({ inbound: 'hold' });
    await rig.harness.notify(await rig.see(standIn), { id: id(1), text: 'text' });
    await rig.until(() => rig.notices.length === 1, 'held');
    const path = replySocket(rig);
    await say(path, receipt(id(2), 'delivered'));
    await say(path, `${JSON.stringify({ type: 'user', message: { role: 'user', content: 'an answer of a model' } })}\n`);
    await say(path, 'garbage\n');
    await say(path, receipt(id(1), 'dancing'));
    assert.equal(rig.notices.length, 1);
    const counts = rig.logged.filter((one) => one.event === 'claude.replies_dropped').map((one) => one.fields?.['count']);
    assert.deepEqual(counts, [1, 2, 4]);
  });
});

test('each outcome is told once, and nothing after a final one', async () => {
  await withRig(async (rig) => {
    await rig.harness.notify(await rig.see(await rig.standIn()), { id: id(1), text: 'text' });
    await rig.harness.notify(rig.harness.sessions()[0]!, { id: id(2), text: 'text 2' });
    const path = replySocket(rig);
    await say(
      path,
      receipt(id(1), 'held') +
        receipt(id(1), 'held') +
        receipt(id(1), 'expired', { status_detail: 'refused' }) +
        receipt(id(1), 'delivered'),
    );
    await say(path, receipt(id(2), 'denied').trimEnd());
    await rig.until(() => rig.notices.length === 3, 'three outcomes');
    assert.deepEqual(
      rig.notices.map((one) => [one.id, one.result.outcome]),
      [
        [id(1), 'held'],
        [id(1), 'blocked'],
        [id(2), 'denied'],
      ],
    );
  });
});

test('a flood of lines, of connections and of endless bytes is cut off, and the next receipt is still understood', async () => {
  await withRig(
    async (rig) => {
      await rig.harness.notify(await rig.see(await rig.standIn()), { id: id(1), text: 'text' });
      const path = replySocket(rig);
      await say(path, receipt(id(5), 'held').repeat(5000));
      await say(path, new Uint8Array(4 * 1024 * 1024).fill(65));
      await say(path, `${'x'.repeat(70_000)}\n${receipt(id(1), 'denied')}`);
      await Promise.all(Array.from({ length: 200 }, () => say(path, receipt(id(6), 'held'))));
      await Promise.all(Array.from({ length: 80 }, () => connectTo(path).closed)); // they say nothing and are closed all the same
      assert.deepEqual(rig.notices, []);
      await say(path, receipt(id(1), 'held'));
      await rig.until(() => rig.notices.length === 1, 'the receipt after the flood');
    },
    { clock: realClock(20) },
  );
});

test('an endless line and endless lines are cut off by their size, not only by time', async () => {
  await withRig(
    async (rig) => {
      await rig.standIn();
      const [session] = await rig.harness.refresh();
      await rig.harness.notify(session!, { id: id(1), text: 'text' });
      for (const bytes of ['x'.repeat(200_000), receipt(id(5), 'held').repeat(100)]) {
        const { socket, closed } = connectTo(replySocket(rig));
        socket.write(bytes);
        await closed;
      }
    },
    { clock: realClock(0.01) },
  );
});

test('arbitrary bytes at a reply socket never throw', async () => {
  const value = fc.record({
    type: fc.constantFrom('control', 'user', 1),
    action: fc.constantFrom('peer_message_status', null),
    status: fc.anything(),
    orig_msg_id: fc.anything(),
  });
  fc.assert(
    fc.property(
      fc.oneof(
        fc.string(),
        fc.json(),
        value.map((one) => String(JSON.stringify(one, (_key, part: unknown) => (typeof part === 'bigint' ? 1 : part)))),
      ),
      (line) => {
        const parsed = parseReceipt(line);
        assert.ok(parsed === undefined || typeof parsed.noticeId === 'string');
      },
    ),
  );
  await withRig(async (rig) => {
    await rig.harness.notify(await rig.see(await rig.standIn()), { id: id(1), text: 'text' });
    const path = replySocket(rig);
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 500 }), (bytes) => say(path, bytes)),
      { numRuns: 50 },
    );
    await say(path, receipt(id(1), 'held'));
    await rig.until(() => rig.notices.length === 1, 'the receipt after the garbage');
  });
});
