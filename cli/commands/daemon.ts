/**
 * `ax daemon`: run, start, stop, restart, status, logs; install and backup are files of their own.
 *
 * Owns what counts as started and stopped for a person. `stop` uses only the frozen methods, so that any ax can stop any daemon.
 */
import { statSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { constants } from 'node:os';
import type { Command } from 'commander';
import { parseListenAddress } from '../../protocol/address.ts';
import type { DaemonStatus } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { call, versionsDiffer } from '../client.ts';
import { action, noun, verb } from '../command.ts';
import { isStdoutGone } from '../descriptor.ts';
import { axCommand } from '../environment.ts';
import type { Environment } from '../environment.ts';
import {
  greet,
  lastFlags,
  logPath,
  parseHostName,
  requireNoSandbox,
  runInForeground,
  startInBackground,
  START_TIMEOUT_MS,
  untilGone,
  untilReady,
} from '../launch.ts';
import type { Hello, LaunchFlags } from '../launch.ts';
import { collect, inLine, listOption, textOption } from '../options.ts';
import type { Options, Run } from '../options.ts';
import { note, printOut, rowsOf, span, visible, visibleLines } from '../output.ts';
import { awaiting, pause } from '../wait.ts';
import { addBackup } from './backup.ts';
import { addService } from './service.ts';

/** How often a followed log is looked at, in milliseconds. */
const FOLLOW_MS = 200;

export function addDaemon(root: Command): void {
  const daemon = noun(root, 'daemon', 'The process that holds the messages of this host', 'ax daemon start');
  action(
    withFlags(verb(daemon, 'run', 'the daemon in the foreground; its log on stderr', 'ax daemon run --listen /ip4/127.0.0.1/tcp/19264')),
    runDaemon,
  );
  action(withFlags(verb(daemon, 'start', 'start the daemon in the background', 'ax daemon start')), async (run) => {
    await start(run, readFlags(run.options));
  });
  action(verb(daemon, 'stop', 'stop the daemon; works across versions', 'ax daemon stop'), async (run) => {
    const was = await stop(run.environment);
    await run.print(stopped(run.environment, was === undefined ? 'was not running' : 'stopped'));
  });
  action(
    withFlags(verb(daemon, 'restart', 'stop and start, with the flags of the last start where none are given', 'ax daemon restart')),
    async (run) => {
      const typed = readFlags(run.options);
      const last = lastFlags(run.environment);
      await stop(run.environment);
      await start(run, { listen: typed.listen.length > 0 ? typed.listen : last.listen, name: typed.name ?? last.name });
    },
  );
  action(verb(daemon, 'status', 'whether it runs, and how', 'ax daemon status'), async (run) => {
    const hello = await greet(run.environment);
    if (hello !== undefined) {
      await printStatus(run, 'running');
      return;
    }
    await run.print(stopped(run.environment, `not running: no daemon answers at ${run.environment.socketPath}`));
    if (run.environment.format === 'human') process.stderr.write(`fix: ${axCommand(run.environment.ax, 'daemon', 'start')}\n`);
    process.exitCode = 3;
  });
  const logs = verb(daemon, 'logs', 'its log', 'ax daemon logs -f').option('-f, --follow', 'go on as it grows');
  action(logs, showLogs);
  addService(daemon);
  addBackup(daemon);
}

function withFlags(command: Command): Command {
  return command
    .option('--listen <multiaddr>', 'where other hosts reach it; may be given several times', collect)
    .option('--name <alias>', 'what this host calls itself');
}

function readFlags(options: Options): LaunchFlags {
  const listen = listOption(options, 'listen');
  const name = textOption(options, 'name');
  if (listen?.length === 0) throw new AxError('usage', '--listen needs an address, such as /ip4/0.0.0.0/tcp/19264');
  return inLine(() => ({ listen: (listen ?? []).map(parseListenAddress), name: name === undefined ? undefined : parseHostName(name) }));
}

async function runDaemon(run: Run): Promise<void> {
  const { environment } = run;
  const flags = readFlags(run.options); // a fault of the line is told before anybody is asked
  await requireNoSandbox(environment);
  const { child, failure } = runInForeground(environment, flags);
  const ended = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve) =>
    child.once('close', (code, signal) => resolve({ code, signal })),
  );
  const onTerminal = process.stdin.isTTY || process.stdout.isTTY || process.stderr.isTTY;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    // A terminal gives Ctrl-C to the child by itself.
    process.on(signal, () => void (signal === 'SIGINT' && onTerminal ? undefined : child.kill(signal)));
  }
  const hello = await awaiting(`the daemon to answer at ${environment.socketPath}`, untilReady(environment, child));
  const isReady = hello !== undefined && hello.pid === child.pid;
  if (isReady) await printReady(run);
  else if (child.exitCode === null && child.signalCode === null)
    note(`the daemon runs (pid ${child.pid ?? 0}) but gave no answer in ${START_TIMEOUT_MS / 1000} s`);
  const { code, signal } = await ended;
  if (!isReady && code !== 0 && signal === null)
    throw failure() ?? new AxError('internal', `the daemon ended with status ${code}; its log above says why`);
  process.exitCode = signal === null ? (code ?? 1) : 128 + constants.signals[signal];
}

async function printReady(run: Run): Promise<void> {
  const status = await call<DaemonStatus>(run.environment, 'daemon.status');
  const { host_id, name, listen, control } = status;
  const human = `ready: ${visible(name)} (${host_id}) listens on ${listen.map(visible).join(', ') || 'nothing'}`;
  await run.print({ type: 'daemon_ready', fields: { host_id, name, listen, control }, human });
}

async function start(run: Run, flags: LaunchFlags): Promise<void> {
  const { environment } = run;
  const running = await greet(environment);
  if (running === undefined) await startInBackground(environment, flags);
  else requireSameVersion(environment, running);
  if (running !== undefined) noteOtherFlags(environment, flags);
  await printStatus(run, running === undefined ? 'started' : 'already running');
}

/** Flags change nothing in a daemon that runs: that is told, with the command that does change it. */
function noteOtherFlags(environment: Environment, typed: LaunchFlags): void {
  const old = lastFlags(environment);
  const words = [
    ...(typed.listen.length > 0 && typed.listen.join(' ') !== old.listen.join(' ')
      ? typed.listen.flatMap((address) => ['--listen', address])
      : []),
    ...(typed.name !== undefined && typed.name !== old.name ? ['--name', typed.name] : []),
  ];
  if (words.length === 0) return;
  note(`it runs with the flags it was started with; to change them: ${axCommand(environment.ax, 'daemon', 'restart', ...words)}`);
}

function requireSameVersion(environment: Environment, hello: Hello): void {
  if (hello.protocol !== CONTROL_PROTOCOL) throw versionsDiffer(environment, hello.version, hello.protocol);
}

/** Ends the daemon and waits until it is gone; gives its greeting, or undefined when none ran. */
async function stop(environment: Environment): Promise<Hello | undefined> {
  const hello = await greet(environment);
  if (hello === undefined) return undefined;
  await call(environment, 'daemon.stop', {}, { what: 'the daemon to take the stop' }).catch((error: unknown) => {
    // It may be gone before its answer is read.
    if (!(error instanceof AxError) || error.code !== 'daemon_unavailable') throw error;
  });
  const isGone = await awaiting(`the daemon (pid ${hello.pid}) to end`, untilGone(environment, hello.pid));
  if (!isGone)
    throw new AxError('timeout', `the daemon took the stop but still runs after ${START_TIMEOUT_MS / 1000} s`, {
      fix: `kill ${hello.pid}`,
    });
  return hello;
}

function stopped(environment: Environment, human: string): { type: string; fields: Record<string, unknown>; human: string } {
  const fields = {
    running: false,
    pid: null,
    version: null,
    protocol: null,
    host_id: null,
    name: null,
    uptime_ms: null,
    listen: [],
    control: environment.socketPath,
    warnings: [],
  };
  return { type: 'daemon_status', fields, human };
}

async function printStatus(run: Run, word: string): Promise<void> {
  const status = await call<DaemonStatus>(run.environment, 'daemon.status');
  const rows = [
    ['name', status.name],
    ['host id', status.host_id],
    ['version', `ax ${status.version}, control protocol ${status.protocol}`],
    ['up', span(status.uptime_ms)],
    ...status.listen.map((address) => ['listens', address]),
    ['control', status.control],
    ...status.warnings.map((warning) => ['warning', warning]),
  ];
  await run.print({ type: 'daemon_status', fields: { ...status }, human: [`${word}, pid ${status.pid}`, ...rowsOf(rows)].join('\n') });
}

/** The log as it stands, and with -f what is added, also past a turning over. */
async function showLogs(run: Run): Promise<void> {
  const path = logPath(run.environment);
  if (statSync(path, { throwIfNoEntry: false }) === undefined) {
    throw new AxError('not_found', `there is no log at ${path}; a daemon that runs in the foreground writes its log on its own stderr`, {
      fix: axCommand(run.environment.ax, 'daemon', 'start'),
    });
  }
  let { file, at } = await copyFrom(path, 0);
  if (run.options['follow'] !== true) return;
  // Asked each time: a watch misses what changes while it is being set up.
  while (!isStdoutGone()) {
    const now = statSync(path, { throwIfNoEntry: false });
    if (now === undefined || (now.ino === file && now.size === at)) {
      await pause(FOLLOW_MS);
      continue;
    }
    ({ file, at } = await copyFrom(path, now.ino === file && now.size > at ? at : 0));
  }
}

/** Writes what the file holds from `start` on; says which file that was and where it ended. */
async function copyFrom(path: string, start: number): Promise<{ file: number; at: number }> {
  let at = start;
  const decoder = new TextDecoder();
  await using handle = await open(path);
  const { ino: file } = await handle.stat();
  for await (const chunk of handle.createReadStream({ start, autoClose: false }) as AsyncIterable<Buffer>) {
    at += chunk.length;
    await printOut(process.stdout.isTTY ? visibleLines(decoder.decode(chunk, { stream: true })) : chunk);
    if (isStdoutGone()) break;
  }
  return { file, at };
}
