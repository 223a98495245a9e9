/**
 * What is listed of the sessions that live: each once, none that another machine wrote into a shared folder, as the harness seam shows them.
 *
 * Owns the public face of a session and which of several records stands for it. Reads and judges nothing.
 * Invariant: what is listed holds no socket, name, token or domain.
 */
import type { Reason } from './claude-live.ts';
import type { SessionRecord } from './claude-record.ts';
import type { Session } from './harness.ts';

/** A live session: its record and what stands against nudging it. `fresh` is false when the last reading of the file failed. */
export interface Seen {
  readonly record: SessionRecord;
  readonly reason: Reason | undefined;
  readonly fresh: boolean;
}

/** The public face of a seen session. */
export function sessionOf(seen: Seen): Session {
  const { record, reason } = seen;
  return {
    harness: 'claude',
    sessionId: record.sessionId,
    workspace: record.workspace,
    status: record.status,
    statusSince: record.statusSince,
    startedAt: record.startedAt,
    version: record.version,
    reachable: reason === undefined,
    ...(reason === undefined ? {} : { reason }),
    processKey: keyOf(record),
  };
}

/** One process, however often its pid is used again. */
export function keyOf(record: SessionRecord): string {
  return `${record.pid}:${record.procStart}`;
}

export class Listing {
  #domain: string | undefined;

  /** Those of `live` that are listed, in the order of their starts. */
  of(live: readonly Seen[]): Seen[] {
    const ordered = live.toSorted((a, b) => a.record.startedAt - b.record.startedAt || a.record.pid - b.record.pid);
    const domains = ordered.map((seen) => seen.record.pidDomain).filter((domain) => domain !== undefined);
    // The domain known good stays so while a session of it lives; it is compared, never parsed.
    if (this.#domain === undefined || !domains.includes(this.#domain)) this.#domain = domains[0];
    const once = new Map<string, Seen>();
    for (const seen of ordered) {
      const { pidDomain } = seen.record;
      const key = keyOf(seen.record);
      if ((pidDomain === undefined || pidDomain === this.#domain) && !once.has(key)) once.set(key, seen);
    }
    return [...once.values()];
  }
}
