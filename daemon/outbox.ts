/**
 * The outbox: every message sent from this host, its delivery state on the sender's side, and the body until it is settled.
 *
 * Owns the tables `outbox` (rows by sequence), `outbox_index`, `outbox_body` and `requests`. Index keys: `i/ID` finds a row; `h/HOST/SEQ`
 * is open (not accepted, not ended), `a/WHERE/SEQ` was sent from a folder or by an agent, `w/HOST/SEQ` accepted and not ended,
 * `u/HOST/SEQ` expired without an answer to an attempt, `c/HOST/SEQ` has a cancel to be asked, `f/SEQ` was refused or expired, `s/STATE/SEQ`
 * is in that state (but for `isByState`), `p/RUN/SEQ` is ended and pruned from that running time on. The body stays until the message was
 * accepted or cancelled, so that its owner can have a dead one tried again. It is under `ID`, each of several pieces under `ID/INDEX`.
 * Every step is checked against the table of states.
 * Invariant: an entry whose bytes may have left without an answer says `uncertain`, and that is durable before they leave.
 */
import { AxError } from '../protocol/errors.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { DEFAULT_DEADLINE_MS, MAX_DEADLINE_MS, MAX_RETENTION_MS, METADATA_RETENTION_MS } from '../protocol/limits.ts';
import type { Progress, Receipt } from '../protocol/receipt.ts';
import { SENDER_ENDS, senderMay } from '../protocol/states.ts';
import type { SenderState } from '../protocol/states.ts';
import { afterProgress, afterReceipt, indexKeys, openStates, sentFrom, sentFromKeys } from './sent-row.ts';
import type { Cause, NewSent, OpenState, Sent, SentFrom } from './sent-row.ts';
import { count, counted, tallied, tally } from './store/counts.ts';
import type { Tally } from './store/counts.ts';
import { getRow, groupsUnder, KnownRows, newestUnder, nextSeq, NOTHING, oldestUnder, pack, pieceKey, seqKey, under } from './store/rows.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

/** Rows kept decoded: a few windows of what is on its way, and what has just been answered. */
const KNOWN = 512;

export class Outbox {
  readonly #known = new KnownRows<Sent>(KNOWN);
  readonly #store: Store;
  readonly #running: () => number;

  constructor(store: Store, running: () => number) {
    this.#store = store;
    this.#running = running;
  }

  /** Stores a new message with its sealed body (null: its pieces lie there already, or it stays on this host). `forwarding` when bytes may leave as soon as this transaction runs. */
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
    this.#put(tx, row);
    tx.put('outbox_index', `i/${row.id}`, pack({ seq: row.seq }));
    tx.put('requests', row.request.key, pack({ id: row.id }));
    if (body !== null) tx.put('outbox_body', row.id, body);
    for (const key of sentFromKeys(row)) tx.put('outbox_index', key, NOTHING);
    this.#index(tx, undefined, row);
    return row;
  }

  get(id: MessageId, reader: StoreReader = this.#store): Sent | undefined {
    const pointer = getRow<{ seq: number }>(reader, 'outbox_index', `i/${id}`);
    return pointer === undefined ? undefined : this.#row(seqKey(pointer.seq), reader);
  }

  /** The row of that message as it is now, when its sequence is known already: `get` looks that up first. */
  now({ id, seq }: Pick<Sent, 'id' | 'seq'>, reader: StoreReader = this.#store): Sent | undefined {
    const row = this.#row(seqKey(seq), reader);
    return row?.id === id ? row : undefined;
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

  /** The sealed body, or one of its pieces where there are several. */
  body(id: MessageId, index?: number): Uint8Array | undefined {
    return this.#store.get('outbox_body', index === undefined ? id : pieceKey(id, index));
  }

  /** Rows newest first, from below `before`; with `from` only those sent from that folder, or by an agent of one of these names. */
  page(before: number | undefined, limit: number, from?: SentFrom): Sent[] {
    const end = before === undefined ? '~' : seqKey(before);
    if (from === undefined)
      return this.#store.range('outbox', { end, reverse: true, limit }).map((entry) => this.#known.read(entry.key, entry.value));
    return this.#newest([sentFrom('w', from.workspace), ...from.agents.map((agent) => sentFrom('n', agent.toLowerCase()))], before, limit);
  }

  /**
   * Rows in one state, newest first, from below `before`. Of `forwarding` nothing but local rows: see `open`. Costs what it gives, and
   * one look for each host with accepted messages.
   */
  inState(state: SenderState, before: number | undefined, limit: number): Sent[] {
    const hosts = state === 'accepted' ? groupsUnder(this.#store, 'outbox_index', 'w/') : [];
    return this.#newest([`s/${state}/`, ...hosts], before, limit);
  }

  #newest(prefixes: readonly string[], before: number | undefined, limit: number): Sent[] {
    const seqs = newestUnder(this.#store, 'outbox_index', prefixes, before, limit);
    return seqs.flatMap((seq) => this.#row(seq, this.#store) ?? []);
  }

  /** Open entries of a host, oldest first, after sequence `after`. */
  open(host: HostId, after: number, limit: number, reader: StoreReader = this.#store): Sent[] {
    return this.#rows(`h/${host}/`, after, limit, reader);
  }

  /** Entries the receiver has accepted and not ended, oldest first. */
  accepted(host: HostId, after: number, limit: number): Sent[] {
    return this.#rows(`w/${host}/`, after, limit, this.#store);
  }

  /** Entries that expired while an attempt had no answer, oldest first: the receiver may have taken them all the same. */
  expiredUncertain(host: HostId, after: number, limit: number): Sent[] {
    return this.#rows(`u/${host}/`, after, limit, this.#store);
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
    return [...seqs].flatMap((seq) => this.#row(seq, tx) ?? []);
  }

  /** Ends an entry whose host is forgotten: cancelled when it never left, else expired and uncertain. */
  abandon(tx: StoreTransaction, id: MessageId): Sent | undefined {
    const row = this.get(id, tx);
    if (row === undefined) return undefined;
    const left = row.uncertain || row.acceptedAt !== null;
    return this.#step(tx, row, { state: left ? 'expired' : 'cancelled', uncertain: left, cancelRequested: false });
  }

  /** The hosts for which something is open. */
  openHosts(): HostId[] {
    return groupsUnder(this.#store, 'outbox_index', 'h/').map((group) => group.slice(2, -1) as HostId);
  }

  /** The one that is open for the longest. */
  oldestOpen(): Sent | undefined {
    const seq = oldestUnder(this.#store, 'outbox_index', 'h/');
    return seq === undefined ? undefined : this.#row(seq, this.#store);
  }

  /** How many are open for a host. */
  countOpen(host: HostId): number {
    return counted(this.#store, 'outbox_index', `h/${host}/`);
  }

  /** How many are open in all, by state, and how many of them are uncertain. */
  tally(): Tally<OpenState> {
    return tallied(this.#store, 'outbox', () => this.#walk(this.#store));
  }

  #walk(reader: StoreReader): Tally<OpenState> {
    const counts = { queued: 0, forwarding: 0, deferred: 0, uncertain: 0 };
    for (const entry of reader.range('outbox_index', under('h/'))) {
      const row = this.#row(entry.key.slice(entry.key.lastIndexOf('/') + 1), reader);
      for (const state of row === undefined ? [] : openStates(row)) counts[state]++;
    }
    return counts;
  }

  /** Marks open entries, read in this transaction, as about to leave: durable before their bytes do. Returns those that were not before. */
  leaving(tx: StoreTransaction, rows: readonly Sent[]): Sent[] {
    const resting = rows.filter((row) => row.state !== 'forwarding' || !row.uncertain);
    return resting.map((row) => this.#step(tx, row, { state: 'forwarding', uncertain: true }));
  }

  /** The receiver has answered `accepted`, or told more: takes a verified receipt for a row as this transaction read it. Undefined when it is not of the row's receiver. */
  receipt(tx: StoreTransaction, row: Sent, receipt: Receipt): Sent | undefined {
    if (row.host !== receipt.receiver) return undefined;
    if (Buffer.compare(row.digest, receipt.digest) !== 0)
      throw new AxError('key_conflict', 'the receipt names another message under this id');
    return this.#step(tx, row, afterReceipt(row, receipt));
  }

  /** Mirrors unsigned progress as afterProgress takes it; decides nothing. Undefined when it is no news. */
  progress(tx: StoreTransaction, host: HostId, progress: Progress): Sent | undefined {
    const row = this.get(progress.id, tx);
    if (row === undefined || row.host !== host) return undefined;
    const receiver = afterProgress(row, progress);
    return receiver === undefined ? undefined : this.#step(tx, row, { receiver });
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

  /** Refused and expired entries, newest first, from below `before`. */
  dead(before: number | undefined, limit: number): Sent[] {
    const range = { start: 'f/', end: before === undefined ? 'f/~' : `f/${seqKey(before)}`, reverse: true, limit };
    return this.#store.range('outbox_index', range).flatMap((entry) => this.#row(entry.key.slice(2), this.#store) ?? []);
  }

  /**
   * Lets a refused or expired entry go again under the same id, so that the receiver still knows a copy it took; forwarding ends
   * MAX_DEADLINE_MS after the send at the latest. AxError `message_not_found`, `invalid_state`, `expired` (that time is over).
   */
  retry(tx: StoreTransaction, id: MessageId): Sent {
    const row = this.get(id, tx);
    if (row === undefined) throw new AxError('message_not_found', 'there is no such message');
    if (row.state !== 'refused' && row.state !== 'expired')
      throw new AxError('invalid_state', `the message is ${row.state}; only a refused or expired one is tried again`, {
        details: { state: row.state },
      });
    const deadline = this.#retryUntil(row);
    const gone = this.#whyGone(row, tx);
    if (gone !== undefined)
      throw new AxError('invalid_state', gone, { fix: 'send it again as a new message', details: { state: row.state } });
    if (deadline <= this.#running())
      throw new AxError('expired', 'a message is tried for 14 d at most, and this one is older', { fix: 'send it again as a new message' });
    return this.#step(tx, row, { state: 'queued', deadline, cause: null, cancelRequested: false });
  }

  /** Would `retry` take this row now? */
  canRetry(row: Sent): boolean {
    const isDead = row.state === 'refused' || row.state === 'expired';
    return isDead && this.#whyGone(row, this.#store) === undefined && this.#retryUntil(row) > this.#running();
  }

  /** Why a dead entry has nothing left that could go again; undefined when it has. */
  #whyGone({ id, acceptedAt, local }: Sent, reader: StoreReader): string | undefined {
    if (local) return 'the message was for this host itself, and its time here is over; nothing is left to try again';
    if (acceptedAt !== null) return 'the receiving host took this message and its time there is over; nothing is left to try again';
    return this.#hasBody(reader, id) ? undefined : 'the body of this message is not kept any more; nothing is left to try again';
  }

  #retryUntil(row: Sent): number {
    return Math.min(row.createdRan + MAX_DEADLINE_MS, this.#running() + DEFAULT_DEADLINE_MS);
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
    return due.flatMap((entry) => this.#row(entry.key.slice(entry.key.lastIndexOf('/') + 1), this.#store) ?? []);
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
      const row = this.#row(seq, tx);
      tx.remove('outbox_index', entry.key);
      if (row === undefined) continue;
      this.#index(tx, row, undefined);
      for (const key of sentFromKeys(row)) tx.remove('outbox_index', key);
      tx.remove('outbox_index', `i/${row.id}`);
      this.#removeBody(tx, row);
      tx.remove('requests', row.request.key);
      tx.remove('outbox', seq);
    }
    return due.length;
  }

  #step(tx: StoreTransaction, row: Sent, change: Partial<Sent>): Sent {
    const state = change.state ?? row.state;
    if (!senderMay(row.state, state)) return row; // a later word never undoes an end
    const next: Sent = { ...row, ...change, keptUntil: this.#keptUntil(state, SENDER_ENDS.has(row.state) ? row.keptUntil : null) };
    this.#index(tx, row, next);
    this.#put(tx, next);
    if (next.acceptedAt !== null || state === 'cancelled' || state === 'fetched' || next.local) this.#removeBody(tx, next);
    return next;
  }

  #removeBody(tx: StoreTransaction, { id, pieces = 1 }: Sent): void {
    if (pieces === 1) return tx.remove('outbox_body', id);
    if (this.#hasBody(tx, id)) for (let index = 0; index < pieces; index++) tx.remove('outbox_body', pieceKey(id, index));
  }

  #hasBody(reader: StoreReader, id: MessageId): boolean {
    return reader.count('outbox_body', { start: id, end: `${id}~`, limit: 1 }) > 0;
  }

  /**
   * An end is kept for METADATA_RETENTION_MS from when it came. What is accepted ends with the receiver's retention at the latest; without
   * any word of that (the host was removed, or is gone for good) it is kept that much longer after the last news.
   */
  #keptUntil(state: SenderState, sinceEnd: number | null): number | null {
    if (SENDER_ENDS.has(state)) return sinceEnd ?? this.#running() + METADATA_RETENTION_MS;
    return state === 'accepted' ? this.#running() + MAX_RETENTION_MS + METADATA_RETENTION_MS : null;
  }

  /** Brings index and counts from what a row was to what it becomes; before the row itself is put. */
  #index(tx: StoreTransaction, from: Sent | undefined, to: Sent | undefined): void {
    const [old, next] = [from === undefined ? [] : indexKeys(from), to === undefined ? [] : indexKeys(to)];
    tally(tx, 'outbox', from === undefined ? [] : openStates(from), to === undefined ? [] : openStates(to), () => this.#walk(tx));
    const change = (key: string, by: 1 | -1): void => {
      if (key.startsWith('h/')) count(tx, 'outbox_index', key.slice(0, key.lastIndexOf('/') + 1), by, true);
      if (by === 1) tx.put('outbox_index', key, NOTHING);
      else tx.remove('outbox_index', key);
    };
    for (const key of old) if (!next.includes(key)) change(key, -1);
    for (const key of next) if (!old.includes(key)) change(key, 1);
  }

  #put(tx: StoreTransaction, row: Sent): void {
    const seq = seqKey(row.seq);
    tx.put('outbox', seq, this.#known.pack(seq, row));
  }

  #row(seq: string, reader: StoreReader): Sent | undefined {
    return this.#known.get(reader, 'outbox', seq);
  }

  #rows(prefix: string, after: number, limit: number, reader: StoreReader): Sent[] {
    const keys = reader.range('outbox_index', { start: `${prefix}${seqKey(after + 1)}`, end: `${prefix}~`, limit });
    return keys.flatMap((entry) => this.#row(entry.key.slice(entry.key.lastIndexOf('/') + 1), reader) ?? []);
  }
}
