/**
 * The known word that a mistyped one was perhaps meant to be.
 *
 * Pure. Owns what counts as near: one slip in a short word, two in a longer one; a swap of two neighbours is one slip. Capitals are no
 * slip. It only proposes: nobody acts on its answer without a person.
 */

/** Longer words are not compared, characters. */
const MAX_CHARS = 64;

/** The nearest of the known words, as it is spelled there; undefined when none is near, or several are equally so. */
export function nearest(typed: string, known: readonly string[]): string | undefined {
  const word = typed.toLowerCase();
  if (word.length > MAX_CHARS) return undefined;
  const most = word.length <= 4 ? 1 : 2;
  const near = known
    .filter((one) => Math.abs(one.length - word.length) <= most)
    .map((one) => ({ one, slips: slips(word, one.toLowerCase()) }))
    .filter(({ slips: found, one }) => found <= most && found < one.length)
    .toSorted((a, b) => a.slips - b.slips);
  const [first, second] = near;
  return first !== undefined && first.slips < (second?.slips ?? Infinity) ? first.one : undefined;
}

/** "; did you mean X?" behind a sentence, or nothing. */
export function didYouMean(typed: string, known: readonly string[]): string {
  const found = nearest(typed, known);
  return found === undefined ? '' : `; did you mean ${found}?`;
}

/** Insertions, deletions, changes and swaps of neighbours that make one word of the other. */
function slips(from: string, to: string): number {
  const rows: number[][] = [Array.from({ length: to.length + 1 }, (_, at) => at)];
  for (let i = 1; i <= from.length; i++) {
    const row = [i];
    for (let j = 1; j <= to.length; j++) {
      const same = from[i - 1] === to[j - 1];
      let least = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, rows[i - 1]![j - 1]! + (same ? 0 : 1));
      const isSwap = i > 1 && j > 1 && from[i - 1] === to[j - 2] && from[i - 2] === to[j - 1];
      if (isSwap) least = Math.min(least, rows[i - 2]![j - 2]! + 1);
      row.push(least);
    }
    rows.push(row);
  }
  return rows[from.length]![to.length]!;
}
