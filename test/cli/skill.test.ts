/**
 * The skill says only what ax does: each command in it is a line of the real command tree, and each verb stands in its reference.
 *
 * The commands of notices, which a rule may let run unasked with any arguments, take a closed list of options.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Command } from 'commander';
import { commandTree } from '../../cli/program.ts';

const SKILL = join(import.meta.dirname, '..', '..', 'skills', 'ax');
const SILENT = { writeOut: (): void => undefined, writeErr: (): void => undefined };

/** The words of a POSIX line without expansions: that is all a line of the skill may need. */
function words(line: string): string[] {
  return [...line.matchAll(/'([^']*)'|"([^"]*)"|([^\s'"]+)/g)].map((match) => match[1] ?? match[2] ?? match[3] ?? '');
}

/** Lines of fenced blocks and inline code that call ax, up to a comment or the end of a pipe. */
function commandsIn(file: string): string[] {
  const text = readFileSync(join(SKILL, file), 'utf8');
  const fenced = [...text.matchAll(/^```\w*\n([^]*?)^```$/gm)].flatMap((match) => match[1]!.split('\n'));
  const inline = [...text.replaceAll(/^```[^]*?^```$/gm, '').matchAll(/`([^`\n]+)`/g)].map((match) => match[1]!);
  return [...fenced, ...inline].flatMap((code) => {
    const found = /(?:^|\| )ax ([^#|]+)/.exec(code);
    return found === null ? [] : [found[1]!.trim()];
  });
}

function leaves(command: Command, path: readonly string[] = []): (readonly [string, Command])[] {
  return command.commands.length === 0
    ? [[path.join(' '), command]]
    : command.commands.flatMap((child) => leaves(child, [...path, child.name()]));
}

/** The verb that a line reaches; throws what commander says of the line. */
async function reached(line: string): Promise<string> {
  const root = commandTree(SILENT);
  let found = '';
  for (const [path, leaf] of leaves(root)) leaf.action(() => void (found = path));
  await root.parseAsync(words(line), { from: 'user' });
  return found;
}

test('every command in the skill is one that ax takes, word for word', async () => {
  for (const file of ['SKILL.md', 'references/cli.md']) {
    const lines = commandsIn(file);
    assert.ok(lines.length > 8, `${file}: ${lines.length} commands found`);
    for (const line of lines) {
      await assert.doesNotReject(async () => assert.notEqual(await reached(line), ''), `${file}: ax ${line}`);
    }
  }
  // The same way finds a command that is wrong.
  for (const wrong of ['messages fetch', 'agent setup --nam x', 'send --to a@b --fil x', 'nope', 'messages fetch 1 --state-dir /x']) {
    await assert.rejects(reached(wrong), wrong);
  }
});

test('every verb of ax stands in the reference', async () => {
  const told = new Set(await Promise.all(commandsIn('references/cli.md').map(reached)));
  const missing = leaves(commandTree(SILENT)).flatMap(([path]) => (path.startsWith('__') ? [] : [path]));
  assert.deepEqual(
    missing.filter((path) => !told.has(path)),
    [],
  );
});

test('the verbs that may run unasked take no option that names a program, a socket, a configuration or a state folder', () => {
  const everywhere = ['--format', '--harness', '--harness-session', '--harness-version', '--local-workspace'];
  const closed: Record<string, readonly string[]> = {
    'messages fetch': [...everywhere, '--code', '--output', '--workspace'],
    'agent setup': [...everywhere, '--name', '--workspace'],
  };
  const tree = new Map(leaves(commandTree(SILENT)));
  for (const [path, allowed] of Object.entries(closed)) {
    const command = tree.get(path)!;
    assert.deepEqual(command.options.map((option) => option.long ?? '').toSorted(), allowed.toSorted(), path);
    assert.deepEqual(
      command.registeredArguments.map((argument) => argument.name()),
      path === 'messages fetch' ? ['id'] : [],
      path,
    );
    assert.equal(command.commands.length, 0);
  }
});
