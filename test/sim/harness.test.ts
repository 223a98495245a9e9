/** The simulated harness keeps the rules of the seam, and its scripted agents do what their script says. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { HarnessKind, NoticeResult, Session } from '../../daemon/harness/harness.ts';
import { harnessContract, type HarnessRig, type RigBehaviour, type RigSession, type RigTraits } from '../contract/harness.ts';
import { SimCodexHarness } from './codex.ts';
import { SimAgents, SimHarness, type SimSession } from './harness.ts';
import { World } from './world.ts';

const LIMIT_MS = 60_000;
const TRAITS: RigTraits = { taken: 'written', afterwards: [], hasReceipts: true, hasClear: true, exports: ['pid', 'socket'] };
const CODEX_TRAITS: RigTraits = { taken: 'in_queue', afterwards: ['left_queue'], hasReceipts: false, hasClear: false, exports: [] };
const notice = { id: '00000000-0000-4000-8000-000000000001', text: 'text' };

async function drive<T>(world: World, work: Promise<T>): Promise<T> {
  let isDone = false;
  const mark = (): void => {
    isDone = true;
  };
  work.then(mark, mark);
  await world.run(() => isDone, LIMIT_MS);
  assert.ok(isDone, 'the work ends within the limit');
  return work;
}

async function makeRig(kind: HarnessKind): Promise<HarnessRig> {
  const world = new World(1);
  const agents = new SimAgents(world, () => {}, kind);
  const harness = new (kind === 'codex' ? SimCodexHarness : SimHarness)(agents, { alive: () => true });
  const lists: (readonly Session[])[] = [];
  const notices: { id: string; result: NoticeResult }[] = [];
  await harness.start({ onSessions: (sessions) => lists.push(sessions), onNotice: (id, result) => notices.push({ id, result }) });
  return {
    harness,
    lists,
    notices,
    add: (behaviour) => Promise.resolve(rigSession(agents, behaviour)),
    until: async (check, what) => assert.equal(await world.run(check, LIMIT_MS), 'done', what),
    drive: (work) => drive(world, work),
    stop: () => harness.stop(),
  };
}

function rigSession(agents: SimAgents, behaviour: RigBehaviour): RigSession {
  const session = agents.add({ workspace: '/w', behaviour });
  const now = (act: () => void): Promise<void> => Promise.resolve(act());
  return {
    workspace: session.workspace,
    processKey: session.processKey,
    sessionId: () => session.sessionId,
    claim: () => agents.claim(session),
    received: () => Promise.resolve(session.received.map((one) => one.text)),
    setStatus: (status) => now(() => agents.setStatus(session, status)),
    clear: () => now(() => agents.clear(session)),
    end: () => now(() => agents.end(session)),
    crash: () => now(() => agents.end(session)),
  };
}

harnessContract('simulated harness', TRAITS, () => makeRig('claude'));
harnessContract('simulated Codex', CODEX_TRAITS, () => makeRig('codex'));

interface Scene {
  readonly world: World;
  readonly agents: SimAgents;
  readonly harness: SimHarness;
  readonly acts: SimSession[];
  isAlive: boolean;
}

async function makeScene(): Promise<Scene> {
  const world = new World(2);
  const acts: SimSession[] = [];
  const agents = new SimAgents(world, (session) => void acts.push(session));
  const scene: Scene = { world, agents, acts, isAlive: true, harness: new SimHarness(agents, { alive: () => scene.isAlive }) };
  await scene.harness.start({ onSessions: () => {}, onNotice: () => {} });
  return scene;
}

test('a busy agent acts on a notice only when it is idle again', async () => {
  const { world, agents, harness, acts } = await makeScene();
  const session = agents.add({ workspace: '/w', status: 'busy' });
  const [seen] = await drive(world, harness.refresh());
  await drive(world, harness.notify(seen!, notice));
  await world.run(() => false, 10_000);
  assert.equal(acts.length, 0);
  agents.setStatus(session, 'idle');
  await world.run(() => false, 10_000);
  assert.equal(acts.length, 1);
  assert.equal(session.status, 'idle');
});

test('an agent that drops notices, or dies, never acts', async () => {
  for (const behaviour of ['drops', 'dies_before', 'dies_after', 'holds', 'denies', 'blocks'] as const) {
    const { world, agents, harness, acts } = await makeScene();
    agents.add({ workspace: '/w', behaviour });
    const [seen] = await drive(world, harness.refresh());
    const result = await drive(world, harness.notify(seen!, notice));
    assert.equal(result.outcome, behaviour === 'dies_before' ? 'failed' : 'written');
    await world.run(() => false, 10_000);
    assert.equal(acts.length, 0);
    assert.equal(agents.live.length, behaviour.startsWith('dies') ? 0 : 1);
  }
});

test('an unreachable session is listed with its reason and never written to', async () => {
  const { world, agents, harness } = await makeScene();
  const session = agents.add({ workspace: '/w', unreachable: 'script session' });
  const [seen] = await drive(world, harness.refresh());
  assert.deepEqual([seen?.reachable, seen?.reason], [false, 'script session']);
  assert.equal((await drive(world, harness.notify(seen!, notice))).outcome, 'failed');
  assert.equal(session.received.length, 0);
});

test('a crashed daemon hears nothing more, and the sessions live on for the next one', async () => {
  const scene = await makeScene();
  const { world, agents } = scene;
  agents.add({ workspace: '/w' });
  await drive(world, scene.harness.refresh());
  scene.isAlive = false;
  const next = new SimHarness(agents, { alive: () => true });
  await next.start({ onSessions: () => {}, onNotice: () => {} });
  assert.equal(next.sessions().length, 1);
});
