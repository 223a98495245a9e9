/**
 * The two permissions of Claude Code that let an agent fetch and set up unasked, and out of its sandbox where that is on.
 *
 * Owns the entries in the user's settings.json and the record, in ax's state folder, of what was added there: taking back removes exactly
 * that, down to the list or object that was made for it, and leaves what a person wrote. A permission matches the literal text of a
 * command, so a file of the same name elsewhere is not covered.
 */
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { axCommand } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { claudeLayers, sandboxLayer, stringsAt, userSettings } from './claude-settings.ts';
import type { Layer } from './claude-settings.ts';
import { harnessFolders } from './environment.ts';
import type { Environment } from './environment.ts';
import { addItem, parseObject, removeEmpty, removeItem, requireUnambiguous } from './json-text.ts';
import { readSettings, writeSettings } from './settings-file.ts';
import type { RuleChange } from './settings-file.ts';
import { codeOf, putWhole, removeWhole } from './whole-file.ts';

const ALLOW = 'permissions.allow';
const EXCLUDED = 'sandbox.excludedCommands';
/** What made is called when the file itself was. */
const FILE = '';

/** Seen on the genuine programs: test/real/claude-sandbox.test.ts. */
const WHOLE_LINE =
  'in some versions of Claude Code (2.1.248, not 2.1.332) a line with one of these commands in it runs outside of the sandbox as a whole, `| sh` too, unasked: the sandbox is open then. Add these rules for a new version only';

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

function entriesFor(ax: AxCommand, layers: readonly Layer[]): Entry[] {
  const allow = claudeRules(ax).map((item): Entry => ({ list: ALLOW, item }));
  return sandboxLayer(layers) === undefined ? allow : [...allow, ...patterns(ax).map((item): Entry => ({ list: EXCLUDED, item }))];
}

/** An entry as one line for people; a permission stands for itself. */
const shown = ({ list, item }: Entry): string => (list === ALLOW ? item : `${list}: ${JSON.stringify(item)}`);

/** The rules that no settings file of this user or of the workspace has. */
export function missingClaudeRules(ax: AxCommand, workspace: string | null): string[] {
  const layers = claudeLayers(workspace);
  const has = ({ list, item }: Entry): boolean => layers.some((layer) => stringsAt(layer, list.split('.')).includes(item));
  return entriesFor(ax, layers)
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
  const layers = claudeLayers(environment.localWorkspace);
  const plan = isRemoved
    ? withoutRules(file.text, record, environment.ax)
    : withRules(file.text, record, entriesFor(environment.ax, layers));
  const keep = async (added: Added | undefined): Promise<void> => {
    const { [file.path]: _before, ...rest } = records;
    await writeRecords(environment, added === undefined ? rest : { ...rest, [file.path]: added });
  };
  return {
    file,
    text: plan.text,
    rules: (isRemoved ? plan.entries : entriesFor(environment.ax, layers)).map(shown),
    notes: isRemoved ? leftNotes(plan.text, environment.ax, file.path) : [],
    warnings: sandboxLayer(layers) === undefined ? [] : [WHOLE_LINE],
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
