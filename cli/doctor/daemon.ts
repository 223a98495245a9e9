/**
 * The daemon as it answers: whether it does, which version it is, and what it knows to be wrong.
 *
 * Owns the ids of what the daemon tells in words, and the judgement of addresses. A daemon that is down, silent, foreign or of another
 * version is a finding and no error of the doctor's; it is asked only to read, never started and never stopped.
 */
import { createConnection } from 'node:net';
import { join } from 'node:path';
import type { AdminStatus, AttentionCode, EventRow } from '../../protocol/control.ts';
import { toAxError } from '../../protocol/errors.ts';
import type { AxError } from '../../protocol/errors.ts';
import { USUAL_PORT } from '../../protocol/limits.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { call } from '../client.ts';
import { axCommand } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { readyFix } from '../failure.ts';
import { greet, lastFlags } from '../launch.ts';
import type { Hello } from '../launch.ts';
import { lockHolder } from '../lock-holder.ts';
import { ago, listed } from '../output.ts';
import { asFields } from '../plain-cbor.ts';
import { awaiting } from '../wait.ts';
import { startCommand } from './files.ts';
import { finding, readText } from './finding.ts';
import type { Finding, Severity } from './finding.ts';

const PORT_TIMEOUT_MS = 300;
const USUAL_LISTEN = [`/ip4/0.0.0.0/tcp/${USUAL_PORT}`];

export interface DaemonSeen {
  readonly findings: readonly Finding[];
  /** It answers, and in this control protocol. */
  readonly isUp: boolean;
  /** Wall-clock ms of the newest thing the daemon has written down; undefined when it did not say. */
  readonly newestAt: number | undefined;
}

/** Asks the daemon for everything it knows to be wrong. Never throws an AxError: what it would say is a finding. */
export async function daemonFindings(environment: Environment, isWsl: boolean): Promise<DaemonSeen> {
  const seen = (...findings: Finding[]): DaemonSeen => ({ findings, isUp: false, newestAt: undefined });
  let hello: Hello | undefined;
  try {
    hello = await awaiting('the daemon to answer', greet(environment));
  } catch (error) {
    return seen(unusable(environment, toAxError(error)));
  }
  if (hello === undefined) return seen(...(await downFindings(environment)));
  const versions = versionFindings(environment, hello);
  if (hello.protocol !== CONTROL_PROTOCOL) return seen(...versions);
  try {
    const told = await toldFindings(environment, isWsl);
    return { findings: [...versions, ...told.findings], isUp: true, newestAt: told.newestAt };
  } catch (error) {
    const failed = toAxError(error);
    const fix = failed.fix ?? axCommand(environment.ax, 'daemon', 'logs');
    return seen(...versions, finding('error', 'daemon_failed', `the daemon cannot say how it is: ${failed.message}`, fix));
  }
}

function unusable(environment: Environment, error: AxError): Finding {
  if (error.code === 'sandboxed') return finding('error', 'sandboxed', error.message, error.fix ?? 'run it outside the sandbox');
  if (error.code !== 'timeout') return finding('error', 'daemon_foreign', error.message, error.fix ?? startCommand(environment));
  const holder = lockHolder(environment);
  if (holder?.isStopped === true)
    return finding(
      'error',
      'daemon_silent',
      `the daemon (process ${holder.pid}) is stopped and answers nothing`,
      `kill -CONT ${holder.pid}`,
    );
  const who = holder === undefined ? '' : ` (process ${holder.pid})`;
  const fix = holder === undefined ? axCommand(environment.ax, 'daemon', 'logs') : `kill ${holder.pid}`;
  return finding('error', 'daemon_silent', `the daemon${who} takes connections at ${environment.socketPath} and answers nothing`, fix);
}

async function downFindings(environment: Environment): Promise<Finding[]> {
  const holder = lockHolder(environment);
  if (holder !== undefined) {
    const what = `a daemon (process ${holder.pid}) holds ${environment.stateDir}, but nothing answers at ${environment.socketPath}`;
    return [finding('error', 'daemon_unreachable', what, `kill ${holder.pid} && ${startCommand(environment)}`)];
  }
  const down = finding('error', 'daemon_down', `no daemon answers at ${environment.socketPath}`, startCommand(environment));
  const wanted = wantedListen(environment);
  const taken = await Promise.all(wanted.map(isTaken));
  const ports = wanted.filter((_address, i) => taken[i]);
  if (ports.length === 0) return [down];
  const other = axCommand(environment.ax, 'daemon', 'start', '--listen', '/ip4/0.0.0.0/tcp/19300');
  return [down, finding('error', 'port_taken', `another program listens on ${ports.join(', ')}: the daemon cannot`, other)];
}

/** Where a daemon that is started now would listen: the flags of the last start, else the settings, else the default. */
function wantedListen(environment: Environment): readonly string[] {
  const { listen } = lastFlags(environment);
  if (listen.length > 0) return listen;
  try {
    const value = asFields(JSON.parse(readText(join(environment.stateDir, 'config.json')) ?? '{}'), 'settings')['listen'];
    return Array.isArray(value) ? value.filter((entry) => typeof entry === 'string') : USUAL_LISTEN;
  } catch {
    return USUAL_LISTEN; // what is wrong with the settings is a finding of its own
  }
}

/** Does something take connections there now? */
async function isTaken(address: string): Promise<boolean> {
  const match = /^\/(ip[46])\/([^/]+)\/tcp\/([1-9]\d*)$/.exec(address);
  if (match === null) return false;
  const [, family, ip = '', port] = match;
  const host = ip === '0.0.0.0' ? '127.0.0.1' : ip === '::' ? '::1' : ip;
  const socket = createConnection({ host, port: Number(port), family: family === 'ip4' ? 4 : 6, timeout: PORT_TIMEOUT_MS });
  try {
    return await new Promise<boolean>((resolve) => {
      socket.once('connect', () => resolve(true));
      socket.once('error', () => resolve(false));
      socket.once('timeout', () => resolve(false));
    });
  } finally {
    socket.destroy();
  }
}

function versionFindings(environment: Environment, hello: Hello): Finding[] {
  if (hello.version === AX_VERSION && hello.protocol === CONTROL_PROTOCOL) return [];
  const what = `the running daemon is ax ${hello.version} (control protocol ${hello.protocol}), this command ax ${AX_VERSION} (${CONTROL_PROTOCOL})`;
  const severity = hello.protocol === CONTROL_PROTOCOL ? 'warning' : 'error';
  return [finding(severity, 'daemon_version', what, axCommand(environment.ax, 'daemon', 'restart'))];
}

async function toldFindings(environment: Environment, isWsl: boolean): Promise<DaemonSeen> {
  const quiet = { what: null };
  const [overview, own, log] = await awaiting(
    'the daemon to say how it is',
    Promise.all([
      call<AdminStatus>(environment, 'admin.status', {}, quiet),
      call<{ addresses: string[] }>(environment, 'host.id', {}, quiet),
      call<{ events: EventRow[] }>(environment, 'admin.events', { limit: 1 }, quiet),
    ]),
  );
  const times = [...log.events.map((event) => event.at), ...overview.hosts.map((host) => host.last_seen_at ?? 0)];
  const findings = [
    ...listenFindings(environment, overview.daemon.listen, own.addresses, isWsl),
    ...attentionFindings(environment, overview),
    ...peerFindings(overview),
  ];
  return { findings, isUp: true, newestAt: times.length === 0 ? undefined : Math.max(...times) };
}

// --- addresses -----------------------------------------------------------------------------------------------------------

const LOOPBACK = /^\/(?:ip4\/(?:127|169\.254)\.|ip6\/(?:::1\/|fe80:)|dns[46]?\/localhost\/)/i;
const PRIVATE =
  /^\/(?:ip4\/(?:10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.)|ip6\/f[cd][0-9a-f]{2}:)/i;

/** What others can dial of `listen`, or of what is announced in its place (`told`: whole addresses with the host id). */
export function listenFindings(environment: Environment, listen: readonly string[], told: readonly string[], isWsl: boolean): Finding[] {
  const dialled = told.map((address) => address.replace(/\/p2p\/[^/]*$/, ''));
  const announced = dialled.filter((address) => !listen.includes(address));
  const far = (announced.length > 0 ? announced : listen).filter((address) => !LOOPBACK.test(address));
  const announce = `set "announce" in ${join(environment.stateDir, 'config.json')} to the address that others can dial`;
  // On the port it has: paired hosts know that one, and another daemon may have the usual one.
  const port = /\/tcp\/\d+/.exec(listen[0] ?? '')?.[0];
  const usual = USUAL_LISTEN.map((address) => (port === undefined ? address : address.replace(/\/tcp\/\d+/, port)));
  const everywhere = axCommand(environment.ax, 'daemon', 'restart', '--listen', ...usual);
  if (listen.length === 0)
    return [finding('info', 'listen_none', 'the daemon listens nowhere: this host dials others, none dials it', everywhere)];
  if (far.length === 0)
    return [finding('warning', 'listen_loopback', 'the daemon listens on this machine only: no other host can reach it', everywhere)];
  if (announced.length > 0 || far.some((address) => !PRIVATE.test(address))) return [];
  if (isWsl)
    return [
      finding(
        'warning',
        'listen_wsl',
        `the daemon listens on addresses inside WSL only (${listed(far)}): other machines cannot reach them`,
        `set networkingMode=mirrored in .wslconfig, or forward the port in Windows and ${announce}`,
      ),
    ];
  return [
    finding(
      'info',
      'listen_private',
      `the daemon listens on private addresses only (${listed(far)}): hosts of other networks cannot reach it`,
      `where one is to reach it: forward the port and ${announce}`,
    ),
  ];
}

// --- what the daemon says in words ---------------------------------------------------------------------------------------

/** Rows whose code is the id of a finding; every other row of the daemon's is `attention`. */
const KNOWN: Partial<Record<AttentionCode, Severity>> = {
  host_id_twice: 'error',
  peer_update_required: 'warning',
  peer_wrong_key: 'error',
  peer_untrusted: 'warning',
};
/** Rows that tell what happened, or is meant so, and ask for nothing: they make no doctor sick. */
const TOLD_ONLY: ReadonlySet<AttentionCode> = new Set<AttentionCode>(['message_refused', 'refused_here', 'agent_quiet']);
/** Found by the doctor itself, also while the daemon is down. */
const FOUND_ELSEWHERE: AttentionCode = 'disk_low';

function attentionFindings(environment: Environment, { attention, daemon }: AdminStatus): Finding[] {
  const rows = attention.filter((row) => row.code !== FOUND_ELSEWHERE);
  const warnings = daemon.warnings.filter((warning) => !rows.some((row) => row.what === warning));
  return [
    ...rows.map(({ code, what, since, fix }) => {
      const severity = KNOWN[code];
      return finding(
        severity ?? (TOLD_ONLY.has(code) ? 'info' : 'warning'),
        severity === undefined ? 'attention' : code,
        `${what}${since === null ? '' : ` (${ago(since)})`}`,
        readyFix(fix, axCommand(environment.ax)),
      );
    }),
    ...warnings.map((warning) => finding('warning', 'daemon_warning', warning, axCommand(environment.ax, 'admin', 'status'))),
  ];
}

function peerFindings({ hosts }: AdminStatus): Finding[] {
  const others = hosts.filter((host) => host.version !== null && host.version !== AX_VERSION && host.state !== 'update_required');
  if (others.length === 0) return [];
  const named = listed(others.map((host) => `${host.name} runs ax ${host.version}`));
  return [finding('info', 'peer_version', `${named}; this host runs ax ${AX_VERSION}`, 'nothing need be done: they work together')];
}
