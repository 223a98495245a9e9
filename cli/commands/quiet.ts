/**
 * `ax agent quiet` and `ax agent unquiet`: an agent to which no notice is given, for a while or until told otherwise.
 *
 * Owns the two verbs and their words. An agent's own shell may quiet its own agent; another agent is its owner's to quiet. Nothing that is
 * sent is lost or refused by it, and nothing a sender says overrides it.
 */
import type { Command } from 'commander';
import type { AgentRow, SessionRow } from '../../protocol/control.ts';
import { MIN_QUIET_MS } from '../../protocol/limits.ts';
import { call } from '../client.ts';
import { action, asOwner, verb } from '../command.ts';
import { axCommand, requireOwnOrOwner } from '../environment.ts';
import { durationOption } from '../options.ts';
import type { Run } from '../options.ts';
import { ago, count, visible } from '../output.ts';

const WHICH = '(default: the one of this session or folder)';

export function addQuiet(agent: Command): void {
  const quiet = verb(
    agent,
    'quiet [agent]',
    `give an agent no notices for a while ${WHICH}; what is sent to it is kept, its senders see that it is quiet (when they send, in the status and in the list of sessions), and no sender can override it`,
    'ax agent quiet builder --until 8h',
  ).option('--until <span>', 'for so long, such as 30m or 8h; default until `ax agent unquiet`');
  action(asOwner(quiet), async (run) => {
    const forMs = durationOption(run.options, 'until', '--until', MIN_QUIET_MS);
    const { agent: row } = await call<{ agent: AgentRow }>(run.environment, 'agent.quiet', { ...which(run, 'agent.quiet'), for_ms: forMs });
    await run.print({ type: 'agent_quiet', fields: { agent: row }, human: quietened(run, row) });
  });
  const unquiet = verb(
    agent,
    'unquiet [agent]',
    `give an agent notices again ${WHICH}; what waits is told of now`,
    'ax agent unquiet builder',
  );
  action(asOwner(unquiet), async (run) => {
    const done = await call<{ agent: AgentRow; was_quiet: boolean }>(run.environment, 'agent.unquiet', which(run, 'agent.unquiet'));
    const name = visible(done.agent.name);
    const waiting = done.agent.waiting === 0 ? '' : `; ${count(done.agent.waiting, 'unread message waits', 'unread messages wait')}`;
    const human = done.was_quiet ? `${name} is quiet no longer${waiting}` : `${name} was not quiet${waiting}`;
    await run.print({ type: 'agent_unquiet', fields: { ...done }, human });
  });
}

function which(run: Run, method: 'agent.quiet' | 'agent.unquiet'): Record<string, unknown> {
  const { environment, args, options } = run;
  const params = { name: args[0], local_workspace: environment.localWorkspace, as_owner: options['asOwner'] === true };
  requireOwnOrOwner(environment, method, params);
  return params;
}

/** Until when an agent (or that of a session) is quiet, for a table; empty when it is not. */
export function quietText(row: Pick<AgentRow | SessionRow, 'quiet' | 'quiet_until'>): string {
  if (row.quiet !== true) return '';
  return row.quiet_until === null || row.quiet_until === undefined ? 'until unquiet' : `ends ${ago(row.quiet_until)}`;
}

function quietened({ environment }: Run, row: AgentRow): string {
  const name = visible(row.name);
  return [
    `${name} is quiet (${quietText(row)}): messages are kept, no notice is given, and their senders see it; nothing overrides it`,
    ...(row.waiting === 0 ? [] : [`${count(row.waiting, 'unread message waits', 'unread messages wait')}: ax messages list`]),
    `to end it: ${axCommand(environment.ax, 'agent', 'unquiet', row.name)}`,
  ].join('\n');
}
