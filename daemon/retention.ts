/**
 * Retention: what ends by time. Forwarding deadlines, the receiver's retention, and the pruning of everything that grows.
 *
 * Owns no table; runs each minute over the state owners in bounded steps, in running time. An unread message that expires
 * leaves a receipt for its sender. The same round flushes the running-time counter.
 */
import { toAxError } from '../protocol/errors.ts';
import type { HostKey } from '../protocol/identity.ts';
import type { HostId } from '../protocol/ids.ts';
import { METADATA_RETENTION_MS } from '../protocol/limits.ts';
import type { Arriving } from './arriving.ts';
import type { Clock } from './clock/clock.ts';
import { endReceipt } from './ending.ts';
import type { Events } from './events.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Log } from './log.ts';
import type { Notices } from './notices.ts';
import type { Outbox } from './outbox.ts';
import type { Peers } from './peers.ts';
import type { Receipts } from './receipts.ts';
import type { Staging } from './staging.ts';
import type { Store } from './store/store.ts';
import { UPTIME_FLUSH_MS } from './uptime.ts';
import type { Uptime } from './uptime.ts';

export interface RetentionDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  readonly key: HostKey;
  readonly uptime: Uptime;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
  readonly arriving: Arriving;
  readonly staging: Staging;
  readonly receipts: Receipts;
  readonly peers: Peers;
  readonly notices: Notices;
  readonly events: Events;
  readonly onReceipt: (row: Received) => void;
}

/** The first round after a start, and how often deadlines are looked at, ms. */
const FIRST_ROUND_MS = 1000;
const DEADLINE_CHECK_MS = 10_000;
/** Rows of a kind handled in one transaction. */
const BATCH = 200;

export class Retention {
  readonly #deps: RetentionDeps;
  #cancel: (() => void) | undefined;
  #stopped = false;
  /** Running time, ms, of the last whole round. */
  #roundAt = Number.NEGATIVE_INFINITY;

  constructor(deps: RetentionDeps) {
    this.#deps = deps;
  }

  /** The first round comes soon: a daemon that never lives for a minute must let things end as well. */
  start(): void {
    this.#next(FIRST_ROUND_MS);
  }

  stop(): void {
    this.#stopped = true;
    this.#cancel?.();
  }

  async #round(): Promise<void> {
    this.#roundAt = this.#deps.uptime.now();
    try {
      while (!this.#stopped && (await this.#step()) >= BATCH);
      await this.#dropHalves();
    } catch (error) {
      this.#deps.log.error('retention round failed', { reason: toAxError(error).message });
    }
    this.#next(DEADLINE_CHECK_MS);
  }

  #next(ms: number): void {
    if (!this.#stopped) this.#cancel = this.#deps.clock.after(ms, () => void this.#tick());
  }

  /** Deadlines are looked at often, the rest each minute. */
  async #tick(): Promise<void> {
    const { uptime, outbox, inbox } = this.#deps;
    if (uptime.now() - this.#roundAt >= UPTIME_FLUSH_MS || outbox.overdue(1).length > 0 || inbox.isDue()) await this.#round();
    else this.#next(DEADLINE_CHECK_MS);
  }

  /** What is half here, or half stored, and will not become whole: one message in each write, for each may be large. */
  async #dropHalves(): Promise<void> {
    const { store, arriving, staging, peers, key } = this.#deps;
    const isPaired = (host: HostId): boolean => host === key.hostId || peers.get(host) !== undefined;
    while (!this.#stopped && arriving.isDue(isPaired)) await store.write((tx) => arriving.prune(tx, isPaired));
    while (!this.#stopped && staging.isDue()) await store.write((tx) => staging.prune(tx));
  }

  /** One bounded step; returns the largest number of rows of a kind it handled. */
  async #step(): Promise<number> {
    const { store, clock, uptime, outbox, inbox, receipts, peers, notices, events, key, onReceipt } = this.#deps;
    const overdue = outbox.overdue(BATCH);
    const result = await store.write((tx) => {
      uptime.flush(tx);
      for (const row of overdue) {
        const ended = outbox.expire(tx, row.id, clock.now());
        if (ended?.state === 'expired')
          events.add(tx, {
            type: 'message.expired',
            messageId: row.id,
            hostId: row.host,
            state: 'expired',
            ...(ended.uncertain ? { detail: 'uncertain' } : {}),
          });
      }
      const retired = inbox.retire(tx, BATCH);
      for (const row of retired) {
        if (row.state !== 'expired') continue;
        events.add(tx, { type: 'message.expired', messageId: row.id, hostId: row.sender, state: 'expired' });
        if (row.sender === key.hostId) outbox.settleLocal(tx, row.id, 'expired', clock.now());
        else if (peers.get(row.sender, tx) !== undefined) receipts.add(tx, row.sender, row.id, endReceipt(key, row, clock.now()));
      }
      const pruned = Math.max(
        outbox.prune(tx, BATCH),
        inbox.prune(tx, BATCH),
        notices.prune(tx, BATCH),
        events.prune(tx, uptime.now() - METADATA_RETENTION_MS, BATCH),
      );
      return { retired, most: Math.max(overdue.length, retired.length, pruned) };
    });
    for (const row of result.retired) if (row.state === 'expired') onReceipt(row);
    return result.most;
  }
}
