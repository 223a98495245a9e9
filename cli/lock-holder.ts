/**
 * Which process holds a state folder, as its lock file and /proc tell it.
 *
 * Owns that reading alone: the lock itself is the daemon's (daemon/lock.ts). Nothing is signalled here, and no answer is no error.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Environment } from './environment.ts';

/** The process that holds the state folder, where its lock file and /proc say so; and is it stopped by a signal or a debugger? */
export function lockHolder({ stateDir }: Environment): { readonly pid: number; readonly isStopped: boolean } | undefined {
  const pid = /^([1-9][0-9]{0,9})(?:\n|$)/.exec(textOf(join(stateDir, 'daemon.lock')))?.[1];
  const words = pid === undefined ? [] : textOf(`/proc/${pid}/cmdline`).split('\0');
  // A process id is used again: only one that was started for this very folder is its daemon.
  if (pid === undefined || !words.includes(stateDir)) return undefined;
  const state = /^\d+ \(.*\) ([A-Za-z])/s.exec(textOf(`/proc/${pid}/stat`))?.[1] ?? '';
  return /[ZX]/.test(state) ? undefined : { pid: Number(pid), isStopped: /[Tt]/.test(state) };
}

function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return ''; // not there, or not to be read: it tells nothing
  }
}
