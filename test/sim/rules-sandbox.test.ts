/** Directed worlds, one rule each: what the channel for sandboxed sessions serves, and what it drops. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BoxRequest } from '../../protocol/box.ts';
import type { Fields } from '../../protocol/codec.ts';
import { AxError } from '../../protocol/errors.ts';
import { sha256 } from '../../protocol/hashtree.ts';
import { MAX_PRINTED_BYTES } from '../../protocol/limits.ts';
import { TABLES } from '../../daemon/store/store.ts';
import { attached, inWorld } from './bed.ts';
import type { Bed } from './bed.ts';
import { SimBox } from './box.ts';
import type { SimSession } from './harness.ts';
import { actorOf } from './reader.ts';

let nonces = 0;
const nextNonce = (): string => (nonces += 1).toString(16).padStart(32, '0');

/** A world whose second host has the channel, turned on, with an attached session that works. */
function inBox(
  seed: number,
  story: (bed: Bed, box: SimBox, session: SimSession) => Promise<void>,
  options: { readonly pieceBytes?: number } = {},
): Promise<void> {
  return inWorld(
    seed,
    async (bed) => {
      const { b, fleet } = bed;
      const box = new SimBox(b.machine.clock(() => true));
      fleet.crash(b);
      b.box = box;
      await fleet.boot(b);
      await fleet.sleep(500);
      const session = await attached(bed, b);
      await fleet.call(b, 'agent.sandbox_fetch', { set: 'on' });
      b.agents.setStatus(session, 'busy');
      await fleet.sleep(100);
      await story(bed, box, session);
    },
    options,
  );
}

/** What the last notice to a session asks it to run. */
function told(session: SimSession): BoxRequest {
  const match = /messages fetch (\S+) --workspace \S+ --code (\S+)$/.exec(session.received.at(-1)?.text ?? '');
  assert.ok(match !== null, session.received.at(-1)?.text);
  return { nonce: nextNonce(), thread: session.sessionId, id: match[1] as BoxRequest['id'], code: match[2]!, handOut: undefined };
}

async function noticed(bed: Bed, session: SimSession, key: string): Promise<string> {
  const before = session.received.length;
  const id = await bed.send(bed.a, bed.b, key, session.workspace);
  await bed.until(bed.a, id, 'accepted');
  for (let n = 0; n < 100 && session.received.length === before; n++) await bed.fleet.sleep(100);
  return id;
}

/** Asks, and gives the answer, or undefined when there is none within 3 s. */
async function ask(bed: Bed, box: SimBox, request: BoxRequest): Promise<Fields | undefined> {
  const { checker, b, fleet } = bed;
  const begun = checker.begun(b, request.id);
  checker.fetchBegun(b, request.id);
  if (request.handOut !== undefined) checker.confirmBegun(b, request.id, request.handOut);
  checker.touching(request.thread);
  box.ask(request);
  for (let n = 0; n < 60 && !box.answers.has(request.nonce); n++) await fleet.sleep(50);
  checker.touched(request.thread);
  const answer = box.answers.get(request.nonce);
  const result = answer?.['result'] as Fields | undefined;
  if (request.handOut === undefined && result !== undefined) {
    const body = result['parts'] === undefined ? result['body'] : box.kept.get(request.id);
    checker.fetched(b, { ...result, body } as never, begun);
  }
  return answer;
}

const resultOf = (answer: Fields | undefined): Fields => {
  assert.ok(answer?.['ok'] === true, JSON.stringify(answer));
  return answer['result'] as Fields;
};

test('a message counts as fetched only when its reader confirms through the channel too; until then it is handed out', async () => {
  await inBox(60, async (bed, box, session) => {
    const { a, b, fleet } = bed;
    const id = await noticed(bed, session, 'k');
    const request = told(session);
    const got = resultOf(await ask(bed, box, request));
    assert.equal(Buffer.from(got['body'] as Uint8Array).toString(), 'k|body');
    await fleet.sleep(60_000);
    assert.equal((await bed.status(a, id)).state, 'accepted');
    assert.notEqual((await bed.status(b, id)).handed_out_at, null);
    const again = resultOf(await ask(bed, box, { ...request, nonce: nextNonce() }));
    assert.equal(again['refetch'], true, 'delivered again on demand');
    const confirm = { ...request, nonce: nextNonce(), handOut: again['hand_out'] as string };
    assert.deepEqual(resultOf(await ask(bed, box, confirm)), { message_id: id, state: 'fetched' });
    await bed.until(a, id, 'fetched');
  });
});

test('a large body is put whole where its reader can see it, once, however often it asks meanwhile', async () => {
  await inBox(
    63,
    async (bed, box, session) => {
      const id = await noticed(bed, session, 'k');
      const request = told(session);
      let kept = 0;
      const keep = box.keep.bind(box);
      box.keep = async (name, body) => {
        kept += 1;
        await bed.fleet.sleep(500); // a disk
        return keep(name, body);
      };
      const both = await Promise.all([ask(bed, box, request), ask(bed, box, { ...request, nonce: nextNonce() })]);
      const [got, other] = both.map(resultOf) as [Fields, Fields];
      const digest = Buffer.from(sha256(Buffer.from('k|body'))).toString('hex');
      assert.deepEqual([got['parts'], got['sha256'], (got['body'] as Uint8Array).length], [3, digest, 0]);
      assert.deepEqual([got['kept'], Buffer.from(box.kept.get(id)!).toString()], [`/fetched/${id}`, 'k|body']);
      assert.deepEqual([other['kept'], kept], [got['kept'], 1]);
      await ask(bed, box, { ...request, nonce: nextNonce(), handOut: got['hand_out'] as string });
      await bed.until(bed.a, id, 'fetched');
    },
    { pieceBytes: 2 },
  );
});

test('of large bodies that are asked for at once, one is copied at a time, and one that fails stops no other', async () => {
  await inBox(
    70,
    async (bed, box, session) => {
      await noticed(bed, session, 'k0');
      const first = told(session);
      const ids = [first.id];
      for (const key of ['k1', 'k2']) ids.push((await bed.send(bed.a, bed.b, key)) as BoxRequest['id']);
      for (const id of ids) await bed.until(bed.a, id, 'accepted');
      resultOf(await ask(bed, box, first)); // it lists the others, which opens them to the same code
      const requests = ids.map((id) => ({ ...first, id, nonce: nextNonce() }));
      const keep = box.keep.bind(box);
      let [underWay, most] = [0, 0];
      box.keep = async (name, body) => {
        most = Math.max(most, (underWay += 1));
        await bed.fleet.sleep(300); // a disk
        underWay -= 1;
        if (name === first.id) throw new AxError('invalid_state', 'a full disk');
        return keep(name, body);
      };
      const answers = await Promise.all(requests.map((request) => ask(bed, box, request)));
      assert.deepEqual([answers.map((answer) => answer?.['ok']), most], [[false, true, true], 1]);
    },
    { pieceBytes: 2 },
  );
});

test('a request is dropped, and changes nothing, unless thread, code, message and hand-out belong together', async () => {
  await inBox(61, async (bed, box, session) => {
    const { a, b, fleet } = bed;
    const other = await attached(bed, b, '/beta');
    b.agents.setStatus(other, 'busy');
    const id = await noticed(bed, session, 'k');
    const request = told(session);
    const otherId = await noticed(bed, other, 'o');
    const foreign = told(other);
    const before = (await fleet.call(b, 'admin.events', {}))['next_seq'];
    const wrong: Partial<BoxRequest>[] = [
      { code: 'f'.repeat(32) },
      { code: foreign.code },
      { thread: other.sessionId },
      { thread: other.sessionId, code: foreign.code },
      { id: otherId as BoxRequest['id'] },
      { handOut: '0'.repeat(24) },
    ];
    for (const change of wrong)
      assert.equal(await ask(bed, box, { ...request, nonce: nextNonce(), ...change }), undefined, JSON.stringify(change));
    for (const line of ['', 'x', '1 fetch', '1 send a b c d', '\0'.repeat(1024), `1 list ${'0'.repeat(32)}`])
      box.write(Buffer.from(`\n${line}\n`));
    await fleet.sleep(5000);
    assert.equal((await fleet.call(b, 'admin.events', {}))['next_seq'], before);
    assert.equal((await bed.status(a, id)).handed_out_at, null);
    assert.equal(resultOf(await ask(bed, box, { ...foreign, nonce: nextNonce() }))['message_id'], otherId);
    assert.equal(box.answers.size, 1);
  });
});

test('the hand-out of another fetch of the message is not confirmed through the channel of this session', async () => {
  await inBox(62, async (bed, box, session) => {
    const { b } = bed;
    const id = await noticed(bed, session, 'k');
    const request = told(session);
    const second = await attached(bed, b);
    b.agents.setStatus(second, 'busy');
    const { token } = await bed.fetch(b, second, id);
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce(), handOut: token }), undefined);
    assert.equal((await bed.status(b, id)).state, 'available');
  });
});

test('only a session that lives, is attached, and works right now is served, by a look of that moment', async () => {
  await inBox(63, async (bed, box, session) => {
    const { b, fleet } = bed;
    await noticed(bed, session, 'k');
    const request = told(session);
    for (const status of ['idle', 'unknown'] as const) {
      b.agents.setStatus(session, status);
      assert.equal(await ask(bed, box, { ...request, nonce: nextNonce() }), undefined, status);
    }
    for (const status of ['waiting', 'busy'] as const) {
      b.agents.setStatus(session, status);
      resultOf(await ask(bed, box, { ...request, nonce: nextNonce() }));
    }
    await fleet.call(b, 'agent.remove', { name: 'alpha' });
    assert.equal((await ask(bed, box, { ...request, nonce: nextNonce() }))?.['ok'], false, 'no longer attached');
    await fleet.call(b, 'agent.setup', { name: 'alpha', workspace: '/alpha' }, actorOf(session));
    resultOf(await ask(bed, box, { ...request, nonce: nextNonce() }));
    b.agents.clear(session);
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce() }), undefined, 'that conversation is over');
    b.agents.end(session);
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce() }), undefined, 'that session is gone');
  });
});

test('a session is served ten times at once and then five times a second, and lines without its code cost it nothing', async () => {
  await inBox(64, async (bed, box, session) => {
    const { checker, b, fleet } = bed;
    await noticed(bed, session, 'k');
    const request = told(session);
    checker.fetchBegun(b, request.id);
    for (let n = 0; n < 1000; n++) box.ask({ ...request, nonce: nextNonce(), code: n.toString(16).padStart(32, '0') });
    for (let n = 0; n < 30; n++) box.ask({ ...request, nonce: nextNonce() });
    await fleet.sleep(1000);
    assert.equal(box.answers.size, 10);
    for (let n = 0; n < 30; n++) box.ask({ ...request, nonce: nextNonce() });
    await fleet.sleep(500);
    assert.equal(box.answers.size, 15);
  });
});

test('fifty requests a second are served in all, however many sessions ask', async () => {
  await inBox(65, async (bed, box) => {
    const { checker, b, fleet } = bed;
    const requests: BoxRequest[] = [];
    for (let n = 0; n < 7; n++) {
      const workspace = `/many${'abcdefg'.charAt(n)}`;
      b.folders.set(workspace, workspace);
      const session = await attached(bed, b, workspace);
      b.agents.setStatus(session, 'busy');
      await noticed(bed, session, `k${n}`);
      requests.push(told(session));
    }
    for (const request of requests) {
      checker.fetchBegun(b, request.id);
      for (let n = 0; n < 10; n++) box.ask({ ...request, nonce: nextNonce() });
    }
    await fleet.sleep(1000);
    assert.equal(box.answers.size, 50);
  });
});

test('a code outlives the daemon and a crash, and the store does not hold it', async () => {
  await inBox(66, async (bed, box, session) => {
    const { b, fleet } = bed;
    await noticed(bed, session, 'k');
    const request = told(session);
    const store = b.life?.store;
    assert.ok(store !== undefined);
    const all = Buffer.concat(TABLES.flatMap((table) => store.range(table).flatMap(({ key, value }) => [Buffer.from(key), value])));
    assert.equal(all.includes(request.id), true);
    for (const form of [request.code, Buffer.from(request.code, 'hex')]) assert.equal(all.includes(form), false);
    fleet.crash(b);
    await fleet.boot(b);
    await fleet.sleep(500);
    assert.equal(box.isOpen, true, 'the switch is kept');
    resultOf(await ask(bed, box, { ...request, nonce: nextNonce() }));
  });
});

test('what the answer lists is open to the same code, and nothing that came after it', async () => {
  await inBox(67, async (bed, box, session) => {
    const first = await noticed(bed, session, 'one');
    const request = told(session);
    const second = (await bed.send(bed.a, bed.b, 'two')) as BoxRequest['id'];
    await bed.until(bed.a, second, 'accepted');
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce(), id: second }), undefined, 'not told of it yet');
    const got = resultOf(await ask(bed, box, { ...request, nonce: nextNonce() }));
    assert.deepEqual([got['message_id'], (got['waiting'] as Fields[]).map((row) => row['message_id'])], [first, [second]]);
    const third = (await bed.send(bed.a, bed.b, 'three')) as BoxRequest['id'];
    await bed.until(bed.a, third, 'accepted');
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce(), id: third }), undefined);
    resultOf(await ask(bed, box, { ...request, nonce: nextNonce(), id: second }));
  });
});

test('a body too long to print, or that is no text, is kept in a file before it is answered', async () => {
  await inBox(68, async (bed, box, session) => {
    const { a, b, fleet, checker } = bed;
    const bodies = [Buffer.alloc(MAX_PRINTED_BYTES + 1, 'a'), Buffer.from('k1|\0'), Buffer.alloc(MAX_PRINTED_BYTES, 'b')];
    for (const n of [0, 2]) bodies[n]?.write(`k${n}|`);
    for (const [n, body] of bodies.entries()) {
      const key = `k${n}`;
      checker.asked({ key, from: a, to: b, workspace: '/alpha', body: new Uint8Array(body), id: undefined });
      await noticed(bed, session, key);
      const request = told(session);
      const got = resultOf(await ask(bed, box, request));
      const isKept = n < 2;
      assert.equal(got['kept'], isKept ? `/fetched/${request.id}` : null);
      assert.equal(box.kept.has(request.id), isKept);
      const confirm = { ...request, nonce: nextNonce(), handOut: got['hand_out'] as string };
      resultOf(await ask(bed, box, confirm));
      await bed.until(a, request.id, 'fetched');
      await fleet.sleep(3000);
    }
  });
});

test('off is for good and at once, for the codes of before too; a channel that cannot be made is told and leaves the switch where it was', async () => {
  await inBox(69, async (bed, box, session) => {
    const { b, fleet } = bed;
    await noticed(bed, session, 'k');
    const request = told(session);
    assert.deepEqual(await fleet.call(b, 'agent.sandbox_fetch', { set: 'off' }), { enabled: false, open: false, reason: null });
    assert.equal(box.isOpen, false);
    await fleet.stop(b);
    await fleet.boot(b);
    assert.equal(box.isOpen, false);
    box.failure = new AxError('unsupported', 'no mkfifo here');
    await assert.rejects(fleet.call(b, 'agent.sandbox_fetch', { set: 'on' }), { code: 'unsupported' });
    assert.deepEqual(await fleet.call(b, 'agent.sandbox_fetch', {}), { enabled: false, open: false, reason: null });
    box.failure = undefined;
    await fleet.call(b, 'agent.sandbox_fetch', { set: 'on' });
    assert.equal(box.isOpen, true);
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce() }), undefined, 'a code of before opens nothing');
    box.failure = new AxError('unsupported', 'no mkfifo here');
    await fleet.stop(b);
    await fleet.boot(b);
    assert.deepEqual(await fleet.call(b, 'agent.sandbox_fetch', {}), { enabled: true, open: false, reason: 'no mkfifo here' });
    assert.equal(await ask(bed, box, { ...request, nonce: nextNonce() }), undefined);
    await assert.rejects(fleet.call(b, 'agent.sandbox_fetch', { set: 'maybe' }), { code: 'invalid_argument' });
    await assert.rejects(fleet.call(b, 'agent.sandbox_fetch', { set: 'on' }, actorOf(session)), { code: 'invalid_state' });
  });
});
