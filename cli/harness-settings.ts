/**
 * What the present settings of the harnesses do to notices, as findings with the change that a person may make.
 *
 * Owns the words. It never changes a setting, and never tells an agent to: whether other sessions may write into a conversation is decided
 * by the person whose conversation it is. `ax agent setup` prints the findings as warnings, a check of the host lists them.
 */
import type { SessionEnvironment } from '../protocol/control.ts';
import { bypassLayer, claudeLayers, inboundRule, userSettings } from './claude-settings.ts';
import type { InboundRule, Layer } from './claude-settings.ts';
import type { Environment } from './environment.ts';

export interface Finding {
  /** Stable; for programs. */
  readonly id: string;
  /** error: no notice arrives; warning: some wait for a person, or it cannot be told. */
  readonly severity: 'error' | 'warning';
  readonly what: string;
  /** The exact change a person may make. */
  readonly fix: string;
}

export interface FindingOptions {
  /** Only what concerns this harness. */
  readonly harness?: SessionEnvironment['harness'];
  /** The folder whose project settings count; default the local workspace. */
  readonly workspace?: string;
  /** Where the managed settings of Claude Code are, for tests. */
  readonly managedFolder?: string;
}

/** What in the settings holds or refuses notices; empty when nothing does. Reads files, writes none, never throws. */
export function settingsFindings(environment: Environment, options: FindingOptions = {}): Finding[] {
  // Codex has no such setting: its queue takes everything, and what its sandbox lets through is a matter of rules.
  if (options.harness === 'codex') return [];
  const layers = claudeLayers(options.workspace ?? environment.localWorkspace, options.managedFolder);
  const broken = layers.flatMap((layer): Finding[] => {
    if (layer.settings !== null) return [];
    const what = `${layer.path} counts for nothing: ${layer.problem ?? 'it cannot be used'}; what it was to say about notices is not known`;
    return [{ id: 'claude_settings_unreadable', severity: 'warning', what, fix: `mend ${layer.path}` }];
  });
  const rule = inboundRule(layers);
  if (rule !== undefined) return [...broken, ...(rule.value === 'accept' ? [] : [inboundFinding(rule)])];
  const bypass = bypassLayer(layers);
  return [...broken, ...(bypass === undefined ? [] : [bypassFinding(bypass)])];
}

function inboundFinding({ value, layer, isUnknown }: InboundRule): Finding {
  const says = isUnknown ? '"crossSessionInbound" has a value that Claude Code does not know, which' : `"crossSessionInbound": "${value}"`;
  const effect =
    value === 'refuse'
      ? 'refuses every notice: messages wait until a session fetches them of its own accord'
      : 'holds every notice until a person lets it through';
  const fix =
    layer.kind === 'managed'
      ? `whoever manages this host may change "crossSessionInbound" in ${layer.path} to "accept"`
      : `a person may change it in ${layer.path} to "crossSessionInbound": "accept" (lets every other session of this user in), or take the line out`;
  return {
    id: `claude_inbound_${value}`,
    severity: value === 'refuse' ? 'error' : 'warning',
    what: `${says} in ${layer.path} ${effect}`,
    fix,
  };
}

function bypassFinding(layer: Layer): Finding {
  const what = `${layer.path} starts sessions in bypassPermissions, and such a session holds each notice until a person lets it through`;
  const fix = `a person may add "crossSessionInbound": "accept" to ${userSettings()} (lets every other session of this user in), or use another mode`;
  return { id: 'claude_bypass_holds', severity: 'warning', what, fix };
}
