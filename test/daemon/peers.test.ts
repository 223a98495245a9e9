/**
 * Known hosts and invites over the real store: names are local and unique, grants are this host's own, an invite serves one host.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MAX_INVITE_TTL_MS } from '../../protocol/limits.ts';
import { Peers } from '../../daemon/peers.ts';
import type { Invite, Peer } from '../../daemon/peers.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import { parseName } from '../../protocol/ids.ts';
import type { HostId } from '../../protocol/ids.ts';
import { DEFAULT_GRANTS } from '../../protocol/states.ts';
import { ALICE, BOB, CAROL, counted, refusal } from '../protocol/sample.ts';
import { openBed } from './bed.ts';
import type { Bed } from './bed.ts';

const host = (n: number): HostId => hostKeyFromSeed(counted(32, 10 + n)).hostId;

class Box {
  readonly bed: Bed;
  readonly peers: Peers;

  constructor(bed: Bed) {
    this.bed = bed;
    this.peers = new Peers(bed.store, 'home');
  }

  add(hostId: HostId, name: string, change: Partial<Parameters<Peers['add']>[1]> = {}): Promise<Peer> {
    const fresh = { hostId, name, exactName: false, addresses: [], grants: DEFAULT_GRANTS, now: this.bed.clock.now(), ...change };
    return this.bed.write((tx) => this.peers.add(tx, fresh));
  }

  invite(id: string, change: Partial<Invite> = {}): Promise<Invite> {
    const invite: Invite = {
      id,
      secretHash: counted(32),
      grants: DEFAULT_GRANTS,
      createdAt: 0,
      expires: this.bed.running() + 1000,
      usedBy: null,
      ...change,
    };
    return this.bed.write((tx) => (this.peers.addInvite(tx, invite, this.bed.running()), invite));
  }
}

const emptyBox = async (): Promise<Box> => new Box(await openBed());

test('a taken name gets the next free number, in any case, unless it was chosen by the owner', async () => {
  const box = await emptyBox();
  assert.equal((await box.add(host(1), 'build')).name, 'build');
  assert.equal((await box.add(host(2), 'Build')).name, 'Build-2');
  assert.equal((await box.add(host(3), 'build')).name, 'build-3');
  await assert.rejects(box.add(host(4), 'BUILD-2', { exactName: true }), refusal('invalid_state'));
  assert.equal(box.peers.get(host(4)), undefined);
  assert.deepEqual(
    box.peers.named('BUILD-3').map((peer) => peer.hostId),
    [host(3)],
  );
});

test('a numbered name is still a name that can be typed', async () => {
  const box = await emptyBox();
  const long = 'x'.repeat(64);
  for (let n = 0; n < 12; n++) {
    const peer = await box.add(host(n), long);
    assert.equal(parseName(peer.name, 'it'), peer.name);
  }
  assert.equal(new Set(box.peers.all().map((peer) => peer.name)).size, 12);
});

test('pairing again keeps name and age, joins addresses, replaces grants and counts the revision', async () => {
  const box = await emptyBox();
  const first = await box.add(BOB.hostId, 'bob', { addresses: ['/a'] });
  box.bed.clock.pass(5000);
  await box.bed.write((tx) => box.peers.seen(tx, BOB.hostId, 77, '0.1.0'));
  const again = await box.add(BOB.hostId, 'other', { addresses: ['/b', '/a'], grants: ['read'] });
  assert.deepEqual(again, { ...first, addresses: ['/b', '/a'], grants: ['read'], revision: 2, lastSeenAt: 77, version: '0.1.0' });
  assert.equal((await box.add(BOB.hostId, 'chosen', { exactName: true })).name, 'chosen');
  const many = Array.from({ length: 30 }, (_, n) => `/address/${n}`);
  assert.deepEqual((await box.add(BOB.hostId, 'bob', { addresses: many })).addresses, many.slice(0, 16));
});

test('an action is allowed by its grant alone, and by none to an unknown host', async () => {
  const box = await emptyBox();
  await box.add(BOB.hostId, 'bob', { grants: ['read', 'write'] });
  assert.deepEqual(
    (['read', 'write', 'notify', 'run', 'exec', 'cancel'] as const).filter((action) => box.peers.may(BOB.hostId, action)),
    ['read', 'write'],
  );
  assert.equal(box.peers.may(CAROL.hostId, 'read'), false);
});

test('a rename takes a free name, also another case of its own', async () => {
  const box = await emptyBox();
  await box.add(BOB.hostId, 'bob');
  await box.add(CAROL.hostId, 'carol');
  const rename = (id: HostId, name: string): Promise<Peer> => box.bed.write((tx) => box.peers.rename(tx, id, name));
  await assert.rejects(rename(BOB.hostId, 'CAROL'), refusal('invalid_state'));
  await assert.rejects(rename(ALICE.hostId, 'x'), refusal('host_not_found'));
  assert.equal((await rename(BOB.hostId, 'BOB')).name, 'BOB');
});

test('news of a host that is not known is not kept', async () => {
  const box = await emptyBox();
  await box.bed.write((tx) => box.peers.seen(tx, BOB.hostId, 5, 'v'));
  assert.deepEqual(box.bed.left(), {});
  await box.add(BOB.hostId, 'bob');
  await box.bed.write((tx) => box.peers.seen(tx, BOB.hostId, 5, 'v'));
  await box.bed.write((tx) => box.peers.seen(tx, BOB.hostId, 9, null));
  assert.deepEqual([box.peers.get(BOB.hostId)?.lastSeenAt, box.peers.get(BOB.hostId)?.version], [9, 'v']);
});

test('an invite that is used names its user and is found again', async () => {
  const box = await emptyBox();
  const invite = await box.invite('i1');
  assert.deepEqual(box.peers.invite('i1'), invite);
  await box.bed.write((tx) => box.peers.useInvite(tx, invite, BOB.hostId));
  assert.equal(box.peers.invite('i1')?.usedBy, BOB.hostId);
  assert.equal(box.peers.invite('i2'), undefined);
});

test('no other host is ever called like this one', async () => {
  const box = await emptyBox();
  const added = await box.bed.write((tx) =>
    box.peers.add(tx, { hostId: BOB.hostId, name: 'Home', exactName: false, addresses: [], grants: [], now: 0 }),
  );
  assert.equal(added.name, 'Home-2');
  await assert.rejects(
    box.bed.write((tx) => box.peers.rename(tx, BOB.hostId, 'home')),
    refusal('invalid_state'),
  );
});

test('open invites are bounded, and expired ones make room', async () => {
  const box = await emptyBox();
  await box.bed.write((tx) => {
    for (let n = 0; n < 100; n++)
      box.peers.addInvite(tx, { id: `i${n}`, secretHash: counted(32), grants: [], createdAt: 0, expires: 1000 + n, usedBy: null }, 0);
  });
  await assert.rejects(box.invite('more', { expires: 5000 }), refusal('limit'));
  box.bed.clock.pass(1000);
  await box.invite('more', { expires: 5000 });
  assert.notEqual(box.peers.invite('i0'), undefined, 'kept for a while, so that it is told as expired');
  box.bed.clock.pass(MAX_INVITE_TTL_MS);
  await box.invite('later', { expires: MAX_INVITE_TTL_MS + 9000 });
  assert.deepEqual([box.peers.invite('i0'), box.peers.invite('i1')?.id], [undefined, 'i1']);
});

test('a removed host is gone, and the invite it had used does not let it in again', async () => {
  const box = await emptyBox();
  const used = await box.invite('used');
  await box.invite('other');
  await box.bed.write((tx) => box.peers.useInvite(tx, used, BOB.hostId));
  await box.add(BOB.hostId, 'bob');
  await box.bed.write((tx) => box.peers.remove(tx, BOB.hostId));
  assert.equal(box.peers.get(BOB.hostId), undefined);
  assert.equal(box.peers.invite('used'), undefined);
  assert.notEqual(box.peers.invite('other'), undefined);
});
