/**
 * What the settings of Claude Code do to notices, file by file, as setup tells it; and that nothing of it is ever changed.
 */
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { readEnvironment } from '../../cli/environment.ts';
import { settingsFindings } from '../../cli/harness-settings.ts';
import type { Finding } from '../../cli/harness-settings.ts';
import { CLAUDE_SHELL, scripted } from './scripted.ts';

interface Files {
  readonly managed?: unknown;
  readonly dropIn?: unknown;
  readonly user?: unknown;
  readonly project?: unknown;
  readonly local?: unknown;
}

const HOLD = { crossSessionInbound: 'hold' };
const REFUSE = { crossSessionInbound: 'refuse' };
const ACCEPT = { crossSessionInbound: 'accept' };
const BYPASS = { permissions: { defaultMode: 'bypassPermissions' } };

test('the file that decides is found: managed before the user, the workspace only when it is stricter', async (t) => {
  const rig = await scripted(t);
  const claude = join(rig.folder, 'claude');
  const managedFolder = join(rig.folder, 'managed');
  const paths: Record<keyof Files, string> = {
    managed: join(managedFolder, 'managed-settings.json'),
    dropIn: join(managedFolder, 'managed-settings.d', '10-more.json'),
    user: join(claude, 'settings.json'),
    project: join(rig.workspace, '.claude', 'settings.json'),
    local: join(rig.workspace, '.claude', 'settings.local.json'),
  };
  const before = process.env['CLAUDE_CONFIG_DIR'];
  process.env['CLAUDE_CONFIG_DIR'] = claude;
  t.after(() => (before === undefined ? delete process.env['CLAUDE_CONFIG_DIR'] : (process.env['CLAUDE_CONFIG_DIR'] = before)));
  const environment = readEnvironment({ stateDir: rig.stateDir });
  const findings = (files: Files): Finding[] => {
    for (const [kind, path] of Object.entries(paths)) {
      mkdirSync(dirname(path), { recursive: true });
      const content = files[kind as keyof Files] ?? {};
      writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
    }
    return settingsFindings(environment, { workspace: rig.workspace, managedFolder });
  };
  const cases: readonly (readonly [Files, string | undefined, keyof Files | undefined])[] = [
    [{}, undefined, undefined],
    [{ user: ACCEPT }, undefined, undefined],
    [{ user: HOLD }, 'claude_inbound_hold', 'user'],
    [{ user: REFUSE }, 'claude_inbound_refuse', 'user'],
    [{ user: HOLD, local: REFUSE }, 'claude_inbound_refuse', 'local'],
    [{ user: ACCEPT, project: HOLD }, 'claude_inbound_hold', 'project'],
    [{ user: REFUSE, project: HOLD, local: ACCEPT }, 'claude_inbound_refuse', 'user'],
    [{ project: ACCEPT, user: BYPASS }, 'claude_bypass_holds', 'user'],
    [{ managed: ACCEPT, user: REFUSE }, undefined, undefined],
    [{ managed: ACCEPT, dropIn: REFUSE, user: ACCEPT }, 'claude_inbound_refuse', 'dropIn'],
    [{ managed: { crossSessionInbound: 7 } }, 'claude_inbound_refuse', 'managed'],
    [{ user: { crossSessionInbound: 'yes' } }, 'claude_inbound_hold', 'user'],
    [{ user: BYPASS }, 'claude_bypass_holds', 'user'],
    [{ user: { ...BYPASS, ...ACCEPT } }, undefined, undefined],
    [{ user: BYPASS, local: { permissions: { defaultMode: 'plan' } } }, undefined, undefined],
    [{ user: BYPASS, managed: { permissions: { disableBypassPermissionsMode: 'disable' } } }, undefined, undefined],
    [{ user: '{ "crossSessionInbound": ' }, 'claude_settings_unreadable', 'user'],
  ];
  for (const [files, id, file] of cases) {
    const found = findings(files);
    assert.deepEqual(
      found.map((finding) => finding.id),
      id === undefined ? [] : [id],
      JSON.stringify(files),
    );
    if (id === undefined || file === undefined) continue;
    assert.ok(found[0]!.what.includes(paths[file]), `${found[0]!.what} names ${paths[file]}`);
    assert.ok(found[0]!.fix.includes(paths[file]) || id === 'claude_bypass_holds', found[0]!.fix);
    assert.equal(found[0]!.severity, id === 'claude_inbound_refuse' ? 'error' : 'warning');
  }
  assert.deepEqual(settingsFindings(environment, { harness: 'codex', workspace: rig.workspace, managedFolder }), []);
});

test('setup warns with the change that a person may make, and makes none', async (t) => {
  const workspace = '/nowhere/at/all';
  const done = {
    agent: { name: 'b', harness: 'claude', workspace },
    attachment: { session_id: 'u', state: 'live' },
    waiting: [],
    warnings: ['of the daemon'],
    next: null,
  };
  const rig = await scripted(t, { 'agent.setup': () => done });
  const claude = join(rig.folder, 'claude');
  mkdirSync(claude);
  writeFileSync(join(claude, 'settings.json'), JSON.stringify(HOLD));
  const env = { ...CLAUDE_SHELL, CLAUDE_CONFIG_DIR: claude };
  const args = ['agent', 'setup', '--name', 'b', '--workspace', '/'];
  const { value } = await rig.json(args, { env });
  assert.equal(value['warnings'][0], 'of the daemon');
  assert.match(
    value['warnings'][1],
    /^"crossSessionInbound": "hold" in \S+ holds every notice until a person lets it through; a person may change it in \S+ to "crossSessionInbound": "accept" \(lets every other session of this user in\), or take the line out$/,
  );
  assert.match((await rig.ax(args, { env })).stderr, /^ax: warning: of the daemon\nax: warning: "crossSessionInbound": "hold" in /);
  assert.equal(readFileSync(join(claude, 'settings.json'), 'utf8'), JSON.stringify(HOLD));
});
