/**
 * A stand-in Claude Code session: its own process with real registry files, a real inbox socket, and a "model" that acts.
 *
 * Started as `node test/standin/session.ts '<StandInOptions as JSON>'`; commands come on stdin, events go to stdout, one JSON
 * object per line (options.ts). Behaves as the genuine program was observed to, as far as ax can see it. Ends when its stdin
 * ends, so that no test leaves it behind.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { renameSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { Traces, type Live } from './files.ts';
import { Inbox } from './inbox.ts';
import { Model } from './model.ts';
import type { NewEvent, StandInCommand, StandInOptions, StandInState } from './options.ts';

const STATUS_DELAY_MS = 5;

function emit(event: NewEvent): void {
  if (!process.stdout.writable) return;
  process.stdout.write(`${JSON.stringify({ ...event, at: Date.now() })}\n`);
}

class StandInSession {
  readonly #options: StandInOptions;
  readonly #traces: Traces;
  readonly #inbox: Inbox;
  readonly #model: Model;
  readonly #token = randomBytes(16).toString('hex');
  #sessionId: string;
  #queue: string[] = [];
  #isUserBusy = false;
  #isInTurn = false;
  #waitingFor: string | undefined;
  #status: string | undefined;
  #turnTimer: NodeJS.Timeout | undefined;
  #isExiting = false;

  constructor(options: StandInOptions) {
    this.#options = options;
    this.#sessionId = options.sessionId ?? randomUUID();
    this.#traces = new Traces(options);
    this.#inbox = new Inbox(
      {
        path: this.#traces.socket,
        dialogTimeoutMs: options.dialogTimeoutMs ?? 300_000,
        decides: options.decides,
        receipts: options.receipts ?? true,
        requiredToken: options.requiresAuth === true ? this.#traces.peerToken : undefined,
        emit,
        sessionId: () => this.#sessionId,
        queued: () => this.#queue.length,
        onQueued: (content) => {
          this.#queue.push(content);
          this.#schedule();
        },
        onHeldChanged: () => this.#update(),
      },
      options.inbound ?? 'unset',
      options.mode ?? 'prompting',
    );
    const maxRuns = options.maxRuns ?? 5;
    this.#model = new Model(
      { cwd: options.cwd, environment: () => this.#environment(), maxRuns, emit },
      options.autorun ?? true,
      options.reply,
    );
  }

  /** Socket first, then the key, then the record, then its status: the order of the genuine program. */
  async start(): Promise<void> {
    const traces = this.#traces;
    if (traces.hasSocket) {
      await this.#inbox.listen();
      traces.writeKey();
    }
    traces.write(this.#live());
    await new Promise((resolve) => setTimeout(resolve, STATUS_DELAY_MS));
    this.#update();
    const socket = traces.hasSocket ? traces.socket : null;
    emit({ event: 'ready', pid: process.pid, procStart: traces.procStart, sessionId: this.#sessionId, socket, record: traces.record });
  }

  /** Also called when nobody reads the events any more: then writing one would only call it again. */
  async exit(): Promise<void> {
    if (this.#isExiting) return;
    this.#isExiting = true;
    emit({ event: 'exiting' });
    await this.#inbox.decide('expired');
    if (this.#traces.hasSocket) this.#inbox.close();
    this.#traces.remove();
    this.#model.kill();
    process.exit(0);
  }

  state(): StandInState {
    const { held, connections, bytes } = this.#inbox;
    return { sessionId: this.#sessionId, status: this.#status ?? 'absent', queued: this.#queue.length, held, connections, bytes };
  }

  async obey(command: StandInCommand): Promise<void> {
    const traces = this.#traces;
    switch (command.cmd) {
      case 'state':
        return;
      case 'busy':
        this.#isUserBusy = true;
        return this.#update();
      case 'boundary':
        return this.#fold();
      case 'idle':
        this.#isUserBusy = false;
        this.#waitingFor = undefined;
        this.#update();
        return this.#schedule();
      case 'waiting':
        this.#waitingFor = command.waitingFor ?? 'permission prompt';
        return this.#update();
      case 'approve':
        return this.#inbox.decide('delivered');
      case 'deny':
        return this.#inbox.decide('denied');
      case 'expire':
        return this.#inbox.decide('expired');
      case 'clear':
        return this.#clear();
      case 'inbound':
        return this.#inbox.setInbound(command.value);
      case 'mode':
        this.#inbox.mode = command.value;
        return;
      case 'autorun':
        this.#model.autorun = command.value;
        return;
      case 'reply':
        this.#model.reply = command.value ?? undefined;
        return;
      case 'run':
        await this.#model.run(command.command);
        return;
      case 'truncate':
        return traces.truncate(this.#live());
      case 'record':
        return traces.freeze(command.text);
      case 'rewrite':
        return traces.thaw(this.#live());
      case 'zombie':
        return this.#playDead();
      case 'crash':
        process.kill(process.pid, 'SIGKILL');
        return;
      case 'exit':
        return this.exit();
      default:
        throw new Error(`unknown command ${JSON.stringify(command)}`);
    }
  }

  #live(): Live {
    return {
      sessionId: this.#sessionId,
      status: this.#status,
      waitingFor: this.#status === 'waiting' ? (this.#waitingFor ?? 'permission prompt') : undefined,
    };
  }

  #update(): void {
    const isWaiting = this.#waitingFor !== undefined || this.#inbox.isDialogOpen;
    const status = isWaiting ? 'waiting' : this.#isUserBusy || this.#isInTurn ? 'busy' : 'idle';
    if (status === this.#status) return;
    this.#status = status;
    this.#traces.write(this.#live());
    emit({ event: 'status', status });
    this.#schedule();
  }

  /** An idle session with something queued starts a turn shortly after. */
  #schedule(): void {
    if (this.#queue.length === 0 || this.#status !== 'idle' || this.#turnTimer !== undefined) return;
    this.#turnTimer = setTimeout(() => {
      this.#turnTimer = undefined;
      if (this.#status === 'idle' && this.#queue.length > 0) void this.#turn();
    }, this.#options.turnDelayMs ?? 100);
  }

  async #turn(): Promise<void> {
    this.#isInTurn = true;
    this.#update();
    await this.#work(false);
    this.#isInTurn = false;
    this.#update();
    this.#schedule();
  }

  /** A tool boundary of the turn that the user's own work keeps going: what is queued is handed over inside it. */
  async #fold(): Promise<void> {
    if (this.#isUserBusy && !this.#isInTurn && this.#queue.length > 0) await this.#work(true);
  }

  async #work(folded: boolean): Promise<void> {
    const runs = await this.#model.turn(this.#take(folded), () => this.#take(true));
    emit({ event: 'turn_end', runs });
  }

  #take(folded: boolean): readonly string[] {
    const contents = this.#queue.splice(0);
    if (contents.length > 0) emit({ event: 'turn', contents, folded });
    return contents;
  }

  #clear(): void {
    const previous = this.#sessionId;
    this.#sessionId = randomUUID();
    this.#queue = [];
    this.#traces.write(this.#live());
    emit({ event: 'cleared', sessionId: this.#sessionId, previous });
  }

  /** Nobody listens any more, the files stay, and the process still has its pid: as a killed process looks until it is reaped. */
  #playDead(): void {
    const aside = `${this.#traces.socket}.aside`;
    renameSync(this.#traces.socket, aside); // closing removes the file by its name
    this.#inbox.close();
    renameSync(aside, this.#traces.socket);
  }

  #environment(): NodeJS.ProcessEnv {
    const options = this.#options;
    const env: NodeJS.ProcessEnv = {};
    for (const [name, value] of Object.entries(process.env)) if (!/^(CLAUDE|CODEX)/.test(name)) env[name] = value;
    Object.assign(env, {
      CLAUDECODE: '1',
      CLAUDE_CODE_SESSION_ID: this.#sessionId,
      CLAUDE_PID: String(process.pid),
      CLAUDE_CODE_ENTRYPOINT: options.entrypoint ?? 'cli',
      CLAUDE_CODE_SESSION_ATTENDED: (options.entrypoint ?? 'cli') === 'cli' && options.kind !== 'bg' ? '1' : '0',
      CLAUDE_CODE_CHILD_SESSION: '1',
      AI_AGENT: `claude-code_${(options.version ?? '2.1.332').replaceAll('.', '-')}_agent`,
      ...(this.#traces.hasSocket ? { CLAUDE_CODE_MESSAGING_SOCKET: this.#traces.socket, CLAUDE_CODE_MESSAGING_TOKEN: this.#token } : {}),
      ...(options.claudeConfigDir === undefined ? {} : { CLAUDE_CONFIG_DIR: options.claudeConfigDir }),
    });
    for (const [name, value] of Object.entries(options.env ?? {})) {
      if (value === null) delete env[name];
      else env[name] = value;
    }
    return env;
  }
}

const session = new StandInSession(JSON.parse(process.argv[2] ?? '{}') as StandInOptions);
const commands = createInterface({ input: process.stdin });
commands.on('line', (line) => {
  const command = JSON.parse(line) as StandInCommand & { id: number };
  session.obey(command).then(
    () => emit({ event: 'ok', id: command.id, cmd: command.cmd, state: session.state() }),
    (error: unknown) => emit({ event: 'error', id: command.id, message: String(error) }),
  );
});
commands.on('close', () => void session.exit());
process.stdout.on('error', () => void session.exit()); // whoever started us is gone
process.on('SIGTERM', () => void session.exit());
process.on('SIGHUP', () => void session.exit());
await session.start();
