/**
 * A genuine Codex app-server for tests: its home, its config, its life, and the client of the person who owns its threads.
 *
 * Owns the child process and its socket: `stop` and `kill9` end it by its id, and remove only what belongs to that socket in the folder that
 * the binary makes under /tmp whatever TMPDIR says. The client starts threads, keeps them loaded, starts and interrupts turns and
 * answers approvals, as a terminal would. It never queues for ax: that is what is under test.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname, join } from 'node:path';
import { WebSocket } from 'ws';
import { until } from '../e2e/hosts.ts';
import { killGroup, launch } from '../e2e/processes.ts';
import type { Json } from '../e2e/processes.ts';

/** How long one request may take, ms: far above what any takes. */
const ANSWER_LIMIT_MS = 20_000;

export interface CodexSetup {
  /** The codex program. */
  readonly program: string;
  /** HOME of the account; CODEX_HOME is `.codex` in it. */
  readonly home: string;
  /** `base_url` of the model's provider. */
  readonly model: string;
  /** Folders that are trusted. */
  readonly trusted?: readonly string[];
  /** More lines of config.toml, before its tables. */
  readonly config?: readonly string[];
  /** On top of the environment below. */
  readonly env?: NodeJS.ProcessEnv;
}

/** The environment of every codex process of that home. */
export function codexEnv(setup: CodexSetup): NodeJS.ProcessEnv {
  const tmp = join(setup.home, 'tmp');
  mkdirSync(tmp, { recursive: true, mode: 0o700 });
  return {
    PATH: process.env['PATH'] ?? '/usr/bin:/bin',
    HOME: setup.home,
    CODEX_HOME: join(setup.home, '.codex'),
    XDG_RUNTIME_DIR: join(setup.home, 'run'),
    TMPDIR: tmp, // no parent of CODEX_HOME
    NO_PROXY: '127.0.0.1',
    no_proxy: '127.0.0.1',
    LANG: 'C.UTF-8',
    TERM: 'xterm-256color',
    ...setup.env,
  };
}

/** Writes config.toml (a mock provider, no telemetry, no update check) and the login file of the account's shell. */
export function writeCodexConfig(setup: CodexSetup): void {
  const folder = join(setup.home, '.codex');
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const lines = [
    'model = "mock-model"',
    'model_provider = "mock"',
    'check_for_update_on_startup = false',
    ...(setup.config ?? ['approval_policy = "never"', 'sandbox_mode = "danger-full-access"']),
    '[analytics]',
    'enabled = false',
    '[model_providers.mock]',
    'name = "mock"',
    `base_url = ${JSON.stringify(setup.model)}`,
    'wire_api = "responses"',
    'requires_openai_auth = false',
    'supports_websockets = false',
    'request_max_retries = 0',
    'stream_max_retries = 0',
    ...(setup.trusted ?? []).flatMap((path) => [`[projects.${JSON.stringify(path)}]`, 'trust_level = "trusted"']),
  ];
  writeFileSync(join(folder, 'config.toml'), `${lines.join('\n')}\n`, { mode: 0o600 });
  // Commands run as `bash -lc`, and the system's login files may set PATH anew: the tests' own Node is found all the same.
  writeFileSync(join(setup.home, '.profile'), `export PATH="${dirname(process.execPath)}:$PATH"\n`, { mode: 0o600 });
}

/** One app-server and the clients of it. */
export class CodexServer {
  readonly setup: CodexSetup;
  readonly socketPath: string;
  log = '';
  #child: ChildProcess | undefined;
  #exited: Promise<unknown> = Promise.resolve();
  /** Where the public path leads: in the binary's own folder under /tmp. */
  #real: string | undefined;
  readonly #clients: CodexClient[] = [];

  constructor(setup: CodexSetup) {
    this.setup = setup;
    this.socketPath = join(setup.home, '.codex', 'app-server-control', 'app-server-control.sock');
    writeCodexConfig(setup);
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  /** Starts it on its default socket; resolves when it listens. */
  async start(): Promise<void> {
    const args = ['app-server', '--listen', 'unix://'];
    const child = launch(this.setup.program, args, { env: codexEnv(this.setup), cwd: this.setup.home, stdin: 'ignore' });
    this.#child = child;
    this.#exited = new Promise((resolve) => void child.once('close', resolve));
    child.stderr?.setEncoding('utf8').on('data', (chunk: string) => (this.log += chunk));
    child.stdout?.resume();
    await until('the socket of the codex app-server', async () => {
      assert.equal(child.exitCode, null, `codex ended: ${this.log}`);
      return (await listens(this.socketPath)) ? true : `nobody listens; ${this.log.slice(-500)}`;
    });
    this.#real = readlinkSync(this.socketPath);
  }

  /** A connected, initialized client; closed with the server at the latest. */
  async client(name = 'owner'): Promise<CodexClient> {
    const client = await CodexClient.connect(this.socketPath, name);
    this.#clients.push(client);
    return client;
  }

  /** Ends it as `codex app-server daemon stop` does: SIGTERM. A turn that runs is not waited for. */
  async stop(): Promise<void> {
    await this.#end('SIGTERM');
    assert.equal(existsSync(this.socketPath), false, 'a clean stop removes the socket');
  }

  /** `kill -9`: both files of the socket stay behind. */
  async kill9(): Promise<void> {
    await this.#end('SIGKILL');
  }

  /** Ends whatever runs and removes what this home's socket left in the binary's folder. */
  async end(): Promise<void> {
    for (const client of this.#clients.splice(0)) client.close();
    const child = this.#child;
    if (child?.pid !== undefined && child.exitCode === null && child.signalCode === null) {
      killGroup(child.pid);
      await this.#exited;
    }
    if (this.#real !== undefined) for (const path of [this.#real, `${this.#real}.lock`]) rmSync(path, { force: true });
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    for (const client of this.#clients.splice(0)) client.close();
    this.#child?.kill(signal);
    await this.#exited;
    this.#child = undefined;
  }
}

async function listens(path: string): Promise<boolean> {
  if (!existsSync(path)) return false;
  const socket = connect(path);
  try {
    return await new Promise((resolve) => {
      socket.once('connect', () => resolve(true));
      socket.once('error', () => resolve(false));
    });
  } finally {
    socket.destroy();
  }
}

interface Waiting {
  readonly resolve: (result: Json) => void;
  readonly reject: (error: Error) => void;
  readonly timer: NodeJS.Timeout;
}

/** What a thread is started with. */
export interface ThreadOptions {
  readonly approvalPolicy?: 'never' | 'on-request' | 'untrusted';
  readonly sandbox?: 'danger-full-access' | 'workspace-write' | 'read-only';
  readonly ephemeral?: boolean;
}

/** An error the app-server answered with. */
export class CodexError extends Error {
  readonly code: number;
  constructor(method: string, error: Json) {
    super(`${method}: ${String(error['message'])}`);
    this.code = Number(error['code']);
  }
}

/** A client as a terminal is one: it subscribes to what it starts or resumes, and is asked for approvals. */
export class CodexClient {
  readonly notifications: Json[] = [];
  /** Approvals that were asked for and not answered yet. */
  readonly asked: Json[] = [];
  userAgent = '';
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, Waiting>();
  #nextId = 1;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.on('message', (data) => this.#take(JSON.parse((data as Buffer).toString('utf8')) as Json));
    socket.on('error', () => socket.terminate()); // what waits is told by the close
    socket.on('close', () => {
      for (const [id, waiting] of this.#waiting) this.#settle(id, () => waiting.reject(new Error('the app-server closed the connection')));
    });
  }

  static async connect(path: string, name: string): Promise<CodexClient> {
    const socket = new WebSocket('ws://localhost/', { createConnection: () => connect(path), perMessageDeflate: false });
    const client = new CodexClient(socket);
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', reject);
    });
    const hello = { clientInfo: { name, title: name, version: '1.0.0' }, capabilities: { experimentalApi: true } };
    client.userAgent = String((await client.call('initialize', hello))['userAgent']);
    socket.send(JSON.stringify({ method: 'initialized' }));
    return client;
  }

  /** One request; CodexError when it is refused. */
  call(method: string, params: Json = {}): Promise<Json> {
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#settle(id, () => reject(new Error(`${method} was not answered`))), ANSWER_LIMIT_MS);
      this.#waiting.set(id, { resolve, reject, timer });
      this.#socket.send(JSON.stringify({ id, method, params }));
    });
  }

  /** A new thread in a folder: loaded for as long as this client stays subscribed. */
  async startThread(cwd: string, options: ThreadOptions = {}): Promise<string> {
    const { thread } = await this.call('thread/start', { cwd, ...options });
    return String(thread['id']);
  }

  /** A turn of the user's own; resolves when it has begun. */
  async startTurn(threadId: string, text: string): Promise<string> {
    const { turn } = await this.call('turn/start', { threadId, turnTrigger: 'user', input: [{ type: 'text', text }] });
    return String(turn['id']);
  }

  /** A turn of the user's own, to its end; gives its status. */
  async runTurn(threadId: string, text: string): Promise<string> {
    return this.turnEnd(threadId, await this.startTurn(threadId, text));
  }

  /** Waits for the end of a turn: `completed`, `interrupted`, `failed`. */
  async turnEnd(threadId: string, turnId: string): Promise<string> {
    let status = '';
    await until(`the end of turn ${turnId}`, async () => {
      const found = this.all('turn/completed').find((one) => one['threadId'] === threadId && one['turn']['id'] === turnId);
      status = String(found?.['turn']['status'] ?? '');
      return found !== undefined || JSON.stringify(this.notifications.slice(-3));
    });
    return status;
  }

  /** The parameters of every notification of one method, oldest first. */
  all(method: string): readonly Json[] {
    return this.notifications.filter((one) => one['method'] === method).map((one) => one['params'] as Json);
  }

  async status(threadId: string): Promise<Json> {
    return (await this.call('thread/read', { threadId }))['thread']['status'] as Json;
  }

  async untilStatus(threadId: string, type: string, flag?: string): Promise<void> {
    await until(`thread ${threadId} to be ${type} ${flag ?? ''}`, async () => {
      const status = await this.status(threadId);
      const fits = status['type'] === type && (flag === undefined || (status['activeFlags'] as string[]).includes(flag));
      return fits || JSON.stringify(status);
    });
  }

  /** Ids and marks of what waits in a thread's queue. */
  async queue(threadId: string): Promise<readonly { readonly id: string; readonly mark: string }[]> {
    const { data } = await this.call('thread/queue/list', { threadId, limit: 1000 });
    return (data as Json[]).map((item) => ({ id: String(item['id']), mark: String(item['clientUserMessageId']) }));
  }

  /** Waits for an approval of a thread and answers it. */
  async approve(threadId: string, decision: 'accept' | 'decline' = 'accept'): Promise<Json> {
    await until(`an approval to be asked for in ${threadId}`, async () =>
      this.asked.some((one) => one['params']['threadId'] === threadId) ? true : 'none',
    );
    const at = this.asked.findIndex((one) => one['params']['threadId'] === threadId);
    const [request] = this.asked.splice(at, 1) as [Json];
    this.#socket.send(JSON.stringify({ id: request['id'], result: { decision } }));
    return request['params'] as Json;
  }

  close(): void {
    this.#socket.terminate();
  }

  #take(message: Json): void {
    if (message['method'] !== undefined) {
      (message['id'] === undefined ? this.notifications : this.asked).push(message);
      return;
    }
    const id = Number(message['id']);
    const waiting = this.#waiting.get(id);
    this.#settle(id, () => {
      if (message['error'] === undefined) waiting?.resolve(message['result'] as Json);
      else waiting?.reject(new CodexError(`request ${id}`, message['error'] as Json));
    });
  }

  #settle(id: number, how: () => void): void {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    clearTimeout(waiting?.timer);
    how();
  }
}
