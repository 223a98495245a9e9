/**
 * What a process costs: its processor time, its memory and its reads, as Linux tells them in /proc.
 *
 * Reads only. Owns the units: seconds of one core, and MiB. A process that is gone throws, because its figures would be lies.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;
const hasNanoseconds = existsSync('/proc/self/schedstat');

/** Processor time of a process so far, user and system, all its threads: seconds of one core. */
export function cpuSeconds(pid: number): number {
  if (hasNanoseconds) {
    // To the nanosecond, where steps of 10 ms would hide an idle process; threads that ended are not in it, and Node's pool keeps its own.
    const threads = readdirSync(`/proc/${pid}/task`);
    return threads.reduce((sum, thread) => sum + ranSeconds(pid, thread), 0);
  }
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}

function ranSeconds(pid: number, thread: string): number {
  try {
    return Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'latin1').split(' ')[0]) / 1e9;
  } catch (error) {
    if (thread !== String(pid) && (error as NodeJS.ErrnoException).code === 'ENOENT') return 0; // a thread that just ended
    throw error;
  }
}

export interface Memory {
  /** All resident pages, those of mapped files among them, MiB. */
  readonly rss: number;
  /** Those that belong to no file, MiB. */
  readonly anonymous: number;
}

export function memory(pid: number): Memory {
  const text = readFileSync(`/proc/${pid}/status`, 'latin1');
  const mib = (field: string): number => Number(new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(text)?.[1]) / 1024;
  return { rss: mib('VmRSS'), anonymous: mib('RssAnon') };
}

/** What a process has read so far from files and pipes, bytes; sockets are not in it. */
export function bytesRead(pid: number): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, 'latin1'))?.[1]);
}
