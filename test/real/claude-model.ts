/**
 * The model of the genuine Claude Code sessions: the vendor's Messages API as far as the program needs it, on loopback, scripted.
 *
 * Owns the server, and what every session asked it. A script answers the turns of one session, known by the header that the program
 * sends; a session without a script is answered "ok". Decides nothing about ax, but for `obedient`, which does what a notice says.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Json } from '../e2e/processes.ts';

/** What the model answers: words, or a command for the harness's own Bash tool, `outside` of its sandbox when it asks for that. */
export type Step = { readonly say: string } | { readonly run: string; readonly outside?: true };

/** One request of a session's main conversation. */
export interface Turn {
  readonly session: string;
  /** All text since the model's last answer: what was typed, injected, or came from tools. */
  readonly news: string;
  /** The results of the tools that the last answer ran. */
  readonly results: readonly string[];
  /** Text in a block of role `system` at the end: what was injected while a tool ran. */
  readonly injected: string;
}

export type Script = (turn: Turn) => Step | Promise<Step>;

const MAX_BODY_BYTES = 32 * 1024 * 1024;

export class ClaudeModel {
  /** Every turn so far, in order. */
  readonly turns: Turn[] = [];
  readonly #server: Server;
  readonly #scripts = new Map<string, Script>();
  #nextTool = 1;

  private constructor() {
    this.#server = createServer((request, response) => void this.#serve(request, response));
  }

  static async start(): Promise<ClaudeModel> {
    const model = new ClaudeModel();
    await new Promise<void>((resolve) => void model.#server.listen(0, '127.0.0.1', resolve));
    return model;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** From now on `script` answers the session's turns. */
  script(session: string, script: Script): void {
    this.#scripts.set(session, script);
  }

  /** The turns of one session. */
  of(session: string): readonly Turn[] {
    return this.turns.filter((turn) => turn.session === session);
  }

  /** How many of a session's turns brought a text. */
  count(session: string, text: string): number {
    return this.of(session).reduce((sum, turn) => sum + turn.news.split(text).length - 1, 0);
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await readBody(request);
    const path = new URL(request.url ?? '/', 'http://model').pathname;
    if (request.method !== 'POST' || body === undefined || !path.startsWith('/v1/messages')) {
      response.writeHead(404, { 'content-type': 'application/json' }).end('{}');
    } else if (path.endsWith('/count_tokens')) {
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"input_tokens":10}');
    } else {
      const step = await this.#answer(String(request.headers['x-claude-code-session-id'] ?? ''), body);
      this.#write(response, step);
    }
  }

  async #answer(session: string, body: Json): Promise<Step> {
    // Small requests beside the conversation (titles, summaries) bring no tools.
    if (!Array.isArray(body['tools']) || body['tools'].length === 0) return { say: 'ok' };
    const turn = turnOf(session, (body['messages'] ?? []) as readonly Json[]);
    this.turns.push(turn);
    return (await this.#scripts.get(session)?.(turn)) ?? { say: 'ok' };
  }

  #write(response: ServerResponse, step: Step): void {
    const isTool = 'run' in step;
    const block = isTool ? { type: 'tool_use', id: `toolu_${this.#nextTool++}`, name: 'Bash', input: {} } : { type: 'text', text: '' };
    const input = isTool && { command: step.run, description: 'a command', dangerouslyDisableSandbox: step.outside };
    const delta = isTool ? { type: 'input_json_delta', partial_json: JSON.stringify(input) } : { type: 'text_delta', text: step.say };
    const usage = { input_tokens: 1, output_tokens: 1 };
    const message = { id: `msg_${this.turns.length}`, type: 'message', role: 'assistant', model: 'm', content: [], usage };
    const stop = { stop_reason: isTool ? 'tool_use' : 'end_turn', stop_sequence: null };
    const events: Json[] = [
      { type: 'message_start', message: { ...message, stop_reason: null, stop_sequence: null } },
      { type: 'content_block_start', index: 0, content_block: block },
      { type: 'content_block_delta', index: 0, delta },
      { type: 'content_block_stop', index: 0 },
      { type: 'message_delta', delta: stop, usage: { output_tokens: 1 } },
      { type: 'message_stop' },
    ];
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(events.map((event) => `event: ${String(event['type'])}\ndata: ${JSON.stringify(event)}\n\n`).join(''));
  }
}

async function readBody(request: IncomingMessage): Promise<Json | undefined> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) return undefined;
    chunks.push(chunk);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8')) as Json;
  } catch {
    return undefined; // not one of the API's requests
  }
}

function turnOf(session: string, messages: readonly Json[]): Turn {
  const last = messages.findLastIndex((message) => message['role'] === 'assistant');
  const fresh = messages.slice(last + 1);
  const blocks = (message: Json): Json[] =>
    typeof message['content'] === 'string' ? [{ type: 'text', text: message['content'] }] : (message['content'] as Json[]);
  const textOf = (block: Json): string => {
    if (block['type'] === 'text') return String(block['text']);
    const { content } = block;
    if (typeof content === 'string') return content;
    return Array.isArray(content) ? (content as Json[]).map(textOf).join('\n') : '';
  };
  const all = fresh.flatMap(blocks);
  return {
    session,
    news: all.map(textOf).join('\n'),
    results: all.filter((block) => block['type'] === 'tool_result').map(textOf),
    injected: fresh
      .filter((message) => message['role'] === 'system')
      .flatMap(blocks)
      .map(textOf)
      .join('\n'),
  };
}

const ID = '[0-9a-z]{20,40}';
/** A command of a notice, or the one that ax's answer to a command names next. */
const SETUP = /^(\S*ax(?: --state-dir \S+)? agent setup --name \S+ --workspace \S+)$/m;
const FETCH = new RegExp(
  `^(?:next: )?(\\S*ax(?: --state-dir \\S+)? messages fetch ${ID} --workspace \\S+(?: --code [0-9a-f]{32})?)$`,
  'gm',
);

/**
 * A model that does what ax says: runs exactly the command of a notice, then each fetch that the answers to it name, once per message,
 * and then says "done". Pushes what it ran to `ran`.
 */
export function obedient(ran: string[] = []): Script {
  const seen = new Set<string>();
  const queue: string[] = [];
  return ({ news }) => {
    const found = [SETUP.exec(news)?.[1], ...[...news.matchAll(FETCH)].map((match) => match[1])];
    for (const command of found) {
      if (command === undefined || seen.has(command)) continue;
      seen.add(command);
      queue.push(command);
    }
    const next = queue.shift();
    if (next === undefined) return { say: 'done' };
    ran.push(next);
    return { run: next };
  };
}
