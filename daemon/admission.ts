/**
 * Admission: what this host does with a message or a cancel that a paired host hands over.
 *
 * Owns the order of checks (signature by the link's peer, shape, that it opens, workspace, grants, room, limits) and the one
 * transaction that decides. A body of several pieces is offered, handed over piece by piece (arriving.ts) and then delivered: each time
 * the same checks. Invariants: accepted means durable and readable; a duplicate is answered only after the flush that
 * covers its first copy; a cancel that comes before its message leaves a tombstone that answers the late copy.
 */
import { acceptEnvelope, acceptOffer, openEnvelopeHeaders, openerOf, readEnvelope, requirePiece } from '../protocol/envelope.ts';
import type { Envelope, Opener } from '../protocol/envelope.ts';
import { violation } from '../protocol/codec.ts';
import { AxError } from '../protocol/errors.ts';
import { encodeSigned, sha256, signedValue } from '../protocol/hashtree.ts';
import type { Signed } from '../protocol/hashtree.ts';
import type { HostKey } from '../protocol/identity.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { DEFAULT_RETENTION_MS, MAX_RETENTION_MS } from '../protocol/limits.ts';
import { release, releaseFrame } from '../protocol/memory.ts';
import { isNoticeSafe } from '../protocol/paths.ts';
import { readCancel, receiptPayload, RECEIPT_CONTEXT } from '../protocol/receipt.ts';
import type { SealKeys } from '../protocol/seal.ts';
import type { ReceiptOutcome } from '../protocol/states.ts';
import { encodeResult } from '../protocol/wire.ts';
import type { WireRequest } from '../protocol/wire.ts';
import type { Agents } from './agents.ts';
import type { Arriving, Begun } from './arriving.ts';
import type { Clock } from './clock/clock.ts';
import { endReceipt } from './ending.ts';
import type { Events } from './events.ts';
import type { Files } from './files/files.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Peers } from './peers.ts';
import type { Rates } from './rates.ts';
import type { Receipts } from './receipts.ts';
import type { Refusals } from './refusals.ts';
import { GroupSigner } from './signing.ts';
import type { Store, StoreReader } from './store/store.ts';

/** Envelopes whose pieces arrive, that are kept read. */
const KEPT_ENVELOPES = 16;

interface BegunEnvelope {
  readonly envelope: Envelope;
  readonly opener: Opener;
}

const NO_WRITE = 'that host may not write here';

export interface AdmissionDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly key: HostKey;
  readonly sealKeys: SealKeys;
  readonly files: Files;
  readonly running: () => number;
  readonly peers: Peers;
  readonly inbox: Inbox;
  readonly arriving: Arriving;
  readonly receipts: Receipts;
  readonly agents: Agents;
  readonly events: Events;
  readonly refusals: Refusals;
  readonly rates: Rates;
  /** Throws AxError `store_full` when nothing new of that many bytes may be taken. */
  readonly requireRoom: (bytes?: number) => void;
  readonly hasLiveSession: (harness: string, workspace: string) => boolean;
  /** For how many ms the agent of an address is quiet still; 0: not, or there is none. */
  readonly quietMs: (harness: string, workspace: string) => number;
  /** A message was accepted for an address. */
  readonly onReceived: (row: Received) => void;
  /** Receipts wait for a host that did not wait before. */
  readonly onReceipts: (host: HostId) => void;
  /** One that is here was handed over again: what its sender was told of it meanwhile may be lost with the first answer. */
  readonly onRepeated: (row: Received) => void;
}

export class Admission {
  readonly #deps: AdmissionDeps;

  readonly #signer: GroupSigner;
  /** By their digest, the newest last. */
  readonly #arriving = new Map<string, BegunEnvelope>();

  constructor(deps: AdmissionDeps) {
    this.#deps = deps;
    this.#signer = new GroupSigner(deps.key, RECEIPT_CONTEXT);
  }

  /** Decides about what a paired host hands over; the answer's bytes. AxError as the methods below. */
  handle(peer: HostId, request: WireRequest & { readonly type: 'deliver' | 'offer' | 'piece' | 'cancel' }): Promise<Uint8Array> {
    if (request.type === 'deliver') return this.accept(peer, request);
    if (request.type === 'offer') return this.offer(peer, request);
    return request.type === 'piece' ? this.piece(peer, request) : this.cancel(peer, request);
  }

  /**
   * Takes a message; the answer is the signed receipt, after the flush, or which of its several pieces are missing. AxError as
   * protocol/README.md, section 11.
   */
  async accept(peer: HostId, request: WireRequest & { readonly type: 'deliver' }): Promise<Uint8Array> {
    const { key, sealKeys } = this.#deps;
    const [piece] = request.pieces;
    if (piece === undefined) return this.#take(peer, request.envelope, this.#offered(peer, request.envelope), 'here');
    const envelope = acceptEnvelope(peer, key.hostId, request.envelope, request.pieces);
    this.#requireWrite(peer, null);
    const looked = this.#deps.files.canonicalFolder(envelope.to.workspace); // another thread looks while this one opens
    const opener = openerOf(sealKeys, key.hostId, envelope); // accepted means readable: both open here or it is refused
    opener.headers();
    opener.piece(0, piece);
    return this.#decide(peer, request.envelope, envelope, piece, looked);
  }

  /** Judges a message of several pieces before they come: the answer is which are missing, or the receipt where it is known already. */
  async offer(peer: HostId, request: WireRequest & { readonly type: 'offer' }): Promise<Uint8Array> {
    return this.#take(peer, request.envelope, this.#offered(peer, request.envelope), 'offered');
  }

  /** Keeps one piece of a message that was offered; the answer, after the flush, says whether it was still wanted. */
  async piece(peer: HostId, { id, index, piece }: WireRequest & { readonly type: 'piece' }): Promise<Uint8Array> {
    const { store, arriving, requireRoom } = this.#deps;
    this.#requireWrite(peer, null);
    const begun = arriving.get(peer, id);
    if (begun === undefined) return encodeResult({ stored: false });
    const { envelope, opener } = this.#begun(begun);
    requirePiece(envelope, index, piece);
    release(opener.piece(index, piece));
    requireRoom(piece.length);
    const stored = await store.write((tx) => arriving.put(tx, begun, index, piece));
    releaseFrame(piece);
    return encodeResult({ stored });
  }

  /** What is read of an envelope for each of its pieces: once for those that come one after the other. */
  #begun({ payload, digest }: Begun): BegunEnvelope {
    const { key, sealKeys } = this.#deps;
    const name = Buffer.from(digest).toString('base64');
    const known = this.#arriving.get(name);
    if (known !== undefined) return known;
    const envelope = readEnvelope(payload);
    const fresh = { envelope, opener: openerOf(sealKeys, key.hostId, envelope) };
    for (const oldest of this.#arriving.keys()) if (this.#arriving.size >= KEPT_ENVELOPES) this.#arriving.delete(oldest);
    this.#arriving.set(name, fresh);
    return fresh;
  }

  #offered(peer: HostId, signed: Signed): Envelope {
    const { key, sealKeys } = this.#deps;
    const envelope = acceptOffer(peer, key.hostId, signed);
    if (envelope.pieces.length === 1) throw violation('a body of one piece comes with its message');
    openEnvelopeHeaders(sealKeys, key.hostId, envelope);
    return envelope;
  }

  /** Decides about a message whose pieces come by themselves; one that is refused for good leaves none behind. */
  async #take(peer: HostId, signed: Signed, envelope: Envelope, how: 'offered' | 'here'): Promise<Uint8Array> {
    const { store, arriving } = this.#deps;
    try {
      return await this.#decide(peer, signed, envelope, how);
    } catch (error) {
      if (error instanceof AxError && error.class === 'rejected' && arriving.get(peer, envelope.id) !== undefined)
        await store.write((tx) => arriving.drop(tx, peer, envelope.id));
      throw error;
    }
  }

  /** `looked`: the canonical folder, where it is being looked up already. */
  async #decide(
    peer: HostId,
    signed: Signed,
    envelope: Envelope,
    body: Uint8Array | 'offered' | 'here',
    looked?: Promise<string | undefined>,
  ): Promise<Uint8Array> {
    const { files, store, peers, inbox, arriving, agents, events, clock, running, hasLiveSession } = this.#deps;
    const digest = sha256(signed.payload);
    this.#requireWrite(peer, null); // before anything is said about this host's folders; again in the transaction
    const known = inbox.get(peer, envelope.id);
    const workspace = known?.workspace ?? (await (looked ?? files.canonicalFolder(envelope.to.workspace)));
    if (workspace !== undefined) this.#requireWrite(peer, workspace);
    if (workspace === undefined) throw this.#missing(peer);
    if (!isNoticeSafe(workspace)) throw new AxError('invalid_argument', 'no session can be set up in a folder of that name');
    const half = arriving.get(peer, envelope.id);
    const isHalfHere = half !== undefined && Buffer.compare(half.digest, digest) === 0;
    // A copy of a message that is here already, or half here, costs nothing; another one under its id does.
    if (known === undefined && !isHalfHere) {
      this.#deps.requireRoom(envelope.bytes);
      this.#deps.rates.take(peer, workspace);
    }
    const result = await store.write((tx) => {
      this.#requireWrite(peer, workspace, tx);
      const mayNotify = peers.may(peer, 'notify', workspace, tx);
      const registered = agents.at(envelope.to.harness, workspace, tx) !== undefined;
      const fresh = {
        id: envelope.id,
        sender: peer,
        state: registered ? ('available' as const) : ('awaiting_setup' as const),
        storedAs: envelope.kind === 'message' && mayNotify ? ('message' as const) : ('note' as const),
        signed: encodeSigned(signed),
        digest,
        bytes: envelope.bytes,
        ...(envelope.pieces.length === 1 ? {} : { pieces: envelope.pieces.length }),
        harness: envelope.to.harness,
        workspace,
        hint: envelope.to.session ?? null,
        sentAt: envelope.sentAt,
        receivedAt: clock.now(),
        expires: running() + Math.min(envelope.retentionMs ?? DEFAULT_RETENTION_MS, MAX_RETENTION_MS),
      };
      if (typeof body === 'string' && inbox.isNew(tx, fresh)) {
        const missing = arriving.offer(tx, peer, envelope, signed.payload, digest);
        if (body === 'offered' || missing.length > 0) return { kind: 'missing' as const, missing };
        arriving.settle(tx, peer, envelope.id);
      }
      const admitted = inbox.accept(tx, fresh, typeof body === 'string' ? null : body);
      // Pieces of another envelope under this id: nothing will ever be made of them.
      if (admitted.kind === 'new' && typeof body !== 'string') arriving.drop(tx, peer, envelope.id);
      if (admitted.kind === 'new')
        events.add(tx, {
          type: 'message.received',
          messageId: envelope.id,
          hostId: peer,
          state: admitted.row.state,
          ...(admitted.row.storedAs === 'note' ? { detail: 'note' } : {}),
        });
      return admitted;
    });
    if (result.kind === 'missing') return encodeResult({ missing: result.missing });
    if (result.kind === 'cancelled') return this.#answer('cancelled', peer, envelope.id, digest, undefined);
    if (result.kind === 'new') this.#deps.onReceived(result.row);
    else if (result.row !== undefined) this.#deps.onRepeated(result.row);
    if (result.kind === 'new' && result.row.storedAs === 'note' && envelope.kind === 'message')
      this.#deps.refusals.note(peer, 'notify', workspace);
    const row = result.row;
    if (row === undefined) return this.#answer('expired', peer, envelope.id, digest, row); // taken once, and forgotten since
    // Of an end its sender may never hear otherwise: what waited for it to be told is dropped when a host is removed.
    if (row.state !== 'awaiting_setup' && row.state !== 'available') return this.#answer(row.state, peer, envelope.id, digest, row);
    return this.#answer('accepted', peer, envelope.id, digest, row, hasLiveSession(envelope.to.harness, workspace));
  }

  /** Decides a cancel in one transaction; the answer is the signed receipt (`cancelled`, `too_late` or `expired`). */
  async cancel(peer: HostId, request: WireRequest & { readonly type: 'cancel' }): Promise<Uint8Array> {
    const { key, store, clock, inbox, arriving, receipts, events } = this.#deps;
    const cancel = readCancel(peer, key.hostId, request.cancel);
    const result = await store.write((tx) => {
      const decided = inbox.cancel(tx, peer, cancel.id, cancel.digest);
      arriving.drop(tx, peer, cancel.id); // a message that was taken has nothing there
      if (decided.isNew) events.add(tx, { type: 'message.cancelled', messageId: cancel.id, hostId: peer, state: 'cancelled' });
      // `too_late` is not the receipt of a pickup; that one its sender may have lost, or never got: it is told again.
      const picked = decided.outcome === 'too_late' && decided.row?.state === 'fetched' ? decided.row : undefined;
      if (picked !== undefined && !receipts.has(peer, picked.id, tx))
        receipts.add(tx, peer, picked.id, endReceipt(key, picked, clock.now()));
      return decided;
    });
    if (result.outcome === 'too_late') this.#deps.onReceipts(peer);
    return this.#answer(result.outcome, peer, cancel.id, cancel.digest, result.row);
  }

  /** Whoever may write to some folders only learns nothing of the others: not granted and not there are one answer. */
  #missing(peer: HostId): AxError {
    return this.#deps.peers.mayEverywhere(peer, 'write')
      ? new AxError('not_found', 'that workspace does not exist on this host')
      : new AxError('grant_missing', NO_WRITE);
  }

  #requireWrite(peer: HostId, workspace: string | null, reader?: StoreReader): void {
    const { peers, refusals } = this.#deps;
    if (peers.may(peer, 'write', workspace, reader)) return;
    if (peers.get(peer, reader) === undefined) throw new AxError('untrusted_peer', 'that host is not paired with this one');
    refusals.note(peer, 'write', workspace);
    throw new AxError('grant_missing', NO_WRITE);
  }

  async #answer(
    outcome: ReceiptOutcome,
    sender: HostId,
    id: MessageId,
    digest: Uint8Array,
    row: Received | undefined,
    liveSession = false,
  ): Promise<Uint8Array> {
    const state = row?.state ?? (outcome === 'cancelled' ? 'cancelled' : outcome === 'expired' ? 'expired' : 'awaiting_setup');
    const at =
      outcome === 'accepted' ? (row?.receivedAt ?? this.#deps.clock.now()) : (row?.fetchedAt ?? row?.handedOutAt ?? this.#deps.clock.now());
    const signed = this.#signer.enlist(
      receiptPayload(this.#deps.key.hostId, {
        outcome,
        id,
        digest,
        sender,
        at,
        state,
        storedAs: row?.storedAs ?? 'message',
        liveSession,
        certain: row?.state === 'fetched',
        ...(outcome === 'accepted' && this.#isQuiet(row) ? { noticeReason: 'quiet' } : {}),
      }),
    );
    await Promise.resolve(); // the others of the same commit make theirs in this turn too
    return encodeResult({ receipt: signedValue(signed()) });
  }

  /** Is it sure already that no session is told of this, since the agent is quiet? */
  #isQuiet(row: Received | undefined): boolean {
    const isForAgent = row?.storedAs === 'message' && row.state === 'available' && row.notice === null;
    return isForAgent && this.#deps.quietMs(row.harness, row.workspace) > 0;
  }
}
