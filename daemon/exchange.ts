/**
 * The peer conversation: what this host sends to another, and what it makes of the answers; how it answers itself is answering.ts.
 *
 * Owns per host one lane that moves receipts, cancels and messages, oldest first, a bounded window at a time, while the host is ready.
 * Invariants: `uncertain` is durable before bytes leave; an acceptance is answered only after the flush; a refusal known is never
 * overwritten; no receipt is dropped before the sender's host has stored it.
 */
import { asList, decode } from '../protocol/codec.ts';
import type { Fields } from '../protocol/codec.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import { readSigned } from '../protocol/hashtree.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { FORWARD_WINDOW, REQUEST_TIMEOUT_MS } from '../protocol/limits.ts';
import { pass } from '../protocol/memory.ts';
import { readProgress, readReceipt, signCancel } from '../protocol/receipt.ts';
import type { Progress, Receipt } from '../protocol/receipt.ts';
import { SENDER_ENDS } from '../protocol/states.ts';
import { encodeRequest, MAX_PROGRESS_IDS, readAnswer, receiptOf } from '../protocol/wire.ts';
import type { OutgoingRequest, WireRequest } from '../protocol/wire.ts';
import { Answering } from './answering.ts';
import type { AnsweringDeps } from './answering.ts';
import { within } from './clock/within.ts';
import type { Events } from './events.ts';
import { updateRequired } from './greeting.ts';
import { causeOf, Forwarding, refusedClass } from './forwarding.ts';
import type { Greeting } from './greeting.ts';
import { Lane } from './lane.ts';
import type { Channel, Link } from './link/link.ts';
import type { Outbox } from './outbox.ts';
import { ProgressNews } from './progress.ts';
import type { Sent } from './sent-row.ts';
import type { StoreTransaction } from './store/store.ts';

type ForAnswers = 'store' | 'clock' | 'log' | 'key' | 'peers' | 'inbox' | 'receipts' | 'refusals' | 'admission' | 'sessions' | 'pair';

export interface ExchangeDeps extends Pick<AnsweringDeps, ForAnswers> {
  readonly link: Link;
  readonly running: () => number;
  readonly greeting: Greeting;
  readonly outbox: Outbox;
  readonly events: Events;
  readonly hasLiveSession: (harness: string, workspace: string) => boolean;
}

/** Least time between two retries that a host asks for, ms: a refused body was sent whole. */
const ASKED_RETRY_MS = 10_000;
/** Messages of which something was told before their acceptance was stored here. */
const MAX_EARLY = 4096;

export class Exchange {
  readonly #deps: ExchangeDeps;
  readonly #lanes = new Map<HostId, Lane>();
  readonly #answering: Answering;
  readonly #news: ProgressNews;
  readonly #forwarding: Forwarding;
  /** What was told of messages that are not accepted here yet: news and an acceptance come on ways of their own, and news come once. */
  readonly #early = new Map<MessageId, Progress>();
  #stopped = false;

  constructor(deps: ExchangeDeps) {
    this.#deps = deps;
    this.#news = new ProgressNews(deps.clock, deps.inbox, deps.hasLiveSession);
    this.#forwarding = new Forwarding({
      store: deps.store,
      clock: deps.clock,
      log: deps.log,
      outbox: deps.outbox,
      events: deps.events,
      running: deps.running,
      request: (host, request, timeoutMs) => this.#request(host, request, timeoutMs),
      takeReceipt: (host, fields, about) => this.#takeReceipt(host, fields, about),
      onEnd: (host) => this.#begin(host, this.#lane(host)),
    });
    this.#answering = new Answering({
      ...deps,
      isStopped: () => this.#stopped,
      takeReceipt: (receipt) => deps.store.write((tx) => this.#applyReceipt(tx, receipt, deps.outbox.get(receipt.id, tx))),
      mirror: (host, items) => this.#mirror(host, items),
      progressOf: (sender, id) => this.#news.progressOf(sender, id),
      onRetry: (host) => this.#retry(host),
      onReceipts: (host) => this.wake(host),
    });
  }

  stop(): void {
    this.#stopped = true;
    this.#news.stop();
    for (const lane of this.#lanes.values()) {
      lane.cancelRetry?.();
      lane.cancelTelling?.();
      lane.clear();
    }
  }

  // --- sending ---------------------------------------------------------------------------------------------------------

  /** The host became ready: pauses are forgotten, open ids are asked for, and everything that waits moves. */
  ready(host: HostId): void {
    const lane = this.#lane(host);
    lane.clear();
    this.wake(host);
    this.#catchUp(host);
    this.#tellUntold(host, lane);
  }

  /** Asks after what is or may be open there, until that is answered: of what ended while this host was not known there nothing else tells. */
  #catchUp(host: HostId): void {
    const { greeting, clock, log } = this.#deps;
    const lane = this.#lane(host);
    if (lane.isCatchingUp || this.#stopped || !greeting.isReady(host)) return;
    lane.isCatchingUp = true;
    this.#askProgress(host).then(
      () => void (lane.isCatchingUp = false),
      (error: unknown) => {
        log.debug('progress not asked', { host, code: toAxError(error).code });
        clock.after(ASKED_RETRY_MS, () => {
          lane.isCatchingUp = false;
          this.#catchUp(host);
        });
      },
    );
  }

  /** A new entry may leave at once: the host is ready, nothing holds the lane, and fewer wait than the window holds. */
  mayLeaveNow(host: HostId): boolean {
    const lane = this.#lane(host);
    if (this.#stopped || !this.#deps.greeting.isReady(host) || lane.all.isOn || lane.messages.isOn || lane.isHolding) return false;
    return lane.hasRoom && this.#deps.outbox.countOpen(host) < FORWARD_WINDOW;
  }

  /** A new entry for this host is durable, and nothing of it has left yet. `body`: sealed, of one piece. */
  queued(row: Sent, body: Uint8Array | null): void {
    const lane = this.#lane(row.host);
    lane.untouched.add(row.id);
    if (row.state === 'forwarding' && body !== null) lane.addFresh(row, body);
    this.#begin(row.host, lane);
  }

  /** Something may wait for this host: a receipt, a cancel or a message. */
  wake(host: HostId): void {
    const lane = this.#lane(host);
    lane.mayHaveWords = true;
    this.#begin(host, lane);
  }

  #begin(host: HostId, lane: Lane): void {
    lane.again = true;
    if (lane.running || this.#stopped) return;
    lane.running = true;
    void this.#run(host, lane);
  }

  /** An entry that was here before may leave again: everything that waits for this host is looked at anew. */
  lookAnew(host: HostId): void {
    this.#lane(host).passed = 0;
    this.wake(host);
  }

  /** A message of `host` changed here: tells it soon, else when the host is ready or a while later; the signed receipt is the truth. */
  changed(host: HostId, id: MessageId): void {
    const { key, greeting } = this.#deps;
    if (host === key.hostId || this.#stopped) return;
    const lane = this.#lane(host);
    // It may be ready to ask before it is ready to be told: its question, which comes first then, was answered without this.
    if (!greeting.isReady(host)) return lane.keepUntold(id);
    this.#news.add(host, id, (items) => this.#tell(host, lane, items));
  }

  /** Of what did not arrive the state that it has then is told later, of all of it together; what was refused for good is let go. */
  #tell(host: HostId, lane: Lane, items: readonly Progress[]): void {
    this.#request(host, { type: 'update', items, retry: false }).catch((error: unknown) => {
      this.#deps.log.debug('update not told', { host, code: toAxError(error).code });
      if (this.#stopped || refusedClass(error) === 'rejected') return;
      for (const { id } of items) lane.keepUntold(id);
      lane.cancelTelling ??= this.#deps.clock.after(ASKED_RETRY_MS, () => this.#tellUntold(host, lane));
    });
  }

  #tellUntold(host: HostId, lane: Lane): void {
    lane.cancelTelling?.();
    lane.cancelTelling = undefined;
    for (const id of lane.takeUntold()) this.changed(host, id);
  }

  /** Asks a host for something within `timeoutMs`. AxError as the link, or as the host refused. */
  async ask(host: HostId, request: WireRequest, timeoutMs: number): Promise<Fields> {
    const view = this.#deps.greeting.view(host);
    if (view.state === 'update_required' && view.range !== null) throw updateRequired(view.version ?? 'unknown', view.range);
    return this.#request(host, request, timeoutMs);
  }

  /** This host's owner changed what `host` may do here: it is told to try again what it was refused; a host that is away asks anyway. */
  grantsChanged(host: HostId): void {
    if (!this.#deps.greeting.isReady(host)) return;
    void this.#request(host, { type: 'update', items: [], retry: true }).catch((error: unknown) =>
      this.#deps.log.debug('change of grants not told', { host, code: toAxError(error).code }),
    );
  }

  /** What was refused for want of a right is tried again; however often the other host says so, once in a while. */
  #retry(host: HostId): void {
    const { clock } = this.#deps;
    const lane = this.#lane(host);
    if (this.#stopped || lane.cancelRetry !== undefined) return;
    lane.cancelRetry = clock.after(Math.max(0, lane.retriedAt + ASKED_RETRY_MS - clock.monotonic()), () => {
      lane.cancelRetry = undefined;
      lane.retriedAt = clock.monotonic();
      lane.clear();
      this.wake(host);
    });
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
    const { greeting, log } = this.#deps;
    const mayGo = (): boolean => !this.#stopped && greeting.isReady(host) && !lane.all.isOn;
    try {
      while (lane.again && !this.#stopped) {
        await Promise.resolve(); // what the same commit or packet brought comes in this turn: it leaves together
        lane.again = false;
        if (greeting.view(host).state === 'untrusted') await this.#forwarding.holdUntrusted(host);
        if (mayGo() && lane.mayHaveWords) {
          lane.mayHaveWords = false; // whatever keeps them from leaving now wakes the lane when it is over
          if (!lane.receipts.isOn) await this.#pushReceipts(host, lane);
          if (mayGo() && !lane.cancels.isOn) await this.#pushCancels(host, lane);
        }
        if (mayGo() && !lane.messages.isOn) await this.#forwarding.push(host, lane);
      }
    } catch (error) {
      if (!this.#stopped) {
        log.debug('lane paused', { host, code: toAxError(error).code });
        lane.all.begin();
      }
    } finally {
      lane.running = false;
    }
    if (lane.again && mayGo()) this.#begin(host, lane);
  }

  async #request(host: HostId, request: OutgoingRequest, timeoutMs = REQUEST_TIMEOUT_MS): Promise<Fields> {
    const { clock, link, greeting } = this.#deps;
    // The link would dial by itself: to a host that was not greeted since, and may have another protocol or not know this one any more.
    if (request.type !== 'sessions' && !greeting.isReady(host))
      throw new AxError('unavailable', 'the host is not ready', { details: { sent: false } });
    const bytes = await within(clock, timeoutMs, (limit) => link.request(host, 'wire', pass(encodeRequest(request)), limit));
    const answer = readAnswer(bytes);
    if (answer.ok) return answer.fields;
    const isOwners = answer.refusal.code === 'untrusted_peer' || answer.refusal.code === 'grant_missing';
    throw new AxError(answer.refusal.code, `the other host answered ${answer.refusal.code}`, {
      ...(isOwners ? { fix: 'owner' } : {}),
      details: {
        ...(isOwners ? { command: 'ax host invite --grant read,write,notify' } : {}),
        refused: answer.refusal.class,
        retry_after_ms: answer.refusal.retryAfterMs ?? 0,
      },
    });
  }

  // What leaves is picked inside a transaction, so that it is durable here when the write resolves: a receipt, a cancel or a message
  // that a crash takes back must not be known elsewhere. Reading first without one only saves the write when nothing waits.

  async #pushReceipts(host: HostId, lane: Lane): Promise<void> {
    const { receipts, store, inbox } = this.#deps;
    while (!lane.receipts.isOn && receipts.pending(host, 1).length > 0) {
      const batch = await store.write((tx) => receipts.pending(host, FORWARD_WINDOW, tx));
      const told = await Promise.all(
        batch.map(async (pending) => {
          try {
            await this.#request(host, { type: 'receipt', receipt: readSigned(decode(pending.signed), 'a receipt') });
          } catch (error) {
            const refused = refusedClass(error);
            if (refused === undefined) throw error;
            if (refused === 'deferred') return undefined; // kept: told again
          }
          return pending;
        }),
      );
      await store.write((tx) => told.forEach((pending) => pending !== undefined && receipts.done(tx, pending)));
      if (told.includes(undefined)) lane.receipts.begin();
      // A receipt tells of no notice, and nobody asks after what has ended: what may not have been heard of one is told now.
      for (const { id } of told.filter((pending) => pending !== undefined))
        if ((inbox.get(host, id)?.notice ?? null) !== null) this.changed(host, id);
    }
  }

  async #pushCancels(host: HostId, lane: Lane): Promise<void> {
    const { outbox, store, key, clock } = this.#deps;
    for (let after = 0; outbox.cancels(host, after, 1).length > 0;) {
      const rows = await store.write((tx) => outbox.cancels(host, after, FORWARD_WINDOW, tx));
      for (const row of rows) {
        after = row.seq;
        try {
          const cancel = signCancel(key, { id: row.id, digest: row.digest, receiver: host, at: clock.now() });
          await this.#takeReceipt(host, await this.#request(host, { type: 'cancel', cancel }), row);
          lane.forget(row.id);
        } catch (error) {
          const refused = refusedClass(error);
          if (refused === undefined) throw error;
          if (refused === 'deferred') lane.cancels.begin();
          else await store.write((tx) => outbox.cancelRefused(tx, row.id, causeOf(error, clock.now())));
        }
      }
    }
  }

  /** Verifies a receipt in an answer about a message and stores what it says. */
  async #takeReceipt(host: HostId, fields: Fields, about: Sent): Promise<void> {
    const receipt = readReceipt(host, this.#deps.key.hostId, receiptOf(fields));
    const { outbox } = this.#deps;
    await this.#deps.store.write((tx) =>
      this.#applyReceipt(tx, receipt, receipt.id === about.id ? outbox.now(about, tx) : outbox.get(receipt.id, tx)),
    );
  }

  #applyReceipt(tx: StoreTransaction, receipt: Receipt, before: Sent | undefined): void {
    const { outbox, events } = this.#deps;
    if (before === undefined) return;
    const after = outbox.receipt(tx, before, receipt);
    const early = this.#early.get(before.id);
    if (after !== undefined && early !== undefined && this.#early.delete(before.id)) outbox.progress(tx, after.host, early);
    if (after === undefined || before.state === after.state) return;
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
    const { outbox } = this.#deps;
    for (const list of ['accepted', 'expiredUncertain'] as const) {
      for (let after = 0; ;) {
        const rows = outbox[list](host, after, MAX_PROGRESS_IDS);
        if (rows.length === 0) break;
        after = rows.at(-1)!.seq;
        const fields = await this.#request(host, { type: 'progress', ids: rows.map((row) => row.id) });
        const items = asList(fields['items'], 'items', MAX_PROGRESS_IDS).map((item) => readProgress(item));
        await this.#mirror(host, items);
      }
    }
  }

  /** Takes in unsigned progress; of several words about one message the last counts. */
  async #mirror(host: HostId, items: readonly Progress[]): Promise<void> {
    const { outbox, store } = this.#deps;
    const last = new Map(items.map((item) => [item.id, item]));
    const isNews = [...last.values()].filter((item) => outbox.get(item.id)?.host === host);
    if (isNews.length > 0) await store.write((tx) => isNews.forEach((item) => this.#takeProgress(tx, host, item)));
  }

  #takeProgress(tx: StoreTransaction, host: HostId, item: Progress): void {
    const { outbox } = this.#deps;
    const row = outbox.get(item.id, tx);
    if (row === undefined || row.acceptedAt !== null || SENDER_ENDS.has(row.state)) return void outbox.progress(tx, host, item);
    this.#early.set(item.id, item);
    const [oldest] = this.#early.keys();
    if (oldest !== undefined && this.#early.size > MAX_EARLY) this.#early.delete(oldest);
  }

  /** Answers one request of a host, as Answering. */
  async handle(peer: HostId, channel: Channel, bytes: Uint8Array): Promise<Uint8Array> {
    return channel === 'hello' ? this.#deps.greeting.answer(peer, bytes) : this.#answering.handle(peer, bytes);
  }
}
