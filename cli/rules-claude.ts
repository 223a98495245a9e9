/**
 * The two permissions of Claude Code that let an agent fetch and set up unasked, and out of its sandbox where that is on and this Claude
 * Code is known to leave the rest of the line inside.
 *
 * Owns the entries in the user's settings.json and the record, in ax's state folder, of what was added there: taking back removes exactly
 * that, down to the list or object that was made for it, and leaves what a person wrote. A permission matches the literal text of a
 * command, so a file of the same name elsewhere is not covered.
 */
import { spawnSync } from 'node:child_process';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { axCommand } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { claudeLayers, sandboxLayer, stringsAt, userSettings } from './claude-settings.ts';
import type { Layer } from './claude-settings.ts';
import { harnessFolders, searchPath } from './environment.ts';
import { programOn } from './executable.ts';
import type { Environment } from './environment.ts';
import { addItem, parseObject, removeEmpty, removeItem, requireUnambiguous } from './json-text.ts';
import { readSettings, writeSettings } from './settings-file.ts';
import type { RuleChange } from './settings-file.ts';
import { codeOf, putWhole, removeWhole } from './whole-file.ts';

const ALLOW = 'permissions.allow';
const EXCLUDED = 'sandbox.excludedCommands';
/** What made is called when the file itself was. */
const FILE = '';

/** The oldest version of Claude Code of which it was seen that what stands beside such a command stays inside: test/real/claude-sandbox.test.ts. */
const EXCLUDES_SAFELY = [2, 1, 332] as const;
const WHOLE_LINE = 'a line with one of these commands in it runs outside of the sandbox as a whole, `| sh` too, unasked';
/** Longest wait for `claude --version`, ms, and its longest output, bytes. */
const VERSION_MS = 5_000;
const VERSION_BYTES = 256;

interface Entry {
  readonly list: typeof ALLOW | typeof EXCLUDED;
  readonly item: string;
}

/** What was added to one settings file, and what had to be made for it, outermost first. */
interface Added {
  readonly entries: readonly Entry[];
  readonly made: readonly string[];
}

const patterns = (ax: AxCommand): string[] =>
  [axCommand(ax, 'messages', 'fetch'), axCommand(ax, 'agent', 'setup')].map((line) => `${line}:*`);

/** The permissions under which notices and setups run unasked: the very words of the commands in a notice. */
export function claudeRules(ax: AxCommand): string[] {
  return patterns(ax).map((pattern) => `Bash(${pattern})`);
}

const allowed = (ax: AxCommand): Entry[] => claudeRules(ax).map((item) => ({ list: ALLOW, item }));
const excluded = (ax: AxCommand): Entry[] => patterns(ax).map((item) => ({ list: EXCLUDED, item }));

/** The version that the Claude Code on the PATH names; undefined when there is none, or it does not say so in its own words in time. */
function claudeVersion(): string | undefined {
  const program = programOn(searchPath(), 'claude');
  if (program === undefined) return undefined;
  const { status, stdout } = spawnSync(program, ['--version'], {
    timeout: VERSION_MS,
    killSignal: 'SIGKILL',
    maxBuffer: VERSION_BYTES,
    stdio: ['ignore', 'pipe', 'ignore'],
    encoding: 'latin1',
  });
  return status === 0 ? /^(\d{1,6}\.\d{1,6}\.\d{1,6}) \(Claude Code\)\n?$/.exec(stdout)?.[1] : undefined;
}

function excludesSafely(version: string | undefined): boolean {
  if (version === undefined) return false;
  const parts = version.split('.').map(Number);
  const at = EXCLUDES_SAFELY.findIndex((part, i) => parts[i] !== part);
  return at < 0 || parts[at]! > EXCLUDES_SAFELY[at]!;
}

/** What is written: out of the sandbox too, where one is on and this Claude Code leaves nothing else out with it. Runs it to ask. */
function wantedEntries(environment: Environment, layers: readonly Layer[]): { readonly entries: Entry[]; readonly warnings: string[] } {
  const { ax } = environment;
  if (sandboxLayer(layers) === undefined) return { entries: allowed(ax), warnings: [] };
  const version = claudeVersion();
  const safe = EXCLUDES_SAFELY.join('.');
  if (excludesSafely(version))
    return {
      entries: [...allowed(ax), ...excluded(ax)],
      warnings: [
        `they are for Claude Code ${safe} and newer; in an older one (2.1.248) ${WHOLE_LINE}: never go back to one with these rules`,
      ],
    };
  const which = version === undefined ? 'no `claude` on the PATH tells its version' : `the \`claude\` on the PATH is ${version}`;
  const stale = excluded(ax).some(({ item }) => layers.some((layer) => stringsAt(layer, EXCLUDED.split('.')).includes(item)));
  return {
    entries: allowed(ax),
    warnings: [
      `the two commands stay inside of the sandbox: ${which}, and in a version older than ${safe} ${WHOLE_LINE}, if they are excluded from it. From inside a notice is fetched through: ${axCommand(ax, 'agent', 'sandbox-fetch', 'on')}`,
      ...(stale
        ? [
            `${EXCLUDED} has them from before: take them out with ${axCommand(ax, 'agent', 'allow-rules', '--harness', 'claude', '--remove')}, or by hand`,
          ]
        : []),
    ],
  };
}

/** An entry as one line for people; a permission stands for itself. */
const shown = ({ list, item }: Entry): string => (list === ALLOW ? item : `${list}: ${JSON.stringify(item)}`);

/** The permissions that no settings file of this user or of the workspace has. What leaves the sandbox is a person's to ask for: it is never missed. */
export function missingClaudeRules(ax: AxCommand, workspace: string | null): string[] {
  const layers = claudeLayers(workspace);
  const has = ({ list, item }: Entry): boolean => layers.some((layer) => stringsAt(layer, list.split('.')).includes(item));
  return allowed(ax)
    .filter((entry) => !has(entry))
    .map(shown);
}

/** What `ax agent allow-rules --harness claude` is about to do. */
export async function claudeChange(environment: Environment, isRemoved: boolean): Promise<RuleChange> {
  const folder = harnessFolders().claude;
  const file = await readSettings(userSettings(), folder);
  if (file.text !== null) {
    parseObject(file.text, file.path);
    requireUnambiguous(file.text);
  }
  const records = await readRecords(environment);
  const record = records[file.path] ?? { entries: [], made: [] };
  const wanted = isRemoved ? { entries: [], warnings: [] } : wantedEntries(environment, claudeLayers(environment.localWorkspace));
  const plan = isRemoved ? withoutRules(file.text, record, environment.ax) : withRules(file.text, record, wanted.entries);
  const keep = async (added: Added | undefined): Promise<void> => {
    const { [file.path]: _before, ...rest } = records;
    await writeRecords(environment, added === undefined ? rest : { ...rest, [file.path]: added });
  };
  return {
    file,
    text: plan.text,
    rules: (isRemoved ? plan.entries : wanted.entries).map(shown),
    notes: isRemoved ? leftNotes(plan.text, environment.ax, file.path) : [],
    warnings: wanted.warnings,
    write: async () => {
      // First the record, then the file: what is in the file and not in the record could never be taken back.
      if (!isRemoved) await keep(plan.record);
      await writeSettings(file, plan.text);
      if (isRemoved) await keep(plan.record);
      return check(file.path, folder, plan.text);
    },
    verify: () => check(file.path, folder, file.text),
  };
}

interface Plan {
  readonly text: string | null;
  readonly entries: readonly Entry[];
  /** What is to be remembered from then on; undefined when nothing. */
  readonly record: Added | undefined;
}

function withRules(before: string | null, record: Added, wanted: readonly Entry[]): Plan {
  let text = before ?? '{}\n';
  const made = [...record.made, ...(before === null ? [FILE] : [])];
  const entries = [...record.entries];
  for (const entry of wanted) {
    if (itemsOf(text, entry.list).includes(entry.item)) continue;
    const added = addItem(text, entry.list.split('.'), entry.item);
    ({ text } = added);
    made.push(...added.made);
    if (!entries.some(({ list, item }) => list === entry.list && item === entry.item)) entries.push(entry);
  }
  return { text: text === '{}\n' && before === null ? null : text, entries, record: { entries, made: [...new Set(made)] } };
}

function withoutRules(before: string | null, record: Added, ax: AxCommand): Plan {
  if (before === null) return { text: null, entries: [], record: undefined };
  const own = new Set([...claudeRules(ax), ...patterns(ax)]);
  const gone = record.entries.filter((entry) => own.has(entry.item));
  const rest = record.entries.filter((entry) => !own.has(entry.item));
  let text = before;
  for (const { list, item } of gone) text = removeItem(text, list.split('.'), item);
  if (rest.length > 0) return { text, entries: gone, record: { entries: rest, made: record.made } };
  if (gone.length > 0)
    for (const path of record.made.filter((name) => name !== FILE).toReversed()) text = removeEmpty(text, path.split('.'));
  const isLeft = !(gone.length > 0 && record.made.includes(FILE) && text.trim() === '{}');
  return { text: isLeft ? text : null, entries: gone, record: undefined };
}

function itemsOf(text: string, list: string): string[] {
  return stringsAt({ kind: 'user', path: '', settings: parseObject(text, 'the file') }, list.split('.'));
}

/** Rules of these words that somebody else wrote: they stay, and that is said. */
function leftNotes(text: string | null, ax: AxCommand, path: string): string[] {
  if (text === null) return [];
  const left = claudeRules(ax).filter((rule) => itemsOf(text, ALLOW).includes(rule));
  return left.length === 0 ? [] : [`${left.join(' and ')} in ${path} was not added by this command and stays; take it out by hand.`];
}

async function check(path: string, folder: string, expected: string | null): Promise<{ checked: boolean; how: string }> {
  const { text } = await readSettings(path, folder);
  if (text !== expected) throw new AxError('invalid_state', `${path} does not hold what was written: another program changed it at once`);
  if (text !== null) parseObject(text, path);
  return { checked: true, how: 'read back: it is whole and valid' };
}

const recordFile = (environment: Environment): string => join(environment.stateDir, 'allow-rules.json');

async function readRecords(environment: Environment): Promise<Record<string, Added>> {
  const path = recordFile(environment);
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '{}';
    throw new AxError('invalid_state', `${path} cannot be read (${error.code ?? error.message})`, { cause: error });
  });
  const isEntry = (value: Entry): boolean => (value.list === ALLOW || value.list === EXCLUDED) && typeof value.item === 'string';
  const found = Object.entries(parseObject(text, path)) as [string, Added][];
  for (const [, added] of found) {
    const isWhole = Array.isArray(added?.entries) && added.entries.every(isEntry) && Array.isArray(added.made);
    if (!isWhole) throw new AxError('invalid_state', `${path} is not what ax wrote: what was added can only be taken out by hand`);
  }
  return Object.fromEntries(found);
}

async function writeRecords(environment: Environment, records: Record<string, Added>): Promise<void> {
  const path = recordFile(environment);
  if (Object.keys(records).length === 0) {
    await removeWhole(path).catch((error: unknown) => {
      if (codeOf(error) !== 'ENOENT') throw notWritten(path, error);
    });
    return;
  }
  try {
    await mkdir(environment.stateDir, { recursive: true, mode: 0o700 });
    await putWhole(path, `${JSON.stringify(records, null, 2)}\n`);
  } catch (error) {
    throw notWritten(path, error);
  }
}

function notWritten(path: string, error: unknown): AxError {
  if (error instanceof AxError) return error;
  return new AxError('invalid_state', `${path} could not be written (${codeOf(error)}): it says which rules are ax's to take out again`, {
    fix: 'look at the rights of the state folder and the space on its disk, then run it again',
    cause: error,
  });
}
