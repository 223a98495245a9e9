/**
 * What an agent can put in the place of a program: a service must not be made to start it.
 */
import assert from 'node:assert/strict';
import { mkdirSync, realpathSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { scripted } from './scripted.ts';

test('a service starts no Node that was found on the PATH, and what an agent may be able to replace is told', async (t) => {
  const rig = await scripted(t, { 'agent.list': () => ({ agents: [{ workspace: realpathSync(join(process.execPath, '..')) }] }) });
  const planted = join(rig.workspace, 'node_modules', '.bin');
  mkdirSync(planted, { recursive: true });
  symlinkSync(process.execPath, join(planted, 'node'));
  const { value } = await rig.json(['daemon', 'install', '--dry-run'], { env: { PATH: `${planted}:/usr/bin:/bin` } });
  assert.equal(String(value['text']).includes(planted), false, value['text']);
  assert.match(String(value['text']), /^ExecStart="\/|<key>ProgramArguments<\/key>/m);
  // Which of the reasons is told first depends on where this tree lies: in a folder for temporary files, or only in an agent's workspace.
  const [warning] = value['warnings'] as string[];
  assert.match(warning ?? '', /lies in (\S+, the workspace of an agent|a folder that is emptied at a start)/);
});
