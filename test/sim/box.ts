/**
 * A channel for sandboxed sessions without a file: lines that a test writes, answers that it reads.
 *
 * Owns what the real one promises towards the core and nothing else (test/contract/box.ts): whole lines while it is started, an answer
 * once under each nonce and for its time, bodies under message ids.
 */
import type { Box, BoxEvents } from '../../daemon/box/box.ts';
import { BoxLines } from '../../daemon/box/lines.ts';
import type { Clock } from '../../daemon/clock/clock.ts';
import { boxLine, isBoxWord } from '../../protocol/box.ts';
import type { BoxRequest } from '../../protocol/box.ts';
import { asFields, decode } from '../../protocol/codec.ts';
import type { Fields } from '../../protocol/codec.ts';
import { isMessageId } from '../../protocol/ids.ts';
import { BOX_ANSWER_MS, MAX_BOX_ANSWERS, MAX_FRAME_BYTES } from '../../protocol/limits.ts';

export class SimBox implements Box {
  readonly answers = new Map<string, Fields>();
  readonly kept = new Map<string, Uint8Array>();
  /** Makes `start` fail, as on a system that has no such pipes. */
  failure: Error | undefined;
  readonly #clock: Clock;
  readonly #ends = new Map<string, () => void>();
  #lines = new BoxLines();
  #events: BoxEvents | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get isOpen(): boolean {
    return this.#events !== undefined;
  }

  async start(events: BoxEvents): Promise<void> {
    await this.stop();
    if (this.failure !== undefined) throw this.failure;
    this.#lines = new BoxLines();
    this.#events = events;
  }

  stop(): Promise<void> {
    this.#events = undefined;
    for (const nonce of this.#ends.keys()) this.#remove(nonce);
    return Promise.resolve();
  }

  answer(nonce: string, bytes: Uint8Array): Promise<boolean> {
    const isTaken = !isBoxWord(nonce) || this.answers.has(nonce) || this.answers.size >= MAX_BOX_ANSWERS;
    if (!this.isOpen || isTaken || bytes.length > MAX_FRAME_BYTES) return Promise.resolve(false);
    this.answers.set(nonce, asFields(decode(bytes), 'an answer'));
    this.#ends.set(
      nonce,
      this.#clock.after(BOX_ANSWER_MS, () => this.#remove(nonce)),
    );
    return Promise.resolve(true);
  }

  keep(id: string, body: Uint8Array): Promise<string> {
    if (!isMessageId(id)) return Promise.reject(new RangeError('a body is kept under its message id'));
    this.kept.set(id, Uint8Array.from(body));
    return Promise.resolve(`/fetched/${id}`);
  }

  #remove(nonce: string): void {
    this.#ends.get(nonce)?.();
    this.#ends.delete(nonce);
    this.answers.delete(nonce);
  }

  /** Bytes into the pipe; lost where none is. */
  write(bytes: Uint8Array): void {
    if (this.#events !== undefined) for (const line of this.#lines.take(Buffer.from(bytes))) this.#events.onRequest(line);
  }

  ask(request: BoxRequest): void {
    this.write(boxLine(request));
  }
}
