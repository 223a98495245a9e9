/**
 * The envelope: the signed, immutable wrapper of one message for one destination.
 *
 * Owns making, signing, reading and opening it. Routing (hosts, harness, workspace, session hint, times) is clear; subject,
 * reply address and body are sealed. The signed header names the digests of the sealed pieces, so pieces travel apart and each
 * is judged by itself: nothing here needs a large body whole.
 * Identity of a message: (sender host id, message id) with the SHA-256 of the payload. Order of opening: length, version,
 * signature by the link's peer, decode, shape, policy.
 */
import { AxError } from './errors.ts';
import { HARNESSES } from './address.ts';
import type { Destination, ReplyAddress } from './address.ts';
import { asFields, asList, bytes, decode, encode, oneOf, optionalText, optionalWhole, text, violation, whole } from './codec.ts';
import { requireSignature, sha256, signOne } from './hashtree.ts';
import type { Signed } from './hashtree.ts';
import { parseHostId } from './identity.ts';
import type { HostKey } from './identity.ts';
import { isMessageId, parseLabel, parseName, parseSessionId } from './ids.ts';
import type { HostId, MessageId } from './ids.ts';
import { MAX_BODY_BYTES, MAX_PATH_BYTES, MAX_PIECES, MAX_RETENTION_MS, MAX_SUBJECT_BYTES } from './limits.ts';
import { parseWorkspace } from './paths.ts';
import { release } from './memory.ts';
import { cutBy, cutInto, spanOf } from './pieces.ts';
import type { Cut } from './pieces.ts';
import {
  openHeaders,
  openPiece,
  SEAL_OVERHEAD,
  SEAL_RANDOM_BYTES,
  sealHeaders,
  sealPiece,
  unwrapKey,
  WRAP_BYTES,
  wrapKey,
} from './seal.ts';
import type { SealKeys, SealPlace } from './seal.ts';
import { MESSAGE_KINDS } from './states.ts';
import type { MessageKind } from './states.ts';

export { SEAL_RANDOM_BYTES };

const ENVELOPE_VERSION = 1;
export const ENVELOPE_CONTEXT = 'ax/1 envelope';
const DIGEST_BYTES = 32;
const MAX_HEADER_BYTES = 8192;

/** What only the reader sees. */
export interface Headers {
  readonly subject?: string;
  /** The agent that sent it and takes replies; absent for an owner's send. */
  readonly from?: ReplyAddress;
  /** The message this one answers. */
  readonly replyTo?: MessageId;
}

export interface Envelope {
  readonly id: MessageId;
  readonly kind: MessageKind;
  readonly from: HostId;
  readonly to: Destination;
  /** The sender's wall time, ms; for people. */
  readonly sentAt: number;
  /** How long the receiver keeps it from acceptance, ms of running time. */
  readonly retentionMs?: number;
  readonly wrap: Uint8Array;
  readonly headers: Uint8Array;
  /** Size of the body before sealing, bytes. */
  readonly bytes: number;
  readonly pieces: readonly Uint8Array[];
}

export interface Draft {
  readonly id: MessageId;
  readonly kind: MessageKind;
  readonly to: Destination;
  readonly sentAt: number;
  readonly retentionMs?: number;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

/** An envelope that its host signs. */
export interface EnvelopeBytes {
  readonly payload: Uint8Array;
  /** SHA-256 of the payload. */
  readonly digest: Uint8Array;
}

/** A sealed message: what its host signs, and what travels beside it. */
export interface SealedEnvelope extends EnvelopeBytes {
  readonly pieces: readonly Uint8Array[];
}

/** The same, signed by itself. */
export interface SealedMessage extends SealedEnvelope {
  readonly signed: Signed;
  readonly envelope: Envelope;
}

/** A message that is being sealed, piece by piece. */
export interface Sealing {
  readonly cut: Cut;
  /** Seals a piece of the body; each index once, in any order. */
  seal(index: number, plain: Uint8Array): Uint8Array;
  /** The envelope; every piece was sealed before. */
  finish(): EnvelopeBytes;
}

function placeOf(envelope: Pick<Envelope, 'id' | 'from'> & { readonly to: { readonly host: HostId } }, count: number): SealPlace {
  return { id: envelope.id, from: envelope.from, to: envelope.to.host, count };
}

/** Seals and signs a draft; as sealEnvelope. */
export function sealMessage(key: HostKey, keys: SealKeys, draft: Draft, random: Uint8Array, most?: number): SealedMessage {
  const sealed = sealEnvelope(key.hostId, keys, draft, random, most);
  return { ...sealed, signed: signOne(key, ENVELOPE_CONTEXT, sealed.payload), envelope: readEnvelope(sealed.payload) };
}

/** Seals a draft of host `from`; as beginSealing. */
export function sealEnvelope(from: HostId, keys: SealKeys, draft: Draft, random: Uint8Array, most?: number): SealedEnvelope {
  const { body } = draft;
  const sealing = beginSealing(from, keys, { ...draft, bytes: body.length }, random, most);
  const pieces = Array.from({ length: sealing.cut.count }, (_, index) => {
    const { start, end } = spanOf(sealing.cut, index);
    return sealing.seal(index, body.subarray(start, end));
  });
  return { ...sealing.finish(), pieces };
}

/**
 * Begins to seal a draft of host `from` whose body comes piece by piece, none of more than `most` bytes where that is possible (pieces.ts).
 * `random` holds SEAL_RANDOM_BYTES. Body and headers are already within their limits.
 */
export function beginSealing(
  from: HostId,
  keys: SealKeys,
  draft: Omit<Draft, 'body'> & { readonly bytes: number },
  random: Uint8Array,
  most?: number,
): Sealing {
  const cut = cutBy(draft.bytes, most);
  const place = placeOf({ id: draft.id, from, to: draft.to }, cut.count);
  const { contentKey, wrap } = wrapKey(keys.with(draft.to.host), random);
  const { subject, from: agent, replyTo } = draft.headers;
  const headers = sealHeaders(contentKey, place, encode({ subject, from: agent, reply_to: replyTo }));
  const pieces: Uint8Array[] = [];
  return {
    cut,
    seal: (index, plain) => {
      const sealed = sealPiece(contentKey, place, index, plain);
      pieces[index] = sha256(sealed);
      return sealed;
    },
    finish: () => {
      const { id, kind, to, sentAt, retentionMs, bytes: size } = draft;
      const payload = encode({
        v: ENVELOPE_VERSION,
        id,
        kind,
        from,
        to: { host: to.host, harness: to.harness, workspace: to.workspace, session: to.session },
        sent_at: sentAt,
        retention_ms: retentionMs,
        wrap,
        headers,
        bytes: size,
        pieces,
      });
      return { payload, digest: sha256(payload) };
    },
  };
}

/** Reads an envelope's payload: AxError `protocol_violation` or `invalid_argument` for anything out of shape. Verifies nothing. */
export function readEnvelope(payload: Uint8Array): Envelope {
  const fields = asFields(decode(payload), 'an envelope');
  if (whole(fields, 'v') !== ENVELOPE_VERSION) throw new AxError('update_required', 'the envelope is of a version this host does not know');
  const id = text(fields, 'id', 26);
  if (!isMessageId(id)) throw violation('"id" is not a message id');
  const to = asFields(fields['to'], '"to"');
  const session = optionalText(to, 'session', 64);
  const retentionMs = optionalWhole(fields, 'retention_ms', 1, MAX_RETENTION_MS);
  const pieces = asList(fields['pieces'], '"pieces"', MAX_PIECES);
  const size = whole(fields, 'bytes', 1, MAX_BODY_BYTES);
  cutInto(size, pieces.length);
  return {
    id,
    kind: oneOf(fields, 'kind', MESSAGE_KINDS),
    from: parseHostId(text(fields, 'from', 64)),
    to: {
      host: parseHostId(text(to, 'host', 64)),
      harness: oneOf(to, 'harness', HARNESSES),
      workspace: parseWorkspace(text(to, 'workspace', MAX_PATH_BYTES)),
      ...(session === undefined ? {} : { session: parseSessionId(session) }),
    },
    sentAt: whole(fields, 'sent_at'),
    ...(retentionMs === undefined ? {} : { retentionMs }),
    wrap: bytes(fields, 'wrap', WRAP_BYTES, WRAP_BYTES),
    headers: bytes(fields, 'headers', MAX_HEADER_BYTES, SEAL_OVERHEAD),
    bytes: size,
    pieces: pieces.map((digest) => {
      if (!(digest instanceof Uint8Array) || digest.length !== DIGEST_BYTES) throw violation('a piece digest has 32 bytes');
      return digest;
    }),
  };
}

/**
 * Takes a signed envelope that `peer` handed over on its own connection, for this host. AxError `bad_signature`,
 * `wrong_peer` (signed for or by another host), `protocol_violation`. Says nothing about its pieces.
 */
export function acceptOffer(peer: HostId, self: HostId, signed: Signed): Envelope {
  requireSignature(peer, ENVELOPE_CONTEXT, signed);
  const envelope = readEnvelope(signed.payload);
  if (envelope.from !== peer) throw new AxError('wrong_peer', 'an envelope is taken only from the host that signed it');
  if (envelope.to.host !== self) throw new AxError('wrong_peer', 'the envelope is signed for another host');
  return envelope;
}

/** The same with all its pieces. */
export function acceptEnvelope(peer: HostId, self: HostId, signed: Signed, pieces: readonly Uint8Array[]): Envelope {
  const envelope = acceptOffer(peer, self, signed);
  if (pieces.length !== envelope.pieces.length) throw violation(`${pieces.length} of ${envelope.pieces.length} pieces`);
  for (const [index, piece] of pieces.entries()) requirePiece(envelope, index, piece);
  return envelope;
}

/** Requires that a sealed piece is the one that an envelope names at `index`; AxError `protocol_violation`. */
export function requirePiece(envelope: Envelope, index: number, piece: Uint8Array): void {
  const digest = envelope.pieces[index];
  if (digest === undefined) throw violation(`there is no piece ${index} in the envelope`);
  const { start, end } = spanOf(cutInto(envelope.bytes, envelope.pieces.length), index);
  if (piece.length !== end - start + SEAL_OVERHEAD) throw violation(`piece ${index} has another size than the envelope says`);
  if (Buffer.compare(sha256(piece), digest) !== 0) throw violation(`piece ${index} has another digest than the envelope says`);
}

/** What is sealed in one envelope, for either of its two hosts. AxError `bad_signature`, also from its methods. */
export interface Opener {
  /** The reader's headers. Foreign text in them is checked like any label; AxError `protocol_violation`, `invalid_argument`. */
  headers(): Headers;
  piece(index: number, sealed: Uint8Array): Uint8Array;
  /** Are these bytes that piece of the body? They are sealed again, for their digest alone: to send what comes out would use a nonce twice. */
  isPiece(index: number, plain: Uint8Array): boolean;
}

export function openerOf(keys: SealKeys, self: HostId, envelope: Envelope): Opener {
  const other = envelope.from === self ? envelope.to.host : envelope.from;
  const contentKey = unwrapKey(keys.with(other), envelope.wrap);
  const place = placeOf(envelope, envelope.pieces.length);
  return {
    headers: () => readHeaders(openHeaders(contentKey, place, envelope.headers)),
    piece: (index, sealed) => openPiece(contentKey, place, index, sealed),
    isPiece: (index, plain) => {
      const again = sealPiece(contentKey, place, index, plain);
      const isSame = Buffer.compare(sha256(again), envelope.pieces[index]!) === 0;
      release(again);
      return isSame;
    },
  };
}

/** The headers alone; as Opener. */
export function openEnvelopeHeaders(keys: SealKeys, self: HostId, envelope: Envelope): Headers {
  return openerOf(keys, self, envelope).headers();
}

function readHeaders(plain: Uint8Array): Headers {
  const fields = asFields(decode(plain), 'headers');
  const subject = optionalText(fields, 'subject', MAX_SUBJECT_BYTES);
  const replyTo = optionalText(fields, 'reply_to', 26);
  if (replyTo !== undefined && !isMessageId(replyTo)) throw violation('"reply_to" is not a message id');
  const from = fields['from'] === undefined || fields['from'] === null ? undefined : asFields(fields['from'], '"from"');
  return {
    ...(subject === undefined ? {} : { subject: parseLabel(subject, 'a subject', MAX_SUBJECT_BYTES) }),
    ...(replyTo === undefined ? {} : { replyTo }),
    ...(from === undefined
      ? {}
      : {
          from: {
            name: parseName(text(from, 'name', 64), 'an agent name'),
            harness: oneOf(from, 'harness', HARNESSES),
            workspace: parseWorkspace(text(from, 'workspace', MAX_PATH_BYTES)),
          },
        }),
  };
}

/** The body out of all its pieces, opened by either of the two hosts. */
export function openEnvelopeBody(keys: SealKeys, self: HostId, envelope: Envelope, pieces: readonly Uint8Array[]): Uint8Array {
  const [first] = pieces;
  if (first === undefined || pieces.length !== envelope.pieces.length)
    throw violation(`${pieces.length} of ${envelope.pieces.length} pieces`);
  const opener = openerOf(keys, self, envelope);
  if (pieces.length === 1) return opener.piece(0, first);
  return new Uint8Array(Buffer.concat(pieces.map((piece, index) => opener.piece(index, piece))));
}

/** One piece of the body, opened by either of the two hosts. AxError `bad_signature`. */
export function openEnvelopePiece(keys: SealKeys, self: HostId, envelope: Envelope, index: number, piece: Uint8Array): Uint8Array {
  return openerOf(keys, self, envelope).piece(index, piece);
}
