/**
 * The outbox: every message sent from this host, its delivery state on the sender's side, and the body until it is settled.
 *
 * Owns the tables `outbox` (rows by sequence), `outbox_index`, `outbox_body` and `requests`. Index keys: `i/ID` finds a row; `h/HOST/SEQ`
 * is open (not accepted, not ended), `w/HOST/SEQ` accepted and not ended, `c/HOST/SEQ` has a cancel to be asked, `p/RUN/SEQ` is ended
 * and pruned from that running time on. Every step is checked against the table of states.
 * Invariant: an entry whose bytes may have left without an answer says `uncertain`, and that is durable before they leave.
 */
import { AxError } from '../protocol/errors.ts';
import type { Destination } from '../protocol/address.ts';
import type { Origin } from '../protocol/control.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { MAX_RETENTION_MS, METADATA_RETENTION_MS } from '../protocol/limits.ts';
import type { Progress, Receipt } from '../protocol/receipt.ts';
import { RECEIVER_ENDS, SENDER_ENDS, senderMay } from '../protocol/states.ts';
import type { MessageKind, ReceiverState, SenderState } from '../protocol/states.ts';
import { getRow, nextSeq, NOTHING, pack, seqKey, under, unpack } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface Cause {
  readonly code: string;
  readonly message: string;
  readonly at: number;
}

/** What the receiver's host last told of a message. */
export interface Mirror {
  readonly state: ReceiverState;
  readonly at: number;
  readonly handedOut: boolean;
  /** When the body was first handed out, wall time of the receiver in ms, if it was told before the pickup. */
  readonly handedOutAt: number | null;
  readonly liveSession: boolean;
  readonly notice: string | null;
}

export interface RequestKey {
  readonly key: string;
  readonly fingerprint: string;
}

export interface Sent {
  readonly seq: number;
  readonly id: MessageId;
  readonly host: HostId;
  readonly to: Destination;
  readonly kind: MessageKind;
  readonly state: SenderState;
  /** Bytes may have left without an answer. */
  readonly uncertain: boolean;
  readonly cancelRequested: boolean;
  /** The encoded signed envelope; kept with the metadata. */
  readonly signed: Uint8Array;
  readonly digest: Uint8Array;
  readonly bytes: number;
  readonly createdAt: number;
  /** Running time, ms, at which forwarding ends. */
  readonly deadline: number;
  readonly cause: Cause | null;
  readonly storedAs: MessageKind | null;
  readonly receiver: Mirror | null;
  /** Both ends are this host. */
  readonly local: boolean;
  /** Name of the sending agent; null for the owner. */
  readonly agent: string | null;
  readonly origin: Origin;
  /** The caller's idempotency key and what it covered; lives as long as the row. */
  readonly request: RequestKey;
  readonly acceptedAt: number | null;
  readonly fetchedAt: number | null;
  /** Running time, ms, from which it may be forgotten; null while it is open. */
  readonly keptUntil: number | null;
}

export type NewSent = Pick<
  Sent,
  'id' | 'host' | 'to' | 'kind' | 'signed' | 'digest' | 'bytes' | 'createdAt' | 'deadline' | 'local' | 'agent' | 'origin' | 'request'
> & { readonly state: 'queued' | 'forwarding' | 'accepted' };

export class Outbox {
  readonly #store: Store;
  readonly #running: () => number;

  constructor(store: Store, running: () => number) {
    this.#store = store;
    this.#running = running;
  }

  /** Stores a new message with its sealed body. `forwarding` when bytes may leave as soon as this transaction runs. */
  add(tx: StoreTransaction, fresh: NewSent, body: Uint8Array | null): Sent {
    const row: Sent = {
      ...fresh,
      seq: nextSeq(tx, 'outbox'),
      uncertain: fresh.state === 'forwarding',
      cancelRequested: false,
      cause: null,
      storedAs: null,
      receiver: null,
      acceptedAt: null,
      fetchedAt: null,
      keptUntil: fresh.state === 'accepted' ? this.#keptUntil('accepted', null) : null,
    };
    tx.put('outbox', seqKey(row.seq), pack(row));
    tx.put('outbox_index', `i/${row.id}`, pack({ seq: row.seq }));
    tx.put('requests', row.request.key, pack({ id: row.id }));
    if (body !== null) tx.put('outbox_body', row.id, body);
    this.#index(tx, row, true);
    return row;
  }

  get(id: MessageId, reader: StoreReader = this.#store): Sent | undefined {
    const pointer = getRow<{ seq: number }>(reader, 'outbox_index', `i/${id}`);
    return pointer === undefined ? undefined : getRow<Sent>(reader, 'outbox', seqKey(pointer.seq));
  }

  /** The message an idempotency key made, while it is kept. */
  byRequest(key: string, reader: StoreReader = this.#store): Sent | undefined {
    const pointer = getRow<{ id: MessageId }>(reader, 'requests', key);
    return pointer === undefined ? undefined : this.get(pointer.id, reader);
  }

  /** Ids that begin with `prefix`. */
  find(prefix: string, limit: number): MessageId[] {
    return this.#store.range('outbox_index', { ...under(`i/${prefix}`), limit }).map((entry) => entry.key.slice(2) as MessageId);
  }

  body(id: MessageId): Uint8Array | undefined {
    return this.#store.get('outbox_body', id);
  }

  /** Rows newest first, from below `before`. */
  page(before: number | undefined, limit: number): Sent[] {
    return this.#store
      .range('outbox', { ...(before === undefined ? {} : { end: seqKey(before) }), reverse: true, limit })
      .map((entry) => unpack<Sent>(entry.value));
  }

  /** Open entries of a host, oldest first, after sequence `after`. */
  open(host: HostId, after: number, limit: number, reader: StoreReader = this.#store): Sent[] {
    return this.#rows(`h/${host}/`, after, limit, reader);
  }

  /** Entries the receiver has accepted and not ended, oldest first. */
  accepted(host: HostId, after: number, limit: number): Sent[] {
    return this.#rows(`w/${host}/`, after, limit, this.#store);
  }

  /** Entries whose cancel waits for an answer. */
  cancels(host: HostId, after: number, limit: number, reader: StoreReader = this.#store): Sent[] {
    return this.#rows(`c/${host}/`, after, limit, reader);
  }

  /** Every open or cancel-awaiting entry of a host, within a transaction. */
  allOpen(tx: StoreTransaction, host: HostId): Sent[] {
    const seqs = new Set(
      [...tx.range('outbox_index', under(`h/${host}/`)), ...tx.range('outbox_index', under(`c/${host}/`))].map((entry) =>
        entry.key.slice(entry.key.lastIndexOf('/') + 1),
      ),
    );
    return [...seqs].flatMap((seq) => getRow<Sent>(tx, 'outbox', seq) ?? []);
  }

  /** Ends an entry whose host is forgotten: cancelled when it never left, else expired and uncertain. */
  abandon(tx: StoreTransaction, id: MessageId): Sent | undefined {
    const row = this.get(id, tx);
    if (row === undefined) return undefined;
    const left = row.uncertain || row.acceptedAt !== null;
    return this.#step(tx, row, { state: left ? 'expired' : 'cancelled', uncertain: left, cancelRequested: false });
  }

  /** How many are open, for one host or for all; counts no further than `limit`. */
  countOpen(host?: HostId, limit?: number): number {
    return this.#store.count('outbox_index', {
      ...under(host === undefined ? 'h/' : `h/${host}/`),
      ...(limit === undefined ? {} : { limit }),
    });
  }

  /** Marks open entries, read in this transaction, as about to leave: durable before their bytes do. Returns those that were not before. */
  leaving(tx: StoreTransaction, rows: readonly Sent[]): Sent[] {
    const resting = rows.filter((row) => row.state !== 'forwarding' || !row.uncertain);
    return resting.map((row) => this.#step(tx, row, { state: 'forwarding', uncertain: true }));
  }

  /** The receiver has answered `accepted`, or told more: takes a verified receipt. False when it says nothing new or nothing of ours. */
  receipt(tx: StoreTransaction, receipt: Receipt): Sent | undefined {
    const row = this.get(receipt.id, tx);
    if (row === undefined || row.host !== receipt.receiver) return undefined;
    if (Buffer.compare(row.digest, receipt.digest) !== 0)
      throw new AxError('key_conflict', 'the receipt names another message under this id');
    // An answer that was overtaken on its way tells an older state: an end that is known stays.
    const end = row.receiver !== null && RECEIVER_ENDS.has(row.receiver.state) && !RECEIVER_ENDS.has(receipt.state) ? row.receiver : null;
    const mirror: Mirror = {
      state: end?.state ?? receipt.state,
      at: end?.at ?? receipt.at,
      handedOut: row.receiver?.handedOut === true || receipt.outcome === 'too_late' || receipt.outcome === 'fetched',
      handedOutAt: row.receiver?.handedOutAt ?? (receipt.outcome === 'too_late' && !receipt.certain ? receipt.at : null),
      liveSession: receipt.liveSession,
      notice: row.receiver?.notice ?? null,
    };
    const told = { uncertain: false, storedAs: receipt.storedAs, receiver: mirror, cause: null, acceptedAt: row.acceptedAt ?? receipt.at };
    if (receipt.outcome === 'fetched')
      return this.#step(tx, row, { ...told, state: 'fetched', fetchedAt: receipt.at, cancelRequested: false });
    if (receipt.outcome === 'expired') {
      return this.#step(tx, row, {
        ...told,
        state: 'expired',
        cancelRequested: false,
        cause: { code: 'expired', message: 'nobody read it within its retention on the receiving host', at: receipt.at },
      });
    }
    if (receipt.outcome === 'cancelled')
      return this.#step(tx, row, { ...told, acceptedAt: row.acceptedAt, state: 'cancelled', cancelRequested: false });
    const stays = row.state === 'fetched' || row.state === 'cancelled' || (row.state === 'expired' && end !== null);
    const next: SenderState = stays ? row.state : 'accepted';
    const lost = receipt.outcome === 'too_late';
    return this.#step(tx, row, {
      ...told,
      state: next,
      ...(lost
        ? {
            cancelRequested: false,
            cause: {
              code: 'too_late',
              message: receipt.certain ? 'the cancel came after pickup' : 'the cancel came after the body was handed out',
              at: receipt.at,
            },
          }
        : {}),
    });
  }

  /** Mirrors unsigned progress; decides nothing. Undefined when it is no news. */
  progress(tx: StoreTransaction, host: HostId, progress: Progress): Sent | undefined {
    const row = this.get(progress.id, tx);
    if (row === undefined || row.host !== host || row.state !== 'accepted') return undefined;
    const old = row.receiver;
    if (old !== null && RECEIVER_ENDS.has(old.state) && !RECEIVER_ENDS.has(progress.state)) return undefined; // overtaken on its way
    const receiver: Mirror = {
      state: progress.state,
      at: progress.at,
      handedOut: progress.handedOut || old?.handedOut === true,
      handedOutAt: old?.handedOutAt ?? (progress.handedOut && progress.state !== 'fetched' ? progress.at : null),
      liveSession: progress.liveSession,
      notice: progress.notice ?? old?.notice ?? null,
    };
    if (
      old !== null &&
      old.state === receiver.state &&
      old.handedOut === receiver.handedOut &&
      old.notice === receiver.notice &&
      old.liveSession === receiver.liveSession
    )
      return undefined;
    return this.#step(tx, row, { receiver });
  }

  /** The receiver said "not now". `certain`: no earlier attempt's copy can still be on its way. */
  defer(tx: StoreTransaction, id: MessageId, certain: boolean, cause: Cause): Sent | undefined {
    const row = this.get(id, tx);
    if (row === undefined || !senderMay(row.state, 'deferred') || row.acceptedAt !== null) return undefined;
    if (certain && row.cancelRequested) return this.#step(tx, row, { state: 'cancelled', uncertain: false, cancelRequested: false, cause });
    return this.#step(tx, row, { state: 'deferred', uncertain: row.uncertain && !certain, cause });
  }

  /** The receiver refused for good. A refusal never overwrites an acceptance, and nothing later overwrites a refusal. */
  refuse(tx: StoreTransaction, id: MessageId, cause: Cause): Sent | undefined {
    const row = this.get(id, tx);
    if (row === undefined || row.acceptedAt !== null || row.state === 'refused' || !senderMay(row.state, 'refused')) return undefined;
    return this.#step(tx, row, { state: row.cancelRequested ? 'cancelled' : 'refused', uncertain: false, cause, cancelRequested: false });
  }

  /** An attempt ended without an answer. `certain`: neither it nor an earlier one can have left anything with the peer. */
  unanswered(tx: StoreTransaction, id: MessageId, certain: boolean, cause: Cause): Sent | undefined {
    const row = this.get(id, tx);
    if (row === undefined || row.state !== 'forwarding') return undefined;
    if (certain && row.cancelRequested) return this.#step(tx, row, { state: 'cancelled', uncertain: false, cancelRequested: false, cause });
    return this.#step(tx, row, certain ? { state: 'queued', uncertain: false, cause } : { cause });
  }

  /**
   * Withdraws a message: `cancelled` when it never left, else `cancel_requested` (the receiver decides). AxError `too_late` when it
   * ended or its hand-out is known, `invalid_state` when it was refused or has expired for certain. `isNew`: it was not asked before.
   */
  cancel(tx: StoreTransaction, id: MessageId): { readonly row: Sent; readonly isNew: boolean } {
    const row = this.get(id, tx);
    if (row === undefined) throw new AxError('message_not_found', 'there is no such message');
    if (row.state === 'cancelled' || row.cancelRequested) return { row, isNew: false };
    if (row.state === 'fetched')
      throw new AxError('too_late', 'the message was picked up', { details: { at: row.fetchedAt, certain: true } });
    if (row.receiver?.handedOut === true)
      throw new AxError('too_late', 'the body was handed out on the receiving host', { details: { at: row.receiver.at, certain: false } });
    if (row.state === 'refused' || (row.state === 'expired' && !row.uncertain))
      throw new AxError('invalid_state', `the message is ${row.state}; there is nothing to cancel`, { details: { state: row.state } });
    const left = row.uncertain || row.acceptedAt !== null;
    return { row: this.#step(tx, row, left ? { cancelRequested: true } : { state: 'cancelled' }), isNew: true };
  }

  /** The receiver would not take the cancel: what was asked is dropped, the message stays as it is. */
  cancelRefused(tx: StoreTransaction, id: MessageId, cause: Cause): void {
    const row = this.get(id, tx);
    if (row !== undefined) this.#step(tx, row, { cancelRequested: false, cause });
  }

  /** Ends an open entry whose forwarding deadline has passed; undefined when it has not. */
  expire(tx: StoreTransaction, id: MessageId, now: number): Sent | undefined {
    const row = this.get(id, tx);
    if (row === undefined || row.deadline > this.#running() || !['queued', 'forwarding', 'deferred'].includes(row.state)) return undefined;
    const cause = row.cause ?? { code: 'expired', message: 'the receiving host was not reached before the deadline', at: now };
    return this.#step(tx, row, { state: 'expired', cause });
  }

  /** Open entries whose deadline has passed, at most `limit`. */
  overdue(limit: number): Sent[] {
    const due = this.#store.range('outbox_index', { start: 'd/', end: `d/${seqKey(this.#running() + 1)}`, limit });
    return due.flatMap((entry) => getRow<Sent>(this.#store, 'outbox', entry.key.slice(entry.key.lastIndexOf('/') + 1)) ?? []);
  }

  /** Marks the local copy as picked up (both ends are this host). */
  settleLocal(tx: StoreTransaction, id: MessageId, state: 'fetched' | 'expired' | 'cancelled', at: number): void {
    const row = this.get(id, tx);
    if (row !== undefined && row.local && senderMay(row.state, state))
      this.#step(tx, row, { state, ...(state === 'fetched' ? { fetchedAt: at } : {}) });
  }

  /** Forgets entries that ended long ago; at most `limit`. Returns how many. */
  prune(tx: StoreTransaction, limit: number): number {
    const due = tx.range('outbox_index', { start: 'p/', end: `p/${seqKey(this.#running())}`, limit });
    for (const entry of due) {
      const seq = entry.key.slice(entry.key.lastIndexOf('/') + 1);
      const row = getRow<Sent>(tx, 'outbox', seq);
      tx.remove('outbox_index', entry.key);
      if (row === undefined) continue;
      this.#index(tx, row, false);
      tx.remove('outbox_index', `i/${row.id}`);
      tx.remove('outbox_body', row.id);
      tx.remove('requests', row.request.key);
      tx.remove('outbox', seq);
    }
    return due.length;
  }

  #step(tx: StoreTransaction, row: Sent, change: Partial<Sent>): Sent {
    const state = change.state ?? row.state;
    if (!senderMay(row.state, state)) return row; // a later word never undoes an end
    const ended = SENDER_ENDS.has(state);
    const next: Sent = { ...row, ...change, keptUntil: this.#keptUntil(state, SENDER_ENDS.has(row.state) ? row.keptUntil : null) };
    this.#index(tx, row, false);
    tx.put('outbox', seqKey(row.seq), pack(next));
    this.#index(tx, next, true);
    if (next.acceptedAt !== null || ended) tx.remove('outbox_body', next.id);
    return next;
  }

  /**
   * An end is kept for METADATA_RETENTION_MS from when it came. What is accepted ends with the receiver's retention at the latest; without
   * any word of that (the host was removed, or is gone for good) it is kept that much longer after the last news.
   */
  #keptUntil(state: SenderState, sinceEnd: number | null): number | null {
    if (SENDER_ENDS.has(state)) return sinceEnd ?? this.#running() + METADATA_RETENTION_MS;
    return state === 'accepted' ? this.#running() + MAX_RETENTION_MS + METADATA_RETENTION_MS : null;
  }

  #index(tx: StoreTransaction, row: Sent, present: boolean): void {
    const seq = seqKey(row.seq);
    const open = ['queued', 'forwarding', 'deferred'].includes(row.state);
    const keys = [
      ...(open && !row.local ? [`h/${row.host}/${seq}`, `d/${seqKey(row.deadline)}/${seq}`] : []),
      ...(row.state === 'accepted' && !row.local ? [`w/${row.host}/${seq}`] : []),
      ...(row.cancelRequested && !row.local ? [`c/${row.host}/${seq}`] : []),
      ...(row.keptUntil === null ? [] : [`p/${seqKey(row.keptUntil)}/${seq}`]),
    ];
    for (const key of keys) {
      if (present) tx.put('outbox_index', key, NOTHING);
      else tx.remove('outbox_index', key);
    }
  }

  #rows(prefix: string, after: number, limit: number, reader: StoreReader): Sent[] {
    const keys = reader.range('outbox_index', { start: `${prefix}${seqKey(after + 1)}`, end: `${prefix}~`, limit });
    return keys.flatMap((entry) => getRow<Sent>(reader, 'outbox', entry.key.slice(entry.key.lastIndexOf('/') + 1)) ?? []);
  }
}
