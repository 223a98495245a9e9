/**
 * Codex daemons that are not what they should be: silent, gone, talking nonsense, someone else's, of another version.
 *
 * In every test the rig checks at the end that nothing was asked that steers and that no text of a user came out. What must hold besides:
 * the daemon of ax lives on, other homes are served meanwhile, and a daemon that is well again is found again.
 */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import type { ConnectionMode } from '../../standin-codex/options.ts';
import { ALWAYS } from '../../standin-codex/spawn.ts';
import { CodexRig, noticeId, withCodex } from './codex-rig.ts';
import { realClock } from './rig.ts';

const UID = process.getuid?.() ?? 0;

test('a daemon that hangs, closes at once, talks no HTTP or refuses holds up nobody, and is found when it is well again', async () => {
  for (const mode of ['hang', 'close', 'garbage', 'refuse'] satisfies ConnectionMode[]) {
    const rig = new CodexRig({ homes: ['codex', 'well'], clock: realClock(10) });
    try {
      const ill = await rig.daemon({ connections: mode });
      const well = await rig.daemon({ name: 'well' });
      const thread = await ill.thread({ cwd: rig.workspace() });
      const here = await well.thread({ cwd: rig.workspace() });
      await rig.start();
      await rig.until(() => rig.find(here) !== undefined, 'the other home is served');
      assert.equal((await rig.notify(rig.find(here)!, 1)).outcome, 'in_queue');
      await rig.until(() => rig.state() === 'silent', `${mode} is told as silent`);
      assert.equal(rig.find(thread), undefined);
      await ill.send({ cmd: 'connections', mode: 'serve' });
      await rig.until(() => rig.find(thread)?.reachable === true, `${mode}: it is found again`);
    } finally {
      await rig.stop();
    }
  }
});

test('a claim is proved at once when its daemon is well again, whatever pause the failures before have earned', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon({ connections: 'close' });
    const thread = await daemon.thread({ cwd: rig.workspace() });
    await rig.until(() => rig.state() === 'silent', 'it is told as silent');
    await daemon.send({ cmd: 'connections', mode: 'serve' });
    assert.equal((await rig.harness.prove({ harness: 'codex', sessionId: thread })).sessionId, thread);
  });
});

test('a stopped process, and one that never answers a request, end in a limit of time and stop nobody else', async () => {
  await withCodex(
    async (rig) => {
      const [slow, well] = [await rig.daemon(), await rig.daemon({ name: 'well' })];
      const [session, other] = [await rig.see(slow), await rig.see(well)];
      await slow.fault('*', { kind: 'silent_before' }, ALWAYS);
      const stuck = rig.notify(session, 1);
      assert.equal((await rig.notify(other, 2)).outcome, 'in_queue');
      assert.equal((await stuck).outcome, 'failed');
      await slow.send({ cmd: 'mend' });
      assert.equal((await rig.notify(session, 3)).outcome, 'in_queue');
      await rig.until(() => rig.said(3).includes('left_queue'), 'it was taken');
      slow.signal('SIGSTOP');
      const stopped = rig.notify(session, 4);
      assert.equal((await rig.notify(other, 5)).outcome, 'in_queue');
      assert.equal((await stopped).outcome, 'failed');
      slow.signal('SIGCONT');
      await rig.until(() => rig.find(session.sessionId)?.reachable === true, 'it goes on');
      assert.deepEqual(
        (await slow.queued(session.sessionId)).map((item) => item.clientId),
        [`ax-${noticeId(3)}`],
      );
    },
    { homes: ['codex', 'well'], clock: realClock(10) },
  );
});

test('one thread that does not answer leaves the others of its daemon in the list', async () => {
  await withCodex(
    async (rig) => {
      const daemon = await rig.daemon();
      const first = await rig.see(daemon);
      await daemon.fault('thread/read', { kind: 'silent_before' });
      await daemon.thread({ cwd: rig.workspace() }); // the look at it is the one that gets no answer
      const third = await rig.see(daemon);
      assert.deepEqual([rig.find(first.sessionId)?.reachable, rig.find(third.sessionId)?.reachable], [true, true]);
      await daemon.fault('thread/read', { kind: 'slow', ms: 100 }, 3);
      assert.equal((await rig.notify(first, 1)).outcome, 'in_queue');
    },
    { clock: realClock(10) },
  );
});

const NONSENSE: readonly unknown[] = [
  null,
  7,
  'PRIVATE text',
  [],
  {},
  { data: 'x' },
  { data: [null, {}, 'PRIVATE', '../../etc'], nextCursor: 5 },
  { thread: null },
  { thread: { id: '0190aaaa-0000-7000-8000-000000000001', status: {}, cwd: '/x' } },
  { thread: { id: 'x', status: { type: 'idle' }, cwd: 'relative' } },
  { queuedSubmission: { id: '\u001b[31mPRIVATE', clientUserMessageId: 5 } },
  { data: [{ id: 'x' }], nextCursor: null },
];

test('an answer of any other shape is no session, no delivery and no crash', async () => {
  for (const method of ['initialize', 'thread/loaded/list', 'thread/read', 'thread/queue/list', 'thread/queue/add']) {
    const rig = new CodexRig({ clock: realClock(10) });
    try {
      const daemon = await rig.daemon();
      const thread = await daemon.thread({ cwd: rig.workspace() });
      await rig.start();
      await rig.until(() => rig.find(thread) !== undefined, 'the thread is seen');
      const session = rig.find(thread)!;
      for (const result of NONSENSE) {
        await daemon.send({ cmd: 'mend' });
        await daemon.fault(method, { kind: 'result', result }, ALWAYS);
        if (method === 'initialize') await daemon.send({ cmd: 'cut' });
        const { outcome } = await rig.notify(session, 1);
        assert.equal(
          method === 'thread/queue/add' ? ['unverified', 'failed'].includes(outcome) : outcome === 'failed' || method.endsWith('list'),
          true,
          `${method} ${JSON.stringify(result)}: ${outcome}`,
        );
        await rig.harness.refresh();
      }
      const lists = JSON.stringify(rig.lists);
      assert.doesNotMatch(lists, /etc|relative|\\u001b/);
      await daemon.send({ cmd: 'mend' });
      await daemon.send({ cmd: 'cut' });
      await rig.until(() => rig.find(thread)?.reachable === true, `after ${method} it is understood again`);
    } finally {
      await rig.stop();
    }
  }
});

test('frames that are no answers are dropped: no JSON, other ids, questions, and one that is too long ends the connection', async () => {
  await withCodex(
    async (rig) => {
      const daemon = await rig.daemon();
      const session = await rig.see(daemon);
      const lines = ['no json', '[]', 'null', '{"id":1}', '{"id":"x","result":{}}', '{"id":99999,"result":{"data":["PRIVATE"]}}'];
      const questions = [
        '{"id":1,"method":"execCommandApproval","params":{}}',
        '{"method":"thread/closed"}',
        '{"method":"thread/started","params":{"thread":5}}',
      ];
      for (const text of [...lines, ...questions]) await daemon.send({ cmd: 'say', text });
      assert.equal((await rig.notify(session, 1)).outcome, 'in_queue');
      assert.equal(daemon.all('connected').length, 1);
      await daemon.fault('thread/queue/list', { kind: 'raw', text: `{"id":$ID,"result":"${'x'.repeat(17 * 1024 * 1024)}"}` });
      const { outcome } = await rig.notify(session, 2);
      assert.equal(['failed', 'in_queue'].includes(outcome), true, outcome);
      await daemon.until((event) => event.event === 'connected' && event.connection === 2);
      await rig.until(() => rig.find(session.sessionId)?.reachable === true, 'a new connection is made');
    },
    { clock: realClock(10) },
  );
});

test('a flood of notifications makes few lists and requests, and keeps neither other homes nor, for long, its own from their notices', async () => {
  await withCodex(
    async (rig) => {
      const [loud, well] = [await rig.daemon(), await rig.daemon({ name: 'well' })];
      const [session, other] = [await rig.see(loud), await rig.see(well)];
      const lists = rig.lists.length;
      await loud.send({ cmd: 'flood', count: 10_000, bytes: 200 });
      await loud.send({ cmd: 'flood', count: 2000, thread: session.sessionId });
      assert.equal((await rig.notify(other, 1)).outcome, 'in_queue');
      let outcome = '';
      for (let n = 2; outcome !== 'in_queue' && n < 100; n++) {
        await rig.until(() => rig.find(session.sessionId) !== undefined, 'the thread is listed, again where the connection was lost');
        ({ outcome } = await rig.notify(session, n));
      }
      assert.equal(outcome, 'in_queue');
      assert.equal(rig.lists.length - lists < 50, true, `${rig.lists.length - lists} lists were told`);
      assert.equal(loud.all('request').length < 5000, true, `${loud.all('request').length} requests were made`);
    },
    { homes: ['codex', 'well'], clock: realClock(10) },
  );
});

test('what another user could have put there is never connected to, and the log says why', async () => {
  const cases: [why: string, uid: number, spoil: (public_: string, target: string, dir: string) => void][] = [
    ['socket folder open to other users', UID, (path) => chmodSync(dirname(path), 0o770)],
    ['socket folder open to other users', UID, (path) => chmodSync(dirname(path), 0o707)],
    ['socket folder open to other users', UID, (_path, target) => chmodSync(dirname(target), 0o750)],
    ['socket folder open to other users', UID + 1, () => {}], // everything is another user's
    ['socket open to other users', UID, (_path, target) => chmodSync(target, 0o666)],
    [
      'socket link leads to another link',
      UID,
      (_path, target) => {
        renameSync(target, `${target}.2`);
        symlinkSync(`${target}.2`, target);
      },
    ],
    [
      'socket folder open to other users',
      UID,
      (path, target, dir) => {
        symlinkSync(dirname(target), join(dir, 'through')); // the folder itself is a link
        rmSync(path);
        symlinkSync(join(dir, 'through', target.split('/').at(-1)!), path);
      },
    ],
    [
      'socket path is not a socket',
      UID,
      (path) => {
        rmSync(path);
        const folder = join(dirname(dirname(path)), 'private');
        mkdirSync(folder, { mode: 0o700 });
        writeFileSync(join(folder, 'x'), '', { mode: 0o600 });
        symlinkSync(join(folder, 'x'), path);
      },
    ],
  ];
  for (const [why, uid, spoil] of cases) {
    const rig = new CodexRig({ uid });
    try {
      const daemon = await rig.daemon({ socketRoot: join(rig.dir, 'r') });
      await daemon.thread({ cwd: rig.workspace() });
      spoil(daemon.socket, daemon.target, rig.dir);
      await rig.start();
      assert.deepEqual([rig.state(), rig.harness.sessions()], ['unsafe', []]);
      assert.match(JSON.stringify(rig.logged), new RegExp(why));
      await daemon.send({ cmd: 'state' });
      assert.equal(daemon.all('connected').length, 0, why);
    } finally {
      await rig.stop();
    }
  }
});

test('an older, newer or unnamed version is listed with its number alone, and nothing is added there', async () => {
  for (const [options, reason] of [
    [{ version: '0.150.1' }, 'unsupported Codex version 0.150.1'],
    [{ userAgent: 'PRIVATE words' }, 'unsupported Codex version'],
    [{ userAgent: 'codex/1.2.3\u001b[31m PRIVATE' }, 'unsupported Codex version'],
  ] as const) {
    await withCodex(async (rig) => {
      const daemon = await rig.daemon(options);
      const session = await rig.see(daemon);
      assert.deepEqual([session.reachable, session.reason], [false, reason]);
      assert.deepEqual(await rig.notify(session, 1), { outcome: 'failed', detail: reason });
      await daemon.send({ cmd: 'state' });
      assert.equal(daemon.all('queued').length, 0);
    });
  }
});

test('a restarted daemon is found again, and an item that waited through it is told of', async () => {
  await withCodex(
    async (rig) => {
      const first = await rig.daemon({ socketRoot: join(rig.dir, 'r') });
      const session = await rig.see(first);
      const thread = session.sessionId;
      await first.send({ cmd: 'turn', thread });
      assert.equal((await rig.notify(session, 1)).outcome, 'in_queue');
      await first.kill(); // its files stay
      await rig.until(() => rig.harness.sessions().length === 0, 'without a daemon there are no sessions');
      assert.equal((await rig.notify(session, 2)).outcome, 'failed');
      const second = await rig.daemon({ socketRoot: join(rig.dir, 'r') });
      await second.until((event) => event.event === 'request' && event.method === 'thread/loaded/list');
      await rig.harness.refresh();
      assert.deepEqual([rig.state(), rig.harness.sessions(), rig.said(1)], ['connected', [], []]);
      await second.send({ cmd: 'resume', thread });
      await rig.until(() => rig.said(1).includes('left_queue'), 'the item was taken');
      assert.equal((await second.queued(thread)).length, 0, 'nothing was added again');
      await rig.until(() => rig.find(thread) !== undefined, 'the thread is seen');
      await second.send({ cmd: 'remove_socket' });
      assert.equal((await rig.harness.refresh()).length, 1); // the connection outlives the file
    },
    { clock: realClock(10) },
  );
});

test('a socket file that nobody listens behind is a daemon that does not run', async () => {
  const rig = new CodexRig();
  try {
    const daemon = await rig.daemon();
    await daemon.send({ cmd: 'stale_socket' });
    await rig.start();
    assert.deepEqual([rig.state(), rig.lists], ['absent', [[]]]);
  } finally {
    await rig.stop();
  }
});

test('one connection is kept for everything, and stopping the adapter ends it', async () => {
  await withCodex(async (rig) => {
    const daemon = await rig.daemon();
    const session = await rig.see(daemon);
    for (let n = 1; n < 4; n++) await rig.notify(session, n);
    await rig.harness.refresh();
    await rig.harness.stop();
    await daemon.next('closed');
    assert.equal(daemon.all('connected').length, 1);
    assert.equal((await rig.notify(session, 9)).outcome, 'failed');
  });
});
