/**
 * The notifier over the real store: an attempt is decided by what is unread and allowed when it becomes durable.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Agents } from '../../daemon/agents.ts';
import { Discovery } from '../../daemon/discovery.ts';
import { Events } from '../../daemon/events.ts';
import type { Harness, HarnessEvents, Notice, NoticeResult, Session } from '../../daemon/harness/harness.ts';
import { Inbox } from '../../daemon/inbox.ts';
import type { NewReceived } from '../../daemon/received-row.ts';
import { Notices } from '../../daemon/notices.ts';
import { Notifier } from '../../daemon/notifier.ts';
import { Peers } from '../../daemon/peers.ts';
import type { StoreReader } from '../../daemon/store/store.ts';
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import { NOTICE_RESEND_MS } from '../../protocol/limits.ts';
import type { GrantAction, NoticeOutcome } from '../../protocol/states.ts';
import { ALICE, AT, BOB, CAROL, counted } from '../protocol/sample.ts';
import { DAY, idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const [A, SELF, C] = [ALICE.hostId, BOB.hostId, CAROL.hostId];
const W = '/w';
const session = (n: number, change: Partial<Session> = {}): Session => ({
  harness: 'claude',
  sessionId: `${n}1111111-2222-4333-8444-555555555555`,
  workspace: W,
  status: 'idle',
  statusSince: 0,
  startedAt: AT,
  version: 'test',
  reachable: true,
  processKey: `${n}`,
  ...change,
});

/** A harness that lists what it is told to and takes down every attempt. */
class Listed implements Harness {
  readonly kind = 'claude';
  readonly told: { session: string; text: string }[] = [];
  result: NoticeResult = { outcome: 'written' };
  #events: HarnessEvents | undefined;

  start(events: HarnessEvents): Promise<void> {
    this.#events = events;
    return Promise.resolve();
  }
  stop = (): Promise<void> => Promise.resolve();
  sessions = (): readonly Session[] => [];
  refresh = (): Promise<readonly Session[]> => Promise.resolve([]);
  prove = (): Promise<Session> => Promise.reject(new AxError('not_found', 'nobody is proved here'));
  notify(to: Session, notice: Notice): Promise<NoticeResult> {
    this.told.push({ session: to.sessionId, text: notice.text });
    return Promise.resolve(this.result);
  }
  list(...sessions: Session[]): void {
    this.#events?.onSessions(sessions);
  }
}

/** Everything a notifier needs, over one real store. */
class Box {
  readonly bed: Bed;
  readonly inbox: Inbox;
  readonly notices: Notices;
  readonly peers: Peers;
  readonly agents: Agents;
  readonly harness = new Listed();
  readonly notifier: Notifier;
  readonly errors: string[] = [];
  readonly discovery: Discovery;
  /** Rows of messages read from the store so far. */
  rowsRead = 0;
  /** Called before keys of the inbox are looked through. */
  onRange: (start: string) => void = () => undefined;

  constructor(bed: Bed) {
    const counting: StoreReader = {
      get: (table, key) => {
        if (table === 'inbox') this.rowsRead++;
        return bed.store.get(table, key);
      },
      range: (table, options) => {
        if (table === 'inbox_index') this.onRange(options?.start ?? '');
        return bed.store.range(table, options);
      },
      count: (table, options) => bed.store.count(table, options),
    };
    const store = { ...counting, write: bed.write.bind(bed), status: () => bed.store.status(), close: () => bed.store.close() };
    const quiet = (): void => undefined;
    const log = { debug: quiet, info: quiet, warn: quiet, error: (event: string) => void this.errors.push(event) };
    this.bed = bed;
    this.inbox = new Inbox(store, bed.running);
    this.notices = new Notices(store, bed.running);
    this.peers = new Peers(store, 'home', { now: () => bed.clock.now(), running: bed.running });
    const agents = new Agents(store);
    this.agents = agents;
    this.discovery = new Discovery({
      harnesses: [this.harness],
      agents,
      clock: bed.clock,
      log,
      files: { canonicalFolder: async (path) => path },
      quietMs: () => 0,
      ask: () => Promise.reject(new AxError('unavailable', 'no other host here')),
      onSessions: quiet,
      onNotice: quiet,
    });
    this.notifier = new Notifier({
      store,
      clock: bed.clock,
      random: { bytes: (length) => counted(length, this.harness.told.length) },
      log,
      self: SELF,
      ax: { program: 'ax' },
      running: bed.running,
      discovery: this.discovery,
      inbox: this.inbox,
      agents,
      notices: this.notices,
      peers: this.peers,
      events: new Events(store, bed.clock, bed.running),
      onChanged: quiet,
    });
  }

  know(hostId: HostId, grants: readonly GrantAction[]): Promise<unknown> {
    return this.bed.write((tx) => this.peers.add(tx, { hostId, name: hostId.slice(-8), exactName: false, addresses: [], grants, now: AT }));
  }

  take(from: number, count: number, change: Partial<NewReceived> = {}): Promise<void> {
    return this.bed.write((tx) => {
      for (let n = from; n < from + count; n++)
        this.inbox.accept(
          tx,
          {
            id: idOf(n),
            sender: A,
            state: 'available',
            storedAs: 'message',
            signed: counted(9, n),
            digest: counted(32, n),
            bytes: 100,
            harness: 'claude',
            workspace: W,
            hint: null,
            sentAt: AT,
            receivedAt: AT + n,
            expires: 7 * DAY,
            ...change,
          },
          counted(20, n),
        );
    });
  }

  /** Everything the notifier had begun when this was called, and what follows from it at once, is done: writes end in their order. */
  async settled(): Promise<void> {
    for (let round = 0; round < 6; round++) {
      await this.bed.write(() => undefined);
      await new Promise((resolve) => void setImmediate(resolve));
    }
    assert.deepEqual(this.errors, []);
  }

  async wake(): Promise<void> {
    this.notifier.wake('claude', W);
    await this.settled();
  }
}

async function boxOf(...grants: GrantAction[]): Promise<Box> {
  const box = new Box(await openBed());
  await box.discovery.start();
  await box.know(A, grants);
  return box;
}

test('a message cancelled or read while the attempt was on its way to the store causes no notice', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  await box.take(1, 1);
  const cancelled = box.bed.write((tx) => box.inbox.cancel(tx, A, idOf(1), counted(32, 1)));
  await box.wake(); // looked at before the cancel ran, decided after it
  assert.equal((await cancelled).outcome, 'cancelled');
  assert.deepEqual(box.harness.told, []);
  assert.equal(box.notices.standing(session(1).sessionId), undefined);
});

test('a sender that lost notify while the attempt was on its way to the store causes no notice, and pays for none', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  await box.take(1, 1);
  const revoked = box.know(A, ['write']);
  await box.wake();
  await revoked;
  assert.deepEqual(box.harness.told, []);
});

test('an agent made quiet while the attempt was on its way to the store gets no notice, nobody pays, and all of it is marked', async () => {
  const box = await boxOf('write', 'notify');
  const attachment = { sessionId: session(1).sessionId, processKey: '1', attachedAt: AT };
  await box.bed.write((tx) =>
    box.agents.attach(tx, { name: 'w', harness: 'claude', workspace: W, session: attachment, isLive: () => true }),
  );
  box.harness.list(session(1));
  await box.take(1, 60);
  const quiet = box.bed.write((tx) => box.agents.setQuiet(tx, 'w', { untilWall: null, untilRan: null }));
  await box.wake(); // looked at before the quiet, decided after it
  await quiet;
  assert.deepEqual([box.harness.told, box.notices.standing(session(1).sessionId)], [[], undefined]);
  await box.wake();
  const reasons = (): Set<unknown> => new Set(Array.from({ length: 60 }, (_, n) => box.inbox.get(A, idOf(n + 1))?.notice?.reason));
  assert.deepEqual(reasons(), new Set(['quiet']));
  const before = box.rowsRead;
  await box.wake();
  assert.ok(box.rowsRead - before < 5, 'and once marked they are not read again');
  await box.know(A, ['write']);
  await box.wake();
  assert.deepEqual(reasons(), new Set(['no_right']));
  await box.know(A, ['write', 'notify']);
  await box.bed.write((tx) => box.agents.setQuiet(tx, 'w', null));
  await box.wake();
  assert.equal(box.harness.told.length, 1);
  assert.deepEqual(reasons(), new Set([undefined]));
});

test('notes and messages of hosts that may not notify, however many, silence nobody, and few of them are read, once', async () => {
  const box = await boxOf('write', 'notify');
  await box.know(C, ['write']);
  box.harness.list(session(1));
  await box.take(1, 1000, { storedAs: 'note' });
  await box.take(2001, 1000, { sender: C });
  await box.take(4001, 2);
  const before = box.rowsRead;
  await box.wake();
  assert.equal(box.harness.told.length, 1);
  assert.match(box.harness.told[0]!.text, /2 messages wait/);
  assert.ok(box.rowsRead - before < 300, String(box.rowsRead - before));
  const later = box.rowsRead;
  await box.wake();
  assert.ok(box.rowsRead - later < 10, String(box.rowsRead - later));
});

test('a look reads a bounded number of messages, however many wait, and the notice tells the true number', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  await box.take(1, 3000);
  const before = box.rowsRead;
  await box.wake();
  assert.match(box.harness.told[0]!.text, /3000 messages wait/);
  assert.ok(box.rowsRead - before < 300, String(box.rowsRead - before));
});

test('a message that names one of several sessions is told of behind any number that name none', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1), session(2));
  await box.take(1, 1000);
  await box.take(2001, 1, { hint: session(2).sessionId });
  await box.wake();
  assert.deepEqual(
    box.harness.told.map((one) => one.session),
    [session(2).sessionId],
  );
  assert.match(box.harness.told[0]!.text, /a message waits/);
  const shown = (n: number): unknown => box.inbox.get(A, idOf(n))?.notice?.outcome;
  assert.deepEqual([shown(1), shown(1000), shown(2001)], ['withheld', 'withheld', 'written']);
});

test('a notice withheld says whether several sessions could be meant or the budget is used up', async () => {
  const box = await boxOf('write', 'notify');
  const detail = (): string | undefined => box.inbox.get(A, idOf(1))?.notice?.detail;
  box.harness.list(session(1), session(2));
  await box.take(1, 1);
  await box.wake();
  assert.equal(detail(), 'several sessions could be meant');
  await box.bed.write((tx) => {
    while (box.notices.spend(tx, A, 'claude', W));
  });
  box.harness.list(session(1));
  await box.wake();
  assert.equal(detail(), "the sender's budget of notices is used up");
  box.bed.clock.pass(NOTICE_RESEND_MS + 1);
  await box.settled();
  assert.equal(box.harness.told.length, 1);
  assert.equal(box.inbox.get(A, idOf(1))?.notice?.detail, undefined);
});

test('attempts that reach nothing follow their own growing pause, never end, and use up neither attempts nor budget', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1, { status: 'busy' }));
  box.harness.result = { outcome: 'failed' };
  await box.take(1, 1);
  await box.wake();
  const times: number[] = [];
  for (let made = 1; made < 20; made++) {
    const from = box.bed.clock.ran;
    for (; box.harness.told.length === made; await box.settled()) box.bed.clock.pass(1000);
    times.push((box.bed.clock.ran - from) / 1000);
  }
  assert.deepEqual(times.slice(0, 10), [4, 8, 16, 32, 64, 128, 256, 512, 512, 512]);
  assert.equal(box.notices.untilBudget(A, 'claude', W), 0);
  box.harness.result = { outcome: 'written' };
  box.bed.clock.pass(512_000);
  await box.settled();
  assert.equal(box.notices.standing(session(1).sessionId)?.attempts, 1);
  assert.doesNotMatch(box.harness.told.at(-1)!.text, /reminder/);
});

test('words about a notice that come late, twice or in another order never turn a later one back, and a queue may be paused and go on', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  box.harness.result = { outcome: 'in_queue' };
  await box.take(1, 1);
  await box.wake();
  const id = box.notices.standing(session(1).sessionId)!.noticeId!;
  const seen = async (...words: NoticeOutcome[]): Promise<unknown[]> => {
    for (const outcome of words) await box.notifier.outcome(id, { outcome });
    await box.settled();
    return [
      box.notices.attempt(id)?.outcome,
      box.notices.standing(session(1).sessionId)?.outcome,
      box.inbox.get(A, idOf(1))?.notice?.outcome,
    ];
  };
  const all = (outcome: NoticeOutcome): NoticeOutcome[] => [outcome, outcome, outcome];
  assert.deepEqual(await seen('in_queue'), all('in_queue'));
  assert.deepEqual(await seen('queue_paused'), all('queue_paused'));
  assert.deepEqual(await seen('in_queue'), all('in_queue'));
  assert.deepEqual(await seen('left_queue'), all('left_queue'));
  assert.deepEqual(await seen('in_queue', 'queue_paused', 'written', 'unverified', 'failed'), all('left_queue'));
  assert.deepEqual(box.notices.counts(), { in_queue: 2, queue_paused: 1, left_queue: 1 });
});

test('the own result of an attempt that a word of the harness overtook changes nothing', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  const result = Promise.withResolvers<NoticeResult>();
  box.harness.notify = () => result.promise;
  await box.take(1, 1);
  box.notifier.wake('claude', W);
  await box.settled();
  await box.notifier.outcome(box.notices.standing(session(1).sessionId)!.noticeId!, { outcome: 'left_queue' });
  result.resolve({ outcome: 'in_queue' });
  await box.settled();
  assert.equal(box.inbox.get(A, idOf(1))?.notice?.outcome, 'left_queue');
});

test('a late word about an earlier attempt does not stand for the message once a later one was made', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  box.harness.result = { outcome: 'unverified' };
  await box.take(1, 1);
  await box.wake();
  const first = box.notices.standing(session(1).sessionId)!.noticeId!;
  const shown = (): string | undefined => box.inbox.get(A, idOf(1))?.notice?.outcome;
  assert.equal(shown(), 'unverified', 'its sender is told that nobody knows');
  box.harness.result = { outcome: 'in_queue' };
  box.bed.clock.pass(NOTICE_RESEND_MS + 1);
  await box.settled();
  assert.deepEqual([box.harness.told.length, shown()], [2, 'in_queue']);
  await box.notifier.outcome(first, { outcome: 'left_queue' });
  await box.settled();
  assert.deepEqual([box.notices.attempt(first)?.outcome, shown()], ['left_queue', 'in_queue']);
});

test('a notice of an earlier life that the harness speaks of is waited for like one of this life', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  box.harness.result = { outcome: 'in_queue' };
  await box.take(1, 1);
  await box.wake();
  const id = box.notices.standing(session(1).sessionId)!.noticeId!;
  const next = new Box(box.bed);
  await next.discovery.start();
  next.harness.list(session(1));
  await next.notifier.outcome(id, { outcome: 'queue_paused' });
  for (let minute = 0; minute < 60; minute++) {
    box.bed.clock.pass(60_000);
    next.notifier.wake('claude', W);
    await next.settled();
  }
  assert.deepEqual(next.harness.told, []);
  const unheard = new Box(box.bed);
  await unheard.discovery.start();
  unheard.harness.list(session(1));
  await unheard.wake();
  assert.equal(unheard.harness.told.length, 1, 'nobody speaks of it in this life, and it is an hour old');
});

test('when every address is looked at, that is done a few at a time, with the event loop for others in between; none is left out', async () => {
  const box = await boxOf('write', 'notify');
  const all = Array.from({ length: 20 }, (_, n) => `/w/${n}`);
  box.harness.list(...all.map((workspace, n) => session(1, { workspace, sessionId: `${idOf(n)}`, processKey: `${n}` })));
  for (const [n, workspace] of all.entries()) await box.take(n + 1, 1, { workspace });
  box.notifier.wakeAll();
  const counts: number[] = [];
  for (let turn = 0; turn < 3; turn++) {
    for (let attempts = 0; attempts < 8; attempts++) await box.settled();
    counts.push(box.harness.told.length);
    box.bed.clock.pass(0);
  }
  assert.deepEqual(counts, [8, 16, 20]);
  assert.equal(new Set(box.harness.told.map((one) => one.session)).size, 20);
});

test('addresses that are woken without end hold up none of those that are looked at with all others', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  await box.take(1, 1);
  let looks = 0;
  box.onRange = (start) => {
    if (start.startsWith('n/') && looks++ < 100) for (const name of ['/busy', '/busier']) box.notifier.wake('claude', name);
  };
  for (const name of ['/busy', '/busier']) box.notifier.wake('claude', name);
  box.notifier.wakeAll();
  for (let turn = 0; turn < 3; turn++) {
    for (let rounds = 0; rounds < 8; rounds++) await box.settled();
    box.bed.clock.pass(0);
  }
  assert.ok(looks < 100, 'the others are woken still');
  assert.equal(box.harness.told.length, 1);
});

test('a notifier that is stopped between two turns reads nothing any more', async () => {
  const box = await boxOf('write', 'notify');
  for (let n = 1; n <= 20; n++) await box.take(n, 1, { workspace: `/w/${n}` });
  let reads = 0;
  box.onRange = () => void reads++;
  box.notifier.wakeAll();
  await box.settled();
  box.notifier.stop();
  const before = reads;
  box.bed.clock.pass(NOTICE_RESEND_MS);
  await box.settled();
  assert.ok(before > 0);
  assert.equal(reads, before);
});

test('all addresses are looked at later when the store does not name them, and those that change meanwhile at once', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1), session(2, { workspace: '/other' }));
  await box.take(1, 1);
  await box.take(2, 1, { workspace: '/other' });
  box.onRange = (start) => {
    if (start.startsWith('o/')) throw new AxError('internal', 'a page that cannot be read');
  };
  box.notifier.wakeAll();
  box.notifier.wake('claude', W);
  await assert.rejects(box.settled());
  assert.equal(box.harness.told.length, 1);
  assert.deepEqual(box.errors.splice(0), ['notifier failed']);
  box.onRange = () => undefined;
  box.bed.clock.pass(NOTICE_RESEND_MS);
  await box.settled();
  assert.equal(new Set(box.harness.told.map((one) => one.session)).size, 2);
});
