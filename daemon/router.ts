/**
 * The router: the only way a message enters this host's books as something to send.
 *
 * Owns who the sender is, what the destination is, sealing, and the one idempotency rule: a request id makes one message, the
 * same request again answers with it, another request under the same id is a conflict. Local messages take one transaction
 * (inbox row and settled outbox row); remote ones go to the outbox and the exchange. Returns only when it is durable.
 */
import type { Destination, ReplyAddress } from '../protocol/address.ts';
import type { QueuedMessage } from '../protocol/control.ts';
import { ENVELOPE_CONTEXT, SEAL_RANDOM_BYTES } from '../protocol/envelope.ts';
import type { Draft, Headers } from '../protocol/envelope.ts';
import { AxError } from '../protocol/errors.ts';
import { encodeSigned } from '../protocol/hashtree.ts';
import type { HostKey } from '../protocol/identity.ts';
import { makeMessageId, parseLabel, parseMessageId, parseRequestKey } from '../protocol/ids.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import {
  DEFAULT_DEADLINE_MS,
  DEFAULT_RETENTION_MS,
  MAX_BODY_BYTES,
  MAX_DEADLINE_MS,
  MAX_PIECE_BYTES,
  MAX_RETENTION_MS,
  MAX_SUBJECT_BYTES,
} from '../protocol/limits.ts';
import type { SealKeys } from '../protocol/seal.ts';
import type { MessageKind, WithheldReason } from '../protocol/states.ts';
import { refuseSelf } from './addressing.ts';
import type { Actor, Addressing, Target } from './addressing.ts';
import type { Agent, Agents } from './agents.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Events } from './events.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Naming } from './naming.ts';
import type { Outbox } from './outbox.ts';
import { Repeats } from './repeats.ts';
import type { Repeatable } from './repeats.ts';
import { dropSealed, forgetSealed, sealToStore, settleSealed } from './sealing.ts';
import type { Sealed } from './sealing.ts';
import type { Sent } from './sent-row.ts';
import type { Pickup } from './pickup.ts';
import { GroupSigner } from './signing.ts';
import type { Staging } from './staging.ts';
import type { Store, StoreReader, StoreTransaction } from './store/store.ts';
import { Body } from './uploads.ts';
import type { Uploads } from './uploads.ts';

export interface RouterDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly key: HostKey;
  readonly sealKeys: SealKeys;
  readonly running: () => number;
  readonly naming: Naming;
  readonly addressing: Addressing;
  readonly agents: Agents;
  readonly inbox: Inbox;
  readonly outbox: Outbox;
  readonly events: Events;
  readonly pickup: Pickup;
  readonly staging: Staging;
  readonly uploads: Uploads;
  /** Largest piece of a body, bytes. */
  readonly pieceBytes: number;
  readonly requireRoom: (bytes?: number) => void;
  /** For how many ms the agent of a local address is quiet still; 0: not, or there is none. */
  readonly quietMs: (harness: string, workspace: string) => number;
  /** A new entry for this host may leave as soon as it is stored. */
  readonly mayLeaveNow: (host: HostId) => boolean;
  readonly isPaired: (host: HostId, reader: StoreReader) => boolean;
  /** A new entry for another host is durable; `body`: sealed, of one piece. */
  readonly onQueued: (row: Sent, body: Uint8Array | null) => void;
  readonly onReceived: (row: Received) => void;
}

type Params = Readonly<Record<string, unknown>>;

interface Request extends Repeatable {
  readonly id: MessageId;
}

/** What of a request its key stands for, beside the body. */
const COVERED = [
  'id',
  'host',
  'to',
  'session',
  'workspace',
  'harness',
  'kind',
  'reply_to',
  'subject',
  'deadline_ms',
  'retention_ms',
  'agent',
];

export class Router {
  readonly #deps: RouterDeps;
  readonly #repeats: Repeats;
  readonly #signer: GroupSigner;

  constructor(deps: RouterDeps) {
    this.#deps = deps;
    this.#signer = new GroupSigner(deps.key, ENVELOPE_CONTEXT);
    this.#repeats = new Repeats(deps.clock, deps.key.hostId, deps.sealKeys);
  }

  /** `ax send`. AxError as protocol/README.md, section 11. */
  async send(params: Params, actor: Actor): Promise<QueuedMessage> {
    const request = this.#request(params);
    return this.#repeats.inTurn(request, async () => (await this.#earlier(request)) ?? this.#send(request, params, actor));
  }

  async #send(request: Request, params: Params, actor: Actor): Promise<QueuedMessage> {
    readDraft(params, request.body); // before another host is asked for anything
    const { addressing } = this.#deps;
    const sender = await addressing.sender(params, actor);
    const target = await addressing.target(params);
    refuseSelf(target, sender, actor);
    const replyTo = params['reply_to'] === undefined || params['reply_to'] === null ? undefined : parseMessageId(params['reply_to']);
    return this.#queue(request, params, actor, sender, target, replyTo);
  }

  /** `ax messages reply`: to the logical address of the message's sender. */
  async reply(params: Params, actor: Actor): Promise<QueuedMessage> {
    const request = this.#request(params);
    return this.#repeats.inTurn(request, async () => (await this.#earlier(request)) ?? this.#reply(request, params, actor));
  }

  async #reply(request: Request, params: Params, actor: Actor): Promise<QueuedMessage> {
    const { naming, pickup, agents, addressing } = this.#deps;
    const { received } = naming.message(params['id'], 'received');
    if (received === undefined)
      throw new AxError('message_not_found', "only a message in this host's inbox can be answered", { fix: 'ax messages list' });
    const headers = pickup.headers(received);
    if (headers.from === undefined)
      throw noReplyAddress(received.sender === this.#deps.key.hostId ? 'Localhost' : naming.nameOf(received.sender));
    const own = agents.at(received.harness, received.workspace);
    const sender =
      params['agent'] === undefined || params['agent'] === null
        ? (own ?? (await addressing.sender(params, actor)))
        : await addressing.sender(params, actor);
    const host = received.sender === this.#deps.key.hostId ? naming.host('Localhost') : naming.host(received.sender);
    const target: Target = {
      host,
      harness: headers.from.harness,
      workspace: headers.from.workspace,
      session: undefined,
      live: addressing.liveAt(host, headers.from.harness, headers.from.workspace),
    };
    return this.#queue(request, params, actor, sender, target, received.id);
  }

  // --- one request, one message ------------------------------------------------------------------------------------------

  #request(params: Params): Request {
    const { clock, random, uploads } = this.#deps;
    const typed = params['body'];
    const isUploaded = params['upload'] !== undefined && params['upload'] !== null;
    if (!isUploaded && !(typed instanceof Uint8Array)) throw new AxError('invalid_argument', 'a body is missing');
    const body = isUploaded ? uploads.take(params['upload']) : new Body([typed as Uint8Array]);
    // Not the folder the caller stands in: from which agent of it is origin, and a repeat from elsewhere is still the same request.
    const facts = JSON.stringify(COVERED.map((name) => params[name] ?? null));
    const key = parseRequestKey(params['request_id']);
    return { ...this.#repeats.of(key, facts, body), id: makeMessageId(clock.now(), random.bytes(10)) };
  }

  /** The answer of an earlier same request; only after the flush of what it made, which may still be under way. */
  async #earlier(request: Request): Promise<QueuedMessage | undefined> {
    const { outbox, store } = this.#deps;
    const row = outbox.byRequest(request.key);
    if (row === undefined) return undefined;
    if (!(await this.#repeats.isSame(row, request))) throw conflict(row);
    return store.write((tx) => this.#replay(request, tx));
  }

  #replay({ key }: Request, reader: StoreReader): QueuedMessage | undefined {
    const row = this.#deps.outbox.byRequest(key, reader);
    return row === undefined ? undefined : this.#answer(row, true, undefined, row.agent === null ? [OWNER_NOTE] : [], reader);
  }

  // --- the message -------------------------------------------------------------------------------------------------------

  async #queue(
    request: Request,
    params: Params,
    actor: Actor,
    sender: Agent | undefined,
    target: Target,
    replyTo: MessageId | undefined,
  ): Promise<QueuedMessage> {
    const { store, clock, staging, requireRoom } = this.#deps;
    const { body } = request;
    const { kind, deadlineMs, retentionMs, subject } = readDraft(params, body);
    const from: ReplyAddress | undefined =
      sender === undefined ? undefined : { name: sender.name, harness: sender.harness, workspace: sender.workspace };
    const headers: Headers = {
      ...(subject === undefined ? {} : { subject }),
      ...(from === undefined ? {} : { from }),
      ...(replyTo === undefined ? {} : { replyTo }),
    };
    const to: Destination = {
      host: target.host.id,
      harness: target.harness,
      workspace: target.workspace,
      ...(target.session === undefined ? {} : { session: target.session }),
    };
    requireRoom(body.bytes <= MAX_PIECE_BYTES ? 0 : body.bytes);
    const sealed = await this.#seal({ id: request.id, kind, to, sentAt: clock.now(), retentionMs, headers }, body, target.host.local);
    const signed = this.#signer.enlist(sealed.payload); // by the commit below, together with all else that it stores
    const notes = sender === undefined ? [OWNER_NOTE] : [];
    const stored = store.write((tx) => {
      const earlier = this.#deps.outbox.byRequest(request.key, tx);
      if (earlier !== undefined) {
        // Stored meanwhile, so it is no large one of the same body: these come one after the other.
        if (earlier.request.fingerprint !== request.fingerprint || earlier.bytes !== body.bytes) throw conflict(earlier);
        dropSealed(staging, tx, sealed);
        return { replayed: this.#replay(request, tx)! };
      }
      settleSealed(staging, tx, sealed);
      const facts = {
        id: request.id,
        host: to.host,
        to,
        kind,
        signed: encodeSigned(signed()),
        digest: sealed.digest,
        bytes: body.bytes,
        ...(sealed.staged === undefined ? {} : { pieces: sealed.staged.count }),
        createdAt: clock.now(),
        createdRan: this.#deps.running(),
        deadline: this.#deps.running() + deadlineMs,
        agent: sender?.name ?? null,
        origin: actor.origin,
        request: { key: request.key, fingerprint: request.fingerprint },
      };
      return target.host.local ? this.#storeLocal(tx, facts, sealed, retentionMs) : this.#storeRemote(tx, facts, sealed);
    });
    const result = await stored.catch(async (error: unknown) => {
      await forgetSealed(store, staging, sealed.staged);
      throw error;
    });
    if ('replayed' in result) return result.replayed;
    if (result.received !== undefined) this.#deps.onReceived(result.received);
    else this.#deps.onQueued(result.sent, sealed.piece);
    return this.#answer(result.sent, false, target.live, notes);
  }

  /** Sealed; a body of one piece in memory, the pieces of a larger one stored already. */
  async #seal(draft: Omit<Draft, 'body'>, body: Body, local: boolean): Promise<Sealed> {
    const { store, staging, key, sealKeys, random, pieceBytes } = this.#deps;
    return sealToStore({ store, staging, self: key.hostId, sealKeys, pieceBytes }, draft, body, local, random.bytes(SEAL_RANDOM_BYTES));
  }

  #storeRemote(
    tx: StoreTransaction,
    facts: Omit<Parameters<Outbox['add']>[1], 'state' | 'local'>,
    sealed: Sealed,
  ): { sent: Sent; received: undefined } {
    if (!this.#deps.isPaired(facts.host, tx))
      throw new AxError('host_not_found', 'that host was removed meanwhile', { fix: 'ax host list' });
    const sent = this.#deps.outbox.add(
      tx,
      { ...facts, state: sealed.piece !== null && this.#deps.mayLeaveNow(facts.host) ? 'forwarding' : 'queued', local: false },
      sealed.piece,
    );
    this.#deps.events.add(tx, { type: 'message.queued', messageId: facts.id, hostId: facts.host, state: 'queued' });
    if (sent.state === 'forwarding')
      this.#deps.events.add(tx, { type: 'message.forwarding', messageId: facts.id, hostId: facts.host, state: 'forwarding' });
    return { sent, received: undefined };
  }

  #storeLocal(
    tx: StoreTransaction,
    facts: Omit<Parameters<Outbox['add']>[1], 'state' | 'local'>,
    sealed: Sealed,
    retentionMs: number,
  ): { sent: Sent; received: Received } {
    const { outbox, inbox, agents, events, key, clock, running } = this.#deps;
    const sent = outbox.add(tx, { ...facts, state: 'accepted', local: true }, null);
    const registered = agents.at(facts.to.harness, facts.to.workspace, tx) !== undefined;
    const admission = inbox.accept(
      tx,
      {
        id: facts.id,
        sender: key.hostId,
        state: registered ? 'available' : 'awaiting_setup',
        storedAs: facts.kind,
        signed: facts.signed,
        digest: facts.digest,
        bytes: facts.bytes,
        ...(facts.pieces === undefined ? {} : { pieces: facts.pieces }),
        harness: facts.to.harness,
        workspace: facts.to.workspace,
        hint: facts.to.session ?? null,
        sentAt: facts.createdAt,
        receivedAt: clock.now(),
        expires: running() + retentionMs,
      },
      sealed.piece,
    );
    if (admission.kind !== 'new') throw new AxError('internal', 'a fresh message id was already known');
    events.add(tx, { type: 'message.received', messageId: facts.id, hostId: key.hostId, state: admission.row.state });
    return { sent, received: admission.row };
  }

  #answer(row: Sent, replayed: boolean, live: boolean | undefined, notes: readonly string[], reader?: StoreReader): QueuedMessage {
    const { naming, inbox, key } = this.#deps;
    const local = row.local ? inbox.get(key.hostId, row.id, reader) : undefined;
    return {
      message_id: row.id,
      destination: {
        host_id: row.host,
        host: naming.nameOf(row.host),
        harness: row.to.harness,
        workspace: row.to.workspace,
        session_id: row.to.session ?? null,
      },
      kind: row.kind,
      state: row.local && local !== undefined ? local.state : row.state,
      stored_as: row.local ? row.kind : row.storedAs,
      live_session: row.receiver?.liveSession ?? live ?? null,
      receiver_notice_reason: local === undefined ? (row.receiver?.noticeReason ?? null) : this.#withheld(local),
      from: { host: naming.party(undefined, this.#deps.key.hostId), agent: row.agent },
      replayed,
      notes,
    };
  }

  /** Why no session of this host is told of a message of its own, as far as that is known. */
  #withheld(row: Received): WithheldReason | null {
    if (row.notice !== null) return row.notice.reason ?? null;
    return row.storedAs === 'message' && this.#deps.quietMs(row.harness, row.workspace) > 0 ? 'quiet' : null;
  }
}

function conflict({ id }: Sent): AxError {
  return new AxError('key_conflict', `this request id was used for another message, ${id}`, {
    details: { message_id: id },
    fix: 'use another --request-id',
  });
}

/** The owner of a host has no mailbox: who there could be written to instead is in its list. */
function noReplyAddress(host: string): AxError {
  return new AxError('no_reply_address', "the host's owner sent this message; it has no reply address", {
    fix: `write to a session or a folder there, which is listed by: ax agent sessions ${host}`,
  });
}

/** What a caller says about the message itself, judged before anybody is asked. AxError `invalid_argument`, `too_large`. */
function readDraft(
  params: Params,
  body: Body,
): { kind: MessageKind; deadlineMs: number; retentionMs: number; subject: string | undefined } {
  if (body.bytes === 0) throw new AxError('invalid_argument', 'the body is empty');
  if (body.bytes > MAX_BODY_BYTES)
    throw new AxError('too_large', `the body has ${body.bytes} bytes; at most ${MAX_BODY_BYTES} are allowed`, {
      details: { bytes: body.bytes, limit: MAX_BODY_BYTES },
    });
  const kind: MessageKind = params['kind'] === 'note' ? 'note' : 'message';
  const deadlineMs = span(params['deadline_ms'], 'a deadline', DEFAULT_DEADLINE_MS, MAX_DEADLINE_MS);
  const retentionMs = span(params['retention_ms'], 'a retention', DEFAULT_RETENTION_MS, MAX_RETENTION_MS);
  const subject =
    params['subject'] === undefined || params['subject'] === null
      ? undefined
      : parseLabel(params['subject'], 'a subject', MAX_SUBJECT_BYTES);
  return { kind, deadlineMs, retentionMs, subject };
}

/** Told with every send that carries no reply address. */
const OWNER_NOTE = 'sent as the owner of this host: nobody can reply to it';

/** A span in ms out of a parameter: whole, at least 1 s, capped by refusal. */
function span(value: unknown, what: string, fallback: number, max: number): number {
  if (value === undefined || value === null) return fallback;
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 1000)
    throw new AxError('invalid_argument', `${what} is at least 1 s`);
  if (value > max)
    throw new AxError('invalid_argument', `${what} is at most ${Math.floor(max / 86_400_000)} days`, { details: { limit_ms: max } });
  return value;
}
