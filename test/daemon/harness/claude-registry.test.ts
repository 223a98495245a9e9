/** Which Claude Code sessions are listed, which are reachable, and why not: against real files, sockets and processes. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import type { Clock } from '../../../daemon/clock/clock.ts';
import { systemClock } from '../../../daemon/clock/system.ts';
import { judge } from '../../../daemon/harness/claude-live.ts';
import { readRecord } from '../../../daemon/harness/claude-record.ts';
import { REREAD_PAUSE_MS } from '../../../daemon/harness/claude-registry.ts';
import { patientClock, plantRecord, realClock, withRig, type ClaudeRig } from './rig.ts';

const uid = process.getuid?.() ?? 0;

/** A planted record of this process with a socket of this process. */
async function plantWithSocket(rig: ClaudeRig, fields: Record<string, unknown> = {}): Promise<{ path: string; server: Server }> {
  mkdirSync(rig.socketDir, { recursive: true, mode: 0o700 });
  const path = join(rig.socketDir, 'planted.sock');
  const server = createServer((socket) => socket.resume());
  server.listen(path);
  await once(server, 'listening');
  plantRecord(rig.configDir, { messagingSocketPath: path, ...fields });
  return { path, server };
}

async function reasonOf(rig: ClaudeRig): Promise<string | undefined> {
  const sessions = await rig.harness.refresh();
  assert.equal(sessions.length, 1);
  assert.equal(sessions[0]?.reachable, sessions[0]?.reason === undefined);
  return sessions[0]?.reason;
}

test('everything is listed; scripts, bare and old sessions and unknown protocols are not reachable', async () => {
  await withRig(async (rig) => {
    const cases: [string | undefined, Parameters<ClaudeRig['standIn']>[0]][] = [
      [undefined, {}],
      [undefined, { kind: 'bg' }],
      [undefined, { old: 'no-status' }],
      ['script session', { entrypoint: 'sdk-cli' }],
      ['messaging off or too old', { bare: true }],
      ['messaging off or too old', { old: 'no-socket' }],
      ['protocol not supported', { peerProtocol: 2 }],
    ];
    const standIns = await Promise.all(cases.map(([, options]) => rig.standIn(options)));
    await rig.harness.refresh();
    cases.forEach(([reason], at) => {
      const session = rig.find(standIns[at]!.processKey);
      assert.deepEqual([session?.reachable, session?.reason], [reason === undefined, reason], JSON.stringify(cases[at]));
    });
    assert.equal(rig.find(standIns[2]!.processKey)?.status, 'unknown');
  });
});

test('public facts hold no socket, token, name or domain', async () => {
  await withRig(async (rig) => {
    const session = await rig.see(await rig.standIn({ name: 'private-name' }));
    assert.deepEqual(Object.keys(session).toSorted(), [
      'harness',
      'processKey',
      'reachable',
      'sessionId',
      'startedAt',
      'status',
      'statusSince',
      'version',
      'workspace',
    ]);
  });
});

test('a half-written record keeps its earlier state, and the whole one is taken again', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    const before = await rig.see(standIn);
    await standIn.send({ cmd: 'truncate' });
    assert.deepEqual(await rig.harness.refresh(), [before]);
    assert.equal((await rig.harness.notify(before, { id: before.sessionId, text: 'text' })).outcome, 'failed');
    await standIn.send({ cmd: 'rewrite' });
    await standIn.send({ cmd: 'busy' });
    await rig.until(() => rig.find(standIn.processKey)?.status === 'busy', 'the new status');
    assert.ok(
      rig.lists.slice(1).every((list) => list.length === 1),
      'it was never missing',
    );
  });
});

test('a half-written record is whole when it is read once more', async () => {
  let mend: (() => Promise<unknown>) | undefined;
  // The rest is written while the adapter pauses, however long that takes on this machine.
  const after: Clock['after'] = (delayMs, run) => {
    if (delayMs !== REREAD_PAUSE_MS || mend === undefined) return patientClock.after(delayMs, run);
    void mend().then(run);
    return () => undefined;
  };
  await withRig(
    async (rig) => {
      const standIn = await rig.standIn();
      const before = await rig.see(standIn);
      let mended = 0;
      mend = () => standIn.send({ cmd: 'rewrite' }).then(() => (mended += 1));
      await standIn.send({ cmd: 'truncate' });
      assert.equal((await rig.harness.notify(before, { id: before.sessionId, text: 'text' })).outcome, 'written');
      assert.ok(mended > 0, 'it was read half-written');
    },
    { clock: { ...patientClock, after } },
  );
});

test('a session that dies with a half-written record is gone', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    await rig.see(standIn);
    await standIn.send({ cmd: 'truncate' });
    await standIn.kill();
    assert.deepEqual(await rig.harness.refresh(), []);
  });
});

test('what a killed session leaves behind is not a session, and the poll finds out by itself', async () => {
  await withRig(
    async (rig) => {
      const standIn = await rig.standIn();
      await rig.see(standIn);
      await standIn.kill();
      assert.ok(existsSync(standIn.record) && existsSync(standIn.socket));
      await rig.until(() => rig.harness.sessions().length === 0, 'the list is empty');
    },
    { clock: realClock(10) },
  );
});

test('a process that still has its pid but no longer answers its socket is not a session', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    await rig.see(standIn);
    await standIn.send({ cmd: 'zombie' });
    assert.ok(existsSync(standIn.socket));
    assert.deepEqual(await rig.harness.refresh(), []);
  });
});

test('a record whose pid was used again by another process is not a session', async () => {
  const procRoot = mkdtempSync(join(tmpdir(), 'axp-'));
  try {
    await withRig(
      async (rig) => {
        const standIn = await rig.standIn({ procStart: '4711' });
        const stat = (start: string, state = 'S'): void => {
          mkdirSync(join(procRoot, String(standIn.pid)), { recursive: true });
          const fields = [state, ...Array.from({ length: 18 }, (_, at) => String(at)), start, '0'];
          writeFileSync(join(procRoot, String(standIn.pid), 'stat'), `${standIn.pid} (a) R 4711 (b) ${fields.join(' ')}`);
        };
        assert.deepEqual(await rig.harness.refresh(), [], 'no such process');
        stat('4711');
        assert.equal((await rig.harness.refresh()).length, 1);
        stat('4712');
        assert.deepEqual(await rig.harness.refresh(), [], 'another start');
        stat('4711', 'Z');
        assert.deepEqual(await rig.harness.refresh(), [], 'not reaped yet');
      },
      { procRoot },
    );
  } finally {
    rmSync(procRoot, { recursive: true });
  }
});

test('a record of another machine or container is never used beside live ones', async () => {
  await withRig(async (rig) => {
    const first = await rig.standIn();
    await rig.see(first);
    await rig.standIn({ pidDomain: 'linux:ffffffffffffffffffffffffffffffff:pid:[1]' });
    const second = await rig.standIn();
    const live = await rig.harness.refresh();
    assert.deepEqual(
      live.map((one) => one.processKey),
      [first.processKey, second.processKey],
    );
  });
});

test('a socket that is a symbolic link is not connected to', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    await rig.see(standIn);
    renameSync(standIn.socket, `${standIn.socket}.real`);
    symlinkSync(`${standIn.socket}.real`, standIn.socket);
    assert.equal(await reasonOf(rig), 'socket is a symbolic link');
    const result = await rig.harness.notify(rig.find(standIn.processKey)!, { id: standIn.sessionId, text: 'text' });
    assert.deepEqual(result, { outcome: 'failed', detail: 'socket is a symbolic link' });
    await standIn.send({ cmd: 'state' });
    assert.equal(standIn.all('frame').length, 0);
  });
});

test('a socket in a folder that others may write to is not connected to', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    for (const mode of [0o770, 0o707, 0o777]) {
      chmodSync(rig.socketDir, mode);
      assert.equal(await reasonOf(rig), 'socket folder open to other users');
    }
    chmodSync(rig.socketDir, 0o755);
    assert.equal(await reasonOf(rig), undefined);
    assert.ok(standIn.pid > 0);
  });
});

test("another user's socket is not connected to", async () => {
  await withRig(async (rig) => {
    const { server } = await plantWithSocket(rig);
    let connections = 0;
    server.on('connection', () => (connections += 1));
    try {
      const record = await readRecord(join(rig.configDir, 'sessions', `${process.pid}.json`), process.pid, uid);
      assert.ok(typeof record !== 'string');
      const strange = { clock: systemClock, uid: uid + 1, procRoot: undefined };
      assert.deepEqual(await judge(record, strange, new AbortController().signal), { reason: 'socket owned by another user' });
      if (uid === 0) {
        chownSync(record.socket!, 65534, 65534);
        assert.equal(await reasonOf(rig), 'socket owned by another user');
        chownSync(record.socket!, 0, 0);
        chownSync(rig.socketDir, 65534, 65534);
        assert.equal(await reasonOf(rig), 'socket folder open to other users');
        chownSync(rig.socketDir, 0, 0);
      }
      const before = connections;
      assert.equal(await reasonOf(rig), undefined);
      assert.ok(before === 0 && connections > 0, 'connected to only when it is ours');
    } finally {
      server.close();
    }
  });
});

test('a plain file in place of the socket is not connected to', async () => {
  await withRig(async (rig) => {
    const { path, server } = await plantWithSocket(rig);
    server.close();
    await once(server, 'close');
    writeFileSync(path, '');
    assert.equal(await reasonOf(rig), 'socket path is not a socket');
  });
});

test('a socket path too long for a socket is a session that does not answer', async () => {
  await withRig(async (rig) => {
    const { path, server } = await plantWithSocket(rig);
    try {
      const deep = join(rig.socketDir, 'd'.repeat(100));
      mkdirSync(deep, { mode: 0o700 });
      renameSync(path, join(deep, 'planted.sock'));
      plantRecord(rig.configDir, { messagingSocketPath: join(deep, 'planted.sock') });
      assert.equal(await reasonOf(rig), 'does not answer');
    } finally {
      server.close();
    }
  });
});

test('a session that takes no more connections does not answer, and delays no other', async () => {
  await withRig(async (rig) => {
    mkdirSync(rig.socketDir, { mode: 0o700 });
    const path = join(rig.socketDir, 'hang.sock');
    const program = `require('net').createServer().listen({ path: process.argv[1], backlog: 1 }, () => { process.stdout.write('up'); process.kill(process.pid, 'SIGSTOP'); })`;
    const child = spawn(process.execPath, ['-e', program, path], { stdio: ['ignore', 'pipe', 'inherit'] });
    const fillers: Socket[] = [];
    try {
      await once(child.stdout, 'data');
      for (let isFull = false; !isFull;) {
        const filler = createConnection({ path });
        fillers.push(filler);
        isFull = await new Promise<boolean>((resolve) => {
          filler.once('connect', () => resolve(false));
          filler.once('error', () => resolve(true));
        });
      }
      plantRecord(rig.configDir, { messagingSocketPath: path });
      const standIn = await rig.standIn();
      const sessions = await rig.harness.refresh();
      assert.deepEqual(new Set(sessions.map((one) => one.reason)), new Set(['does not answer', undefined]));
      assert.equal(rig.find(standIn.processKey)?.reachable, true);
    } finally {
      for (const filler of fillers) filler.destroy();
      child.kill('SIGKILL');
      await once(child, 'close');
    }
  });
});

test('a look that is asked for after a change sees the change, also while another look is under way', async () => {
  await withRig(async (rig) => {
    for (let round = 0; round < 50; round++) {
      plantRecord(rig.configDir, { status: 'idle' });
      await rig.harness.refresh();
      const earlier = rig.harness.refresh();
      for (let turn = 0; turn < round % 10; turn++) await new Promise((resolve) => setImmediate(resolve));
      plantRecord(rig.configDir, { status: 'busy' });
      assert.equal((await rig.harness.refresh())[0]?.status, 'busy', `round ${round}`);
      await earlier;
    }
  });
});

test('garbage in the registry folder never disturbs the sessions beside it', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    const live = [await rig.see(standIn)];
    const folder = join(rig.configDir, 'sessions');
    mkdirSync(join(folder, '77.json'));
    writeFileSync(join(folder, `${standIn.pid + 1}.json`), JSON.stringify({ pid: standIn.pid + 1 }));
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.integer({ min: 5_000_000, max: 5_000_020 }), fc.uint8Array({ maxLength: 300 })), { maxLength: 8 }),
        async (files) => {
          for (const [pid, bytes] of files) writeFileSync(join(folder, `${pid}.json`), bytes);
          assert.deepEqual(await rig.harness.refresh(), live);
        },
      ),
      { numRuns: 15 },
    );
    for (const name of readdirSync(folder)) if (name.startsWith('50000')) rmSync(join(folder, name));
    assert.deepEqual(await rig.harness.refresh(), live);
  });
});

test('a registry folder that others may write to is left alone, and said so once', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn();
    await rig.see(standIn);
    chmodSync(join(rig.configDir, 'sessions'), 0o777);
    assert.deepEqual(await rig.harness.refresh(), []);
    await rig.harness.refresh();
    assert.equal(rig.logged.filter((one) => one.event === 'claude.root_skipped').length, 1);
    for (let round = 0; round < 10; round++) {
      await standIn.send({ cmd: 'rewrite' }); // the watch tells of it, now or in the next round
      assert.deepEqual(rig.harness.sessions(), [], `round ${round}`);
    }
    await assert.rejects(rig.harness.prove({ harness: 'claude', pid: standIn.pid, sessionId: standIn.sessionId, socket: standIn.socket }), {
      code: 'not_found',
    });
  });
});
