/**
 * `ax send` and `ax messages reply`: targets, bodies, limits, the retry line and the wait.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { QueuedMessage } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { MAX_BODY_BYTES, MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import { CLAUDE_SHELL, HOST_ID, ID, scripted } from './scripted.ts';
import type { Scripted } from './scripted.ts';

const QUEUED: QueuedMessage = {
  message_id: ID,
  destination: { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app', session_id: null },
  kind: 'message',
  state: 'queued',
  stored_as: null,
  live_session: null,
  from: { host: 'hosta', agent: 'builder' },
  replayed: false,
  notes: [],
};
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const SESSION = CLAUDE_SHELL.CLAUDE_CODE_SESSION_ID;

function sent(rig: Scripted): Record<string, unknown> {
  const { params } = rig.take('message.send');
  const { body, request_id, local_workspace, ...rest } = params;
  assert.match(String(request_id), UUID);
  assert.equal(local_workspace, rig.workspace);
  return { ...rest, body: Buffer.from(body as Uint8Array).toString('latin1') };
}

test('each form of a send asks for exactly its destination and headers', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED });
  const forms: readonly (readonly [readonly string[], Record<string, unknown>])[] = [
    [['--to', 'builder@hostb', 'hi'], { to: 'builder@hostb', kind: 'message', body: 'hi' }],
    [
      ['--host', 'hostb', '--session', SESSION, '--harness', 'claude', '--message', 'hi'],
      { host: 'hostb', session: SESSION, harness: 'claude', kind: 'message', body: 'hi' },
    ],
    [
      [
        '--node',
        'Localhost',
        '--destination-workspace',
        '/srv/app/',
        '--harness',
        'claude',
        '--note',
        '--reply-to',
        ID,
        '--subject',
        's',
        '--deadline',
        '90m',
        '--retention',
        '2d',
        '--agent',
        'me',
        '--',
        '-x',
      ],
      {
        host: 'Localhost',
        workspace: '/srv/app/',
        harness: 'claude',
        kind: 'note',
        reply_to: ID,
        subject: 's',
        deadline_ms: 5_400_000,
        retention_ms: 172_800_000,
        agent: 'me',
        body: '-x',
      },
    ],
  ];
  for (const [args, expected] of forms) {
    const { code, stdout } = await rig.ax(['send', ...args], { env: { AX_FORMAT: 'json' } });
    assert.equal(code, 0);
    assert.equal((JSON.parse(stdout) as { message_id: string }).message_id, ID);
    assert.deepEqual(sent(rig), expected);
  }
});

test('--harness behind send is the destination, before it the origin', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED });
  await rig.ax(['--harness', 'mine', 'send', '--host', 'b', '--destination-workspace', '/x', '--harness', 'claude', 'hi']);
  const { params, actor } = rig.take('message.send');
  assert.deepEqual([params['harness'], actor.origin.harness], ['claude', 'mine']);
});

test('the answer says where the message is, that nobody has read it and what follows; JSON has the fields of the contract', async (t) => {
  const owner = { ...QUEUED, from: { host: 'hosta', agent: null }, notes: ['a word'] };
  const rig = await scripted(t, { 'message.send': (_params, nth) => (nth === 0 ? QUEUED : owner) });
  const human = await rig.ax(['send', '--to', 'b@hostb', 'hi']);
  assert.equal(human.stderr, '');
  assert.match(
    human.stdout,
    new RegExp(`^queued {2}${ID}\n[^]*nobody has read it[^]*\nstatus: \\S+ --state-dir \\S+ admin status ${ID}\n$`),
  );
  const json = await rig.json(['send', '--to', 'b@hostb', 'hi']);
  assert.match(json.stderr, /^ax: a word\nax: sent as the owner .* nobody can reply to it\n$/);
  const { session_id: _none, ...destination } = QUEUED.destination;
  assert.deepEqual(json.value, {
    schema_version: '1',
    ok: true,
    type: 'message_queued',
    message_id: ID,
    destination,
    kind: 'message',
    state: 'queued',
    live_session: null,
    from: { host: 'hosta' },
    replayed: false,
    notes: ['a word'],
  });
});

test('no answer foretells what a session does: one that could be told is named as that, and why none is told is said where it is known', async (t) => {
  let more: object = {};
  const rig = await scripted(t, { 'message.send': () => ({ ...QUEUED, ...more }) });
  const say = async (change: object): Promise<string> => {
    more = change;
    return (await rig.ax(['send', '--to', 'b@hostb', 'hi'])).stdout;
  };
  for (const state of ['queued', 'forwarding', 'accepted', 'available'])
    for (const live of [true, false, null])
      for (const reason of ['quiet', 'several', 'toString', null, undefined]) {
        const text = await say({ state, live_session: live, receiver_notice_reason: reason });
        assert.match(text, /nobody has read it\..* waits there until a session fetches it\./);
        assert.doesNotMatch(text, /(?<!No )session there is told|and fetches it|Next,/);
        const known = reason === 'quiet' || reason === 'several';
        assert.equal(text.includes('No session there is told for now'), known);
        assert.equal(
          /A session of .* that can be told lives there now; when it looks is its own decision\./.test(text),
          !known && live === true,
        );
        assert.equal(/No session of .* that can be told lives there now\./.test(text), !known && live === false);
      }
  assert.match(await say({ state: 'accepted', receiver_notice_reason: 'quiet' }), /told for now \(quiet\): the agent there is quiet;/);
  assert.match(await say({ state: 'accepted', kind: 'note' }), /It is shown at the next look there, and no session is told\./);
});

test('the body is any bytes from text, --message, --file or stdin, and comes from one of them', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED });
  const bytes = Uint8Array.of(0, 0xff, 10, 0x1b);
  writeFileSync(join(rig.workspace, 'body'), bytes);
  for (const args of [['--file', 'body'], ['--file', '-'], ['-'], []]) {
    await rig.ax(['send', '--to', 'b@hostb', ...args], { input: bytes });
    assert.equal(sent(rig)['body'], '\0\xff\n\x1b');
  }
  await rig.ax(['send', '--to', 'b@hostb', '`$(x)` "ü"'], { input: 'unused' });
  assert.equal(Buffer.from(sent(rig)['body'] as string, 'latin1').toString('utf8'), '`$(x)` "ü"');
  for (const args of [
    ['hi', '--message', 'ho'],
    ['-', '--file', 'body'],
  ])
    assert.equal((await rig.json(['send', '--to', 'b@hostb', ...args])).code, 2);
});

test('an empty, a too large and a missing body are refused before the daemon is asked', async (t) => {
  const rig = await scripted(t, {});
  writeFileSync(join(rig.workspace, 'large'), Buffer.alloc(MAX_BODY_BYTES + 7));
  const large = await rig.json(['send', '--to', 'b@hostb', '--file', 'large']);
  assert.deepEqual([large.code, large.value['error'].code, large.value['error'].details.limit], [1, 'too_large', MAX_BODY_BYTES]);
  assert.match(String(large.value['error'].message), new RegExp(`${MAX_BODY_BYTES + 7} bytes; at most ${MAX_BODY_BYTES} `));
  const piped = await rig.json(['send', '--to', 'b@hostb'], { input: Buffer.alloc(MAX_BODY_BYTES * 2) });
  assert.equal(piped.value['error'].code, 'too_large');
  for (const args of [['--message', ''], []])
    assert.equal((await rig.json(['send', '--to', 'b@hostb', ...args])).value['error'].code, 'usage');
  writeFileSync(join(rig.workspace, 'nothing'), '');
  assert.equal((await rig.json(['send', '--to', 'b@hostb', '--file', 'nothing'])).value['error'].code, 'invalid_argument');
  assert.equal((await rig.json(['send', '--to', 'b@hostb', '--file', 'nowhere'])).value['error'].code, 'not_found');
  assert.equal((await rig.json(['send', '--to', 'b@hostb', '--file', '.'])).value['error'].code, 'invalid_argument');
  assert.equal(rig.asked.length, 0);
});

test('a body of one piece goes with the request, a larger one before it in parts, up to the limit', async (t) => {
  const rig = await scripted(t, { 'message.send': () => QUEUED, 'message.upload': () => ({ bytes: 1 }) });
  assert.equal((await rig.ax(['send', '--to', 'b@hostb'], { input: Buffer.alloc(MAX_PIECE_BYTES, 'x') })).code, 0);
  assert.equal((rig.take('message.send').params['body'] as Uint8Array).length, MAX_PIECE_BYTES);
  for (const bytes of [MAX_PIECE_BYTES + 1, 3 * MAX_PIECE_BYTES, MAX_BODY_BYTES]) {
    const body = Buffer.alloc(bytes, 'x');
    body[bytes - 1] = 0;
    writeFileSync(join(rig.workspace, 'body'), body);
    assert.equal((await rig.ax(['send', '--to', 'b@hostb', '--file', 'body'])).code, 0);
    const asked = rig.asked.splice(0);
    const last = asked.pop()!;
    assert.deepEqual([last.method, last.params['body'], asked.length], ['message.send', undefined, Math.ceil(bytes / MAX_PIECE_BYTES)]);
    assert.match(String(last.params['upload']), /^[0-9a-f]{32}$/);
    assert.deepEqual(
      asked.map(({ method, params }) => [method, params['upload'], params['index']]),
      asked.map((_, index) => ['message.upload', last.params['upload'], index]),
    );
    assert.ok(Buffer.concat(asked.map(({ params }) => params['body'] as Uint8Array)).equals(body));
  }
});

test('a destination that is not whole or says two things is a usage error', async (t) => {
  const rig = await scripted(t, {});
  const lines = [
    [],
    ['--to', 'a@b', '--host', 'c'],
    ['--host', 'c'],
    ['--host', 'c', '--session', SESSION],
    ['--host', 'c', '--session', SESSION, '--destination-workspace', '/x', '--harness', 'claude'],
    ['--to', 'a@b', '--harness', 'claude'],
    ['--to', 'a@b', '--timeout', '1s'],
    ['--to', 'a@b', '--wait', 'read'],
  ];
  for (const line of lines) assert.equal((await rig.json(['send', 'hi', ...line])).code, 2, line.join(' '));
  assert.equal((await rig.json(['send', '--to', 'a@b', '--deadline', 'soon', 'hi'])).value['error'].code, 'usage');
});

test('a failure after the daemon was asked prints the line that repeats the same request', async (t) => {
  const rig = await scripted(t, {
    'message.send': () => Promise.reject(new AxError('store_full', 'the disk is full', { fix: 'free some' })),
  });
  const line = ['send', '--to', 'b@hostb', "it's $(x)", '--subject', 'a b'];
  const { code, stdout, stderr } = await rig.ax(line);
  const key = String(rig.take('message.send').params['request_id']);
  assert.deepEqual([code, stdout], [1, '']);
  const lines = stderr.trimEnd().split('\n');
  assert.deepEqual(lines.slice(0, 2), ['ax: the disk is full', 'fix: free some']);
  assert.match(lines[2]!, new RegExp(`^retry: \\S+ send --to b@hostb 'it'\\\\''s \\$\\(x\\)' --subject 'a b' --request-id ${key}$`));
  const again = await rig.json([...line, '--request-id', 'mine'], {});
  assert.equal(rig.take('message.send').params['request_id'], 'mine');
  assert.deepEqual(
    [again.value['error'].details.request_id, String(again.value['error'].details.retry).match(/--request-id/g)?.length],
    ['mine', 1],
  );
  const piped = await rig.ax(['send', '--to', 'b@hostb'], { input: 'hi' });
  assert.match(piped.stderr, /retry: .* --request-id \S+ {3}\(with the same bytes on stdin\)\n$/);
});

test('a reply goes to the id with its own request id', async (t) => {
  const rig = await scripted(t, { 'message.reply': () => QUEUED });
  assert.equal(
    (await rig.json(['messages', 'reply', ID, '--file', '-', '--agent', 'me'], { input: 'yes' })).value['type'],
    'message_queued',
  );
  const { params } = rig.take('message.reply');
  assert.match(String(params['request_id']), UUID);
  assert.deepEqual(
    { ...params, request_id: 0 },
    { id: ID, kind: 'message', agent: 'me', body: new Uint8Array(Buffer.from('yes')), request_id: 0 },
  );
});

test('--wait ends with 0 only when the state is reached', async (t) => {
  const status = { message_id: ID, live_session: true, stored_as: null, cause: null };
  const rig = await scripted(t, {
    'message.send': () => QUEUED,
    'message.wait': (_params, nth) => ({ ...status, state: nth < 2 ? 'forwarding' : 'accepted', reached: nth >= 2 }),
  });
  const reached = await rig.json(['send', '--to', 'b@hostb', '--wait', 'accepted', 'hi']);
  assert.deepEqual(
    [reached.code, reached.value['type'], reached.value['state'], reached.value['live_session']],
    [0, 'message_queued', 'accepted', true],
  );
  const waits = rig.asked.filter((entry) => entry.method === 'message.wait');
  assert.equal(waits.length, 3);
  assert.deepEqual([waits[0]!.params['id'], waits[0]!.params['until']], [ID, 'accepted']);
  assert.ok(Number(waits[0]!.params['timeout_ms']) <= 25_000);

  rig.answers = { ...rig.answers, 'message.wait': () => ({ ...status, state: 'deferred', reached: false }) };
  const late = await rig.json(['send', '--to', 'b@hostb', '--wait', 'fetched', '--timeout', '80ms', 'hi']);
  assert.deepEqual(
    [late.code, late.value['error'].code, late.value['error'].details.state, late.value['error'].details.message_id],
    [1, 'wait_timeout', 'deferred', ID],
  );
  const lateHuman = await rig.ax(['send', '--to', 'b@hostb', '--wait', 'fetched', '--timeout', '80ms', 'hi']);
  assert.match(lateHuman.stdout, new RegExp(`^deferred {2}${ID}`));
  assert.match(lateHuman.stderr, /^ax: \S+ is deferred, not fetched, after 80 ms; it stays on its way\nfix: .*admin status/);
  const why = {
    code: 'grant_missing',
    message: 'hostb does not allow it: its owner must allow it, on hostb: ax host grant HERE write',
    at: 0,
  };
  rig.answers = { ...rig.answers, 'message.wait': () => ({ ...status, state: 'deferred', reached: false, cause: why }) };
  const caused = await rig.ax(['send', '--to', 'b@hostb', '--wait', 'accepted', '--timeout', '80ms', 'hi']);
  assert.match(caused.stderr, /it stays on its way\. Why it waits: hostb does not allow it: .* on hostb: ax host grant HERE write\n/);

  rig.answers = {
    ...rig.answers,
    'message.wait': () => ({ ...status, state: 'refused', reached: false, cause: { code: 'not_found', message: 'no such folder', at: 0 } }),
  };
  const refused = await rig.json(['send', '--to', 'b@hostb', '--wait', 'fetched', 'hi']);
  assert.deepEqual([refused.code, refused.value['error'].code, refused.value['error'].details.state], [1, 'not_found', 'refused']);
});
