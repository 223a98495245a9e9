// `ax doctor`: each finding provoked with real files, a scripted daemon, or the facts of a machine; and what a clean host is told.
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { daemonFindings, listenFindings } from '../../cli/doctor/daemon.ts';
import { fileFindings } from '../../cli/doctor/files.ts';
import type { Finding } from '../../cli/doctor/finding.ts';
import { clockFindings, diskFindings, freeBytes, nodeFindings, pathFindings, unitFindings } from '../../cli/doctor/machine.ts';
import type { Environment, Surroundings } from '../../cli/environment.ts';
import { AxError } from '../../protocol/errors.ts';
import { MIN_FREE_BYTES } from '../../protocol/limits.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { AT, HOST_ID, scripted, type Answers, type Json, type Scripted } from './scripted.ts';

const uid = process.getuid?.() ?? 0;
const ids = (findings: readonly Finding[]): string[] => findings.map((one) => `${one.severity} ${one.id}`);
const named = (findings: readonly Finding[], id: string): Finding => {
  const found = findings.find((one) => one.id === id);
  assert.ok(found, `${id} among ${JSON.stringify(findings)}`);
  return found;
};

function folderOf(t: TestContext): string {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'ax-doc-')));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

/** The environment of a state folder, as a line with --state-dir would have it. */
function environmentOf(stateDir: string, socketPath = join(stateDir, 'control.sock')): Environment {
  return {
    stateDir,
    socketPath,
    format: 'json',
    origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'cli' },
    session: null,
    harnessShell: null,
    isNested: false,
    localWorkspace: null,
    ax: { program: 'ax', stateDir },
  };
}

/** A state folder as a daemon leaves it. */
function stateOf(folder: string): Environment {
  const stateDir = join(folder, 'state');
  mkdirSync(join(stateDir, 'store'), { recursive: true, mode: 0o700 });
  writeFileSync(join(stateDir, 'host.key'), new Uint8Array(32), { mode: 0o600 });
  writeFileSync(join(stateDir, 'store', 'data.mdb'), 'x', { mode: 0o600 });
  writeFileSync(join(stateDir, 'config.json'), '{}', { mode: 0o600 });
  return environmentOf(stateDir);
}

// --- files ---------------------------------------------------------------------------------------------------------------

test('a state folder as the daemon leaves it has no finding, and one that is not there has none either', (t) => {
  const environment = stateOf(folderOf(t));
  assert.deepEqual(fileFindings(environment, uid), []);
  assert.deepEqual(fileFindings(environmentOf('/nonexistent/ax'), uid), []);
});

test('what is open to others is named with its mode and the command that closes it', (t) => {
  const environment = stateOf(folderOf(t));
  const { stateDir } = environment;
  for (const [path, mode, id, fix] of [
    [stateDir, 0o755, 'warning state_folder_mode', `chmod 700 ${stateDir}`],
    [join(stateDir, 'host.key'), 0o640, 'error key_mode', `chmod 600 ${stateDir}/host.key`],
    [join(stateDir, 'store'), 0o750, 'warning store_mode', `chmod 700 ${stateDir}/store`],
    [join(stateDir, 'store', 'data.mdb'), 0o604, 'warning store_mode', `chmod 600 ${stateDir}/store/data.mdb`],
    [join(stateDir, 'config.json'), 0o666, 'warning config_mode', `chmod 600 ${stateDir}/config.json`],
  ] as const) {
    chmodSync(path, mode);
    const found = fileFindings(environment, uid);
    assert.deepEqual(ids(found), [id], path);
    assert.equal(found[0]?.fix, fix);
    assert.match(found[0]?.what ?? '', new RegExp(mode.toString(8)));
    chmodSync(path, path.endsWith('state') || path.endsWith('store') ? 0o700 : 0o600);
  }
});

test("another user's files are named with their owner", (t) => {
  const found = fileFindings(stateOf(folderOf(t)), uid + 1);
  assert.deepEqual(
    new Set(ids(found)),
    new Set(['error state_folder_owner', 'error key_owner', 'error store_owner', 'error config_owner']),
  );
  assert.match(named(found, 'key_owner').what, new RegExp(`uid ${uid}`));
  assert.match(named(found, 'key_owner').fix, /^sudo chown /);
});

test('a key that is missing, cut short or a link, a socket that is a file, and settings that are no JSON are named', (t) => {
  const environment = stateOf(folderOf(t));
  const { stateDir, socketPath } = environment;
  const key = join(stateDir, 'host.key');
  rmSync(key);
  assert.deepEqual(ids(fileFindings(environment, uid)), ['error key_missing']);
  writeFileSync(key, 'short', { mode: 0o600 });
  assert.deepEqual(ids(fileFindings(environment, uid)), ['error key_damaged']);
  rmSync(key);
  symlinkSync('/etc/hostname', key);
  assert.deepEqual(ids(fileFindings(environment, uid)), ['error key_kind']);
  rmSync(key);
  writeFileSync(key, new Uint8Array(32), { mode: 0o600 });
  writeFileSync(socketPath, '');
  assert.deepEqual(ids(fileFindings(environment, uid)), ['error socket_kind']);
  rmSync(socketPath);
  const wrong = ['{"nmae":"x"}', '{"name":5}', '{"listen":["127.0.0.1:80"]}', '{"limits":{"notices_per_hour":0}}', '{"codex_homes":["x"]}'];
  for (const text of ['{"listen":', '[]', ...wrong]) {
    writeFileSync(join(stateDir, 'config.json'), text);
    assert.deepEqual(ids(fileFindings(environment, uid)), ['error config_invalid'], text);
  }
});

test('a socket open to others, and an open folder of a socket whose own path is too long, are named', async (t) => {
  const folder = folderOf(t);
  const elsewhere = join(folder, 'sock');
  mkdirSync(elsewhere, { mode: 0o755 });
  const environment = environmentOf(stateOf(folder).stateDir, join(elsewhere, 'control.sock'));
  const server = createServer().listen(environment.socketPath);
  await new Promise((resolve) => server.once('listening', resolve));
  t.after(() => server.close());
  chmodSync(environment.socketPath, 0o666);
  assert.deepEqual(ids(fileFindings(environment, uid)), ['error socket_folder_mode', 'warning socket_mode']);
});

// --- the machine ---------------------------------------------------------------------------------------------------------

function around(folder: string, more: Partial<Surroundings> = {}): Surroundings {
  const own = join(folder, 'own', 'ax');
  program(own);
  return { path: [], own, shell: undefined, home: folder, configHome: join(folder, '.config'), user: 'me', ...more };
}

function program(path: string, text = '#!/bin/sh\n'): void {
  mkdirSync(join(path, '..'), { recursive: true });
  writeFileSync(path, text);
  chmodSync(path, 0o755);
}

test('another ax before this one on PATH is named, and the product of the same name with it', async (t) => {
  const folder = folderOf(t);
  const environment = environmentOf(folder);
  const other = join(folder, 'other');
  const mine = around(folder).own;
  program(join(other, 'ax'));
  const [found, ...rest] = await pathFindings(environment, around(folder, { path: [other, join(folder, 'own')] }));
  assert.equal(rest.length, 0);
  assert.deepEqual([found?.id, found?.severity], ['path_clash', 'warning']);
  assert.match(found?.what ?? '', new RegExp(`${other}/ax, not this program`));
  assert.equal(found?.fix, `put the folder of this ax first: export PATH=${join(mine, '..')}:"$PATH"`);
  program(join(other, 'axctl'));
  assert.match((await pathFindings(environment, around(folder, { path: [other] })))[0]?.what ?? '', /beside axctl/);
});

test('this ax, a link to it, or a foreign file that is no program on PATH is no clash; none at all is only worth knowing', async (t) => {
  const folder = folderOf(t);
  const environment = environmentOf(folder);
  const links = join(folder, 'links');
  mkdirSync(links);
  const { own } = around(folder);
  symlinkSync(own, join(links, 'ax'));
  assert.deepEqual(await pathFindings(environment, around(folder, { path: [links] })), []);
  const text = join(folder, 'text');
  mkdirSync(text);
  writeFileSync(join(text, 'ax'), 'no program');
  mkdirSync(join(folder, 'dir', 'ax'), { recursive: true });
  assert.deepEqual(await pathFindings(environment, around(folder, { path: [text, join(folder, 'dir'), links] })), []);
  assert.deepEqual(ids(await pathFindings(environment, around(folder, { path: [text] }))), ['info path_missing']);
});

test("another ax on a login shell's PATH is named, and a login shell that hangs is left alone", async (t) => {
  const folder = folderOf(t);
  const environment = environmentOf(folder);
  const other = join(folder, 'other');
  program(join(other, 'ax'));
  writeFileSync(join(folder, '.profile'), `echo welcome\nPATH=${other}:$PATH\n`);
  const own = join(folder, 'own');
  const found = await pathFindings(environment, around(folder, { path: [own], shell: '/bin/sh' }));
  assert.deepEqual(ids(found), ['warning path_clash_login']);
  assert.match(found[0]?.what ?? '', /a login shell is .*other\/ax/);
  writeFileSync(join(folder, '.profile'), `PATH=${own}:$PATH\n`);
  assert.deepEqual(await pathFindings(environment, around(folder, { path: [own], shell: '/bin/sh' })), []);
  const hanging = join(folder, 'hang');
  program(hanging, '#!/bin/sh\nexec sleep 60\n');
  assert.deepEqual(await pathFindings(environment, around(folder, { path: [own], shell: hanging })), []);
  assert.deepEqual(await pathFindings(environment, around(folder, { path: [own], shell: join(folder, 'gone') })), []);
});

test('an old Node, and a disk that is low or full, are named', (t) => {
  assert.deepEqual(ids(nodeFindings('20.19.2')), ['error node_version']);
  assert.deepEqual(ids(nodeFindings('22.11.0')), ['error node_version']);
  for (const version of ['22.12.0', '24.0.0']) assert.deepEqual(nodeFindings(version), []);
  assert.deepEqual(ids(diskFindings('/x', MIN_FREE_BYTES - 1)), ['error disk_full']);
  assert.deepEqual(ids(diskFindings('/x', MIN_FREE_BYTES)), ['warning disk_low']);
  assert.deepEqual(diskFindings('/x', 100 * MIN_FREE_BYTES), []);
  assert.equal(typeof freeBytes(join(folderOf(t), 'not', 'yet')), 'number');
});

test('a clock that stands before what the daemon or its files have written down is named', (t) => {
  const environment = stateOf(folderOf(t));
  const day = 86_400_000;
  assert.deepEqual(clockFindings(environment, undefined), []);
  assert.deepEqual(clockFindings(environment, Date.now()), []);
  assert.deepEqual(ids(clockFindings(environment, Date.now() + day)), ['warning clock_stepped']);
  const ahead = new Date(Date.now() + day);
  utimesSync(join(environment.stateDir, 'store', 'data.mdb'), ahead, ahead);
  assert.deepEqual(ids(clockFindings(environment, undefined)), ['warning clock_stepped']);
});

test('a unit that is not enabled, starts what is gone, or ends at logout is named; units of others are not', (t) => {
  const folder = folderOf(t);
  const environment = environmentOf(folder);
  const machine = around(folder);
  const units = join(machine.configHome, 'systemd', 'user');
  mkdirSync(join(units, 'default.target.wants'), { recursive: true });
  writeFileSync(join(units, 'other.service'), '[Service]\nExecStart=/gone/thing --run\n');
  assert.deepEqual(unitFindings(environment, machine, folder), []);
  const unit = join(units, 'ax.service');
  writeFileSync(unit, `[Service]\nExecStart="${machine.own}" --state-dir /srv/ax daemon run\n`);
  assert.deepEqual(ids(unitFindings(environment, machine, folder)), ['warning unit_disabled']);
  assert.equal(unitFindings(environment, machine, folder)[0]?.fix, 'systemctl --user enable --now ax.service');
  symlinkSync(unit, join(units, 'default.target.wants', 'ax.service'));
  assert.deepEqual(unitFindings(environment, machine, folder), []);
  mkdirSync(join(folder, 'run', 'systemd', 'system'), { recursive: true });
  assert.deepEqual(ids(unitFindings(environment, machine, folder)), ['warning linger_off']);
  mkdirSync(join(folder, 'var', 'lib', 'systemd', 'linger'), { recursive: true });
  writeFileSync(join(folder, 'var', 'lib', 'systemd', 'linger', 'me'), '');
  assert.deepEqual(unitFindings(environment, machine, folder), []);
  writeFileSync(unit, '[Service]\nExecStart=/gone/node /gone/lib/ax/dist/daemon.mjs --state-dir /srv/ax\n');
  const [gone] = unitFindings(environment, machine, folder);
  assert.deepEqual([gone?.id, gone?.severity], ['unit_path', 'error']);
  assert.match(gone?.what ?? '', /\/gone\/node/);
});

// --- addresses -----------------------------------------------------------------------------------------------------------

test('addresses that nobody else can dial are named; one that is announced or public is enough', () => {
  const environment = environmentOf('/srv/ax');
  const loopback = '/ip4/127.0.0.1/tcp/19264';
  const home = '/ip4/192.168.1.7/tcp/19264';
  const check = (listen: readonly string[], told: readonly string[] = listen, isWsl = false): string[] =>
    ids(
      listenFindings(
        environment,
        listen,
        told.map((address) => `${address}/p2p/${HOST_ID}`),
        isWsl,
      ),
    );
  assert.deepEqual(check([]), ['info listen_none']);
  assert.deepEqual(check([loopback, '/ip6/::1/tcp/19264', '/ip6/fe80::1/tcp/19264']), ['warning listen_loopback']);
  assert.deepEqual(check([loopback, home, '/ip6/fd00::7/tcp/19264']), ['info listen_private']);
  assert.deepEqual(check([loopback, '/ip4/172.29.3.4/tcp/19264'], undefined, true), ['warning listen_wsl']);
  assert.deepEqual(check([loopback, home, '/ip4/203.0.113.9/tcp/19264']), []);
  assert.deepEqual(check([loopback], ['/dns4/ax.example/tcp/4001']), []);
  assert.deepEqual(check([loopback], ['/ip4/127.0.0.1/tcp/4001']), ['warning listen_loopback']);
});

// --- the daemon ----------------------------------------------------------------------------------------------------------

const daemon = (more: Json = {}): Json => ({
  running: true,
  pid: 1,
  version: AX_VERSION,
  protocol: CONTROL_PROTOCOL,
  host_id: HOST_ID,
  name: 'hosta',
  uptime_ms: 1,
  listen: ['/ip4/203.0.113.9/tcp/19264'],
  control: '/x',
  warnings: [],
  ...more,
});

const host = (name: string, more: Json = {}): Json => ({
  host_id: HOST_ID,
  name,
  addresses: [],
  grants: [],
  state: 'up',
  last_seen_at: AT,
  rtt_ms: 1,
  version: AX_VERSION,
  ...more,
});

function answers(overview: Json = {}, more: Answers = {}): Answers {
  return {
    'daemon.hello': () => ({ version: AX_VERSION, protocol: CONTROL_PROTOCOL, host_id: HOST_ID, pid: 1 }),
    'admin.status': () => ({ daemon: daemon(), hosts: [], outbox: {}, inbox: {}, notices: {}, store: {}, attention: [], ...overview }),
    'host.id': () => ({ host_id: HOST_ID, name: 'hosta', fingerprint: 'x', addresses: [] }),
    'agent.list': () => ({ agents: [] }),
    'agent.sandbox_fetch': () => ({ enabled: false, open: false, reason: null }),
    'admin.events': () => ({ events: [], next_seq: 0, oldest_seq: 0 }),
    ...more,
  };
}

/** The findings of a daemon that answers so. */
async function told(t: TestContext, script: Answers): Promise<readonly Finding[]> {
  const rig = await scripted(t, script);
  return (await daemonFindings(environmentOf(rig.stateDir), false)).findings;
}

test('a daemon of another version is named, with both versions and the restart; one of another protocol is not asked more', async (t) => {
  const older = await told(
    t,
    answers({}, { 'daemon.hello': () => ({ version: '0.0.9', protocol: CONTROL_PROTOCOL, host_id: HOST_ID, pid: 1 }) }),
  );
  assert.deepEqual(ids(older), ['warning daemon_version']);
  assert.match(older[0]?.what ?? '', new RegExp(`ax 0\\.0\\.9 .* ax ${AX_VERSION}`));
  assert.match(older[0]?.fix ?? '', /daemon restart$/);
  const other = await told(t, { 'daemon.hello': () => ({ version: '9.0.0', protocol: CONTROL_PROTOCOL + 1, host_id: HOST_ID, pid: 1 }) });
  assert.deepEqual(ids(other), ['error daemon_version']);
});

test('a daemon that cannot say how it is is named with its own words', async (t) => {
  const failing = (): never => {
    throw new Error('boom');
  };
  assert.deepEqual(ids(await told(t, answers({}, { 'admin.status': failing }))), ['error daemon_failed']);
});

test('what happened or is meant so, and asks for nothing, is info and makes no doctor sick', async (t) => {
  const rows = ['message_refused', 'refused_here', 'agent_quiet'].map((code) => ({
    code,
    what: code,
    since: null,
    fix: 'nothing need be done',
  }));
  const rig = await scripted(t, answers({ attention: rows }));
  const { findings } = await daemonFindings(environmentOf(rig.stateDir), false);
  assert.deepEqual(
    findings.filter((one) => one.id === 'attention').map((one) => [one.severity, one.what]),
    rows.map(({ what }) => ['info', what]),
  );
});

test('what the daemon wants a person to look at is a finding, with the commands of this state folder', async (t) => {
  const rows = [
    {
      code: 'host_id_twice',
      what: 'the host id of hostb is alive in two places: its key was copied',
      since: null,
      fix: 'stop one of the two',
    },
    {
      code: 'peer_update_required',
      what: 'hostb runs an ax without a common protocol (0.0.9)',
      since: null,
      fix: 'update ax on the older host',
    },
    {
      code: 'peer_wrong_key',
      what: 'another key answers at the address of hostb',
      since: null,
      fix: 'check the address: ax host show hostb',
    },
    {
      code: 'peer_untrusted',
      what: 'hostb does not know this host',
      since: null,
      fix: 'on that host: ax host add, or pair anew with an invite',
    },
    { code: 'peer_down', what: 'messages wait for hostb, which is not reachable', since: Date.now() - 60_000, fix: 'ax host ping hostb' },
    { code: 'disk_low', what: 'only 5 bytes are free: nothing new is accepted or queued', since: null, fix: 'free some disk space' },
  ];
  const rig = await scripted(
    t,
    answers({ attention: rows, daemon: daemon({ warnings: ['the host id of hostb is alive in two places: its key was copied', 'odd'] }) }),
  );
  const { findings } = await daemonFindings(environmentOf(rig.stateDir), false);
  assert.deepEqual(ids(findings), [
    'error host_id_twice',
    'warning peer_update_required',
    'error peer_wrong_key',
    'warning peer_untrusted',
    'warning attention',
    'warning daemon_warning',
  ]);
  assert.equal(named(findings, 'peer_wrong_key').fix, `check the address: ax --state-dir ${rig.stateDir} host show hostb`);
  assert.equal(named(findings, 'peer_untrusted').fix, 'on that host: ax host add, or pair anew with an invite');
  assert.equal(named(findings, 'attention').fix, `ax --state-dir ${rig.stateDir} host ping hostb`);
  assert.match(named(findings, 'attention').what, /\(1 min ago\)$/);
});

test('hosts of another version are worth knowing, and are no fault', async (t) => {
  const hosts = [
    host('hostb', { version: '0.0.9' }),
    host('hostc'),
    host('hostd', { version: null }),
    host('e', { version: '9', state: 'update_required' }),
  ];
  const findings = await told(t, answers({ hosts }));
  assert.deepEqual(ids(findings), ['info peer_version']);
  assert.match(findings[0]?.what ?? '', /^hostb runs ax 0\.0\.9; this host runs/);
});

test('with the daemon down, a port that another program has is named as well', async (t) => {
  const folder = folderOf(t);
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  t.after(() => server.close());
  const { port } = server.address() as { port: number };
  const environment = stateOf(folder);
  writeFileSync(join(environment.stateDir, 'config.json'), JSON.stringify({ listen: [`/ip4/0.0.0.0/tcp/${port}`] }));
  const { findings } = await daemonFindings(environment, false);
  assert.deepEqual(ids(findings), ['error daemon_down', 'error port_taken']);
  assert.match(named(findings, 'port_taken').what, new RegExp(`/tcp/${port}`));
  assert.match(named(findings, 'port_taken').fix, /daemon start --listen /);
  writeFileSync(join(environment.stateDir, 'launch.json'), JSON.stringify({ listen: [] }));
  writeFileSync(join(environment.stateDir, 'config.json'), JSON.stringify({ listen: [] }));
  assert.deepEqual(ids((await daemonFindings(environment, false)).findings), ['error daemon_down']);
});

// --- the command ---------------------------------------------------------------------------------------------------------

/** A PATH that holds no ax. */
function quietPath(rig: Scripted): Record<string, string> {
  const bin = join(rig.folder, 'bin');
  mkdirSync(bin, { recursive: true });
  return { PATH: bin };
}

test('a clean host is told so with status 0, also when something is only worth knowing', async (t) => {
  const rig = await scripted(t, answers());
  const { code, value } = await rig.json(['doctor'], { env: quietPath(rig) });
  assert.deepEqual([code, value['type'], value['findings'].map((one: Json) => one['id'])], [0, 'doctor', ['path_missing']]);
  const human = await rig.ax(['doctor'], { env: quietPath(rig) });
  assert.match(human.stdout, /nothing is wrong\n$/);
});

test('findings make status 1, in every format, the gravest first, and what a peer chose acts on nothing', async (t) => {
  const evil = 'x\x1b[2J\nerror  all is lost\u202e';
  const rows = [{ code: 'peer_down', what: `messages wait for ${evil}`, since: null, fix: `ax host ping ${evil}` }];
  const rig = await scripted(t, answers({ attention: rows, daemon: daemon({ listen: ['/ip4/127.0.0.1/tcp/1'] }) }));
  writeFileSync(join(rig.stateDir, 'host.key'), 'short', { mode: 0o600 });
  const { code, value } = await rig.json(['doctor'], { env: quietPath(rig) });
  assert.equal(code, 1);
  assert.deepEqual(
    value['findings'].map((one: Json) => one['id']),
    ['key_damaged', 'listen_loopback', 'attention', 'path_missing'],
  );
  for (const finding of value['findings'] as Json[]) assert.deepEqual(Object.keys(finding), ['id', 'severity', 'what', 'fix']);
  const human = await rig.ax(['doctor'], { env: quietPath(rig) });
  assert.equal(human.code, 1);
  // oxlint-disable-next-line no-control-regex
  assert.doesNotMatch(human.stdout, /\x1b|\u202e|^error {2}all is lost/m);
  assert.match(human.stdout, /1 error, 2 warnings\n$/);
  const csv = await rig.ax(['--format', 'csv', 'doctor'], { env: quietPath(rig) });
  assert.match(csv.stdout, /^id,severity,what,fix\r\nkey_damaged,error,/);
});

/** What is found of the harnesses, by id, with the severity. */
async function harnesses(rig: Scripted, env: Record<string, string> = {}): Promise<string[]> {
  const { value } = await rig.json(['doctor'], { env: { ...quietPath(rig), ...env } });
  return (value['findings'] as Finding[]).filter((one) => one.id !== 'path_missing').map((one) => `${one.severity} ${one.id}`);
}

test("settings that hold or refuse notices are named, those of an agent's folder too; rules that are missing are worth knowing", async (t) => {
  const agents: Json[] = [];
  const rig = await scripted(t, { ...answers(), 'agent.list': () => ({ agents }) });
  assert.deepEqual(await harnesses(rig), []);
  const user = join(rig.folder, '.claude');
  mkdirSync(user);
  assert.deepEqual(await harnesses(rig), ['info rules_missing_claude']);
  writeFileSync(join(user, 'settings.json'), '{"crossSessionInbound":"refuse"}');
  assert.deepEqual(await harnesses(rig), ['error claude_inbound_refuse', 'info rules_missing_claude']);
  writeFileSync(join(user, 'settings.json'), '{"crossSessionInbound":');
  assert.deepEqual(await harnesses(rig), ['warning claude_settings_unreadable', 'info rules_missing_claude']);
  writeFileSync(join(user, 'settings.json'), '{}');
  const project = join(rig.folder, 'project');
  mkdirSync(join(project, '.claude'), { recursive: true });
  writeFileSync(join(project, '.claude', 'settings.local.json'), '{"permissions":{"defaultMode":"bypassPermissions"}}');
  agents.push({ name: 'a', harness: 'claude', workspace: project, attachments: [], waiting: 0, quiet_until: null });
  assert.deepEqual(await harnesses(rig), ['warning claude_bypass_holds', 'info rules_missing_claude']);
  mkdirSync(join(rig.folder, '.codex'));
  assert.deepEqual(await harnesses(rig), ['warning claude_bypass_holds', 'info rules_missing_claude', 'info rules_missing_codex']);
});

test('the channel out of a sandbox is worth knowing when it is open, and a warning when it was to be and is not', async (t) => {
  let state = { enabled: true, open: true, reason: null as string | null };
  const rig = await scripted(t, { ...answers(), 'agent.sandbox_fetch': () => state });
  assert.deepEqual(await harnesses(rig), ['info sandbox_fetch_on']);
  state = { enabled: true, open: false, reason: 'the folder is open to others' };
  assert.deepEqual(await harnesses(rig), ['warning sandbox_fetch_closed']);
});

test("a daemon that does not know the newer questions is no fault of the doctor's", async (t) => {
  const unknown = (): never => {
    throw new AxError('invalid_argument', 'there is no such method');
  };
  const rig = await scripted(t, { ...answers(), 'agent.sandbox_fetch': unknown });
  assert.deepEqual(await harnesses(rig), []);
});
