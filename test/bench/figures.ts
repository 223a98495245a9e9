/**
 * Figures out of samples: medians, percentiles, spreads and shares.
 *
 * Pure. Owns the arithmetic that every row of the benchmark shares, so that no two rows mean different things by "p99".
 * Invariant: an empty sample is a broken run and throws; it never becomes a zero in a table.
 */

/** The median and the ends of so many repeats. */
export interface Spread {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

/** The value below which `share` (0 to 1) of the values lie: nearest rank, so always one of them. Throws on none. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((one, other) => one - other);
  const found = sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
  if (found === undefined) throw new Error('no samples: nothing was measured');
  return found;
}

/** The middle value; of an even number, the mean of the two in the middle. Throws on none. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((one, other) => one - other);
  const high = sorted[sorted.length >> 1];
  const low = sorted[(sorted.length - 1) >> 1];
  if (low === undefined || high === undefined) throw new Error('no samples: nothing was measured');
  return (low + high) / 2;
}

export function spread(values: readonly number[]): Spread {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) };
}

/** What the one that got least got of an equal share of all: 1 is fair, 0 is starved. Throws when there is nothing to share. */
export function leastShare(amounts: readonly number[]): number {
  const all = amounts.reduce((sum, amount) => sum + amount, 0);
  if (all <= 0) throw new Error('no samples: nothing was shared');
  return Math.min(...amounts) / (all / amounts.length);
}
