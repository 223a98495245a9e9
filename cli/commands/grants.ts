/**
 * `ax host grant` and `ax host revoke`: what another host may do here, told by its owner.
 *
 * Owns the two verbs and their words. A change counts at once, on open connections too. Both refuse inside an agent's shell: whom this
 * host trusts is not an agent's to decide.
 */
import type { Command } from 'commander';
import type { GrantRow, HostGrants } from '../../protocol/control.ts';
import { DEFAULT_GRANTS, GRANT_ACTIONS } from '../../protocol/states.ts';
import { call } from '../client.ts';
import { action, asOwner, verb } from '../command.ts';
import { absolute, requireOwner } from '../environment.ts';
import { durationOption, known, textOption } from '../options.ts';
import type { Run } from '../options.ts';
import { note, span, visible } from '../output.ts';

const ACTIONS_HELP = `actions: ${GRANT_ACTIONS.join(', ')}`;
const WHERE_HELP = 'only for messages to, and sessions in, this folder of this host';

export function addGrants(host: Command): void {
  const grant = asOwner(
    verb(host, 'grant <host> <action...>', `allow a host something here; ${ACTIONS_HELP}`, 'ax host grant hostb notify'),
  )
    .option('--workspace <dir>', WHERE_HELP)
    .option('--expires <span>', 'for so long only, such as 8h or 30d');
  action(grant, async (run) => {
    const expiresMs = durationOption(run.options, 'expires', '--expires', 1000);
    await change(run, 'host.grant', { expires_ms: expiresMs });
  });
  const revoke = asOwner(
    verb(host, 'revoke <host> <action...>', `take back what a host may do here; ${ACTIONS_HELP}`, 'ax host revoke hostb notify'),
  ).option('--workspace <dir>', WHERE_HELP);
  action(revoke, (run) => change(run, 'host.revoke', {}));
}

async function change(run: Run, method: 'host.grant' | 'host.revoke', more: object): Promise<void> {
  const verbName = method.replace('.', ' ');
  requireOwner(run.environment, run.options['asOwner'] === true, verbName);
  const [host, ...typed] = run.args;
  const actions = known(
    typed.flatMap((word) => word.split(',')).filter((word) => word !== ''),
    'grant',
    GRANT_ACTIONS,
  );
  const workspace = textOption(run.options, 'workspace');
  const params = { host, actions, ...more, ...(workspace === undefined ? {} : { workspace: absolute(workspace) }) };
  const done = await call<HostGrants>(run.environment, method, params);
  for (const warning of done.warnings) note(`warning: ${warning}`);
  await run.print({ type: 'host_grants', fields: { ...done }, human: grantsText(done) });
}

function grantsText(done: HostGrants): string {
  const everywhere = mayHere(done.grants);
  const rules = done.grant_rules.map((rule) => `  ${ruleText(rule)}`);
  return [
    `${visible(done.name)} may here, in every workspace: ${everywhere}`,
    ...(rules.length === 0 ? [] : ['with a limit:', ...rules]),
  ].join('\n');
}

/** One grant with a workspace or an end, for people. */
export function ruleText(rule: GrantRow): string {
  const where = rule.workspace === null ? 'everywhere' : `in ${visible(rule.workspace)}`;
  return `${visible(rule.action)} ${where}${rule.remaining_ms === null ? '' : `, for another ${span(rule.remaining_ms)}`}`;
}

/** Grants for people; the ones that nothing asks for yet say so. */
export function mayHere(grants: readonly string[]): string {
  const hasEffect = (grant: string): boolean => (DEFAULT_GRANTS as readonly string[]).includes(grant);
  return (
    grants.map((grant) => (hasEffect(grant) ? visible(grant) : `${visible(grant)} (no effect in this version)`)).join(', ') || 'nothing'
  );
}
