/**
 * The inbox: every message this host has accepted, exactly once, and its delivery state on the receiver's side.
 *
 * Owns the tables `inbox` (rows by the receiver's own sequence), `inbox_index`, `inbox_body` and `seen`. Index keys: `i/ID/HOST`
 * finds a row; `a/ADDRESS/SEQ` is for a logical address, `o/ADDRESS/SEQ` unread there; of these, what may cause notices (no notes) is also under
 * `n/ADDRESS/SENDER/SEQ`, and under `m/ADDRESS/SESSION/SENDER/SEQ` when it names a session; `s/STATE/ADDRESS/SEQ` was read or has ended;
 * `x/RUN/SEQ` ends by retention at that running time. A body is under its row's SEQ, each of several pieces under a key of its own. `seen`
 * knows a late copy as long as there is the row, longer than one may come; a tombstone is pruned by `~/RUN/HOST/ID`, and has no row. Identity is
 * (sender, id) with the envelope payload's digest.
 * Invariant: `fetched` only after a hand-out that was confirmed; the first copy decides, every other is a duplicate or a conflict.
 */
import { AxError } from '../protocol/errors.ts';
import { HARNESSES } from '../protocol/address.ts';
import type { HarnessName } from '../protocol/address.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { DEFAULT_LIMITS, MAX_TOMBSTONES_PER_PEER, METADATA_RETENTION_MS, RETRY_CAP_MS } from '../protocol/limits.ts';
import type { Limits } from '../protocol/limits.ts';
import { receiverMay } from '../protocol/states.ts';
import type { ReceiverState } from '../protocol/states.ts';
import { addressIndex, bodyKeyOf, endedKeys, isOpen, openKeys, scopePrefix, unreadStates } from './received-row.ts';
import type { Cancelled, Confirmed, HandOut, Move, NewReceived, Received, RowNotice, Scope, Seen, UnreadState } from './received-row.ts';
import { count, counted, tallied, tally } from './store/counts.ts';
import type { Tally } from './store/counts.ts';
import { addressKey, getRow, groupsUnder, newestUnder, nextSeq, NOTHING, oldestUnder, pack, seqKey, under, unpack } from './store/rows.ts';
import { sealedBytes, weigh, weighed, weightOf, weightsOf } from './store/weights.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export type Admission =
  | { readonly kind: 'new'; readonly row: Received }
  | { readonly kind: 'duplicate'; readonly row: Received | undefined }
  | { readonly kind: 'cancelled' };

const KEPT_HANDOUTS = 8;
/** How many messages one transaction moves: some ms of work, so that others get their turn. */
const MOVED_AT_ONCE = 200;
/** The prefixes of an index by address of the addresses in one folder. */
const addressesOf = (start: string, workspace: string): string[] => HARNESSES.map((one) => `${start}${addressKey(one, workspace)}/`);
const moveKey = (harness: string, workspace: string): string => `moving/${addressKey(harness, workspace)}`;

const hasBody = (row: Received): boolean => row.bodyKept && row.state !== 'cancelled';

export class Inbox {
  readonly #store: Store;
  readonly #running: () => number;
  readonly #limits: Limits;

  constructor(store: Store, running: () => number, limits: Limits = DEFAULT_LIMITS) {
    this.#store = store;
    this.#running = running;
    this.#limits = limits;
  }

  /**
   * Takes a message or finds that it was taken; `body` is null when its pieces (`fresh.pieces`) lie in place already. The caller answers only
   * after this transaction's flush, a duplicate's as well.
   * AxError `key_conflict` (same id, other content), `limit` (too much waits from this sender).
   */
  accept(tx: StoreTransaction, fresh: NewReceived, body: Uint8Array | null): Admission {
    const seen = getRow<Seen>(tx, 'seen', `${fresh.sender}/${fresh.id}`);
    if (seen !== undefined) {
      if (seen.tombstone) return { kind: 'cancelled' };
      if (Buffer.compare(seen.digest, fresh.digest) !== 0)
        throw new AxError('key_conflict', 'this id already names another message from that host');
      return { kind: 'duplicate', row: getRow<Received>(tx, 'inbox', seqKey(seen.seq)) };
    }
    for (const [what, bytes] of weightsOf(fresh)) weigh(tx, this.#limits, what, fresh.sender, 1, bytes);
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
    if (body !== null) tx.put('inbox_body', seqKey(row.seq), body);
    tx.put('inbox_index', `i/${row.id}/${row.sender}`, pack({ seq: row.seq }));
    tx.put('inbox_index', `x/${seqKey(row.expires)}/${seqKey(row.seq)}`, NOTHING);
    tx.put('inbox_index', addressIndex(row), NOTHING);
    this.#count(tx, undefined, row);
    for (const key of openKeys(row)) tx.put('inbox_index', key, NOTHING);
    const known: Seen = { digest: row.digest, seq: row.seq, tombstone: false, ran: this.#running() };
    tx.put('seen', `${row.sender}/${row.id}`, pack(known));
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

  /** The sealed body, or a piece of it where there are several. */
  body(row: Received, index = 0): Uint8Array | undefined {
    return this.#store.get('inbox_body', bodyKeyOf(row, index));
  }

  /** Was this message neither taken nor cancelled here? AxError `limit` when so, and `accept` would have no room for it now. Changes nothing. */
  isNew(reader: StoreReader, fresh: NewReceived): boolean {
    if (reader.get('seen', `${fresh.sender}/${fresh.id}`) !== undefined) return false;
    for (const [what, bytes] of weightsOf(fresh)) weighed(reader, this.#limits, what, fresh.sender, 1, bytes);
    return true;
  }

  /** Rows newest first, from below `before`; only those for `workspace`, when it is given. */
  page(before: number | undefined, limit: number, workspace?: string): Received[] {
    if (workspace !== undefined) return this.#newest(addressesOf('a/', workspace), before, limit);
    const end = before === undefined ? '~' : seqKey(before);
    return this.#store.range('inbox', { end, reverse: true, limit }).map((entry) => unpack<Received>(entry.value));
  }

  /**
   * Rows newest first, from below `before`, of the addresses that have some in `state`; only that for `workspace`, when it is given. Of an
   * address whose unread messages are being moved, those of the other state too. Costs what it gives, and a look at each such address.
   */
  inState(state: ReceiverState, before: number | undefined, limit: number, workspace?: string): Received[] {
    const isUnread = state === 'awaiting_setup' || state === 'available';
    const start = isUnread ? 'o/' : `s/${state}/`;
    const all = workspace === undefined ? groupsUnder(this.#store, 'inbox_index', start) : addressesOf(start, workspace);
    return this.#newest(isUnread ? all.filter((prefix) => this.#hasUnread(prefix, state)) : all, before, limit);
  }

  /** May there be unread messages in that state under `o/ADDRESS/`? All are in the same, unless they are being moved. */
  #hasUnread(prefix: string, state: ReceiverState): boolean {
    const [row] = this.#newest([prefix], undefined, 1);
    return row !== undefined && (row.state === state || this.isMoving(row.harness, row.workspace));
  }

  #newest(prefixes: readonly string[], before: number | undefined, limit: number): Received[] {
    const seqs = newestUnder(this.#store, 'inbox_index', prefixes, before, limit);
    return seqs.flatMap((seq) => getRow<Received>(this.#store, 'inbox', seq) ?? []);
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
    return counted(reader, 'inbox_index', `o/${addressKey(harness, workspace)}/`);
  }

  /** The hosts with unread messages (no notes) under an address, each once, however many messages there are. */
  senders(harness: string, workspace: string, reader: StoreReader = this.#store): HostId[] {
    const start = `n/${addressKey(harness, workspace)}/`;
    return groupsUnder(reader, 'inbox_index', start).map((group) => group.slice(start.length, -1) as HostId);
  }

  /** The oldest (or the newest) rows of a scope, oldest of them first. */
  scoped(scope: Scope, limit: number, side: 'oldest' | 'newest' = 'oldest', reader: StoreReader = this.#store): Received[] {
    const keys = reader.range('inbox_index', { ...under(scopePrefix(scope)), reverse: side === 'newest', limit });
    const rows = keys.flatMap((entry) => getRow<Received>(reader, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1)) ?? []);
    return side === 'newest' ? rows.toReversed() : rows;
  }

  countScoped(scope: Scope, reader: StoreReader = this.#store): number {
    return counted(reader, 'inbox_index', scopePrefix(scope));
  }

  /** The addresses that have unread messages, each once, at most `limit`; with `behind` those that come after that one in their own order. */
  unreadAddresses(
    limit: number,
    behind: { readonly harness: string; readonly workspace: string } | null = null,
  ): { readonly harness: HarnessName; readonly workspace: string }[] {
    const after = behind === null ? undefined : `o/${addressKey(behind.harness, behind.workspace)}/`;
    const firsts = groupsUnder(this.#store, 'inbox_index', 'o/', limit, after).flatMap((prefix) => this.#newest([prefix], undefined, 1));
    return firsts.map(({ harness, workspace }) => ({ harness, workspace }));
  }

  /** The one that is unread for the longest. */
  oldestUnread(): Received | undefined {
    const seq = oldestUnder(this.#store, 'inbox_index', 'o/');
    return seq === undefined ? undefined : getRow<Received>(this.#store, 'inbox', seq);
  }

  /** Counts of unread messages by state, over all addresses. */
  tally(): Tally<UnreadState> {
    return tallied(this.#store, 'inbox', () => this.#walk(this.#store));
  }

  #walk(reader: StoreReader): Tally<UnreadState> {
    const counts = { awaiting_setup: 0, available: 0, handed_out: 0 };
    for (const entry of reader.range('inbox_index', under('o/'))) {
      const row = getRow<Received>(reader, 'inbox', entry.key.slice(entry.key.lastIndexOf('/') + 1));
      for (const state of row === undefined ? [] : unreadStates(row)) counts[state]++;
    }
    return counts;
  }

  /** Counts what is about to change; before any of it is put. */
  #count(tx: StoreTransaction, from: Received | undefined, to: Received): void {
    tally(tx, 'inbox', from === undefined ? [] : unreadStates(from), unreadStates(to), () => this.#walk(tx));
    const wasOpen = from !== undefined && isOpen(from);
    if (wasOpen !== isOpen(to))
      for (const key of openKeys(to)) count(tx, 'inbox_index', key.slice(0, key.lastIndexOf('/') + 1), wasOpen ? -1 : 1);
  }

  /**
   * An agent was registered (or removed): its address's unread messages become available (or wait for setup again), the oldest MOVED_AT_ONCE
   * here and the others by `moveOn`. Which they are is remembered in this transaction, so that a crash in between forgets none.
   */
  setAvailable(tx: StoreTransaction, harness: HarnessName, workspace: string, available: boolean): Received[] {
    return this.#move(tx, { harness, workspace, available, after: 0 });
  }

  /** Moves the next of the messages that `setAvailable` left; none when it left none. */
  moveOn(tx: StoreTransaction, harness: HarnessName, workspace: string): Received[] {
    const move = getRow<Move>(tx, 'meta', moveKey(harness, workspace));
    return move === undefined ? [] : this.#move(tx, move);
  }

  /** Has `moveOn` something to do at an address? */
  isMoving(harness: HarnessName, workspace: string): boolean {
    return this.#store.get('meta', moveKey(harness, workspace)) !== undefined;
  }

  /** The addresses where `moveOn` has something to do. */
  moving(): { readonly harness: HarnessName; readonly workspace: string }[] {
    return this.#store.range('meta', under('moving/')).map((entry) => unpack<Move>(entry.value));
  }

  #move(tx: StoreTransaction, move: Move): Received[] {
    const start = `o/${addressKey(move.harness, move.workspace)}/`;
    const bounds = { start: `${start}${seqKey(move.after + 1)}`, end: `${start}~`, limit: MOVED_AT_ONCE };
    const seqs = tx.range('inbox_index', bounds).map((entry) => entry.key.slice(start.length));
    const key = moveKey(move.harness, move.workspace);
    if (seqs.length === MOVED_AT_ONCE) tx.put('meta', key, pack({ ...move, after: Number(seqs.at(-1)) }));
    else tx.remove('meta', key);
    const to = move.available ? 'available' : 'awaiting_setup';
    const rows = seqs.flatMap((seq) => getRow<Received>(tx, 'inbox', seq) ?? []).filter((row) => row.state !== to);
    return rows.map((row) => this.#step(tx, row, { state: to }));
  }

  /** Hands the body out to the attached session: durable before it leaves. AxError `expired`, `invalid_state`, `message_not_found`. */
  handOut(tx: StoreTransaction, sender: HostId, id: MessageId, handOut: HandOut): Received {
    const row = this.require(tx, sender, id);
    const isOpening = getRow<Move>(tx, 'meta', moveKey(row.harness, row.workspace))?.available === true;
    if (row.state === 'awaiting_setup' && !isOpening) throw new AxError('invalid_state', 'no agent is set up for this message');
    const state = row.state === 'awaiting_setup' ? 'available' : row.state;
    return this.#step(tx, row, {
      state,
      handOuts: [...row.handOuts, handOut].slice(-KEPT_HANDOUTS),
      handedOutAt: row.handedOutAt ?? handOut.at,
    });
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
  confirm(tx: StoreTransaction, sender: HostId, id: MessageId, token: string, now: number): Confirmed {
    const row = this.get(sender, id, tx);
    if (row === undefined) throw new AxError('message_not_found', 'there is no such message');
    if (!row.handOuts.some((handOut) => handOut.token === token))
      throw new AxError('invalid_argument', 'this message was not handed out under that token');
    if (row.state === 'fetched') return { row, first: false };
    if (!receiverMay(row.state, 'fetched'))
      throw new AxError('invalid_state', `the message is ${row.state}`, { details: { state: row.state } });
    return { row: this.#step(tx, row, { state: 'fetched', fetchedAt: now }), first: true };
  }

  /** What is shown of the notice for a message; null: none was made, and none is withheld. */
  setNotice(tx: StoreTransaction, sender: HostId, id: MessageId, notice: RowNotice | null): Received | undefined {
    const row = this.get(sender, id, tx);
    return row === undefined ? undefined : this.#step(tx, row, { notice });
  }

  /**
   * The sender's cancel, decided here and now: `cancelled` (also for an id never seen: a tombstone answers the late copy),
   * or the row that shows why it is too late. `isNew`: this very call made it so. AxError `key_conflict`, `limit` (too many tombstones).
   */
  cancel(tx: StoreTransaction, sender: HostId, id: MessageId, digest: Uint8Array): Cancelled {
    const seen = getRow<Seen>(tx, 'seen', `${sender}/${id}`);
    if (seen === undefined) {
      const key = `tombstones/${sender}`;
      const count = getRow<{ count: number }>(tx, 'meta', key)?.count ?? 0;
      if (count >= MAX_TOMBSTONES_PER_PEER)
        throw new AxError('limit', `more than ${MAX_TOMBSTONES_PER_PEER} cancels for unknown messages`, {
          details: { limit: MAX_TOMBSTONES_PER_PEER, retry_after_ms: RETRY_CAP_MS },
        });
      tx.put('meta', key, pack({ count: count + 1 }));
      const tombstone: Seen = { digest, seq: 0, tombstone: true, ran: this.#running() };
      tx.put('seen', `${sender}/${id}`, pack(tombstone));
      tx.put('seen', `~/${seqKey(tombstone.ran + METADATA_RETENTION_MS)}/${sender}/${id}`, NOTHING);
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

  /** Forgets rows whose body went long ago, with their ids, and old tombstones; at most `limit` of each. Returns how many. */
  prune(tx: StoreTransaction, limit: number): number {
    const until = seqKey(this.#running());
    const rows = tx.range('inbox_index', { start: 'z/', end: `z/${until}`, limit });
    for (const entry of rows) {
      tx.remove('inbox_index', entry.key);
      const seq = entry.key.slice(entry.key.lastIndexOf('/') + 1);
      const row = getRow<Received>(tx, 'inbox', seq);
      if (row !== undefined) {
        tx.remove('inbox_index', `i/${row.id}/${row.sender}`);
        tx.remove('seen', `${row.sender}/${row.id}`);
        for (const key of [addressIndex(row), ...endedKeys(row)]) tx.remove('inbox_index', key);
        weigh(tx, this.#limits, 'kept', row.sender, -1, -weightOf(row.signed));
      }
      tx.remove('inbox', seq);
    }
    const ids = tx.range('seen', { start: '~/', end: `~/${until}`, limit });
    for (const entry of ids) {
      tx.remove('seen', entry.key);
      const key = entry.key.slice(entry.key.indexOf('/', 2) + 1);
      const seen = getRow<Seen>(tx, 'seen', key);
      const row = seen === undefined || seen.tombstone ? undefined : getRow<Received>(tx, 'inbox', seqKey(seen.seq));
      if (row !== undefined) continue; // of before schema 4: the id goes with its row, or a late copy would be taken a second time
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
    this.#count(tx, row, next);
    tx.put('inbox', seqKey(row.seq), pack(next));
    if (wasOpen && !isOpen(next)) {
      for (const key of openKeys(row)) tx.remove('inbox_index', key);
      for (const key of endedKeys(next)) tx.put('inbox_index', key, NOTHING); // an end is never left
      weigh(tx, this.#limits, 'waiting', row.sender, -1, -row.bytes);
    }
    // What the row says, not a look at the table: that costs more the more bodies one transaction removes.
    if (hasBody(row) && !hasBody(next)) {
      for (let index = 0; index < (row.pieces ?? 1); index++) tx.remove('inbox_body', bodyKeyOf(row, index));
      weigh(tx, this.#limits, 'kept', row.sender, 0, -sealedBytes(row));
    }
    return next;
  }
}
