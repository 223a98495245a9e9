/**
 * Different builds of ax side by side: a CLI and a daemon that are not of one version, and two hosts that are not. Each command works or
 * names both versions and the one command that mends it; `stop` always works; nothing is lost meanwhile.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { AX_VERSION, CONTROL_PROTOCOL, PEER_PROTOCOL } from '../../protocol/version.ts';
import { buildAx, versions } from './builds.ts';
import type { Build } from './builds.ts';
import { BUNDLE, makeBed, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import { isAlive } from './processes.ts';
import type { Json } from './processes.ts';

const OURS: readonly string[] = [process.execPath, BUNDLE];
const OTHER = '9.8.7';
const bed = makeBed();
/** Another version in everything. */
let other: Build;
/** Another version that speaks the same protocols. */
let near: Build;
/** The same protocols, older: one request of today is not known to it. */
let older: Build;

before(async () => {
  [other, near, older] = await Promise.all([
    buildAx(join(bed.folder, 'b1'), versions(OTHER, CONTROL_PROTOCOL + 1, PEER_PROTOCOL.max + 1)),
    buildAx(join(bed.folder, 'b2'), versions(OTHER, CONTROL_PROTOCOL, PEER_PROTOCOL.max)),
    buildAx(join(bed.folder, 'b3'), {
      ...versions('0.0.9', CONTROL_PROTOCOL, PEER_PROTOCOL.max),
      'daemon/control/request.ts': [[/new Set\(METHODS\)/, "new Set(METHODS.filter((one) => one !== 'admin.dead'))"]],
    }),
  ]);
});

/** Starts a daemon of a build through its own CLI. */
async function start(host: Host, program: readonly string[]): Promise<void> {
  const status = await host.ok(['daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0', '--name', host.name], { program });
  host.pid = Number(status['pid']);
  host.hostId = String(status['host_id']);
}

async function stop(host: Host, program: readonly string[]): Promise<void> {
  const { pid } = host;
  const stopped = await host.ax(['--format', 'json', 'daemon', 'stop'], { program });
  assert.equal(stopped.status, 0, stopped.stdout + stopped.stderr);
  await until('the daemon to be gone', async () => !isAlive(pid) || 'alive');
  host.pid = 0;
}

const ID = '01m8mhegnfnzbrvsmh55nqg72f';
/** One line of every verb that asks the daemon. */
const COMMANDS: readonly (readonly string[])[] = [
  ['daemon', 'status'],
  ['daemon', 'start'],
  ['daemon', 'backup', '/nowhere/at/all'],
  ['host', 'id'],
  ['host', 'invite'],
  ['host', 'list'],
  ['host', 'show', 'x'],
  ['host', 'ping', 'x'],
  ['host', 'rename', 'x', 'y'],
  ['host', 'remove', 'x'],
  ['host', 'grant', 'x', 'read'],
  ['host', 'revoke', 'x', 'read'],
  ['agent', 'list'],
  ['agent', 'sessions'],
  ['agent', 'rename', 'x', 'y'],
  ['agent', 'remove', 'x'],
  ['send', '--host', 'Localhost', '--destination-workspace', '/tmp', '--harness', 'claude', 'hello'],
  ['messages', 'list'],
  ['messages', 'show', ID],
  ['messages', 'fetch', ID],
  ['messages', 'reply', ID, 'hello'],
  ['admin', 'status'],
  ['admin', 'status', ID],
  ['admin', 'cancel', ID],
  ['admin', 'dead'],
  ['admin', 'retry', ID],
  ['admin', 'events'],
];

/** Every command of one build at the daemon of another: both versions, and one command, which then works. */
async function allAtOdds(cli: readonly string[], daemon: readonly string[], told: readonly [string, string]): Promise<void> {
  const host = bed.host(`h${bed.hosts.length}`);
  await start(host, daemon);
  for (const words of COMMANDS) {
    const error = await host.refused(words, 'update_required', 3, { program: cli });
    for (const version of told)
      assert.equal(String(error['message']).includes(`ax ${version}`), true, `${words.join(' ')}: ${error['message']}`);
    assert.match(String(error['fix']), /daemon restart$/, words.join(' '));
  }
  const { pid } = host;
  const restarted = await host.ok(['daemon', 'restart'], { program: cli });
  host.pid = Number(restarted['pid']);
  assert.deepEqual([isAlive(pid), restarted['version']], [false, told[0]]);
  await host.ok(['admin', 'status'], { program: cli });
  await stop(host, cli);
  await start(host, daemon);
  await stop(host, cli); // of a daemon of the other version
}

test('a CLI whose daemon speaks a newer control protocol says both versions and the one command, and stops it', () =>
  allAtOdds(OURS, other.program, [AX_VERSION, OTHER]));

test('a newer CLI whose daemon is the older one likewise', () => allAtOdds(other.program, OURS, [OTHER, AX_VERSION]));

test('another version of ax with the same protocols works in both directions', async () => {
  for (const [cli, daemon] of [
    [near.program, OURS],
    [OURS, near.program],
  ] as const) {
    const host = bed.host(`h${bed.hosts.length}`);
    await start(host, daemon);
    const workspace = host.workspace('w');
    const sent = await host.ok(['send', '--host', 'Localhost', '--destination-workspace', workspace, '--harness', 'claude', 'hello'], {
      program: cli,
    });
    assert.equal((await host.ok(['messages', 'show', String(sent['message_id'])], { program: cli }))['message_id'], sent['message_id']);
    assert.equal((await host.ok(['daemon', 'status'], { program: cli }))['running'], true);
    await stop(host, cli);
  }
});

test('a request that an older daemon does not know is answered with both versions; every other command works', async () => {
  const host = bed.host(`h${bed.hosts.length}`);
  await start(host, older.program);
  const error = await host.refused(['admin', 'dead'], 'update_required', 3);
  assert.match(String(error['message']), new RegExp(`this command is ax ${AX_VERSION}.*the running daemon is ax 0\\.0\\.9`));
  assert.match(String(error['fix']), /daemon restart$/);
  await host.ok(['admin', 'status']);
  await stop(host, OURS);
});

test('two hosts without a common protocol say so on both sides, keep what waits, and deliver it when one is updated', async () => {
  const [a, b] = await bed.pair('versa', 'versb');
  const [first, second] = [b.workspace('w'), a.workspace('w')];
  await b.stop();
  await start(b, other.program);
  const send = async (from: Host, to: string, workspace: string, program: readonly string[]): Promise<string> => {
    const words = ['send', '--host', to, '--destination-workspace', workspace, '--harness', 'claude', 'hello'];
    return String((await from.ok(words, { program }))['message_id']);
  };
  const sides: readonly (readonly [Host, Host, readonly string[], string, string])[] = [
    [a, b, OURS, OTHER, await send(a, 'versb', first, OURS)],
    [b, a, other.program, AX_VERSION, await send(b, 'versa', second, other.program)],
  ];
  for (const [here, there, program, version, id] of sides) {
    await until(`${here.name} to know that an update is needed`, async () => {
      const { hosts } = await here.ok(['host', 'list'], { program });
      const row = hosts.find((one: Json) => one['host_id'] === there.hostId) as Json;
      return row['state'] === 'update_required' && row['version'] === version ? true : JSON.stringify(row);
    });
    const { state, cause } = await here.ok(['admin', 'status', id], { program });
    const [mine, theirs] = [`this host ax ${here === a ? AX_VERSION : OTHER} `, `${there.name} runs ax ${version} `];
    assert.match(state, /^(queued|deferred)$/);
    assert.deepEqual([cause?.code, cause?.message.includes(mine), cause?.message.includes(theirs)], ['update_required', true, true]);
    // The one command, where it is to be typed: here, or on the other host, which is the older one.
    const mends = here === a ? /update ax on this host; then: ax daemon restart; it then/ : /then, on versa, ax daemon restart; it then/;
    assert.match(cause.message, mends);
    const ping = await here.refused(['host', 'ping', there.name], 'update_required', 1, { program });
    assert.match(String(ping['message']), new RegExp(`that host runs ax ${version.replaceAll('.', '\\.')} `));
    assert.match(String(ping['fix']), /^update ax on (this|that) host$/);
    const { hosts } = await here.ok(['agent', 'sessions', there.name], { program });
    assert.equal(hosts[0]['state'], 'update_required');
    const overview = await here.ok(['admin', 'status'], { program });
    const told = JSON.stringify(overview['attention']);
    assert.equal(
      told.includes('without a common protocol') && told.includes(version) && told.includes('update ax on the older host'),
      true,
      told,
    );
  }
  await stop(b, other.program);
  await b.start();
  await a.untilStatus(sides[0]?.[4] ?? '', { state: 'accepted' });
  await b.untilStatus(sides[1]?.[4] ?? '', { state: 'accepted' });
});
