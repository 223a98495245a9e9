/**
 * `ax completion`, which prints a script for a shell, and the hidden `ax __complete`, which such a script asks at every Tab.
 *
 * Owns that asking is quiet: whatever goes wrong, `__complete` prints nothing more, writes nothing to stderr and ends with 0. What can
 * stand where is read off the tree this very ax parses with, so completion never lags behind it.
 */
import { homedir } from 'node:os';
import type { Command } from 'commander';
import { AxError } from '../../protocol/errors.ts';
import { GRANT_ACTIONS, RECEIVER_STATES, SENDER_STATES } from '../../protocol/states.ts';
import { action, verb } from '../command.ts';
import { behindBreaks, splitLine } from '../completion/bash-line.ts';
import { positionOf } from '../completion/position.ts';
import type { Candidate, Position } from '../completion/position.ts';
import { scriptFor, SHELLS } from '../completion/scripts.ts';
import type { Shell } from '../completion/scripts.ts';
import { short, valuesOf } from '../completion/values.ts';
import { readEnvironment } from '../environment.ts';
import type { Run } from '../options.ts';
import { printOut } from '../output.ts';

const VOCABULARY = {
  action: GRANT_ACTIONS,
  actions: GRANT_ACTIONS,
  state: [...new Set<string>([...RECEIVER_STATES, ...SENDER_STATES])],
};

export function addCompletion(root: Command): void {
  const completion = verb(
    root,
    'completion <bash|zsh|fish>',
    'print a script that completes commands, hosts, agents, sessions and ids',
    'eval "$(ax completion bash)"',
  );
  action(completion, printScript);
  root
    .command('__complete [words...]', { hidden: true })
    .helpOption(false)
    .action((words: readonly string[]) => answer(root, words));
}

async function printScript(run: Run): Promise<void> {
  const shell = SHELLS.find((one) => one === run.args[0]);
  if (shell === undefined) throw new AxError('usage', `\`ax completion\` takes one of ${SHELLS.join(', ')}`);
  const script = scriptFor(shell, run.environment.ax.program);
  if (run.environment.format === 'human') await printOut(script);
  else await run.print({ type: 'completion', fields: { shell, script }, human: '' });
}

async function answer(root: Command, [shell, ...rest]: readonly string[]): Promise<void> {
  const isBash = shell === 'bash';
  const line = isBash ? splitLine(rest[0] ?? '') : undefined;
  // Without the first word, which is ax itself.
  const words = line === undefined ? rest : line.words.slice(1);
  if (words.length === 0 || !SHELLS.includes(shell as Shell)) return;
  const position = positionOf(root, words, VOCABULARY);
  const found = [...position.fixed, ...(await fromDaemon(position))];
  const lines = found.map(({ value, about = '' }) => {
    const whole = `${position.before}${value}`;
    return `${line === undefined ? whole : behindBreaks(whole, line.raw, rest[1] ?? '')}\t${short(about)}\n`;
  });
  const paths = position.kind === 'files' || position.kind === 'folders' ? [`:${position.kind}\n`] : [];
  await printOut([...paths, ...lines].join(''));
}

async function fromDaemon(position: Position): Promise<Candidate[]> {
  if (position.kind === 'none' || position.kind === 'files' || position.kind === 'folders') return [];
  try {
    const typed = position.stateDir?.replace(/^~(?=\/|$)/, homedir());
    return await valuesOf({ ...readEnvironment({ stateDir: typed }), session: null }, position);
  } catch {
    return []; // a line that names no usable state folder has no values
  }
}
