/** Directed worlds, one rule each: refused and expired messages are listed with why, and one that is tried again is delivered once. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DeadRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { inWorld } from './bed.ts';
import type { Bed } from './bed.ts';

const dead = async (bed: Bed): Promise<DeadRow[]> => (await bed.fleet.call(bed.a, 'admin.dead', {}))['messages'] as DeadRow[];
function retry(bed: Bed, id: string): Promise<Record<string, unknown>> {
  bed.checker.retrying(id);
  return bed.fleet.call(bed.a, 'admin.retry', { id });
}
/** A send with a deadline or a retention of its own. */
async function sendFor(bed: Bed, key: string, spans: { deadline_ms?: number; retention_ms?: number }): Promise<string> {
  const { a, b, checker, fleet } = bed;
  const asked = { deadlineMs: spans.deadline_ms, retentionMs: spans.retention_ms };
  const ask = { key, from: a, to: b, workspace: '/alpha', body: new Uint8Array(Buffer.from(`${key}|body`)), id: undefined, ...asked };
  checker.asked(ask);
  const params = { host: b.name, harness: 'claude', workspace: '/alpha', body: ask.body, request_id: key, ...spans };
  const id = String((await fleet.call(a, 'message.send', params))['message_id']);
  checker.sendReturned(ask, id);
  return id;
}
const isCode = (code: string) => (error: unknown) => error instanceof AxError && error.code === code;

test('a message refused for a folder that is not there is listed with why, and arrives by a retry under the same id', async () => {
  await inWorld(81, async (bed) => {
    const { a, b } = bed;
    const id = await bed.send(a, b, 'k', '/later');
    await bed.until(a, id, 'refused');
    const [row] = await dead(bed);
    assert.deepEqual([row?.message_id, row?.state, row?.cause?.code, row?.can_retry], [id, 'refused', 'not_found', true]);
    assert.match(row?.cause?.message ?? '', /there is no folder \/later/);
    b.folders.set('/later', '/later');
    assert.equal((await retry(bed, id))['state'], 'queued');
    await bed.until(a, id, 'accepted');
    assert.deepEqual(await dead(bed), []);
    await assert.rejects(retry(bed, id), isCode('invalid_state'));
  });
});

test('a message that expired, perhaps with a copy at the receiver, is there once after a retry', async () => {
  await inWorld(82, async (bed) => {
    const { a, b, fleet } = bed;
    const first = await sendFor(bed, 'first', { deadline_ms: 60_000 });
    fleet.network.partition(a.id, b.id);
    const second = await sendFor(bed, 'second', { deadline_ms: 60_000 });
    await bed.until(a, second, 'expired');
    const ids = (await dead(bed)).map((row) => row.message_id);
    assert.ok(ids.includes(second));
    fleet.network.healAll();
    await retry(bed, second);
    await bed.until(a, second, 'accepted');
    if (ids.includes(first)) await retry(bed, first);
    await bed.until(a, first, 'accepted');
    const listed = (await fleet.call(b, 'message.list', {}))['messages'] as { message_id: string }[];
    assert.deepEqual(listed.map((row) => row.message_id).toSorted(), [first, second].toSorted());
  });
});

test('what the receiver kept until its end, what was cancelled, and what was received here is not tried again', async () => {
  await inWorld(84, async (bed) => {
    const { a, b, fleet } = bed;
    const kept = await sendFor(bed, 'kept', { retention_ms: 120_000 });
    await bed.until(a, kept, 'accepted');
    await bed.until(a, kept, 'expired');
    assert.deepEqual(
      (await dead(bed)).map((row) => [row.message_id, row.can_retry]),
      [[kept, false]],
    );
    await assert.rejects(retry(bed, kept), isCode('invalid_state'));
    fleet.network.partition(a.id, b.id);
    await fleet.sleep(120_000);
    const withdrawn = await bed.send(a, b, 'withdrawn');
    await fleet.call(a, 'admin.cancel', { id: withdrawn });
    fleet.network.healAll();
    await bed.until(a, withdrawn, 'cancelled');
    await assert.rejects(retry(bed, withdrawn), isCode('invalid_state'));
    await assert.rejects(bed.fleet.call(b, 'admin.retry', { id: kept }), isCode('invalid_state'));
  });
});

test('nothing is tried again towards a host that was removed; paired anew, it is', async () => {
  await inWorld(87, async (bed) => {
    const { a, b, fleet } = bed;
    fleet.network.partition(a.id, b.id);
    const id = await sendFor(bed, 'k', { deadline_ms: 60_000 });
    await bed.until(a, id, 'expired');
    await fleet.call(a, 'host.remove', { host: b.id });
    const canRetry = async (): Promise<unknown[]> => (await dead(bed)).map((row) => [row.message_id, row.can_retry]);
    assert.deepEqual(await canRetry(), [[id, false]]);
    await assert.rejects(fleet.call(a, 'admin.retry', { id }), isCode('host_not_found'));
    assert.equal((await bed.status(a, id)).state, 'expired');
    const address = `${fleet.network.addressOf(b.id)}/p2p/${b.id}`;
    fleet.network.healAll();
    await fleet.call(a, 'host.add', { name: b.name, address });
    assert.deepEqual(await canRetry(), [[id, true]]);
    await retry(bed, id);
    await bed.until(a, id, 'accepted');
  });
});
