/** Several config roots, roots that come and go, and the proof of a shell's claim against them. */
import assert from 'node:assert/strict';
import { renameSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { realClock, withRig } from './rig.ts';

test('several roots are one list; a root may come later, be added, or hold the same session twice', async () => {
  await withRig(
    async (rig) => {
      const [later, added] = [join(rig.dir, 'later'), join(rig.dir, 'added')];
      const one = await rig.standIn();
      const two = await rig.standIn({ configDir: later });
      await rig.see(two);
      const three = await rig.standIn({ configDir: added });
      rig.harness.addConfigDir(added);
      await rig.see(three);
      symlinkSync(rig.configDir, join(rig.dir, 'twin'));
      rig.harness.addConfigDir(join(rig.dir, 'twin'));
      const live = await rig.harness.refresh();
      assert.deepEqual(
        live.map((session) => session.processKey),
        [one, two, three].map((standIn) => standIn.processKey),
      );
    },
    { roots: ['claude', 'later'], clock: realClock(10) },
  );
});

test('a registry folder that is removed and made again is watched again', async () => {
  await withRig(
    async (rig) => {
      await rig.see(await rig.standIn());
      renameSync(join(rig.configDir, 'sessions'), join(rig.configDir, 'old'));
      await rig.until(() => rig.harness.sessions().length === 0, 'the list is empty');
      await rig.see(await rig.standIn());
    },
    { clock: realClock(10) },
  );
});

test('a claim may bring its own config folder, which is looked into from then on', async () => {
  await withRig(async (rig) => {
    const configDir = join(rig.dir, 'other');
    const standIn = await rig.standIn({ configDir });
    const claim = { harness: 'claude', pid: standIn.pid, sessionId: standIn.sessionId, socket: standIn.socket } as const;
    await assert.rejects(rig.harness.prove(claim), { code: 'not_found' });
    await assert.rejects(rig.harness.prove({ ...claim, configDir: 'relative' }), { code: 'not_found' });
    await assert.rejects(rig.harness.prove({ ...claim, configDir: join(rig.dir, 'nowhere') }), { code: 'not_found' });
    assert.equal((await rig.harness.prove({ ...claim, configDir })).processKey, standIn.processKey);
    await standIn.send({ cmd: 'busy' });
    await rig.until(() => rig.find(standIn.processKey)?.status === 'busy', 'the added root is watched');
  });
});

test('a script session may prove itself, and a wrong value is named', async () => {
  await withRig(async (rig) => {
    const standIn = await rig.standIn({ entrypoint: 'sdk-cli' });
    await rig.see(standIn);
    const claim = { harness: 'claude', pid: standIn.pid, sessionId: standIn.sessionId, socket: standIn.socket } as const;
    assert.equal((await rig.harness.prove(claim)).reachable, false);
    const other = '99999999-2222-4333-8444-555555555555';
    await assert.rejects(rig.harness.prove({ ...claim, sessionId: other }), { code: 'invalid_state', message: /CLAUDE_CODE_SESSION_ID/ });
    await assert.rejects(rig.harness.prove({ ...claim, socket: '/x' }), { code: 'invalid_state', message: /CLAUDE_CODE_MESSAGING_SOCKET/ });
    await assert.rejects(rig.harness.prove({ ...claim, pid: 1 }), { code: 'invalid_state', message: /CLAUDE_PID/ });
  });
});
