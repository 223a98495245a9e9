/**
 * `ax daemon backup` and `restore` with real daemons: what is in a backup, what is refused, and what a restore of an old one means on each
 * side of a conversation.
 */
import assert from 'node:assert/strict';
import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { STORE_SCHEMA } from '../../daemon/store/store.ts';
import { AX_VERSION } from '../../protocol/version.ts';
import { join2, makeBed, shellOf, until } from './hosts.ts';
import type { Bed, Host } from './hosts.ts';
import type { Json } from './processes.ts';

/** A message from the owner of one host to a folder on another (both may be the same). */
async function send(from: Host, to: string, workspace: string, body: string): Promise<string> {
  return String((await from.call('message.send', draft(workspace, body, to)))['message_id']);
}

function draft(workspace: string, body: string, host = 'Localhost'): Record<string, unknown> {
  const content = new Uint8Array(Buffer.from(body));
  return { host, workspace, harness: 'claude', kind: 'message', body: content, request_id: body.replaceAll(' ', '-') };
}

async function received(host: Host, workspace: string): Promise<readonly Json[]> {
  return (await host.ok(['messages', 'list', '--workspace', workspace]))['messages'] as Json[];
}

/** State by id; two rows of one id are one too many. */
function statesOf(rows: readonly Json[]): Record<string, unknown> {
  const states = Object.fromEntries(rows.map((row) => [String(row['message_id']), row['state']]));
  assert.equal(Object.keys(states).length, rows.length);
  return states;
}

/** Every file below a folder with its bytes. */
function picture(folder: string): Record<string, string> {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return Object.fromEntries(
    files.map((entry) => [join(entry.parentPath, entry.name), readFileSync(join(entry.parentPath, entry.name)).toString('base64')]),
  );
}

const ARGS = { args: ['--listen', '/ip4/127.0.0.1/tcp/0'] };

/** Two paired hosts, and a place for backups. */
async function pair(bed: Bed): Promise<readonly [Host, Host, string]> {
  const [a, b] = await bed.pair();
  return [a, b, join(bed.folder, 'backup')];
}

test('a backup holds what the daemon held at one moment, is for its owner only, and restores to the same host elsewhere', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const workspace = host.workspace('w');
  writeFileSync(join(host.stateDir, 'config.json'), '{"limits":{"min_free_bytes":1048576}}');
  const ids = await Promise.all(Array.from({ length: 20 }, (_, i) => send(host, 'Localhost', workspace, `body ${i}`)));
  const place = join(bed.folder, 'backup');
  let isDone = false;
  const more = (async () => {
    for (let i = 0; !isDone; i++) await host.call('message.send', draft(workspace, `more-${i}`));
  })();
  const made = await host.ok(['daemon', 'backup', place, '--with-key']);
  isDone = true;
  await more;
  const { made_at: madeAt, bytes, ...rest } = made;
  assert.deepEqual(rest, {
    schema_version: '1',
    ok: true,
    type: 'daemon_backup',
    path: place,
    version: AX_VERSION,
    schema: STORE_SCHEMA,
    host_id: host.hostId,
    with_key: true,
  });
  assert.equal(Number(bytes) > 0 && Math.abs(Date.parse(String(madeAt)) - Date.now()) < 60_000, true);
  assert.deepEqual(readdirSync(place).toSorted(), ['backup.json', 'config.json', 'host.key', 'store']);
  assert.deepEqual(readdirSync(join(place, 'store')).toSorted(), ['data.mdb', 'format']);
  for (const entry of ['.', ...readdirSync(place, { recursive: true })].map(String)) {
    const { mode } = lstatSync(join(place, entry));
    assert.equal(mode & 0o777, lstatSync(join(place, entry)).isDirectory() ? 0o700 : 0o600, entry);
  }
  assert.deepEqual(readdirSync(bed.folder).toSorted(), ['backup', 'hosta']);
  await host.stop();
  const other = bed.host('hostb');
  const restored = await other.ok(['daemon', 'restore', place]);
  assert.deepEqual(
    [restored['type'], restored['host_id'], restored['kept'], restored['key'], restored['config'], restored['made_at']],
    ['daemon_restored', host.hostId, null, 'backup', 'backup', madeAt],
  );
  assert.equal(statSync(join(other.stateDir, 'host.key')).mode & 0o777, 0o600);
  await other.start(ARGS);
  assert.equal(other.hostId, host.hostId);
  for (const id of ids) assert.equal((await other.status(id))['side'], 'local');
  assert.deepEqual(
    readdirSync(other.stateDir).filter((name) => /^restor|^store\./.test(name)),
    [],
  );
  const { events } = await other.ok(['admin', 'events']);
  assert.equal(events.filter((event: Json) => event['type'] === 'daemon.restored').length, 1);
});

test('without --with-key the key is not in it, and both commands say what that means', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const place = join(bed.folder, 'backup');
  mkdirSync(place); // an empty folder will do
  const open = await host.ax(['daemon', 'backup', place]);
  assert.equal(open.status, 0, open.stderr);
  assert.match(open.stdout, /without the host key/);
  assert.equal(existsSync(join(place, 'host.key')), false);
  assert.equal(statSync(place).mode & 0o777, 0o700);
  const secret = await host.ax(['daemon', 'backup', `${place}2`, '--with-key']);
  assert.match(secret.stderr, /the host key is in it: whoever reads .* can pass for this host/);
  const other = bed.host('hostb');
  const error = await other.refused(['daemon', 'restore', place], 'invalid_state');
  assert.match(String(error['message']), /made without the host key, and there is none/);
  assert.equal(existsSync(join(other.stateDir, 'store')), false);
});

test('a backup goes into no folder that holds something, through no link, not into the state folder, and leaves nothing when it fails', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const full = join(bed.folder, 'full');
  mkdirSync(full);
  writeFileSync(join(full, 'x'), 'mine');
  symlinkSync(bed.folder, join(bed.folder, 'link'));
  assert.match(String((await host.refused(['daemon', 'backup', full], 'invalid_state'))['message']), /not empty/);
  await host.refused(['daemon', 'backup', join(bed.folder, 'link')], 'invalid_state');
  await host.refused(['daemon', 'backup', join(full, 'x')], 'invalid_state');
  await host.refused(['daemon', 'backup', join(bed.folder, 'none', 'deep')], 'invalid_argument');
  await host.refused(['daemon', 'backup', join(host.stateDir, 'b')], 'invalid_argument');
  await host.refused(['daemon', 'backup', '/proc/backup'], 'invalid_argument');
  assert.deepEqual(readdirSync(bed.folder).toSorted(), ['full', 'hosta', 'link']);
  assert.deepEqual(readdirSync(full), ['x']);
});

test("an agent's shell neither makes a backup nor restores one unless the owner said so", async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const session = await host.session(host.workspace('w'), { autorun: false });
  const env = shellOf(session);
  const place = join(bed.folder, 'backup');
  await host.refused(['daemon', 'backup', place], 'invalid_state', 1, { env });
  await host.refused(['daemon', 'restore', place], 'invalid_state', 1, { env });
  assert.equal(existsSync(place), false);
  await host.ok(['daemon', 'backup', place, '--as-owner'], { env });
  assert.equal(existsSync(join(place, 'backup.json')), true);
});

test('a restore is refused while a daemon runs, from what is no backup, of another host and of a newer ax, and changes nothing', async (t) => {
  const bed = makeBed(t);
  const [a, b, place] = await pair(bed);
  await a.ok(['daemon', 'backup', place]);
  const running = await a.refused(['daemon', 'restore', place], 'invalid_state');
  assert.match(String(running['message']), new RegExp(`process ${a.pid}`));
  assert.match(String(running['fix']), /daemon stop$/);
  await Promise.all([a.stop(), b.stop()]);
  const before = [picture(join(a.stateDir, 'store')), picture(join(b.stateDir, 'store'))];
  const other = await b.refused(['daemon', 'restore', place], 'invalid_state');
  assert.match(String(other['message']), new RegExp(`backup of the host ${a.hostId}, and this state folder is the host ${b.hostId}`));
  await a.refused(['daemon', 'restore', bed.folder], 'invalid_argument');
  await a.refused(['daemon', 'restore', join(bed.folder, 'none')], 'invalid_argument');
  const record = readFileSync(join(place, 'backup.json'), 'utf8');
  writeFileSync(join(place, 'backup.json'), record.replace(/"schema":\d+/, '"schema":99'));
  assert.match(String((await a.refused(['daemon', 'restore', place], 'update_required'))['message']), /schema 99; this ax knows/);
  writeFileSync(join(place, 'backup.json'), '{"made_at":"\u001b[31m"}');
  await a.refused(['daemon', 'restore', place], 'invalid_argument');
  writeFileSync(join(place, 'backup.json'), record);
  writeFileSync(join(place, 'store', 'data.mdb'), Buffer.alloc(50_000, 7));
  await a.refused(['daemon', 'restore', place], 'store_corrupt');
  assert.deepEqual([picture(join(a.stateDir, 'store')), picture(join(b.stateDir, 'store'))], before);
  assert.deepEqual(
    readdirSync(a.stateDir).filter((name) => /^restor|^store\./.test(name)),
    [],
  );
});

test('the store that was there is kept beside the restored one, each time under a name of its own', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('hosta');
  const place = join(bed.folder, 'backup');
  await host.ok(['daemon', 'backup', place]);
  const id = await send(host, 'Localhost', host.workspace('w'), 'after the backup');
  await host.stop();
  const now = picture(join(host.stateDir, 'store'));
  const first = await host.ok(['daemon', 'restore', place]);
  assert.deepEqual([first['kept'], first['key'], first['config']], [join(host.stateDir, 'store.before-restore'), 'here', 'none']);
  assert.deepEqual(Object.values(picture(String(first['kept']))), Object.values(now));
  const second = await host.ok(['daemon', 'restore', place]);
  assert.equal(second['kept'], join(host.stateDir, 'store.before-restore-2'));
  await host.start(ARGS);
  await host.refused(['admin', 'status', id], 'message_not_found');
});

test('a receiver that goes back: what its peers hold for settled is not doubled, what was read since is unread again, new ones come', async (t) => {
  const bed = makeBed(t);
  const [a, b, place] = await pair(bed);
  const workspace = b.workspace('w');
  const session = await b.session(workspace, { autorun: false });
  const env = shellOf(session);
  await b.ok(['agent', 'setup', '--name', 'reader', '--workspace', workspace], { env, cwd: workspace });
  const early = await send(a, 'hostb', workspace, 'read after the backup');
  await a.untilStatus(early, { state: 'accepted' });
  await b.ok(['daemon', 'backup', place]);
  await b.ok(['messages', 'fetch', early], { env, cwd: workspace });
  await a.untilStatus(early, { state: 'fetched' });
  const lost = await send(a, 'hostb', workspace, 'accepted after the backup');
  await a.untilStatus(lost, { state: 'accepted' });
  await b.stop();
  const waiting = await send(a, 'hostb', workspace, 'sent while it was down');
  await b.ok(['daemon', 'restore', place]);
  await b.start();
  await a.untilStatus(waiting, { state: 'accepted' });
  const rows = await received(b, workspace);
  assert.deepEqual(statesOf(rows), { [early]: 'available', [waiting]: 'available' });
  // The sender's end stands, and reading it again is no error on either side.
  assert.equal((await a.status(early))['state'], 'fetched');
  assert.equal((await a.status(lost))['state'], 'accepted');
  const again = await b.ok(['messages', 'fetch', early], { env, cwd: workspace });
  assert.equal(again['body'], 'read after the backup');
  await b.untilStatus(early, { state: 'fetched' });
  await b.ok(['messages', 'fetch', waiting], { env, cwd: workspace });
  await a.untilStatus(waiting, { state: 'fetched' });
  assert.equal((await a.status(early))['state'], 'fetched');
});

test('a sender that goes back offers again what was waiting, its receiver keeps one copy, and nothing is called certain meanwhile', async (t) => {
  const bed = makeBed(t);
  const [a, b, place] = await pair(bed);
  const workspace = b.workspace('w');
  await b.stop();
  await until('the receiver to be down', async () => {
    const { hosts } = await a.call<{ hosts: { state: string }[] }>('host.list');
    return hosts[0]?.state === 'down' ? true : JSON.stringify(hosts);
  });
  const ids = [await send(a, 'hostb', workspace, 'one'), await send(a, 'hostb', workspace, 'two')];
  const [one = '', two = ''] = ids;
  assert.equal((await a.status(two))['uncertain'], false);
  await a.ok(['daemon', 'backup', place]);
  await b.start();
  for (const id of ids) await a.untilStatus(id, { state: 'accepted' });
  await a.stop();
  await b.stop();
  await a.ok(['daemon', 'restore', place]);
  await a.start();
  // It has left, which this store does not know: a cancel may not be called done.
  for (const id of ids) assert.equal((await a.status(id))['uncertain'], true);
  assert.equal((await a.ok(['admin', 'cancel', two]))['state'], 'cancel_requested');
  await b.start();
  await a.untilStatus(one, { state: 'accepted' });
  await a.untilStatus(two, { state: 'cancelled' });
  const rows = await received(b, workspace);
  assert.deepEqual(statesOf(rows), { [one]: 'awaiting_setup', [two]: 'cancelled' });
});

test('a host that was paired after the backup is a stranger again, and pairing anew is all it takes', async (t) => {
  const bed = makeBed(t);
  const [a, b] = [await bed.running('hosta'), await bed.running('hostb')];
  const place = join(bed.folder, 'backup');
  await a.ok(['daemon', 'backup', place]);
  await join2(a, b);
  await a.stop();
  await a.ok(['daemon', 'restore', place]);
  await a.start();
  assert.deepEqual((await a.ok(['host', 'list']))['hosts'], []);
  const invite = await b.ok(['host', 'invite']);
  await a.ok(['host', 'join', '-'], { stdin: `${String(invite['code'])}\n` });
  await a.untilUp(b);
  rmSync(place, { recursive: true });
});
