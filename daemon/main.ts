/**
 * The composition root: the only file that sees adapters and core together, and the daemon's whole life as a process.
 *
 * Owns the order: state folder, lock, key, store, link, harnesses, core, control socket, ready line. An operating error is one
 * record with its sentence and fix, and exit 1; anything unforeseen is logged and ends the process, which is safe because the store is.
 * Stderr holds JSON lines and nothing else; stdout one object (ready, or the error) when `--format json` asks for it.
 * Run by `ax daemon run` and `ax daemon start`; it scrubs nothing and asks nothing of its terminal.
 */
import { existsSync, readFileSync, realpathSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { networkInterfaces } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import pino from 'pino';
import { AxError, errorBody, toAxError } from '../protocol/errors.ts';
import { axCommand, requireNoticeSafe, USUAL_PATH } from '../protocol/notice.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { controlSocketPath, defaultStateDir } from '../protocol/paths.ts';
import { SCHEMA_VERSION } from '../protocol/version.ts';
import { createBackups } from './backup/folder.ts';
import { finishRestore } from './backup/restoring.ts';
import { createFifoBox } from './box/fifo.ts';
import { systemClock, systemRandom } from './clock/system.ts';
import { openHostKey, openStateDir, readConfig } from './config.ts';
import { serveControl } from './control/server.ts';
import { createDaemon } from './daemon.ts';
import { systemFiles } from './files/system.ts';
import { createClaudeHarness } from './harness/claude.ts';
import { createCodexHarness } from './harness/codex.ts';
import { createLibp2pLink } from './link/libp2p.ts';
import { takeLock } from './lock.ts';
import type { Lock } from './lock.ts';
import type { Log } from './log.ts';
import { migrate } from './migration.ts';
import { restAtTimes, thisProcess } from './rest.ts';
import { restore } from './restore.ts';
import { openLmdbStore } from './store/lmdb.ts';

const uid = process.getuid?.() ?? 0;

interface Flags {
  readonly stateDir: string;
  readonly listen: readonly string[];
  readonly name: string | undefined;
  readonly json: boolean;
  /** A backup to put in the place of the store, instead of running. */
  readonly restore: string | undefined;
}

function readFlags(): Flags {
  const { values } = parseArgs({
    options: {
      'state-dir': { type: 'string' },
      listen: { type: 'string', multiple: true },
      name: { type: 'string' },
      format: { type: 'string' },
      restore: { type: 'string' },
    },
  });
  const stateDir =
    values['state-dir'] ??
    defaultStateDir({ platform: process.platform, home: process.env['HOME'] ?? '/', xdgStateHome: process.env['XDG_STATE_HOME'] });
  return { stateDir, listen: values.listen ?? [], name: values.name, json: values.format === 'json', restore: values.restore };
}

function makeLog(): Log {
  const logger = pino({ base: null, timestamp: pino.stdTimeFunctions.isoTime, level: 'info' }, pino.destination({ fd: 2, sync: true }));
  return {
    debug: (event, fields) => logger.debug(fields ?? {}, event),
    info: (event, fields) => logger.info(fields ?? {}, event),
    warn: (event, fields) => logger.warn(fields ?? {}, event),
    error: (event, fields) => logger.error(fields ?? {}, event),
  };
}

/** How this installation's ax is called: `ax` when that is what a usual PATH finds, else the absolute path of its launcher. */
function findAx(stateDir: string): AxCommand {
  const here = dirname(fileURLToPath(import.meta.url));
  const own = join(here, '..', 'bin', 'ax');
  const launcher = join(here, '..', '..', '..', 'bin', 'ax'); // PREFIX/lib/ax/dist beside PREFIX/bin
  const isInstalled = here.endsWith('/lib/ax/dist') && existsSync(launcher);
  const path = isInstalled ? launcher : own;
  const usual = USUAL_PATH.some((folder) => {
    const candidate = join(folder, 'ax');
    return existsSync(candidate) && realpathSync(candidate) === realpathSync(path);
  });
  const usualDir = defaultStateDir({
    platform: process.platform,
    home: process.env['HOME'] ?? '/',
    xdgStateHome: process.env['XDG_STATE_HOME'],
  });
  const isDefault = existsSync(usualDir) && realpathSync(usualDir) === stateDir;
  return { program: usual ? 'ax' : path, ...(isDefault ? {} : { stateDir }) };
}

/** Addresses to listen on: without IPv6 when this machine has none, and with the port the system chose last time for a `tcp/0`. */
async function listenAddresses(wanted: readonly string[], portsFile: string): Promise<string[]> {
  const hasIpv6 = Object.values(networkInterfaces()).some((list) => list?.some((one) => one.family === 'IPv6') === true);
  const usable = wanted.filter((address) => hasIpv6 || wanted.length === 1 || !address.startsWith('/ip6/'));
  const chosen = readRecord(portsFile);
  return Promise.all(
    usable.map(async (address) => {
      const port = chosen[address];
      if (!address.endsWith('/tcp/0') || typeof port !== 'number' || !(await isFree(port))) return address;
      return address.replace(/\/tcp\/0$/, `/tcp/${port}`);
    }),
  );
}

/** What an earlier daemon noted for the next; a record that is missing, empty or damaged is an empty one, for none may stop a start. */
function readRecord(file: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(readFileSync(file, 'utf8'));
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

/** Writes such a record whole or not at all. That it cannot be written is logged, and the daemon goes on. */
function writeRecord(file: string, value: object, log: Log): void {
  try {
    const aside = `${file}.new`;
    rmSync(aside, { force: true });
    writeFileSync(aside, JSON.stringify(value), { mode: 0o600, flag: 'wx' });
    renameSync(aside, file);
  } catch (error) {
    log.warn('not noted for the next start', { file, reason: error instanceof Error ? error.message : String(error) });
  }
}

async function isFree(port: number): Promise<boolean> {
  const probe = createServer();
  try {
    probe.listen(port);
    await once(probe, 'listening');
    return true;
  } catch {
    return false; // in use, or not ours to take: the system chooses another
  } finally {
    probe.close();
  }
}

function rememberPorts(wanted: readonly string[], listening: readonly string[], portsFile: string, log: Log): void {
  const ports: Record<string, number> = {};
  for (const address of wanted) {
    if (!address.endsWith('/tcp/0')) continue;
    const prefix = address.slice(0, address.indexOf('/tcp/'));
    const found = listening.find((one) => one.startsWith(`${prefix}/tcp/`)) ?? listening[0];
    const port = found?.split('/tcp/')[1];
    if (port !== undefined) ports[address] = Number(port);
  }
  if (Object.keys(ports).length > 0) writeRecord(portsFile, ports, log);
}

/** The state folder, private and this process's own until the lock is released. */
async function openState(flags: Flags): Promise<{ readonly stateDir: string; readonly lock: Lock }> {
  process.umask(0o077);
  openStateDir(flags.stateDir, uid);
  const stateDir = realpathSync(flags.stateDir);
  requireNoticeSafe(stateDir, 'the path of the state folder');
  return { stateDir, lock: await takeLock(join(stateDir, 'daemon.lock'), { aliveFile: join(stateDir, 'store', 'data.mdb') }) };
}

async function run(flags: Flags, log: Log): Promise<void> {
  const { stateDir, lock } = await openState(flags);
  const isCutOff = existsSync(join(stateDir, 'restored'));
  finishRestore(stateDir);
  if (isCutOff) log.warn('a restore that was cut off was ended now');
  const config = readConfig(stateDir, flags, process.env);
  const key = openHostKey(stateDir, uid, (length) => systemRandom.bytes(length));
  const store = await openLmdbStore(join(stateDir, 'store'));
  await migrate(store, systemClock, log);
  const portsFile = join(stateDir, 'ports.json');
  const link = createLibp2pLink({ key, listen: await listenAddresses(config.listen, portsFile), clock: systemClock, log });
  const claude = createClaudeHarness({ configDirs: config.claudeConfigDirs, clock: systemClock, random: systemRandom, log });
  const codex = createCodexHarness({ codexHomes: config.codexHomes, clock: systemClock, random: systemRandom, log });
  const control = controlSocketPath(stateDir, uid);
  const box = createFifoBox({ stateDir, uid, clock: systemClock, random: systemRandom, log });
  const stopped = Promise.withResolvers<string>();
  const backups = createBackups({ stateDir, key, store, clock: systemClock });
  const host = { clock: systemClock, random: systemRandom, files: systemFiles, log, key };
  const seams = { ...host, store, link, harnesses: [claude, codex], box, backups };
  const daemon = createDaemon(seams, {
    name: config.name,
    announce: config.announce,
    limits: config.limits,
    ax: findAx(stateDir),
    control,
    pid: process.pid,
    onStop: () => stopped.resolve('asked'),
  });
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, () => stopped.resolve(signal));
  await daemon.start();
  writeRecord(join(stateDir, 'launch.json'), { listen: flags.listen, name: flags.name }, log);
  rememberPorts(config.listen, link.status().listen, portsFile, log);
  const server = await serveControl({
    path: control,
    call: (method, params, actor) => daemon.call(method, params, actor),
    log,
    clock: systemClock,
  });
  const ready = { host_id: key.hostId, name: config.name, listen: link.status().listen, control };
  if (flags.json) process.stdout.write(`${JSON.stringify({ schema_version: SCHEMA_VERSION, ok: true, type: 'daemon_ready', ...ready })}\n`);
  log.info('ready', ready);
  const wake = restAtTimes(systemClock, thisProcess());
  log.info('stopping', { reason: await stopped.promise });
  wake();
  setFlagsFromString('--no-concurrent-sparkplug'); // a thread that makes code can keep Node from ending (cli/large.ts)
  daemon.drain();
  await server.close();
  await daemon.stop();
  lock.release();
}

/** The answer goes to stdout, whatever the format: who asks is the CLI. */
async function runRestore(flags: Flags, folder: string, log: Log): Promise<void> {
  const { stateDir, lock } = await openState(flags).catch((error: unknown) => {
    const failed = toAxError(error);
    if (failed.details?.['pid'] === undefined) throw failed;
    const ax = findAx(realpathSync(flags.stateDir));
    throw new AxError(
      'invalid_state',
      `a daemon runs on this state folder (process ${String(failed.details['pid'])}); a restore needs it stopped`,
      {
        fix: axCommand(ax, 'daemon', 'stop'),
        details: failed.details,
      },
    );
  });
  const restored = await restore({ stateDir, backup: folder, uid, clock: systemClock, log });
  lock.release();
  process.stdout.write(`${JSON.stringify({ schema_version: SCHEMA_VERSION, ok: true, type: 'daemon_restored', ...restored })}\n`);
}

/**
 * Bodies are memory outside the engine's heap. By itself the engine walks its whole heap each time some MiB of these have come: with large
 * bodies under way ten times a second, half of all the processor time. So it counts them within the limit that it sets its heap anyway.
 * Only where that switch is known: another engine would complain on stderr.
 */
function countBuffersAsHeap(): void {
  if (process.versions.v8.startsWith('13.6.')) setFlagsFromString('--external-memory-accounted-in-global-limit');
}

/**
 * The network library sorts the names of its protocols as a dictionary of the owner's language would, for which Node loads 3 MiB of tables that
 * stay. Any fixed order does, and nothing else in this process compares by language.
 */
function compareWithoutLanguage(): void {
  const compare = function (this: string, other: string): number {
    return this < other ? -1 : this > other ? 1 : 0;
  };
  Object.defineProperty(String.prototype, 'localeCompare', { value: compare, configurable: true, writable: true });
}

function main(): void {
  countBuffersAsHeap();
  compareWithoutLanguage();
  const log = makeLog();
  const crash = (error: unknown): void => {
    log.error('crash', { reason: error instanceof Error ? (error.stack ?? error.message) : String(error) });
    process.exit(1);
  };
  process.on('uncaughtException', crash);
  process.on('unhandledRejection', crash);
  // Node's own way of telling a warning is not a line of JSON.
  process.removeAllListeners('warning');
  process.on('warning', (warning) => log.warn('warning', { reason: warning.message }));
  process.stdout.on('error', () => log.debug('nobody reads standard output'));
  const flags = readFlags();
  const work = flags.restore === undefined ? run(flags, log) : runRestore(flags, flags.restore, log);
  work.then(
    () => process.exit(0),
    (error: unknown) => {
      const failed = toAxError(error);
      log.error('cannot run', { code: failed.code, reason: failed.message, fix: failed.fix });
      const body = { schema_version: SCHEMA_VERSION, ok: false, type: 'error', error: errorBody(failed) };
      if (flags.json) process.stdout.write(`${JSON.stringify(body)}\n`, () => process.exit(1));
      else process.exit(1);
    },
  );
}

main();
