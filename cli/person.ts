/**
 * What only a person decides: made sure of as far as a program can, and asked.
 *
 * Owns the guard of the verbs that change a harness's own settings. It is a guard-rail: whoever runs as this user without a sandbox can
 * change the same files without ax. There is no flag around it.
 */
import { AxError } from '../protocol/errors.ts';
import type { Environment } from './environment.ts';
import { visible } from './output.ts';

/** AxError `invalid_state` inside a harness's shell, and where no terminal is at both ends. */
export function requirePerson(environment: Environment, verb: string): void {
  if (environment.harnessShell !== null || environment.origin.harness !== null) {
    throw new AxError('invalid_state', `\`ax ${verb}\` is for a person: inside an agent's shell it is refused, whoever told the agent to`, {
      fix: `in your own terminal: ax ${verb}`,
    });
  }
  if (process.stdin.isTTY && process.stdout.isTTY) return;
  throw new AxError('invalid_state', `\`ax ${verb}\` shows a change and asks: it needs a terminal at its input and its output`, {
    fix: `in your own terminal, without pipes: ax ${verb}`,
  });
}

/** True when the person says yes; no is preselected, and leaving is a no. */
export async function isConfirmed(question: string): Promise<boolean> {
  const { confirm, isCancel } = await import('@clack/prompts');
  const answer = await confirm({ message: visible(question), initialValue: false, output: process.stderr });
  return !isCancel(answer) && answer;
}
