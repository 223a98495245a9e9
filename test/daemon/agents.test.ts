/**
 * Agents over the real store: one per workspace and harness, one name each, sessions come and go.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Agents } from '../../daemon/agents.ts';
import type { Agent } from '../../daemon/agents.ts';
import { refusal } from '../protocol/sample.ts';
import { openBed } from './bed.ts';
import type { Bed } from './bed.ts';

class Box {
  readonly bed: Bed;
  readonly agents: Agents;
  readonly live = new Set<string>();

  constructor(bed: Bed) {
    this.bed = bed;
    this.agents = new Agents(bed.store);
  }

  attach(
    name: string,
    workspace: string,
    session: string,
    processKey = `p-${session}`,
    harness: 'claude' | 'codex' = 'claude',
  ): Promise<{ agent: Agent; created: boolean }> {
    this.live.add(session);
    const attachment = { sessionId: session, processKey, attachedAt: this.bed.clock.now() };
    return this.bed.write((tx) =>
      this.agents.attach(tx, { name, harness, workspace, session: attachment, isLive: (id) => this.live.has(id) }),
    );
  }

  sessions(name: string): string[] {
    return this.agents.named(name)?.attachments.map((one) => one.sessionId) ?? [];
  }
}

const emptyBox = async (): Promise<Box> => new Box(await openBed());

test('a first setup makes the agent, a second of the same session changes nothing', async () => {
  const box = await emptyBox();
  const first = await box.attach('Alice', '/w', 's1');
  assert.deepEqual([first.created, first.agent.name], [true, 'Alice']);
  box.bed.clock.pass(5000);
  const second = await box.attach('Alice', '/w', 's1');
  assert.deepEqual(second, { created: false, agent: first.agent });
  assert.deepEqual(box.agents.at('claude', '/w'), first.agent);
  assert.equal(box.agents.ofSession('s1')?.name, 'Alice');
});

test('a name is found in any case and keeps the case it was made with', async () => {
  const box = await emptyBox();
  await box.attach('Alice', '/w', 's1');
  assert.equal((await box.attach('ALICE', '/w', 's2')).agent.name, 'Alice');
  assert.equal(box.agents.named('aLiCe')?.name, 'Alice');
});

test('a workspace has one agent: another name for it is refused, another harness is another address', async () => {
  const box = await emptyBox();
  await box.attach('alice', '/w', 's1');
  await assert.rejects(box.attach('bob', '/w', 's2'), refusal('invalid_state'));
  assert.equal((await box.attach('bob', '/w', 's3', 'p', 'codex')).created, true);
  assert.deepEqual(
    box.agents
      .ofWorkspace('/w')
      .map((agent) => agent.name)
      .sort(),
    ['alice', 'bob'],
  );
});

test('a name belongs to one workspace of the host', async () => {
  const box = await emptyBox();
  await box.attach('alice', '/w', 's1');
  await assert.rejects(box.attach('Alice', '/other', 's2'), refusal('invalid_state'));
  assert.equal(box.agents.at('claude', '/other'), undefined);
});

test('two live sessions of a workspace are both attached; a cleared conversation of the same process replaces its own', async () => {
  const box = await emptyBox();
  await box.attach('alice', '/w', 's1', 'p1');
  await box.attach('alice', '/w', 's2', 'p2');
  assert.deepEqual(box.sessions('alice'), ['s1', 's2']);
  await box.attach('alice', '/w', 's3', 'p1');
  assert.deepEqual(box.sessions('alice'), ['s2', 's3']);
});

test('a resumed session in a new process is attached once', async () => {
  const box = await emptyBox();
  await box.attach('alice', '/w', 's1', 'p1');
  await box.attach('alice', '/w', 's1', 'p2');
  assert.deepEqual(
    box.agents.named('alice')?.attachments.map((one) => [one.sessionId, one.processKey]),
    [['s1', 'p2']],
  );
});

test('of ended sessions the last four are remembered, of live ones the newest sixteen in all', async () => {
  const box = await emptyBox();
  for (let n = 0; n < 8; n++) {
    await box.attach('alice', '/w', `dead${n}`);
    box.live.delete(`dead${n}`);
  }
  assert.deepEqual(box.sessions('alice'), ['dead3', 'dead4', 'dead5', 'dead6', 'dead7']);
  for (let n = 0; n < 20; n++) await box.attach('alice', '/w', `live${n}`);
  assert.equal(box.sessions('alice').length, 16);
  assert.equal(box.sessions('alice').at(-1), 'live19');
});

test('a rename moves the agent and nothing else, also to another case of its own name', async () => {
  const box = await emptyBox();
  const { agent } = await box.attach('alice', '/w', 's1');
  await box.attach('bob', '/b', 's2');
  await assert.rejects(
    box.bed.write((tx) => box.agents.rename(tx, 'alice', 'BOB')),
    refusal('invalid_state'),
  );
  assert.deepEqual(await box.bed.write((tx) => box.agents.rename(tx, 'alice', 'ALICE')), { ...agent, name: 'ALICE' });
  await box.bed.write((tx) => box.agents.rename(tx, 'alice', 'carol'));
  assert.equal(box.agents.named('alice'), undefined);
  assert.equal(box.agents.at('claude', '/w')?.name, 'carol');
  assert.deepEqual(
    box.agents
      .all()
      .map((one) => one.name)
      .sort(),
    ['bob', 'carol'],
  );
  await assert.rejects(
    box.bed.write((tx) => box.agents.rename(tx, 'alice', 'x')),
    refusal('not_found'),
  );
});

test('a removed agent leaves nothing, and its name and workspace are free again', async () => {
  const box = await emptyBox();
  await box.attach('alice', '/w', 's1');
  await box.bed.write((tx) => box.agents.remove(tx, 'Alice'));
  assert.deepEqual(box.bed.left(), {});
  await assert.rejects(
    box.bed.write((tx) => box.agents.remove(tx, 'alice')),
    refusal('not_found'),
  );
  assert.equal((await box.attach('alice', '/other', 's1')).created, true);
});
