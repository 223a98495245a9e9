/**
 * The two ways to a socket file, each held against the same rules: what is seen through one is seen through the other.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { once } from 'node:events';
import { test, type TestContext } from 'node:test';
import { openQuick, openUsual, openWire, type Wire } from '../../cli/wire.ts';

const WAYS: Readonly<Record<string, (path: string) => Promise<Wire | undefined>>> = { quick: openQuick, usual: openUsual };

/** A server on a socket file that does `serve` with each connection, and its end. */
async function listening(t: TestContext, serve: (socket: Socket) => void): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'axw-'));
  const path = join(folder, 's');
  const server: Server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    serve(socket);
  });
  server.listen(path);
  await once(server, 'listening');
  t.after(() => {
    server.close();
    rmSync(folder, { recursive: true, force: true });
  });
  return path;
}

async function opened(open: (path: string) => Promise<Wire | undefined>, path: string): Promise<Wire> {
  const wire = await open(path);
  assert.ok(wire !== undefined, 'this way is there on this Node');
  return wire;
}

/** All bytes until the close, and the errors before it. */
async function readAll(wire: Wire): Promise<{ readonly bytes: Buffer; readonly errors: readonly Error[] }> {
  const [chunks, errors]: [Uint8Array[], Error[]] = [[], []];
  wire.on('data', (chunk: Uint8Array) => chunks.push(chunk));
  wire.on('error', (error: Error) => errors.push(error));
  await new Promise<void>((resolve) => void wire.once('close', () => resolve()));
  return { bytes: Buffer.concat(chunks), errors };
}

for (const [way, open] of Object.entries(WAYS)) {
  test(`${way}: bytes of any number arrive as they were sent, each way`, async (t) => {
    const path = await listening(t, (socket) => void socket.pipe(socket));
    for (const length of [1, 1000, 3_000_000]) {
      const sent = Buffer.from(Array.from({ length: 251 }, (_none, at) => at))
        .toString('latin1')
        .repeat(Math.ceil(length / 251));
      const bytes = new Uint8Array(Buffer.from(sent.slice(0, length), 'latin1'));
      const wire = await opened(open, path);
      const came = readAll(wire);
      let left = length;
      wire.on('data', (chunk: Uint8Array) => {
        left -= chunk.length;
        if (left === 0) wire.destroy();
      });
      wire.write(bytes);
      const { bytes: back, errors } = await came;
      assert.deepEqual(errors, []);
      assert.equal(Buffer.compare(back, bytes), 0, `${length} bytes`);
    }
  });

  test(`${way}: the end of the other side is a close without an error, behind what it sent`, async (t) => {
    const path = await listening(t, (socket) => void socket.end('last words'));
    const { bytes, errors } = await readAll(await opened(open, path));
    assert.deepEqual(errors, []);
    assert.equal(bytes.toString(), 'last words');
  });

  test(`${way}: an error that ends it is told once, and then the close`, async (t) => {
    const path = await listening(t, () => undefined);
    const wire = await opened(open, path);
    const [all, why] = [readAll(wire), new Error('enough')];
    wire.destroy(why);
    wire.destroy(new Error('again'));
    wire.write(new Uint8Array(1));
    assert.deepEqual((await all).errors, [why]);
  });

  test(`${way}: what is written to a side that has gone ends in an error or a close, and in no exception`, async (t) => {
    const path = await listening(t, (socket) => void socket.destroy());
    const wire = await opened(open, path);
    const all = readAll(wire);
    for (let n = 0; n < 8; n++) wire.write(new Uint8Array(100_000));
    assert.equal((await all).bytes.length, 0);
  });
}

test('where no connection comes about the quick way gives none, and the whole way the error of the system', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'axw-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const path = join(folder, 'nobody');
  assert.equal(await openQuick(path), undefined);
  await assert.rejects(openWire(path), { code: 'ENOENT', syscall: 'connect' });
});

test('a path that could be cut short is never tried the quick way', async (t) => {
  const long = `${await listening(t, () => undefined)}${'x'.repeat(120)}`;
  assert.equal(await openQuick(long), undefined);
  await assert.rejects(openWire(long));
});
