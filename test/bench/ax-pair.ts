/**
 * Two real daemons of ax, paired over loopback, and messages from one to the other until the signed acceptance is stored at the sender.
 *
 * Owns what is measured of ax: from the call on the sender's control socket to the event of the acceptance, which is read from the
 * public event log (`admin.events`, one long poll on a connection of its own). The event is written in the transaction that stores the
 * receipt and told after its flush. Following the log costs the sending daemon work that a user who does not follow it would not have; it
 * counts against ax.
 * Limits on rates and stored messages are raised in config.json, because the benchmark means to exceed them; nothing else is set.
 */
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { EventRow } from '../../protocol/control.ts';
import { MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import { connectControl, type ControlClient } from '../e2e/client.ts';
import { Bed, join2 } from '../e2e/hosts.ts';
import type { Host } from '../e2e/hosts.ts';
import { cpuSeconds } from './process-cost.ts';

/** Requests that the daemon takes at once on one connection are 64; more senders share more connections. */
const SENDERS_PER_CONNECTION = 32;
const WARM_MESSAGES = 5000;
const POLL_MS = 20_000;
const EVENTS_PER_ANSWER = 500;
/** The states of a message that the loop need not hear of. */
const ON_ITS_WAY: ReadonlySet<string> = new Set(['queued', 'forwarding']);
const NO_LIMITS = {
  messages_per_minute: 10_000_000,
  message_burst: 10_000_000,
  waiting_messages: 100_000_000,
  waiting_bytes: 2 ** 44,
  kept_messages: 100_000_000,
  kept_bytes: 2 ** 44,
};

/** Nothing of this bounds what is measured: a host whose owner raised every limit that may be raised. */
export function withoutLimits(host: Host): void {
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  writeFileSync(join(host.stateDir, 'config.json'), JSON.stringify({ limits: NO_LIMITS }), { mode: 0o600 });
}

export class AxPair {
  readonly bed: Bed;
  readonly a: Host;
  readonly b: Host;

  private constructor(bed: Bed, a: Host, b: Host) {
    this.bed = bed;
    this.a = a;
    this.b = b;
  }

  /** Two paired daemons, up for each other. `prepare` sees each host before its daemon starts. */
  static async start(prepare: (host: Host) => void = () => undefined): Promise<AxPair> {
    const bed = new Bed();
    try {
      const hosts = [bed.host('hosta'), bed.host('hostb')] as const;
      for (const host of hosts) {
        withoutLimits(host);
        prepare(host);
      }
      await Promise.all(hosts.map((host) => host.start({ direct: true, args: ['--listen', '/ip4/127.0.0.1/tcp/0', '--name', host.name] })));
      await join2(...hosts);
      return new AxPair(bed, ...hosts);
    } catch (error) {
      await bed.end();
      throw error;
    }
  }

  end(): Promise<void> {
    return this.bed.end();
  }

  /** Makes both daemons the long-lived ones they stand for, whose code the engine has compiled: messages, for at most so long. */
  async warm(limitMs: number): Promise<void> {
    const sender = await AxSender.open(this.a, SENDERS_PER_CONNECTION);
    const [workspace, body] = [this.b.workspace('warm'), new Uint8Array(1024).fill(0x61)];
    const end = performance.now() + limitMs;
    let left = WARM_MESSAGES;
    const one = async (_none: unknown, which: number): Promise<void> => {
      while (left-- > 0 && performance.now() < end) await sender.send(which, this.b, workspace, body);
    };
    await Promise.all(Array.from({ length: SENDERS_PER_CONNECTION }, one));
    await sender.close();
  }

  /** Processor time of both daemons so far, seconds of one core: sender, receiver. */
  cpu(): readonly [number, number] {
    return [cpuSeconds(this.a.pid), cpuSeconds(this.b.pid)];
  }
}

interface Awaited {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** Of this process so far: no two senders may use the same id. */
let requests = 0;

/** Sends from one host to others and knows when each message is accepted. */
export class AxSender {
  readonly #clients: readonly ControlClient[];
  readonly #follower: ControlClient;
  readonly #waiting = new Map<string, Awaited>();
  /** Ended before the answer to the send was read: the two come over different connections. */
  readonly #early = new Map<string, string>();
  #since: number;
  #isOver = false;
  #failed: Error | undefined;

  private constructor(clients: readonly ControlClient[], follower: ControlClient, since: number) {
    this.#clients = clients;
    this.#follower = follower;
    this.#since = since;
    void this.#follow();
  }

  /** Connects to the daemon of `from`, for so many senders at once. */
  static async open(from: Host, senders: number): Promise<AxSender> {
    const count = Math.ceil(senders / SENDERS_PER_CONNECTION);
    const clients = await Promise.all(Array.from({ length: count }, () => connectControl(from.socketPath)));
    const follower = await connectControl(from.socketPath);
    const { next_seq } = await follower.call<{ next_seq: number }>('admin.events', { limit: 1 });
    return new AxSender(clients, follower, next_seq);
  }

  /** Sends a body to a folder of another host; resolves with the id when the signed acceptance is stored at the sender. */
  async send(sender: number, to: Host, workspace: string, body: Uint8Array): Promise<string> {
    const client = this.#clients[sender % this.#clients.length]!;
    const request = `bench-${process.pid}-${(requests += 1)}`;
    const given = body.length <= MAX_PIECE_BYTES ? { body } : { upload: await handOver(client, body) };
    const draft = { host: to.hostId, workspace, harness: 'claude', kind: 'message', ...given, request_id: request };
    const { message_id } = await client.call<{ message_id: string }>('message.send', draft);
    const early = this.#early.get(message_id);
    if (early !== undefined) {
      this.#early.delete(message_id);
      if (early !== 'accepted') throw new Error(`${message_id} is ${early}`);
      return message_id;
    }
    if (this.#failed !== undefined) throw this.#failed;
    await new Promise<void>((resolve, reject) => this.#waiting.set(message_id, { resolve, reject }));
    return message_id;
  }

  async close(): Promise<void> {
    this.#isOver = true;
    await Promise.all([this.#follower, ...this.#clients].map((client) => client.close()));
  }

  async #follow(): Promise<void> {
    try {
      while (!this.#isOver) {
        const asked = { since: this.#since, limit: EVENTS_PER_ANSWER, wait_ms: POLL_MS };
        const { events, next_seq } = await this.#follower.call<{ events: EventRow[]; next_seq: number }>('admin.events', asked);
        this.#since = next_seq;
        for (const event of events) if (event.message_id !== null && event.state !== null) this.#told(event.message_id, event);
      }
    } catch (error) {
      if (this.#isOver) return;
      this.#failed = error instanceof Error ? error : new Error(String(error));
      for (const one of this.#waiting.values()) one.reject(this.#failed);
      this.#waiting.clear();
    }
  }

  #told(id: string, { type, state, detail }: EventRow): void {
    if (!type.startsWith('message.') || state === null || ON_ITS_WAY.has(state)) return;
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (waiting === undefined) this.#early.set(id, state);
    else if (state === 'accepted') waiting.resolve();
    else waiting.reject(new Error(`${id} is ${state}: ${detail ?? 'no reason was told'}`));
  }
}

/** Hands a body over in parts, as `ax send` does with one that fits into no single request; gives its name. */
async function handOver(client: ControlClient, body: Uint8Array): Promise<string> {
  const upload = randomBytes(16).toString('hex');
  for (let index = 0; index * MAX_PIECE_BYTES < body.length; index++) {
    const part = body.subarray(index * MAX_PIECE_BYTES, (index + 1) * MAX_PIECE_BYTES);
    await client.call('message.upload', { upload, index, body: part });
  }
  return upload;
}
