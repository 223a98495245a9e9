/**
 * Where Claude Code answers: one listening socket of ours beside the sessions' sockets, and the receipts that arrive there.
 *
 * A session sends receipts only to a socket in its own folder, served by the process that sent the notice. Owns those
 * sockets, their sweeping after a crash, and the matching of receipts to notices sent in this process. What arrives is
 * foreign: lines, connections and time are bounded, everything but a receipt is dropped and counted.
 * Invariant: a receipt is passed on only for a notice of this process, once per outcome.
 */
import { chmod, lstat, readdir, unlink } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Random } from '../clock/clock.ts';
import type { Log } from '../log.ts';
import { isPrivateFolder, probe, type Surroundings } from './claude-live.ts';
import { errorCode, MAX_SOCKET_PATH_BYTES } from './places.ts';
import type { NoticeResult } from './harness.ts';

/** Longest line a session may write to us, bytes; receipts have a few hundred. */
export const MAX_REPLY_LINE_BYTES = 64 * 1024;
const MAX_CONNECTIONS = 64;
const MAX_LINES_PER_CONNECTION = 64;
const CONNECTION_LIMIT_MS = 5000;
/** Notices whose receipts are still understood; older ones are forgotten. */
const MAX_SENT = 4096;
const OWN_NAME = /^ax-[1-9][0-9]{0,9}(?:-[0-9a-f]{8})?\.sock$/;

const RESULTS = {
  held: { outcome: 'held', detail: 'held until its user approves' },
  delivered: { outcome: 'approved', detail: 'approved by its user' },
  denied: { outcome: 'denied', detail: 'denied by its user' },
  expired: { outcome: 'lapsed', detail: 'nobody approved it in time' },
  refused: { outcome: 'blocked', detail: 'the session refuses messages' },
} as const satisfies Record<string, NoticeResult>;

export interface RepliesOptions {
  readonly around: Surroundings;
  readonly random: Random;
  readonly log: Log;
  readonly signal: AbortSignal;
  readonly onNotice: (noticeId: string, result: NoticeResult) => void;
}

interface Sent {
  /** The last outcome heard. */
  last: string;
  /** Heard before the attempt itself had its result; undefined once it had. */
  early: NoticeResult[] | undefined;
}

interface Listener {
  readonly path: string;
  readonly inode: number;
  readonly server: Server;
}

export class ReplySockets {
  readonly #options: RepliesOptions;
  readonly #listeners = new Map<string, Promise<Listener | undefined>>();
  readonly #swept = new Set<string>();
  readonly #connections = new Set<Socket>();
  readonly #sent = new Map<string, Sent>();
  #dropped = 0;

  constructor(options: RepliesOptions) {
    this.#options = options;
  }

  /** From now on receipts for this notice are understood; they are kept back until `release`. */
  expect(noticeId: string): void {
    this.#sent.set(noticeId, { last: 'sent', early: [] });
    if (this.#sent.size <= MAX_SENT) return;
    for (const oldest of this.#sent.keys()) {
      this.#sent.delete(oldest);
      break;
    }
  }

  /** The attempt has its result: what was kept back is passed on, and everything later at once. */
  release(noticeId: string): void {
    const sent = this.#sent.get(noticeId);
    const early = sent?.early ?? [];
    if (sent !== undefined) sent.early = undefined;
    for (const result of early) this.#pass(noticeId, result);
  }

  forget(noticeId: string): void {
    this.#sent.delete(noticeId);
  }

  /** The path of our socket in `folder`, bound when it was not; undefined when it cannot be. Never throws. */
  async ensure(folder: string): Promise<string | undefined> {
    const known = this.#listeners.get(folder);
    if (known !== undefined) {
      const listener = await known;
      if (listener !== undefined && (await inodeOf(listener.path)) === listener.inode) return listener.path;
      if (this.#listeners.get(folder) === known) this.#listeners.delete(folder);
      listener?.server.close(); // the file was taken away under us: nobody can reach this socket any more
    }
    let binding = this.#listeners.get(folder);
    if (binding === undefined) {
      binding = this.#bind(folder);
      this.#listeners.set(folder, binding);
    }
    return (await binding)?.path;
  }

  /** Removes what crashed daemons left in `folder`: sockets of ours, by name and owner, that nobody answers on. Once per folder. */
  async sweep(folder: string): Promise<void> {
    const { around, signal, log } = this.#options;
    if (this.#swept.has(folder) || !(await isPrivateFolder(folder, around.uid))) return;
    this.#swept.add(folder);
    for (const name of await namesIn(folder)) {
      if (!OWN_NAME.test(name)) continue;
      const path = join(folder, name);
      try {
        const info = await lstat(path);
        if (!info.isSocket() || info.uid !== around.uid || (await probe(path, around.clock, signal)) !== 'refused') continue;
        await unlink(path);
      } catch (error) {
        log.debug('claude.sweep_failed', { path, code: errorCode(error) });
      }
    }
  }

  /** Closes and removes every socket. */
  async close(): Promise<void> {
    for (const socket of this.#connections) socket.destroy();
    for (const binding of this.#listeners.values()) {
      const listener = await binding;
      if (listener === undefined) continue;
      await new Promise<void>((resolve) => void listener.server.close(() => resolve())); // closing removes the file as well
    }
    this.#listeners.clear();
  }

  async #bind(folder: string): Promise<Listener | undefined> {
    const { around, random, log, signal } = this.#options;
    if (signal.aborted || !(await isPrivateFolder(folder, around.uid))) return undefined;
    await this.sweep(folder);
    const plain = join(folder, `ax-${process.pid}.sock`);
    const other = join(folder, `ax-${process.pid}-${Buffer.from(random.bytes(4)).toString('hex')}.sock`);
    for (const path of [plain, other]) {
      if (Buffer.byteLength(path, 'utf8') > MAX_SOCKET_PATH_BYTES) continue;
      const server = createServer((socket) => this.#onConnection(socket));
      server.maxConnections = MAX_CONNECTIONS;
      try {
        await listen(server, path);
        // A failing accept (no more file descriptors) loses one receipt, not the daemon.
        server.on('error', (error) => log.debug('claude.reply_socket_error', { code: errorCode(error) }));
        await chmod(path, 0o600);
        const inode = await inodeOf(path);
        if (inode !== undefined) return { path, inode, server };
        server.close();
      } catch (error) {
        server.close();
        log.debug('claude.reply_socket_failed', { path, code: errorCode(error) });
      }
    }
    log.warn('claude.no_reply_socket', { folder });
    return undefined;
  }

  #onConnection(socket: Socket): void {
    let held: Buffer = Buffer.alloc(0);
    let lines = 0;
    const cancelLimit = this.#options.around.clock.after(CONNECTION_LIMIT_MS, () => socket.destroy());
    this.#connections.add(socket);
    const take = (line: Buffer): void => {
      lines += 1;
      if (lines > MAX_LINES_PER_CONNECTION || line.length > MAX_REPLY_LINE_BYTES) socket.destroy();
      else if (line.length > 0) this.#onLine(line.toString('utf8'));
    };
    socket.on('data', (chunk: Buffer) => {
      held = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
      for (let at = held.indexOf(10); at >= 0 && !socket.destroyed; at = held.indexOf(10)) {
        take(held.subarray(0, at));
        held = held.subarray(at + 1);
      }
      if (held.length > MAX_REPLY_LINE_BYTES) socket.destroy();
    });
    socket.on('end', () => take(held));
    socket.on('error', (error) => this.#options.log.debug('claude.reply_broken', { code: errorCode(error) }));
    socket.on('close', () => {
      cancelLimit();
      this.#connections.delete(socket);
    });
  }

  #onLine(line: string): void {
    const receipt = parseReceipt(line);
    const known = receipt === undefined ? undefined : this.#sent.get(receipt.noticeId);
    if (receipt === undefined || known === undefined) {
      this.#dropped += 1;
      // A model may answer a notice, a flood may come: counted, and told at 1, 2, 4, 8 and so on.
      if ((this.#dropped & (this.#dropped - 1)) === 0) this.#options.log.info('claude.replies_dropped', { count: this.#dropped });
      return;
    }
    const { noticeId, result } = receipt;
    if (known.last !== 'sent' && known.last !== 'held') return; // all others are final
    if (known.last === result.outcome) return;
    known.last = result.outcome;
    if (known.early === undefined) this.#pass(noticeId, result);
    else known.early.push(result);
  }

  #pass(noticeId: string, result: NoticeResult): void {
    if (result.outcome !== 'held') this.#sent.delete(noticeId);
    if (!this.#options.signal.aborted) this.#options.onNotice(noticeId, result);
  }
}

/** The receipt in one line, or undefined for anything else. Never throws. */
export function parseReceipt(line: string): { readonly noticeId: string; readonly result: NoticeResult } | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined; // not JSON: counted by the caller
  }
  if (typeof value !== 'object' || value === null) return undefined;
  const fields = value as Record<string, unknown>;
  const noticeId = fields['orig_msg_id'];
  const status = fields['status'];
  if (fields['type'] !== 'control' || fields['action'] !== 'peer_message_status' || typeof noticeId !== 'string') return undefined;
  if (status === 'expired' && fields['status_detail'] === 'refused') return { noticeId, result: RESULTS.refused };
  if (status !== 'held' && status !== 'delivered' && status !== 'denied' && status !== 'expired') return undefined;
  return { noticeId, result: RESULTS[status] };
}

function listen(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ path }, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

async function namesIn(folder: string): Promise<readonly string[]> {
  try {
    return await readdir(folder);
  } catch {
    return []; // gone again: nothing to sweep
  }
}

async function inodeOf(path: string): Promise<number | undefined> {
  try {
    return (await lstat(path)).ino;
  } catch {
    return undefined; // gone: the caller binds anew
  }
}
