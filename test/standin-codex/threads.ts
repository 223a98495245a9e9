/**
 * The threads of the stand-in Codex daemon: loading, turns, queues, and the pause a person's interruption makes.
 *
 * Owns the rules of the queue as they were observed: one turn per item, first in first out, never inside a running turn; nothing runs
 * while paused; items outlive the daemon. The people in front of the threads are the test; the model is standin/model.ts.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Model } from '../standin/model.ts';
import type { Emit, StandInCodexOptions, ThreadOptions, TurnEnd } from './options.ts';
import { foreignItem, isEphemeral, makeId, makeThread, restored, statusOf, storedOf, textOf } from './thread.ts';
import type { Item, Stored, Thread } from './thread.ts';

export interface ThreadsOptions {
  readonly options: StandInCodexOptions;
  readonly emit: Emit;
  /** To every initialized client. */
  readonly broadcast: (method: string, params: unknown) => void;
  readonly environment: (threadId: string) => NodeJS.ProcessEnv;
  /** The Thread object of a thread. */
  readonly face: (thread: Thread) => Record<string, unknown>;
}

export class Threads {
  autorun: boolean;
  holdTurns: boolean;
  readonly #around: ThreadsOptions;
  readonly #threads = new Map<string, Thread>();
  readonly #file: string;
  readonly #poll: NodeJS.Timeout;

  constructor(around: ThreadsOptions) {
    this.#around = around;
    this.autorun = around.options.autorun ?? true;
    this.holdTurns = around.options.holdTurns ?? false;
    this.#file = join(around.options.home, 'standin-threads.json');
    for (const stored of readStored(this.#file)) this.#threads.set(stored.id, restored(stored));
    this.#poll = setInterval(() => {
      for (const thread of this.#threads.values()) if (thread.options.embedded === true) this.#drain(thread);
    }, around.options.ownerPollMs ?? 200);
  }

  stop(): void {
    clearInterval(this.#poll);
    for (const thread of this.#threads.values()) {
      clearTimeout(thread.timer);
      thread.turn?.end();
    }
  }

  get all(): readonly Thread[] {
    return [...this.#threads.values()];
  }

  get(id: string): Thread | undefined {
    return this.#threads.get(id);
  }

  add(options: ThreadOptions): Thread {
    const thread = makeThread(options);
    this.#threads.set(thread.id, thread);
    this.#store();
    if (thread.loaded) this.#around.broadcast('thread/started', { thread: this.#around.face(thread) });
    this.#restartUnload(thread);
    return thread;
  }

  // What people do

  /** The user asks something: a turn that goes on until it is ended. It lifts a pause when it ends well. */
  userTurn(thread: Thread): void {
    if (thread.turn !== undefined) throw new Error('a turn runs already');
    this.#begin(thread, 'user', 'PRIVATE-PROMPT', null);
  }

  endTurn(thread: Thread, how: TurnEnd): void {
    const { turn } = thread;
    if (turn === undefined) throw new Error('no turn runs');
    turn.end();
    thread.turn = undefined;
    thread.flags = [];
    thread.paused = how === 'interrupted';
    thread.isBroken = how === 'failed';
    this.#store();
    this.#around.emit({ event: 'turn_end', thread: thread.id, how, runs: turn.runs });
    this.#tell(thread, 'turn/completed', { threadId: thread.id, turn: { id: turn.id, status: how } });
    this.changed(thread);
    this.#restartUnload(thread);
    this.#drain(thread);
  }

  setFlags(thread: Thread, flags: readonly string[]): void {
    thread.flags = flags;
    this.changed(thread);
  }

  setBroken(thread: Thread, isBroken: boolean): void {
    thread.isBroken = isBroken;
    this.changed(thread);
  }

  /** Its TUI quits: it stays loaded for a while. */
  leave(thread: Thread): void {
    thread.watched = false;
    this.#restartUnload(thread);
  }

  unload(thread: Thread): void {
    clearTimeout(thread.timer);
    thread.turn?.end();
    thread.turn = undefined;
    thread.loaded = false;
    thread.watched = false;
    thread.listeners.clear();
    if (isEphemeral(thread)) this.#threads.delete(thread.id);
    this.#around.emit({ event: 'unloaded', thread: thread.id });
    this.changed(thread);
    this.#around.broadcast('thread/closed', { threadId: thread.id });
  }

  /** Somebody opens a stored thread again: what waits in its queue is run, unless it is paused. */
  resume(thread: Thread, isWatched: boolean): void {
    thread.archived = false;
    thread.loaded = true;
    thread.watched ||= isWatched;
    this.changed(thread);
    this.#restartUnload(thread);
    this.#drain(thread);
  }

  archive(thread: Thread): void {
    thread.archived = true;
    this.unload(thread);
    this.#store();
    this.#around.broadcast('thread/archived', { threadId: thread.id });
  }

  /** A turn of the user moved it to another folder. */
  move(thread: Thread, cwd: string): void {
    thread.cwd = cwd;
    this.#store();
  }

  rename(thread: Thread, name: string): void {
    thread.name = name;
    this.#around.broadcast('thread/name/updated', { threadId: thread.id, threadName: name });
  }

  fill(thread: Thread, count: number): void {
    for (let made = 0; made < count; made++) thread.queue.push(foreignItem());
    this.#queueChanged(thread);
  }

  /** `thread/queue/start`, and what a person does to the same end. */
  startQueue(thread: Thread): void {
    thread.paused = false;
    this.#store();
    this.#drain(thread);
  }

  // What clients do

  append(thread: Thread, clientId: string, input: readonly unknown[]): Item {
    const whole = input.map((part) => ({ ...(part as object), text_elements: (part as { text_elements?: unknown }).text_elements ?? [] }));
    const item: Item = { id: makeId(), clientId, input: whole };
    thread.queue.push(item);
    this.#around.emit({ event: 'queued', thread: thread.id, item: item.id, clientId, text: textOf(item.input) });
    this.#queueChanged(thread);
    return item;
  }

  remove(thread: Thread, itemId: string | undefined): boolean {
    const before = thread.queue.length;
    thread.queue = itemId === undefined ? [] : thread.queue.filter((item) => item.id !== itemId);
    this.#queueChanged(thread);
    return thread.queue.length < before;
  }

  async run(thread: Thread, command: string): Promise<void> {
    await this.#model(thread).run(command);
  }

  /** Every client hears of a thread's status, wanted or not. */
  changed(thread: Thread): void {
    if (thread.options.embedded === true) return;
    this.#around.broadcast('thread/status/changed', { threadId: thread.id, status: statusOf(thread) });
  }

  #queueChanged(thread: Thread): void {
    this.#store();
    this.#tell(thread, 'thread/queue/changed', { threadId: thread.id });
    if (thread.options.embedded !== true) this.#drain(thread);
  }

  /** The next item of a thread that may run one gets its turn shortly after. */
  #drain(thread: Thread): void {
    const isReady = (): boolean =>
      (thread.loaded || (thread.options.embedded === true && !thread.archived)) &&
      thread.turn === undefined &&
      !thread.paused &&
      thread.queue.length > 0;
    if (!isReady()) return;
    setTimeout(() => {
      if (!isReady()) return;
      const item = thread.queue.shift()!;
      this.#store();
      this.#begin(thread, 'queue', textOf(item.input), item.clientId);
    }, this.#around.options.turnDelayMs ?? 5);
  }

  #begin(thread: Thread, trigger: 'queue' | 'user', text: string, clientId: string | null): void {
    const { emit } = this.#around;
    const model = this.#model(thread);
    const turn = { id: makeId(), trigger, runs: 0, end: () => model.kill() };
    thread.turn = turn;
    thread.hasTurn = true;
    thread.updatedAt = Math.floor(Date.now() / 1000);
    this.#store();
    emit({ event: 'turn', thread: thread.id, text, clientId, trigger });
    this.changed(thread);
    const item = { type: 'userMessage', id: makeId(), clientId, content: [{ type: 'text', text }] };
    this.#tell(thread, 'turn/started', { threadId: thread.id, turn: { id: turn.id, status: 'inProgress' } });
    for (const step of ['started', 'completed']) this.#tell(thread, `item/${step}`, { threadId: thread.id, turnId: turn.id, item });
    if (trigger === 'user' || this.holdTurns) return;
    void model
      .turn([text], () => [])
      .then((runs) => {
        turn.runs = runs;
        if (thread.turn === turn) this.endTurn(thread, 'completed');
      });
  }

  #model(thread: Thread): Model {
    const { options, emit, environment } = this.#around;
    return new Model(
      {
        cwd: thread.cwd,
        environment: () => environment(thread.id),
        maxRuns: options.maxRuns ?? 5,
        emit: (event) => {
          if (event.event === 'ran') emit(event);
        },
      },
      this.autorun,
      options.reply,
    );
  }

  #tell(thread: Thread, method: string, params: unknown): void {
    for (const listener of thread.listeners) listener.notify(method, params);
  }

  #restartUnload(thread: Thread): void {
    clearTimeout(thread.timer);
    if (!thread.loaded) return;
    thread.timer = setTimeout(() => {
      if (thread.loaded && !thread.watched && thread.listeners.size === 0 && thread.turn === undefined) this.unload(thread);
    }, this.#around.options.unloadDelayMs ?? 60_000);
    thread.timer.unref();
  }

  #store(): void {
    const stored = this.all.filter((thread) => !isEphemeral(thread) && (thread.hasTurn || thread.queue.length > 0)).map(storedOf);
    writeFileSync(`${this.#file}.new`, JSON.stringify(stored), { mode: 0o600 });
    renameSync(`${this.#file}.new`, this.#file);
  }
}

function readStored(file: string): readonly Stored[] {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Stored[];
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []; // its first start
    throw error;
  }
}
