/**
 * Parsers of files that other programs, other versions, or an agent's shell may have written: settings of ax and of the harnesses, notes
 * of an earlier daemon, rules of Codex, records of backups, /proc.
 *
 * The rule is the one of targets.ts: a value or an AxError. What edits a text must besides leave a text that says what it was to say.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { bypassLayer, inboundRule, sandboxLayer, stringsAt } from '../../cli/claude-settings.ts';
import type { Layer } from '../../cli/claude-settings.ts';
import type { Environment } from '../../cli/environment.ts';
import { addItem, parseObject, removeEmpty, removeItem, requireUnambiguous } from '../../cli/json-text.ts';
import { lastFlags } from '../../cli/launch.ts';
import { editedRules } from '../../cli/rules-codex.ts';
import { sealedBytes } from '../../daemon/backup/backup.ts';
import type { BackupRecord } from '../../daemon/backup/backup.ts';
import { readBackup } from '../../daemon/backup/restoring.ts';
import { readConfig } from '../../daemon/config.ts';
import { ALICE, utf8 } from '../protocol/sample.ts';
import type { Chance } from './chance.ts';
import { mutateBytes, mutateJson } from './mutate.ts';
import type { Target } from './targets.ts';

const json = (value: unknown): Uint8Array => utf8(JSON.stringify(value));
const text = (input: Uint8Array): string => Buffer.from(input).toString('utf8');

const folder = mkdtempSync(join(tmpdir(), 'axz-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
const backup = join(folder, 'backup');
mkdirSync(join(backup, 'store'), { recursive: true });
writeFileSync(join(backup, 'store', 'data.mdb'), '');

const BACKUP: BackupRecord = {
  made_at: '2026-01-02T03:04:05.678Z',
  version: '0.1.0',
  schema: 4,
  with_key: false,
  host_id: ALICE.hostId,
  files: [{ name: 'store/data.mdb', bytes: 0, sha256: 'e3'.repeat(32) }],
};

/** A parser of a file: it is given the file's bytes, in the file. */
function inFile(path: string, read: () => unknown): (input: Uint8Array) => unknown {
  return (input) => {
    writeFileSync(path, input);
    return read();
  };
}

const SETTINGS = {
  crossSessionInbound: 'accept',
  sandbox: { enabled: true },
  permissions: { defaultMode: 'default', allow: ['Bash(ls:*)', 'Bash(ax messages fetch:*)'], disableBypassPermissionsMode: 'disable' },
};
const LIST = ['permissions', 'allow'];
const RULE = 'Bash(ax messages fetch:*)';

/** Text that is not a settings file is refused; of one that is, an edit adds and takes away that rule and nothing else. */
function takeSettings(input: Uint8Array): void {
  const before = parseObject(text(input), 'it');
  requireUnambiguous(text(input));
  const { text: added } = addItem(text(input), LIST, RULE);
  const after = parseObject(added, 'it') as { permissions?: { allow?: unknown[] } };
  if (after.permissions?.allow?.at(-1) !== RULE) throw new Error('the rule was not added');
  const gone = parseObject(removeEmpty(removeEmpty(removeItem(added, LIST, RULE), LIST), ['permissions']), 'it');
  const plain = (value: Record<string, unknown>): string =>
    JSON.stringify({ ...value, permissions: undefined }) + JSON.stringify((value['permissions'] as { allow?: unknown[] })?.allow ?? []);
  if (plain(gone) !== plain(before)) throw new Error(`an edit changed more than its rule: ${plain(gone)}`);
}

function takeLayers(input: Uint8Array): void {
  const settings = parseObject(text(input), 'it');
  for (const kind of ['user', 'project', 'managed'] as const) {
    const layers: Layer[] = [{ kind, path: '/x', settings }];
    const rule = inboundRule(layers);
    if (rule !== undefined && !['accept', 'hold', 'refuse'].includes(rule.value)) throw new Error(`a rule of its own: ${rule.value}`);
    bypassLayer(layers);
    sandboxLayer(layers);
    if (stringsAt(layers[0]!, LIST).some((entry) => typeof entry !== 'string')) throw new Error('no string');
  }
}

/** Whatever stands in the file, ax's own rules are there afterwards, and gone after they were taken out; the other lines stay. */
function takeRules(input: Uint8Array): void {
  const ax = { program: 'ax' };
  const before = text(input);
  const added = editedRules(before, ax, '/usr/bin/ax', false) ?? '';
  if (!added.includes('pattern=["ax", "messages", "fetch"]')) throw new Error('the rule was not added');
  const removed = editedRules(added, ax, '/usr/bin/ax', true) ?? '';
  if (removed.split('\n').includes('prefix_rule(pattern=["ax", "messages", "fetch"], decision="allow")'))
    throw new Error('the rule was not taken out');
}

/** Valid JSON now and then, so deep that whoever follows it by calls runs out of them. */
function mutateSettings(chance: Chance, good: Uint8Array, others: readonly Uint8Array[]): Uint8Array {
  if (!chance.oneIn(200)) return mutateJson(chance, good, others);
  const depth = chance.pick([10, 100, 1000, 50_000]);
  return utf8(chance.oneIn(2) ? `{"a":${'['.repeat(depth)}${']'.repeat(depth)}}` : `${'{"a":'.repeat(depth)}0${'}'.repeat(depth)}`);
}

const launch = (): unknown => lastFlags({ stateDir: folder } as Environment);
const config = (): unknown => readConfig(folder, { listen: [], name: undefined }, { HOME: folder });

export const LOCAL_TARGETS: readonly Target[] = [
  {
    name: 'config',
    good: [
      json({ name: 'build', listen: ['/ip4/0.0.0.0/tcp/1'], announce: [], claude_config_dirs: ['/c'], codex_homes: [] }),
      json({ limits: { messages_per_minute: 10, waiting_bytes: 2_000_000, min_free_bytes: 1_048_576 } }),
    ],
    mutate: mutateJson,
    take: inFile(join(folder, 'config.json'), config),
    weight: 0.3,
  },
  {
    name: 'launch',
    good: [json({ listen: ['/ip4/127.0.0.1/tcp/0'], name: 'a' }), json({ listen: [] })],
    mutate: mutateJson,
    take: inFile(join(folder, 'launch.json'), launch),
    weight: 0.3,
  },
  {
    name: 'backup',
    good: [json({ ...BACKUP, signature: Buffer.from(ALICE.sign(sealedBytes(BACKUP))).toString('hex') })],
    mutate: mutateJson,
    take: inFile(join(backup, 'backup.json'), () => readBackup(backup, process.getuid?.() ?? 0)),
    weight: 0.3,
  },
  {
    name: 'settings-edit',
    good: [json(SETTINGS), utf8(JSON.stringify(SETTINGS, null, 2)), utf8('{}')],
    mutate: mutateSettings,
    take: takeSettings,
  },
  { name: 'settings', good: [json(SETTINGS), json({ crossSessionInbound: 'hold' })], mutate: mutateSettings, take: takeLayers },
  {
    name: 'codex-rules',
    good: [
      utf8(
        editedRules('# mine\nprefix_rule(pattern=["git", "status"], decision="allow")\n', { program: 'ax' }, '/usr/bin/ax', false) ?? '',
      ),
      utf8(editedRules(null, { program: '/opt/ax', stateDir: '/s' }, '/opt/ax', false) ?? ''),
    ],
    mutate: mutateBytes,
    take: takeRules,
  },
];
