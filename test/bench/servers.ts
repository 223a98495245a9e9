/**
 * The two systems that ax is compared with, as servers of this run: Redis, and Postfix.
 *
 * Each is Debian's program with a configuration of its own in a temporary folder, on loopback, on a port that the system chose, in a process
 * group of its own that ends with this process at the latest. No service of the machine is started, stopped or touched.
 * Owns their settings, which are meant to show each at its best for the work: accept a message and have it on disk.
 */
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { killGroup, launch, runToEnd } from '../e2e/processes.ts';

const UP_LIMIT_MS = 15_000;
const ENV = { PATH: '/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin', LANG: 'C.UTF-8' };

/** Ends of what runs: Postfix's master is a session of its own, which nobody would end when this process is interrupted. */
const ends = new Set<() => void>();
process.on('exit', () => {
  for (const end of ends) end();
});

export interface Server {
  readonly port: number;
  readonly version: string;
  /** Ends its processes and removes its folder. */
  end(): void;
}

/** An append-only file that is synced before every answer: `appendfsync always`. Nothing else is written, and it is never rewritten. */
export async function startRedis(): Promise<Server> {
  const folder = mkdtempSync(join(tmpdir(), 'axr-'));
  const port = await freePort();
  const settings = {
    bind: '127.0.0.1',
    port,
    dir: folder,
    daemonize: 'no',
    save: '""',
    appendonly: 'yes',
    appendfsync: 'always',
    'auto-aof-rewrite-percentage': 0,
  };
  const text = Object.entries(settings).map(([key, value]) => `${key} ${value}\n`);
  writeFileSync(join(folder, 'redis.conf'), text.join(''));
  const child = launch('redis-server', [join(folder, 'redis.conf')], { env: ENV, cwd: folder, stdin: 'ignore' });
  const pid = child.pid ?? 0;
  const end = (): void => {
    ends.delete(end);
    killGroup(pid);
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  };
  ends.add(end);
  try {
    await untilConnects(port, 'Redis');
    return { port, version: await said('redis-server', ['--version'], /v=([\d.]+)/), end };
  } catch (error) {
    end();
    throw error;
  }
}

/**
 * Takes mail for `bench.invalid` from loopback, writes it to its queue, syncs it and holds it there: nothing is delivered.
 * The limits on clients, and the pause it makes when mail comes in faster than it leaves, are off. Needs root, as Postfix does.
 */
export async function startPostfix(): Promise<Server> {
  const folder = mkdtempSync(join(tmpdir(), 'axp-'));
  const port = await freePort();
  const config = join(folder, 'config');
  chmodSync(folder, 0o755); // its processes are another user's
  for (const made of [config, join(folder, 'queue'), join(folder, 'data')]) mkdirSync(made, { mode: 0o755 });
  chownSync(join(folder, 'data'), await idOf('postfix'), -1);
  writeFileSync(join(config, 'main.cf'), mainCf(folder));
  writeFileSync(join(config, 'master.cf'), MASTER_CF.replace('PORT', String(port)));
  const child = launch('postfix', ['-c', config, 'start-fg'], { env: ENV, cwd: folder, stdin: 'ignore' });
  const end = (): void => {
    ends.delete(end);
    // Its master is a session of its own.
    const file = join(folder, 'queue', 'pid', 'master.pid');
    const master = existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0;
    if (master > 1) killGroup(master);
    killGroup(child.pid ?? 0);
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  };
  ends.add(end);
  try {
    await untilConnects(port, 'Postfix');
    return { port, version: await said('postconf', ['-c', config, '-h', 'mail_version'], /([\d.]+)/), end };
  } catch (error) {
    const log = join(folder, 'log');
    const why = existsSync(log) ? readFileSync(log, 'utf8').slice(-2000) : '';
    end();
    throw new Error(`Postfix did not start: ${why}`, { cause: error });
  }
}

function mainCf(folder: string): string {
  return `
compatibility_level = 3.6
queue_directory = ${folder}/queue
data_directory = ${folder}/data
maillog_file = ${folder}/log
maillog_file_prefixes = ${folder}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = bench.invalid
mydestination = bench.invalid
mynetworks = 127.0.0.0/8
alias_maps =
alias_database =
local_recipient_maps =
smtpd_recipient_restrictions = check_client_access static:HOLD, permit_mynetworks, reject
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_client_connection_count_limit = 0
smtpd_peername_lookup = no
in_flow_delay = 0
default_process_limit = 300
`;
}

const MASTER_CF = `
127.0.0.1:PORT inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
error unix - - n - - error
local unix - n n - - local
postlog unix-dgram n - n - 1 postlogd
`;

/** A port nobody listens on; it could be taken before it is used, and then the server does not start and the run ends. */
async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => void probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => void probe.close(resolve));
  return port;
}

async function untilConnects(port: number, name: string): Promise<void> {
  const limit = performance.now() + UP_LIMIT_MS;
  for (;;) {
    const isUp = await new Promise<boolean>((resolve) => {
      const socket = createConnection({ port, host: '127.0.0.1' });
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
    if (isUp) return;
    if (performance.now() > limit) throw new Error(`${name} did not listen within ${UP_LIMIT_MS / 1000} s`);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}

async function said(command: string, args: readonly string[], pattern: RegExp): Promise<string> {
  const { stdout } = await runToEnd(command, args, { env: ENV, cwd: '/' });
  return pattern.exec(stdout)?.[1] ?? 'unknown';
}

async function idOf(user: string): Promise<number> {
  return Number((await runToEnd('id', ['-u', user], { env: ENV, cwd: '/' })).stdout);
}
