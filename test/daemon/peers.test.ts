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
    this.peers = new Peers(bed.store, 'home', { now: () => bed.clock.now(), running: bed.running });
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
  assert.deepEqual(again, {
    ...first,
    addresses: ['/b', '/a'],
    grants: ['read'],
    changedRan: box.bed.running(),
    revision: 2,
    lastSeenAt: 77,
    version: '0.1.0',
  });
  assert.equal((await box.add(BOB.hostId, 'chosen', { exactName: true })).name, 'chosen');
  const many = Array.from({ length: 30 }, (_, n) => `/address/${n}`);
  assert.deepEqual((await box.add(BOB.hostId, 'bob', { addresses: many })).addresses, many.slice(0, 16));
});

test('an action is allowed by its grant alone, and by none to an unknown host', async () => {
  const box = await emptyBox();
  await box.add(BOB.hostId, 'bob', { grants: ['read', 'write'] });
  assert.deepEqual(
    (['read', 'write', 'notify', 'run', 'exec', 'cancel'] as const).filter((action) => box.peers.may(BOB.hostId, action, '/w')),
    ['read', 'write'],
  );
  assert.equal(box.peers.may(CAROL.hostId, 'read', null), false);
});

test('a grant for one workspace allows nothing in another, and is taken back alone', async () => {
  const box = await emptyBox();
  await box.add(BOB.hostId, 'bob', { grants: ['read'] });
  const grant = (workspace: string | null, forMs: number | null = null): Promise<Peer> =>
    box.bed.write((tx) => box.peers.grant(tx, BOB.hostId, ['write', 'notify'], workspace, forMs));
  const revoke = (workspace: string | null): Promise<Peer> =>
    box.bed.write((tx) => box.peers.revoke(tx, BOB.hostId, ['notify'], workspace));
  const may = (action: 'write' | 'notify', workspace: string | null): boolean => box.peers.may(BOB.hostId, action, workspace);
  await grant('/a');
  await grant('/b');
  assert.deepEqual(
    [may('write', '/a'), may('notify', '/b'), may('write', '/a/b'), may('write', '/c'), may('write', null)],
    [true, true, false, false, true],
  );
  await revoke('/a');
  assert.deepEqual([may('notify', '/a'), may('write', '/a'), may('notify', '/b')], [false, true, true]);
  await revoke(null);
  assert.deepEqual([may('notify', '/b'), may('write', '/b')], [false, true]);
  await grant(null);
  assert.equal(may('notify', '/anything'), true);
  await assert.rejects(grant('/a'), refusal('invalid_state'));
  await assert.rejects(revoke('/a'), refusal('invalid_state'));
});

test('a grant that expires ends when either clock says so, and a clock set back does not prolong it', async () => {
  for (const wall of ['kept', 'set back', 'set forward'] as const) {
    const box = await emptyBox();
    await box.add(BOB.hostId, 'bob', { grants: ['read'] });
    await box.bed.write((tx) => box.peers.grant(tx, BOB.hostId, ['write'], null, 60_000));
    box.bed.clock.pass(30_000);
    assert.equal(box.peers.may(BOB.hostId, 'write', '/w'), true);
    if (wall === 'set back') box.bed.clock.wall += -3_600_000;
    if (wall === 'set forward') box.bed.clock.wall += 3_600_000;
    else box.bed.clock.pass(30_001);
    assert.equal(box.peers.may(BOB.hostId, 'write', '/w'), false, wall);
    assert.deepEqual(box.peers.rulesOf(box.peers.get(BOB.hostId)!), []);
  }
});

test('a grant for a while takes the place of one without an end, and the revision counts changes only', async () => {
  const box = await emptyBox();
  const { revision } = await box.add(BOB.hostId, 'bob');
  const grant = (forMs: number | null): Promise<Peer> => box.bed.write((tx) => box.peers.grant(tx, BOB.hostId, ['notify'], null, forMs));
  assert.equal((await grant(null)).revision, revision, 'it was granted already');
  assert.deepEqual((await grant(1000)).grants, ['read', 'write']);
  box.bed.clock.pass(1001);
  assert.equal(box.peers.may(BOB.hostId, 'notify', null), false);
  assert.deepEqual((await grant(null)).grants, ['read', 'write', 'notify']);
  assert.equal(box.peers.may(BOB.hostId, 'notify', null), true);
});

test('the grants of one host are bounded', async () => {
  const box = await emptyBox();
  await box.add(BOB.hostId, 'bob', { grants: [] });
  const grant = (n: number): Promise<Peer> => box.bed.write((tx) => box.peers.grant(tx, BOB.hostId, ['write'], `/w${n}`, null));
  for (let n = 0; n < 64; n++) await grant(n);
  await assert.rejects(grant(64), refusal('limit'));
  assert.equal(box.peers.get(BOB.hostId)?.rules?.length, 64);
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

test('a removed host is gone, and no invite that it has used or may hold lets it in again', async () => {
  const box = await emptyBox();
  const used = await box.invite('used');
  const others = await box.invite('others');
  await box.invite('open');
  await box.bed.write((tx) => (box.peers.useInvite(tx, used, BOB.hostId), box.peers.useInvite(tx, others, CAROL.hostId)));
  await box.add(BOB.hostId, 'bob');
  assert.equal(await box.bed.write((tx) => box.peers.remove(tx, BOB.hostId)), 1);
  assert.equal(box.peers.get(BOB.hostId), undefined);
  assert.deepEqual([box.peers.invite('used'), box.peers.invite('open')], [undefined, undefined]);
  assert.notEqual(box.peers.invite('others'), undefined, 'another host may ask for its answer again');
});

test('an invite that is older than the last change of a host gives that host nothing it has not got', async () => {
  const box = await emptyBox();
  const old = await box.invite('old', { createdRan: box.bed.running() });
  const bob = await box.add(BOB.hostId, 'bob');
  assert.deepEqual(box.peers.grantsBy(old, undefined), DEFAULT_GRANTS);
  assert.deepEqual(box.peers.grantsBy(old, bob), DEFAULT_GRANTS);
  const revoked = await box.bed.write((tx) => box.peers.revoke(tx, BOB.hostId, ['read', 'write', 'notify'], null));
  assert.equal(box.peers.grantsBy(old, revoked), null, 'then it keeps what it has');
  const again = await box.add(BOB.hostId, 'bob', { grants: null });
  assert.deepEqual([again.grants, box.peers.grantsBy(old, again)], [[], null]);
  const fresh = { ...old, createdRan: box.bed.running() + 1 };
  assert.deepEqual(box.peers.grantsBy(fresh, again), DEFAULT_GRANTS, 'one that was made since counts');
});
