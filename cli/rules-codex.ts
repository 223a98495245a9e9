/**
 * The two rules of Codex that let an agent fetch and set up outside of its sandbox, unasked: `rules/ax.rules` in its folder.
 *
 * Owns the safe form. A bare name in a rule matches every file of that name, wherever it lies, unless `host_executable` says which one is
 * meant; so the bare form never stands without that line, and an ax that is called by its path gets rules for that path alone. The state
 * folder, where it is not the usual one, is part of the rule. Lines that ax does not know are kept as they are.
 */
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import type { AxCommand } from '../protocol/notice.ts';
import type { Environment, Place } from './environment.ts';
import { harnessFolders, searchPath } from './environment.ts';
import { programOn } from './executable.ts';
import { readSettings, writeSettings } from './settings-file.ts';
import type { RuleChange } from './settings-file.ts';

const HEADER = '# Written by `ax agent allow-rules`. `ax agent allow-rules --harness codex --remove` takes these lines out again.';
const HOST_LINE = /^host_executable\(name="ax", paths=\["[^"\\]+"\]\)$/;
// No control characters either: JSON, as which the words are read, has none in its strings.
const RULE_LINE = /^prefix_rule\(pattern=\[("[^"\\\p{Cc}]+"(?:, "[^"\\\p{Cc}]+")*)\], decision="allow"\)$/u;
const VERBS: readonly (readonly [string, string])[] = [
  ['messages', 'fetch'],
  ['agent', 'setup'],
];
const CHECK_TIMEOUT_MS = 20_000;
const LATER = 'It counts for threads of Codex started from now on; threads that are loaded already keep the rules they had.';

const wordsOf = (ax: AxCommand): string[] => [ax.program, ...(ax.stateDir === undefined ? [] : ['--state-dir', ax.stateDir])];
const hostLine = (path: string): string => `host_executable(name="ax", paths=[${JSON.stringify(path)}])`;
const ruleLine = (words: readonly string[]): string =>
  `prefix_rule(pattern=[${words.map((word) => JSON.stringify(word)).join(', ')}], decision="allow")`;

/** The lines under which the commands of this ax run, in the very words of its notices. */
export function codexRules(ax: AxCommand, path: string): string[] {
  const rules = VERBS.map((verb) => ruleLine([...wordsOf(ax), ...verb]));
  return ax.program === 'ax' ? [hostLine(path), ...rules] : rules;
}

/** The lines of `codexRules` that no file in Codex's rules folder has. */
export function missingCodexRules(ax: AxCommand, path: string): string[] {
  const there = new Set(ruleFiles().flatMap((file) => file.text.split(/\r?\n/)));
  return codexRules(ax, path).filter((line) => !there.has(line));
}

interface RuleFile {
  readonly path: string;
  readonly text: string;
}

function ruleFiles(): RuleFile[] {
  const folder = join(harnessFolders().codex, 'rules');
  try {
    return readdirSync(folder)
      .filter((name) => name.endsWith('.rules') && statSync(join(folder, name)).isFile())
      .map((name) => ({ path: join(folder, name), text: readFileSync(join(folder, name), 'utf8') }));
  } catch {
    return []; // no folder, or none that may be read: then no rule is known to be there
  }
}

/** A line that ax wrote: its words, or undefined when it is another's. */
function ownWords(line: string): readonly string[] | undefined {
  const listed = RULE_LINE.exec(line)?.[1];
  if (listed === undefined) return undefined;
  const words = JSON.parse(`[${listed}]`) as string[];
  const isProgram = words[0] === 'ax' || words[0]?.startsWith('/') === true;
  const rest = words[1] === '--state-dir' ? words.slice(3) : words.slice(1);
  return isProgram && VERBS.some((verb) => verb.join(' ') === rest.join(' ')) ? words : undefined;
}

const stateDirOf = (words: readonly string[]): string => (words[1] === '--state-dir' ? (words[2] ?? '') : '');

/** The text of the rules file with the rules of this ax, or without them; null when nothing is left of it. */
export function editedRules(text: string | null, ax: AxCommand, path: string, isRemoved: boolean): string | null {
  const lines = text === null ? [] : text.split('\n');
  const others = lines.filter((line) => {
    const words = ownWords(line);
    return words !== undefined && stateDirOf(words) !== (ax.stateDir ?? '');
  });
  const foreign = lines.filter((line) => line !== HEADER && !HOST_LINE.test(line) && ownWords(line) === undefined);
  const kept = foreign.join('\n');
  const rules = [...others, ...(isRemoved ? [] : VERBS.map((verb) => ruleLine([...wordsOf(ax), ...verb])))];
  // Without this line a bare name, whoever wrote the rule, would match a file that an agent made.
  const needsHost = rules.some((line) => ownWords(line)?.[0] === 'ax') || /["']ax["']/.test(kept);
  const written = lines.find((line) => HOST_LINE.test(line));
  const host = !needsHost ? [] : ax.program === 'ax' && !isRemoved ? [hostLine(path)] : written === undefined ? [] : [written];
  const own = [...host, ...rules];
  if (own.length === 0) return kept.trim() === '' ? null : kept;
  const there = lines.filter((line) => line !== HEADER && !foreign.includes(line));
  if (there.toSorted().join('\n') === own.toSorted().join('\n')) return text;
  return `${[HEADER, ...own].join('\n')}\n${kept}`;
}

/** What `ax agent allow-rules --harness codex` is about to do. */
export async function codexChange(environment: Environment, place: Place, isRemoved: boolean): Promise<RuleChange> {
  const { ax } = environment;
  const folder = harnessFolders().codex;
  const path = join(folder, 'rules', 'ax.rules');
  const file = await readSettings(path, folder);
  const foreign = ruleFiles().filter((entry) => entry.path !== path || !isEveryHostLineOurs(entry.text));
  const clash = foreign.find(({ text }) => /host_executable\s*\([^)]*["']ax["']/.test(text));
  if (!isRemoved && ax.program === 'ax' && clash !== undefined)
    throw new AxError('invalid_state', `${clash.path} already says which program is meant by "ax": two such lines overrule each other`, {
      fix: `take its host_executable line for "ax" out, and run this again`,
    });
  const text = editedRules(file.text, ax, place.path, isRemoved);
  return {
    file,
    text,
    rules: codexRules(ax, place.path),
    notes: [LATER],
    warnings: [],
    write: async () => {
      if (text === null || isRemoved) {
        await writeSettings(file, text);
        return { checked: false, how: 'nothing to check' };
      }
      await mkdir(dirname(file.real), { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw refused(`${dirname(file.real)} cannot be made (${error.code ?? error.message})`);
      });
      const now = await readSettings(path, folder);
      if (now.text !== file.text) throw refused(`${path} was changed meanwhile`);
      return checkedWrite(now, text, ax, place.path);
    },
    verify: async () => checkFile(file.real, ax, place.path),
  };
}

function isEveryHostLineOurs(text: string): boolean {
  return text.split('\n').every((line) => !line.includes('host_executable') || HOST_LINE.test(line));
}

interface Checked {
  readonly checked: boolean;
  readonly how: string;
}

async function checkedWrite(file: RuleChange['file'], text: string, ax: AxCommand, path: string): Promise<Checked> {
  let result: Checked = { checked: false, how: '' };
  await writeSettings(file, text, async (aside) => {
    result = await checkFile(aside, ax, path);
  });
  return result;
}

/** Asks Codex itself what the file lets through. AxError `invalid_state` when it is not exactly what it should be. */
async function checkFile(rules: string, ax: AxCommand, path: string): Promise<Checked> {
  const codex = programOn(searchPath(), 'codex');
  if (codex === undefined) return { checked: false, how: 'no `codex` is on the PATH: the rules could not be checked with it' };
  const before = wordsOf(ax).slice(1);
  const others = ruleFiles().map((entry) => entry.path);
  const all = [rules, ...others.filter((entry) => entry !== join(harnessFolders().codex, 'rules', 'ax.rules'))];
  const allowed = [ax.program, ...(ax.program === 'ax' ? [path] : [])];
  for (const verb of VERBS) {
    for (const program of allowed) {
      if (!(await isAllowed(codex, [rules], [program, ...before, ...verb, 'x'])))
        throw refused(`Codex does not let \`${[program, ...before, ...verb].join(' ')}\` through under them`);
      if (!(await isAllowed(codex, all, [program, ...before, ...verb, 'x'])))
        throw refused('another file in the rules folder of Codex is stricter');
    }
    for (const program of ['./ax', '/tmp/ax', '../ax', ...(ax.program === 'ax' ? [] : ['ax'])]) {
      if (await isAllowed(codex, all, [program, ...before, ...verb, 'x']))
        throw refused(`with them \`${[program, ...before, ...verb].join(' ')}\` would run outside of the sandbox`);
    }
  }
  if (await isAllowed(codex, [rules], [ax.program, ...before, 'send', 'x'])) throw refused('they let more through than the two commands');
  return { checked: true, how: 'checked with `codex execpolicy check`' };
}

const refused = (why: string): AxError => new AxError('invalid_state', `nothing was written: ${why}`);

async function isAllowed(codex: string, files: readonly string[], command: readonly string[]): Promise<boolean> {
  const args = ['execpolicy', 'check', ...files.flatMap((file) => ['-r', file]), '--resolve-host-executables', ...command];
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  execFile(codex, args, { timeout: CHECK_TIMEOUT_MS, encoding: 'utf8' }, (error, stdout, stderr) =>
    error === null
      ? resolve(stdout)
      : reject(refused(`\`codex execpolicy check\` failed (${stderr.trim().split('\n').at(0) ?? error.message})`)),
  );
  const answer = await promise;
  try {
    return (JSON.parse(answer) as { decision?: unknown }).decision === 'allow';
  } catch (error) {
    throw new AxError('invalid_state', 'nothing was written: `codex execpolicy check` gave no JSON', { cause: error });
  }
}
