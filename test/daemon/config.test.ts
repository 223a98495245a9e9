/**
 * config.json: every wrong value is refused with the file and the field it stands in.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { TestContext } from 'node:test';
import { readConfig } from '../../daemon/config.ts';
import { AxError } from '../../protocol/errors.ts';
import { DEFAULT_LIMITS } from '../../protocol/limits.ts';

const NO_FLAGS = { listen: [], name: undefined };

function folder(t: TestContext): string {
  const made = mkdtempSync(join(tmpdir(), 'ax-config-'));
  t.after(() => rmSync(made, { recursive: true }));
  return made;
}

function refusal(dir: string, flags: Parameters<typeof readConfig>[1] = NO_FLAGS): AxError {
  try {
    readConfig(dir, flags, {});
  } catch (error) {
    if (error instanceof AxError) return error;
    throw error;
  }
  return assert.fail('it was taken');
}

test('every wrong value in config.json is refused with the file and the field, also where a flag would beat it', (t) => {
  const dir = folder(t);
  const file = join(dir, 'config.json');
  const wrong: readonly (readonly [field: string, value: unknown])[] = [
    ['name', 5],
    ['name', null],
    ['name', 'two words'],
    ['name', 'localhost'],
    ['listen', '/ip4/0.0.0.0/tcp/1'],
    ['listen', ['nonsense']],
    ['listen', [1]],
    ['announce', ['/ip4/1.2.3.4/udp/1']],
    ['announce', {}],
    ['claude_config_dirs', ['relative']],
    ['claude_config_dirs', 'x'],
    ['limits', 5],
    ['limits', []],
    ['limits', { message_burst: 0 }],
    ['limits', { message_burst: 1.5 }],
    ['limits', { message_burst: '9' }],
    ['limits', { bursts: 9 }],
    ['codex_homes', 'x'],
    ['codex_homes', ['relative']],
    ['codex_homes', [null]],
    ['lisen', []],
  ];
  for (const [field, value] of wrong) {
    writeFileSync(file, JSON.stringify({ [field]: value }));
    for (const flags of [NO_FLAGS, { listen: ['/ip4/127.0.0.1/tcp/0'], name: 'fine' }]) {
      const error = refusal(dir, flags);
      assert.equal(error.code, 'invalid_argument');
      assert.ok(error.message.startsWith(`${file}: `) && error.message.includes(`"${field}"`), error.message);
      assert.notEqual(error.fix, undefined);
    }
  }
});

test('a config.json that is no object of JSON or no file is named', (t) => {
  const dir = folder(t);
  const file = join(dir, 'config.json');
  for (const text of ['', '{', '[]', '5', 'null']) {
    writeFileSync(file, text);
    assert.ok(refusal(dir).message.startsWith(file), text);
  }
  rmSync(file);
  mkdirSync(file);
  assert.match(refusal(dir).message, /config\.json cannot be read \(EISDIR\)$/);
});

test('flags beat config.json, and without either there are defaults', (t) => {
  const dir = folder(t);
  assert.deepEqual(readConfig(dir, NO_FLAGS, {}).listen, ['/ip4/0.0.0.0/tcp/19264', '/ip6/::/tcp/19264']);
  const written = { name: 'filed', listen: ['/ip4/127.0.0.1/tcp/7'], claude_config_dirs: ['/c'], codex_homes: ['/x'] };
  writeFileSync(join(dir, 'config.json'), JSON.stringify(written));
  const filed = readConfig(dir, NO_FLAGS, { HOME: '/h', CLAUDE_CONFIG_DIR: '/d' });
  assert.deepEqual(filed, {
    name: 'filed',
    listen: ['/ip4/127.0.0.1/tcp/7'],
    announce: [],
    limits: DEFAULT_LIMITS,
    claudeConfigDirs: ['/h/.claude', '/d', '/c'],
    codexHomes: ['/h/.codex', '/x'],
  });
  assert.deepEqual(readConfig(dir, NO_FLAGS, { HOME: '/h', CODEX_HOME: '/y' }).codexHomes, ['/y', '/x']);
  const typed = readConfig(dir, { listen: ['/ip4/127.0.0.1/tcp/8'], name: 'typed' }, {});
  assert.deepEqual([typed.name, typed.listen], ['typed', ['/ip4/127.0.0.1/tcp/8']]);
});

test('a limit in config.json takes the place of its default, the others stay', (t) => {
  const dir = folder(t);
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ limits: { notices_per_hour: 5, waiting_bytes: 1_048_576 } }));
  const { limits } = readConfig(dir, NO_FLAGS, {});
  assert.deepEqual(limits, { ...DEFAULT_LIMITS, noticesPerHour: 5, waitingBytes: 1_048_576 });
});
