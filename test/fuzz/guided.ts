/**
 * Fuzzing led by coverage: an input that reaches a block no input reached before is kept, and the next ones are made from it.
 *
 * V8 itself counts the blocks of protocol/, daemon/ and cli/ (precise coverage over the inspector, within this process). Asking costs some
 * ms, so inputs run a batch at a time, and a batch that reached something new is halved until the input is found. What is kept lies in
 * test/fuzz/seeds, one file for each target, base64 by line, and every run begins with it. GUIDED_RUNS inputs, FUZZ_SEED as in run.ts.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { Session } from 'node:inspector';
import { join } from 'node:path';
import { Chance } from './chance.ts';
import type { Target } from './targets.ts';

const RUNS = Number(process.env['GUIDED_RUNS'] ?? '') || 50_000;
const SEED = Number(process.env['FUZZ_SEED'] ?? '') || Date.now() % 2 ** 31;
const SEEDS = join(import.meta.dirname, 'seeds');
/** Inputs between two looks: few while much is new, more when little is. */
const BATCHES = { min: 16, max: 4096 } as const;
/** Kept for a target at most, and the longest of them, bytes: what is kept is part of the project. */
const MAX_KEPT = 60;
const MAX_KEPT_BYTES = 4096;

const session = new Session();
session.connect();

interface Block {
  readonly startOffset: number;
  readonly endOffset: number;
  readonly count: number;
}
interface Coverage {
  readonly result: readonly { readonly url: string; readonly functions: readonly { readonly ranges: readonly Block[] }[] }[];
}

/** Within one process the answer comes before `post` returns. */
function post(method: string, params: object = {}): unknown {
  const ends: { readonly error: Error | null; readonly result: unknown }[] = [];
  session.post(method, params, (error, result) => void ends.push({ error, result }));
  const [end] = ends;
  if (end === undefined || end.error !== null) throw new Error(`${method}: ${end?.error?.message ?? 'no answer'}`);
  return end.result;
}

/** The blocks that ran since this was asked last. */
function blocks(): string[] {
  const { result } = post('Profiler.takePreciseCoverage') as Coverage;
  return result
    .filter(({ url }) => /^file:.*\/(protocol|daemon|cli)\/[^?]*\.ts$/.test(url))
    .flatMap(({ url, functions }) =>
      functions.flatMap(({ ranges }) => ranges.filter(({ count }) => count > 0).map((at) => `${url} ${at.startOffset}-${at.endOffset}`)),
    );
}

class Guided {
  readonly #target: Target;
  readonly #mutateBytes: Target['mutate'];
  readonly #fault: (target: Target, input: Uint8Array) => Promise<string | undefined>;
  readonly #seen = new Set<string>();
  readonly kept: Uint8Array[] = [];
  readonly #pool: Uint8Array[];

  constructor(target: Target, mutateBytes: Target['mutate'], fault: (target: Target, input: Uint8Array) => Promise<string | undefined>) {
    this.#target = target;
    this.#mutateBytes = mutateBytes;
    this.#fault = fault;
    this.#pool = [...target.good];
  }

  get blocks(): number {
    return this.#seen.size;
  }

  async run(count: number, chance: Chance): Promise<void> {
    await this.#batch(this.#pool, false);
    await this.#batch(read(this.#target.name), true);
    let size: number = BATCHES.min;
    for (let done = 0; done < count;) {
      const inputs = Array.from({ length: Math.min(size, count - done) }, () => this.#next(chance));
      const before = this.#seen.size;
      await this.#batch(inputs, true);
      done += inputs.length;
      size = this.#seen.size === before ? Math.min(BATCHES.max, size * 2) : BATCHES.min;
    }
  }

  #next(chance: Chance): Uint8Array {
    const parent = chance.oneIn(3) ? chance.pick(this.#target.good) : chance.pick(this.#pool);
    try {
      return this.#target.mutate(chance, parent, this.#pool);
    } catch {
      return this.#mutateBytes(chance, parent, this.#pool); // a kept input need not be of the target's form: then its bytes are broken
    }
  }

  /** Runs inputs, and finds and keeps those that reach something new. */
  async #batch(inputs: readonly Uint8Array[], keep: boolean): Promise<void> {
    if (inputs.length === 0) return;
    blocks();
    for (const input of inputs) {
      const wrong = await this.#fault(this.#target, input);
      if (wrong !== undefined) throw new Error(`${this.#target.name}: ${Buffer.from(input).toString('hex').slice(0, 4000)}: ${wrong}`);
    }
    const fresh = blocks().filter((block) => !this.#seen.has(block));
    if (fresh.length === 0) return;
    if (inputs.length === 1 || !keep) {
      for (const block of fresh) this.#seen.add(block);
      const [input] = inputs;
      if (!keep || input === undefined || input.length > MAX_KEPT_BYTES) return;
      this.#pool.push(input);
      this.kept.push(input);
      return;
    }
    const half = inputs.length >> 1;
    await this.#batch(inputs.slice(0, half), true);
    await this.#batch(inputs.slice(half), true);
  }
}

function read(name: string): Uint8Array[] {
  const path = join(SEEDS, `${name}.txt`);
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, 'utf8').split('\n');
  return lines.filter((line) => line !== '').map((line) => new Uint8Array(Buffer.from(line, 'base64')));
}

post('Profiler.enable');
post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
// Only now: a function that was compiled before would be counted as a whole.
const [{ TARGETS }, { mutateBytes }, { fault }] = await Promise.all([import('./targets.ts'), import('./mutate.ts'), import('./run.ts')]);
mkdirSync(SEEDS, { recursive: true });
const share = RUNS / TARGETS.reduce((sum, target) => sum + (target.weight ?? 1), 0);
let [inputs, kept, reached] = [0, 0, 0];
for (const target of TARGETS) {
  const count = Math.ceil(share * (target.weight ?? 1));
  const guided = new Guided(target, mutateBytes, fault);
  await guided.run(count, new Chance(SEED ^ target.name.length));
  const lines = guided.kept.slice(0, MAX_KEPT).map((input) => Buffer.from(input).toString('base64'));
  if (lines.length > 0) writeFileSync(join(SEEDS, `${target.name}.txt`), `${lines.join('\n')}\n`);
  process.stdout.write(
    `${target.name.padEnd(16)}${String(count).padStart(8)} inputs ${String(guided.blocks).padStart(6)} blocks ${lines.length} kept\n`,
  );
  [inputs, kept, reached] = [inputs + count, kept + lines.length, reached + guided.blocks];
}
process.stdout.write(`${inputs} inputs, ${reached} blocks, ${kept} kept, 0 crashes; seed ${SEED}\n`);
