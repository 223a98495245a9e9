/**
 * The peer wire: every request and answer comes back as it was, and what does not fit is a protocol_violation.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { decode, encode, Encoded } from '../../protocol/codec.ts';
import { AxError, ERROR_TABLE } from '../../protocol/errors.ts';
import type { ErrorCode } from '../../protocol/errors.ts';
import { encodeSigned, signedValue } from '../../protocol/hashtree.ts';
import { MAX_FRAME_BYTES, MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import { signCancel, signReceipt } from '../../protocol/receipt.ts';
import { SEAL_OVERHEAD } from '../../protocol/seal.ts';
import * as wire from '../../protocol/wire.ts';
import type { PublicAgent, PublicSession, WireRequest } from '../../protocol/wire.ts';
import { ALICE, AT, BOB, counted, ID, OTHER_ID, outcome, refusal, sealed, SESSION } from './sample.ts';

const violation = refusal('protocol_violation');
const message = sealed();
const receipt = signReceipt(BOB, {
  outcome: 'accepted',
  id: ID,
  digest: counted(32),
  sender: ALICE.hostId,
  at: AT,
  state: 'available',
  storedAs: 'message',
  liveSession: true,
  certain: false,
});
const cancel = signCancel(ALICE, { id: ID, digest: counted(32), receiver: BOB.hostId, at: AT });
const hello = { range: { min: 1, max: 3 }, version: '0.1.0', nonce: 'abc' };

const REQUESTS: readonly WireRequest[] = [
  { type: 'deliver', envelope: message.signed, pieces: message.pieces },
  { type: 'deliver', envelope: message.signed, pieces: [] },
  { type: 'offer', envelope: message.signed },
  { type: 'piece', id: ID, index: 63, piece: counted(20) },
  { type: 'cancel', cancel },
  { type: 'receipt', receipt },
  { type: 'progress', ids: [ID, OTHER_ID] },
  { type: 'progress', ids: [] },
  { type: 'update', items: [{ id: ID, state: 'available', at: AT, handedOut: false, liveSession: true, notice: 'held' }], retry: false },
  { type: 'update', items: [], retry: true },
  { type: 'sessions' },
  { type: 'pair', invite: 'aB3_-x', secret: counted(32), name: 'build', addresses: ['/ip4/192.0.2.7/tcp/1'] },
];

test('every request comes back as it was', () => {
  for (const request of REQUESTS) assert.deepEqual(wire.readRequest(wire.encodeRequest(request)), request);
});

test('an envelope as it is stored makes the same request', () => {
  const envelope = new Encoded(encodeSigned(message.signed));
  assert.deepEqual(wire.encodeRequest({ type: 'deliver', envelope, pieces: message.pieces }), wire.encodeRequest(REQUESTS[0]!));
  assert.deepEqual(wire.encodeRequest({ type: 'offer', envelope }), wire.encodeRequest(REQUESTS[2]!));
});

test('the largest delivery fits into a frame', () => {
  const workspace = `/${'w'.repeat(4095)}`;
  const from = { name: 'n'.repeat(64), harness: 'claude', workspace } as const;
  const largest = sealed({
    body: new Uint8Array(MAX_PIECE_BYTES),
    to: { host: BOB.hostId, harness: 'claude', workspace, session: SESSION },
    headers: { subject: 's'.repeat(200), from, replyTo: OTHER_ID },
  });
  const path = Array.from({ length: 16 }, () => ({ left: true, hash: counted(32) }));
  const bytes = wire.encodeRequest({ type: 'deliver', envelope: { ...largest.signed, path }, pieces: largest.pieces });
  assert.ok(bytes.length <= MAX_FRAME_BYTES, `${bytes.length}`);
  assert.equal(wire.readRequest(bytes).type, 'deliver');
});

test('a request of another type or shape is a protocol_violation', () => {
  const pair = { t: 'pair', invite: 'x', secret: counted(32), name: 'build', addresses: [] };
  const deliver = { t: 'deliver', envelope: signedValue(message.signed), pieces: [...message.pieces] };
  const piece = { t: 'piece', id: ID, index: 3, piece: counted(20) };
  const wrong: unknown[] = [
    {},
    [],
    'x',
    null,
    { t: 'exec' },
    { t: 'toString' },
    { t: 5 },
    { t: 'deliver' },
    { ...deliver, pieces: {} },
    { ...deliver, pieces: ['x'] },
    { ...deliver, pieces: [...message.pieces, ...message.pieces] },
    { ...deliver, pieces: [new Uint8Array(MAX_PIECE_BYTES + SEAL_OVERHEAD + 1)] },
    { ...deliver, envelope: 'x' },
    { t: 'offer' },
    { t: 'offer', envelope: [] },
    { ...piece, id: 'x' },
    { ...piece, index: -1 },
    { ...piece, index: 64 },
    { ...piece, index: 1.5 },
    { ...piece, piece: 'x' },
    { ...piece, piece: new Uint8Array(MAX_PIECE_BYTES + SEAL_OVERHEAD + 1) },
    { t: 'cancel', cancel: [] },
    { t: 'receipt' },
    { t: 'progress', ids: ['x'] },
    { t: 'progress', ids: Array(501).fill(ID) },
    { t: 'update', items: [{}] },
    { t: 'update', items: 'x' },
    { ...pair, invite: '' },
    { ...pair, invite: 'a/b' },
    { ...pair, invite: 'é' },
    { ...pair, invite: 'x'.repeat(65) },
    { ...pair, invite: 5 },
    { ...pair, secret: counted(31) },
    { ...pair, secret: 'x' },
    { ...pair, name: 'x'.repeat(257) },
    { ...pair, addresses: Array(17).fill('/a') },
    { ...pair, addresses: [5] },
    { ...pair, addresses: ['x'.repeat(513)] },
  ];
  for (const value of wrong) assert.throws(() => wire.readRequest(encode(value)), violation, JSON.stringify(value)?.slice(0, 80));
});

test('a request with fields of a newer peer is read', () => {
  assert.deepEqual(wire.readRequest(encode({ t: 'sessions', page: 3, later: { a: [1] } })), { type: 'sessions' });
});

test('a hello and its answer come back, and a newer hello with more fields still does', () => {
  assert.deepEqual(wire.readHello(wire.encodeHello(hello)), hello);
  const answer = { ...hello, known: true, duplicate: false };
  assert.deepEqual(wire.readHelloAnswer(wire.encodeHelloAnswer(answer)), answer);
  assert.deepEqual(wire.readHello(encode({ min: 1, max: 3, version: '0.1.0', nonce: 'abc', features: ['x'] })), hello);
  assert.deepEqual(wire.readHelloAnswer(wire.encodeHello(hello)), { ...answer, known: false });
});

test('a hello is frozen: these bytes are read for ever', () => {
  assert.deepEqual(wire.readHello(Buffer.from('a4636d696e01636d617803656e6f6e6365636162636776657273696f6e65302e312e30', 'hex')), hello);
});

test('a hello with an empty or reversed range or strange text is refused or made visible', () => {
  for (const change of [
    { min: 2, max: 1 },
    { min: -1 },
    { max: 2 ** 40 },
    { min: 'x' },
    { version: 5 },
    { version: 'x'.repeat(65) },
    { nonce: undefined },
  ])
    assert.throws(() => wire.readHello(encode({ min: 1, max: 3, version: 'v', nonce: 'n', ...change })), violation);
  assert.equal(wire.readHello(encode({ min: 1, max: 1, version: '1\u001b[2J\u202e', nonce: 'n' })).version, '1\ufffd[2J\ufffd');
});

test('a refusal of every code comes back with its class; a local code never leaves and becomes busy', () => {
  for (const code of Object.keys(ERROR_TABLE) as ErrorCode[]) {
    const bytes = wire.encodeRefusal(
      new AxError(code, '/secret/path', { fix: 'secret fix', details: { secret: 1 }, cause: new Error('secret') }),
    );
    assert.equal(Buffer.from(bytes).toString('latin1').includes('secret'), false);
    const answer = wire.readAnswer(bytes);
    assert.ok(!answer.ok);
    const isLocal = ERROR_TABLE[code].class === 'local';
    assert.deepEqual(answer.refusal, isLocal ? { code: 'busy', class: 'deferred' } : { code, class: ERROR_TABLE[code].class });
  }
  const timed = wire.readAnswer(wire.encodeRefusal(new AxError('throttled', 'x', { details: { retry_after_ms: 5000 } })));
  assert.deepEqual(timed, { ok: false, refusal: { code: 'throttled', class: 'deferred', retryAfterMs: 5000 } });
});

test('an unknown code is told by its class, and a local code of a peer is not believed', () => {
  const read = (value: object): unknown => wire.readAnswer(encode({ ok: false, ...value }));
  assert.deepEqual(read({ code: 'quota_v9', class: 'deferred' }), { ok: false, refusal: { code: 'busy', class: 'deferred' } });
  for (const code of ['quota_v9', 'toString', '__proto__', 'internal', 'usage'])
    assert.deepEqual(read({ code, class: 'rejected' }), { ok: false, refusal: { code: 'unsupported', class: 'rejected' } });
  for (const value of [
    {},
    { code: 'busy' },
    { code: 'busy', class: 'local' },
    { class: 'deferred' },
    { code: 5, class: 'deferred' },
    { code: 'busy', class: 'deferred', retry_after_ms: -1 },
    { code: 'busy', class: 'deferred', retry_after_ms: 86_400_001 },
  ])
    assert.throws(() => read(value), violation);
  assert.throws(() => wire.readAnswer(encode({ ok: 'yes' })), violation);
});

test('a session list comes back, cut at its limit, its text visible', () => {
  const session: PublicSession = {
    harness: 'claude',
    sessionId: SESSION,
    workspace: '/w',
    status: 'idle',
    agent: null,
    reachable: false,
    reason: 'why',
    version: '2',
    startedAt: AT,
    statusSince: AT + 1,
    quiet: true,
    quietUntil: AT + 2,
  };
  const agent: PublicAgent = { name: 'a', harness: 'claude', workspace: '/w' };
  const read = (bytes: Uint8Array): ReturnType<typeof wire.readSessions> => {
    const answer = wire.readAnswer(bytes);
    assert.ok(answer.ok);
    return wire.readSessions(answer.fields);
  };
  assert.deepEqual(read(wire.sessionsResult([session, { ...session, agent: 'a', reason: null }], [agent])), {
    sessions: [session, { ...session, agent: 'a', reason: null }],
    agents: [agent],
    silent: [],
  });
  assert.deepEqual(read(wire.sessionsResult([], [], ['codex'])).silent, ['codex']);
  const many = wire.sessionsResult(Array<PublicSession>(1500).fill(session), Array<PublicAgent>(1500).fill(agent));
  assert.deepEqual([read(many).sessions.length, read(many).agents.length], [1000, 1000]);
  const long = wire.sessionsResult(Array<PublicSession>(1000).fill({ ...session, workspace: `/${'x'.repeat(4000)}` }), [agent]);
  assert.ok(long.length <= MAX_FRAME_BYTES, 'long paths never make an answer that no frame holds');
  const { sessionId: _id, startedAt: _at, statusSince: _since, quiet: _quiet, quietUntil: _until, ...rest } = session;
  const told = { ...rest, session_id: SESSION, started_at: AT };
  const older = read(encode({ ok: true, sessions: [told], agents: [], silent: ['vim', 'claude'] }));
  const [row] = older.sessions;
  assert.deepEqual(
    [row?.statusSince, row?.quiet, row?.quietUntil, older.silent],
    [null, null, null, ['claude']],
    'what an older or a newer ax tells',
  );
  const hostile = read(
    encode({
      ok: true,
      sessions: [{ ...told, workspace: '/a\u202eb', version: '\u001b]0;x', reason: '\u{e0041}' }],
      agents: [{ ...agent, name: 'a\nb' }],
    }),
  );
  assert.deepEqual(
    [hostile.sessions[0]?.workspace, hostile.sessions[0]?.version, hostile.sessions[0]?.reason, hostile.agents[0]?.name],
    ['/a\ufffdb', '\ufffd]0;x', '\ufffd', 'a\ufffdb'],
  );
  for (const change of [
    { harness: 'vim' },
    { started_at: 'x' },
    { status_since: -1 },
    { reachable: 1 },
    { session_id: 'x'.repeat(65) },
    { workspace: 'x'.repeat(4097) },
    { status: 5 },
  ])
    assert.throws(() => read(encode({ ok: true, sessions: [{ ...told, ...change }], agents: [] })), violation);
  assert.throws(() => read(encode({ ok: true, sessions: Array(1001).fill(told), agents: [] })), violation);
});

test('what pairing answers comes back, and a receipt out of an answer too', () => {
  const paired = { name: 'build', addresses: ['/ip4/192.0.2.7/tcp/1'], grants: ['read', 'later'] };
  const answer = wire.readAnswer(wire.encodeResult(paired));
  assert.ok(answer.ok);
  assert.deepEqual(wire.readPaired(answer.fields), paired);
  const accepted = wire.readAnswer(wire.encodeResult({ receipt: signedValue(receipt) }));
  assert.ok(accepted.ok);
  assert.deepEqual(wire.receiptOf(accepted.fields), receipt);
  for (const change of [{ name: 5 }, { addresses: 'x' }, { grants: ['x'.repeat(17)] }, { grants: undefined }])
    assert.throws(() => wire.readPaired({ ...paired, ...change } as never), violation);
  assert.throws(() => wire.receiptOf({}), violation);
});

test('any decoded value gives a request, an answer, a list, or a protocol_violation', () => {
  const key = fc.constantFrom(
    't',
    'ok',
    'code',
    'class',
    'min',
    'max',
    'version',
    'nonce',
    'ids',
    'items',
    'envelope',
    'pieces',
    'sessions',
    'agents',
    'name',
    'addresses',
    'grants',
    'receipt',
    '__proto__',
  );
  const value = fc.oneof(
    fc.constantFrom('deliver', 'pair', 'update', 'deferred', ID),
    fc.boolean(),
    fc.nat(),
    fc.uint8Array({ maxLength: 40 }),
    fc.array(fc.oneof(fc.string(), fc.dictionary(key, fc.string(), { noNullPrototype: true })), { maxLength: 3 }),
  );
  fc.assert(
    fc.property(fc.dictionary(key, value, { noNullPrototype: true }), (fields) => {
      const bytes = encode(fields);
      const decoded = decode(bytes) as never;
      for (const read of [
        () => wire.readRequest(bytes),
        () => wire.readHello(bytes),
        () => wire.readHelloAnswer(bytes),
        () => wire.readAnswer(bytes),
        () => wire.readSessions(decoded),
        () => wire.readPaired(decoded),
        () => wire.receiptOf(decoded),
      ]) {
        const result = outcome<unknown>(read);
        if (result instanceof AxError) assert.equal(result.code, 'protocol_violation');
      }
    }),
    { numRuns: 300 },
  );
});
