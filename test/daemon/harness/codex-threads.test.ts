/** The table of loaded threads looks at everything that came to be wanted, also while it waits for an answer. */
import assert from 'node:assert/strict';
import { tmpdir } from 'node:os';
import { test } from 'node:test';
import type { Answer } from '../../../daemon/harness/codex-rpc.ts';
import { ThreadTable } from '../../../daemon/harness/codex-threads.ts';
import { HandClock } from '../bed.ts';

const threadId = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`;
const VERSION = { text: '1.0.0', isSupported: true };

/** A table over a daemon whose lists are answered by hand, and whose threads are all there. */
class Rig {
  readonly asked: string[] = [];
  readonly #lists: ((answer: Answer) => void)[] = [];
  readonly #waiters: (() => void)[] = [];
  readonly table = new ThreadTable({
    clock: new HandClock(),
    request: (method, params) => this.#request(method, params),
    onShape: () => assert.fail('every answer has a known shape'),
    onMany: () => assert.fail('there are few threads'),
    onList: () => undefined,
  });

  constructor() {
    this.table.begin(VERSION);
  }

  #request(method: string, params: object): Promise<Answer> {
    if (method === 'thread/read') {
      const { threadId: id } = params as { threadId: string };
      this.asked.push(id);
      const thread = { id, cwd: tmpdir(), status: { type: 'idle' }, ephemeral: false, canAcceptDirectInput: true, createdAt: 1 };
      return Promise.resolve({ kind: 'result', result: { thread } });
    }
    this.asked.push('list');
    return new Promise((resolve) => {
      this.#lists.push(resolve);
      this.#waiters.shift()?.();
    });
  }

  /** Resolves when a list is asked for that has no answer yet. */
  async listAsked(): Promise<void> {
    if (this.#lists.length === 0) await new Promise<void>((resolve) => void this.#waiters.push(resolve));
  }

  answer(...ids: readonly number[]): void {
    this.#lists.shift()?.({ kind: 'result', result: { data: ids.map(threadId), nextCursor: null } });
  }

  lose(): void {
    this.#lists.shift()?.({ kind: 'lost', wasSent: true });
  }

  listed(): string[] {
    return this.table.sessions().map((session) => session.sessionId);
  }
}

test('a thread that begins while the list is asked for is looked at in the same work', async () => {
  const rig = new Rig();
  const work = rig.table.work();
  await rig.listAsked();
  rig.table.want(threadId(2)); // the list was made before it began
  rig.answer(1);
  await work;
  assert.deepEqual(rig.asked, ['list', threadId(1), threadId(2)]);
  assert.deepEqual(rig.listed().toSorted(), [threadId(1), threadId(2)]);
});

test('a look at everything that is wanted while the list is asked for is made, also when that list never comes', async () => {
  const rig = new Rig();
  const work = rig.table.work();
  await rig.listAsked();
  rig.table.wantAll();
  rig.lose();
  await rig.listAsked();
  rig.answer(1);
  await work;
  assert.deepEqual(rig.asked, ['list', 'list', threadId(1)]);
  assert.deepEqual(rig.listed(), [threadId(1)]);
});

test('a list that is lost is not asked for again by itself', async () => {
  const rig = new Rig();
  const work = rig.table.work();
  await rig.listAsked();
  rig.lose();
  await work;
  assert.deepEqual([rig.asked, rig.listed()], [['list'], []]);
});

test('a poll reads only threads that are new in the list or were named, and drops those that are not in it any more', async () => {
  const rig = new Rig();
  const round = async (...ids: readonly number[]): Promise<readonly string[]> => {
    rig.asked.length = 0;
    const work = rig.table.work();
    await rig.listAsked();
    rig.answer(...ids);
    await work;
    return rig.asked;
  };
  rig.table.wantList();
  assert.deepEqual(await round(1, 2), ['list', threadId(1), threadId(2)], 'the first look is at everything');
  rig.table.wantList();
  assert.deepEqual(await round(1, 2), ['list']);
  rig.table.wantList();
  assert.deepEqual(await round(2, 3), ['list', threadId(3)]);
  assert.deepEqual(rig.listed(), [2, 3].map(threadId));
  rig.table.wantList();
  rig.table.want(threadId(2));
  assert.deepEqual(await round(2, 3), ['list', threadId(2)]);
  rig.table.wantAll();
  assert.deepEqual(await round(2, 3), ['list', threadId(2), threadId(3)]);
});

test('a poll after a list that was lost right after connecting looks at everything', async () => {
  const rig = new Rig();
  const lost = rig.table.work();
  await rig.listAsked();
  rig.lose();
  await lost;
  rig.table.wantList();
  const work = rig.table.work();
  await rig.listAsked();
  rig.answer(1);
  await work;
  assert.deepEqual(rig.listed(), [threadId(1)]);
});
