/**
 * Takes one input through one target and says what was wrong with how it ended, if anything. The rule: a value or an AxError, within
 * 200 ms, and no prototype touched.
 */
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { Chance } from './chance.ts';
import type { Target } from './targets.ts';

const LIMIT_MS = 200;
export const CORPUS = join(import.meta.dirname, 'corpus');
const PROTOTYPES = [Object.prototype, Array.prototype, Uint8Array.prototype, Map.prototype, Function.prototype];
const shape = (): string => PROTOTYPES.map((prototype) => Reflect.ownKeys(prototype).map(String).join()).join('|');
const untouched = shape();

/** What was wrong; undefined when nothing was. Slow is what is slow three times: a busy machine is no fault. */
export async function fault(target: Target, input: Uint8Array): Promise<string | undefined> {
  let fastest = Infinity;
  for (let attempt = 0; attempt < 3 && fastest > LIMIT_MS; attempt++) {
    const start = performance.now();
    try {
      await target.take(input);
    } catch (error) {
      if (!(error instanceof AxError)) return `${String(error)}\n${error instanceof Error ? error.stack : ''}`;
    }
    fastest = Math.min(fastest, performance.now() - start);
  }
  if (fastest > LIMIT_MS) return `took ${Math.round(fastest)} ms`;
  if ('polluted' in {} || shape() !== untouched) return 'a prototype was changed';
  return undefined;
}

/** Runs `count` broken inputs; throws at the first fault, with the input kept in the corpus. */
export async function fuzz(target: Target, count: number, seed: number): Promise<void> {
  const chance = new Chance(seed ^ createHash('sha256').update(target.name).digest().readUInt32BE());
  for (let n = 0; n < count; n++) {
    const input = target.mutate(chance, chance.pick(target.good), target.good);
    const wrong = await fault(target, input);
    if (wrong === undefined) continue;
    const hex = Buffer.from(input).toString('hex');
    const name = `${target.name}.${createHash('sha256').update(input).digest('hex').slice(0, 12)}.hex`;
    writeFileSync(join(CORPUS, name), `${hex.match(/.{1,140}/g)?.join('\n') ?? ''}\n`);
    throw new Error(`seed ${seed}, input ${n} (kept as test/fuzz/corpus/${name}): ${wrong}`);
  }
}
