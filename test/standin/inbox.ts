/**
 * The stand-in's inbox: the Unix socket a session listens on, what it does with a frame, and the receipts it sends back.
 *
 * Owns the socket protocol as it was observed on the genuine program: line limits, the order of checks, the inbound decision,
 * guards that drop silently, holding with approval and expiry, and the conditions under which a receipt is sent at all.
 * It never writes on an inbound connection. What happens to queued messages is session.ts's.
 */
import { randomUUID } from 'node:crypto';
import { chmodSync, lstatSync } from 'node:fs';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { dirname } from 'node:path';
import type { Emit, Inbound } from './options.ts';

const MAX_LINE_CHARS = 1_048_576;
const FIRST_LINE_LIMIT_MS = 30_000;
const DUPLICATE_WINDOW_MS = 300;
const BURST_WINDOW_MS = 1000;
const BURST = 30;
const MAX_QUEUED = 50;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const FROM_MODE = /^<cross-session-message\b[^>]*\bfrom-mode="(prompting|bypass)"/;

interface Held {
  readonly content: string;
  readonly msgId: string | null;
  readonly from: string | null;
  readonly timer: NodeJS.Timeout | undefined;
}

export interface InboxOptions {
  readonly path: string;
  readonly dialogTimeoutMs: number;
  readonly decides: 'approve' | 'deny' | undefined;
  readonly receipts: boolean;
  /** What the first line of a connection must name; undefined: nothing. */
  readonly requiredToken: string | undefined;
  readonly emit: Emit;
  readonly sessionId: () => string;
  readonly queued: () => number;
  readonly onQueued: (content: string) => void;
  readonly onHeldChanged: () => void;
}

export class Inbox {
  inbound: Inbound;
  mode: 'prompting' | 'bypass';
  /** Connections that ever came, and bytes read on them. */
  connections = 0;
  bytes = 0;
  readonly #options: InboxOptions;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #held: Held[] = [];
  #recent: { readonly at: number; readonly content: string }[] = [];

  constructor(options: InboxOptions, inbound: Inbound, mode: 'prompting' | 'bypass') {
    this.#options = options;
    this.inbound = inbound;
    this.mode = mode;
    this.#server = createServer((socket) => this.#onConnection(socket));
  }

  get held(): number {
    return this.#held.length;
  }

  /** True while the user is shown the question; a `hold` by policy asks nobody. */
  get isDialogOpen(): boolean {
    return this.#held.length > 0 && this.inbound !== 'hold';
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(this.#options.path, resolve);
    });
    chmodSync(this.#options.path, 0o600);
  }

  /** Stops listening; the socket file goes with it. */
  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }

  /** The user's or the clock's answer to every held message. */
  async decide(status: 'delivered' | 'denied' | 'expired', detail?: string): Promise<void> {
    await this.#settle(this.#held, status, detail);
  }

  async #settle(messages: readonly Held[], status: 'delivered' | 'denied' | 'expired', detail?: string): Promise<void> {
    this.#held = this.#held.filter((one) => !messages.includes(one));
    this.#options.onHeldChanged();
    for (const message of messages) {
      clearTimeout(message.timer);
      await this.#receipt(status, message.msgId, message.from, detail);
      if (status === 'delivered') this.#options.onQueued(message.content);
    }
  }

  async setInbound(value: Inbound): Promise<void> {
    this.inbound = value;
    if (value === 'accept') await this.decide('delivered');
    if (value === 'refuse') await this.decide('expired', 'refused');
  }

  #onConnection(socket: Socket): void {
    this.#sockets.add(socket);
    this.connections += 1;
    let text = '';
    let isLet = this.#options.requiredToken === undefined;
    const take = (line: string): void => {
      if (isLet) return this.#onLine(line);
      isLet = line === JSON.stringify({ type: 'auth', token: this.#options.requiredToken });
      if (!isLet) socket.destroy();
    };
    const timer = setTimeout(() => socket.destroy(), FIRST_LINE_LIMIT_MS);
    socket.setEncoding('utf8');
    socket.on('data', (chunk: string) => {
      this.bytes += Buffer.byteLength(chunk);
      const lines = (text + chunk).split('\n');
      text = lines.pop() ?? '';
      if (lines.length > 0) clearTimeout(timer);
      if ([...lines, text].some((line) => line.length > MAX_LINE_CHARS)) {
        socket.destroy();
        return;
      }
      for (const line of lines) if (!socket.destroyed) take(line);
    });
    socket.on('end', () => {
      if (text !== '') take(text);
    });
    socket.on('error', () => socket.destroy()); // a sender that broke off: what it wrote whole was taken
    socket.on('close', () => {
      clearTimeout(timer);
      this.#sockets.delete(socket);
    });
  }

  #onLine(line: string): void {
    let frame: Record<string, unknown>;
    try {
      const value: unknown = JSON.parse(line);
      if (typeof value !== 'object' || value === null) return;
      frame = value as Record<string, unknown>;
    } catch {
      return; // not JSON: skipped, and the connection goes on
    }
    if (frame['type'] !== 'user') return; // `auth` counts for nothing on Unix; unknown types are ignored
    const message = frame['message'] as Record<string, unknown> | undefined;
    const content = message?.['content'];
    if (typeof content !== 'string' || content === '') return;
    const text = (value: unknown): string | null => (typeof value === 'string' ? value : null);
    const msgId = text(frame['msg_id']);
    const from = text(frame['from']);
    const sessionId = text(frame['session_id']);
    const { decision, cause } = this.#decide(content, sessionId);
    this.#options.emit({ event: 'frame', decision, cause, content, msg_id: msgId, from, session_id: sessionId, line });
    if (decision === 'queued') this.#options.onQueued(content);
    if (decision === 'refused') void this.#receipt('expired', msgId, from, 'refused');
    if (decision === 'held') void this.#hold({ content, msgId, from });
  }

  #decide(content: string, sessionId: string | null): { decision: 'queued' | 'held' | 'refused' | 'dropped'; cause: string } {
    if (sessionId !== null && sessionId !== this.#options.sessionId()) return { decision: 'dropped', cause: 'session_id mismatch' };
    if (this.inbound === 'refuse') return { decision: 'refused', cause: 'refuse' };
    if (this.inbound === 'hold') return { decision: 'held', cause: 'hold' };
    if (this.inbound === 'unset') {
      const claimed = FROM_MODE.exec(content)?.[1];
      if (this.mode === 'bypass' && claimed !== 'bypass')
        return { decision: 'held', cause: claimed === undefined ? 'no-mode-asserted' : 'mode-mismatch' };
      if (this.mode === 'prompting' && claimed === 'bypass') return { decision: 'held', cause: 'mode-mismatch' };
    }
    const now = Date.now();
    this.#recent = this.#recent.filter((one) => now - one.at < BURST_WINDOW_MS);
    if (this.#recent.some((one) => one.content === content && now - one.at < DUPLICATE_WINDOW_MS))
      return { decision: 'dropped', cause: 'duplicate' };
    if (this.#recent.length >= BURST) return { decision: 'dropped', cause: 'rate-limited' };
    if (this.#options.queued() >= MAX_QUEUED) return { decision: 'dropped', cause: 'queue-full' };
    this.#recent.push({ at: now, content });
    return { decision: 'queued', cause: 'accepted' };
  }

  async #hold(message: { content: string; msgId: string | null; from: string | null }): Promise<void> {
    const { decides } = this.#options;
    const limit = this.inbound === 'hold' ? 0 : this.#options.dialogTimeoutMs;
    const held: Held = { ...message, timer: limit === 0 ? undefined : setTimeout(() => void this.#settle([held], 'expired'), limit) };
    this.#held.push(held);
    this.#options.onHeldChanged();
    await this.#receipt('held', message.msgId, message.from);
    if (decides !== undefined && this.isDialogOpen) await this.#settle([held], decides === 'approve' ? 'delivered' : 'denied');
  }

  /** Sends one receipt, if the sender's address is one that receipts go to. */
  async #receipt(status: string, msgId: string | null, from: string | null, detail?: string): Promise<void> {
    const { path, emit, receipts } = this.#options;
    const why = receipts ? addressFault(from, path) : 'connected endpoint is another process';
    if (why !== undefined || from === null) {
      emit({ event: 'receipt_skipped', status, why: why ?? 'unknown' });
      return;
    }
    const line = JSON.stringify({
      type: 'control',
      action: 'peer_message_status',
      status,
      ...(detail === undefined ? {} : { status_detail: detail }),
      reason: 'stand-in',
      from: `uds:${path}`,
      ...(msgId !== null && UUID.test(msgId) ? { orig_msg_id: msgId } : {}),
      msgV: 1,
      msg_id: randomUUID(),
    });
    await new Promise<void>((resolve) => {
      const socket = createConnection({ path: from.slice('uds:'.length) });
      socket.on('connect', () => socket.end(`${line}\n`));
      socket.on('error', (error) => emit({ event: 'receipt_skipped', status, why: error.message }));
      socket.on('finish', () => emit({ event: 'receipt_sent', status, orig_msg_id: msgId, to: from }));
      socket.on('close', () => resolve());
      socket.resume();
    });
  }
}

function addressFault(from: string | null, ownPath: string): string | undefined {
  if (from === null || !from.startsWith('uds:')) return 'unshaped';
  const target = from.slice('uds:'.length);
  if (dirname(target) !== dirname(ownPath)) return 'outside our socket namespace';
  try {
    const info = lstatSync(target);
    if (info.isSymbolicLink()) return 'reply target is a symlink';
    return info.isSocket() ? undefined : 'reply target is not a socket';
  } catch {
    return 'reply target is gone';
  }
}
