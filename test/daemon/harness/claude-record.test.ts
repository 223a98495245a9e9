/** Session records are foreign bytes: read with limits, taken strictly, and never a reason to throw. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chownSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { MAX_RECORD_BYTES, parseRecord, pidOfRecordName, readRecord } from '../../../daemon/harness/claude-record.ts';

const GOOD = {
  pid: 42,
  sessionId: '11111111-2222-4333-8444-555555555555',
  cwd: '/tmp',
  startedAt: 1_790_000_000_000,
  procStart: '44656',
  version: '2.1.332',
  peerProtocol: 1,
  entrypoint: 'cli',
  pidDomain: 'linux:0:pid:[1]',
  messagingSocketPath: '/tmp/cc-socks/42.sock',
  status: 'idle',
  statusUpdatedAt: 1_790_000_000_050,
};
const uid = process.getuid?.() ?? 0;

async function withFolder(body: (dir: string) => Promise<void>): Promise<void> {
  const dir = realpathSync(mkdtempSync(join(tmpdir(), 'axc-')));
  try {
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

test('a genuine record gives what ax uses, and unknown fields nothing', () => {
  const record = parseRecord(JSON.stringify({ ...GOOD, name: 'secret-name', tmux: 's1', peerToken: 'x' }), 42);
  assert.deepEqual(record, {
    pid: 42,
    procStart: '44656',
    sessionId: GOOD.sessionId,
    workspace: '/tmp',
    workspaceUsable: true,
    status: 'idle',
    statusSince: GOOD.statusUpdatedAt,
    startedAt: GOOD.startedAt,
    version: '2.1.332',
    entrypoint: 'cli',
    socket: GOOD.messagingSocketPath,
    peerProtocol: 1,
    pidDomain: GOOD.pidDomain,
  });
});

test('a record with a wrong identity is no record', () => {
  const wrong: Record<string, unknown>[] = [
    { pid: 43 },
    { pid: '42' },
    { sessionId: 'not-a-uuid' },
    { sessionId: GOOD.sessionId.replace('1', 'A') },
    { sessionId: undefined },
    { cwd: 'relative' },
    { cwd: `/${'x'.repeat(5000)}` },
    { cwd: '/a\0b' },
    { procStart: 44656 },
    { procStart: undefined },
    { procStart: '4\n' },
  ];
  for (const fields of wrong) assert.equal(parseRecord(JSON.stringify({ ...GOOD, ...fields }), 42), undefined, JSON.stringify(fields));
  for (const text of ['', '{', 'null', '[]', '42', '"x"', JSON.stringify(GOOD).slice(0, 80)])
    assert.equal(parseRecord(text, 42), undefined);
});

test('odd values of lesser fields are replaced, not believed', () => {
  const odd = {
    status: 'dancing',
    statusUpdatedAt: 'late',
    startedAt: -5,
    version: `2\u0007.1\u202e${'9'.repeat(500)}`,
    peerProtocol: '1',
    messagingSocketPath: 'rel.sock',
    entrypoint: 7,
  };
  const record = parseRecord(JSON.stringify({ ...GOOD, ...odd }), 42);
  assert.deepEqual(
    [record?.status, record?.statusSince, record?.startedAt, record?.peerProtocol, record?.socket, record?.entrypoint],
    ['unknown', 0, 0, undefined, undefined, ''],
  );
  assert.match(record?.version ?? '', /^2\.19{1,64}$/);
});

test('only <pid>.json is a record name', () => {
  assert.equal(pidOfRecordName('42.json'), 42);
  for (const name of ['42.0123abcd.key', '042.json', '0.json', '-1.json', '42.json.tmp', 'x.json', '42', '99999999999.json', '']) {
    assert.equal(pidOfRecordName(name), undefined, name);
  }
});

test('the workspace is the real path, and as recorded when the folder is gone', async () => {
  await withFolder(async (dir) => {
    mkdirSync(join(dir, 'real'));
    symlinkSync(join(dir, 'real'), join(dir, 'link'));
    const path = join(dir, '42.json');
    writeFileSync(path, JSON.stringify({ ...GOOD, cwd: `${join(dir, 'link')}/` }));
    const linked = await readRecord(path, 42, uid);
    assert.equal(typeof linked === 'string' ? linked : linked.workspace, join(dir, 'real'));
    writeFileSync(path, JSON.stringify({ ...GOOD, cwd: `${dir}/gone/./a/` }));
    const gone = await readRecord(path, 42, uid);
    assert.equal(typeof gone === 'string' ? gone : gone.workspace, join(dir, 'gone/a'));
  });
});

test('a workspace with control characters is shown, but not usable', async () => {
  await withFolder(async (dir) => {
    writeFileSync(join(dir, '42.json'), JSON.stringify({ ...GOOD, cwd: '/a\nb' }));
    const record = await readRecord(join(dir, '42.json'), 42, uid);
    assert.ok(typeof record !== 'string');
    assert.deepEqual([record.workspace, record.workspaceUsable], ['/a\ufffdb', false]);
  });
});

test('what is not a plain file of ours within the limit is unusable, and a pipe does not block', async () => {
  await withFolder(async (dir) => {
    const good = JSON.stringify(GOOD);
    writeFileSync(join(dir, '1.json'), good + ' '.repeat(MAX_RECORD_BYTES));
    mkdirSync(join(dir, '2.json'));
    execFileSync('sh', ['-c', 'mkfifo "$0"', join(dir, '3.json')]);
    writeFileSync(join(dir, 'target'), good);
    symlinkSync(join(dir, 'target'), join(dir, '4.json'));
    for (const pid of [1, 2, 3, 4]) assert.equal(await readRecord(join(dir, `${pid}.json`), 42, uid), 'unusable', `file ${pid}`);
    assert.equal(await readRecord(join(dir, '5.json'), 5, uid), 'gone');
    assert.equal(await readRecord(join(dir, 'target'), 42, uid + 1), 'unusable', 'another owner');
    if (uid === 0) chownSync(join(dir, 'target'), 65534, 65534);
    assert.equal(await readRecord(join(dir, 'target'), 42, uid === 0 ? 0 : uid + 1), 'unusable', 'another owner, for real where we may');
  });
});

test('arbitrary, truncated and bit-flipped bytes never throw', async () => {
  await withFolder(async (dir) => {
    const path = join(dir, '42.json');
    const genuine = Buffer.from(JSON.stringify(GOOD));
    const truncated = fc.nat(genuine.length).map((length) => genuine.subarray(0, length));
    const flipped = fc.tuple(fc.nat(genuine.length - 1), fc.nat(7)).map(([at, bit]) => {
      const bytes = Buffer.from(genuine);
      bytes[at] = bytes[at]! ^ (1 << bit);
      return bytes;
    });
    const values = fc.record({
      ...Object.fromEntries(Object.keys(GOOD).map((key) => [key, fc.anything()])),
      pid: fc.constantFrom(42, '42', null),
    });
    const objects = values.map((value) =>
      Buffer.from(JSON.stringify(value, (_key, one: unknown) => (typeof one === 'bigint' ? String(one) : one))),
    );
    const bytes = fc.oneof(fc.uint8Array({ maxLength: 2000 }), truncated, flipped, objects);
    await fc.assert(
      fc.asyncProperty(bytes, async (content) => {
        writeFileSync(path, content);
        const read = await readRecord(path, 42, uid);
        assert.ok(read === 'unusable' || typeof read === 'object');
      }),
      { numRuns: 400 },
    );
  });
});
