/**
 * The harnesses of this user: settings that hold or refuse notices, rules that would spare prompts, the channel out of a sandbox.
 *
 * Owns for which folders the settings are read: the one this runs in and those of the registered agents. The words about a setting are
 * harness-settings' and rules'; what is missing for convenience only is `info`. Reads, and changes no setting.
 */
import { HARNESSES } from '../../protocol/address.ts';
import type { HarnessName } from '../../protocol/address.ts';
import type { AgentRow, SandboxFetchState } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { call } from '../client.ts';
import { axCommand, axPlace, harnessFolders } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { settingsFindings } from '../harness-settings.ts';
import { listed } from '../output.ts';
import { placeProblem } from '../place.ts';
import { missingRules } from '../rules.ts';
import { factsOf, finding } from './finding.ts';
import type { Finding } from './finding.ts';

/** Folders of agents whose project settings are read. */
const MAX_FOLDERS = 100;

/** `isUp`: this host's daemon answers, and knows the agents. */
export async function harnessFindings(environment: Environment, isUp: boolean): Promise<Finding[]> {
  const agents = isUp ? ((await asked<{ agents: AgentRow[] }>(environment, 'agent.list'))?.agents ?? []) : [];
  const channel = isUp ? await asked<SandboxFetchState>(environment, 'agent.sandbox_fetch') : undefined;
  const folders = foldersOf(environment, agents);
  const settings = folders.flatMap((workspace) => settingsFindings(environment, workspace === null ? {} : { workspace }));
  return [
    ...[...new Map(settings.map((one) => [`${one.id} ${one.what}`, one])).values()].map(({ id, severity, what, fix }) =>
      finding(severity, id, what, fix),
    ),
    ...HARNESSES.flatMap((harness) => ruleFindings(environment, harness, agents)),
    ...(channel === undefined ? [] : channelFindings(environment, channel)),
  ];
}

function foldersOf(environment: Environment, agents: readonly AgentRow[]): readonly (string | null)[] {
  const own = agents.filter((agent) => agent.harness === 'claude').map((agent) => agent.workspace);
  return [...new Set([environment.localWorkspace, ...own])].slice(0, MAX_FOLDERS);
}

function ruleFindings(environment: Environment, harness: HarnessName, agents: readonly AgentRow[]): Finding[] {
  const isUsed = factsOf(harnessFolders()[harness]) !== undefined || agents.some((agent) => agent.harness === harness);
  const missing = isUsed ? missingRules(environment, harness, environment.localWorkspace) : [];
  if (missing.length === 0) return [];
  const what = `${harness} asks its user before it runs what a notice says; not among its rules: ${listed(missing)}`;
  const problem = placeProblem(axPlace(environment));
  // allow-rules would refuse: what stands against it is the way on.
  const fix =
    problem === undefined
      ? axCommand(environment.ax, 'agent', 'allow-rules', '--harness', harness)
      : `\`ax agent allow-rules\` would refuse: ${problem}; with ax in a place of its own it does not (make install)`;
  return [finding('info', `rules_missing_${harness}`, what, fix)];
}

function channelFindings(environment: Environment, { enabled, open, reason }: SandboxFetchState): Finding[] {
  if (!enabled) return [];
  const command = (to: string): string => axCommand(environment.ax, 'agent', 'sandbox-fetch', to);
  if (open) return [finding('info', 'sandbox_fetch_on', 'sandboxed sessions can fetch through a pipe of the daemon', command('off'))];
  const what = `sandboxed sessions were to be able to fetch, but the pipe is not open: ${reason ?? 'the daemon does not say why'}`;
  return [finding('warning', 'sandbox_fetch_closed', what, command('on'))];
}

/** The answer, or undefined from a daemon that does not know the question. */
async function asked<T>(environment: Environment, method: 'agent.list' | 'agent.sandbox_fetch'): Promise<T | undefined> {
  try {
    return await call<T>(environment, method);
  } catch (error) {
    if (error instanceof AxError) return undefined; // that it cannot answer at all is a finding of its own
    throw error;
  }
}
