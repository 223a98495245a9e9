/**
 * The inbox: every message this host has accepted, exactly once, and its delivery state on the receiver's side.
 *
 * Owns the tables `inbox` (rows by the receiver's own sequence), `inbox_index`, `inbox_body` and `seen`. Index keys: `i/ID/HOST`
 * finds a row; `o/ADDRESS/SEQ` is unread under a logical address; of these, what may cause notices (no notes) is also under
 * `n/ADDRESS/SENDER/SEQ`, and under `m/ADDRESS/SESSION/SENDER/SEQ` when it names a session; `x/RUN/SEQ` ends by retention at that
 * running time. `seen` outlives the rows: a late copy is still known. Identity is (sender, id) with the envelope payload's digest.
 * Invariant: `fetched` only after a hand-out that was confirmed; the first copy decides, every other is a duplicate or a conflict.
 */
import { AxError } from '../protocol/errors.ts';
import type { HarnessName } from '../protocol/address.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { MAX_TOMBSTONES_PER_PEER, METADATA_RETENTION_MS, RETRY_CAP_MS } from '../protocol/limits.ts';
import { receiverMay } from '../protocol/states.ts';
import type { MessageKind, NoticeOutcome, ReceiverState } from '../protocol/states.ts';
import { addressKey, getRow, nextSeq, NOTHING, pack, seqKey, under, unpack } from './store/rows.ts';
import { weigh, weightOf } from './store/weights.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

/** What became of the last notice that spoke for a message; `detail` in words fixed by ax. */
export interface RowNotice {
  readonly outcome: NoticeOutcome;
  readonly at: number;
  readonly detail?: string;
}

/** One sender's unread messages (no notes) at an address; `session`: only those that name it. */
export interface Scope {
  readonly harness: string;
  readonly workspace: string;
  readonly sender: HostId;
  readonly session: string | null;
}

export interface HandOut {
  readonly token: string;
  readonly at: number;
  readonly session: string;
}

export interface Received {
  readonly seq: number;
  readonly id: MessageId;
  readonly sender: HostId;
  readonly state: ReceiverState;
  readonly storedAs: MessageKind;
  readonly signed: Uint8Array;
  readonly digest: Uint8Array;
  readonly bytes: number;
  readonly harness: HarnessName;
  /** Canonical. */
  readonly workspace: string;
  /** The session the send named, if any. */
  readonly hint: string | null;
  readonly sentAt: number;
  readonly receivedAt: number;
  /** Running time, ms, at which the body goes. */
  readonly expires: number;
  /** Hand-outs to the attached session, newest last, at most 8. */
  readonly handOuts: readonly HandOut[];
  readonly handedOutAt: number | null;
  readonly fetchedAt: number | null;
  readonly notice: RowNotice | null;
  readonly bodyKept: boolean;
}

export type NewReceived = Omit<Received, 'seq' | 'handOuts' | 'handedOutAt' | 'fetchedAt' | 'notice' | 'bodyKept'>;

/** What is remembered of a (sender, id): its digest and row, or a tombstone that a cancel left. */
interface Seen {
  readonly digest: Uint8Array;
  readonly seq: number;
  readonly tombstone: boolean;
  readonly ran: number;
}

export type Admission =
  | { readonly kind: 'new'; readonly row: Received }
  | { readonly kind: 'duplicate'; readonly row: Received | undefined }
  | { readonly kind: 'cancelled' };

const KEPT_HANDOUTS = 8;

export class Inbox {
  readonly #store: Store;
  readonly #running: () => number;

  constructor(store: Store, running: () => number) {
    this.#store = store;
    this.#running = running;
  }

  /**
   * Takes a message or finds that it was taken. The caller answers only after this transaction's flush, a duplicate's as well.
   * AxError `key_conflict` (same id, other content), `limit` (too much waits from this sender).
   */
  accept(tx: StoreTransaction, fresh: NewReceived, body: Uint8Array): Admission {
    const seen = getRow<Seen>(tx, 'seen', `${fresh.sender}/${fresh.id}`);
    if (seen !== undefined) {
      if (seen.tombstone) return { kind: 'cancelled' };
      if (Buffer.compare(seen.digest, fresh.digest) !== 0)
        throw new AxError('key_conflict', 'this id already names another message from that host');
      return { kind: 'duplicate', row: getRow<Received>(tx, 'inbox', seqKey(seen.seq)) };
    }
    weigh(tx, 'waiting', fresh.sender, 1, fresh.bytes);
    weigh(tx, 'kept', fresh.sender, 1, weightOf(fresh.signed) + body.length);
    const row: Received = {
      ...fresh,
      seq: nextSeq(tx, 'inbox'),
      handOuts: [],
      handedOutAt: null,
      fetchedAt: null,
      notice: null,
      bodyKept: true,
    };
    tx.put('inbox', seqKey(row.seq), pack(row));
    tx.put('inbox_body', seqKey(row.seq), body);
    tx.put('inbox_index', `i/${row.id}/${row.sender}`, pack({ seq: row.seq }));
    tx.put('inbox_index', `x/${seqKey(row.expires)}/${seqKey(row.seq)}`, NOTHING);
    for (const key of openKeys(row)) tx.put('inbox_index', key, NOTHING);
    this.#remember(tx, row.sender, row.id, { digest: row.digest, seq: row.seq, tombstone: false, ran: this.#running() });
    return { kind: 'new', row };
  }

  get(sender: HostId, id: MessageId, reader: StoreReader = this.#store): Received | undefined {
    const pointer = getRow<{ seq: number }>(reader, 'inbox_index', `i/${id}/${sender}`);
    return pointer === undefined ? undefined : getRow<Received>(reader, 'inbox', seqKey(pointer.seq));
  }

  /** Rows whose id begins with `prefix`; two hosts may use the same id. */
  find(prefix: string, limit: number, reader: StoreReader = this.#store): Received[] {
    return reader
      .range('inbox_index', { ...under(`i/${prefix}`), limit })
      .flatMap((entry) => getRow<Received>(reader, 'inbox', seqKey(unpack<{ seq: number }>(entry.value).seq)) ?? []);
  }

  body(row: Received): Uint8Array | undefined {
    return this.#store.get('inbox_body', seqKey(row.seq));
  }

  page(before: number | undefined, limit: number): Received[] {
    return this.#store
      .range('inbox', { ...(before === undefined ? {} : { end: seqKey(before) }), reverse: true, limit })
      .map((entry) => unpack<Received>(entry.value));
  }

  /** Unread messages under an address, oldest first. */
  unread(harness: string, workspace: string, limit: number, reader: StoreReader = this.#store): Received[] {
    return reader
      .range('inbox_index', { ...under(`o/${addressKey(harness, workspace)}/`), limit })
      .flatMap((entry) => getRow<Received>(reader, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1)) ?? []);
  }

  /** Sequence of the newest unread message under an address; 0 when there is none. */
  newestUnread(harness: string, workspace: string, reader: StoreReader = this.#store): number {
    const last = reader.range('inbox_index', { ...under(`o/${addressKey(harness, workspace)}/`), reverse: true, limit: 1 })[0];
    return last === undefined ? 0 : Number(last.key.slice(last.key.lastIndexOf('/') + 1));
  }

  countUnread(harness: string, workspace: string, reader: StoreReader = this.#store): number {
    return reader.count('inbox_index', under(`o/${addressKey(harness, workspace)}/`));
  }

  /** The hosts with unread messages (no notes) under an address, each once, however many messages there are. */
  senders(harness: string, workspace: string, reader: StoreReader = this.#store): HostId[] {
    const { start, end } = under(`n/${addressKey(harness, workspace)}/`);
    const found: HostId[] = [];
    for (let from = start; ; from = `${start}${found.at(-1)}/~`) {
      const entry = reader.range('inbox_index', { start: from, end, limit: 1 })[0];
      if (entry === undefined) return found;
      found.push(entry.key.slice(start.length, entry.key.lastIndexOf('/')) as HostId);
    }
  }

  /** The oldest (or the newest) rows of a scope, oldest of them first. */
  scoped(scope: Scope, limit: number, side: 'oldest' | 'newest' = 'oldest', reader: StoreReader = this.#store): Received[] {
    const keys = reader.range('inbox_index', { ...under(scopePrefix(scope)), reverse: side === 'newest', limit });
    const rows = keys.flatMap((entry) => getRow<Received>(reader, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1)) ?? []);
    return side === 'newest' ? rows.toReversed() : rows;
  }

  countScoped(scope: Scope, reader: StoreReader = this.#store): number {
    return reader.count('inbox_index', under(scopePrefix(scope)));
  }

  /** The addresses that have unread messages, each once. */
  unreadAddresses(): { readonly harness: HarnessName; readonly workspace: string }[] {
    const found: { harness: HarnessName; workspace: string }[] = [];
    let start = 'o/';
    for (;;) {
      const entry = this.#store.range('inbox_index', { start, end: 'o/~', limit: 1 })[0];
      if (entry === undefined) return found;
      const row = getRow<Received>(this.#store, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1));
      if (row !== undefined) found.push({ harness: row.harness, workspace: row.workspace });
      start = `${entry.key.slice(0, entry.key.lastIndexOf('/'))}/~`;
    }
  }

  /** Counts of unread messages by state, over all addresses; looks at no more than `limit` rows. */
  tally(limit: number): { awaiting_setup: number; available: number; handed_out: number } {
    const counts = { awaiting_setup: 0, available: 0, handed_out: 0 };
    for (const entry of this.#store.range('inbox_index', { ...under('o/'), limit })) {
      const row = getRow<Received>(this.#store, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1));
      if (row === undefined) continue;
      if (row.handedOutAt !== null) counts.handed_out++;
      else if (row.state === 'awaiting_setup') counts.awaiting_setup++;
      else counts.available++;
    }
    return counts;
  }

  /** An agent was registered (or removed): its address's unread messages become available (or wait for setup again). */
  setAvailable(tx: StoreTransaction, harness: string, workspace: string, available: boolean): Received[] {
    const to = available ? 'available' : 'awaiting_setup';
    return this.unread(harness, workspace, Number.MAX_SAFE_INTEGER, tx)
      .filter((row) => row.state !== to)
      .map((row) => this.#step(tx, row, { state: to }));
  }

  /** Hands the body out to the attached session: durable before it leaves. AxError `expired`, `invalid_state`, `message_not_found`. */
  handOut(tx: StoreTransaction, sender: HostId, id: MessageId, handOut: HandOut): Received {
    const row = this.require(tx, sender, id);
    if (row.state === 'awaiting_setup') throw new AxError('invalid_state', 'no agent is set up for this message');
    return this.#step(tx, row, { handOuts: [...row.handOuts, handOut].slice(-KEPT_HANDOUTS), handedOutAt: row.handedOutAt ?? handOut.at });
  }

  /** The row of a message whose body is still here. AxError `message_not_found`, `expired`, `invalid_state` (cancelled). */
  require(reader: StoreReader, sender: HostId, id: MessageId): Received {
    const row = this.get(sender, id, reader);
    if (row === undefined) throw new AxError('message_not_found', 'there is no such message');
    if (row.state === 'cancelled')
      throw new AxError('invalid_state', 'the sender has cancelled this message', { details: { state: 'cancelled' } });
    if (row.state === 'expired' || !row.bodyKept || row.expires <= this.#running())
      throw new AxError('expired', 'the retention of this message has ended; its body is gone', { details: { state: row.state } });
    return row;
  }

  /** The reader has it whole. Returns the row and whether this made it `fetched`. AxError `invalid_argument` when that hand-out never was. */
  confirm(
    tx: StoreTransaction,
    sender: HostId,
    id: MessageId,
    token: string,
    now: number,
  ): { readonly row: Received; readonly first: boolean } {
    const row = this.get(sender, id, tx);
    if (row === undefined) throw new AxError('message_not_found', 'there is no such message');
    if (!row.handOuts.some((handOut) => handOut.token === token))
      throw new AxError('invalid_argument', 'this message was not handed out under that token');
    if (row.state === 'fetched') return { row, first: false };
    if (!receiverMay(row.state, 'fetched'))
      throw new AxError('invalid_state', `the message is ${row.state}`, { details: { state: row.state } });
    return { row: this.#step(tx, row, { state: 'fetched', fetchedAt: now }), first: true };
  }

  setNotice(tx: StoreTransaction, sender: HostId, id: MessageId, notice: RowNotice): Received | undefined {
    const row = this.get(sender, id, tx);
    return row === undefined ? undefined : this.#step(tx, row, { notice });
  }

  /**
   * The sender's cancel, decided here and now: `cancelled` (also for an id never seen: a tombstone answers the late copy),
   * or the row that shows why it is too late. `isNew`: this very call made it so. AxError `key_conflict`, `limit` (too many tombstones).
   */
  cancel(
    tx: StoreTransaction,
    sender: HostId,
    id: MessageId,
    digest: Uint8Array,
  ): { readonly outcome: 'cancelled' | 'too_late' | 'expired'; readonly row: Received | undefined; readonly isNew: boolean } {
    const seen = getRow<Seen>(tx, 'seen', `${sender}/${id}`);
    if (seen === undefined) {
      const key = `tombstones/${sender}`;
      const count = getRow<{ count: number }>(tx, 'meta', key)?.count ?? 0;
      if (count >= MAX_TOMBSTONES_PER_PEER)
        throw new AxError('limit', `more than ${MAX_TOMBSTONES_PER_PEER} cancels for unknown messages`, {
          details: { limit: MAX_TOMBSTONES_PER_PEER, retry_after_ms: RETRY_CAP_MS },
        });
      tx.put('meta', key, pack({ count: count + 1 }));
      this.#remember(tx, sender, id, { digest, seq: 0, tombstone: true, ran: this.#running() });
      return { outcome: 'cancelled', row: undefined, isNew: true };
    }
    if (seen.tombstone) return { outcome: 'cancelled', row: undefined, isNew: false };
    if (Buffer.compare(seen.digest, digest) !== 0) throw new AxError('key_conflict', 'this id names another message');
    const row = getRow<Received>(tx, 'inbox', seqKey(seen.seq));
    if (row === undefined || row.state === 'expired' || (isOpen(row) && row.handedOutAt === null && row.expires <= this.#running()))
      return { outcome: 'expired', row, isNew: false };
    if (row.state === 'cancelled') return { outcome: 'cancelled', row, isNew: false };
    if (row.state === 'fetched' || row.handedOutAt !== null) return { outcome: 'too_late', row, isNew: false };
    return { outcome: 'cancelled', row: this.#step(tx, row, { state: 'cancelled' }), isNew: true };
  }

  /** Is the retention of something over that `retire` has not ended yet? */
  isDue(): boolean {
    return this.#store.range('inbox_index', { start: 'x/', end: `x/${seqKey(this.#running())}`, limit: 1 }).length > 0;
  }

  /** Ends retention of what is due: unread ones expire, bodies go. At most `limit`; returns the rows as they became. */
  retire(tx: StoreTransaction, limit: number): Received[] {
    const due = tx.range('inbox_index', { start: 'x/', end: `x/${seqKey(this.#running())}`, limit });
    return due.flatMap((entry) => {
      tx.remove('inbox_index', entry.key);
      const row = getRow<Received>(tx, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1));
      if (row === undefined) return [];
      tx.put('inbox_index', `z/${seqKey(this.#running() + METADATA_RETENTION_MS)}/${seqKey(row.seq)}`, NOTHING);
      return [this.#step(tx, row, { bodyKept: false, ...(receiverMay(row.state, 'expired') ? { state: 'expired' as const } : {}) })];
    });
  }

  /** Forgets rows whose body went long ago and ids seen long ago; at most `limit` of each. Returns how many. */
  prune(tx: StoreTransaction, limit: number): number {
    const until = seqKey(this.#running());
    const rows = tx.range('inbox_index', { start: 'z/', end: `z/${until}`, limit });
    for (const entry of rows) {
      tx.remove('inbox_index', entry.key);
      const seq = entry.key.slice(entry.key.lastIndexOf('/') + 1);
      const row = getRow<Received>(tx, 'inbox', seq);
      if (row !== undefined) {
        tx.remove('inbox_index', `i/${row.id}/${row.sender}`);
        weigh(tx, 'kept', row.sender, -1, -weightOf(row.signed));
      }
      tx.remove('inbox', seq);
    }
    const ids = tx.range('seen', { start: '~/', end: `~/${until}`, limit });
    for (const entry of ids) {
      tx.remove('seen', entry.key);
      const key = entry.key.slice(entry.key.indexOf('/', 2) + 1);
      const seen = getRow<Seen>(tx, 'seen', key);
      const row = seen === undefined || seen.tombstone ? undefined : getRow<Received>(tx, 'inbox', seqKey(seen.seq));
      if (row !== undefined) {
        // A long retention: the id stays known as long as the row, or a late copy would be taken a second time.
        const at = Math.max(this.#running(), row.expires + METADATA_RETENTION_MS) + 1;
        tx.put('seen', `~/${seqKey(at)}/${key}`, NOTHING);
        continue;
      }
      tx.remove('seen', key);
      if (seen?.tombstone === true) {
        const counter = `tombstones/${key.slice(0, key.indexOf('/'))}`;
        tx.put('meta', counter, pack({ count: Math.max(0, (getRow<{ count: number }>(tx, 'meta', counter)?.count ?? 0) - 1) }));
      }
    }
    return rows.length + ids.length;
  }

  #step(tx: StoreTransaction, row: Received, change: Partial<Received>): Received {
    const next: Received = { ...row, ...change };
    if (!receiverMay(row.state, next.state)) throw new AxError('internal', `a message cannot go from ${row.state} to ${next.state}`);
    const wasOpen = isOpen(row);
    tx.put('inbox', seqKey(row.seq), pack(next));
    if (wasOpen && !isOpen(next)) {
      for (const key of openKeys(row)) tx.remove('inbox_index', key);
      weigh(tx, 'waiting', row.sender, -1, -row.bytes);
    }
    const body = next.bodyKept && next.state !== 'cancelled' ? undefined : tx.get('inbox_body', seqKey(row.seq));
    if (body !== undefined) {
      tx.remove('inbox_body', seqKey(row.seq));
      weigh(tx, 'kept', row.sender, 0, -body.length);
    }
    return next;
  }

  #remember(tx: StoreTransaction, sender: HostId, id: MessageId, seen: Seen): void {
    tx.put('seen', `${sender}/${id}`, pack(seen));
    tx.put('seen', `~/${seqKey(seen.ran + METADATA_RETENTION_MS)}/${sender}/${id}`, NOTHING);
  }
}

/** The index keys that a row has as long as it is unread. */
function openKeys(row: Received): string[] {
  const [address, seq] = [addressKey(row.harness, row.workspace), seqKey(row.seq)];
  return [
    `o/${address}/${seq}`,
    ...(row.storedAs === 'message' ? [`n/${address}/${row.sender}/${seq}`] : []),
    ...(row.storedAs === 'message' && row.hint !== null ? [`m/${address}/${row.hint}/${row.sender}/${seq}`] : []),
  ];
}

function scopePrefix({ harness, workspace, sender, session }: Scope): string {
  const address = addressKey(harness, workspace);
  return session === null ? `n/${address}/${sender}/` : `m/${address}/${session}/${sender}/`;
}

function isOpen(row: Received): boolean {
  return row.state === 'awaiting_setup' || row.state === 'available';
}
