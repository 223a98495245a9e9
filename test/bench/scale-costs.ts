/**
 * What one message, one connection and one reconnect cost, measured on two real cores of the daemon in this process: for scale.ts.
 *
 * Owns the pair (real links, real stores, one reading session) and the counting: bytes on the wire by scale-wire.ts, bytes
 * in the store by compacted copies of it, writes to the disk and processor time by the kernel's counts. All figures are of both ends
 * together, which is what a host pays that sends one message and receives one. Time is the clock seam's: days pass in a moment.
 */
import { generateKeyPairSync, randomBytes, sign } from 'node:crypto';
import { closeSync, mkdirSync, openSync, readFileSync, readSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { Actor } from '../../daemon/addressing.ts';
import type { Clock } from '../../daemon/clock/clock.ts';
import { systemClock, systemRandom } from '../../daemon/clock/system.ts';
import { createDaemon, type Daemon } from '../../daemon/daemon.ts';
import { systemFiles } from '../../daemon/files/system.ts';
import type { Harness, Session } from '../../daemon/harness/harness.ts';
import { createLibp2pLink } from '../../daemon/link/libp2p.ts';
import type { Link } from '../../daemon/link/link.ts';
import { silentLog } from '../../daemon/log.ts';
import { openLmdbStore } from '../../daemon/store/lmdb.ts';
import type { Received } from '../../daemon/received-row.ts';
import { unpack } from '../../daemon/store/rows.ts';
import type { OpenedStore, Table } from '../../daemon/store/store.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import { fill } from '../big/fill.ts';
import { Wire } from './scale-wire.ts';

const SESSION = '11111111-2222-4333-8444-555555555555';
/** The store's pages, bytes (daemon/store/lmdb.ts), and where a meta page has its number. */
const PAGE = 8192;
const COMMIT_AT = 152;
const LOCAL = '/ip4/127.0.0.1/tcp';
const SHELL: Actor = {
  origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'bench' },
  session: null,
};
const READER: Actor = { ...SHELL, session: { harness: 'claude', session_id: SESSION, pid: 1, socket: '/reader', config_dir: null } };

/** The system's clock, run `factor` times as fast; `pass` lets a span go by at once. */
class BentClock implements Clock {
  readonly #factor: number;
  #passed = 0;

  constructor(factor: number) {
    this.#factor = factor;
  }

  now(): number {
    return systemClock.now();
  }

  monotonic(): number {
    return systemClock.monotonic() * this.#factor + this.#passed;
  }

  after(delayMs: number, run: () => void): () => void {
    return systemClock.after(delayMs / this.#factor, run);
  }

  pass(ms: number): void {
    this.#passed += ms;
  }
}

/** One live session, which is never busy and reads when this program reads for it. */
function reader(workspace: string): Harness {
  const session: Session = {
    harness: 'claude',
    sessionId: SESSION,
    workspace,
    status: 'idle',
    statusSince: 0,
    startedAt: 0,
    version: 'bench',
    reachable: true,
    processKey: 'reader',
  };
  return {
    kind: 'claude',
    start: async (events) => events.onSessions([session]),
    stop: async () => undefined,
    sessions: () => [session],
    refresh: async () => [session],
    prove: async () => session,
    notify: async () => ({ outcome: 'written' }),
  };
}

interface End {
  readonly daemon: Daemon;
  readonly store: OpenedStore;
  readonly link: Link;
  readonly hostId: string;
}

async function end(
  folder: string,
  name: string,
  clock: Clock,
  listen: readonly string[],
  announce: readonly string[],
  filled: number,
): Promise<End> {
  const key = hostKeyFromSeed(systemRandom.bytes(32));
  const store = await openLmdbStore(join(folder, name));
  if (filled > 0) await fill(store, key, folder, filled);
  const link = createLibp2pLink({ key, listen, clock, log: silentLog });
  const daemon = createDaemon(
    { clock, random: systemRandom, store, link, harnesses: [reader(join(folder, 'work'))], files: systemFiles, log: silentLog, key },
    { name, announce, ax: { program: 'ax' }, control: '', pid: process.pid, onStop: () => undefined },
  );
  await daemon.start();
  return { daemon, store, link, hostId: key.hostId };
}

/** A sender that dials through the wire, and a receiver with a session that is set up. */
export class Pair {
  readonly clock: BentClock;
  readonly wire: Wire;
  readonly #folder: string;
  readonly #receiver: End;
  readonly #sender: End;
  #sent = 0;
  #copies = 0;
  #signedBytes = 0;

  private constructor(clock: BentClock, wire: Wire, folder: string, receiver: End, sender: End) {
    this.clock = clock;
    this.wire = wire;
    this.#folder = folder;
    this.#receiver = receiver;
    this.#sender = sender;
  }

  /** `factor`: how fast its clock runs; `filled`: so many messages of others wait in each store already. */
  static async open(folder: string, factor: number, filled = 0): Promise<Pair> {
    mkdirSync(join(folder, 'work'), { recursive: true });
    const [clock, wire] = [new BentClock(factor), new Wire()];
    const port = await wire.listen();
    const receiver = await end(folder, 'receiver', clock, [`${LOCAL}/0`], [`${LOCAL}/${port}`], filled);
    wire.to(Number(receiver.link.status().listen[0]?.split('/').at(-1)));
    const sender = await end(folder, 'sender', clock, [], [], filled);
    await sender.daemon.call('host.join', await receiver.daemon.call('host.invite', {}, SHELL), SHELL);
    await receiver.daemon.call('agent.setup', { name: 'reader', workspace: join(folder, 'work') }, READER);
    const pair = new Pair(clock, wire, folder, receiver, sender);
    await pair.untilUp();
    return pair;
  }

  async untilUp(): Promise<void> {
    await until('both ends up', async () => (await isUp(this.#sender)) && isUp(this.#receiver));
  }

  async untilDown(): Promise<void> {
    await until('both ends down', async () => !(await isUp(this.#sender)) && !(await isUp(this.#receiver)));
  }

  /** The whole way of a message: sent, accepted, picked up by its session, and the receipt of that stored at the sender. */
  async message(body: Uint8Array): Promise<void> {
    const { daemon: from } = this.#sender;
    const { daemon: at } = this.#receiver;
    const workspace = join(this.#folder, 'work');
    const draft = { host: this.#receiver.hostId, workspace, harness: 'claude', kind: 'message', subject: 'one of a great many', body };
    const { message_id: id } = await from.call('message.send', { ...draft, request_id: `scale-${(this.#sent += 1)}` }, SHELL);
    await this.#reached(id, 'accepted');
    const { hand_out } = await at.call('message.fetch', { id }, READER);
    await at.call('message.confirm', { id, hand_out }, READER);
    await this.#reached(id, 'fetched');
    if (this.#signedBytes > 0) return;
    const [row] = this.#receiver.store.range('inbox', { reverse: true, limit: 1 });
    if (row !== undefined) this.#signedBytes = unpack<Received>(row.value).signed.length;
  }

  async #reached(id: unknown, goal: string): Promise<void> {
    const { reached, state } = await this.#sender.daemon.call('message.wait', { id, until: goal, timeout_ms: 20_000 }, SHELL);
    if (reached !== true) throw new Error(`a message is ${String(state)} instead of ${goal}`);
  }

  /** Bytes in use in both stores, without the pages that are free: sender, receiver. */
  async inUse(): Promise<readonly [number, number]> {
    const copied = async ({ store }: End): Promise<number> => {
      const folder = join(this.#folder, `copy${(this.#copies += 1)}`);
      await store.copyTo(folder);
      const { size } = statSync(join(folder, 'data.mdb'));
      rmSync(folder, { recursive: true });
      return size;
    };
    return [await copied(this.#sender), await copied(this.#receiver)];
  }

  /** Length of the signed envelope of a message that was received; 0 before the first. */
  get signedBytes(): number {
    return this.#signedBytes;
  }

  /** Commits of both stores so far, together. */
  commits(): number {
    return commitsOf(this.#sender) + commitsOf(this.#receiver);
  }

  /** Lets days go by, until the daemons' own retention has emptied what these bounds name. */
  async age(days: number, empty: readonly (readonly [which: 'sender' | 'receiver', table: Table, prefix: string])[]): Promise<void> {
    this.clock.pass(days * 86_400_000);
    const ends = { sender: this.#sender, receiver: this.#receiver };
    const left = (): number =>
      empty.reduce(
        (sum, [which, table, prefix]) => sum + ends[which].store.count(table, { start: prefix, end: `${prefix}~`, limit: 100 }),
        0,
      );
    await until(`${days} days of retention`, async () => left() === 0);
  }

  async close(): Promise<void> {
    await Promise.all([this.#sender.daemon.stop(), this.#receiver.daemon.stop()]);
    this.wire.close();
    rmSync(this.#folder, { recursive: true });
  }
}

async function isUp({ daemon }: End): Promise<boolean> {
  const { hosts } = (await daemon.call('host.list', {}, SHELL)) as { hosts: { state: string }[] };
  return hosts.some(({ state }) => state === 'up');
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  for (const end = performance.now() + 60_000; !(await holds()); await new Promise((resolve) => setTimeout(resolve, 10)))
    if (performance.now() > end) throw new Error(`not within a minute: ${what}`);
}

/** Commits of a store so far: the number that its newest meta page carries, where this version of LMDB has it. */
function commitsOf({ store }: End): number {
  const file = openSync(join(store.status().path, 'data.mdb'), 'r');
  const metas = Buffer.alloc(2 * PAGE);
  readSync(file, metas);
  closeSync(file);
  return Math.max(...[0, PAGE].map((page) => Number(metas.readBigUInt64LE(page + COMMIT_AT))));
}

/**
 * Bytes that this process gave to write calls so far, to files and sockets. Not `write_bytes`: where the page cache has large folios, that
 * counts the whole folio for each page in it, twenty times what reaches the disk.
 */
export function writtenBytes(): number {
  return Number(/^wchar: (\d+)/m.exec(readFileSync('/proc/self/io', 'latin1'))?.[1]);
}

/** Seconds of one core that this process has used so far. */
export function usedSeconds(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/** Seconds of one core that ended children of this process have used, to 10 ms. */
export function childSeconds(): number {
  const text = readFileSync('/proc/self/stat', 'latin1');
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[13]) + Number(fields[14])) / 100;
}

/** Microseconds of processor time of one Ed25519 signature over 1 KiB, here and now: what other times are read beside. */
export function signMicroseconds(): number {
  const { privateKey } = generateKeyPairSync('ed25519');
  const record = randomBytes(1024);
  const from = usedSeconds();
  for (let n = 0; n < 5000; n++) sign(null, record, privateKey);
  return ((usedSeconds() - from) / 5000) * 1e6;
}
