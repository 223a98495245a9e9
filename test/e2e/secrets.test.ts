/**
 * Secrets and private files: what may never be seen of a pairing and a message by anyone who can look at processes, logs, JSON or files, and
 * what a umask or a symbolic link planted in the state folder cannot change.
 */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { readCode } from '../../daemon/pairing.ts';
import { makeBed } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';

const MARK = 'b0dy-m4rk-7c1f';
const SUBJECT = 'subj3ct-m4rk-9d2e';

/** Arguments and environment of every process of the bed, looked at again and again until `stop`. */
function watchProcesses(folder: string): { stop: () => string } {
  const seen = new Set<string>();
  const timer = setInterval(() => {
    for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)) {
      try {
        const environ = readFileSync(`/proc/${pid}/environ`, 'latin1');
        if (environ.includes(folder)) seen.add(environ).add(readFileSync(`/proc/${pid}/cmdline`, 'latin1'));
      } catch {
        continue; // it has ended, or is another user's
      }
    }
  }, 5);
  return { stop: () => (clearInterval(timer), [...seen].join('\n')) };
}

/** Every file below a folder, as text. */
function contents(folder: string, without: RegExp): [string, string][] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry): [string, string] => [join(entry.parentPath, entry.name), readFileSync(join(entry.parentPath, entry.name), 'latin1')])
    .filter(([path]) => !without.test(path));
}

const forms = (bytes: Uint8Array): string[] => {
  const buffer = Buffer.from(bytes);
  return [buffer.toString('latin1'), buffer.toString('hex'), buffer.toString('base64'), buffer.toString('base64url')];
};

test('keys, pairing codes, bodies and subjects are in no argument, environment, log, JSON of another command, or file but where they belong', async (t) => {
  const bed = makeBed(t);
  const [a, b] = await Promise.all([bed.running('hosta'), bed.running('hostb')]);
  const watch = watchProcesses(bed.folder);
  const code = String((await a.ok(['host', 'invite']))['code']);
  await b.ok(['host', 'join', '-'], { stdin: `${code}\n` });
  await Promise.all([a.untilUp(b), b.untilUp(a)]);
  const workspace = b.workspace('w');
  const words = ['send', '--host', 'hostb', '--destination-workspace', workspace, '--harness', 'claude'];
  const outputs: string[] = [];
  const subject = join(a.home, 'long');
  writeFileSync(subject, MARK.repeat(2000));
  for (const stdin of [MARK, undefined]) {
    const sent = await a.ax(
      ['--format', 'json', ...words, '--file', stdin === undefined ? subject : '-'],
      stdin === undefined ? {} : { stdin },
    );
    outputs.push(sent.stdout, sent.stderr);
    await b.untilStatus(String(sent.json['message_id']), { state: 'awaiting_setup' });
  }
  const id = String(((await b.ok(['messages', 'list', '--all']))['messages'] as Json[])[0]?.['message_id']);
  for (const host of [a, b])
    for (const args of [
      ['host', 'list'],
      ['host', 'show', host === a ? 'hostb' : 'hosta'],
      ['host', 'id'],
      ['agent', 'sessions'],
      ['messages', 'list', '--all'],
      ['messages', 'show', id],
      ['admin', 'status'],
      ['admin', 'events'],
      ['daemon', 'status'],
      ['daemon', 'logs'],
      ['doctor'],
      ['completion', 'bash'],
    ]) {
      const shown = await host.ax(['--format', 'json', ...args]);
      outputs.push(shown.stdout, shown.stderr);
    }
  const processes = watch.stop();
  assert.ok(processes.includes('daemon.mjs') && processes.includes('ax.cjs'), 'processes were seen at all');
  const { secret, invite } = readCode(code);
  const keys = [a, b].flatMap((host) => forms(new Uint8Array(readFileSync(join(host.stateDir, 'host.key')))));
  const secrets = [code, code.slice(4), ...forms(secret), ...keys, MARK];
  const places: [string, string][] = [
    ['an argument or the environment', processes],
    ['the logs', a.log + b.log],
    ['JSON', outputs.join('\n')],
    ...[a, b].flatMap((host) => contents(host.stateDir, /\/(host\.key|lock\.mdb)$/)),
  ];
  for (const [place, text] of places)
    for (const found of secrets) assert.equal(text.includes(found), false, `${found.slice(0, 12)}... is in ${place}`);
  assert.ok(invite.length > 0);
});

test('a subject is sealed in the store, and shown to its two hosts alone', async (t) => {
  const bed = makeBed(t);
  const [a, b] = await bed.pair();
  const workspace = b.workspace('w');
  const sent = await a.ok([
    'send',
    '--host',
    'hostb',
    '--destination-workspace',
    workspace,
    '--harness',
    'claude',
    '--subject',
    SUBJECT,
    'x',
  ]);
  await b.untilStatus(String(sent['message_id']), { state: 'awaiting_setup' });
  assert.equal((await b.status(String(sent['message_id'])))['subject'], SUBJECT);
  for (const host of [a, b])
    for (const [path, text] of contents(host.stateDir, /never/)) assert.equal(text.includes(SUBJECT), false, `the subject is in ${path}`);
});

/** Every path below the state folder with the rights of others, if it has any. */
function open(host: Host): string[] {
  const inside = readdirSync(host.stateDir, { recursive: true, encoding: 'utf8' }).map((name) => join(host.stateDir, name));
  return [host.stateDir, ...inside].filter((path) => !lstatSync(path).isSymbolicLink() && (lstatSync(path).mode & 0o077) !== 0);
}

test('whatever the umask, and whatever a file was before, nothing in the state folder is for others', async (t) => {
  const bed = makeBed(t);
  for (const umask of ['000', '777']) {
    const host = bed.host(`u${umask}`, { prefix: ['sh', '-c', `umask ${umask}; exec "$0" "$@"`], listen: '/ip4/127.0.0.1/tcp/0' });
    await host.start();
    const workspace = host.workspace('w');
    const long = await host.call<{ message_id: string }>('message.send', {
      host: 'Localhost',
      workspace,
      harness: 'claude',
      kind: 'message',
      body: Buffer.alloc(40_000, 'x'),
      request_id: 'long',
    });
    const script = `umask ${umask}; exec "$0" "$@"`;
    const fetched = await host.ax(
      [
        '-c',
        script,
        process.execPath,
        join(import.meta.dirname, '..', '..', 'dist', 'ax.cjs'),
        'messages',
        'fetch',
        long.message_id,
        '--workspace',
        workspace,
      ],
      { program: ['sh'] },
    );
    assert.equal(fetched.status, 0, fetched.stderr);
    assert.deepEqual(open(host), [], `umask ${umask}`);
    await host.stop();
    for (const name of ['launch.json', 'config.json'])
      if (existsSync(join(host.stateDir, name))) chmodSync(join(host.stateDir, name), 0o666);
    chmodSync(host.stateDir, 0o777);
    await host.start();
    assert.deepEqual(
      open(host).filter((path) => !path.endsWith('config.json')),
      [],
      `umask ${umask}, again`,
    );
    await host.stop();
  }
});

test('links planted in the state folder are neither followed nor written through', async (t) => {
  const bed = makeBed(t);
  const host = await bed.running('links');
  await host.stop();
  const victim = join(bed.folder, 'victim');
  const trap = join(bed.folder, 'trap');
  mkdirSync(trap);
  const planted = [
    'launch.json',
    'launch.json.new',
    'daemon.log',
    'store/format.tmp',
    'store/space.tmp',
    'fetched',
    'control.sock',
    'sandbox',
  ];
  for (const name of planted) {
    writeFileSync(victim, 'untouched');
    const path = join(host.stateDir, name);
    rmSync(path, { recursive: true, force: true });
    symlinkSync(name === 'fetched' || name === 'sandbox' ? trap : victim, path);
    // Refused with a sentence, or served without touching what the link leads to: both are right.
    const started = await host.ax(['--format', 'json', 'daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0']);
    if (started.status === 0) {
      host.pid = Number(started.json['pid']);
      const workspace = host.workspace('w');
      const words = ['send', '--host', 'Localhost', '--destination-workspace', workspace, '--harness', 'claude', '--file', '-'];
      const sent = await host.ok(words, { stdin: 'x'.repeat(40_000) });
      await host.ax(['messages', 'fetch', String(sent['message_id']), '--workspace', workspace]);
      await host.ax(['agent', 'sandbox-fetch', 'on']);
      assert.equal((await host.ax(['daemon', 'stop'])).status, 0);
    } else assert.match(String(started.json['error']['message']), /link|not a|cannot|regular|ELOOP/i, name);
    assert.equal(readFileSync(victim, 'utf8'), 'untouched', name);
    assert.deepEqual(readdirSync(trap), [], name);
    rmSync(path, { recursive: true, force: true });
  }
});
