/**
 * `ax agent`: the mailboxes of this host and the sessions that can read them.
 *
 * Owns what `setup` prints for a session to go on with: what waits, the next command, and the rule that spares prompts (shown, never
 * written). Which session asks is what the harness's shell exports; the daemon proves it.
 */
import type { Command } from 'commander';
import type { AgentRow, SessionHost, SessionRow, WaitingRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import type { ErrorBody } from '../../protocol/errors.ts';
import { parseName } from '../../protocol/ids.ts';
import { call } from '../client.ts';
import { action, noun, verb } from '../command.ts';
import { absolute, axCommand, requireLocalWorkspace, requireOneShell } from '../environment.ts';
import { inLine, textOption } from '../options.ts';
import type { Run } from '../options.ts';
import { ago, count, note, table, visible, withoutNull } from '../output.ts';
import type { Fields } from '../output.ts';
import { setupAdvice } from '../rules.ts';
import { waitingRows } from '../status.ts';
import { addAllowRules } from './allow-rules.ts';
import { addInstallSkill } from './install-skill.ts';
import { addQuiet, quietText } from './quiet.ts';
import { addSandboxFetch } from './sandbox-fetch.ts';

interface Setup {
  readonly agent: { readonly name: string; readonly harness: string; readonly workspace: string };
  readonly attachment: { readonly session_id: string; readonly state: string };
  readonly waiting: readonly WaitingRow[];
  /** All that wait, also where only the oldest are listed. */
  readonly waiting_count?: number;
  readonly warnings: readonly string[];
  readonly next: string | null;
}

const AGENT_COLUMNS = ['name', 'harness', 'workspace', 'attachments', 'waiting', 'quiet_until', 'quiet'];
const SESSION_COLUMNS = [
  'host',
  'host_id',
  'state',
  'harness',
  'session_id',
  'workspace',
  'status',
  'agent',
  'reachable',
  'reason',
  'version',
  'started_at',
  'error',
  'status_since',
  'warnings',
  'quiet',
  'quiet_until',
];

export function addAgent(root: Command): void {
  const agent = noun(root, 'agent', 'Agents of this host, and live sessions anywhere', 'ax agent list');
  const set = verb(
    agent,
    'setup',
    "inside a session's shell: register the agent of this folder and attach the session",
    'ax agent setup --name builder --workspace "$PWD"',
  )
    .requiredOption('--name <name>', 'the name others send to')
    .option('--workspace <dir>', "the session's folder; default the local workspace");
  action(set, setup);
  action(verb(agent, 'list', 'agents registered on this host', 'ax agent list').alias('ls'), listAgents);
  action(verb(agent, 'rename <agent> <name>', 'another name for an agent', 'ax agent rename builder nightly'), async (run) => {
    inLine(() => parseName(run.args[1], 'an agent name'));
    const renamed = await call<{ agent: Fields }>(run.environment, 'agent.rename', { name: run.args[0], new_name: run.args[1] });
    await run.print({
      type: 'agent_renamed',
      fields: { ...renamed },
      human: `${visible(run.args[0] ?? '')} is now ${visible(run.args[1] ?? '')}`,
    });
  });
  action(
    verb(agent, 'remove <agent>', 'forget an agent; what waits for it stays and waits for a new setup', 'ax agent remove builder'),
    async (run) => {
      const removed = await call<{ name: string; waiting: number }>(run.environment, 'agent.remove', { name: run.args[0] });
      const waiting =
        removed.waiting > 0
          ? `; ${count(removed.waiting, 'unread message waits', 'unread messages wait')} for a new setup of its folder`
          : '';
      await run.print({ type: 'agent_removed', fields: { ...removed }, human: `removed ${visible(removed.name)}${waiting}` });
    },
  );
  action(verb(agent, 'sessions [host]', 'live sessions here and on paired hosts; starts nothing', 'ax agent sessions hostb'), listSessions);
  addQuiet(agent);
  addAllowRules(agent);
  addSandboxFetch(agent);
  addInstallSkill(agent);
}

async function setup(run: Run): Promise<void> {
  const { environment, options } = run;
  requireSession(run);
  inLine(() => parseName(textOption(options, 'name'), 'an agent name'));
  const typed = textOption(options, 'workspace');
  const workspace = typed === undefined ? requireLocalWorkspace(environment, 'add --workspace DIR') : absolute(typed);
  const done = await call<Setup>(environment, 'agent.setup', { name: textOption(options, 'name'), workspace });
  const { agent, attachment, waiting, next } = done;
  const advice = setupAdvice(environment, agent);
  const warnings = [...done.warnings, ...advice.warnings];
  for (const warning of warnings) note(`warning: ${warning}`);
  const lines = [
    `${visible(agent.name)} is set up for ${visible(agent.harness)} in ${visible(agent.workspace)}; this session (${visible(attachment.session_id)}) is attached: ${visible(attachment.state)}`,
    ...(waiting.length === 0
      ? ['Nothing waits. A notice comes into this conversation when something does.']
      : waitingRows(waiting, done.waiting_count, 20)),
    ...advice.lines,
    ...(next === null ? [] : [`next: ${visible(next)}`]),
  ];
  await run.print({ type: 'agent_setup', fields: { ...done, warnings, allow_rules: advice.rules }, human: lines.join('\n') });
}

function requireSession(run: Run): void {
  if (run.environment.session !== null) return;
  if (run.environment.harnessShell === null) {
    throw new AxError('invalid_state', "`ax agent setup` is for an agent: run it inside the session's own shell tool", {
      fix: axCommand(run.environment.ax, 'agent', 'sessions', 'Localhost'),
    });
  }
  if (run.environment.isNested) return requireOneShell(run.environment, 'agent.setup', {});
  if (run.environment.harnessShell === 'codex')
    throw new AxError('invalid_state', 'this shell exports no CODEX_THREAD_ID: it belongs to no thread of Codex that can be reached');
  throw new AxError(
    'invalid_state',
    'this session exports no messaging socket (CLAUDE_CODE_SESSION_ID, CLAUDE_PID and CLAUDE_CODE_MESSAGING_SOCKET): it cannot be reached',
  );
}

async function listAgents(run: Run): Promise<void> {
  const { agents } = await call<{ agents: AgentRow[] }>(run.environment, 'agent.list');
  const live = (row: AgentRow): string => {
    const count = row.attachments.filter((attachment) => attachment.state === 'live').length;
    return count === 0 ? 'no session' : count === 1 ? 'live' : `${count} live`;
  };
  const quiet = (cell: string): string[] => (agents.some((row) => row.quiet === true) ? [cell] : []);
  const rows = agents.map((row) => [row.name, row.harness, live(row), String(row.waiting), ...quiet(quietText(row)), row.workspace]);
  await run.print({
    type: 'agent_list',
    fields: { agents },
    rows: { columns: AGENT_COLUMNS, values: agents as unknown as Fields[] },
    human:
      agents.length === 0
        ? 'no agent is set up on this host; a session does that itself with `ax agent setup`'
        : await table(['AGENT', 'HARNESS', 'SESSION', 'WAITING', ...quiet('QUIET'), 'WORKSPACE'], rows),
  });
}

async function listSessions(run: Run): Promise<void> {
  const host = run.args[0];
  const what = `the sessions of ${host ?? 'every host'}`;
  const { hosts } = await call<{ hosts: SessionHost[] }>(run.environment, 'agent.sessions', { host }, { what });
  const shown = hosts.map((entry) => ({
    ...withoutNull({ ...entry }, 'error'),
    sessions: entry.sessions.map((session) => withoutNull({ ...session }, 'reason', 'quiet', 'quiet_until')),
  }));
  const values = hosts.flatMap((entry) => {
    const own = { host: entry.host, host_id: entry.host_id, state: entry.state, error: entry.error?.code, warnings: entry.warnings };
    return entry.sessions.length === 0 ? [own] : entry.sessions.map((session) => ({ ...own, ...session }));
  });
  const blocks = await Promise.all(hosts.map(hostBlock));
  await run.print({
    type: 'session_list',
    fields: { hosts: shown },
    rows: { columns: SESSION_COLUMNS, values },
    human: blocks.join('\n') || 'no host is known',
  });
}

async function hostBlock(entry: SessionHost): Promise<string> {
  const name = visible(entry.host);
  if (entry.state !== 'ok') return `${name}: ${entry.state}${entry.error === null ? '' : `: ${cause(entry.error)}`}`;
  const warnings = (entry.warnings ?? []).map((warning) => `\n  warning: ${visible(warning)}`).join('');
  if (entry.sessions.length === 0) return `${name}: no live session${warnings}`;
  const reach = (row: SessionRow): string => {
    const quiet = quietText(row);
    if (row.reachable) return quiet === '' ? 'reachable' : `quiet, ${quiet}`;
    return `not reachable${row.reason === null ? '' : `: ${row.reason}`}${quiet === '' ? '' : `; quiet, ${quiet}`}`;
  };
  const since = (row: SessionRow): string =>
    typeof row.status_since === 'number' ? `${row.status}, ${ago(row.status_since)}` : row.status;
  const rows = entry.sessions.map((row) => [
    row.session_id,
    row.harness,
    row.agent ?? '-',
    since(row),
    reach(row),
    row.started_at > 0 ? ago(row.started_at) : '-',
    row.workspace,
  ]);
  return `${name}:\n${await table(['SESSION', 'HARNESS', 'AGENT', 'STATUS', 'NOTICES', 'STARTED', 'WORKSPACE'], rows)}${warnings}`;
}

/** Why a host told no list; what only its owner can mend comes with the line to type there. */
function cause(error: ErrorBody): string {
  const command = error.fix === 'owner' ? error.details?.['command'] : undefined;
  return `${visible(error.message)}${typeof command === 'string' ? `; its owner may type there: ${visible(command)}` : ''}`;
}
