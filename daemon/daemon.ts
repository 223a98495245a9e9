/**
 * The daemon: builds the core from its seams, wires it, and owns the order of starting and stopping.
 *
 * Used by main.ts with the real adapters and by the simulation with its own, so that everything above the seams is the same
 * code in both. `call` is the whole local API; it knows no transport.
 */
import type { DaemonStatus } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import type { HostKey } from '../protocol/identity.ts';
import type { HostId } from '../protocol/ids.ts';
import { SESSIONS_TIMEOUT_MS } from '../protocol/limits.ts';
import type { AxCommand } from '../protocol/notice.ts';
import { SealKeys } from '../protocol/seal.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../protocol/version.ts';
import { Admission } from './admission.ts';
import { Addressing } from './addressing.ts';
import type { Actor } from './addressing.ts';
import { Agents } from './agents.ts';
import type { Clock, Random } from './clock/clock.ts';
import { makeMethods } from './control/methods.ts';
import { Discovery } from './discovery.ts';
import { Events } from './events.ts';
import { Exchange } from './exchange.ts';
import type { Files } from './files/files.ts';
import { Greeting } from './greeting.ts';
import type { Harness } from './harness/harness.ts';
import { Inbox } from './inbox.ts';
import type { Received } from './inbox.ts';
import type { Link } from './link/link.ts';
import type { Log } from './log.ts';
import { Naming } from './naming.ts';
import { Notices } from './notices.ts';
import { Notifier } from './notifier.ts';
import { Outbox } from './outbox.ts';
import { Pairing } from './pairing.ts';
import { Peers } from './peers.ts';
import { Pickup } from './pickup.ts';
import { livenessNews } from './progress.ts';
import { Receipts } from './receipts.ts';
import { Registration } from './registration.ts';
import { Retention } from './retention.ts';
import { roomKeeper, unlessFull } from './room.ts';
import { Router } from './router.ts';
import { Status } from './status.ts';
import type { Store } from './store/store.ts';
import { Uptime } from './uptime.ts';

export interface Seams {
  readonly clock: Clock;
  readonly random: Random;
  readonly store: Store;
  readonly link: Link;
  readonly harnesses: readonly Harness[];
  readonly files: Files;
  readonly log: Log;
  readonly key: HostKey;
}

export interface Settings {
  /** How this host calls itself towards others. */
  readonly name: string;
  /** Where others are told to dial this host, as multiaddrs; empty: where it listens. */
  readonly announce: readonly string[];
  /** How its ax is called in notices and printed commands. */
  readonly ax: AxCommand;
  /** For the status: the control socket and the process. */
  readonly control: string;
  readonly pid: number;
  /** Asked to stop by `daemon.stop`. */
  readonly onStop: () => void;
}

export interface Daemon {
  /** Starts links and adapters; resolves when this host can be reached and asked. */
  start(): Promise<void>;
  /** Ends what waits: long polls are answered now, and nothing new is taken. */
  drain(): void;
  /** Stops in order: no new work, links, adapters, store. */
  stop(): Promise<void>;
  /** The local API. AxError only. */
  call(method: string, params: Readonly<Record<string, unknown>>, actor: Actor): Promise<Record<string, unknown>>;
}

/** Builds a daemon; nothing runs before `start`. */
export function createDaemon(seams: Seams, settings: Settings): Daemon {
  const { clock, random, link, log, key, files } = seams;
  const self = key.hostId;
  const uptime = new Uptime(seams.store, clock);
  const running = (): number => uptime.now();
  const events = new Events(seams.store, clock, running);
  const store = events.watch(seams.store);
  const peers = new Peers(store, settings.name);
  const agents = new Agents(store);
  const inbox = new Inbox(store, running);
  const outbox = new Outbox(store, running);
  const receipts = new Receipts(store);
  const notices = new Notices(store, running);
  const sealKeys = new SealKeys(key);
  const naming = new Naming(self, () => settings.name, peers, outbox, inbox);
  const requireRoom = roomKeeper(store, clock);
  const nonce = Buffer.from(random.bytes(12)).toString('hex');

  const greeting: Greeting = new Greeting({
    store,
    clock,
    link,
    log,
    peers,
    events,
    nonce,
    onReady: (host) => exchange.ready(host),
    onUntrusted: (host) => exchange.wake(host),
  });
  const onMessage = (row: Received): void => exchange.changed(row.sender, row.id);
  const onReceipt = (row: Received): void => {
    if (row.sender !== self) exchange.wake(row.sender);
  };
  const onReceived = (row: Received): void => notifier.wake(row.harness, row.workspace);
  const onChanged = (harness: string, workspace: string): void => notifier.wake(harness, workspace);
  const hasLiveSession = (harness: string, workspace: string): boolean => discovery.hasReachable(harness, workspace);

  const tellLiveness = livenessNews(inbox, hasLiveSession, onMessage);

  const discovery: Discovery = new Discovery({
    harnesses: seams.harnesses,
    agents,
    clock,
    log,
    ask: (host) => exchange.ask(host, { type: 'sessions' }, SESSIONS_TIMEOUT_MS),
    onSessions: (changed) => {
      for (const { harness, workspace } of changed) {
        notifier.wake(harness, workspace);
        tellLiveness(harness, workspace);
      }
    },
    onNotice: (noticeId, result) => void notifier.outcome(noticeId, result),
  });
  const notifier: Notifier = new Notifier({
    store,
    clock,
    random,
    log,
    self,
    ax: settings.ax,
    running,
    discovery,
    inbox,
    agents,
    notices,
    peers,
    events,
    onChanged: (sender, id) => exchange.changed(sender, id),
  });
  const ownAddresses = (): readonly string[] => (settings.announce.length > 0 ? settings.announce : dialable(link.status().listen));
  const pairing: Pairing = new Pairing({
    store,
    clock,
    random,
    link,
    log,
    self,
    ownName: () => settings.name,
    ownAddresses,
    running,
    peers,
    outbox,
    receipts,
    events,
    naming,
    greeting,
  });
  const admission = new Admission({
    store,
    clock,
    key,
    sealKeys,
    files,
    running,
    peers,
    inbox,
    agents,
    events,
    requireRoom,
    hasLiveSession,
    onReceived,
  });
  const exchange: Exchange = new Exchange({
    store,
    clock,
    link,
    log,
    key,
    running,
    greeting,
    peers,
    outbox,
    inbox,
    receipts,
    events,
    admission,
    hasLiveSession,
    sessions: () => discovery.localAnswer(),
    pair: (peer, request) => pairing.handle(peer, request),
  });
  const registration = new Registration({
    store,
    clock,
    ax: settings.ax,
    files,
    discovery,
    agents,
    inbox,
    notices,
    events,
    onChanged,
    onMessage,
  });
  const pickup = new Pickup({
    store,
    clock,
    random,
    key,
    sealKeys,
    ax: settings.ax,
    files,
    discovery,
    naming,
    agents,
    inbox,
    outbox,
    receipts,
    peers,
    notices,
    events,
    onMessage,
    onReceipt,
    onChanged,
  });
  const addressing = new Addressing({ files, naming, discovery, agents, isReady: (host) => greeting.isReady(host) });
  const router = new Router({
    store,
    clock,
    random,
    key,
    sealKeys,
    running,
    naming,
    addressing,
    agents,
    inbox,
    outbox,
    events,
    pickup,
    requireRoom,
    mayLeaveNow: (host) => exchange.mayLeaveNow(host),
    isPaired: (host, reader) => peers.get(host, reader) !== undefined,
    onQueued: (host, id) => exchange.wake(host, id),
    onReceived,
  });
  const retention = new Retention({ store, clock, log, key, uptime, outbox, inbox, receipts, peers, notices, events, onReceipt });

  const daemonStatus = (): DaemonStatus => ({
    running: true,
    pid: settings.pid,
    version: AX_VERSION,
    protocol: CONTROL_PROTOCOL,
    host_id: self,
    name: settings.name,
    uptime_ms: uptime.thisLife(),
    listen: link.status().listen,
    control: settings.control,
    warnings: copiedKeyWarnings(greeting, naming),
  });
  const status = new Status({
    store,
    clock,
    self,
    sealKeys,
    running,
    files,
    naming,
    greeting,
    discovery,
    peers,
    agents,
    outbox,
    inbox,
    notices,
    events,
    daemon: daemonStatus,
  });
  const methods = makeMethods({
    clock,
    self,
    ax: settings.ax,
    link,
    naming,
    greeting,
    peers,
    agents,
    outbox,
    events,
    discovery,
    pairing,
    registration,
    pickup,
    router,
    status,
    exchange,
    inbox,
    store,
    daemonStatus,
    ownAddresses,
    isOpen: () => open,
    onStop: settings.onStop,
  });

  let open = false;
  return {
    async start() {
      await unlessFull(
        log,
        store.write((tx) => events.add(tx, { type: 'daemon.started', detail: AX_VERSION })),
      );
      await link.start({
        onRequest: (peer, channel, bytes) => exchange.handle(peer, channel, bytes),
        onPeer: (peer, up) => greeting.peerChanged(peer, up),
        onTrouble: (peer, code, address) => {
          if (code === 'wrong_peer') log.warn('another key answers at the address of a host', { host: peer, address });
          greeting.trouble(peer, code);
        },
      });
      open = true;
      pairing.learn();
      await discovery.start();
      notifier.wakeAll();
      retention.start();
    },
    drain() {
      open = false;
      events.changed();
    },
    async stop() {
      open = false;
      exchange.stop();
      greeting.stop();
      notifier.stop();
      retention.stop();
      events.changed();
      await link.stop();
      await discovery.stop();
      await unlessFull(
        log,
        seams.store.write((tx) => uptime.flush(tx)),
      );
      await seams.store.close();
    },
    async call(method, params, actor) {
      const run = Object.hasOwn(methods, method) ? methods[method as keyof typeof methods] : undefined;
      if (run === undefined)
        throw new AxError('update_required', `this daemon (ax ${AX_VERSION}) does not know "${method.slice(0, 64)}"`, {
          fix: 'ax daemon restart',
        });
      if (!open) throw new AxError('shutting_down', 'the daemon is starting or stopping');
      return run(params, actor);
    },
  };
}

function copiedKeyWarnings(greeting: Greeting, naming: Naming): string[] {
  const { copies, self } = greeting.warnings();
  const nameOf = (host: HostId): string => naming.nameOf(host);
  return [
    ...copies.map((host) => `the host id of ${nameOf(host)} is alive in two places: its key was copied`),
    ...(self === undefined ? [] : [`${nameOf(self.by)} sees this host's own id alive in two places: the key was copied`]),
  ];
}

/** Listen addresses another host could dial: loopback and link-local ones only when there is nothing else. */
function dialable(listen: readonly string[]): readonly string[] {
  const far = listen.filter((address) => !/^\/(ip4\/(127|169\.254)\.|ip6\/(::1\/|fe80:))/.test(address));
  return far.length > 0 ? far : listen;
}
