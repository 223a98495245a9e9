/**
 * A line of bash up to the cursor, as words: bash itself cuts words at `=`, `:` and `@`, and hands them over so.
 *
 * Owns quotes and backslashes as far as they stand in a line that is being typed; expands nothing. Pure.
 */

export interface BashLine {
  /** Without quotes; the last is the one under the cursor, perhaps empty. */
  readonly words: readonly string[];
  /** The word under the cursor as typed, quotes and all. */
  readonly raw: string;
}

/** An open quote reaches to the end of the line. */
export function splitLine(line: string): BashLine {
  const words: string[] = [];
  let word = '';
  let raw = '';
  let isOpen = false;
  let quote = '';
  for (let at = 0; at < line.length; at++) {
    const character = line[at] ?? '';
    if (quote === '' && (character === ' ' || character === '\t' || character === '\n')) {
      if (isOpen) words.push(word);
      [word, raw, isOpen] = ['', '', false];
      continue;
    }
    isOpen = true;
    raw += character;
    const escapes = character === '\\' && quote !== "'";
    if (escapes && at + 1 < line.length) {
      const next = line[++at] ?? '';
      raw += next;
      // Within double quotes a backslash is itself, but before these.
      word += quote === '"' && !'"\\$`\n'.includes(next) ? `\\${next}` : next;
    } else if (quote !== '' && character === quote) quote = '';
    else if (quote === '' && (character === '"' || character === "'")) quote = character;
    else word += character;
  }
  return { words: [...words, word], raw };
}

/** What bash puts in place of its own last piece of the word: the value behind the last of `breaks` that was typed. */
export function behindBreaks(value: string, raw: string, breaks: string): string {
  // A quoted word is one piece for bash as well.
  if (/["'\\]/.test(raw)) return value;
  const cut = Math.max(-1, ...Array.from(breaks, (character) => raw.lastIndexOf(character)));
  // Of all break characters this one bash leaves on the piece behind it (it is that of host names).
  return value.slice(value[cut] === '@' ? cut : cut + 1);
}
