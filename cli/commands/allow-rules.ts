/**
 * `ax agent allow-rules`: a person lets a harness run `ax messages fetch` and `ax agent setup` unasked, or takes that back.
 *
 * Owns the order: refuse what is no person or no safe place, show the exact change, ask, write, check. Without a yes nothing is written.
 */
import type { Command } from 'commander';
import { AxError } from '../../protocol/errors.ts';
import { action, verb } from '../command.ts';
import { axPlace, searchPath } from '../environment.ts';
import type { Environment, Place } from '../environment.ts';
import { textOption } from '../options.ts';
import type { Run } from '../options.ts';
import { note, visible } from '../output.ts';
import { isConfirmed, requirePerson } from '../person.ts';
import { pathWarnings, requireSafePlace } from '../place.ts';
import { claudeChange } from '../rules-claude.ts';
import { codexChange } from '../rules-codex.ts';
import { lineChanges } from '../settings-file.ts';
import type { RuleChange } from '../settings-file.ts';

/** `place` is where the ax lies that the rules are for: a test names another than its own. */
export function addAllowRules(agent: Command, place: (environment: Environment) => Place = axPlace): void {
  const allow = verb(
    agent,
    'allow-rules',
    'in your own terminal: let a harness run `messages fetch` and `agent setup` unasked; shows the change and asks',
    'ax agent allow-rules --harness claude',
    ['harness'],
  )
    .requiredOption('--harness <name>', 'codex or claude')
    .option('--remove', 'take out again what this command added');
  action(allow, (run) => allowRules(run, place(run.environment)));
}

async function allowRules(run: Run, place: Place): Promise<void> {
  const harness = textOption(run.options, 'harness');
  const isRemoved = run.options['remove'] === true;
  if (harness !== 'codex' && harness !== 'claude') throw new AxError('usage', '--harness is codex or claude');
  requirePerson(run.environment, `agent allow-rules --harness ${harness}${isRemoved ? ' --remove' : ''}`);
  const environment = { ...run.environment, ax: { ...run.environment.ax, program: place.word } };
  const unseen = isRemoved ? [] : await requireSafePlace(environment, place);
  const change = harness === 'codex' ? await codexChange(environment, place, isRemoved) : await claudeChange(environment, isRemoved);
  const warnings = isRemoved ? [] : [...unseen, ...pathWarnings(place, searchPath()), ...change.warnings];
  for (const warning of warnings) note(`warning: ${warning}`);
  const isSame = change.text === change.file.text;
  if (!isSame) await confirm(change, isRemoved);
  const { checked, how } =
    isSame && (isRemoved || change.text === null) ? NOT_CHECKED : isSame ? await change.verify() : await change.write();
  const state = isSame ? 'unchanged' : isRemoved ? 'removed' : 'added';
  const { path } = change.file;
  const said = {
    added: `added to ${visible(path)}`,
    removed: `removed from ${visible(path)}`,
    unchanged: isRemoved ? `nothing of this command is in ${visible(path)}` : `${visible(path)} has the rules already`,
  }[state];
  const fields = { harness, file: path, rules: change.rules, state, checked, check: how, notes: change.notes, warnings };
  const human = [`${said}${how === '' ? '' : `; ${how}`}`, ...change.notes.map(visible)].join('\n');
  await run.print({ type: 'allow_rules', fields, human });
}

const NOT_CHECKED = { checked: false, how: '' };

async function confirm(change: RuleChange, isRemoved: boolean): Promise<void> {
  const { path, real, text } = change.file;
  note(
    `${path}${real === path ? '' : ` (a link to ${real})`}${text === null ? ', a new file' : change.text === null ? ', which goes' : ''}:`,
  );
  for (const line of lineChanges(text ?? '', change.text ?? '')) process.stderr.write(`${visible(line)}\n`);
  const where = change.rules.some((rule) => !rule.startsWith('Bash(')) ? ', and outside of the sandbox' : '';
  const question = isRemoved ? 'Take these lines out?' : `Write these lines? The two commands then run unasked${where}`;
  if (await isConfirmed(question)) return;
  throw new AxError('invalid_state', `nothing was changed in ${path}`);
}
