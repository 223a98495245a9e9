/**
 * The line for a slot: who waits there, and what becomes of it when streams end before their turn.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Stream } from '@libp2p/interface';
import { Answerer, Slots } from '../../../daemon/link/conversation.ts';
import { channelFrameHeader } from '../../../protocol/channel.ts';

/** As much of a stream as brings one request and ends. */
class Brief extends EventTarget {
  status = 'open';
  readStatus = 'readable';
  writableNeedsDrain = false;

  ask(): void {
    const data = new Uint8Array(Buffer.concat([channelFrameHeader('request', 1, 1), Buffer.of(7)]));
    this.dispatchEvent(Object.assign(new Event('message'), { data }));
  }

  closeWrite(): void {
    this.dispatchEvent(new Event('remoteCloseWrite'));
    this.dispatchEvent(new Event('end'));
  }

  reset(): void {
    this.status = 'reset';
    this.dispatchEvent(new Event('close'));
  }

  abort(): void {
    if (this.status === 'open') this.reset();
  }

  send(): boolean {
    return true;
  }
}

for (const how of ['reset', 'closed, then reset'] as const) {
  test(`a request that waits for its turn is forgotten with its stream: ${how}`, async () => {
    const slots = new Slots(1);
    const first = Promise.withResolvers<Uint8Array>();
    let [handled, ended] = [0, 0];
    const open = (): Brief => {
      const stream = new Brief();
      new Answerer(stream as unknown as Stream, {
        slots,
        heard: () => undefined,
        mostBytes: () => 100,
        handle: () => ((handled += 1), first.promise),
        ended: () => void (ended += 1),
      });
      stream.ask();
      return stream;
    };
    open();
    for (let n = 0; n < 20_000; n++) {
      const stream = open();
      if (how !== 'reset') stream.closeWrite();
      stream.reset();
    }
    assert.equal(ended, 20_000, 'whoever waits is told at once');
    const patient = open();
    first.resolve(Uint8Array.of(1));
    await new Promise((resolve) => void setImmediate(resolve));
    assert.deepEqual([handled, slots.taken, patient.status], [2, 0, 'open']);
  });
}
