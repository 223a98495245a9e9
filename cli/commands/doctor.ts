/**
 * `ax doctor`: what is wrong on this host, and the one command that mends each.
 *
 * Owns the order of the checks, the exit status (1 when something is an error or a warning, 0 with nothing but info) and the words
 * around them. It works with the daemon down and changes nothing.
 */
import { release } from 'node:os';
import type { Command } from 'commander';
import { action, verb } from '../command.ts';
import { surroundings } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { daemonFindings } from '../doctor/daemon.ts';
import { fileFindings } from '../doctor/files.ts';
import type { Finding, Severity } from '../doctor/finding.ts';
import { harnessFindings } from '../doctor/harnesses.ts';
import { clockFindings, diskFindings, freeBytes, nodeFindings, pathFindings, unitFindings } from '../doctor/machine.ts';
import type { Run } from '../options.ts';
import { count, paint, visible } from '../output.ts';
import type { Fields } from '../output.ts';

const COLUMNS = ['id', 'severity', 'what', 'fix'];
const ORDER: readonly Severity[] = ['error', 'warning', 'info'];

export function addDoctor(root: Command): void {
  action(
    verb(
      root,
      'doctor',
      'what is wrong on this host, and what mends it; changes nothing; exit 1 for an error or a warning, 0 for none or info',
      'ax doctor',
    ),
    async (run) => {
      const found = await examine(run.environment);
      const findings = ORDER.flatMap((severity) => found.filter((one) => one.severity === severity));
      const isSick = findings.some((one) => one.severity !== 'info');
      await print(run, findings);
      if (isSick) process.exitCode = 1;
    },
  );
}

async function examine(environment: Environment): Promise<Finding[]> {
  const around = surroundings();
  const { stateDir } = environment;
  const [daemon, paths] = await Promise.all([daemonFindings(environment, /microsoft/i.test(release())), pathFindings(environment, around)]);
  return [
    ...daemon.findings,
    ...fileFindings(environment, process.getuid?.() ?? 0),
    ...diskFindings(stateDir, freeBytes(stateDir)),
    ...clockFindings(environment, daemon.newestAt),
    ...(await harnessFindings(environment, daemon.isUp)),
    ...unitFindings(environment, around),
    ...paths,
    ...nodeFindings(process.versions.node),
  ];
}

const MARKS = { error: 'red', warning: 'yellow', info: 'dim' } as const;

async function print(run: Run, findings: readonly Finding[]): Promise<void> {
  const lines = findings.flatMap(({ id, severity, what, fix }) => [
    `${paint(MARKS[severity], severity)}  ${visible(what)}  (${visible(id)})`,
    `  fix: ${visible(fix)}`,
  ]);
  const of = (severity: Severity): number => findings.filter((one) => one.severity === severity).length;
  const told = [
    ...(of('error') === 0 ? [] : [count(of('error'), 'error', 'errors')]),
    ...(of('warning') === 0 ? [] : [count(of('warning'), 'warning', 'warnings')]),
  ];
  lines.push(told.length === 0 ? 'nothing is wrong' : told.join(', '));
  await run.print({
    type: 'doctor',
    fields: { findings },
    rows: { columns: COLUMNS, values: findings as unknown as Fields[] },
    human: lines.join('\n'),
  });
}
