/**
 * Forwarding: messages from the outbox to their hosts, oldest first, a bounded window at a time.
 *
 * Owns one delivery attempt and what its end means for the entry. `uncertain` is durable before bytes leave and ends only with
 * a signed receipt, or when no copy can be on its way. A host that does not know this one is sent no bodies: what waits for it says so.
 */
import { Encoded } from '../protocol/codec.ts';
import type { Fields } from '../protocol/codec.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { FORWARD_WINDOW, FORWARD_WINDOW_BYTES, LARGE_WINDOW } from '../protocol/limits.ts';
import type { OutgoingRequest } from '../protocol/wire.ts';
import type { Clock } from './clock/clock.ts';
import type { Events } from './events.ts';
import { handOver } from './handover.ts';
import type { Lane } from './lane.ts';
import type { Log } from './log.ts';
import type { Outbox } from './outbox.ts';
import type { Cause, Sent } from './sent-row.ts';
import type { Store, StoreReader } from './store/store.ts';

export interface ForwardingDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  readonly outbox: Outbox;
  readonly events: Events;
  readonly running: () => number;
  readonly request: (host: HostId, request: OutgoingRequest, timeoutMs?: number) => Promise<Fields>;
  /** Verifies and stores the receipt in an answer about a message. */
  readonly takeReceipt: (host: HostId, fields: Fields, about: Sent) => Promise<void>;
  /** An attempt has ended: there may be room for the next. */
  readonly onEnd: (host: HostId) => void;
}

/** Entries of workspaces with no room that are passed over in one look. */
const MAX_CROWDED = 512;

export class Forwarding {
  readonly #deps: ForwardingDeps;

  constructor(deps: ForwardingDeps) {
    this.#deps = deps;
  }

  /** Lets the oldest entries leave, as many as the window has room for. Resolves when they are on their way. */
  async push(host: HostId, lane: Lane): Promise<void> {
    const { outbox, store, events } = this.#deps;
    this.#pushFresh(host, lane);
    // All that is open is on its way; should some of that have ended just now, the end of its attempt looks again.
    if (outbox.countOpen(host) <= lane.inFlight.size || this.#due(host, lane, store).length === 0) return;
    const picked = await store.write((tx) => {
      const due = this.#due(host, lane, tx);
      for (const row of due) if (!row.uncertain) lane.untouched.add(row.id);
      for (const row of outbox.leaving(tx, due))
        if (row.cause === null) events.add(tx, { type: 'message.forwarding', messageId: row.id, hostId: host, state: row.state });
      return due;
    });
    for (const row of picked) this.#leave(host, lane, row);
  }

  /** New entries were stored as on their way (`forwarding`, `uncertain`), and that is durable: they leave without another write. */
  #pushFresh(host: HostId, lane: Lane): void {
    while (lane.hasRoom) {
      const fresh = lane.takeFresh();
      if (fresh === undefined) return;
      const { row, body } = fresh;
      const { workspace } = row.to;
      // What is held meanwhile is found again with all that is open.
      if (lane.isDue(row.id, workspace) && lane.roomFor(workspace) > 0 && row.deadline > this.#deps.running())
        this.#leave(host, lane, row, body);
    }
  }

  #leave(host: HostId, lane: Lane, row: Sent, body?: Uint8Array): void {
    const bytes = bytesOf(row);
    lane.inFlight.set(row.id, row.to.workspace);
    lane.bytes += bytes;
    if (isLarge(row)) lane.large.add(row.id);
    else lane.smallLeaves();
    void this.#attempt(host, lane, row, body).finally(() => {
      lane.inFlight.delete(row.id);
      lane.bytes -= bytes;
      lane.large.delete(row.id);
      this.#deps.onEnd(host);
    });
  }

  /** The host does not know this one: everything that waits for it says so, once. */
  async holdUntrusted(host: HostId): Promise<void> {
    const { outbox, store, events, clock } = this.#deps;
    const error = new AxError('untrusted_peer', 'that host does not know this one: its owner has not paired it');
    const isNews = (row: Sent): boolean => row.cause?.code !== error.code || row.state !== 'deferred';
    for (let after = 0; ;) {
      const rows = outbox.open(host, after, FORWARD_WINDOW);
      if (rows.length === 0) return;
      after = rows.at(-1)!.seq;
      if (!rows.some(isNews)) {
        await new Promise<void>((resolve) => void clock.after(0, resolve)); // the others get their turn, however many are held
        continue;
      }
      await store.write((tx) => {
        for (const row of rows.filter(isNews)) {
          const held = outbox.defer(tx, row.id, false, causeOf(error, clock.now()));
          if (held !== undefined)
            events.add(tx, { type: 'message.deferred', messageId: row.id, hostId: host, state: 'deferred', detail: error.code });
        }
      });
    }
  }

  /** The oldest entries that may leave now, no more than the window has room for. */
  #due(host: HostId, lane: Lane, reader: StoreReader): Sent[] {
    const due: Sent[] = [];
    const left = new Map<string, number>();
    let isPassing = true;
    let crowded = 0;
    let large = LARGE_WINDOW - lane.large.size;
    let bytes = FORWARD_WINDOW_BYTES - lane.bytes;
    const room = FORWARD_WINDOW - lane.inFlight.size;
    for (let after = lane.passed; due.length < room && bytes > 0 && crowded < MAX_CROWDED;) {
      const rows = this.#deps.outbox.open(host, after, FORWARD_WINDOW, reader);
      if (rows.length === 0) break;
      after = rows.at(-1)!.seq;
      for (const row of rows) {
        const { workspace } = row.to;
        isPassing &&= lane.isHeld(row.id, workspace);
        if (isPassing) lane.passed = row.seq;
        if (row.cancelRequested || row.deadline <= this.#deps.running() || !lane.isDue(row.id, workspace)) continue;
        if (due.length >= room || bytes <= 0) continue;
        const more = left.get(workspace) ?? lane.roomFor(workspace);
        if (more <= 0 || (isLarge(row) && large <= 0)) {
          crowded++;
          continue;
        }
        due.push(row);
        bytes -= bytesOf(row);
        if (isLarge(row)) large--;
        left.set(workspace, more - 1);
      }
    }
    return due;
  }

  /** One delivery attempt; never rejects. */
  async #attempt(host: HostId, lane: Lane, picked: Sent, body: Uint8Array | undefined): Promise<void> {
    const { outbox, log } = this.#deps;
    try {
      const row = outbox.now(picked);
      if (row?.state !== 'forwarding' || row.cancelRequested) return;
      try {
        const answer = await this.#handOver(host, lane, row, body);
        if (answer === undefined) return;
        await this.#deps.takeReceipt(host, answer, row);
        lane.forget(row.id);
        lane.gotThrough(row.to.workspace);
      } catch (error) {
        await this.#failed(host, lane, row, toAxError(error));
      }
    } catch (error) {
      log.error('outbox not updated', { host, message: picked.id, reason: toAxError(error).message });
      lane.all.begin();
    }
  }

  /** The answer with the receipt; undefined when there is no body any more. */
  async #handOver(host: HostId, lane: Lane, row: Sent, known: Uint8Array | undefined): Promise<Fields | undefined> {
    const { outbox, request } = this.#deps;
    const envelope = new Encoded(row.signed);
    if (isLarge(row)) return handOver({ outbox, request, running: this.#deps.running, pieces: lane.pieces }, host, row, envelope);
    const body = known ?? outbox.body(row.id);
    return body === undefined ? undefined : request(host, { type: 'deliver', envelope, pieces: [body] });
  }

  /** What the end of an attempt without a receipt means: refused for good, not now, or unknown. */
  async #failed(host: HostId, lane: Lane, { id, to }: Sent, failed: AxError): Promise<void> {
    const { outbox, store, events, clock } = this.#deps;
    const askedMs = Number(failed.details?.['retry_after_ms'] ?? 0);
    const cause = causeOf(failed, clock.now());
    const refused = refusedClass(failed);
    const certain = lane.untouched.has(id) && (refused !== undefined || failed.details?.['sent'] === false);
    if (!certain) lane.untouched.delete(id);
    if (refused === undefined) lane.all.begin();
    else if (refused === 'deferred' && failed.code === 'grant_missing') lane.postpone(id);
    // A rate is of one workspace first; what is over the host's own, or over a bound on what waits there, is over it for any workspace.
    else if (refused === 'deferred' && failed.code === 'throttled') lane.hold(to.workspace, askedMs);
    else if (refused === 'deferred') {
      if (failed.code === 'limit') lane.withinRate(to.workspace);
      lane.messages.begin(askedMs);
    }
    const next = await store.write((tx) => {
      const before = outbox.get(id, tx);
      const after =
        refused === 'rejected'
          ? outbox.refuse(tx, id, cause)
          : refused === 'deferred'
            ? outbox.defer(tx, id, certain, cause)
            : outbox.unanswered(tx, id, certain, cause);
      const isTold =
        after?.state === 'refused' || after?.state === 'cancelled' || (after?.state === 'deferred' && before?.cause?.code !== cause.code);
      if (after !== undefined && isTold)
        events.add(tx, { type: `message.${after.state}`, messageId: id, hostId: host, state: after.state, detail: cause.code });
      return after;
    });
    if (next?.state === 'refused' || next?.state === 'cancelled') lane.forget(id);
  }
}

/** Does a message go over in several pieces? */
function isLarge(row: Sent): row is Sent & { readonly pieces: number } {
  return row.pieces !== undefined;
}

/** What a message takes of the window, bytes: the pieces of a large one have a window of their own. */
function bytesOf(row: Sent): number {
  return isLarge(row) ? 0 : row.bytes;
}

/** How the peer refused, when the error is the peer's own answer. */
export function refusedClass(error: unknown): 'deferred' | 'rejected' | undefined {
  const refused = error instanceof AxError ? error.details?.['refused'] : undefined;
  return refused === 'deferred' || refused === 'rejected' ? refused : undefined;
}

/** Why an attempt did not end in acceptance, for the status page. */
export function causeOf(error: unknown, at: number): Cause {
  const failed = toAxError(error);
  const asked = failed.details?.['retry_after_ms'];
  return { code: failed.code, message: failed.message, at, ...(typeof asked === 'number' && asked > 0 ? { retryAfterMs: asked } : {}) };
}
