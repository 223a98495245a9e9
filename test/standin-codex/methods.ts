/**
 * What the stand-in Codex daemon answers to a request: the checks in their observed order, the shapes, and the words of every error.
 *
 * Owns no state but the threads it is given. A method that touches a running turn, a person's pause or a thread's questions does what the
 * genuine one does, and is told as STEERED: ax may never call it. Checks: method, shape, initialized, experimental, id, the method's own.
 */
import type { Emit } from './options.ts';
import { isEphemeral, textOf } from './thread.ts';
import type { Item, Listener, Thread } from './thread.ts';
import type { Threads } from './threads.ts';

const MAX_QUEUE = 100;
const MAX_CHARS = 1_048_576;
const LIST_PAGE = 25;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export interface Client extends Listener {
  isInitialized: boolean;
  isExperimental: boolean;
  /** Notifications it does not want, by exact name. */
  optOut: ReadonlySet<string>;
  name: string;
}

export class RpcError extends Error {
  readonly code: number;
  readonly data: unknown;

  constructor(code: number, message: string, data?: unknown) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

export interface MethodsOptions {
  readonly threads: Threads;
  readonly emit: Emit;
  readonly home: string;
  readonly pageSize: number | undefined;
  readonly userAgent: (client: Client) => string;
  readonly face: (thread: Thread) => Record<string, unknown>;
}

type Params = Record<string, unknown>;
interface Method {
  /** Fields that must be there. */
  readonly needs: readonly string[];
  readonly isExperimental?: true;
  readonly steers?: true;
  readonly run: (params: Params, client: Client) => unknown;
}

const invalid = (message: string): RpcError => new RpcError(-32600, message);

export class Methods {
  readonly #around: MethodsOptions;
  readonly #methods: ReadonlyMap<string, Method>;

  constructor(around: MethodsOptions) {
    this.#around = around;
    this.#methods = new Map(Object.entries({ ...this.#reading(), ...this.#queueing(), ...this.#steering() }));
  }

  /** The answer of the daemon to any method but the broken ones; throws RpcError. */
  answer(client: Client, method: string, params: unknown): unknown {
    if (method === 'initialize') return this.#initialize(client, params);
    const known = this.#methods.get(method);
    if (known === undefined) throw this.unknownVariant(method);
    const given = fieldsOf(params, known.needs);
    if (!client.isInitialized) throw invalid('Not initialized');
    if (known.isExperimental === true && !client.isExperimental) throw invalid(`${method} requires experimentalApi capability`);
    if (known.steers === true)
      this.#around.emit({ event: 'STEERED', method, thread: typeof given['threadId'] === 'string' ? given['threadId'] : null });
    if (known.needs.includes('threadId')) requireId(String(given['threadId']));
    return known.run(given, client);
  }

  /** What an older or newer server says of a method that it does not have. */
  unknownVariant(method: string): RpcError {
    const known = ['initialize', ...this.#methods.keys()].filter((one) => one !== method).map((one) => `\`${one}\``);
    return invalid(`Invalid request: unknown variant \`${method}\`, expected one of ${known.join(', ')}`);
  }

  #initialize(client: Client, params: unknown): unknown {
    const given = fieldsOf(params, ['clientInfo']);
    if (client.isInitialized) throw invalid('Already initialized');
    const info = fieldsOf(given['clientInfo'], ['name', 'version']);
    const capabilities = (given['capabilities'] ?? {}) as Params;
    const optOut = capabilities['optOutNotificationMethods'];
    client.isInitialized = true;
    client.isExperimental = capabilities['experimentalApi'] === true;
    client.optOut = new Set(Array.isArray(optOut) ? optOut.map(String) : []);
    client.name = `${String(info['name'])}; ${String(info['version'])}`;
    return { userAgent: this.#around.userAgent(client), codexHome: this.#around.home, platformFamily: 'unix', platformOs: 'linux' };
  }

  #reading(): Record<string, Method> {
    const { threads, face, pageSize } = this.#around;
    return {
      'thread/loaded/list': {
        needs: [],
        run: (params) => {
          const ids = threads.all.filter((thread) => thread.loaded).map((thread) => thread.id);
          return pageOf(ids, params, pageSize ?? Number.POSITIVE_INFINITY);
        },
      },
      'thread/read': {
        needs: ['threadId'],
        run: (params) => {
          const thread = threads.get(String(params['threadId']));
          if (thread === undefined) throw invalid(`thread not loaded: ${String(params['threadId'])}`);
          return { thread: face(thread) };
        },
      },
      'thread/list': {
        needs: [],
        run: (params) => {
          const stored = threads.all.filter(
            (thread) => !isEphemeral(thread) && thread.hasTurn && thread.archived === (params['archived'] ?? false),
          );
          return { ...pageOf(stored.map(face), params, LIST_PAGE), backwardsCursor: null };
        },
      },
      'thread/unsubscribe': {
        needs: ['threadId'],
        run: (params, client) => {
          const was = threads.get(String(params['threadId']))?.listeners.delete(client) === true;
          return { status: was ? 'unsubscribed' : 'notSubscribed' };
        },
      },
      'server/diagnostics': { needs: [], isExperimental: true, run: () => ({ process: { id: process.pid } }) },
    };
  }

  #queueing(): Record<string, Method> {
    const { threads } = this.#around;
    return {
      'thread/queue/add': {
        needs: ['threadId', 'clientUserMessageId', 'input'],
        isExperimental: true,
        run: (params) => ({ queuedSubmission: itemFace(this.#add(params)) }),
      },
      'thread/queue/list': {
        needs: ['threadId'],
        isExperimental: true,
        run: (params) => pageOf(this.#stored(params).queue.map(itemFace), params, LIST_PAGE),
      },
      'thread/queue/delete': {
        needs: ['threadId', 'queuedSubmissionId'],
        isExperimental: true,
        run: (params) => ({ deleted: threads.remove(this.#stored(params), String(params['queuedSubmissionId'])) }),
      },
    };
  }

  #steering(): Record<string, Method> {
    const { threads } = this.#around;
    const loaded = (params: Params): Thread => {
      const thread = threads.get(String(params['threadId']));
      if (thread?.loaded !== true) throw invalid(`thread not found: ${String(params['threadId'])}`);
      return thread;
    };
    return {
      'thread/queue/start': {
        needs: ['threadId'],
        isExperimental: true,
        steers: true,
        run: (params) => {
          const thread = this.#stored(params);
          if (!thread.loaded) throw invalid('resume the thread before starting a queued message');
          if (thread.turn !== undefined) throw invalid('thread already has an active or pending turn');
          if (thread.queue.length === 0) throw invalid('queue is empty');
          threads.startQueue(thread);
          return {};
        },
      },
      'thread/resume': {
        needs: ['threadId'],
        steers: true,
        run: (params, client) => {
          const thread = this.#stored(params);
          if (thread.options.embedded === true) throw invalid(`thread ${thread.id} already has an active writer`);
          thread.listeners.add(client);
          threads.resume(thread, false);
          return { thread: this.#around.face(thread) };
        },
      },
      'turn/start': {
        needs: ['threadId', 'input'],
        steers: true,
        run: (params) => {
          const thread = loaded(params);
          if (thread.turn === undefined) threads.userTurn(thread);
          return { turn: { id: thread.turn?.id ?? null, status: 'inProgress', items: [] } };
        },
      },
      'turn/steer': { needs: ['threadId', 'input'], steers: true, run: (params) => ({ turnId: loaded(params).turn?.id ?? null }) },
      'turn/interrupt': {
        needs: ['threadId', 'turnId'],
        steers: true,
        run: (params) => {
          threads.endTurn(loaded(params), 'interrupted');
          return {};
        },
      },
      'thread/inject_items': {
        needs: ['threadId', 'items'],
        steers: true,
        run: (params) => {
          loaded(params);
          return {};
        },
      },
    };
  }

  #add(params: Params): Item {
    const thread = this.#stored(params);
    const { input } = params;
    if (isEphemeral(thread)) throw invalid(`ephemeral thread does not support queued submissions: ${thread.id}`);
    if (thread.archived) throw invalid(`session ${thread.id} is archived. Run \`codex unarchive ${thread.id}\` to unarchive it first.`);
    if (!Array.isArray(input) || input.length === 0) throw invalid('only user input can be added to the user-message queue');
    const chars = textOf(input).length;
    if (chars > MAX_CHARS)
      throw new RpcError(-32602, `Input exceeds the maximum length of ${MAX_CHARS} characters.`, {
        input_error_code: 'input_too_large',
        max_chars: MAX_CHARS,
        actual_chars: chars,
      });
    if (thread.options.direct === false) throw invalid('direct app-server input is not allowed for multi-agent v2 sub-agents');
    if (thread.queue.length >= MAX_QUEUE) throw invalid(`queue cannot contain more than ${MAX_QUEUE} submissions`);
    return this.#around.threads.append(thread, String(params['clientUserMessageId']), input);
  }

  #stored(params: Params): Thread {
    const id = String(params['threadId']);
    const thread = this.#around.threads.get(id);
    if (thread !== undefined) return thread;
    throw new RpcError(-32603, `failed to read thread: invalid thread-store request: no rollout found for thread id ${id}`);
  }
}

function fieldsOf(value: unknown, needs: readonly string[]): Params {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw invalid('Invalid request: missing field `params`');
  const missing = needs.find((name) => (value as Params)[name] === undefined);
  if (missing !== undefined) throw invalid(`Invalid request: missing field \`${missing}\``);
  for (const name of ['threadId', 'clientUserMessageId', 'cursor'])
    if (!['string', 'undefined'].includes(typeof (value as Params)[name]) && (value as Params)[name] !== null)
      throw invalid('Invalid request: invalid type: expected a string');
  return value as Params;
}

function requireId(id: string): void {
  if (UUID.test(id)) return;
  const at = id.search(/[^0-9a-fA-F-]/);
  if (at < 0) throw invalid(`invalid thread id: invalid length: expected length 32 for simple format, found ${id.length}`);
  const words = 'expected an optional prefix of `urn:uuid:` followed by [0-9a-fA-F-]';
  throw invalid(`invalid thread id: invalid character: ${words}, found \`${id[at]}\` at ${at + 1}`);
}

/** A page of a list: the cursor is the offset in decimal. */
function pageOf<T>(rows: readonly T[], params: Params, usual: number): { readonly data: readonly T[]; readonly nextCursor: string | null } {
  const cursor = typeof params['cursor'] === 'string' ? params['cursor'] : '0';
  if (!/^\d+$/.test(cursor)) throw invalid('invalid queue pagination cursor: invalid digit found in string');
  const from = Number(cursor);
  const limit = typeof params['limit'] === 'number' ? params['limit'] : usual;
  const end = from + limit;
  return { data: rows.slice(from, end), nextCursor: end < rows.length ? String(end) : null };
}

function itemFace(item: Item): Params {
  return { id: item.id, input: item.input, clientUserMessageId: item.clientId, responsesapiClientMetadata: null };
}
