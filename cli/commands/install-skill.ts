/**
 * `ax agent install-skill`: the skill of this installation, in the folder where a harness looks for skills.
 *
 * Owns: whole or not at all (copied aside, then renamed), always as SKILLS/ax and never inside another ax, and nothing that is there goes
 * unasked. A copy made by an older ax may be replaced with --update; any other folder only by a person who saw what differs.
 */
import { lstatSync, readdirSync, readFileSync, readlinkSync, realpathSync } from 'node:fs';
import type { Stats } from 'node:fs';
import { cp, mkdir, rename, rm, symlink } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import type { Command } from 'commander';
import { HARNESSES } from '../../protocol/address.ts';
import type { HarnessName } from '../../protocol/address.ts';
import { AxError } from '../../protocol/errors.ts';
import { action, verb } from '../command.ts';
import { axCommand, harnessFolders, skillFolder } from '../environment.ts';
import { canAsk } from '../dialogue.ts';
import { textOption } from '../options.ts';
import type { Run } from '../options.ts';
import { note, visible } from '../output.ts';
import { isConfirmed } from '../person.ts';
import { randomWord } from '../random.ts';

/** Names of what differs that are shown. */
const SHOWN = 20;

export function addInstallSkill(agent: Command): void {
  const install = verb(
    agent,
    'install-skill',
    "put ax's skill into the skill folder of a harness; without --harness, of each that this user has",
    'ax agent install-skill --harness claude',
    ['harness'],
  )
    .option('--harness <name>', 'codex or claude')
    .option('--link', 'a link to the skill of this installation instead of a copy')
    .option('--update', 'replace a copy of an older ax without asking');
  action(install, installSkill);
}

type State = 'installed' | 'updated' | 'unchanged';

interface Plan {
  readonly harness: HarnessName;
  readonly path: string;
  readonly state: State;
  /** What is there and is not what is to be there, one line each. */
  readonly differs: readonly string[];
}

async function installSkill(run: Run): Promise<void> {
  const source = requireSource();
  const isLink = run.options['link'] === true;
  const plans = chosen(textOption(run.options, 'harness')).map((name) => planFor(name, source, isLink));
  // All are decided before the first is written: a refusal of the second leaves the first as it was.
  for (const plan of plans) await requireLeave(run, plan);
  for (const plan of plans) if (plan.state !== 'unchanged') await put(source, plan.path, isLink);
  const skills = plans.map(({ harness, path, state }) => ({ harness, path, state, link: isLinkTo(path, source) }));
  const words = { installed: 'installed in', updated: 'updated in', unchanged: 'is already in' };
  const human = skills.map((skill) => `${skill.harness}: ${words[skill.state]} ${visible(skill.path)}${skill.link ? ' (a link)' : ''}`);
  await run.print({
    type: 'skill_installed',
    fields: { skills },
    rows: { columns: ['harness', 'path', 'state', 'link'], values: skills },
    human: [...human, 'Sessions that start from now on know it.'].join('\n'),
  });
}

function requireSource(): string {
  const source = skillFolder();
  if (statOf(join(source, 'SKILL.md'))?.isFile() === true) return realpathSync(source);
  throw new AxError('not_found', `this installation has no skill at ${source}`, { fix: 'install ax again, whole' });
}

function chosen(typed: string | undefined): readonly HarnessName[] {
  if (typed !== undefined) {
    const name = HARNESSES.find((known) => known === typed);
    if (name === undefined) throw new AxError('usage', `--harness is ${HARNESSES.join(' or ')}`);
    return [name];
  }
  const folders = harnessFolders();
  const there = HARNESSES.filter(
    (name) => statOf(folders[name])?.isDirectory() === true || statOf(folders[name])?.isSymbolicLink() === true,
  );
  if (there.length > 0) return there;
  throw new AxError('not_found', `neither ${folders.claude} nor ${folders.codex} is there`, {
    fix: 'name the harness: ax agent install-skill --harness claude',
  });
}

function statOf(path: string): Stats | undefined {
  return lstatSync(path, { throwIfNoEntry: false });
}

function planFor(harness: HarnessName, source: string, isLink: boolean): Plan {
  const skills = join(harnessFolders()[harness], 'skills');
  const path = join(skills, 'ax');
  requireElsewhere(skills, source);
  const found = statOf(path);
  if (found === undefined) return { harness, path, state: 'installed', differs: [] };
  if (isLinkTo(path, source)) return { harness, path, state: 'unchanged', differs: [] };
  if (found.isSymbolicLink()) return { harness, path, state: 'updated', differs: [`is a link to ${readlinkSync(path)}`] };
  if (!found.isDirectory()) throw new AxError('invalid_state', `${path} is a file, not a folder: it is left alone`);
  const differs = differences(source, path);
  if (differs.length === 0 && !isLink) return { harness, path, state: 'unchanged', differs };
  return { harness, path, state: 'updated', differs: differs.length === 0 ? ['is a copy, the same as here'] : differs };
}

/** The skill folder must not lie inside the skill, nor be reached through it. */
function requireElsewhere(skills: string, source: string): void {
  let at = skills;
  while (statOf(at) === undefined && at !== dirname(at)) at = dirname(at);
  let real: string;
  try {
    real = realpathSync(at);
  } catch (error) {
    throw new AxError('invalid_state', `${at} is a link that leads nowhere`, { cause: error });
  }
  if (real !== source && !real.startsWith(`${source}/`)) return;
  throw new AxError('invalid_state', `${skills} lies inside of ${source}: the skill is not put into itself`);
}

function isLinkTo(path: string, source: string): boolean {
  try {
    return realpathSync(path) === source;
  } catch {
    return false; // nothing there, or a link that leads nowhere
  }
}

/** Files by their path inside, with their bytes; a link counts as its target. */
function filesIn(folder: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isDirectory()) continue;
    const path = join(entry.parentPath, entry.name);
    const content = entry.isFile() ? readFileSync(path, 'latin1') : entry.isSymbolicLink() ? `-> ${readlinkSync(path)}` : '(special)';
    found.set(relative(folder, path), content);
  }
  return found;
}

function differences(source: string, there: string): string[] {
  const ours = filesIn(source);
  const theirs = filesIn(there);
  return [...new Set([...ours.keys(), ...theirs.keys()])].toSorted().flatMap((name) => {
    if (ours.get(name) === theirs.get(name)) return [];
    return [`${name} ${theirs.has(name) ? (ours.has(name) ? 'differs' : 'is only there, and would go') : 'is missing there'}`];
  });
}

/** A skill of this name, whatever its age; files that ax never had make it somebody's own. */
function isOlderCopy(plan: Plan, source: string): boolean {
  const head = statOf(join(plan.path, 'SKILL.md'))?.isFile() === true ? readFileSync(join(plan.path, 'SKILL.md'), 'utf8') : '';
  const ours = filesIn(source);
  return (
    head.startsWith('---\nname: ax\n') &&
    !statOf(plan.path)!.isSymbolicLink() &&
    [...filesIn(plan.path).keys()].every((name) => ours.has(name))
  );
}

async function requireLeave(run: Run, plan: Plan): Promise<void> {
  if (plan.state !== 'updated') return;
  if (run.options['update'] === true && isOlderCopy(plan, skillFolder())) return;
  const lines = plan.differs.slice(0, SHOWN).map((line) => `  ${line}`);
  const more = plan.differs.length - lines.length;
  if (canAsk() && run.environment.harnessShell === null) {
    note(`${plan.path} is there and differs from the skill of this ax:`);
    for (const line of [...lines, ...(more > 0 ? [`  and ${more} more`] : [])]) process.stderr.write(`${visible(line)}\n`);
    if (await isConfirmed(`Replace ${plan.path}?`)) return;
    throw new AxError('invalid_state', 'nothing was changed');
  }
  const words = ['agent', 'install-skill', '--harness', plan.harness, ...(run.options['link'] === true ? ['--link'] : [])];
  throw new AxError(
    'invalid_state',
    `${plan.path} is there already and differs (${plan.differs.slice(0, 3).join('; ')}): it is not overwritten`,
    {
      fix: isOlderCopy(plan, skillFolder())
        ? axCommand(run.environment.ax, ...words, '--update')
        : `in your own terminal, where it asks: ${axCommand(run.environment.ax, ...words)}`,
    },
  );
}

/** At each moment the old one or the new one is there, or for an instant none; never half of one. */
async function put(source: string, path: string, isLink: boolean): Promise<void> {
  const skills = dirname(path);
  const aside = join(skills, `.ax-${randomWord()}.part`);
  const old = join(skills, `.ax-${randomWord()}.old`);
  try {
    await mkdir(dirname(skills), { recursive: true, mode: 0o700 });
    await mkdir(skills, { recursive: true });
    if (isLink) await symlink(source, aside);
    else await cp(source, aside, { recursive: true, errorOnExist: true, force: false });
    if (statOf(path) === undefined) return await rename(aside, path);
    await rename(path, old);
    try {
      await rename(aside, path);
    } catch (error) {
      await rename(old, path);
      throw error;
    }
  } catch (error) {
    await rm(aside, { recursive: true, force: true });
    const { code } = error as NodeJS.ErrnoException;
    throw new AxError('invalid_state', `${path} could not be written (${code ?? String(error)})`, { cause: error });
  }
  await rm(old, { recursive: true }).catch((error: NodeJS.ErrnoException) => {
    note(`the new skill is in its place; what was there before could not be removed from ${old} (${error.code ?? error.message})`);
  });
}
