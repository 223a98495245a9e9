/**
 * The rows of the benchmark in the order in which they run and are told.
 *
 * Owns that order only. Rows that need a quiet machine come before those that leave much in the page cache.
 */
import type { Row } from './row.ts';
import { backlog } from './rows/backlog.ts';
import { bodies } from './rows/bodies.ts';
import { commands } from './rows/commands.ts';
import { discovery } from './rows/discovery.ts';
import { fairness } from './rows/fairness.ts';
import { idle } from './rows/idle.ts';
import { inflight1, inflight256, inflight64 } from './rows/inflight.ts';
import { limits } from './rows/limits.ts';

export const ROWS: readonly Row[] = [limits, inflight1, inflight64, inflight256, fairness, bodies, commands, idle, discovery, backlog];

/** The rows of a list of names with commas between them; all when it is empty. Throws on a name that is no row's. */
export function chosen(names: string): readonly Row[] {
  const wanted = names.split(',').filter((name) => name !== '');
  for (const name of wanted)
    if (!ROWS.some((row) => row.name === name))
      throw new Error(`there is no row "${name}"; rows: ${ROWS.map((row) => row.name).join(', ')}`);
  return wanted.length === 0 ? ROWS : ROWS.filter((row) => wanted.includes(row.name));
}
