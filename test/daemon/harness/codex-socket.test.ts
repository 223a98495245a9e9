/** A Codex socket is connected to only when it, its link and its folders belong to this user alone. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, lchownSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { CONTROL_FOLDER, findSocket, SOCKET_FAULTS, socketPath } from '../../../daemon/harness/codex-socket.ts';

const uid = process.getuid?.() ?? 0;

interface Place {
  readonly home: string;
  /** The public path. */
  readonly path: string;
  readonly folder: string;
  readonly target: string;
}

async function listen(path: string): Promise<Server> {
  const server = createServer();
  server.listen(path);
  await once(server, 'listening');
  chmodSync(path, 0o600);
  return server;
}

/** A home as Codex leaves it: a link in a folder of the home, to a socket in a private folder elsewhere. */
async function withHome(body: (place: Place) => Promise<void>): Promise<void> {
  const dir = realpathSync(mkdtempSync(join(tmpdir(), 'axs-')));
  const folder = join(dir, 'run');
  const target = join(folder, 'f00d');
  mkdirSync(folder, { mode: 0o700 });
  mkdirSync(join(dir, CONTROL_FOLDER), { mode: 0o700 });
  const server = await listen(target);
  symlinkSync(target, socketPath(dir));
  try {
    await body({ home: dir, path: socketPath(dir), folder, target });
  } finally {
    server.close();
    await once(server, 'close');
    rmSync(dir, { recursive: true, force: true });
  }
}

test('a link of ours to a private socket in a private folder leads to that socket', () =>
  withHome(async ({ home, path, target }) => {
    assert.deepEqual(await findSocket(home, uid), { target });
    unlinkSync(path);
    symlinkSync('../run/f00d', path);
    assert.deepEqual(await findSocket(home, uid), { target }, 'a relative link');
  }));

test('no home, no folder, no link and a link that leads nowhere are all an absent daemon', () =>
  withHome(async ({ home, path }) => {
    assert.equal(await findSocket(join(home, 'none'), uid), 'absent');
    writeFileSync(join(home, 'file'), '');
    assert.equal(await findSocket(join(home, 'file'), uid), 'absent');
    unlinkSync(path);
    assert.equal(await findSocket(home, uid), 'absent');
    symlinkSync(join(home, 'run', 'gone'), path);
    assert.equal(await findSocket(home, uid), 'absent');
  }));

test('a plain socket is taken in a folder of ours alone', () =>
  withHome(async ({ home, path }) => {
    unlinkSync(path);
    const server = await listen(path);
    try {
      assert.deepEqual(await findSocket(home, uid), { target: path });
      chmodSync(join(home, CONTROL_FOLDER), 0o755);
      assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.folder });
    } finally {
      server.close();
      await once(server, 'close');
    }
  }));

test('a folder or a socket that others can get at is not touched', () =>
  withHome(async ({ home, folder, target }) => {
    chmodSync(folder, 0o750);
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.folder });
    chmodSync(folder, 0o700);
    chmodSync(target, 0o606);
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.mode });
    chmodSync(target, 0o600);
    chmodSync(join(home, CONTROL_FOLDER), 0o770);
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.folder });
  }));

test('a link to a link, through a linked folder, or to what is no socket is not followed', () =>
  withHome(async ({ home, path, folder, target }) => {
    const lead = (to: string): void => {
      unlinkSync(path);
      symlinkSync(to, path);
    };
    symlinkSync(target, join(folder, 'again'));
    lead(join(folder, 'again'));
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.chain });
    symlinkSync(folder, join(home, 'linked'));
    lead(join(home, 'linked', 'f00d'));
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.folder });
    writeFileSync(join(folder, 'file'), '', { mode: 0o600 });
    lead(join(folder, 'file'));
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.type });
    const deep = join(folder, 'd'.repeat(100));
    mkdirSync(deep, { mode: 0o700 });
    writeFileSync(join(deep, 'x'), '', { mode: 0o600 });
    lead(join(deep, 'x'));
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.type });
  }));

test('what belongs to another user is not touched', () =>
  withHome(async ({ home, path }) => {
    assert.deepEqual(await findSocket(home, uid + 1), { fault: SOCKET_FAULTS.folder });
    if (uid !== 0) return; // only root can give files away
    lchownSync(path, 65_534, 65_534);
    assert.deepEqual(await findSocket(home, uid), { fault: SOCKET_FAULTS.link });
  }));
