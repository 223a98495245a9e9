/**
 * Bodies in several pieces at their receiver, over the real store: each piece is judged and durable by itself, nothing is a message before all
 * are there, and what a hostile host leaves half is bounded.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Admission } from '../../daemon/admission.ts';
import { Agents } from '../../daemon/agents.ts';
import { Arriving } from '../../daemon/arriving.ts';
import { Events } from '../../daemon/events.ts';
import { Inbox } from '../../daemon/inbox.ts';
import { Peers } from '../../daemon/peers.ts';
import { Receipts } from '../../daemon/receipts.ts';
import { Rates } from '../../daemon/rates.ts';
import { Refusals } from '../../daemon/refusals.ts';
import { beginSealing, readEnvelope, sealMessage } from '../../protocol/envelope.ts';
import type { SealedMessage } from '../../protocol/envelope.ts';
import { AxError } from '../../protocol/errors.ts';
import { sha256, signOne } from '../../protocol/hashtree.ts';
import type { MessageId } from '../../protocol/ids.ts';
import { ARRIVING_KEPT_MS, DEFAULT_LIMITS, MAX_ARRIVING_PER_PEER, MAX_BODY_BYTES } from '../../protocol/limits.ts';
import type { Limits } from '../../protocol/limits.ts';
import { signCancel } from '../../protocol/receipt.ts';
import { readAnswer, readMissing } from '../../protocol/wire.ts';
import { ALICE, aliceKeys, BOB, bobKeys, CAROL, counted, draft, flipped, refusal, sealRandom } from '../protocol/sample.ts';
import { idOf, openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const BODY = counted(1000, 3);
const ALL = [0, 1, 2, 3];

/** A message of Alice's, in four pieces unless it is shorter. */
function large(n: number, body: Uint8Array = BODY): SealedMessage {
  return sealMessage(ALICE, aliceKeys, { ...draft, id: idOf(n), body }, sealRandom, 250);
}

/** An envelope that names 64 pieces of a body nobody has. */
function claimed(n: number): SealedMessage {
  const sealing = beginSealing(ALICE.hostId, aliceKeys, { ...draft, id: idOf(n), bytes: MAX_BODY_BYTES }, sealRandom);
  for (let index = 0; index < sealing.cut.count; index++) sealing.seal(index, counted(1, index));
  const { payload, digest } = sealing.finish();
  const pieces = Array.from({ length: sealing.cut.count }, () => counted(1));
  return { payload, digest, pieces, signed: signOne(ALICE, 'ax/1 envelope', payload), envelope: readEnvelope(payload) };
}

/** Bob's host, which knows Alice. */
class Receiver {
  readonly bed: Bed;
  readonly inbox: Inbox;
  readonly peers: Peers;
  readonly arriving: Arriving;
  readonly admission: Admission;
  readonly received: MessageId[] = [];
  folder: string | undefined = '/home/bob/app';
  free = Infinity;

  constructor(bed: Bed, limits: Limits = DEFAULT_LIMITS) {
    const { store, clock, running } = bed;
    this.bed = bed;
    this.inbox = new Inbox(store, running, limits);
    this.peers = new Peers(store, 'home', { now: () => clock.now(), running });
    this.arriving = new Arriving(store, running);
    this.admission = new Admission({
      store,
      clock,
      key: BOB,
      sealKeys: bobKeys,
      files: { canonicalFolder: async () => this.folder },
      running,
      peers: this.peers,
      inbox: this.inbox,
      arriving: this.arriving,
      receipts: new Receipts(store),
      agents: new Agents(store),
      events: new Events(store, clock, running),
      refusals: new Refusals(clock, this.peers),
      rates: new Rates(clock, limits),
      requireRoom: (bytes = 0) => {
        if (this.free < bytes) throw new AxError('store_full', 'full');
      },
      hasLiveSession: () => false,
      quietMs: () => 0,
      onReceived: (row) => void this.received.push(row.id),
      onReceipts: () => undefined,
      onRepeated: () => undefined,
    });
  }

  pair(): Promise<unknown> {
    const fresh = {
      hostId: ALICE.hostId,
      name: 'alice',
      exactName: false,
      addresses: [],
      grants: ['read', 'write', 'notify'] as const,
      now: 0,
    };
    return this.bed.write((tx) => this.peers.add(tx, fresh));
  }

  /** What is missing, or `receipt`. */
  async offer(message: SealedMessage, type: 'offer' | 'deliver' = 'offer'): Promise<number[] | 'receipt'> {
    const envelope = message.signed;
    const bytes =
      type === 'offer'
        ? await this.admission.offer(ALICE.hostId, { type, envelope })
        : await this.admission.accept(ALICE.hostId, { type, envelope, pieces: [] });
    const answer = readAnswer(bytes);
    assert.ok(answer.ok);
    return readMissing(answer.fields, message.pieces.length) ?? 'receipt';
  }

  async piece(message: SealedMessage, index: number, piece = message.pieces[index]!): Promise<boolean> {
    const { id } = message.envelope;
    const answer = readAnswer(await this.admission.piece(ALICE.hostId, { type: 'piece', id, index, piece }));
    assert.ok(answer.ok);
    return answer.fields['stored'] === true;
  }

  async whole(message: SealedMessage): Promise<void> {
    assert.deepEqual(await this.offer(message), ALL);
    for (const index of ALL) assert.equal(await this.piece(message, index), true);
    assert.equal(await this.offer(message, 'deliver'), 'receipt');
  }

  get keys(): { readonly halves: string[]; readonly bodies: string[]; readonly rows: string[] } {
    return { halves: this.bed.keys('arriving'), bodies: this.bed.keys('inbox_body'), rows: this.bed.keys('inbox') };
  }
}

async function receiver(limits?: Limits): Promise<Receiver> {
  const one = new Receiver(await openBed(), limits);
  await one.pair();
  return one;
}

const NOTHING = { halves: [], bodies: [], rows: [] };

test('pieces in any order become one message when the last is there and it is delivered, and nothing before that', async () => {
  const one = await receiver();
  const message = large(1);
  assert.deepEqual(await one.offer(message), ALL);
  for (const index of [2, 0, 3]) assert.equal(await one.piece(message, index), true);
  assert.deepEqual([await one.offer(message), await one.offer(message, 'deliver'), one.keys.rows, one.received], [[1], [1], [], []]);
  assert.deepEqual(one.bed.keys('seen'), []);
  assert.equal(await one.piece(message, 1), true);
  assert.deepEqual([await one.offer(message), one.keys.rows], [[], []], 'an offer takes nothing');
  assert.equal(await one.offer(message, 'deliver'), 'receipt');
  const row = one.inbox.get(ALICE.hostId, idOf(1))!;
  assert.deepEqual([row.bytes, row.pieces, one.keys.halves, one.keys.bodies.length, one.received], [1000, 4, [], 4, [idOf(1)]]);
  for (const index of ALL) assert.deepEqual(one.inbox.body(row, index), message.pieces[index]);
});

test('a known message is answered with its receipt, offered or delivered, and its pieces are not wanted again', async () => {
  const one = await receiver();
  const message = large(1);
  await one.whole(message);
  assert.deepEqual([await one.offer(message), await one.offer(message, 'deliver')], ['receipt', 'receipt']);
  assert.equal(await one.piece(message, 0), false);
  assert.deepEqual([one.keys.halves, one.keys.rows.length], [[], 1]);
});

test('what arrived outlives the daemon: only the rest is missing then', async () => {
  const one = await receiver();
  const message = large(1);
  await one.offer(message);
  for (const index of [1, 3]) await one.piece(message, index);
  await one.bed.reopen();
  const next = new Receiver(one.bed);
  assert.deepEqual(await next.offer(message), [0, 2]);
  for (const index of [0, 2]) assert.equal(await next.piece(message, index), true);
  assert.equal(await next.offer(message, 'deliver'), 'receipt');
});

test('a piece is kept only when the envelope names its digest, its size and its place, and when it opens', async () => {
  const one = await receiver();
  const message = large(1);
  const [first, second] = message.pieces as [Uint8Array, Uint8Array];
  await one.offer(message);
  await assert.rejects(one.piece(message, 0, flipped(first, 20)), refusal('protocol_violation'));
  await assert.rejects(one.piece(message, 0, second), refusal('protocol_violation'));
  await assert.rejects(one.piece(message, 0, first.subarray(1)), refusal('protocol_violation'));
  await assert.rejects(one.piece(message, 4, first), refusal('protocol_violation'));
  assert.deepEqual([one.keys.bodies, await one.offer(message)], [[], ALL]);
  const other = sealMessage(ALICE, aliceKeys, { ...draft, id: idOf(2), body: BODY }, counted(56, 77), 250);
  const swapped = { ...message, pieces: other.pieces }; // rightly signed, but sealed under another key
  const { payload } = forged(swapped, message);
  const lying = { ...swapped, signed: signOne(ALICE, 'ax/1 envelope', payload) };
  await one.offer(lying);
  await assert.rejects(one.piece(lying, 0), refusal('bad_signature'));
  assert.deepEqual(one.keys.bodies, []);
});

/** The payload of `message` with the digests of the pieces of another. */
function forged(pieces: SealedMessage, message: SealedMessage): { readonly payload: Uint8Array } {
  const payload = Buffer.from(message.signed.payload);
  const own = large(1);
  for (const [index, digest] of own.envelope.pieces.entries()) {
    const at = payload.indexOf(digest);
    payload.set(sha256(pieces.pieces[index]!), at);
  }
  return { payload: new Uint8Array(payload) };
}

test('a piece that nobody asked for, of a refused or of a cancelled message, is not kept', async () => {
  const one = await receiver();
  const message = large(1);
  assert.equal(await one.piece(message, 0), false);
  await one.offer(message);
  assert.equal(await one.piece(message, 0), true);
  one.folder = undefined; // the workspace is gone: refused for good
  await assert.rejects(one.offer(message, 'deliver'), refusal('not_found'));
  assert.deepEqual([await one.piece(message, 1), one.keys], [false, NOTHING]);
  one.folder = '/home/bob/app';
  await one.offer(message);
  await one.piece(message, 0);
  const cancel = signCancel(ALICE, { id: idOf(1), digest: message.digest, receiver: BOB.hostId, at: 1 });
  await one.admission.cancel(ALICE.hostId, { type: 'cancel', cancel });
  assert.deepEqual([await one.piece(message, 1), one.keys], [false, NOTHING]);
  assert.deepEqual([await one.offer(message), one.keys], ['receipt', NOTHING], 'the tombstone answers');
});

test('a grant that was taken back meanwhile holds for pieces and at the end', async () => {
  const one = await receiver();
  const message = large(1);
  await one.offer(message);
  for (const index of [0, 1, 2]) await one.piece(message, index);
  await one.bed.write((tx) => one.peers.revoke(tx, ALICE.hostId, ['write'], null));
  await assert.rejects(one.piece(message, 3), refusal('grant_missing'));
  await assert.rejects(one.offer(message, 'deliver'), refusal('grant_missing'));
  assert.deepEqual([one.keys.rows, one.keys.bodies.length], [[], 3], 'kept, should the right come back');
});

test('more halves than allowed push out the one that was offered longest ago, and nobody else’s', async () => {
  const one = await receiver();
  for (let n = 1; n <= MAX_ARRIVING_PER_PEER; n++) {
    one.bed.clock.pass(1000);
    await one.offer(large(n));
    await one.piece(large(n), 0);
  }
  one.bed.clock.pass(1000);
  assert.deepEqual(await one.offer(large(1)), [1, 2, 3], 'offered again: the second is the oldest now');
  await one.offer(large(99));
  assert.equal(await one.piece(large(2), 1), false);
  assert.deepEqual(await one.offer(large(3)), [1, 2, 3]);
  assert.equal(one.bed.keys('arriving').filter((key) => key.startsWith('r/')).length, MAX_ARRIVING_PER_PEER);
  assert.equal(
    one.keys.bodies.some((key) => key.includes(idOf(2))),
    false,
  );
});

test('envelopes that say 64 MiB and never send take at most what is allowed, and a day', async () => {
  const one = await receiver();
  for (let n = 1; n <= 6; n++) {
    one.bed.clock.pass(1);
    assert.equal((await one.offer(claimed(n))).length, 64);
  }
  const rows = (): string[] => one.bed.keys('arriving').filter((key) => key.startsWith('r/'));
  assert.deepEqual(
    rows().map((key) => key.slice(-26)),
    [3, 4, 5, 6].map(idOf),
    '256 MiB in all',
  );
  const isPaired = (): boolean => true;
  one.bed.clock.pass(ARRIVING_KEPT_MS - 10);
  assert.equal(one.arriving.isDue(isPaired), false);
  one.bed.clock.pass(20);
  while (one.arriving.isDue(isPaired)) await one.bed.write((tx) => one.arriving.prune(tx, isPaired));
  assert.deepEqual(one.keys, NOTHING);
});

test('what a host has half here goes when the host is removed', async () => {
  const one = await receiver();
  await one.offer(large(1));
  await one.piece(large(1), 2);
  const isPaired = (host: string): boolean => host !== ALICE.hostId;
  assert.equal(one.arriving.isDue(isPaired), true);
  await one.bed.write((tx) => one.arriving.prune(tx, isPaired));
  assert.deepEqual(one.keys, NOTHING);
});

test('room, bounds and rates are asked for before the first piece', async () => {
  const one = await receiver({ ...DEFAULT_LIMITS, waitingBytes: 1500, messageBurst: 3, messagesPerMinute: 1 });
  one.free = 900;
  await assert.rejects(one.offer(large(1)), refusal('store_full'));
  one.free = Infinity;
  await one.whole(large(1));
  await assert.rejects(one.offer(large(2)), refusal('limit'));
  assert.deepEqual(
    [await one.offer(large(3, counted(400))).then((missing) => missing.length), await one.offer(large(3, counted(400)))],
    [2, [0, 1]],
  );
  await assert.rejects(one.offer(large(4, counted(300))), refusal('throttled'), 'an offer repeated took nothing, three others did');
  assert.equal(one.bed.keys('arriving').length, 1);
});

test('an offer is an envelope of several pieces, signed by the host that brings it', async () => {
  const one = await receiver();
  const small = sealMessage(ALICE, aliceKeys, { ...draft, id: idOf(1) }, sealRandom);
  await assert.rejects(one.offer(small), refusal('protocol_violation'));
  await assert.rejects(one.offer(small, 'deliver'), refusal('protocol_violation'), 'nor is it delivered without its piece');
  await assert.rejects(one.admission.offer(CAROL.hostId, { type: 'offer', envelope: large(1).signed }), refusal('bad_signature'));
  const { envelope, ...message } = large(1);
  const cut = { type: 'deliver', envelope: message.signed, pieces: [message.pieces[0]!] } as const;
  await assert.rejects(one.admission.accept(ALICE.hostId, cut), refusal('protocol_violation'), `${envelope.pieces.length} pieces`);
  assert.deepEqual(one.keys, NOTHING);
});

test('another envelope under the same id begins anew; once one was taken it is a conflict', async () => {
  const one = await receiver();
  await one.offer(large(1));
  await one.piece(large(1), 0);
  const other = large(1, counted(1000, 200));
  assert.deepEqual([await one.offer(other), one.keys.bodies], [ALL, []]);
  assert.equal(await one.piece(other, 0), true);
  await one.whole(large(2));
  await assert.rejects(one.offer(large(2, counted(1000, 200))), refusal('key_conflict'));
});

test('a body in pieces goes whole when it is cancelled or its time is over, and its weight with it', async () => {
  const one = await receiver();
  await one.whole(large(1));
  await one.whole(large(2));
  assert.equal(one.keys.bodies.length, 8);
  const cancel = signCancel(ALICE, { id: idOf(1), digest: large(1).digest, receiver: BOB.hostId, at: 1 });
  await one.admission.cancel(ALICE.hostId, { type: 'cancel', cancel });
  assert.equal(one.keys.bodies.length, 4);
  one.bed.clock.pass(86_400_001);
  await one.bed.write((tx) => one.inbox.retire(tx, 10));
  assert.deepEqual(one.keys.bodies, []);
});

test('an offer of an id elsewhere spares another message under that id neither its rate nor the look at the disk', async () => {
  const one = await receiver({ ...DEFAULT_LIMITS, messageBurst: 1, messagesPerMinute: 1 });
  const small = (n: number): SealedMessage => sealMessage(ALICE, aliceKeys, { ...draft, id: idOf(n), body: counted(5) }, sealRandom);
  const deliver = ({ signed: envelope, pieces }: SealedMessage): Promise<Uint8Array> =>
    one.admission.accept(ALICE.hostId, { type: 'deliver', envelope, pieces });
  one.folder = '/target';
  assert.equal(readAnswer(await deliver(small(1))).ok, true);
  one.folder = '/elsewhere';
  await one.offer(large(2));
  one.folder = '/target';
  await assert.rejects(deliver(small(2)), { code: 'throttled' });
  one.free = 0;
  await assert.rejects(deliver(small(2)), { code: 'store_full' });
});

test('what is half here under an id goes when a message with a body of its own is taken under it', async () => {
  const one = await receiver();
  await one.offer(large(3));
  await one.piece(large(3), 1);
  const small = sealMessage(ALICE, aliceKeys, { ...draft, id: idOf(3), body: counted(5) }, sealRandom);
  assert.equal(
    readAnswer(await one.admission.accept(ALICE.hostId, { type: 'deliver', envelope: small.signed, pieces: small.pieces })).ok,
    true,
  );
  assert.deepEqual([one.keys.halves.length, one.keys.bodies.length, one.keys.rows.length], [0, 1, 1]);
});
