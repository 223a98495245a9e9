/**
 * Pickup: handing a body out and recording that its reader has it. The only thing in ax that counts as delivery.
 *
 * Two steps: `fetch` makes the hand-out durable and gives the body; `confirm`, called after the body was written out whole,
 * makes `fetched` and the receipt for the sender. Only the attached session picks up; an owner's read from a plain shell gives the body,
 * leaves an event and changes no state. A large body is given part by part behind the hand-out, each opened when it is asked for.
 * Invariant: no body leaves without a fetch that was recorded or, for an owner's, tried to be.
 */
import { openEnvelopePiece, openEnvelopeHeaders, readEnvelope } from '../protocol/envelope.ts';
import type { Envelope, Headers } from '../protocol/envelope.ts';
import { decode } from '../protocol/codec.ts';
import type { FetchedMessage, SessionEnvironment } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import { readSigned, sha256, sha256InParts } from '../protocol/hashtree.ts';
import { parseHostId } from '../protocol/identity.ts';
import type { HostKey } from '../protocol/identity.ts';
import { parseMessageId, parseMessageIdPrefix } from '../protocol/ids.ts';
import { setupCommand } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { parseWorkspace } from '../protocol/paths.ts';
import type { SealKeys } from '../protocol/seal.ts';
import { RECEIVER_ENDS } from '../protocol/states.ts';
import type { Agents } from './agents.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import { endReceipt } from './ending.ts';
import type { Events } from './events.ts';
import type { Files } from './files/files.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Naming } from './naming.ts';
import type { Notices } from './notices.ts';
import type { Outbox } from './outbox.ts';
import type { Peers } from './peers.ts';
import type { Receipts } from './receipts.ts';
import { claimOf, waitingRow } from './registration.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';

export interface PickupDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly key: HostKey;
  readonly sealKeys: SealKeys;
  readonly ax: AxCommand;
  /** A body up to this comes with the hand-out, bytes. */
  readonly inlineBytes: number;
  readonly files: Files;
  readonly discovery: Discovery;
  readonly naming: Naming;
  readonly agents: Agents;
  readonly inbox: Inbox;
  readonly outbox: Outbox;
  readonly receipts: Receipts;
  readonly peers: Peers;
  readonly notices: Notices;
  readonly events: Events;
  readonly onMessage: (row: Received) => void;
  readonly onReceipt: (row: Received) => void;
  readonly onChanged: (harness: string, workspace: string) => void;
}

/** A message as a fetch found it. */
interface Read {
  readonly after: Received;
  readonly refetch: boolean;
  readonly firstFetchedAt: number | null;
}

/** Other waiting messages a fetch names. */
const LISTED = 10;
/** Reads by owners whose parts can still be asked for; a new one pushes the oldest out. */
const OWNER_READS = 64;

/** A large body in one piece, and its SHA-256 in hexadecimal. */
export interface WholeBody {
  readonly body: Uint8Array;
  readonly sha256: string;
}

export class Pickup {
  readonly #deps: PickupDeps;
  /** Tokens of owners' reads of large bodies in this life, oldest first, each with its message. */
  readonly #ownerReads = new Map<string, string>();

  constructor(deps: PickupDeps) {
    this.#deps = deps;
  }

  /** Gives the body. With a session: a hand-out, durable on return. Without: an owner's read. */
  async fetch(params: { id: unknown; workspace: unknown }, environment: SessionEnvironment | null): Promise<FetchedMessage> {
    const row = await this.#find(params);
    const session = environment === null ? undefined : await this.#attachedSession(row, environment);
    return this.#handOut(row, session);
  }

  /**
   * The same for a session that the caller has found live, judged by its attachment alone. `told` runs in the hand-out's own transaction
   * with the unread messages that the answer lists. AxError `invalid_state` when that session is not attached to the message's folder.
   */
  async fetchFor(
    session: string,
    row: Received,
    told: (tx: StoreTransaction, listed: readonly Received[]) => void,
  ): Promise<FetchedMessage> {
    return this.#handOut(row, session, (tx, listed) => {
      const agent = this.#deps.agents.at(row.harness, row.workspace, tx);
      if (agent?.attachments.some((attachment) => attachment.sessionId === session) !== true)
        throw new AxError('invalid_state', 'this session is not attached to the workspace of the message');
      told(tx, listed);
    });
  }

  async #handOut(
    row: Received,
    session: string | undefined,
    within?: (tx: StoreTransaction, listed: readonly Received[]) => void,
  ): Promise<FetchedMessage> {
    const { store, clock, random, naming, inbox, notices, events } = this.#deps;
    const token = Buffer.from(random.bytes(12)).toString('hex');
    const written = store.write((tx) => {
      const read = inbox.require(tx, row.sender, row.id);
      within?.(tx, this.#others(row, tx));
      const earlier = { refetch: read.handedOutAt !== null, firstFetchedAt: read.fetchedAt };
      if (session === undefined) {
        events.add(tx, { type: 'message.read_by_owner', messageId: row.id, hostId: row.sender, state: read.state });
        return { after: read, ...earlier };
      }
      if (read.state === 'awaiting_setup')
        events.add(tx, { type: 'message.available', messageId: row.id, hostId: row.sender, state: 'available' });
      const handed = inbox.handOut(tx, row.sender, row.id, { token, at: clock.now(), session });
      notices.toldBySelf(tx, session, Math.max(row.seq, inbox.newestUnread(row.harness, row.workspace, tx)), clock.now());
      events.add(tx, { type: 'message.handed_out', messageId: row.id, hostId: row.sender, state: handed.state });
      return { after: handed, ...earlier };
    });
    const { after, refetch, firstFetchedAt } = await (session === undefined ? this.#orUnrecorded(written, row) : written);
    if (session !== undefined) this.#deps.onMessage(after);
    const envelope = envelopeOf(after);
    const headers = this.#openHeaders(envelope);
    const isWhole = after.bytes <= this.#deps.inlineBytes;
    const body = isWhole ? this.#openBody(after, envelope) : new Uint8Array(0);
    const isLater = session === undefined && !isWhole;
    if (isLater) this.#rememberRead(token, row);
    return {
      message_id: row.id,
      hand_out: session !== undefined || isLater ? token : '',
      from: naming.party(headers.from?.name, row.sender),
      from_host: row.sender,
      can_reply: headers.from !== undefined,
      subject: headers.subject ?? null,
      sent_at: row.sentAt,
      body,
      ...(isWhole ? {} : { parts: envelope.pieces.length }),
      bytes: after.bytes,
      sha256: isWhole ? Buffer.from(sha256(body)).toString('hex') : null,
      first_fetched_at: firstFetchedAt,
      refetch,
      by: session === undefined ? 'owner' : 'session',
      workspace: row.workspace,
      waiting: this.#others(row).map(waitingRow),
      waiting_count: Math.max(0, inbox.countUnread(row.harness, row.workspace) - (RECEIVER_ENDS.has(after.state) ? 0 : 1)),
    };
  }

  #rememberRead(token: string, row: Received): void {
    this.#ownerReads.set(token, wholeName(row));
    for (const oldest of this.#ownerReads.keys()) if (this.#ownerReads.size > OWNER_READS) this.#ownerReads.delete(oldest);
  }

  /**
   * One part of a body that a fetch announced in parts, to whoever has that fetch's hand-out; changes nothing. AxError `expired`,
   * `invalid_argument`, `invalid_state` (not that hand-out, or no parts), `message_not_found`.
   */
  part(params: { id: unknown; fromHost: unknown; handOut: unknown; index: unknown }): { readonly body: Uint8Array } {
    const { inbox, store, inlineBytes } = this.#deps;
    const row = inbox.require(store, parseHostId(params.fromHost), parseMessageId(params.id));
    const { handOut: token, index } = params;
    if (row.bytes <= inlineBytes) throw new AxError('invalid_state', 'the body of this message has no parts: a fetch gives all of it');
    const isOwners = typeof token === 'string' && this.#ownerReads.get(token) === wholeName(row);
    if (!isOwners && !row.handOuts.some((handOut) => handOut.token === token))
      throw new AxError('invalid_state', 'parts of a body are given under the hand-out of a fetch of it only; fetch it again');
    const envelope = envelopeOf(row);
    if (typeof index !== 'number' || !Number.isSafeInteger(index) || index < 0 || index >= envelope.pieces.length)
      throw new AxError('invalid_argument', `the body has ${envelope.pieces.length} parts, counted from 0`);
    return { body: this.#openPiece(row, envelope, index) };
  }

  /** The whole body of a message that came in parts, for a reader that can ask for none; others get their turn between them. */
  async whole(row: Received): Promise<WholeBody> {
    const hash = sha256InParts();
    const envelope = envelopeOf(row);
    const body = new Uint8Array(row.bytes);
    for (let index = 0, at = 0; index < envelope.pieces.length; index++) {
      const part = this.#openPiece(row, envelope, index);
      body.set(part, at);
      hash.add(part);
      at += part.length;
      await new Promise<void>((resolve) => void this.#deps.clock.after(0, resolve));
    }
    return { body, sha256: hash.end() };
  }

  /** An owner's read changes nothing but the event log: what is here can be read when that cannot be written. */
  async #orUnrecorded(written: Promise<Read>, row: Received): Promise<Read> {
    try {
      return await written;
    } catch (error) {
      const { store, inbox } = this.#deps;
      if (!(error instanceof AxError) || !['store_full', 'store_corrupt', 'internal'].includes(error.code)) throw error;
      const read = inbox.require(store, row.sender, row.id);
      return { after: read, refetch: read.handedOutAt !== null, firstFetchedAt: read.fetchedAt };
    }
  }

  /** The oldest other unread messages of the same address. */
  #others(row: Received, reader?: StoreReader): Received[] {
    return this.#deps.inbox
      .unread(row.harness, row.workspace, LISTED + 1, reader)
      .filter((other) => other.seq !== row.seq)
      .slice(0, LISTED);
  }

  /** The reader has the whole body: `fetched`, with the sender's receipt, durable on return. Repeating it changes nothing. */
  async confirm(params: { id: unknown; handOut: unknown }): Promise<{ message_id: string; state: string }> {
    const { store, clock, key, peers, inbox, outbox, receipts, events } = this.#deps;
    if (typeof params.handOut !== 'string' || params.handOut === '')
      throw new AxError('invalid_argument', 'a confirmation names its hand-out');
    const token = params.handOut;
    // By the token: two hosts may have used the same id.
    const handedOut = inbox.find(parseMessageIdPrefix(params.id), 20);
    const received = handedOut.find((row) => row.handOuts.some((handOut) => handOut.token === token)) ?? handedOut[0];
    if (received === undefined) throw new AxError('message_not_found', 'there is no such message');
    const done = await store.write((tx) => {
      const result = inbox.confirm(tx, received.sender, received.id, token, clock.now());
      if (!result.first) return result;
      const row = result.row;
      events.add(tx, { type: 'message.fetched', messageId: row.id, hostId: row.sender, state: 'fetched' });
      if (row.sender === key.hostId) outbox.settleLocal(tx, row.id, 'fetched', clock.now());
      else if (peers.get(row.sender, tx) !== undefined) receipts.add(tx, row.sender, row.id, endReceipt(key, row, clock.now()));
      return result;
    });
    if (done.first) this.#deps.onReceipt(done.row);
    this.#deps.onChanged(done.row.harness, done.row.workspace);
    return { message_id: received.id, state: done.row.state };
  }

  /** Headers of a received message, opened. */
  headers(row: Received): Headers {
    return this.#openHeaders(envelopeOf(row));
  }

  async #find(params: { id: unknown; workspace: unknown }): Promise<Received> {
    const { naming, files, inbox } = this.#deps;
    const typed = params.workspace === undefined || params.workspace === null ? undefined : parseWorkspace(params.workspace);
    const workspace = typed === undefined ? undefined : ((await files.canonicalFolder(typed)) ?? typed);
    const isHere = (row: Received): boolean => workspace === undefined || row.workspace === workspace;
    const { received } = naming.message(params.id, 'received', (row) => isHere(row) || !inbox.find(row.id, 20).some(isHere));
    if (received === undefined)
      throw new AxError('message_not_found', "there is no such message in this host's inbox", { fix: 'ax messages list' });
    if (!isHere(received))
      throw new AxError('message_not_found', `message ${received.id} is not for ${workspace}`, { fix: 'ax messages list' });
    return received;
  }

  /** The id of the calling session, which must be attached to the message's agent. */
  async #attachedSession(row: Received, environment: SessionEnvironment): Promise<string> {
    const { discovery, agents, ax } = this.#deps;
    const session = await discovery.prove(claimOf(environment));
    const agent = agents.at(row.harness, row.workspace);
    if (agent?.attachments.some((attachment) => attachment.sessionId === session.sessionId) === true) return session.sessionId;
    if (session.harness !== row.harness || session.workspace !== row.workspace) {
      throw new AxError(
        'invalid_state',
        `the message is for ${row.workspace}; this session works in ${session.workspace} and cannot pick it up`,
        { fix: 'ax messages list' },
      );
    }
    throw new AxError('invalid_state', 'this session is not attached to the workspace of the message', {
      fix: setupCommand(ax, agent?.name ?? 'NAME', row.workspace),
    });
  }

  #openHeaders(envelope: Envelope): Headers {
    return openEnvelopeHeaders(this.#deps.sealKeys, this.#deps.key.hostId, envelope);
  }

  #openBody(row: Received, envelope: Envelope): Uint8Array {
    const pieces = envelope.pieces.map((_, index) => this.#openPiece(row, envelope, index));
    return pieces.length === 1 ? pieces[0]! : new Uint8Array(Buffer.concat(pieces));
  }

  #openPiece(row: Received, envelope: Envelope, index: number): Uint8Array {
    const { sealKeys, key, inbox } = this.#deps;
    const piece = inbox.body(row, index);
    if (piece === undefined) throw new AxError('expired', 'the retention of this message has ended; its body is gone');
    return openEnvelopePiece(sealKeys, key.hostId, envelope, index, piece);
  }
}

/** A message by more than its id, which two hosts may both have used. */
function wholeName(row: Received): string {
  return `${row.sender}/${row.id}`;
}

function envelopeOf(row: Received): Envelope {
  return readEnvelope(readSigned(decode(row.signed), 'an envelope').payload);
}
