/**
 * The files of a restore. What the host did not sign is not taken; and one that is cut off at each of its steps: before the one that decides
 * nothing has changed, after it the next start ends it.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { BACKUP_FILES, sealedBytes } from '../../daemon/backup/backup.ts';
import type { BackupRecord } from '../../daemon/backup/backup.ts';
import { createBackups } from '../../daemon/backup/folder.ts';
import { commit, finishRestore, readBackup, stage } from '../../daemon/backup/restoring.ts';
import { STORE_SCHEMA } from '../../daemon/store/store.ts';
import type { OpenedStore } from '../../daemon/store/store.ts';
import { systemClock } from '../../daemon/clock/system.ts';
import { ALICE, BOB } from '../protocol/sample.ts';

const base = mkdtempSync(join(tmpdir(), 'ax-rst-'));
after(() => rmSync(base, { recursive: true, force: true }));
let made = 0;

/** A folder with a store whose files say `text`. */
function withStore(folder: string, text: string): void {
  mkdirSync(join(folder, 'store'), { recursive: true });
  for (const name of ['data.mdb', 'format']) writeFileSync(join(folder, 'store', name), text);
}

const UID = process.getuid?.() ?? 0;

/** Signs a folder as a backup of a host. */
function sign(folder: string, key = ALICE, claims: Partial<BackupRecord> = {}): void {
  const files = BACKUP_FILES.map((name) => {
    const bytes = readFileSync(join(folder, name));
    return { name, bytes: bytes.length, sha256: createHash('sha256').update(bytes).digest('hex') };
  });
  const facts = { made_at: '2026-01-02T03:04:05.678Z', version: '0.1.0', schema: STORE_SCHEMA, host_id: ALICE.hostId, with_key: true };
  const record: BackupRecord = { ...facts, files, ...claims };
  const signature = Buffer.from(key.sign(sealedBytes(record))).toString('hex');
  writeFileSync(join(folder, 'backup.json'), JSON.stringify({ ...record, signature }));
}

interface State {
  readonly state: string;
  readonly backup: string;
  readonly at: (...names: readonly string[]) => string;
  readonly says: (...names: readonly string[]) => string;
}

function fresh(): State {
  const folder = join(base, String(made++));
  const [state, backup] = [join(folder, 'state'), join(folder, 'backup')];
  withStore(state, 'present');
  withStore(backup, 'old');
  for (const name of ['host.key', 'config.json']) writeFileSync(join(backup, name), `${name} of the backup`);
  sign(backup);
  const at = (...names: readonly string[]): string => join(state, ...names);
  return { state, backup, at, says: (...names) => readFileSync(at(...names), 'utf8') };
}

const FILES = ['host.key', 'config.json'];
const staged = ({ state, backup }: Pick<State, 'state' | 'backup'>): string => stage(state, backup, readBackup(backup, UID), UID, FILES);

test('what the host did not sign is not taken: another store, other claims, another key, no signature', () => {
  const refuses = (change: (folder: string) => void, code: string): void => {
    const { state, backup, says } = fresh();
    change(backup);
    assert.throws(() => staged({ state, backup }), { code });
    assert.deepEqual([readdirSync(state), says('store', 'data.mdb')], [['store'], 'present']);
  };
  const record = (folder: string, change: (text: string) => string): void => {
    const file = join(folder, 'backup.json');
    writeFileSync(file, change(readFileSync(file, 'utf8')));
  };
  for (const name of BACKUP_FILES) {
    refuses((folder) => writeFileSync(join(folder, name), readFileSync(join(folder, name), 'utf8').replace(/.$/, '?')), 'store_corrupt');
    refuses((folder) => writeFileSync(join(folder, name), 'longer', { flag: 'a' }), 'store_corrupt');
    refuses((folder) => rmSync(join(folder, name)), 'store_corrupt');
  }
  refuses((folder) => record(folder, (text) => text.replace('2026', '2027')), 'store_corrupt');
  refuses((folder) => record(folder, (text) => text.replace(ALICE.hostId, BOB.hostId)), 'store_corrupt');
  refuses((folder) => sign(folder, BOB), 'store_corrupt');
  refuses((folder) => sign(folder, ALICE, { files: [] }), 'store_corrupt');
  refuses((folder) => record(folder, (text) => text.replace('"signature"', '"x"')), 'invalid_argument');
  refuses((folder) => record(folder, (text) => text.replace('"files"', '"x"')), 'invalid_argument');
});

test('nothing in a backup is followed or waited for: no link, no pipe, no device', () => {
  for (const name of [...BACKUP_FILES, 'backup.json'])
    for (const put of [
      (path: string) => symlinkSync(path.replace('/backup/', '/real/'), path),
      (path: string) => void execFileSync('mkfifo', [path]),
      (path: string) => symlinkSync('/dev/zero', path),
    ]) {
      const { state, backup } = fresh();
      const real = backup.replace(/backup$/, 'real');
      mkdirSync(join(real, 'store'), { recursive: true });
      renameSync(join(backup, name), join(real, name));
      put(join(backup, name));
      assert.throws(() => staged({ state, backup }), { code: name === 'backup.json' ? 'invalid_argument' : 'store_corrupt' });
      assert.deepEqual(readdirSync(state), ['store']);
    }
});

test('what a daemon that died left half made, with a key perhaps, goes at the next start, and nothing else does', () => {
  const { state } = fresh();
  const [left, other] = [join(state, '..', 'b.part-AbCd12'), join(state, '..', 'other')];
  for (const folder of [left, other]) withStore(folder, 'half');
  const source = { stateDir: state, key: ALICE, store: {} as OpenedStore, clock: systemClock };
  for (const [note, isLeft] of [
    [other, true],
    [`${left}\n`, true],
    [left, false],
  ] as const) {
    writeFileSync(join(state, 'backup.part'), note);
    createBackups(source);
    assert.deepEqual([existsSync(left), existsSync(other), existsSync(join(state, 'backup.part'))], [isLeft, true, false]);
  }
});

test('a copy that was not whole counts for nothing at the next start', () => {
  const { state, backup, at, says } = fresh();
  staged({ state, backup });
  assert.equal(finishRestore(state), null);
  assert.deepEqual(readdirSync(state), ['store']);
  assert.equal(says('store', 'data.mdb'), 'present');
  assert.equal(existsSync(at('restoring')), false);
});

test('a restore that was decided is ended by the next start, wherever it was cut off', () => {
  const steps: readonly ((state: State) => void)[] = [
    () => undefined,
    ({ at }) => renameSync(at('store'), at('store.before-restore')),
    ({ at }) => {
      renameSync(at('store'), at('store.before-restore'));
      renameSync(at('restored', 'host.key'), at('host.key'));
    },
    ({ at }) => {
      renameSync(at('store'), at('store.before-restore'));
      for (const name of FILES) renameSync(at('restored', name), at(name));
    },
    ({ at }) => {
      renameSync(at('store'), at('store.before-restore'));
      for (const name of FILES) renameSync(at('restored', name), at(name));
      renameSync(at('restored', 'store'), at('store'));
    },
  ];
  for (const cutOff of steps) {
    const state = fresh();
    staged(state);
    renameSync(state.at('restoring'), state.at('restored'));
    cutOff(state);
    finishRestore(state.state);
    assert.equal(finishRestore(state.state), null); // once more is nothing more
    assert.deepEqual(readdirSync(state.state).toSorted(), ['config.json', 'host.key', 'store', 'store.before-restore']);
    assert.equal(state.says('store', 'data.mdb'), 'old');
    assert.equal(state.says('store.before-restore', 'data.mdb'), 'present');
    assert.equal(state.says('host.key'), 'host.key of the backup');
  }
});

test('a key and settings that are there stay', () => {
  const { state, backup, at, says } = fresh();
  for (const name of FILES) writeFileSync(at(name), 'here');
  staged({ state, backup });
  assert.equal(commit(state), at('store.before-restore'));
  assert.deepEqual([says('host.key'), says('config.json'), says('store', 'format')], ['here', 'here', 'old']);
});
