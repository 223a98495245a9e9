/** What Codex says of threads, queues and itself is foreign: few fields are taken, strictly, and nothing of it becomes words of ax. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { parseAdded, parseQueuePage } from '../../../daemon/harness/codex-queue.ts';
import { parseFrame, parseRefusal } from '../../../daemon/harness/codex-rpc.ts';
import {
  faultOf,
  leftOut,
  parseLoaded,
  parseThread,
  parseVersion,
  REASONS,
  sessionOf,
  unsupported,
} from '../../../daemon/harness/codex-thread.ts';

const ID = '0190aaaa-0000-7000-8000-000000000001';
const GENUINE = {
  id: ID,
  environments: [{ environmentId: 'local', cwd: '/home/dev/shop', runtimeWorkspaceRoots: ['/home/dev/shop'] }],
  sessionId: ID,
  parentThreadId: null,
  preview: 'a private question',
  ephemeral: false,
  createdAt: 1_700_000_000,
  status: { type: 'idle' },
  path: '/home/dev/.codex/sessions/x.jsonl',
  cwd: '/home/dev/shop',
  cliVersion: '0.171.0',
  source: 'vscode',
  canAcceptDirectInput: true,
  name: 'a private name',
  turns: [],
};
const KNOWN = { text: '0.171.0', isSupported: true };
const read = (changes: object = {}): ReturnType<typeof parseThread> => parseThread({ thread: { ...GENUINE, ...changes }, readState: null });
const seen = (changes: object = {}): NonNullable<ReturnType<typeof parseThread>> => {
  const thread = read(changes);
  assert.ok(thread !== undefined);
  return thread;
};

test('a genuine thread gives what ax uses and nothing private', () => {
  const session = sessionOf(seen(), { workspace: '/home/dev/shop', statusSince: 7, version: '0.171.0', reason: undefined });
  assert.deepEqual(session, {
    harness: 'codex',
    sessionId: ID,
    workspace: '/home/dev/shop',
    status: 'idle',
    statusSince: 7,
    startedAt: 1_700_000_000_000,
    version: '0.171.0',
    reachable: true,
    processKey: `codex:${ID}`,
  });
  assert.equal(faultOf(seen(), KNOWN), undefined);
  assert.doesNotMatch(JSON.stringify(seen()), /private|rollout|jsonl/);
});

test('the status is told as far as it is known', () => {
  const status = (value: object): string =>
    sessionOf(seen({ status: value }), { workspace: '/w', statusSince: 0, version: '1', reason: undefined }).status;
  assert.equal(status({ type: 'idle' }), 'idle');
  assert.equal(status({ type: 'active', activeFlags: [] }), 'busy');
  assert.equal(status({ type: 'active' }), 'busy');
  assert.equal(status({ type: 'active', activeFlags: ['somethingNew'] }), 'busy');
  assert.equal(status({ type: 'active', activeFlags: ['waitingOnApproval'] }), 'waiting');
  assert.equal(status({ type: 'active', activeFlags: ['waitingOnUserInput'] }), 'waiting');
  assert.equal(status({ type: 'systemError' }), 'idle', 'its last turn failed; it takes the next input at once');
});

test('ephemeral threads, sub-agents and threads that are not loaded are no sessions', () => {
  assert.equal(leftOut(seen()), undefined);
  assert.equal(leftOut(seen({ ephemeral: true })), 'ephemeral');
  assert.equal(leftOut(seen({ parentThreadId: ID })), 'sub-agent');
  assert.equal(leftOut(seen({ source: { subAgent: { thread_spawn: { parent_thread_id: ID, depth: 1 } } } })), 'sub-agent');
  assert.equal(leftOut(seen({ status: { type: 'notLoaded' }, canAcceptDirectInput: null })), 'not loaded');
});

test('a thread that says less or other than is known is listed and not nudged', () => {
  const why = 'unsupported Codex version 0.171.0';
  for (const field of ['ephemeral', 'parentThreadId', 'source', 'canAcceptDirectInput'])
    assert.equal(faultOf(seen({ [field]: undefined }), KNOWN), why, field);
  assert.equal(faultOf(seen({ canAcceptDirectInput: null }), KNOWN), why);
  assert.equal(faultOf(seen({ status: { type: 'hibernating' } }), KNOWN), why);
  assert.equal(faultOf(seen(), { text: '0.148.0', isSupported: false }), 'unsupported Codex version 0.148.0');
  assert.equal(faultOf(seen({ canAcceptDirectInput: false }), KNOWN), REASONS.input);
  assert.equal(faultOf(seen({ status: { type: 'systemError' } }), KNOWN), undefined);
});

test('what is no thread is none', () => {
  const wrong = [
    { id: 'x' },
    { id: ID.toUpperCase() },
    { id: 5 },
    { cwd: 'relative' },
    { cwd: '/a\0b' },
    { cwd: `/${'x'.repeat(5000)}` },
    { cwd: null },
    { status: 'idle' },
    { status: null },
    { status: { type: 1 } },
  ];
  for (const changes of wrong) assert.equal(read(changes), undefined, JSON.stringify(changes).slice(0, 80));
  for (const answer of [undefined, null, 5, 'x', [], {}, { thread: [] }, { thread: null }]) assert.equal(parseThread(answer), undefined);
  for (const createdAt of [-1, 0, Number.NaN, 1e300, '1', null]) assert.equal(seen({ createdAt }).startedAt, 0);
});

test('the version is the token behind the first slash, from 0.157 on supported', () => {
  const version = (userAgent: unknown): unknown => parseVersion({ userAgent });
  assert.deepEqual(version('codex-tui/0.171.0 (Debian 12.0.0; x86_64) xterm (ax; 0.1.0)'), KNOWN);
  assert.deepEqual(version('Codex Desktop/0.157.1'), { text: '0.157.1', isSupported: true });
  assert.deepEqual(version('ax/1.0.0-alpha.3 (x)'), { text: '1.0.0-alpha.3', isSupported: true });
  assert.deepEqual(version('ax/0.156.9 (x)'), { text: '0.156.9', isSupported: false });
  for (const agent of [undefined, null, '', 'codex', 'codex/new', 'codex/0.171', 'codex/0.171.0\u001b[2J', '/0.171.0', 5])
    assert.deepEqual(version(agent), { text: 'unknown', isSupported: false }, String(agent));
  assert.equal(unsupported('unknown'), 'unsupported Codex version');
});

test('a loaded list keeps what are ids, and a list of another shape is none', () => {
  assert.deepEqual(parseLoaded({ data: [ID, 'x', 5], nextCursor: null }), { ids: [ID], next: undefined });
  assert.deepEqual(parseLoaded({ data: [], nextCursor: '25' }), { ids: [], next: '25' });
  for (const answer of [undefined, [], {}, { data: {} }, { data: null }]) assert.equal(parseLoaded(answer), undefined);
});

test('of a queue only ids are kept, and of client ids only those of ax', () => {
  const item = (id: string, clientUserMessageId: unknown): object => ({ id, clientUserMessageId, input: [{ text: 'private' }] });
  assert.deepEqual(parseQueuePage({ data: [item('a', `ax-${ID}`), item('b', 'private'), item('c', '')], nextCursor: '3' }), {
    items: [
      { id: 'a', ours: `ax-${ID}` },
      { id: 'b', ours: undefined },
      { id: 'c', ours: undefined },
    ],
    next: '3',
  });
  for (const data of [[5], [item('', 'x')], [item('a', null)], [{ queuedTurn: {} }], {}]) assert.equal(parseQueuePage({ data }), undefined);
  assert.deepEqual(parseAdded({ queuedSubmission: item('a', 'ax-1') }), { id: 'a', ours: 'ax-1' });
  for (const answer of [undefined, {}, { queuedTurn: item('a', 'ax-1') }, { queuedSubmission: [] }])
    assert.equal(parseAdded(answer), undefined);
});

test('refusals of the genuine daemon are told apart, others are "other"', () => {
  const refusal = (code: unknown, message: unknown): string => parseRefusal({ code, message });
  assert.equal(refusal(-32600, 'Invalid request: unknown variant `thread/queue/add`, expected one of `initialize`'), 'unsupported');
  assert.equal(refusal(-32600, 'Invalid request: missing field `turnStartParams`'), 'unsupported');
  assert.equal(refusal(-32601, 'Method not found'), 'unsupported');
  assert.equal(refusal(-32600, `thread not loaded: ${ID}`), 'not loaded');
  assert.equal(
    refusal(-32603, `failed to read thread: invalid thread-store request: no rollout found for thread id ${ID}`),
    'unknown thread',
  );
  assert.equal(refusal(-32600, `session ${ID} is archived. Run \`codex unarchive\` first.`), 'archived');
  assert.equal(refusal(-32600, `ephemeral thread does not support queued submissions: ${ID}`), 'ephemeral');
  assert.equal(refusal(-32600, 'queue cannot contain more than 100 submissions'), 'full');
  assert.equal(refusal(-32001, 'anything'), 'overloaded');
  for (const error of [undefined, null, 5, [], { code: 'x', message: 5 }]) assert.equal(parseRefusal(error), 'other');
});

test('no JSON makes a parser throw', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      const frame = parseFrame(JSON.stringify(value));
      for (const parse of [parseThread, parseVersion, parseLoaded, parseQueuePage, parseAdded, parseRefusal]) parse(frame);
    }),
    { numRuns: 300 },
  );
  for (const text of ['', '{', '[]', '5', 'null', '\u0000']) assert.equal(parseFrame(text), undefined);
});
