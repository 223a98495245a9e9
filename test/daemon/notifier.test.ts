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
import type { NewReceived } from '../../daemon/inbox.ts';
import { Notices } from '../../daemon/notices.ts';
import { Notifier } from '../../daemon/notifier.ts';
import { Peers } from '../../daemon/peers.ts';
import type { StoreReader } from '../../daemon/store/store.ts';
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import { NOTICE_RESEND_MS } from '../../protocol/limits.ts';
import type { GrantAction } from '../../protocol/states.ts';
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
  readonly harness = new Listed();
  readonly notifier: Notifier;
  readonly errors: string[] = [];
  readonly discovery: Discovery;
  /** Rows of messages read from the store so far. */
  rowsRead = 0;

  constructor(bed: Bed) {
    const counting: StoreReader = {
      get: (table, key) => {
        if (table === 'inbox') this.rowsRead++;
        return bed.store.get(table, key);
      },
      range: (table, options) => bed.store.range(table, options),
      count: (table, options) => bed.store.count(table, options),
    };
    const store = { ...counting, write: bed.write.bind(bed), status: () => bed.store.status(), close: () => bed.store.close() };
    const quiet = (): void => undefined;
    const log = { debug: quiet, info: quiet, warn: quiet, error: (event: string) => void this.errors.push(event) };
    this.bed = bed;
    this.inbox = new Inbox(store, bed.running);
    this.notices = new Notices(store, bed.running);
    this.peers = new Peers(store, 'home');
    const agents = new Agents(store);
    this.discovery = new Discovery({
      harnesses: [this.harness],
      agents,
      clock: bed.clock,
      log,
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

test('notes and messages of hosts that may not notify, however many, silence nobody and are not read', async () => {
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
  assert.ok(box.rowsRead - before < 10, String(box.rowsRead - before));
});

test('a look reads a bounded number of messages, however many wait, and the notice tells the true number', async () => {
  const box = await boxOf('write', 'notify');
  box.harness.list(session(1));
  await box.take(1, 3000);
  const before = box.rowsRead;
  await box.wake();
  assert.match(box.harness.told[0]!.text, /3000 messages wait/);
  assert.ok(box.rowsRead - before < 200, String(box.rowsRead - before));
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
