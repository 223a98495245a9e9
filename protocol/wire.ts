/**
 * The peer wire: every request one host may make of another, and every answer, as typed values.
 *
 * Owns their encoding and strict reading. Hello is frozen for ever. An answer is a result or a refusal; a refusal carries
 * its class, so that an unknown code from a newer peer still says whether to try again. Local detail never crosses: no
 * paths, no sentences, only codes and times.
 * Reading gives a value or AxError `protocol_violation`.
 */
import { HARNESSES } from './address.ts';
import type { HarnessName } from './address.ts';
import {
  asFields,
  asList,
  decode,
  encode,
  Encoded,
  flag,
  oneOf,
  optionalFlag,
  optionalShown,
  optionalWhole,
  shown,
  text,
  violation,
  whole,
} from './codec.ts';
import type { Fields, Value } from './codec.ts';
import { ERROR_TABLE, isErrorCode } from './errors.ts';
import type { AxError, ErrorCode } from './errors.ts';
import { readSigned, signedValue } from './hashtree.ts';
import type { Signed } from './hashtree.ts';
import { isMessageId } from './ids.ts';
import type { MessageId } from './ids.ts';
import { MAX_LABEL_BYTES, MAX_PATH_BYTES, MAX_PIECE_BYTES, MAX_PIECES } from './limits.ts';
import { progressValue, readProgress } from './receipt.ts';
import type { Progress } from './receipt.ts';
import { SEAL_OVERHEAD } from './seal.ts';
import type { ProtocolRange } from './version.ts';

/** Ids one progress request may ask for; sessions and agents one answer may list. */
export const MAX_PROGRESS_IDS = 500;
const MAX_SESSIONS = 1000;
const MAX_LIST_BYTES = 1024 * 1024;
/** What an invite may be called: it is a key of the store. */
const INVITE = /^[A-Za-z0-9_-]{1,64}$/;

export interface Hello {
  readonly range: ProtocolRange;
  readonly version: string;
  /** Random per life of a daemon: the same host id with another nonce at the same time is a copied key. */
  readonly nonce: string;
}

export interface HelloAnswer extends Hello {
  /** The answering host is paired with the asking one. */
  readonly known: boolean;
  /** The answering host has seen the asking host's id alive in two places. */
  readonly duplicate: boolean;
}

export interface PairRequest {
  readonly invite: string;
  readonly secret: Uint8Array;
  readonly name: string;
  readonly addresses: readonly string[];
}

export interface PublicSession {
  readonly harness: HarnessName;
  readonly sessionId: string;
  readonly workspace: string;
  readonly status: string;
  readonly agent: string | null;
  readonly reachable: boolean;
  readonly reason: string | null;
  readonly version: string;
  readonly startedAt: number;
  /** When `status` began, wall time there, ms; null when its harness or an older ax does not tell. */
  readonly statusSince: number | null;
  /** The agent of its folder gets no notices now; null when an older ax does not tell. */
  readonly quiet: boolean | null;
  /** When that ends by itself, wall time there, ms. */
  readonly quietUntil: number | null;
}

export interface PublicAgent {
  readonly name: string;
  readonly harness: HarnessName;
  readonly workspace: string;
}

/** `Item`: how an envelope stands in it. One that comes in was read; of one that goes out the bytes are enough. */
export type WireRequest<Item = Signed> =
  /** With the one piece of the body; or without, when its several pieces are there already. */
  | { readonly type: 'deliver'; readonly envelope: Item; readonly pieces: readonly Uint8Array[] }
  /** Asks what is missing of a message of several pieces. Takes nothing by itself. */
  | { readonly type: 'offer'; readonly envelope: Item }
  | { readonly type: 'piece'; readonly id: MessageId; readonly index: number; readonly piece: Uint8Array }
  | { readonly type: 'cancel'; readonly cancel: Signed }
  | { readonly type: 'receipt'; readonly receipt: Signed }
  | { readonly type: 'progress'; readonly ids: readonly MessageId[] }
  /** `retry`: the asking host changed what the asked one may do there, so what it refused may be tried again. */
  | { readonly type: 'update'; readonly items: readonly Progress[]; readonly retry: boolean }
  | { readonly type: 'sessions' }
  | ({ readonly type: 'pair' } & PairRequest);

export interface Refusal {
  readonly code: ErrorCode;
  readonly class: 'deferred' | 'rejected';
  readonly retryAfterMs?: number;
}

export function encodeHello(hello: Hello): Uint8Array {
  return encode({ min: hello.range.min, max: hello.range.max, version: hello.version, nonce: hello.nonce });
}

export function readHello(bytes: Uint8Array): Hello {
  return helloOf(asFields(decode(bytes), 'a hello'));
}

export function encodeHelloAnswer(answer: HelloAnswer): Uint8Array {
  return encode({
    min: answer.range.min,
    max: answer.range.max,
    version: answer.version,
    nonce: answer.nonce,
    known: answer.known,
    duplicate: answer.duplicate,
  });
}

export function readHelloAnswer(bytes: Uint8Array): HelloAnswer {
  const fields = asFields(decode(bytes), 'a hello answer');
  return { ...helloOf(fields), known: flag(fields, 'known'), duplicate: flag(fields, 'duplicate') };
}

function helloOf(fields: Fields): Hello {
  const min = whole(fields, 'min', 0, 1_000_000);
  return {
    range: { min, max: whole(fields, 'max', min, 1_000_000) },
    version: shown(fields, 'version', 64),
    nonce: text(fields, 'nonce', 64),
  };
}

/** A request that goes out: its envelope may be given as it is stored (encodeSigned), and is then encoded once in its life. */
export type OutgoingRequest = WireRequest<Signed | Encoded>;

const itemValue = (item: Signed | Encoded): unknown => (item instanceof Encoded ? item : signedValue(item));

export function encodeRequest(request: OutgoingRequest): Uint8Array {
  switch (request.type) {
    case 'deliver':
      return encode({ t: 'deliver', envelope: itemValue(request.envelope), pieces: request.pieces });
    case 'offer':
      return encode({ t: 'offer', envelope: itemValue(request.envelope) });
    case 'piece':
      return encode({ t: 'piece', id: request.id, index: request.index, piece: request.piece });
    case 'cancel':
      return encode({ t: 'cancel', cancel: signedValue(request.cancel) });
    case 'receipt':
      return encode({ t: 'receipt', receipt: signedValue(request.receipt) });
    case 'progress':
      return encode({ t: 'progress', ids: request.ids });
    case 'update':
      return encode({ t: 'update', items: request.items.map(progressValue), ...(request.retry ? { retry: true } : {}) });
    case 'sessions':
      return encode({ t: 'sessions' });
    case 'pair':
      return encode({ t: 'pair', invite: request.invite, secret: request.secret, name: request.name, addresses: request.addresses });
  }
}

const TYPES = ['deliver', 'offer', 'piece', 'cancel', 'receipt', 'progress', 'update', 'sessions', 'pair'] as const;

export function readRequest(bytes: Uint8Array): WireRequest {
  const fields = asFields(decode(bytes), 'a request');
  const type = oneOf(fields, 't', TYPES);
  switch (type) {
    case 'deliver':
      return {
        type,
        envelope: readSigned(fields['envelope'], 'an envelope'),
        pieces: asList(fields['pieces'], 'pieces', 1).map(pieceOf),
      };
    case 'offer':
      return { type, envelope: readSigned(fields['envelope'], 'an envelope') };
    case 'piece':
      return { type, id: idOf(fields['id']), index: whole(fields, 'index', 0, MAX_PIECES - 1), piece: pieceOf(fields['piece']) };
    case 'cancel':
      return { type, cancel: readSigned(fields['cancel'], 'a cancel') };
    case 'receipt':
      return { type, receipt: readSigned(fields['receipt'], 'a receipt') };
    case 'progress':
      return { type, ids: asList(fields['ids'], 'ids', MAX_PROGRESS_IDS).map(idOf) };
    case 'update':
      return {
        type,
        items: asList(fields['items'], 'items', MAX_PROGRESS_IDS).map((item) => readProgress(item)),
        retry: fields['retry'] === true,
      };
    case 'sessions':
      return { type };
    case 'pair':
      return { type, ...readPair(fields) };
  }
}

function pieceOf(value: Value | undefined): Uint8Array {
  if (!(value instanceof Uint8Array) || value.length > MAX_PIECE_BYTES + SEAL_OVERHEAD)
    throw violation(`a piece has at most ${MAX_PIECE_BYTES + SEAL_OVERHEAD} bytes`);
  return value;
}

function idOf(value: Value | undefined): MessageId {
  if (!isMessageId(value)) throw violation('not a message id');
  return value;
}

function readPair(fields: Fields): PairRequest {
  const secret = fields['secret'];
  if (!(secret instanceof Uint8Array) || secret.length !== 32) throw violation('a pairing secret has 32 bytes');
  const invite = text(fields, 'invite', 64);
  if (!INVITE.test(invite)) throw violation('not the name of an invite');
  return {
    invite,
    secret,
    name: text(fields, 'name', MAX_LABEL_BYTES),
    addresses: stringsOf(fields['addresses'], 'addresses', 16, 512),
  };
}

function stringsOf(value: Value | undefined, what: string, max: number, maxChars: number): string[] {
  return asList(value, what, max).map((entry) => {
    if (typeof entry !== 'string' || entry.length > maxChars) throw violation(`${what}: text of at most ${maxChars} characters expected`);
    return entry;
  });
}

/** A successful answer with its fields. */
export function encodeResult(fields: Record<string, unknown>): Uint8Array {
  return encode({ ok: true, ...fields });
}

/**
 * A refusal: only the code, the class and a retry time (`details.retry_after_ms`) leave this host. Local codes become `busy`: the peer
 * may try again.
 */
export function encodeRefusal(error: AxError): Uint8Array {
  const local = error.class === 'local';
  const asked = error.details?.['retry_after_ms'];
  const retryAfterMs = typeof asked === 'number' && Number.isSafeInteger(asked) && asked >= 0 ? asked : undefined;
  return encode({ ok: false, code: local ? 'busy' : error.code, class: local ? 'deferred' : error.class, retry_after_ms: retryAfterMs });
}

/** The answer's fields, or what was refused. An unknown code is taken for `busy` or `unsupported` by its class. */
export function readAnswer(
  bytes: Uint8Array,
): { readonly ok: true; readonly fields: Fields } | { readonly ok: false; readonly refusal: Refusal } {
  const fields = asFields(decode(bytes), 'an answer');
  if (flag(fields, 'ok')) return { ok: true, fields };
  const told = oneOf(fields, 'class', ['deferred', 'rejected'] as const);
  const code = text(fields, 'code', 64);
  const retryAfterMs = optionalWhole(fields, 'retry_after_ms', 0, 86_400_000);
  const known = isErrorCode(code) && ERROR_TABLE[code].class !== 'local' ? code : told === 'deferred' ? 'busy' : 'unsupported';
  return { ok: false, refusal: { code: known, class: told, ...(retryAfterMs === undefined ? {} : { retryAfterMs }) } };
}

/** `silent`: harnesses that gave no answer there just now; what is listed of them is what was last seen. */
export function sessionsResult(
  sessions: readonly PublicSession[],
  agents: readonly PublicAgent[],
  silent: readonly HarnessName[] = [],
): Uint8Array {
  const fit = within(MAX_LIST_BYTES);
  return encodeResult({
    sessions: sessions.slice(0, MAX_SESSIONS).map(sessionValue).filter(fit),
    agents: agents.slice(0, MAX_SESSIONS).filter(fit),
    ...(silent.length === 0 ? {} : { silent }),
  });
}

function sessionValue(session: PublicSession): Record<string, unknown> {
  const { sessionId, startedAt, statusSince, quiet, quietUntil, ...rest } = session;
  return {
    ...rest,
    session_id: sessionId,
    started_at: startedAt,
    status_since: statusSince ?? undefined,
    quiet: quiet ?? undefined,
    quiet_until: quietUntil ?? undefined,
  };
}

/** Lets entries through until their encodings fill `budget` bytes: long paths must not make an answer that no frame holds. */
function within(budget: number): (entry: object) => boolean {
  let left = budget;
  return (entry) => (left -= encode(entry).length) >= 0;
}

export function readSessions(fields: Fields): {
  readonly sessions: PublicSession[];
  readonly agents: PublicAgent[];
  readonly silent: HarnessName[];
} {
  return {
    sessions: asList(fields['sessions'], 'sessions', MAX_SESSIONS).map((value) => {
      const entry = asFields(value, 'a session');
      return {
        harness: oneOf(entry, 'harness', HARNESSES),
        sessionId: shown(entry, 'session_id', 64),
        workspace: shown(entry, 'workspace', MAX_PATH_BYTES),
        status: shown(entry, 'status', 16),
        agent: optionalShown(entry, 'agent', 64) ?? null,
        reachable: flag(entry, 'reachable'),
        reason: optionalShown(entry, 'reason', 128) ?? null,
        version: shown(entry, 'version', 64),
        startedAt: whole(entry, 'started_at'),
        statusSince: optionalWhole(entry, 'status_since') ?? null,
        quiet: optionalFlag(entry, 'quiet') ?? null,
        quietUntil: optionalWhole(entry, 'quiet_until') ?? null,
      };
    }),
    agents: asList(fields['agents'], 'agents', MAX_SESSIONS).map((value) => {
      const entry = asFields(value, 'an agent');
      return {
        name: shown(entry, 'name', 64),
        harness: oneOf(entry, 'harness', HARNESSES),
        workspace: shown(entry, 'workspace', MAX_PATH_BYTES),
      };
    }),
    // A harness that only a newer ax knows is nothing that this one can name.
    silent:
      fields['silent'] === undefined || fields['silent'] === null
        ? []
        : HARNESSES.filter((harness) => asList(fields['silent'], 'silent', 16).includes(harness)),
  };
}

/** What pairing answers: how the inviting host calls itself and what it now allows. */
export function readPaired(fields: Fields): { readonly name: string; readonly addresses: string[]; readonly grants: string[] } {
  return {
    name: text(fields, 'name', MAX_LABEL_BYTES),
    addresses: stringsOf(fields['addresses'], 'addresses', 16, 512),
    grants: stringsOf(fields['grants'], 'grants', 16, 16),
  };
}

/** What an answer says is missing of a message of `count` pieces, in order; undefined when it has a receipt instead. */
export function readMissing(fields: Fields, count: number): number[] | undefined {
  if (fields['missing'] === undefined || fields['missing'] === null) return undefined;
  const missing = asList(fields['missing'], 'missing', count).map((index) => {
    if (typeof index !== 'number' || !Number.isSafeInteger(index) || index < 0 || index >= count)
      throw violation('not the index of a piece');
    return index;
  });
  if (missing.some((index, at) => at > 0 && index <= missing[at - 1]!)) throw violation('missing pieces are named once, in order');
  return missing;
}

/** A receipt out of an answer. */
export function receiptOf(fields: Fields): Signed {
  return readSigned(fields['receipt'], 'a receipt');
}
