/**
 * The rules that let a harness run `ax messages fetch` and `ax agent setup` unasked: what is missing, and what a change of them is.
 *
 * Owns what both harnesses have in common; their forms are in rules-codex and rules-claude. Setup only tells; writing is
 * `ax agent allow-rules`, for a person. A rule leaves the rest of the line free, so neither command may take an option that
 * names a program, a socket, a configuration or a state folder: a test holds the list. Variables are no part of that: both
 * harnesses ask again for a line with one in front, and whoever can export AX_STATE_DIR to such a command can export PATH or NODE_OPTIONS too.
 */
import type { SessionEnvironment } from '../protocol/control.ts';
import { axCommand, axPlace } from './environment.ts';
import type { Environment } from './environment.ts';
import { settingsFindings } from './harness-settings.ts';
import { visible } from './output.ts';
import { placeProblem } from './place.ts';
import { missingClaudeRules } from './rules-claude.ts';
import { missingCodexRules } from './rules-codex.ts';

type RuleHarness = SessionEnvironment['harness'];

/** The rules this harness still lacks, one line each; empty when all are there. Reads files, writes none, never throws. */
export function missingRules(environment: Environment, harness: RuleHarness, workspace: string | null): string[] {
  const { ax } = environment;
  return harness === 'claude' ? missingClaudeRules(ax, workspace) : missingCodexRules(ax, axPlace(environment).path);
}

/** What `ax agent setup` has to say beside its answer. */
export interface SetupAdvice {
  readonly rules: readonly string[];
  readonly lines: readonly string[];
  readonly warnings: readonly string[];
}

export function setupAdvice(environment: Environment, agent: { readonly harness: string; readonly workspace: string }): SetupAdvice {
  const harness = agent.harness === 'codex' ? 'codex' : 'claude';
  const rules = missingRules(environment, harness, agent.workspace);
  const found = settingsFindings(environment, { harness, workspace: agent.workspace });
  const warnings = found.map(({ what, fix }) => `${what}; ${fix}`);
  if (rules.length === 0) return { rules, lines: [], warnings };
  const problem = placeProblem(axPlace(environment));
  const where = harness === 'claude' ? 'the permissions of the settings' : 'its rules';
  const shown = rules.map((rule) => `  ${visible(rule)}`);
  const command = `  ${axCommand(environment.ax, 'agent', 'allow-rules', '--harness', harness)}`;
  // A rule for a program that an agent can replace is a hole in the sandbox: it is not put into anybody's hand.
  const lines =
    problem === undefined ? [`To spare prompts, the user may allow these in ${where} (ax does not write them here):`, ...shown] : [];
  if (problem !== undefined) return { rules, lines: [...lines, `\`ax agent allow-rules\` would refuse: ${visible(problem)}.`], warnings };
  return { rules, lines: [...lines, "or, in the user's own terminal:", command], warnings };
}
