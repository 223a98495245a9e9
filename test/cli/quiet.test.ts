/** `ax agent quiet` and `unquiet`: what is asked, and what people and machines are told; and why a notice is withheld, in words. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { WITHHELD_REASONS } from '../../protocol/states.ts';
import { AT, HOST_ID, ID, scripted } from './scripted.ts';

const AGENT = { name: 'builder', harness: 'claude', workspace: '/srv/app', attachments: [], waiting: 2, quiet: false, quiet_until: null };

test('quiet and unquiet name the agent, or the folder it is looked for in, and say until when and that nothing overrides it', async (t) => {
  const until = AT + 28_800_000;
  const quiet = { ...AGENT, quiet: true };
  const rig = await scripted(t, {
    'agent.quiet': ({ for_ms: forMs }) => ({ agent: { ...quiet, quiet_until: forMs === undefined ? null : until } }),
    'agent.unquiet': () => ({ agent: AGENT, was_quiet: true }),
    'agent.list': () => ({ agents: [{ ...quiet, quiet_until: until }, { ...quiet, name: 'nightly' }, AGENT] }),
  });
  const where = { local_workspace: rig.workspace };
  const timed = await rig.json(['agent', 'quiet', 'builder', '--until', '8h']);
  assert.deepEqual(rig.asked.at(-1)?.params, { name: 'builder', for_ms: 28_800_000, as_owner: false, ...where });
  assert.deepEqual([timed.value['type'], timed.value['agent']['quiet_until']], ['agent_quiet', new Date(until).toISOString()]);
  const open = await rig.ax(['agent', 'quiet']);
  assert.deepEqual(rig.asked.at(-1)?.params, { as_owner: false, ...where });
  assert.match(open.stdout, /^builder is quiet \(until unquiet\): messages are kept, no notice is given, .*nothing overrides it/);
  assert.match(open.stdout, /2 unread messages wait[^]*to end it: .*agent unquiet builder/);
  const ended = await rig.ax(['agent', 'unquiet', 'builder', '--as-owner']);
  assert.deepEqual(rig.asked.at(-1)?.params, { name: 'builder', as_owner: true, ...where });
  assert.match(ended.stdout, /^builder is quiet no longer; 2 unread messages wait/);
  const listed = await rig.ax(['agent', 'list']);
  assert.match(listed.stdout, /QUIET[^]*builder .*ends .*\n.*nightly .*until unquiet.*\n.*builder .* - /);
  const rows = (await rig.ax(['agent', 'list', '--format', 'csv'])).stdout.split('\r\n').map((line) => line.split(',').slice(-2).join());
  assert.deepEqual(
    rows.slice(0, 4),
    ['quiet_until,quiet', `${new Date(until).toISOString()},true`, ',true', ',false'],
    'machines tell the three apart',
  );
  for (const span of ['8', 'never', '0s', '500ms'])
    assert.equal((await rig.json(['agent', 'quiet', '--until', span])).value['error']['code'], 'usage', span);
});

test('why a notice is withheld is said in words, and a reason that only a newer ax knows is left out', async (t) => {
  let reason: string | null | undefined;
  const destination = { host_id: HOST_ID, host: 'hostb', harness: 'claude', workspace: '/srv/app', session_id: null };
  const status = { message_id: ID, side: 'sender', state: 'accepted', receiver_notice: 'withheld', destination, from: 'here', history: [] };
  const rest = { receiver_state: null, cause: null, subject: null, stored_as: 'message', remaining_ms: null, bytes: 1 };
  const rig = await scripted(t, { 'admin.message_status': () => ({ ...status, ...rest, receiver_notice_reason: reason }) });
  const said = new Set<string>();
  for (reason of WITHHELD_REASONS) {
    const { stdout } = await rig.ax(['admin', 'status', ID]);
    assert.match(stdout, new RegExp(`notice: withheld \\(${reason}\\): [a-z]`));
    said.add(/notice: withheld \([a-z_]+\): (.*)/.exec(stdout)?.[1] ?? '');
  }
  assert.equal(said.size, WITHHELD_REASONS.length);
  for (reason of ['toString', null, undefined])
    assert.match((await rig.ax(['admin', 'status', ID])).stdout, /notice: withheld: no session is told for now/);
  reason = 'quiet';
  assert.equal((await rig.json(['admin', 'status', ID])).value['receiver_notice_reason'], 'quiet');
});
