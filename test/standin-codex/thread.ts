/**
 * One thread of the stand-in Codex daemon: what is kept of it, and the Thread object that clients read.
 *
 * Owns the record and its faces (the object, the status, what is stored); what happens to it is threads.ts's. The object has every field
 * the genuine one was seen to have, user text among them, so that a reader who takes too much can be caught.
 */
import { randomBytes } from 'node:crypto';
import type { ThreadOptions } from './options.ts';

/** Who is told of a thread's turns. */
export interface Listener {
  notify(method: string, params: unknown): void;
}

export interface Item {
  readonly id: string;
  readonly clientId: string;
  readonly input: readonly unknown[];
}

export interface Thread {
  readonly id: string;
  readonly options: ThreadOptions;
  createdAt: number;
  updatedAt: number;
  cwd: string;
  name: string | null;
  loaded: boolean;
  archived: boolean;
  watched: boolean;
  hasTurn: boolean;
  paused: boolean;
  flags: readonly string[];
  isBroken: boolean;
  /** The running turn. */
  turn: { readonly id: string; readonly trigger: 'queue' | 'user'; runs: number; end: () => void } | undefined;
  queue: Item[];
  readonly listeners: Set<Listener>;
  timer: NodeJS.Timeout | undefined;
}

/** A UUID that begins with the time, as Codex makes them. */
export function makeId(): string {
  const hex = Date.now().toString(16).padStart(12, '0');
  const random = randomBytes(10).toString('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7${random.slice(0, 3)}-8${random.slice(3, 6)}-${random.slice(6, 18)}`;
}

export function makeThread(options: ThreadOptions): Thread {
  const now = Math.floor(Date.now() / 1000);
  const loaded = options.loaded !== false && options.archived !== true && options.embedded !== true;
  const filler = Array.from({ length: options.filled ?? 0 }, foreignItem);
  return {
    id: options.id ?? makeId(),
    options,
    createdAt: now,
    updatedAt: now,
    cwd: options.cwd,
    name: options.name ?? null,
    loaded,
    archived: options.archived === true,
    watched: options.watched ?? loaded,
    hasTurn: options.turnless !== true,
    paused: options.paused === true,
    flags: [],
    isBroken: false,
    turn: undefined,
    queue: filler,
    listeners: new Set(),
    timer: undefined,
  };
}

/** An item that somebody else put in the queue; its text is theirs. */
export function foreignItem(): Item {
  const id = makeId();
  return { id, clientId: `tui-${id}`, input: [{ type: 'text', text: 'PRIVATE-QUEUED text of another client', text_elements: [] }] };
}

/** The text of an input's parts, one line each. */
export function textOf(input: readonly unknown[]): string {
  const texts = input.map((part) => (part as { text?: unknown } | null)?.text);
  return texts.map((text) => (typeof text === 'string' ? text : '')).join('\n');
}

export function isEphemeral(thread: Thread): boolean {
  return thread.options.ephemeral !== undefined && thread.options.ephemeral !== false;
}

export function statusOf(thread: Thread): { readonly type: string; readonly activeFlags?: readonly string[] } {
  if (!thread.loaded) return { type: 'notLoaded' };
  if (thread.turn === undefined) return { type: thread.isBroken ? 'systemError' : 'idle' };
  return { type: 'active', activeFlags: thread.flags };
}

/** The Thread object as a client reads it. */
export function faceOf(thread: Thread, version: string, home: string): Record<string, unknown> {
  const { options } = thread;
  const ephemeral = isEphemeral(thread);
  return {
    id: thread.id,
    environments: [{ environmentId: 'local', cwd: thread.cwd, runtimeWorkspaceRoots: [thread.cwd] }],
    extra: null,
    sessionId: options.parent ?? thread.id,
    forkedFromId: null,
    attachedToThreadId: null,
    parentThreadId: options.parent ?? null,
    preview: options.preview ?? 'PRIVATE-PREVIEW of the first message',
    ephemeral,
    section: null,
    sectionEnteredAt: null,
    projectId: null,
    historyMode: 'paginated',
    modelProvider: 'openai',
    model: 'some-model',
    reasoningEffort: null,
    createdAt: thread.createdAt,
    updatedAt: thread.updatedAt,
    recencyAt: thread.updatedAt,
    status: statusOf(thread),
    path: ephemeral ? null : `${home}/sessions/2026/01/01/rollout-2026-01-01T00-00-00-${thread.id}.jsonl`,
    cwd: thread.cwd,
    cliVersion: version,
    originator: 'codex-tui',
    source: sourceOf(options),
    canAcceptDirectInput: thread.loaded ? options.direct !== false : null,
    threadSource: options.ephemeral === 'title' ? 'thread_title' : options.parent === undefined ? 'user' : 'subagent',
    agentNickname: null,
    agentRole: null,
    gitInfo: null,
    name: thread.name,
    daybreakEnabled: null,
    turns: [],
    ...options.fields,
  };
}

function sourceOf(options: ThreadOptions): unknown {
  if (options.source !== undefined) return options.source;
  if (options.parent === undefined) return options.embedded === true ? 'cli' : 'vscode';
  return { subAgent: { thread_spawn: { parent_thread_id: options.parent, depth: 1, agent_nickname: null, agent_role: null } } };
}

/** What outlives the daemon. */
export type Stored = Pick<Thread, 'id' | 'options' | 'createdAt' | 'cwd' | 'name' | 'archived' | 'paused' | 'queue'>;

export function storedOf(thread: Thread): Stored {
  const { id, options, createdAt, cwd, name, archived, paused, queue } = thread;
  return { id, options, createdAt, cwd, name, archived, paused, queue };
}

export function restored(stored: Stored): Thread {
  const thread = makeThread({ ...stored.options, id: stored.id, loaded: false, filled: 0 });
  const { createdAt, cwd, name, archived, paused, queue } = stored;
  return Object.assign(thread, { createdAt, cwd, name, archived, paused, queue, hasTurn: true });
}
