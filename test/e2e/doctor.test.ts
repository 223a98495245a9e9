// `ax doctor` with real daemons: clean, never started, stopped by a signal, without its socket, copied, and that it changes nothing.
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { isAlive } from './processes.ts';
import { makeBed, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';

/** Exit status and findings; every finding has something that can be done. */
async function doctor(host: Host): Promise<{ status: number | null; findings: readonly Json[]; told: readonly string[] }> {
  // A machine may have an ax of its own on the usual PATH: that is another test's.
  const bin = join(host.home, 'bin');
  mkdirSync(bin, { recursive: true });
  const outcome = await host.ax(['--format', 'json', 'doctor'], { env: { PATH: bin } });
  const findings = outcome.json['findings'] as Json[];
  for (const one of findings) assert.equal(typeof one['fix'] === 'string' && one['fix'] !== '', true, JSON.stringify(one));
  const told = findings.filter((one) => one['id'] !== 'path_missing').map((one) => `${one['severity']} ${one['id']}`);
  return { status: outcome.status, findings, told };
}

/** Everything below a folder with mode, size and time of its last change. */
function picture(folder: string): readonly string[] {
  const paths = readdirSync(folder, { recursive: true }).map((name) => join(folder, String(name)));
  return paths.toSorted().map((path) => {
    const { mode, size, mtimeMs } = statSync(path);
    return `${path} ${mode} ${size} ${mtimeMs}`;
  });
}

/** A host that tells others another address than the loopback one it listens on in a test. */
async function announced(host: Host): Promise<Host> {
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  writeFileSync(join(host.stateDir, 'config.json'), JSON.stringify({ announce: ['/dns4/ax.example/tcp/4001'] }), { mode: 0o600 });
  await host.start();
  return host;
}

test('a running host that others can reach is clean: status 0; on loopback only it is not', async (t) => {
  const bed = makeBed(t);
  const host = await announced(bed.host('hosta'));
  assert.deepEqual(await doctor(host).then(({ status, told }) => [status, told]), [0, []]);
  rmSync(join(host.stateDir, 'config.json'));
  await host.restart();
  assert.deepEqual(await doctor(host).then(({ status, told }) => [status, told]), [1, ['warning listen_loopback']]);
});

test('without a daemon that is the finding, with the command that starts one; nothing is made, started or changed', async (t) => {
  const bed = makeBed(t);
  const host = bed.host('hosta');
  const fresh = await doctor(host);
  assert.deepEqual([fresh.status, fresh.told[0]], [1, 'error daemon_down']);
  assert.match(String(fresh.findings[0]?.['fix']), /daemon start$/);
  assert.throws(() => statSync(host.stateDir), /ENOENT/);
  await host.start();
  await host.stop();
  const before = picture(host.stateDir);
  const stopped = await doctor(host);
  assert.deepEqual([stopped.status, stopped.told], [1, ['error daemon_down']]);
  assert.deepEqual(picture(host.stateDir), before);
});

test('a stopped process, and one whose socket was removed, are told from a daemon that is down, with the command for each', async (t) => {
  const bed = makeBed(t);
  const host = await announced(bed.host('hosta'));
  const { pid } = host;
  process.kill(pid, 'SIGSTOP');
  await until('the daemon to be stopped', async () => {
    const state = /\) ([A-Za-z])/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1'))?.[1] ?? '';
    return state === 'T' ? true : state;
  });
  const silent = await doctor(host);
  assert.deepEqual([silent.status, silent.told], [1, ['error daemon_silent']]);
  assert.equal(silent.findings[0]?.['fix'], `kill -CONT ${pid}`);
  process.kill(pid, 'SIGCONT');
  assert.deepEqual((await doctor(host)).told, []);
  rmSync(host.socketPath);
  const deaf = await doctor(host);
  assert.deepEqual([deaf.status, deaf.told], [1, ['error daemon_unreachable']]);
  assert.match(String(deaf.findings[0]?.['fix']), new RegExp(`^kill ${pid} && `));
  assert.equal(isAlive(pid), true);
});

test('the same host id in two places is found on the copied host and on its peer', async (t) => {
  const bed = makeBed(t);
  const [peer, original] = await bed.pair('peer', 'original');
  const copy = bed.host('copy');
  mkdirSync(copy.stateDir, { recursive: true, mode: 0o700 });
  copyFileSync(join(original.stateDir, 'host.key'), join(copy.stateDir, 'host.key'));
  await copy.start();
  await copy.ok(['host', 'add', 'peer', `${peer.listen[0]}/p2p/${peer.hostId}`]);
  await until(
    'both sides to know',
    async () => {
      for (const host of [original, copy]) await host.ax(['host', 'ping', 'peer', '--count', '1']);
      const told = await Promise.all([doctor(peer), doctor(original)]);
      return told.every((one) => one.told.includes('error host_id_twice')) ? true : JSON.stringify(told.map((one) => one.told));
    },
    40_000,
  );
});

test('a peer that does not know this host is found, with what to type there', async (t) => {
  const bed = makeBed(t);
  const [one, other] = [await bed.running('one'), await bed.running('other')];
  await one.ok(['host', 'add', 'other', `${other.listen[0]}/p2p/${other.hostId}`]);
  await until('it to be told', async () => {
    const { told } = await doctor(one);
    return told.includes('warning peer_untrusted') ? true : told.join(', ');
  });
});
