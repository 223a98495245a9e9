/**
 * The settings in config.json: which fields there are, and what may stand in them.
 *
 * Pure. Owns their judging and nothing of the file; the daemon reads them when it starts, and the doctor judges them with the daemon down.
 * Every fault is AxError `invalid_argument` that names the file and the field.
 */
import { parseListenAddress } from './address.ts';
import { AxError } from './errors.ts';
import { parseName } from './ids.ts';
import { DEFAULT_LIMITS } from './limits.ts';
import type { Limits } from './limits.ts';

const FIELDS = ['name', 'listen', 'announce', 'claude_config_dirs', 'codex_homes', 'limits'] as const;

/** The fields of `limits`, each with what it sets and the least and largest value. */
const LIMIT_FIELDS: readonly (readonly [field: string, key: keyof Limits, min: number, max: number])[] = [
  ['messages_per_minute', 'messagesPerMinute', 1, 10_000_000],
  ['message_burst', 'messageBurst', 1, 10_000_000],
  ['notices_per_hour', 'noticesPerHour', 1, 3600],
  ['notice_burst', 'noticeBurst', 1, 1000],
  ['waiting_messages', 'waitingMessages', 1, 100_000_000],
  ['waiting_bytes', 'waitingBytes', 1_048_576, 2 ** 44],
  ['kept_messages', 'keptMessages', 1, 100_000_000],
  ['kept_bytes', 'keptBytes', 1_048_576, 2 ** 44],
  ['min_free_bytes', 'minFreeBytes', 1_048_576, 2 ** 44],
];

/** What a settings file says, checked; undefined where it says nothing and something else decides. */
export interface Settings {
  readonly name: string | undefined;
  readonly listen: readonly string[] | undefined;
  readonly announce: readonly string[] | undefined;
  readonly claudeConfigDirs: readonly string[];
  readonly codexHomes: readonly string[];
  readonly limits: Limits;
}

/** Judges what was read from `file`. AxError `invalid_argument`. */
export function parseSettings(raw: Readonly<Record<string, unknown>>, file: string): Settings {
  for (const key of Object.keys(raw))
    if (!(FIELDS as readonly string[]).includes(key)) throw wrong(file, `unknown field "${key}"`, `known fields: ${FIELDS.join(', ')}`);
  return {
    name: raw['name'] === undefined ? undefined : inFile(file, 'name', () => parseName(raw['name'], 'a host name')),
    listen: addresses(raw, 'listen', file),
    announce: addresses(raw, 'announce', file),
    claudeConfigDirs: folders(raw, 'claude_config_dirs', file),
    codexHomes: folders(raw, 'codex_homes', file),
    limits: limits(raw, file),
  };
}

/** `limits`: each field a whole number within its bounds; what is left out has its default. */
function limits(raw: Readonly<Record<string, unknown>>, file: string): Limits {
  const typed = raw['limits'] ?? {};
  const known = LIMIT_FIELDS.map(([field]) => field).join(', ');
  if (typeof typed !== 'object' || Array.isArray(typed)) throw wrong(file, '"limits" must be an object', `its fields: ${known}`);
  const set: Partial<Record<keyof Limits, number>> = {};
  for (const [field, value] of Object.entries(typed)) {
    const found = LIMIT_FIELDS.find(([name]) => name === field);
    if (found === undefined) throw wrong(file, `unknown field "${field}" in "limits"`, `known fields: ${known}`);
    const [, key, min, max] = found;
    if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < min || value > max)
      throw wrong(file, `"limits": "${field}" is a whole number from ${min} to ${max}`, `correct ${file}, or leave it out`);
    set[key] = value;
  }
  return { ...DEFAULT_LIMITS, ...set };
}

function wrong(file: string, what: string, fix: string, cause?: unknown): AxError {
  return new AxError('invalid_argument', `${file}: ${what}`, { fix, cause });
}

/** A refusal of a value, with the file and the field it stands in. */
function inFile<T>(file: string, key: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    if (!(error instanceof AxError)) throw error;
    throw wrong(file, `"${key}": ${error.message}`, `correct "${key}" in ${file}, or take it out`, error);
  }
}

function strings(raw: Readonly<Record<string, unknown>>, key: string, file: string): readonly string[] | undefined {
  const value = raw[key];
  if (value === undefined) return undefined;
  return inFile(file, key, () => {
    if (!Array.isArray(value) || value.some((entry) => typeof entry !== 'string'))
      throw new AxError('invalid_argument', 'it is a list of strings');
    return value as string[];
  });
}

function addresses(raw: Readonly<Record<string, unknown>>, key: string, file: string): readonly string[] | undefined {
  const list = strings(raw, key, file);
  return list?.map((entry) => inFile(file, key, () => parseListenAddress(entry)));
}

function folders(raw: Readonly<Record<string, unknown>>, key: string, file: string): readonly string[] {
  const list = strings(raw, key, file) ?? [];
  return inFile(file, key, () => {
    for (const entry of list) if (!entry.startsWith('/')) throw new AxError('invalid_argument', 'it takes absolute paths');
    return list;
  });
}
