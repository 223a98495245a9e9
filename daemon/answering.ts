/**
 * Answering: every request of another host, checked for pairing and grants before anything else.
 *
 * Owns the order of these checks, and how often a host may send what does not verify before its connection is closed instead of answered. What
 * a request asks for is done by others. Invariants: nothing of a host that is not paired is looked into, but its try to pair; an answer says
 * what is durable.
 */
import { AxError, toAxError } from '../protocol/errors.ts';
import type { HostKey } from '../protocol/identity.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { progressValue, readReceipt } from '../protocol/receipt.ts';
import type { Progress, Receipt } from '../protocol/receipt.ts';
import { RECEIVER_ENDS } from '../protocol/states.ts';
import { encodeRefusal, encodeResult, readRequest } from '../protocol/wire.ts';
import type { WireRequest } from '../protocol/wire.ts';
import type { Admission } from './admission.ts';
import type { Clock } from './clock/clock.ts';
import { endReceipt } from './ending.ts';
import type { Inbox } from './inbox.ts';
import type { Log } from './log.ts';
import type { Peers } from './peers.ts';
import type { Received } from './received-row.ts';
import type { Receipts } from './receipts.ts';
import type { Refusals } from './refusals.ts';
import type { Store, StoreReader } from './store/store.ts';

export interface AnsweringDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  readonly key: HostKey;
  readonly peers: Peers;
  readonly inbox: Inbox;
  readonly receipts: Receipts;
  readonly refusals: Refusals;
  readonly admission: Admission;
  /** The public session list of the workspaces that a peer may read, as an encoded answer. */
  readonly sessions: (mayRead: (workspace: string) => boolean) => Promise<Uint8Array>;
  readonly pair: (peer: HostId, request: WireRequest & { readonly type: 'pair' }) => Promise<Uint8Array>;
  readonly isStopped: () => boolean;
  /** Stores what a verified receipt says; durable on return. */
  readonly takeReceipt: (receipt: Receipt) => Promise<void>;
  /** Takes in unsigned progress of messages that were sent to a host. */
  readonly mirror: (host: HostId, items: readonly Progress[]) => Promise<void>;
  readonly progressOf: (sender: HostId, id: MessageId) => Progress | undefined;
  /** A host changed what this one may do there. */
  readonly onRetry: (host: HostId) => void;
  /** Receipts wait for a host that did not wait before. */
  readonly onReceipts: (host: HostId) => void;
}

/** Envelopes that do not verify, per host, before its connection is closed instead of answered. */
const STRIKES = 8;

export class Answering {
  readonly #deps: AnsweringDeps;
  readonly #strikes = new Map<HostId, number>();

  constructor(deps: AnsweringDeps) {
    this.#deps = deps;
  }

  /** Answers one request of a host. Rejects only for a broken or hostile peer: the link then closes the connection. */
  async handle(peer: HostId, bytes: Uint8Array): Promise<Uint8Array> {
    const request = readRequest(bytes); // a violation here closes the connection
    try {
      if (this.#deps.isStopped()) throw new AxError('shutting_down', 'this daemon is stopping');
      const answer = await this.#answer(peer, request);
      this.#strikes.delete(peer);
      return answer;
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
    const { peers, refusals } = this.#deps;
    if (peers.get(peer) === undefined) {
      refusals.stranger(peer);
      throw new AxError('untrusted_peer', 'this host is not paired with that one');
    }
    switch (request.type) {
      case 'deliver':
      case 'offer':
      case 'piece':
      case 'cancel':
        return this.#deps.admission.handle(peer, request);
      case 'receipt': {
        const receipt = readReceipt(peer, this.#deps.key.hostId, request.receipt);
        await this.#deps.takeReceipt(receipt);
        return encodeResult({});
      }
      case 'progress':
        await this.#remind(peer, request.ids);
        return encodeResult({ items: request.ids.flatMap((id) => this.#deps.progressOf(peer, id) ?? []).map(progressValue) });
      case 'update':
        await this.#deps.mirror(peer, request.items);
        if (request.retry) this.#deps.onRetry(peer);
        return encodeResult({});
      case 'sessions':
        if (!peers.may(peer, 'read', null)) {
          refusals.note(peer, 'read', null);
          throw new AxError('grant_missing', 'that host may not list sessions here');
        }
        return this.#deps.sessions((workspace) => peers.may(peer, 'read', workspace));
    }
  }

  /** Who asks after a message that has ended here never got, or never believed, its receipt: it is told again. */
  async #remind(peer: HostId, ids: readonly MessageId[]): Promise<void> {
    const { inbox, receipts, store, key, clock } = this.#deps;
    const ended = (reader: StoreReader): Received[] =>
      [...new Set(ids)]
        .flatMap((id) => inbox.get(peer, id, reader) ?? [])
        .filter((row) => RECEIVER_ENDS.has(row.state) && !receipts.has(peer, row.id, reader));
    if (ended(store).length === 0) return;
    await store.write((tx) => {
      for (const row of ended(tx)) receipts.add(tx, peer, row.id, endReceipt(key, row, clock.now()));
    });
    this.#deps.onReceipts(peer);
  }
}
