/** The channel for sandboxed sessions in memory keeps what the real one promises. */
import { boxContract } from '../contract/box.ts';
import { HandClock } from '../daemon/bed.ts';
import { SimBox } from './box.ts';

boxContract('in memory', () => {
  const clock = new HandClock();
  const box = new SimBox(clock);
  const lines: string[] = [];
  return {
    box,
    lines,
    start: () => box.start({ onRequest: (line) => void lines.push(Buffer.from(line).toString('latin1')) }),
    write: (text) => box.write(Buffer.from(text, 'latin1')),
    until: async (condition) => {
      if (!condition()) throw new Error('every line comes at once');
    },
    answer: (nonce) => box.answers.get(nonce)?.['n'] as number | undefined,
    body: (path) => box.kept.get(path.slice('/fetched/'.length)) ?? new Uint8Array(),
    pass: (ms) => clock.pass(ms),
    gone: async (nonce) => {
      if (box.answers.has(nonce)) throw new Error('every answer goes at once');
    },
  };
});
