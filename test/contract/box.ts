/**
 * What every channel for sandboxed sessions must do, as a suite: bound to the pipe and to the one in memory.
 *
 * Owns the rules; how a line is written, how an answer is read and how time passes is the bed's.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import type { Box } from '../../daemon/box/box.ts';
import { encode } from '../../protocol/codec.ts';
import { makeMessageId } from '../../protocol/ids.ts';
import { BOX_ANSWER_MS, MAX_BOX_ANSWERS, MAX_BOX_LINE_BYTES, MAX_FRAME_BYTES } from '../../protocol/limits.ts';

/** One channel under test, not started, and what a sandboxed shell does with it. */
export interface BoxBed {
  readonly box: Box;
  /** Lines that came out of it since it was made. */
  readonly lines: readonly string[];
  start(): Promise<void>;
  /** Writes bytes as a shell would; nothing happens where the channel is not there. */
  write(text: string): void;
  /** Resolves when the condition holds; looked at after each line. */
  until(condition: () => boolean): Promise<void>;
  /** The `n` of the answer under a nonce; undefined when none is there. */
  answer(nonce: string): number | undefined;
  body(path: string): Uint8Array;
  /** Lets running time pass. */
  pass(ms: number): void;
  /** Resolves when no answer lies under that nonce any more. */
  gone(nonce: string): Promise<void>;
}

const nonce = (n: number): string => n.toString(16).padStart(32, '0');
const answer = (n: number): Uint8Array => encode({ n });

export function boxContract(name: string, makeBed: (t: TestContext) => BoxBed): void {
  const rule = (title: string, body: (bed: BoxBed) => Promise<void>): void => {
    test(`${name}: ${title}`, { timeout: 30_000 }, async (t) => {
      const bed = makeBed(t);
      try {
        await body(bed);
      } finally {
        await bed.box.stop();
      }
    });
  };

  rule('whole lines come out in order and without newlines; empty and too long ones do not, and none while it is stopped', async (bed) => {
    bed.write('\nbefore\n');
    await bed.start();
    bed.write('\none\n');
    bed.write(`\n\n${'x'.repeat(MAX_BOX_LINE_BYTES + 1)}\n`);
    bed.write(`\n${'y'.repeat(MAX_BOX_LINE_BYTES)}\n`);
    await bed.until(() => bed.lines.length >= 2);
    await bed.box.stop();
    bed.write('\nafter\n');
    await bed.start();
    bed.write('\nagain\n');
    await bed.until(() => bed.lines.length >= 3);
    assert.deepEqual(bed.lines, ['one', 'y'.repeat(MAX_BOX_LINE_BYTES), 'again']);
  });

  rule('an answer lies under its nonce once, and the first one stays', async (bed) => {
    await bed.start();
    assert.deepEqual([await bed.box.answer(nonce(1), answer(1)), await bed.box.answer(nonce(1), answer(2))], [true, false]);
    assert.equal(bed.answer(nonce(1)), 1);
    assert.equal(bed.answer(nonce(2)), undefined);
  });

  rule('what is no nonce, or larger than an answer may be, is not put there', async (bed) => {
    await bed.start();
    for (const wrong of ['', '..', `../${'0'.repeat(29)}`, 'A'.repeat(32), '0'.repeat(31), `${'0'.repeat(32)}\n`])
      assert.equal(await bed.box.answer(wrong, answer(1)), false, JSON.stringify(wrong));
    assert.equal(await bed.box.answer(nonce(1), new Uint8Array(MAX_FRAME_BYTES + 1)), false);
    assert.equal(bed.answer(nonce(1)), undefined);
    assert.equal(await bed.box.answer(nonce(1), answer(1)), true, 'the name was not used up');
  });

  rule('an answer is gone after its time and its name is free again; no more than so many lie there at once', async (bed) => {
    await bed.start();
    for (let n = 0; n < MAX_BOX_ANSWERS; n++) assert.equal(await bed.box.answer(nonce(n), answer(n)), true);
    assert.equal(await bed.box.answer(nonce(MAX_BOX_ANSWERS), answer(0)), false);
    bed.pass(BOX_ANSWER_MS - 1);
    assert.equal(bed.answer(nonce(1)), 1);
    bed.pass(1);
    await bed.gone(nonce(1));
    assert.equal(await bed.box.answer(nonce(1), answer(2)), true);
    assert.equal(bed.answer(nonce(1)), 2);
  });

  rule('there are no answers while it is stopped, and none of before when it starts again', async (bed) => {
    assert.equal(await bed.box.answer(nonce(1), answer(1)), false);
    await bed.start();
    assert.equal(await bed.box.answer(nonce(1), answer(1)), true);
    await bed.box.stop();
    await bed.box.stop();
    assert.equal(bed.answer(nonce(1)), undefined);
    assert.equal(await bed.box.answer(nonce(2), answer(2)), false);
    await bed.start();
    assert.equal(bed.answer(nonce(1)), undefined);
    assert.equal(await bed.box.answer(nonce(1), answer(3)), true);
  });

  rule('a body is kept whole under its message id, the newest of one id; nothing else names a place', async (bed) => {
    await bed.start();
    const id = makeMessageId(0, new Uint8Array(10).fill(255));
    const path = await bed.box.keep(id, Buffer.from('first'));
    assert.equal(await bed.box.keep(id, Buffer.from('second')), path);
    assert.equal(Buffer.from(bed.body(path)).toString(), 'second');
    for (const wrong of ['', '../x', id.toUpperCase(), `${id}/x`]) await assert.rejects(bed.box.keep(wrong, Buffer.from('x')), RangeError);
    await bed.box.stop();
    assert.equal(Buffer.from(bed.body(path)).toString(), 'second', 'it stays when the channel is gone');
  });
}
