/** Which faults are the line's own: they have status 2 and the code `usage`, are told without a daemon, and show where to read on. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AxError } from '../../protocol/errors.ts';
import { ID, scripted } from './scripted.ts';

const FOLDER = ['--host', 'b', '--destination-workspace', '/x'];
const HOST_ID = '12D3KooWLw7rWoEy1NrX6DsXbFQoTnpCBfRwvtjVNqUpDRaFWRZQ';

const WRONG: readonly (readonly string[])[] = [
  ['host', 'ping', 'b', '--count', 'x'],
  ['host', 'ping', 'b', '--count', '0'],
  ['messages', 'list', '--limit', 'x'],
  ['messages', 'list', '--state', 'bogus'],
  ['messages', 'list', '--state', 'queued'],
  ['messages', 'list', '--sent', '--state', 'available'],
  ['admin', 'events', '--since', 'x'],
  ['admin', 'events', '--limit', '-1'],
  ['send', '--to', 'app@b', '--deadline', '5', 'x'],
  ['send', '--to', 'app@b', '--retention', 'long', 'x'],
  ['send', '--to', 'app@b', '--wait', 'accepted', '--timeout', '0s', 'x'],
  ['send', '--to', 'app', 'x'],
  ['send', '--to', '@b', 'x'],
  ['send', '--to', 'app@b', '--reply-to', '123', 'x'],
  ['send', '--to', 'app@b', '--request-id', 'no spaces', 'x'],
  ['send', ...FOLDER, '--harness', 'cursor', 'x'],
  ['send', '--host', 'b', '--destination-workspace', 'relative', '--harness', 'claude', 'x'],
  ['send', '--host', 'b', '--session', '123', '--harness', 'claude', 'x'],
  ['send', ...FOLDER, 'x'],
  ['send', '--to', 'app@b'],
  ['send', '--to', 'app@b', '--message', ''],
  ['send', '--to', 'app@b', '--file', '-'],
  ['messages', 'reply', ID, '--deadline', '5', 'x'],
  ['messages', 'show', 'no-such-id'],
  ['messages', 'fetch', '01h'],
  ['messages', 'reply', '../../x', 'x'],
  ['messages', 'list', '--before', 'yesterday'],
  ['admin', 'status', 'overview'],
  ['admin', 'cancel', '8zzzzz@hostb'],
  ['admin', 'retry', ''],
  ['admin', 'dead', '--before', '1'],
  ['send', '--to', 'app@b', '--subject', 'x'.repeat(201), 'x'],
  ['messages', 'reply', ID, '--subject', 'two\nlines', 'x'],
  ['send', '--to', 'app@b', '--to', 'other@b', 'x'],
  ['agent', 'quiet', '--until', '8x'],
  ['agent', 'rename', 'a', 'with space'],
  ['host', 'invite', '--ttl', '0s'],
  ['host', 'invite', '--grant', 'wriet'],
  ['host', 'join', '-', '--grant', 'wriet'],
  ['host', 'join', '-', '--name', 'with space'],
  ['host', 'add', 'with space', `/ip4/192.0.2.7/tcp/1/p2p/${HOST_ID}`],
  ['host', 'add', 'b', '192.0.2.7:19264'],
  ['host', 'rename', 'b', 'localhost'],
  ['host', 'grant', 'b', 'nothing'],
  ['host', 'grant', 'b', 'write', '--expires', 'soon'],
  ['host', 'revoke', 'b', 'wriet'],
  ['daemon', 'start', '--listen', '127.0.0.1:80'],
  ['daemon', 'start', '--name', 'with space'],
  ['daemon', 'run', '--listen', ','],
  ['send', '--to', 'app@b', '--bogus', 'x'],
  ['host', 'lst'],
];

test('what is wrong with the line itself is usage, status 2: told before any daemon is asked, with a way on that can be run', async (t) => {
  const rig = await scripted(t, {});
  for (const args of WRONG) {
    const { code, stdout, stderr } = await rig.ax(args, { input: '' });
    assert.deepEqual([code, stdout], [2, ''], args.join(' '));
    assert.match(stderr, /^ax: .+\nfix: /, args.join(' '));
    const { value } = await rig.json(args, { input: '' });
    assert.equal(value['error'].code, 'usage', args.join(' '));
  }
  assert.deepEqual(rig.asked, []);
  const { stderr } = await rig.ax(['host', 'ping', 'b', '--count', 'x']);
  assert.match(stderr, new RegExp(`\\nfix: \\S*ax --state-dir ${rig.stateDir} host ping --help\\n$`));
  assert.match((await rig.ax(['host', 'grant', 'b', 'wriet'])).stderr, /"wriet" is no grant \(.*\); did you mean write\?\n/);
});

test('what only the daemon can refuse in a line is a refusal, status 1', async (t) => {
  const no = (): Promise<never> => Promise.reject(new AxError('invalid_argument', 'too much'));
  const rig = await scripted(t, { 'host.ping': no, 'message.send': no, 'message.list': no });
  for (const args of [
    ['host', 'ping', 'b', '--count', '999'],
    ['send', '--to', 'app@b', '--deadline', '400d', 'x'],
    ['messages', 'list', '--limit', '99999'],
  ])
    assert.equal((await rig.ax(args)).code, 1, args.join(' '));
});
