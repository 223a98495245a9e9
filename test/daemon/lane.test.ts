/** Lanes: what a rate that is used up for one workspace holds back, and what it does not. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Lane } from '../../daemon/lane.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import {
  CUT_BYTES,
  FORWARD_WINDOW,
  FORWARD_WINDOW_BYTES,
  PIECE_WINDOW_BYTES,
  RETRY_CAP_MS,
  SHARED_AFTER_MS,
  SHARED_WINDOW_BYTES,
} from '../../protocol/limits.ts';
import { HandClock, idOf } from './bed.ts';

function laneOf(): { clock: HandClock; lane: Lane; retries: () => number } {
  const clock = new HandClock();
  let retries = 0;
  return { clock, lane: new Lane(clock, () => void retries++), retries: () => retries };
}

test('a workspace that is held is held for as long as was asked, and no other with it', () => {
  const { clock, lane, retries } = laneOf();
  lane.hold('/w', 5000);
  assert.deepEqual([lane.isDue(idOf(1), '/w'), lane.isDue(idOf(2), '/v'), lane.isHolding, lane.messages.isOn], [false, true, true, false]);
  lane.passed = 7;
  clock.pass(4999);
  assert.deepEqual([lane.isDue(idOf(1), '/w'), lane.passed, retries()], [false, 7, 0]);
  clock.pass(1);
  assert.deepEqual([lane.isDue(idOf(1), '/w'), lane.passed, retries()], [true, 0, 1]);
});

test('after a pause one message leaves, and with each that gets through twice as many; what left before the pause says nothing', () => {
  const { clock, lane } = laneOf();
  assert.equal(lane.roomFor('/w'), Infinity);
  lane.hold('/w', 2000);
  lane.gotThrough('/w');
  assert.equal(lane.roomFor('/w'), 1);
  clock.pass(2000);
  lane.inFlight.set(idOf(1), '/w');
  assert.deepEqual([lane.roomFor('/w'), lane.roomFor('/v')], [0, Infinity]);
  lane.inFlight.delete(idOf(1));
  for (let room = 2; room <= FORWARD_WINDOW; room *= 2) {
    lane.gotThrough('/w');
    assert.equal(lane.roomFor('/w'), room);
  }
  lane.gotThrough('/w');
  assert.equal(lane.roomFor('/w'), Infinity);
});

test('more workspaces over their rate than are held apart pause all messages, and a host that is there again holds none', () => {
  const { lane } = laneOf();
  for (let n = 0; n < 100; n++) lane.hold(`/w${n}`, 5000);
  assert.ok(lane.messages.isOn);
  lane.passed = 7;
  lane.clear();
  assert.deepEqual([lane.messages.isOn, lane.isHolding, lane.isDue(idOf(1), '/w0'), lane.passed], [false, false, true, 0]);
});

test('one entry left for later is left alone, and looked at again when its time is over', () => {
  const { clock, lane } = laneOf();
  lane.postpone(idOf(1));
  lane.passed = 1;
  assert.deepEqual([lane.isDue(idOf(1), '/w'), lane.isDue(idOf(2), '/w')], [false, true]);
  clock.pass(RETRY_CAP_MS);
  assert.deepEqual([lane.isDue(idOf(1), '/w'), lane.passed], [true, 0]);
});

test('pieces fill their window, a smaller one as long as small messages are on their way too or were of late, and one always goes', async () => {
  const { lane, clock } = laneOf();
  const ends: (() => void)[] = [];
  const each = CUT_BYTES;
  const few = SHARED_WINDOW_BYTES / each;
  const underWay = async (): Promise<number> => {
    await new Promise(setImmediate);
    return ends.length;
  };
  const end = (): void => ends.shift()!();
  const pass = (bytes: number, count: number): void => {
    for (let n = 0; n < count; n++) void lane.pieces.pass(bytes, () => new Promise<void>((resolve) => ends.push(resolve)));
  };
  lane.inFlight.set(idOf(1), '/w').set(idOf(2), '/w');
  lane.large.add(idOf(1)).add(idOf(2));
  pass(each, 40);
  assert.equal(await underWay(), PIECE_WINDOW_BYTES / each);
  lane.inFlight.set(idOf(3), '/w');
  lane.smallLeaves();
  for (let left = PIECE_WINDOW_BYTES / each; left > few; left--) {
    end();
    assert.equal(await underWay(), left - 1);
  }
  end();
  assert.equal(await underWay(), few, 'from here on one follows another');
  clock.pass(2 * SHARED_AFTER_MS);
  end();
  assert.equal(await underWay(), few, 'however long it is on its way');
  lane.smallLeaves();
  lane.inFlight.delete(idOf(3));
  clock.pass(SHARED_AFTER_MS - 1);
  end();
  assert.equal(await underWay(), few, 'the next may come');
  clock.pass(1);
  end();
  assert.equal(await underWay(), PIECE_WINDOW_BYTES / each);
  while (ends.length > 0) {
    end();
    await underWay();
  }
  pass(2 * PIECE_WINDOW_BYTES, 2);
  assert.equal(await underWay(), 1, 'also one that is larger than the window');
  end();
  assert.equal(await underWay(), 1);
  end();
});

test('bodies at hand are those of one window at most, and no entry is lost for that', () => {
  const { lane } = laneOf();
  const row = (n: number): Sent => ({ id: idOf(n) }) as Sent;
  const body = new Uint8Array(FORWARD_WINDOW_BYTES / 2);
  for (let n = 0; n < 4; n++) lane.addFresh(row(n), body);
  const taken = [0, 1, 2].map(() => lane.takeFresh());
  assert.deepEqual(
    taken.map((one) => [one?.row.id, one?.body === body]),
    [
      [idOf(0), true],
      [idOf(1), true],
      [idOf(2), false],
    ],
  );
  lane.addFresh(row(4), body);
  assert.deepEqual([lane.takeFresh()?.body, lane.takeFresh()?.body, lane.takeFresh()], [undefined, body, undefined]);
});
