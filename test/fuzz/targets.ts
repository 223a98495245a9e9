/**
 * Every parser of foreign bytes, each with good inputs to start from and the one way a bad input may end: a value or an AxError.
 * Signed things are signed anew after they were broken, so that what lies behind the signature is reached.
 */
import { isDeepStrictEqual } from 'node:util';
import { BoxLines } from '../../daemon/box/lines.ts';
import { readRequest as readControlRequest } from '../../daemon/control/request.ts';
import { parseRecord, pidOfRecordName } from '../../daemon/harness/claude-record.ts';
import { parseReceipt } from '../../daemon/harness/claude-replies.ts';
import { parseAdded, parseQueuePage } from '../../daemon/harness/codex-queue.ts';
import { parseFrame, parseRefusal } from '../../daemon/harness/codex-rpc.ts';
import { faultOf, leftOut, parseLoaded, parseThread, parseVersion } from '../../daemon/harness/codex-thread.ts';
import { readCode } from '../../daemon/pairing.ts';
import { parseAgentAt, parseHostAddress, parseHostRef, parseListenAddress } from '../../protocol/address.ts';
import { boxLine, parseBoxLine } from '../../protocol/box.ts';
import { channelHeader, parseChannelFrame } from '../../protocol/channel.ts';
import { asFields, asList, decode, encode, whole } from '../../protocol/codec.ts';
import { METHODS } from '../../protocol/control.ts';
import {
  acceptEnvelope,
  acceptOffer,
  openEnvelopeBody,
  openEnvelopeHeaders,
  readEnvelope,
  requirePiece,
  sealMessage,
} from '../../protocol/envelope.ts';
import { AxError } from '../../protocol/errors.ts';
import { encodeFrame } from '../../protocol/frame.ts';
import { encodeSigned, readSigned, requireSignature, signGroup, signOne } from '../../protocol/hashtree.ts';
import { parseHostId } from '../../protocol/identity.ts';
import { nameFrom, parseLabel, parseMessageIdPrefix, parseName } from '../../protocol/ids.ts';
import { parseWorkspace, shellQuote } from '../../protocol/paths.ts';
import { progressValue, readCancel, readProgress, readReceipt, signCancel, signReceipt } from '../../protocol/receipt.ts';
import { openHeaders, sealHeaders, unwrapKey } from '../../protocol/seal.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import * as wire from '../../protocol/wire.ts';
import { ALICE, aliceKeys, AT, BOB, bobKeys, counted, draft, ID, OTHER_ID, sealed, sealRandom, SESSION, utf8 } from '../protocol/sample.ts';
import { cutByLibrary, cutByReader } from '../framing.ts';
import { computeVectors } from '../protocol/vectors.ts';
import type { Chance } from './chance.ts';
import { mutateBytes, mutateCbor, mutateJson } from './mutate.ts';
import { LOCAL_TARGETS } from './targets-local.ts';

export interface Target {
  readonly name: string;
  readonly good: readonly Uint8Array[];
  readonly mutate: (chance: Chance, good: Uint8Array, others: readonly Uint8Array[]) => Uint8Array;
  /** Takes one input. Only an AxError may come out. */
  readonly take: (input: Uint8Array) => unknown;
  /** The share of the runs, 1 for an ordinary target. */
  readonly weight?: number;
}

const message = sealed();
const progress = { id: ID, state: 'available', at: AT, handedOut: true, liveSession: false, notice: 'held' } as const;
const receipt = signReceipt(BOB, {
  outcome: 'accepted',
  id: ID,
  digest: message.digest,
  sender: ALICE.hostId,
  at: AT,
  state: 'available',
  storedAs: 'message',
  liveSession: true,
  certain: false,
});
const cancel = signCancel(ALICE, { id: ID, digest: message.digest, receiver: BOB.hostId, at: AT });
const session = {
  harness: 'claude',
  sessionId: SESSION,
  workspace: '/w',
  status: 'idle',
  agent: 'a',
  reachable: true,
  reason: null,
  version: '2',
  startedAt: AT,
  statusSince: AT,
  quiet: true,
  quietUntil: AT,
} as const;
/** The same in four pieces. */
const large = sealMessage(ALICE, aliceKeys, { ...draft, body: counted(200) }, sealRandom, 50);
const requests = [
  wire.encodeRequest({ type: 'deliver', envelope: message.signed, pieces: message.pieces }),
  wire.encodeRequest({
    type: 'deliver',
    envelope: signGroup(ALICE, 'ax/1 envelope', [counted(3), message.signed.payload, counted(5)])[1]!,
    pieces: message.pieces,
  }),
  wire.encodeRequest({ type: 'cancel', cancel }),
  wire.encodeRequest({ type: 'receipt', receipt }),
  wire.encodeRequest({ type: 'progress', ids: [ID, OTHER_ID] }),
  wire.encodeRequest({ type: 'update', items: [progress], retry: true }),
  wire.encodeRequest({ type: 'sessions' }),
  wire.encodeRequest({
    type: 'pair',
    invite: 'abc_-9',
    secret: counted(32),
    name: 'build',
    addresses: ['/ip4/192.0.2.7/tcp/1', '/ip6/::1/tcp/2'],
  }),
  wire.encodeRequest({ type: 'offer', envelope: large.signed }),
  wire.encodeRequest({ type: 'deliver', envelope: large.signed, pieces: [] }),
  wire.encodeRequest({ type: 'piece', id: ID, index: 2, piece: large.pieces[2]! }),
];
const hello = { range: { min: 1, max: 1 }, version: '0.1.0', nonce: 'abc' };
const answers = [
  wire.encodeResult({ items: [progressValue(progress)] }),
  wire.encodeResult({ receipt: [receipt.payload, [], receipt.signature] }),
  wire.encodeResult({ missing: [0, 2, 3] }),
  wire.encodeResult({ name: 'build', addresses: ['/ip4/192.0.2.7/tcp/1'], grants: ['read'] }),
  wire.sessionsResult([session, session], [{ name: 'a', harness: 'codex', workspace: '/w' }]),
  wire.encodeRefusal(new AxError('throttled', 'x', { details: { retry_after_ms: 5000 } })),
  wire.encodeRefusal(new AxError('bad_signature', 'x')),
];
const origin = { harness: 'claude', harness_version: '2', session_id: SESSION, workspace: '/w', integration: 'cli' };
const shell = { harness: 'claude', session_id: SESSION, pid: 42, socket: '/tmp/s/42.sock', config_dir: '/c' };
export const controlRequests = METHODS.map((method, n) =>
  encode({
    v: CONTROL_PROTOCOL,
    id: n + 1,
    method,
    params: { id: ID, body: counted(20), host: 'build' },
    origin,
    session: n % 2 === 0 ? shell : null,
  }),
);
const pairingCode = computeVectors()['wire']!['pairing_code'] as string;
const record = {
  pid: 42,
  sessionId: SESSION,
  cwd: '/tmp',
  startedAt: AT,
  procStart: '44656',
  version: '2.1.0',
  peerProtocol: 1,
  entrypoint: 'cli',
  pidDomain: 'linux:0',
  messagingSocketPath: '/tmp/s/42.sock',
  status: 'idle',
  statusUpdatedAt: AT,
};
const replies = ['held', 'delivered', 'denied', 'expired'].map((status) => ({
  type: 'control',
  action: 'peer_message_status',
  orig_msg_id: SESSION,
  status,
  status_detail: 'refused',
}));
const codexThread = {
  id: SESSION,
  cwd: '/tmp',
  status: { type: 'active', activeFlags: ['waitingOnApproval'] },
  ephemeral: false,
  parentThreadId: null,
  source: 'vscode',
  canAcceptDirectInput: true,
  createdAt: 1_790_000_000,
  preview: 'secret',
};
const codexItem = { id: OTHER_ID, input: [{ type: 'text', text: 'secret' }], clientUserMessageId: `ax-${SESSION}` };
const json = (value: unknown): Uint8Array => utf8(JSON.stringify(value));
const text = (input: Uint8Array): string => Buffer.from(input).toString('utf8');

/** Runs every reader; each may refuse for itself. */
function each(...readers: readonly (() => unknown)[]): void {
  for (const read of readers) {
    try {
      read();
    } catch (error) {
      if (!(error instanceof AxError)) throw error;
    }
  }
}

function takeAnswer(input: Uint8Array): void {
  const answer = wire.readAnswer(input);
  if (!answer.ok) return;
  const { fields } = answer;
  each(
    () => wire.readSessions(fields),
    () => wire.readPaired(fields),
    () => wire.readMissing(fields, large.pieces.length),
    () => asList(fields['items'], 'items', wire.MAX_PROGRESS_IDS).map((item) => readProgress(item)),
    () => readReceipt(BOB.hostId, ALICE.hostId, wire.receiptOf(fields)),
  );
}

function takeRequest(input: Uint8Array): void {
  const request = wire.readRequest(input);
  if (request.type === 'deliver') each(() => acceptEnvelope(ALICE.hostId, BOB.hostId, request.envelope, request.pieces));
  if (request.type === 'offer') acceptOffer(ALICE.hostId, BOB.hostId, request.envelope);
  if (request.type === 'piece') requirePiece(large.envelope, request.index, request.piece);
  if (request.type === 'cancel') readCancel(ALICE.hostId, BOB.hostId, request.cancel);
  if (request.type === 'receipt') readReceipt(BOB.hostId, ALICE.hostId, request.receipt);
  if (request.type === 'pair')
    each(() => nameFrom(request.name, 'host'), ...request.addresses.map((address) => () => parseListenAddress(address)));
}

/** A payload as it came, signed by its sender all the same, with the pieces of one of the good messages. */
function takeEnvelope(payload: Uint8Array): void {
  if (payload.length === 0) return;
  for (const { pieces } of [message, large])
    each(() => {
      const envelope = acceptEnvelope(ALICE.hostId, BOB.hostId, signOne(ALICE, 'ax/1 envelope', payload), pieces);
      each(
        () => openEnvelopeHeaders(bobKeys, BOB.hostId, envelope),
        () => openEnvelopeBody(bobKeys, BOB.hostId, envelope, pieces),
      );
    });
}

const contentKey = unwrapKey(aliceKeys.with(BOB.hostId), message.envelope.wrap);
const place = { id: ID, from: ALICE.hostId, to: BOB.hostId, count: 1 };

/** Headers as they came, sealed by a paired host that means harm. */
function takeHeaders(plain: Uint8Array): void {
  const envelope = { ...message.envelope, headers: sealHeaders(contentKey, place, plain) };
  openEnvelopeHeaders(bobKeys, BOB.hostId, envelope);
}

/** Frames cut at places that follow from the bytes themselves, read as the library reads them. */
async function takeFrames(input: Uint8Array): Promise<void> {
  const pieces: Uint8Array[] = [];
  for (let at = 0, n = 0; at < input.length; n++) {
    const length = 1 + ((input[(at * 7 + n) % input.length]! + n * 13) % 97);
    pieces.push(input.subarray(at, at + length));
    at += length;
  }
  const { frames, refused } = cutByReader(pieces, 4096);
  const second = await cutByLibrary(pieces, 4096);
  if (!isDeepStrictEqual([frames, refused?.message], [second.frames, second.refused?.message]))
    throw new Error('the library reads other frames');
  let bytes = 0;
  for (const frame of frames) {
    bytes += frame.length;
    if (frame.length === 0 || bytes > input.length) throw new Error('frames hold more than came in');
    each(
      () => parseChannelFrame(frame, 'request'),
      () => decode(frame),
    );
  }
  if (refused !== undefined) throw refused;
}

function takeControl(input: Uint8Array): void {
  const fields = asFields(decode(input), 'a request');
  const request = readControlRequest(whole(fields, 'id'), fields);
  if (!(METHODS as readonly string[]).includes(request.method)) throw new Error(`an unknown method passed: ${request.method}`);
}

/** A thread, whatever it is, gives no words of its own: its id, folder and times are checked, and the reasons are fixed. */
function takeThread(input: Uint8Array): void {
  const thread = parseThread(parseFrame(text(input)));
  if (thread === undefined) return;
  leftOut(thread);
  const fault = faultOf(thread, { text: '0.171.0', isSupported: true });
  if (fault !== undefined && !/^[a-z]+( [a-z]+)*( Codex version 0\.171\.0)?$/.test(fault))
    throw new Error(`a reason of their own: ${fault}`);
  if (JSON.stringify(thread).includes('secret')) throw new Error('a preview passed');
}

function takeQueue(input: Uint8Array): void {
  const frame = parseFrame(text(input));
  const kept = JSON.stringify([parseQueuePage(frame), parseAdded(frame)]);
  if (kept.includes('secret')) throw new Error('the text of an item passed');
}

function takeVersion(input: Uint8Array): void {
  const version = parseVersion(parseFrame(text(input)));
  if (!/^(unknown|\d+\.\d+\.\d+(-[0-9a-z.]+)?)$/.test(version.text)) throw new Error(`no version: ${version.text}`);
}

/** What a pipe passes on in two pieces; a line that is taken is the very bytes that a good caller would have written. */
function takeBox(input: Uint8Array): void {
  const lines = new BoxLines();
  const half = input.length >> 1;
  for (const line of [input.subarray(0, half), input.subarray(half)].flatMap((piece) => lines.take(piece))) {
    const request = parseBoxLine(line);
    if (request !== undefined && Buffer.compare(boxLine(request).subarray(1, -1), line) !== 0)
      throw new Error('another line than was read');
  }
}

function takeText(input: Uint8Array): void {
  const typed = text(input);
  each(
    ...[parseHostRef, parseHostAddress, parseListenAddress, parseAgentAt, parseHostId, parseMessageIdPrefix, parseWorkspace].map(
      (parse) => () => parse(typed),
    ),
  );
  each(
    () => parseName(typed, 'it'),
    () => parseLabel(typed, 'it'),
    () => parseName(nameFrom(typed, 'x'), 'it'),
    () => shellQuote(typed),
  );
}

export const TARGETS: readonly Target[] = [
  { name: 'decode', good: [...requests, ...answers], mutate: mutateCbor, take: decode, weight: 2 },
  { name: 'request', good: requests, mutate: mutateCbor, take: takeRequest, weight: 3 },
  {
    name: 'hello',
    good: [wire.encodeHello(hello), wire.encodeHelloAnswer({ ...hello, known: true, duplicate: false })],
    mutate: mutateCbor,
    take: (input) =>
      each(
        () => wire.readHello(input),
        () => wire.readHelloAnswer(input),
      ),
  },
  { name: 'answer', good: answers, mutate: mutateCbor, take: takeAnswer, weight: 2 },
  {
    name: 'signed',
    good: [encodeSigned(receipt), encodeSigned(signGroup(BOB, 'ax/1 receipt', [counted(3), receipt.payload])[1]!)],
    mutate: mutateCbor,
    take: (input) => requireSignature(BOB.hostId, 'ax/1 receipt', readSigned(decode(input), 'it')),
  },
  { name: 'envelope', good: [message.signed.payload, large.signed.payload], mutate: mutateCbor, take: takeEnvelope, weight: 2 },
  { name: 'envelope-shape', good: [message.signed.payload, large.signed.payload], mutate: mutateCbor, take: readEnvelope },
  { name: 'headers', good: [openHeaders(contentKey, place, message.envelope.headers)], mutate: mutateCbor, take: takeHeaders, weight: 2 },
  {
    name: 'receipt',
    good: [receipt.payload],
    mutate: mutateCbor,
    take: (input) => input.length > 0 && readReceipt(BOB.hostId, ALICE.hostId, signOne(BOB, 'ax/1 receipt', input)),
  },
  {
    name: 'cancel',
    good: [cancel.payload],
    mutate: mutateCbor,
    take: (input) => input.length > 0 && readCancel(ALICE.hostId, BOB.hostId, signOne(ALICE, 'ax/1 cancel', input)),
  },
  {
    name: 'channel',
    good: [Buffer.concat([channelHeader('request', 7), counted(9)]), Buffer.concat([channelHeader('answer', 0xffffffff), counted(3)])],
    mutate: mutateBytes,
    take: (input) =>
      each(
        () => parseChannelFrame(input, 'request'),
        () => parseChannelFrame(input, 'answer'),
      ),
  },
  {
    name: 'frames',
    good: [
      Buffer.concat(requests.slice(4).map((request) => encodeFrame(request))),
      Buffer.concat([encodeFrame(counted(1)), encodeFrame(counted(300)), encodeFrame(counted(4000))]),
    ],
    mutate: mutateBytes,
    take: takeFrames,
  },
  { name: 'control', good: controlRequests, mutate: mutateCbor, take: takeControl, weight: 2 },
  {
    name: 'code',
    good: [Buffer.from(pairingCode.slice(4), 'base64url')],
    mutate: mutateCbor,
    take: (input) => readCode(`ax1-${Buffer.from(input).toString('base64url')}`),
  },
  { name: 'code-text', good: [utf8(pairingCode)], mutate: mutateBytes, take: (input) => readCode(text(input)) },
  {
    name: 'claude-record',
    good: [json(record)],
    mutate: mutateJson,
    take: (input) => [parseRecord(text(input), 42), pidOfRecordName(text(input))],
  },
  { name: 'codex-thread', good: [json({ thread: codexThread, readState: null })], mutate: mutateJson, take: takeThread },
  {
    name: 'codex-queue',
    good: [json({ data: [codexItem, { ...codexItem, clientUserMessageId: '' }], nextCursor: '2' }), json({ queuedSubmission: codexItem })],
    mutate: mutateJson,
    take: takeQueue,
  },
  {
    name: 'codex-version',
    good: [json({ userAgent: 'codex-tui/0.171.0 (Debian 12.0.0; x86_64) xterm-256color (ax; 0.1.0)' })],
    mutate: mutateJson,
    take: takeVersion,
  },
  {
    name: 'codex-answer',
    good: [json({ data: [SESSION, SESSION], nextCursor: null }), json({ code: -32600, message: 'Invalid request: missing field `x`' })],
    mutate: mutateJson,
    take: (input) => [parseLoaded(parseFrame(text(input))), parseRefusal(parseFrame(text(input)))],
  },
  { name: 'claude-reply', good: replies.map(json), mutate: mutateJson, take: (input) => parseReceipt(text(input)) },
  {
    name: 'box-line',
    good: [
      boxLine({ nonce: '0'.repeat(32), thread: SESSION, id: ID, code: 'a'.repeat(32), handOut: undefined }),
      boxLine({ nonce: 'f'.repeat(32), thread: SESSION, id: OTHER_ID, code: '9'.repeat(32), handOut: '5'.repeat(24) }),
    ],
    mutate: mutateBytes,
    take: takeBox,
  },
  {
    name: 'text',
    good: [`alice@${BOB.hostId}`, `/ip4/192.0.2.7/tcp/1/p2p/${BOB.hostId}`, '/ip6/fe80::1/tcp/9', '/home/bob/app', ID, BOB.hostId].map(
      utf8,
    ),
    mutate: mutateBytes,
    take: takeText,
  },
  ...LOCAL_TARGETS,
];
