/**
 * A closed loop: so many senders, each of which sends its next message when the last one is acknowledged.
 *
 * Owns the clock of a measurement: a warm-up that is not counted, then a window in which completions and their latencies are. What a
 * "send" is belongs to the system under test; the loop is the same for each, so that their figures compare.
 */
import { percentile } from './figures.ts';

export interface Loop {
  /** Senders, each with one message under way. */
  readonly inFlight: number;
  /** Not counted, ms. */
  readonly warmMs: number;
  /** Counted, ms; longer when no send ended in it. */
  readonly measureMs: number;
  /** Sends the n-th message of that sender; resolves when it is acknowledged, rejects when it is not: that ends the run. */
  readonly send: (sender: number, n: number) => Promise<unknown>;
  /** Called between warm-up and window, and at the end of the window: for what is counted beside the loop. */
  readonly onWindow?: ((edge: 'begins' | 'ends') => void) | undefined;
}

export interface LoopResult {
  readonly perSecond: number;
  /** ms of the acknowledged sends of the window, in no order. */
  readonly latencies: readonly number[];
  /** How many of them each sender had. */
  readonly perSender: readonly number[];
  readonly p50: number;
  readonly p99: number;
}

/** Runs the loop to its end: no send is under way on return. Rejects with the first failure of a send. */
export async function closedLoop(loop: Loop): Promise<LoopResult> {
  const latencies: number[] = [];
  const perSender = new Array<number>(loop.inFlight).fill(0);
  const state = { isCounted: false, isOver: false };
  const senders = perSender.map(async (_none, sender) => {
    try {
      for (let n = 0; !state.isOver; n++) {
        const from = performance.now();
        await loop.send(sender, n);
        if (!state.isCounted) continue;
        latencies.push(performance.now() - from);
        perSender[sender] = (perSender[sender] ?? 0) + 1;
      }
    } catch (error) {
      state.isOver = true;
      throw error;
    }
  });
  const ended = Promise.all(senders);
  await Promise.race([pause(loop.warmMs), ended]);
  loop.onWindow?.('begins');
  const began = performance.now();
  state.isCounted = true;
  await Promise.race([pause(loop.measureMs), ended]);
  state.isOver = true;
  // A window shorter than one send ends with the sends that are under way.
  if (latencies.length === 0) await ended;
  state.isCounted = false;
  const tookMs = performance.now() - began;
  loop.onWindow?.('ends');
  await ended;
  return {
    perSecond: latencies.length / (tookMs / 1000),
    latencies,
    perSender,
    p50: percentile(latencies, 0.5),
    p99: percentile(latencies, 0.99),
  };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
