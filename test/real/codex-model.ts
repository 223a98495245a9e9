/**
 * The model behind a genuine Codex in tests: the Responses API on loopback, a script per thread, every request kept.
 *
 * Owns what the "model" says; what is run, asked and queued is Codex's own doing. Without a script it answers "ok"; told to obey, it runs
 * exactly the ax command a notice names, through the harness's own shell tool, and goes on with the setup or fetch command that its
 * output names.
 * Invariant: a request that nobody can make sense of is kept as a fault and fails the test that asks for the faults.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { commandsIn } from '../standin/model.ts';
import type { Json } from '../e2e/processes.ts';

/** What the model does with one request. */
export type Step =
  | { readonly say: string }
  /** A call of the shell tool; `escalate` asks for the run outside the sandbox, with that reason. */
  | { readonly run: string; readonly escalate?: string }
  /** A call of any other tool. */
  | { readonly call: string; readonly namespace?: string; readonly args: Json }
  /** Begins the answer and says no more until `release` or the connection ends. */
  | { readonly hold: true }
  | { readonly fail: string };

/** One request as Codex sent it. */
export interface ModelRequest {
  /** The thread that asks. */
  readonly thread: string;
  /** Of the turn's metadata: `user`, `queue`, `exec`, ... */
  readonly trigger: string;
  /** Of the turn's metadata: `user`, `thread_title`, `subagent`, ... */
  readonly source: string;
  readonly turnId: string;
  readonly metadata: Json;
  /** Every user message, oldest first. */
  readonly users: readonly string[];
  /** Outputs of tool calls after the last user message, oldest first. */
  readonly outputs: readonly string[];
  readonly body: Json;
}

export interface ToolRun {
  readonly thread: string;
  readonly command: string;
  readonly output: string;
}

/** What the helper that names a terminal's thread expects. */
export const TITLE: Step = { say: '{"title":"a title"}' };
const NOTICE = /^ax on this host: /;
const FOLLOWED = / (?:messages fetch|agent setup) /;

export class CodexModel {
  readonly requests: ModelRequest[] = [];
  readonly faults: string[] = [];
  /** What the shell tool gave back, in order. */
  readonly runs: ToolRun[] = [];
  /** Threads whose model obeys ax notices; `all` for every one. */
  readonly obeying = new Set<string>();
  readonly #scripts = new Map<string, Step[]>();
  readonly #held = new Map<string, { readonly response: ServerResponse; readonly id: string }>();
  readonly #commands = new Map<string, string>();
  readonly #server: Server;
  #count = 0;

  private constructor(server: Server) {
    this.#server = server;
    server.on('request', (request, response) => void this.#serve(request, response));
  }

  /** Listens on a free port of loopback. */
  static async start(): Promise<CodexModel> {
    const model = new CodexModel(createServer());
    await new Promise<void>((resolve) => model.#server.listen(0, '127.0.0.1', resolve));
    return model;
  }

  /** What `base_url` of the provider is. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/v1`;
  }

  /** The next answers to a thread, or to the threads of one source (`subagent`, `thread_title`), one per request; then it obeys or says "ok". */
  script(thread: string, ...steps: readonly Step[]): void {
    this.#scripts.set(thread, [...(this.#scripts.get(thread) ?? []), ...steps]);
  }

  isHolding(thread: string): boolean {
    return this.#held.has(thread);
  }

  /** Goes on with a held answer. */
  release(thread: string, step: Step = { say: 'done' }): void {
    const held = this.#held.get(thread);
    if (held === undefined) throw new Error(`nothing is held for thread ${thread}`);
    this.#held.delete(thread);
    this.#finish(held.response, held.id, step);
  }

  /** Requests of one thread, without the helper that makes its title. */
  of(thread: string): readonly ModelRequest[] {
    return this.requests.filter((request) => request.thread === thread && request.source !== 'thread_title');
  }

  /** The turns of one thread in order: each turn's trigger and its last user message. */
  turns(thread: string): readonly { readonly trigger: string; readonly text: string; readonly requests: number }[] {
    const turns = new Map<string, { trigger: string; text: string; requests: number }>();
    for (const request of this.of(thread)) {
      const seen = turns.get(request.turnId);
      if (seen === undefined) turns.set(request.turnId, { trigger: request.trigger, text: request.users.at(-1) ?? '', requests: 1 });
      else seen.requests += 1;
    }
    return [...turns.values()];
  }

  async stop(): Promise<void> {
    const closed = new Promise<void>((resolve) => void this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    await closed;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer);
      if (request.method !== 'POST' || !String(request.url).startsWith('/v1/responses')) {
        response.writeHead(404).end();
        if (!String(request.url).startsWith('/v1/models')) this.faults.push(`asked for ${request.method} ${request.url}`);
        return;
      }
      this.#answer(readRequest(request, JSON.parse(Buffer.concat(chunks).toString('utf8')) as Json), response);
    } catch (error) {
      this.faults.push(String(error));
      response.destroy();
    }
  }

  #answer(asked: ModelRequest, response: ServerResponse): void {
    const id = `resp_${++this.#count}`;
    this.requests.push(asked);
    this.#noteRuns(asked);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    event(response, 'response.created', { response: { id } });
    const step = this.#step(asked);
    if (!('hold' in step)) return this.#finish(response, id, step);
    this.#held.set(asked.thread, { response, id });
    response.once('close', () => {
      if (this.#held.get(asked.thread)?.response === response) this.#held.delete(asked.thread);
    });
  }

  #step(asked: ModelRequest): Step {
    const scripted = (this.#scripts.get(asked.thread) ?? this.#scripts.get(asked.source))?.shift();
    if (scripted !== undefined) return scripted;
    if (asked.source === 'thread_title') return TITLE;
    const notice = asked.users.at(-1) ?? '';
    if (!NOTICE.test(notice) || !(this.obeying.has(asked.thread) || this.obeying.has('all'))) return { say: 'ok' };
    const done = this.runs.filter((run) => run.thread === asked.thread).map((run) => run.command);
    const last = asked.outputs.at(-1);
    // The output of a fetch holds another agent's text, which is not obeyed.
    const told = last === undefined ? commandsIn(notice) : done.at(-1)?.includes(' agent setup ') === true ? commandsIn(last) : [];
    const next = told.find((command) => FOLLOWED.test(command) && (last === undefined || !done.includes(command)));
    return next === undefined ? { say: 'read it' } : { run: next };
  }

  #finish(response: ServerResponse, id: string, step: Step): void {
    if ('fail' in step) {
      event(response, 'response.failed', { response: { id, error: { code: 'server_error', message: step.fail } } });
      response.end();
      return;
    }
    event(response, 'response.output_item.done', { item: this.#item(step) });
    const usage = { input_tokens: 1, input_tokens_details: null, output_tokens: 1, output_tokens_details: null, total_tokens: 2 };
    event(response, 'response.completed', { response: { id, usage } });
    response.end();
  }

  #item(step: Step): Json {
    const n = ++this.#count;
    if ('say' in step) {
      return { type: 'message', role: 'assistant', id: `msg_${n}`, content: [{ type: 'output_text', text: step.say }] };
    }
    if ('hold' in step || 'fail' in step) throw new Error('a held answer is released with text or a call');
    const call = { type: 'function_call', id: `fc_${n}`, call_id: `call_${n}` };
    if ('call' in step) return { ...call, name: step.call, namespace: step.namespace, arguments: JSON.stringify(step.args) };
    this.#commands.set(call.call_id, step.run);
    const outside = step.escalate === undefined ? {} : { sandbox_permissions: 'require_escalated', justification: step.escalate };
    return { ...call, name: 'exec_command', arguments: JSON.stringify({ cmd: step.run, yield_time_ms: 30_000, ...outside }) };
  }

  #noteRuns(asked: ModelRequest): void {
    for (const item of (asked.body['input'] ?? []) as Json[]) {
      const command = item['type'] === 'function_call_output' ? this.#commands.get(String(item['call_id'])) : undefined;
      if (command === undefined) continue;
      this.#commands.delete(String(item['call_id']));
      this.runs.push({ thread: asked.thread, command, output: textOf(item['output']) });
    }
  }
}

function event(response: ServerResponse, type: string, data: Json): void {
  response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
}

function readRequest(request: IncomingMessage, body: Json): ModelRequest {
  const metadata = JSON.parse(String(request.headers['x-codex-turn-metadata'] ?? '{}')) as Json;
  const input = (body['input'] ?? []) as Json[];
  const isUser = (item: Json): boolean => item['type'] === 'message' && item['role'] === 'user';
  const lastUser = input.findLastIndex(isUser);
  return {
    thread: String(request.headers['thread-id'] ?? metadata['thread_id'] ?? ''),
    trigger: String(metadata['turn_trigger'] ?? ''),
    source: String(metadata['thread_source'] ?? ''),
    turnId: String(metadata['turn_id'] ?? ''),
    metadata,
    users: input.filter(isUser).map((item) => textOf(item['content'])),
    outputs: input
      .slice(lastUser + 1)
      .filter((item) => item['type'] === 'function_call_output')
      .map((item) => textOf(item['output'])),
    body,
  };
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content;
  return ((content ?? []) as Json[]).map((part) => String(part['text'] ?? '')).join('');
}
