/**
 * Discovery over adapters that hang or fail: each is waited for with a bound of its own, and the others never notice.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Agents } from '../../daemon/agents.ts';
import { Discovery } from '../../daemon/discovery.ts';
import type { Harness, HarnessEvents, HarnessKind, Notice, NoticeResult, Session, SessionClaim } from '../../daemon/harness/harness.ts';
import { AxError } from '../../protocol/errors.ts';
import { HARNESS_LOOK_MS, HARNESS_STEP_MS } from '../../protocol/limits.ts';
import { AT } from '../protocol/sample.ts';
import { openBed } from './bed.ts';
import type { HandClock } from './bed.ts';

const ID = '11111111-2222-4333-8444-555555555555';
const session = (harness: HarnessKind, change: Partial<Session> = {}): Session => ({
  harness,
  sessionId: ID,
  workspace: '/w',
  status: 'idle',
  statusSince: AT + 1.5,
  startedAt: AT,
  version: '1',
  reachable: true,
  processKey: harness,
  ...change,
});
const claim = (harness: HarnessKind): SessionClaim => ({ harness, sessionId: ID });
const NOTICE: Notice = { id: '00000000-0000-4000-8000-000000000001', text: 'text' };

/** An adapter every step of which answers what the test says, when the test says it. */
class Adapter implements Harness {
  readonly kind: HarnessKind;
  started: Promise<void> = Promise.resolve();
  listed: () => Promise<readonly Session[]>;
  proved: () => Promise<Session>;
  notified: () => Promise<NoticeResult> = () => Promise.resolve({ outcome: 'written' });
  stopped: Promise<void> = Promise.resolve();
  looks = 0;
  events: HarnessEvents | undefined;

  constructor(kind: HarnessKind) {
    this.kind = kind;
    this.listed = () => Promise.resolve([session(kind)]);
    this.proved = () => Promise.resolve(session(kind));
  }

  start(events: HarnessEvents): Promise<void> {
    this.events = events;
    return this.started;
  }
  stop = (): Promise<void> => this.stopped;
  sessions = (): readonly Session[] => [];
  refresh(): Promise<readonly Session[]> {
    this.looks++;
    return this.listed();
  }
  prove = (): Promise<Session> => this.proved();
  notify = (): Promise<NoticeResult> => this.notified();
}

const NEVER = new Promise<never>(() => undefined);
const settled = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

interface Scene {
  readonly clock: HandClock;
  readonly claude: Adapter;
  readonly codex: Adapter;
  readonly discovery: Discovery;
  readonly heard: [string, NoticeResult][];
  readonly logged: string[];
  readonly folders: Set<string>;
  /** Lets `ms` pass as soon as everything that waits has begun to. */
  soon<T>(ms: number, work: Promise<T>): Promise<T>;
}

async function makeScene(): Promise<Scene> {
  const { clock, store } = await openBed();
  const [claude, codex] = [new Adapter('claude'), new Adapter('codex')];
  const [heard, logged, folders]: [[string, NoticeResult][], string[], Set<string>] = [[], [], new Set(['/w'])];
  const say = (event: string): void => void logged.push(event);
  const discovery = new Discovery({
    harnesses: [codex, claude],
    agents: new Agents(store),
    clock,
    log: { debug: say, info: say, warn: say, error: say },
    files: { canonicalFolder: async (path) => (folders.has(path) ? path : undefined) },
    quietMs: () => 0,
    ask: () => Promise.reject(new AxError('unavailable', 'no other host here')),
    onSessions: () => undefined,
    onNotice: (id, result) => void heard.push([id, result]),
  });
  const soon = async <T>(ms: number, work: Promise<T>): Promise<T> => {
    await settled();
    clock.pass(ms);
    return work;
  };
  return { clock, claude, codex, discovery, heard, logged, folders, soon };
}

test('an adapter whose start hangs or fails delays no start beyond its bound, and comes in when it is ready', async () => {
  const { clock, claude, codex, discovery, logged, soon } = await makeScene();
  const late = Promise.withResolvers<void>();
  codex.started = late.promise;
  await soon(HARNESS_LOOK_MS, discovery.start());
  assert.deepEqual(logged, ['harness adapter is slow to start']);
  claude.events?.onSessions([session('claude')]);
  assert.equal(discovery.at('claude', '/w').length, 1, 'the other works meanwhile');
  late.resolve();
  codex.events?.onSessions([session('codex')]);
  assert.equal(discovery.at('codex', '/w').length, 1);
  assert.equal(clock.pending, 0, 'no timer outlives what it bounds');

  const other = await makeScene();
  other.codex.started = Promise.reject(new Error('no'));
  await other.discovery.start();
  assert.deepEqual(other.logged, ['harness adapter did not start']);
});

test('an adapter that hangs is silent in the list, with what was last seen of it, and is not asked again until it has answered', async () => {
  const { codex, discovery, soon } = await makeScene();
  const first = await discovery.local();
  assert.deepEqual([first.sessions.map((one) => one.harness).toSorted(), first.silent], [['claude', 'codex'], []]);
  const late = Promise.withResolvers<readonly Session[]>();
  codex.listed = () => late.promise;
  const list = await soon(HARNESS_LOOK_MS, discovery.local());
  assert.deepEqual([list.sessions.length, list.silent], [2, ['codex']]);
  const again = await discovery.local(); // no time passes: it waits for nothing
  assert.deepEqual([again.silent, codex.looks], [['codex'], 2]);
  late.resolve([]);
  await settled();
  codex.listed = () => Promise.resolve([]);
  const after = await discovery.local();
  assert.deepEqual([after.sessions.map((one) => one.harness), after.silent], [['claude'], []]);
  codex.listed = () => Promise.reject(new Error('no'));
  assert.deepEqual((await discovery.local()).silent, ['codex'], 'one that fails is silent as well');
});

test('a proof or a notice that hangs ends within its bound: nothing is claimed, and a later word still counts', async () => {
  const { codex, discovery, heard, soon } = await makeScene();
  codex.proved = () => NEVER;
  await assert.rejects(
    soon(HARNESS_STEP_MS, discovery.prove(claim('codex'))),
    (error) => error instanceof AxError && error.code === 'timeout',
  );
  assert.equal((await discovery.prove(claim('claude'))).harness, 'claude');
  const late = Promise.withResolvers<NoticeResult>();
  codex.notified = () => late.promise;
  const result = await soon(HARNESS_STEP_MS, discovery.notify(session('codex'), NOTICE));
  assert.deepEqual(result, { outcome: 'unverified', detail: 'codex did not answer in time' });
  late.resolve({ outcome: 'in_queue' });
  await settled();
  assert.deepEqual(heard, [[NOTICE.id, { outcome: 'in_queue' }]]);
});

test('an adapter that does not stop is left behind', async () => {
  const { codex, discovery, logged, soon } = await makeScene();
  codex.stopped = NEVER;
  await soon(HARNESS_LOOK_MS, discovery.stop());
  assert.deepEqual(logged, ['harness adapter did not stop']);
});

test('a list tells since when a session is in its status, and that its folder was moved under it', async () => {
  const { claude, codex, discovery, folders } = await makeScene();
  codex.listed = () => Promise.resolve([session('codex', { statusSince: 0 })]);
  claude.listed = () => Promise.resolve([session('claude', { workspace: '/moved' })]);
  folders.add('/moved');
  const rows = async () =>
    (await discovery.local()).sessions
      .map((one) => [one.harness, one.statusSince, one.reachable, one.reason])
      .toSorted(([one], [other]) => String(one).localeCompare(String(other)));
  assert.deepEqual(await rows(), [
    ['claude', AT + 1, true, null],
    ['codex', null, true, null],
  ]);
  folders.delete('/moved');
  assert.deepEqual((await rows())[0], ['claude', AT + 1, false, 'its folder is gone or was moved']);
});
