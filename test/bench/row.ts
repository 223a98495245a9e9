/**
 * The one shape of a row of the benchmark, and how it is run: its contestants take turns, so that each repeat is one comparison.
 *
 * Owns what a repeat, a target and a verdict are. A ratio is taken within a repeat, where the machine was in one mood, and its median over
 * the repeats is what is judged. A contestant that cannot be had leaves its targets `not measured`; it never makes them pass.
 */
import { spread, type Spread } from './figures.ts';
import type { Systems } from './systems.ts';

/** What one contestant did in one repeat: figures by name, the unit in the name. */
export type Sample = Readonly<Record<string, number>>;
/** One repeat: samples by contestant. */
export type Repeat = Readonly<Record<string, Sample>>;

export interface Contestant {
  readonly name: string;
  measure(): Promise<Sample>;
}

export interface Target {
  /** What is judged, with its unit. */
  readonly what: string;
  /** Its value in a repeat; undefined when a contestant of it was not there. */
  readonly of: (repeat: Repeat) => number | undefined;
  readonly atMost?: number;
  readonly atLeast?: number;
  /** What would be better still; told, not judged. */
  readonly aim?: number;
}

/** A row made ready to run. */
export interface Course {
  readonly contestants: readonly Contestant[];
  /** What a reader must know to read the figures: what was smaller than meant, who was missing. */
  readonly notes?: readonly string[];
  readonly end?: () => Promise<void>;
}

export interface Row {
  /** Typed in ROWS=. */
  readonly name: string;
  readonly title: string;
  readonly targets: readonly Target[];
  /** Fewer repeats than asked for, where one takes long. */
  readonly mostRepeats?: number;
  setUp(systems: Systems): Promise<Course>;
}

export type Verdict = 'PASS' | 'MISSED' | 'NOT MEASURED';

export interface Judged {
  readonly what: string;
  readonly bound: string;
  readonly reached: Spread | undefined;
  readonly verdict: Verdict;
}

export interface Result {
  readonly name: string;
  readonly title: string;
  readonly repeats: number;
  /** Figures by contestant and name. */
  readonly figures: Readonly<Record<string, Readonly<Record<string, Spread>>>>;
  readonly judged: readonly Judged[];
  readonly notes: readonly string[];
}

/** Runs a row: every contestant once in every repeat, each time another one first. */
export async function runRow(row: Row, systems: Systems, repeats: number): Promise<Result> {
  const course = await row.setUp(systems);
  try {
    const count = Math.min(repeats, row.mostRepeats ?? repeats);
    const done: Repeat[] = [];
    for (let n = 0; n < count; n++) {
      const repeat: Record<string, Sample> = {};
      for (let turn = 0; turn < course.contestants.length; turn++) {
        const contestant = course.contestants[(n + turn) % course.contestants.length]!;
        repeat[contestant.name] = await contestant.measure();
      }
      done.push(repeat);
    }
    const judged = row.targets.map((target) => judge(target, done));
    return { name: row.name, title: row.title, repeats: count, figures: figuresOf(done), judged, notes: course.notes ?? [] };
  } finally {
    await course.end?.();
  }
}

/** What the repeats say to a target. */
export function judge(target: Target, repeats: readonly Repeat[]): Judged {
  const values = repeats.map(target.of).filter((value) => value !== undefined);
  const bound = boundOf(target);
  if (values.length === 0) return { what: target.what, bound, reached: undefined, verdict: 'NOT MEASURED' };
  const reached = spread(values);
  const isMet = reached.median <= (target.atMost ?? Infinity) && reached.median >= (target.atLeast ?? -Infinity);
  return { what: target.what, bound, reached, verdict: isMet ? 'PASS' : 'MISSED' };
}

function boundOf({ atMost, atLeast, aim }: Target): string {
  const sign = atMost === undefined ? '>=' : '<=';
  return `${sign} ${atMost ?? atLeast ?? '?'}${aim === undefined ? '' : ` (aim ${aim})`}`;
}

function figuresOf(repeats: readonly Repeat[]): Record<string, Record<string, Spread>> {
  const figures: Record<string, Record<string, Spread>> = {};
  for (const [contestant, sample] of Object.entries(repeats[0] ?? {})) {
    const own: Record<string, Spread> = (figures[contestant] = {});
    for (const figure of Object.keys(sample)) own[figure] = spread(repeats.map((repeat) => repeat[contestant]?.[figure] ?? Number.NaN));
  }
  return figures;
}

/** One figure of a contestant divided by one of another; undefined when either was not there. */
export function ratio(repeat: Repeat, over: readonly [string, string], under: readonly [string, string]): number | undefined {
  const [a, b] = [repeat[over[0]]?.[over[1]], repeat[under[0]]?.[under[1]]];
  return a === undefined || b === undefined ? undefined : a / b;
}
