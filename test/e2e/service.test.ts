/**
 * `ax daemon install` and `uninstall` in a home of their own, with a stand-in for systemctl and loginctl that records what it is asked and
 * starts what a unit names; and without any.
 */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { makeBed, until } from './hosts.ts';
import type { Bed, Host } from './hosts.ts';
import { isAlive } from './processes.ts';

/** As systemctl: notes the call; `start` runs the unit's command once, `disable --now` ends it. */
const SYSTEMCTL = `#!/bin/sh
echo "systemctl $*" >>"$HOME/calls"
unit="$HOME/.config/systemd/user/$4"
case "$2" in
  show-environment) [ -e "$HOME/no-bus" ] && { echo 'Failed to connect to bus: No medium found' >&2; exit 1; };;
  start) unit="$HOME/.config/systemd/user/$3"
    eval "set -- $(sed -n 's/^ExecStart=//p' "$unit")"
    setsid "$@" >/dev/null 2>&1 </dev/null & echo $! >"$HOME/main-pid";;
  disable) [ -e "$HOME/main-pid" ] && kill "$(cat "$HOME/main-pid")";;
esac
exit 0
`;
const LOGINCTL = `#!/bin/sh
echo "loginctl $*" >>"$HOME/calls"
echo "Linger=$(cat "$HOME/linger")"
`;

interface Rig {
  readonly host: Host;
  readonly env: NodeJS.ProcessEnv;
  readonly unit: string;
  readonly calls: () => readonly string[];
}

/** A host whose PATH leads to the stand-ins and to nothing else of a service manager. */
function rigged(bed: Bed, tools: Readonly<Record<string, string>> = { systemctl: SYSTEMCTL, loginctl: LOGINCTL }): Rig {
  const host = bed.host('hosta');
  const bin = join(host.home, 'bin');
  mkdirSync(bin);
  for (const [name, text] of Object.entries(tools)) {
    writeFileSync(join(bin, name), text);
    chmodSync(join(bin, name), 0o755);
  }
  for (const name of ['sh', 'cat', 'sed', 'setsid', 'kill'])
    for (const folder of ['/bin', '/usr/bin'])
      if (existsSync(join(folder, name)) && !existsSync(join(bin, name))) symlinkSync(join(folder, name), join(bin, name));
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  writeFileSync(join(host.stateDir, 'config.json'), '{"listen":["/ip4/127.0.0.1/tcp/0"]}', { mode: 0o600 });
  writeFileSync(join(host.home, 'linger'), 'no');
  const calls = join(host.home, 'calls');
  return {
    host,
    env: { PATH: bin },
    unit: join(host.home, '.config', 'systemd', 'user', 'ax.service'),
    calls: () => (existsSync(calls) ? readFileSync(calls, 'utf8').trimEnd().split('\n') : []),
  };
}

test('install writes the unit, has it begun at each login, starts it, and says that lingering is off; a second time changes nothing', async (t) => {
  const { host, env, unit, calls } = rigged(makeBed(t));
  const first = await host.ok(['daemon', 'install'], { env });
  host.pid = Number((await host.call('daemon.hello'))['pid']);
  assert.equal(host.pid, Number(readFileSync(join(host.home, 'main-pid'), 'utf8')));
  assert.deepEqual(
    ['type', 'kind', 'unit', 'path', 'changed', 'running', 'lingering', 'dry_run'].map((key) => first[key]),
    ['daemon_installed', 'systemd', 'ax.service', unit, true, true, false, false],
  );
  assert.match(String(first['warnings']), /loginctl enable-linger \S+/);
  assert.equal(readFileSync(unit, 'utf8'), first['text']);
  assert.equal(statSync(unit).mode & 0o777, 0o600);
  assert.deepEqual(calls().slice(0, 4), [
    'systemctl --user show-environment',
    'systemctl --user daemon-reload',
    'systemctl --user enable ax.service',
    'systemctl --user start ax.service',
  ]);
  assert.match(calls()[4] ?? '', /^loginctl show-user \S+ --property=Linger$/);
  assert.equal(calls().length, 5);
  writeFileSync(join(host.home, 'linger'), 'yes');
  const second = await host.ok(['daemon', 'install'], { env });
  assert.deepEqual([second['changed'], second['running'], second['lingering'], second['text']], [false, true, true, first['text']]);
  assert.equal(Number((await host.call('daemon.hello'))['pid']), host.pid);
  assert.equal(calls().filter((call) => call.includes(' start ')).length, 1);
  const removed = await host.ok(['daemon', 'uninstall'], { env });
  assert.deepEqual([removed['type'], removed['removed'], removed['path']], ['daemon_uninstalled', true, unit]);
  assert.deepEqual(calls().slice(-3), [
    'systemctl --user show-environment',
    'systemctl --user disable --now ax.service',
    'systemctl --user daemon-reload',
  ]);
  await until('the service to be gone', async () => !isAlive(host.pid) || 'alive');
  assert.deepEqual(readdirSync(join(host.home, '.config', 'systemd', 'user')), []);
  assert.equal((await host.ok(['daemon', 'uninstall'], { env }))['removed'], false);
});

test('a daemon that was started by hand goes on through install and uninstall, and what moves it to the service is told', async (t) => {
  const { host, env, calls } = rigged(makeBed(t));
  await host.start();
  const installed = await host.ok(['daemon', 'install'], { env });
  assert.equal(
    calls().some((call) => call.includes(' start ')),
    false,
  );
  assert.match(String(installed['warnings']), /daemon stop; systemctl --user restart ax\.service/);
  assert.match(String(installed['warnings']), /--listen or --name; a service takes both from .*config\.json only/);
  await host.ok(['daemon', 'uninstall'], { env });
  assert.equal(Number((await host.call('daemon.hello'))['pid']), host.pid);
});

test('--dry-run shows the unit and changes nothing; another state folder has a unit of its own', async (t) => {
  const { host, env, calls } = rigged(makeBed(t));
  const dry = await host.ok(['daemon', 'install', '--dry-run'], { env });
  assert.deepEqual([dry['dry_run'], dry['changed'], dry['running']], [true, true, null]);
  const other = await host.ok(['--state-dir', join(host.home, 'other'), 'daemon', 'install', '--dry-run'], { env });
  assert.match(String(other['unit']), /^ax-[0-9a-f]{8}\.service$/);
  assert.equal(String(other['text']).includes(`"--state-dir" "${join(host.home, 'other')}"`), true);
  const human = await host.ax(['daemon', 'install', '--dry-run'], { env });
  assert.match(human.stdout, /\n\[Service\]\nExecStart="\//);
  assert.equal((await host.ok(['daemon', 'uninstall', '--dry-run'], { env }))['removed'], false);
  assert.deepEqual(calls(), []);
  assert.equal(existsSync(join(host.home, '.config')), false);
});

test('without systemd, or without a login of its user, nothing is written and what to do instead is told', async (t) => {
  const none = rigged(makeBed(t), {});
  const missing = await none.host.refused(['daemon', 'install'], 'unsupported', 1, { env: none.env });
  assert.match(
    String(missing['message']),
    /no systemd \(there is no systemctl\); in a container, let `.*daemon run` be what its start runs/,
  );
  assert.match(String(missing['fix']), /daemon start$/);
  assert.equal(existsSync(none.unit), false);
  const { host, env, unit } = rigged(makeBed(t));
  writeFileSync(join(host.home, 'no-bus'), '');
  const busless = await host.refused(['daemon', 'install'], 'unsupported', 1, { env });
  assert.match(String(busless['message']), /Failed to connect to bus.*needs a login of that user, not su or sudo/);
  assert.equal(existsSync(unit), false);
});

test('a unit of that name which ax did not write is left alone', async (t) => {
  const { host, env, unit, calls } = rigged(makeBed(t));
  mkdirSync(join(unit, '..'), { recursive: true });
  writeFileSync(unit, '[Service]\nExecStart=/bin/mine\n');
  for (const word of ['install', 'uninstall']) await host.refused(['daemon', word], 'invalid_state', 1, { env });
  assert.equal(readFileSync(unit, 'utf8'), '[Service]\nExecStart=/bin/mine\n');
  assert.equal(
    calls().every((call) => call.endsWith('show-environment')),
    true,
  );
});

test("an agent's shell installs no service unless the owner said so", async (t) => {
  const { host, env, unit } = rigged(makeBed(t));
  const shell = { ...env, CLAUDECODE: '1' };
  await host.refused(['daemon', 'install'], 'invalid_state', 1, { env: shell });
  await host.refused(['daemon', 'uninstall'], 'invalid_state', 1, { env: shell });
  assert.equal(existsSync(unit), false);
  await host.ok(['daemon', 'install', '--as-owner', '--dry-run'], { env: shell });
});
