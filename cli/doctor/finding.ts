/**
 * What `ax doctor` says of one thing that is wrong, and the few questions about files that several checks ask.
 *
 * Owns the shape of a finding; not what is looked for. Everything here reads and changes nothing.
 * Invariant: `fix` is one command that can be typed, or one sentence where no command mends it.
 */
import { lstatSync, readFileSync } from 'node:fs';
import type { Stats } from 'node:fs';

/** `info` is worth knowing and no fault: it does not change the exit status. */
export type Severity = 'error' | 'warning' | 'info';

export interface Finding {
  /** The same word for the same fault in every version. */
  readonly id: string;
  readonly severity: Severity;
  readonly what: string;
  readonly fix: string;
}

export function finding(severity: Severity, id: string, what: string, fix: string): Finding {
  return { id, severity, what, fix };
}

/** What is at the path, links not followed; undefined when there is nothing, or nothing that may be seen. */
export function factsOf(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined; // absent and hidden are the same to a doctor who is not let in: the daemon's own error says which
  }
}

/** The text of a small file; undefined when it cannot be read. */
export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined; // as above
  }
}
