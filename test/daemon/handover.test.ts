/** Handing over a message of several pieces: what leaves in one attempt, and when nothing more does. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { handOver } from '../../daemon/handover.ts';
import { Events } from '../../daemon/events.ts';
import { Forwarding } from '../../daemon/forwarding.ts';
import { Lane } from '../../daemon/lane.ts';
import { silentLog } from '../../daemon/log.ts';
import { Outbox } from '../../daemon/outbox.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import { Encoded } from '../../protocol/codec.ts';
import type { Fields } from '../../protocol/codec.ts';
import { encodeSigned } from '../../protocol/hashtree.ts';
import type { OutgoingRequest } from '../../protocol/wire.ts';
import { ALICE, aliceKeys, BOB, counted, draft, sealRandom } from '../protocol/sample.ts';
import { sealMessage } from '../../protocol/envelope.ts';
import { pieceKey } from '../../daemon/store/rows.ts';
import { idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const message = sealMessage(ALICE, aliceKeys, { ...draft, id: idOf(0), body: counted(600) }, sealRandom, 100);
const COUNT = message.pieces.length;

async function sender(): Promise<{ bed: Bed; outbox: Outbox; row: Sent & { readonly pieces: number } }> {
  const bed = await openBed();
  const outbox = new Outbox(bed.store, bed.running);
  const fresh = {
    id: message.envelope.id,
    host: BOB.hostId,
    to: message.envelope.to,
    kind: 'message' as const,
    state: 'forwarding' as const,
    signed: encodeSigned(message.signed),
    digest: message.digest,
    bytes: 600,
    pieces: COUNT,
    createdAt: 1,
    createdRan: bed.running(),
    deadline: bed.running() + 1000,
    local: false,
    agent: null,
    origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'test' },
    request: { key: 'k', fingerprint: 'f' },
  };
  const row = (await bed.write((tx) => {
    for (const [index, piece] of message.pieces.entries()) tx.put('outbox_body', pieceKey(fresh.id, index), piece);
    return outbox.add(tx, fresh, null);
  })) as Sent & { readonly pieces: number };
  return { bed, outbox, row };
}

/** A receiver that answers each offer and delivery with what `missing` says, and keeps every piece. */
function asking(missing: () => number[], sent: string[], onSent: () => void = () => undefined) {
  return async (_host: unknown, request: OutgoingRequest): Promise<Fields> => {
    sent.push(request.type === 'piece' ? `piece ${request.index}` : request.type);
    onSent();
    return request.type === 'piece' ? { ok: true, stored: true } : { ok: true, missing: missing() };
  };
}

test('a piece that was kept is not sent twice in one attempt, whatever the receiver says is missing', async () => {
  const { bed, outbox, row } = await sender();
  const sent: string[] = [];
  let asked = COUNT + 1;
  const request = asking(() => Array.from({ length: --asked }, (_, index) => index), sent);
  const deps = { outbox, request, running: bed.running, pieces: new Lane(bed.clock, () => undefined).pieces };
  await assert.rejects(handOver(deps, BOB.hostId, row, new Encoded(row.signed)), { code: 'busy' });
  assert.deepEqual(sent.filter((what) => what.startsWith('piece')).length, COUNT);
});

test('nothing of a message leaves after its deadline, nor after it was cancelled', async () => {
  for (const end of ['deadline', 'cancel'] as const) {
    const { bed, outbox, row } = await sender();
    const sent: string[] = [];
    const request = asking(
      () => [0, 1, 2],
      sent,
      () => void (end === 'deadline' && bed.clock.pass(2000)),
    );
    if (end === 'cancel') await bed.write((tx) => outbox.cancel(tx, row.id));
    const deps = { outbox, request, running: bed.running, pieces: new Lane(bed.clock, () => undefined).pieces };
    assert.equal(await handOver(deps, BOB.hostId, row, new Encoded(row.signed)), undefined);
    assert.deepEqual(sent, ['offer'], end);
  }
});

test('a new entry that is cancelled before it leaves does not leave', async () => {
  const { bed, outbox, row } = await sender();
  const { store, clock, running } = bed;
  const sent: string[] = [];
  const lane = new Lane(clock, () => undefined);
  lane.untouched.add(row.id);
  lane.addFresh(row, new Uint8Array(1));
  const ended = Promise.withResolvers<void>();
  const forwarding = new Forwarding({
    store,
    clock,
    log: silentLog,
    outbox,
    events: new Events(store, clock, running),
    running,
    request: asking(() => [], sent),
    takeReceipt: async () => undefined,
    onEnd: () => ended.resolve(),
  });
  await bed.write((tx) => outbox.cancel(tx, row.id));
  await forwarding.push(BOB.hostId, lane);
  await ended.promise;
  assert.deepEqual(sent, []);
});
