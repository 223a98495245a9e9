/**
 * A stand-in Codex app-server, the daemon that all Codex sessions of an account share: its own process, socket, queues and "model".
 *
 * Started as `node test/standin-codex/daemon.ts '<StandInCodexOptions as JSON>'`; commands come on stdin, events go to stdout, one JSON
 * object per line (options.ts). Behaves as the genuine program was observed to, as far as ax can see it. Ends when its stdin ends, so
 * that no test leaves it behind; what is stored outlives it in its home.
 */
import { mkdirSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { Methods } from './methods.ts';
import type { NewEvent, StandInCodexCommand, StandInCodexOptions, StandInCodexState } from './options.ts';
import { SocketServer } from './server.ts';
import { faceOf, makeId, statusOf } from './thread.ts';
import type { Thread } from './thread.ts';
import { Threads } from './threads.ts';

function emit(event: NewEvent): void {
  if (!process.stdout.writable) return;
  process.stdout.write(`${JSON.stringify({ ...event, at: Date.now() })}\n`);
}

class StandInCodexDaemon {
  readonly #options: StandInCodexOptions;
  readonly #version: string;
  readonly #threads: Threads;
  readonly #server: SocketServer;
  #firstClient: readonly [name: string, terminal: string] | undefined;

  constructor(options: StandInCodexOptions) {
    this.#options = options;
    this.#version = options.version ?? '0.171.0';
    mkdirSync(options.home, { recursive: true, mode: 0o700 });
    const { home, socketRoot, connections = 'serve', pageSize } = options;
    const face = (thread: Thread): Record<string, unknown> => faceOf(thread, this.#version, home);
    this.#threads = new Threads({
      options,
      emit,
      broadcast: (method, params) => this.#server.broadcast(method, params),
      environment: (threadId) => this.#environment(threadId),
      face,
    });
    const userAgent = (client: { readonly name: string }): string => this.#userAgent(client.name);
    const methods = new Methods({ threads: this.#threads, emit, home, pageSize, userAgent, face });
    this.#server = new SocketServer({ home, socketRoot, connections, emit }, methods);
  }

  async start(): Promise<void> {
    await this.#server.listen();
    const { path: socket, target } = this.#server;
    emit({ event: 'ready', pid: process.pid, socket, target });
  }

  exit(): void {
    emit({ event: 'exiting' });
    this.#threads.stop();
    this.#server.close();
    process.exit(0);
  }

  state(): StandInCodexState {
    const threads = this.#threads.all.map((thread) => ({
      id: thread.id,
      status: statusOf(thread).type,
      running: thread.turn !== undefined,
      paused: thread.paused,
      queue: thread.queue.map(({ id, clientId }) => ({ id, clientId })),
    }));
    return { connections: this.#server.connections, threads };
  }

  /** Resolves with the id of the thread that was made, if one was. */
  async obey(command: StandInCodexCommand): Promise<string | null> {
    if (command.cmd === 'open') return this.#threads.add(command.options).id;
    if ('thread' in command && command.cmd !== 'flood') await this.#obeyThread(command, this.#thread(command.thread ?? ''));
    else this.#obeyDaemon(command);
    return null;
  }

  async #obeyThread(command: StandInCodexCommand, thread: Thread): Promise<void> {
    const threads = this.#threads;
    switch (command.cmd) {
      case 'turn':
        return threads.userTurn(thread);
      case 'end_turn':
        return threads.endTurn(thread, command.how ?? 'completed');
      case 'flags':
        return threads.setFlags(thread, command.flags);
      case 'system_error':
        return threads.setBroken(thread, command.on);
      case 'leave':
        return threads.leave(thread);
      case 'unload':
        return threads.unload(thread);
      case 'resume':
        return threads.resume(thread, true);
      case 'archive':
        return threads.archive(thread);
      case 'cd':
        return threads.move(thread, command.cwd);
      case 'rename':
        return threads.rename(thread, command.name);
      case 'fill':
        return threads.fill(thread, command.count);
      case 'drop_items':
        return void threads.remove(thread, undefined);
      case 'start_queue':
        return threads.startQueue(thread);
      case 'run':
        return threads.run(thread, command.command);
      default:
        throw new Error(`unknown command ${JSON.stringify(command)}`);
    }
  }

  #obeyDaemon(command: StandInCodexCommand): void {
    const server = this.#server;
    switch (command.cmd) {
      case 'state':
        return;
      case 'hold_turns':
        this.#threads.holdTurns = command.value;
        return;
      case 'autorun':
        this.#threads.autorun = command.value;
        return;
      case 'fault':
        return server.fault(command.method, command.fault, command.times ?? 1);
      case 'mend':
        return server.mend();
      case 'release':
        return server.release();
      case 'connections':
        server.mode = command.mode;
        return;
      case 'cut':
        return server.cut();
      case 'flood':
        return this.#flood(command.count, command.thread, command.bytes ?? 0);
      case 'say':
        return server.say(command.text);
      case 'remove_socket':
        return server.removeSocket();
      case 'stale_socket':
        return server.leaveStale();
      default:
        throw new Error(`unknown command ${JSON.stringify(command)}`);
    }
  }

  /** Notifications without end: of a thread's status, each with `bytes` of text that nobody needs. */
  #flood(count: number, thread: string | undefined, bytes: number): void {
    for (let sent = 0; sent < count; sent++) {
      const status = { type: sent % 2 === 0 ? 'idle' : 'active', activeFlags: [] };
      this.#server.broadcast('thread/status/changed', { threadId: thread ?? makeId(), status, text: 'x'.repeat(bytes) });
    }
  }

  #thread(id: string): Thread {
    const thread = this.#threads.get(id);
    if (thread === undefined) throw new Error(`no thread ${id}`);
    return thread;
  }

  /** The first client after a start gives the daemon its name for good: a TUI where one has a thread open, else whoever asks. */
  #userAgent(client: string): string {
    const isTui = this.#threads.all.some((thread) => thread.watched);
    this.#firstClient ??= isTui ? ['codex-tui', 'xterm-256color'] : [client.split(';')[0] ?? '', 'unknown'];
    const [name, terminal] = this.#firstClient;
    return this.#options.userAgent ?? `${name}/${this.#version} (Debian 12.0.0; x86_64) ${terminal} (${client})`;
  }

  /** What a thread's shell tool has: the environment of the daemon at its start, and what names the thread. */
  #environment(threadId: string): NodeJS.ProcessEnv {
    const env: NodeJS.ProcessEnv = {};
    for (const [name, value] of Object.entries(process.env)) if (!/^(CLAUDE|CODEX)/.test(name)) env[name] = value;
    const session = this.#threads.get(threadId)?.options.parent ?? threadId;
    Object.assign(env, {
      CODEX_THREAD_ID: threadId,
      CODEX_SESSION_ID: session,
      CODEX_TOOL_CALL_ID: `call_${makeId()}`,
      CODEX_VERSION: this.#version,
      CODEX_CI: '1',
      CODEX_HOME: this.#options.home,
      CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS: '1',
      NO_COLOR: '1',
      PAGER: 'cat',
      GIT_PAGER: 'cat',
      GH_PAGER: 'cat',
      LANG: 'C.UTF-8',
      LC_ALL: 'C.UTF-8',
      TERM: 'dumb',
    });
    for (const [name, value] of Object.entries(this.#options.env ?? {})) {
      if (value === null) delete env[name];
      else env[name] = value;
    }
    return env;
  }
}

const daemon = new StandInCodexDaemon(JSON.parse(process.argv[2] ?? '{}') as StandInCodexOptions);
const commands = createInterface({ input: process.stdin });
commands.on('line', (line) => {
  const command = JSON.parse(line) as StandInCodexCommand & { id: number };
  const { id, cmd } = command;
  daemon.obey(command).then(
    (thread) => emit({ event: 'ok', id, cmd, thread, state: daemon.state() }),
    (error: unknown) => emit({ event: 'error', id, message: String(error) }),
  );
});
commands.on('close', () => daemon.exit());
process.stdout.on('error', () => daemon.exit()); // whoever started us is gone
process.on('SIGTERM', () => daemon.exit());
process.on('SIGHUP', () => daemon.exit());
await daemon.start();
