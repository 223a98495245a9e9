/**
 * The peer conversation, both ends in one file: what this host sends to another, and how it answers one.
 *
 * Sending (`wake`): per host one lane that moves receipts, cancels and messages, oldest first, a bounded window at a time, while
 * the host is ready. Answering (`handle`): every request of a host, checked for pairing and grants before anything else.
 * Invariants: `uncertain` is durable before bytes leave; an acceptance, a duplicate's too, is answered only after the flush;
 * a refusal known is never overwritten; no receipt is dropped before the sender's host has stored it.
 */
import { asList, decode } from '../protocol/codec.ts';
import type { Fields } from '../protocol/codec.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import { encodeSigned, readSigned } from '../protocol/hashtree.ts';
import type { HostKey } from '../protocol/identity.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { FORWARD_WINDOW, REQUEST_TIMEOUT_MS } from '../protocol/limits.ts';
import { progressValue, readProgress, readReceipt, signCancel, signReceipt } from '../protocol/receipt.ts';
import { RECEIVER_ENDS } from '../protocol/states.ts';
import { encodeRefusal, encodeRequest, encodeResult, MAX_PROGRESS_IDS, readAnswer, readRequest, receiptOf } from '../protocol/wire.ts';
import type { WireRequest } from '../protocol/wire.ts';
import type { Admission } from './admission.ts';
import type { Clock } from './clock/clock.ts';
import { within } from './clock/within.ts';
import type { Events } from './events.ts';
import { updateRequired } from './greeting.ts';
import type { Greeting } from './greeting.ts';
import type { Inbox, Received } from './inbox.ts';
import { Lane } from './lane.ts';
import type { Channel, Link } from './link/link.ts';
import type { Log } from './log.ts';
import type { Cause, Outbox, Sent } from './outbox.ts';
import type { Peers } from './peers.ts';
import { ProgressNews } from './progress.ts';
import type { Receipts } from './receipts.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface ExchangeDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly link: Link;
  readonly log: Log;
  readonly key: HostKey;
  readonly running: () => number;
  readonly greeting: Greeting;
  readonly peers: Peers;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
  readonly receipts: Receipts;
  readonly events: Events;
  readonly admission: Admission;
  readonly hasLiveSession: (harness: string, workspace: string) => boolean;
  /** The public session list, as an encoded answer. */
  readonly sessions: () => Promise<Uint8Array>;
  readonly pair: (peer: HostId, request: WireRequest & { readonly type: 'pair' }) => Promise<Uint8Array>;
}

/** Envelopes that do not verify, per host, before its connection is closed instead of answered. */
const STRIKES = 8;

export class Exchange {
  readonly #deps: ExchangeDeps;
  readonly #lanes = new Map<HostId, Lane>();
  readonly #strikes = new Map<HostId, number>();
  readonly #news: ProgressNews;
  #stopped = false;

  constructor(deps: ExchangeDeps) {
    this.#deps = deps;
    this.#news = new ProgressNews(deps.clock, deps.inbox, deps.hasLiveSession);
  }

  stop(): void {
    this.#stopped = true;
    for (const lane of this.#lanes.values()) lane.stop();
  }

  // --- sending ---------------------------------------------------------------------------------------------------------

  /** The host became ready: pauses are forgotten, open ids are asked for, and everything that waits moves. */
  ready(host: HostId): void {
    this.#lane(host).clear();
    this.wake(host);
    void this.#askProgress(host).catch((error: unknown) =>
      this.#deps.log.debug('progress not asked', { host, code: toAxError(error).code }),
    );
  }

  /** Something may wait for this host. `fresh` names a new entry, of which nothing has left yet. */
  wake(host: HostId, fresh?: MessageId): void {
    const lane = this.#lane(host);
    if (fresh !== undefined) lane.untouched.add(fresh);
    lane.again = true;
    if (lane.running || this.#stopped) return;
    lane.running = true;
    void this.#run(host, lane);
  }

  /** A message of `host` changed here: tells it soon, at best once; the signed receipt is the truth. */
  changed(host: HostId, id: MessageId): void {
    if (host === this.#deps.key.hostId || !this.#deps.greeting.isReady(host)) return;
    this.#news.add(host, id, (items) => {
      if (this.#stopped) return;
      void this.#request(host, { type: 'update', items }).catch((error: unknown) =>
        this.#deps.log.debug('update not told', { host, code: toAxError(error).code }),
      );
    });
  }

  /** Asks a host for something within `timeoutMs`. AxError as the link, or as the host refused. */
  async ask(host: HostId, request: WireRequest, timeoutMs: number): Promise<Fields> {
    const view = this.#deps.greeting.view(host);
    if (view.state === 'update_required' && view.range !== null) throw updateRequired(view.version ?? 'unknown', view.range);
    return this.#request(host, request, timeoutMs);
  }

  #lane(host: HostId): Lane {
    let lane = this.#lanes.get(host);
    if (lane === undefined) {
      lane = new Lane(this.#deps.clock, () => this.wake(host));
      this.#lanes.set(host, lane);
    }
    return lane;
  }

  async #run(host: HostId, lane: Lane): Promise<void> {
    try {
      while (lane.again && !this.#stopped) {
        lane.again = false;
        if (!this.#deps.greeting.isReady(host) || lane.isBlocked) break;
        await this.#pushReceipts(host);
        await this.#pushCancels(host);
        await this.#pushMessages(host, lane);
      }
    } catch (error) {
      const failed = toAxError(error);
      if (!this.#stopped) this.#deps.log.debug('lane paused', { host, code: failed.code });
      this.#pause(lane);
    } finally {
      lane.running = false;
    }
    if (lane.again && this.#deps.greeting.isReady(host) && !lane.isBlocked) this.wake(host);
  }

  #pause(lane: Lane, askedMs = 0): void {
    if (!this.#stopped) lane.pause(askedMs);
  }

  async #request(host: HostId, request: WireRequest, timeoutMs = REQUEST_TIMEOUT_MS): Promise<Fields> {
    const { clock, link } = this.#deps;
    const bytes = await within(clock, timeoutMs, (signal) => link.request(host, 'wire', encodeRequest(request), signal));
    const answer = readAnswer(bytes);
    if (answer.ok) return answer.fields;
    throw new AxError(answer.refusal.code, `the other host answered ${answer.refusal.code}`, {
      details: { refused: answer.refusal.class, retry_after_ms: answer.refusal.retryAfterMs ?? 0 },
    });
  }

  // What leaves is picked inside a transaction, so that it is durable here when the write resolves: a receipt, a cancel or a message
  // that a crash takes back must not be known elsewhere. Reading first without one only saves the write when nothing waits.

  async #pushReceipts(host: HostId): Promise<void> {
    const { receipts, store } = this.#deps;
    for (;;) {
      if (receipts.pending(host, 1).length === 0) return;
      const batch = await store.write((tx) => receipts.pending(host, FORWARD_WINDOW, tx));
      const told = await Promise.all(
        batch.map(async (pending) => {
          try {
            await this.#request(host, { type: 'receipt', receipt: readSigned(decode(pending.signed), 'a receipt') });
          } catch (error) {
            if (refusedClass(error) !== 'rejected') throw error; // kept: told again
          }
          return pending;
        }),
      );
      await store.write((tx) => told.forEach((pending) => receipts.done(tx, pending)));
    }
  }

  async #pushCancels(host: HostId): Promise<void> {
    const { outbox, store, key, clock } = this.#deps;
    if (outbox.cancels(host, 1).length === 0) return;
    for (const row of await store.write((tx) => outbox.cancels(host, FORWARD_WINDOW, tx))) {
      try {
        const fields = await this.#request(host, {
          type: 'cancel',
          cancel: signCancel(key, { id: row.id, digest: row.digest, receiver: host, at: clock.now() }),
        });
        await this.#takeReceipt(host, fields);
      } catch (error) {
        if (refusedClass(error) !== 'rejected') throw error;
        await store.write((tx) => outbox.cancelRefused(tx, row.id, causeOf(error, clock.now())));
      }
    }
  }

  async #pushMessages(host: HostId, lane: Lane): Promise<void> {
    const { outbox, store, events } = this.#deps;
    if (this.#due(host, lane, store).length === 0) return;
    const picked = await store.write((tx) => {
      const due = this.#due(host, lane, tx);
      for (const row of due) if (!row.uncertain) lane.untouched.add(row.id);
      for (const row of outbox.leaving(tx, due))
        if (row.cause === null) events.add(tx, { type: 'message.forwarding', messageId: row.id, hostId: host, state: row.state });
      return due;
    });
    for (const row of picked) {
      lane.inFlight.add(row.id);
      void this.#attempt(host, lane, row.id).finally(() => {
        lane.inFlight.delete(row.id);
        this.wake(host);
      });
    }
  }

  /** The oldest entries that may leave now, no more than the window has room for. */
  #due(host: HostId, lane: Lane, reader: StoreReader): Sent[] {
    const due: Sent[] = [];
    for (let after = 0, room = FORWARD_WINDOW - lane.inFlight.size; due.length < room;) {
      const rows = this.#deps.outbox.open(host, after, FORWARD_WINDOW, reader);
      if (rows.length === 0) break;
      after = rows.at(-1)!.seq;
      due.push(
        ...rows
          .filter((row) => !row.cancelRequested && row.deadline > this.#deps.running() && lane.isDue(row.id))
          .slice(0, room - due.length),
      );
    }
    return due;
  }

  /** One delivery attempt; never rejects. */
  async #attempt(host: HostId, lane: Lane, id: MessageId): Promise<void> {
    const { outbox, store, events, clock, log } = this.#deps;
    try {
      const row = outbox.get(id);
      const body = outbox.body(id);
      if (row === undefined || body === undefined || row.state !== 'forwarding') return;
      try {
        const fields = await this.#request(host, {
          type: 'deliver',
          envelope: readSigned(decode(row.signed), 'an envelope'),
          pieces: [body],
        });
        await this.#takeReceipt(host, fields);
        lane.untouched.delete(id);
        lane.succeeded();
      } catch (error) {
        const failed = toAxError(error);
        const cause = causeOf(failed, clock.now());
        const refused = refusedClass(failed);
        const certain = lane.untouched.has(id) && (refused !== undefined || failed.details?.['sent'] === false);
        if (!certain) lane.untouched.delete(id);
        if (refused === 'deferred' && failed.code === 'grant_missing') lane.postpone(id);
        else if (refused !== 'rejected') this.#pause(lane, Number(failed.details?.['retry_after_ms'] ?? 0));
        await store.write((tx) => {
          const before = outbox.get(id, tx);
          const next =
            refused === 'rejected'
              ? outbox.refuse(tx, id, cause)
              : refused === 'deferred'
                ? outbox.defer(tx, id, certain, cause)
                : outbox.unanswered(tx, id, certain, cause);
          if (
            next !== undefined &&
            (next.state === 'refused' || next.state === 'cancelled' || (next.state === 'deferred' && before?.cause?.code !== cause.code))
          ) {
            events.add(tx, { type: `message.${next.state}`, messageId: id, hostId: host, state: next.state, detail: cause.code });
          }
        });
      }
    } catch (error) {
      log.error('outbox not updated', { host, message: id, reason: toAxError(error).message });
      this.#pause(lane);
    }
  }

  /** Verifies a receipt in an answer and stores what it says. */
  async #takeReceipt(host: HostId, fields: Fields): Promise<void> {
    const receipt = readReceipt(host, this.#deps.key.hostId, receiptOf(fields));
    await this.#deps.store.write((tx) => this.#applyReceipt(tx, receipt));
  }

  #applyReceipt(tx: StoreTransaction, receipt: ReturnType<typeof readReceipt>): void {
    const { outbox, events } = this.#deps;
    const before = outbox.get(receipt.id, tx);
    const after = outbox.receipt(tx, receipt);
    if (before === undefined || after === undefined || before.state === after.state) return;
    const detail = after.state === 'accepted' && after.storedAs === 'note' && after.kind === 'message' ? 'stored as a note' : undefined;
    events.add(tx, {
      type: `message.${after.state === 'queued' ? 'queued' : after.state}`,
      messageId: after.id,
      hostId: after.host,
      state: after.state,
      ...(detail === undefined ? {} : { detail }),
    });
  }

  async #askProgress(host: HostId): Promise<void> {
    const { outbox, store } = this.#deps;
    let after = 0;
    for (;;) {
      const rows = outbox.accepted(host, after, MAX_PROGRESS_IDS);
      if (rows.length === 0) return;
      after = rows.at(-1)!.seq;
      const fields = await this.#request(host, { type: 'progress', ids: rows.map((row) => row.id) });
      const items = asList(fields['items'], 'items', MAX_PROGRESS_IDS).map((item) => readProgress(item));
      await store.write((tx) => items.forEach((item) => outbox.progress(tx, host, item)));
    }
  }

  // --- answering -------------------------------------------------------------------------------------------------------

  /** Answers one request of a host. Rejects only for a broken or hostile peer: the link then closes the connection. */
  async handle(peer: HostId, channel: Channel, bytes: Uint8Array): Promise<Uint8Array> {
    if (channel === 'hello') return this.#deps.greeting.answer(peer, bytes);
    const request = readRequest(bytes); // a violation here closes the connection
    try {
      if (this.#stopped) throw new AxError('shutting_down', 'this daemon is stopping');
      return await this.#answer(peer, request);
    } catch (error) {
      const failed = toAxError(error);
      if (failed.code === 'internal') this.#deps.log.error('request failed', { host: peer, type: request.type, reason: failed.message });
      if (failed.code === 'bad_signature' || failed.code === 'wrong_peer' || failed.code === 'protocol_violation') {
        const strikes = (this.#strikes.get(peer) ?? 0) + 1;
        this.#strikes.set(peer, strikes);
        this.#deps.log.warn('hostile or broken request', { host: peer, type: request.type, code: failed.code, strikes });
        if (strikes > STRIKES) throw failed;
      }
      return encodeRefusal(failed);
    }
  }

  async #answer(peer: HostId, request: WireRequest): Promise<Uint8Array> {
    if (request.type === 'pair') return this.#deps.pair(peer, request);
    if (this.#deps.peers.get(peer) === undefined) throw new AxError('untrusted_peer', 'this host is not paired with that one');
    switch (request.type) {
      case 'deliver':
        return this.#deps.admission.accept(peer, request);
      case 'cancel':
        return this.#deps.admission.cancel(peer, request);
      case 'receipt': {
        const receipt = readReceipt(peer, this.#deps.key.hostId, request.receipt);
        await this.#deps.store.write((tx) => this.#applyReceipt(tx, receipt));
        return encodeResult({});
      }
      case 'progress':
        await this.#remind(peer, request.ids);
        return encodeResult({ items: request.ids.flatMap((id) => this.#news.progressOf(peer, id) ?? []).map(progressValue) });
      case 'update':
        await this.#deps.store.write((tx) => request.items.forEach((item) => this.#deps.outbox.progress(tx, peer, item)));
        return encodeResult({});
      case 'sessions':
        if (!this.#deps.peers.may(peer, 'read')) throw new AxError('grant_missing', 'that host may not list sessions here');
        return this.#deps.sessions();
    }
  }

  /** Who asks after a message that has ended here never got, or never believed, its receipt: it is told again. */
  async #remind(peer: HostId, ids: readonly MessageId[]): Promise<void> {
    const { inbox, receipts, store, key, clock } = this.#deps;
    const ended = (reader: StoreReader): Received[] => {
      const told = new Set(receipts.pending(peer, Number.MAX_SAFE_INTEGER, reader).map((pending) => pending.id));
      return ids.flatMap((id) => inbox.get(peer, id, reader) ?? []).filter((row) => RECEIVER_ENDS.has(row.state) && !told.has(row.id));
    };
    if (ended(store).length === 0) return;
    await store.write((tx) => {
      for (const row of ended(tx)) receipts.add(tx, peer, row.id, encodeSigned(signReceipt(key, endOf(row, clock.now()))));
    });
    this.wake(peer);
  }
}

/** How the peer refused, when the error is the peer's own answer. */
function refusedClass(error: unknown): 'deferred' | 'rejected' | undefined {
  const refused = error instanceof AxError ? error.details?.['refused'] : undefined;
  return refused === 'deferred' || refused === 'rejected' ? refused : undefined;
}

/** What a receipt says of a message that has ended here. */
function endOf(row: Received, now: number): Parameters<typeof signReceipt>[1] {
  const { id, digest, sender, storedAs, state } = row;
  const outcome = state === 'awaiting_setup' || state === 'available' ? 'accepted' : state;
  return { outcome, id, digest, sender, at: row.fetchedAt ?? now, state, storedAs, liveSession: false, certain: true };
}

/** Why an attempt did not end in acceptance, for the status page. */
function causeOf(error: unknown, at: number): Cause {
  const failed = toAxError(error);
  return { code: failed.code, message: failed.message, at };
}
