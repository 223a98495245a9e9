/**
 * `ax agent sandbox-fetch`: the switch of the channel through which a sandboxed session can fetch its messages.
 *
 * Owns what a person reads before they turn it on. Turning it on and off is for a person at a terminal only; looking at it is for
 * anybody. The daemon keeps the switch and makes or removes the channel at once.
 */
import type { Command } from 'commander';
import type { SandboxFetchState } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { boxPaths } from '../../protocol/box.ts';
import { call } from '../client.ts';
import { action, verb } from '../command.ts';
import { axCommand } from '../environment.ts';
import type { Run } from '../options.ts';
import { visible } from '../output.ts';
import { isConfirmed, requirePerson } from '../person.ts';

const SET = ['on', 'off', 'status'];

export function addSandboxFetch(agent: Command): void {
  const command = verb(
    agent,
    'sandbox-fetch <on|off|status>',
    'let sandboxed sessions fetch their messages through a pipe of the daemon; off by default, for a person to turn on',
    'ax agent sandbox-fetch status',
  );
  action(command, sandboxFetch);
}

async function sandboxFetch(run: Run): Promise<void> {
  const { environment } = run;
  const set = run.args[0] ?? '';
  if (!SET.includes(set)) throw new AxError('usage', `\`ax agent sandbox-fetch\` takes ${SET.join(', ')}`);
  if (set === 'status') return print(run, await call<SandboxFetchState>(environment, 'agent.sandbox_fetch'));
  requirePerson(environment, `agent sandbox-fetch ${set}`);
  const before = await call<SandboxFetchState>(environment, 'agent.sandbox_fetch');
  if (set === 'on' && !before.open) {
    process.stderr.write(`${visible(boxPaths(environment.stateDir).folder)}\n${WHAT_IT_OPENS.join('\n')}\n`);
    if (!(await isConfirmed('Turn it on?'))) throw new AxError('invalid_state', 'nothing was changed');
  }
  return print(run, await call<SandboxFetchState>(environment, 'agent.sandbox_fetch', { set }));
}

const WHAT_IT_OPENS = [
  'This opens a pipe in the folder above. A session whose sandbox lets it connect to nothing can write to it, and so fetch its messages.',
  '  Let out of the sandbox: a line that asks for one message, which this host must have told that very session about, with the code of',
  '    that notice, while the session works. Anything else is dropped. Nobody can send, answer, list or change anything through it.',
  '  Let in: the body of that message. It lies in that folder for 30 s; one of over 16 KiB, or that is no text, goes into `fetched` beside it.',
  '  Leaves this host: at most that the message was fetched.',
  '  Not protected: whatever runs in a sandbox of this account can read those answers meanwhile, and can jam the pipe. With a code that it',
  "    read in another session's conversation it can fetch that session's messages, which then count as read.",
  'It relies on sandboxes leaving pipes writable, which no vendor promises. `ax agent allow-rules` is the documented way.',
];

async function print(run: Run, state: SandboxFetchState): Promise<void> {
  const { environment } = run;
  const folder = boxPaths(environment.stateDir).folder;
  const human = state.open
    ? `on: sandboxed sessions can fetch through ${visible(folder)}. Notices from now on carry the code that it takes.`
    : state.enabled
      ? `on, but not open: ${visible(state.reason ?? 'the daemon is starting')}`
      : `off: sandboxed sessions reach nothing of ax. To let them fetch, in your own terminal: ${axCommand(environment.ax, 'agent', 'sandbox-fetch', 'on')}`;
  await run.print({ type: 'sandbox_fetch', fields: { ...state, folder }, human });
}
