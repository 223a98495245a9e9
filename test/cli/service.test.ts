/**
 * The text of a systemd user unit and of a launchd agent: what stands in them, and that no path can say anything else there.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { readEnvironment } from '../../cli/environment.ts';
import { launchdAgent, MARK, systemdUnit } from '../../cli/service-files.ts';
import type { ServiceFacts } from '../../cli/service-files.ts';
import { launchd } from '../../cli/service-manager.ts';

const FACTS: ServiceFacts = {
  node: '/usr/bin/node',
  program: '/usr/local/lib/ax/dist/daemon.mjs',
  stateDir: '/home/me/.local/state/ax',
  isUsualStateDir: true,
  environment: {},
};
const ELSEWHERE: ServiceFacts = { ...FACTS, stateDir: '/srv/ax', isUsualStateDir: false };

test('a unit starts the daemon by absolute paths, again after a failure, with a private umask, and at each login', () => {
  const { text, path, unit, kind } = systemdUnit(FACTS, '/home/me/.config');
  assert.deepEqual([kind, unit, path], ['systemd', 'ax.service', '/home/me/.config/systemd/user/ax.service']);
  assert.equal(
    text,
    `# ${MARK}
[Unit]
Description=ax, messages between coding agents
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
ExecStart="/usr/bin/node" "/usr/local/lib/ax/dist/daemon.mjs" "--state-dir" "/home/me/.local/state/ax"
Restart=on-failure
RestartSec=5
UMask=0077
TimeoutStopSec=45

[Install]
WantedBy=default.target
`,
  );
});

test('an agent of launchd says the same', () => {
  const { text, path, unit, kind } = launchdAgent(FACTS, '/Users/me');
  assert.deepEqual([kind, unit, path], ['launchd', 'agent-exchange.ax', '/Users/me/Library/LaunchAgents/agent-exchange.ax.plist']);
  const without = text.replaceAll(/\s*\n\s*/g, '');
  for (const part of [
    '<key>Label</key><string>agent-exchange.ax</string>',
    '<key>ProgramArguments</key><array><string>/usr/bin/node</string><string>/usr/local/lib/ax/dist/daemon.mjs</string><string>--state-dir</string><string>/home/me/.local/state/ax</string></array>',
    '<key>RunAtLoad</key><true/>',
    '<key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>',
    '<key>Umask</key><integer>63</integer>',
    '<key>StandardErrorPath</key><string>/home/me/.local/state/ax/daemon.log</string>',
    `<!-- ${MARK} -->`,
  ])
    assert.equal(without.includes(part), true, part);
});

test('each state folder has a service of its own, which names it', () => {
  const [first, second] = [systemdUnit(ELSEWHERE, '/c'), systemdUnit({ ...ELSEWHERE, stateDir: '/srv/bx' }, '/c')];
  assert.match(first.unit, /^ax-[0-9a-f]{8}\.service$/);
  assert.notEqual(first.unit, second.unit);
  assert.equal(systemdUnit(ELSEWHERE, '/c').unit, first.unit);
  assert.match(first.text, /^ExecStart="\/usr\/bin\/node" "[^"]+" "--state-dir" "\/srv\/ax"$/m);
  assert.match(launchdAgent(ELSEWHERE, '/h').text, /<string>--state-dir<\/string><string>\/srv\/ax<\/string>/);
});

test('what a path holds means nothing in a unit: quotes, percents, dollars, backslashes, spaces', () => {
  const { text } = systemdUnit({ ...ELSEWHERE, stateDir: '/srv/a b%h$HOME"\\x', environment: { CODEX_HOME: '/c %n$X' } }, '/c');
  assert.equal(
    text.split('\n').includes('ExecStart="/usr/bin/node" "/usr/local/lib/ax/dist/daemon.mjs" "--state-dir" "/srv/a b%%h$$HOME\\"\\\\x"'),
    true,
    text,
  );
  assert.equal(text.split('\n').includes('Environment="CODEX_HOME=/c %%n$X"'), true, text);
});

test('what a path holds means nothing in a property list', () => {
  const { text } = launchdAgent({ ...ELSEWHERE, stateDir: '/srv/</string><string>&x', environment: { CODEX_HOME: '/c<' } }, '/h');
  assert.equal(text.includes('<string>/srv/&lt;/string&gt;&lt;string&gt;&amp;x</string>'), true, text);
  assert.equal(text.includes('<key>CODEX_HOME</key><string>/c&lt;</string>'), true);
});

test('a path with a line break, or a Node whose path has a dollar, is refused', () => {
  for (const make of [(facts: ServiceFacts) => systemdUnit(facts, '/c'), (facts: ServiceFacts) => launchdAgent(facts, '/h')])
    assert.throws(() => make({ ...ELSEWHERE, stateDir: '/srv/a\nExecStartPre=/bin/x' }), { code: 'invalid_state' });
  assert.throws(() => systemdUnit({ ...FACTS, environment: { CODEX_HOME: '/c\n[Install]' } }, '/c'), { code: 'invalid_state' });
  assert.throws(() => systemdUnit({ ...FACTS, node: '/opt/$v/node' }, '/c'), { code: 'invalid_state' });
});

test('what a person is told to type is one word where a path has a quote or a space', () => {
  const path = "/Users/o'n x/Library/LaunchAgents/ax.plist";
  const around = { path: [], own: '/ax', shell: undefined, home: '/h', configHome: '/c', user: undefined };
  const manager = launchd(readEnvironment({ stateDir: '/srv/none' }), around, 501);
  const typed = manager.restartCommand({ kind: 'launchd', unit: 'agent-exchange.ax', path, text: '' });
  const said = execFileSync('/bin/sh', ['-c', `launchctl() { printf '[%s]' "$@"; }; ${typed}`], { encoding: 'utf8' });
  assert.equal(said, `[bootout][gui/501/agent-exchange.ax][bootstrap][gui/501][${path}]`);
});
