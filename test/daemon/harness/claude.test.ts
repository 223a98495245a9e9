/** The Claude Code adapter keeps the rules of the harness seam, against stand-in sessions that are processes of their own. */
import type { StandIn } from '../../standin/spawn.ts';
import type { StandInOptions } from '../../standin/options.ts';
import { harnessContract, type HarnessRig, type RigBehaviour, type RigSession, type RigTraits } from '../../contract/harness.ts';
import { ClaudeRig } from './rig.ts';

const TRAITS: RigTraits = { taken: 'written', afterwards: [], hasReceipts: true, hasClear: true, exports: ['pid', 'socket'] };

const OPTIONS: Record<RigBehaviour, Partial<StandInOptions>> = {
  acts: {},
  holds: { inbound: 'hold' },
  approves: { mode: 'bypass', decides: 'approve' },
  denies: { mode: 'bypass', decides: 'deny' },
  lapses: { mode: 'bypass', dialogTimeoutMs: 50 },
  blocks: { inbound: 'refuse' },
};

function sessionOf(standIn: StandIn): RigSession {
  return {
    workspace: standIn.options.cwd,
    processKey: standIn.processKey,
    sessionId: () => standIn.sessionId,
    claim: () => ({ harness: 'claude', sessionId: standIn.sessionId, pid: standIn.pid, socket: standIn.socket }),
    received: async () => {
      await standIn.send({ cmd: 'state' }); // its answer comes after every event before it
      return standIn
        .all('frame')
        .map((frame) => frame.content.replace(/^<cross-session-message from-name="ax">\n/, '').replace(/\n<\/cross-session-message>$/, ''));
    },
    setStatus: async (status) => void (await standIn.send({ cmd: status })),
    clear: async () => void (await standIn.send({ cmd: 'clear' })),
    end: () => standIn.stop(),
    crash: () => standIn.kill(),
  };
}

harnessContract('Claude Code adapter', TRAITS, async (): Promise<HarnessRig> => {
  const rig = await new ClaudeRig().start();
  return {
    harness: rig.harness,
    lists: rig.lists,
    notices: rig.notices,
    add: async (behaviour) => sessionOf(await rig.standIn(OPTIONS[behaviour])),
    until: (check, what) => rig.until(check, what),
    drive: (work) => work,
    stop: () => rig.stop(),
  };
});
