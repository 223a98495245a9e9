/**
 * The daemon: builds the core from its seams, wires it, and owns the order of starting and stopping.
 *
 * Used by main.ts with the real adapters and by the simulation with its own, so that everything above the seams is the same
 * code in both. `call` is the whole local API; it knows no transport.
 */
import type { DaemonStatus } from '../protocol/control.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import type { HostId } from '../protocol/ids.ts';
import { DEFAULT_LIMITS, MAX_PIECE_BYTES, SESSIONS_TIMEOUT_MS } from '../protocol/limits.ts';
import { SealKeys } from '../protocol/seal.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../protocol/version.ts';
import { Admission } from './admission.ts';
import { Addressing } from './addressing.ts';
import type { Actor } from './addressing.ts';
import { Agents, quietLeft } from './agents.ts';
import { Arriving } from './arriving.ts';
import { makeMethods } from './control/methods.ts';
import { Discovery } from './discovery.ts';
import { Events } from './events.ts';
import { Exchange } from './exchange.ts';
import { Granting } from './granting.ts';
import { Greeting } from './greeting.ts';
import { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import { Naming } from './naming.ts';
import { Notices } from './notices.ts';
import { Notifier } from './notifier.ts';
import { Outbox } from './outbox.ts';
import { Pairing } from './pairing.ts';
import { Peers } from './peers.ts';
import { Pickup } from './pickup.ts';
import { livenessNews } from './progress.ts';
import { Quieting } from './quieting.ts';
import { Rates } from './rates.ts';
import { Receipts } from './receipts.ts';
import { Refusals } from './refusals.ts';
import { Registration } from './registration.ts';
import { Retention } from './retention.ts';
import { roomKeeper, unlessFull } from './room.ts';
import { Router } from './router.ts';
import { SandboxFetch } from './sandbox-fetch.ts';
import type { Seams, Settings } from './seams.ts';
import { copiedKeyWarnings, dialable } from './self.ts';
import { Staging } from './staging.ts';
import { Status } from './status.ts';
import { Uploads } from './uploads.ts';
import { Uptime } from './uptime.ts';

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
  const peers = new Peers(store, settings.name, { now: () => clock.now(), running });
  const refusals = new Refusals(clock, peers);
  const agents = new Agents(store);
  const limits = settings.limits ?? DEFAULT_LIMITS;
  const inbox = new Inbox(store, running, limits);
  const outbox = new Outbox(store, running);
  const arriving = new Arriving(store, running);
  const staging = new Staging(store, running);
  const uploads = new Uploads(clock);
  const pieceBytes = settings.pieceBytes ?? MAX_PIECE_BYTES;
  const receipts = new Receipts(store);
  const notices = new Notices(store, running, limits);
  const sealKeys = new SealKeys(key);
  const naming = new Naming(self, () => settings.name, peers, outbox, inbox);
  const requireRoom = roomKeeper(store, clock, limits.minFreeBytes);
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
  const quietMs = (harness: string, workspace: string): number =>
    quietLeft(agents.at(harness, workspace), { now: () => clock.now(), running });

  const makeCode = (): string | undefined => sandboxFetch.makeCode();
  const tellLiveness = livenessNews(inbox, hasLiveSession, onMessage);

  const discovery: Discovery = new Discovery({
    harnesses: seams.harnesses,
    agents,
    clock,
    log,
    files,
    quietMs,
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
    makeCode,
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
    onPaired: () => notifier.wakeAll(),
  });
  const onGrants = (host: HostId): void => {
    exchange.grantsChanged(host);
    notifier.wakeAll();
  };
  const granting = new Granting({ store, clock, running, files, naming, peers, events, onChanged: onGrants });
  const admission = new Admission({
    store,
    clock,
    key,
    sealKeys,
    files,
    running,
    peers,
    inbox,
    arriving,
    receipts,
    agents,
    events,
    refusals,
    rates: new Rates(clock, limits),
    requireRoom,
    hasLiveSession,
    quietMs,
    onReceived,
    onReceipts: (host) => exchange.wake(host),
    onRepeated: onMessage,
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
    refusals,
    admission,
    hasLiveSession,
    sessions: (mayRead) => discovery.localAnswer(mayRead),
    pair: (peer, request) => pairing.handle(peer, request),
  });
  const registration = new Registration({
    store,
    clock,
    running,
    ax: settings.ax,
    files,
    discovery,
    agents,
    inbox,
    notices,
    events,
    makeCode,
    onChanged,
    onMessage,
  });
  const row = registration.row.bind(registration);
  const quieting = new Quieting({ store, clock, running, files, agents, events, row, onChanged });
  const pickup = new Pickup({
    store,
    clock,
    random,
    key,
    sealKeys,
    ax: settings.ax,
    inlineBytes: pieceBytes,
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
  const box = seams.box;
  const sandboxFetch: SandboxFetch = new SandboxFetch({ store, clock, random, log, box, discovery, inbox, notices, pickup, events });
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
    staging,
    uploads,
    pieceBytes,
    requireRoom,
    quietMs,
    mayLeaveNow: (host) => exchange.mayLeaveNow(host),
    isPaired: (host, reader) => peers.get(host, reader) !== undefined,
    onQueued: (row, body) => exchange.queued(row, body),
    onReceived,
  });
  const ending = { outbox, inbox, arriving, staging, receipts, peers, notices, events };
  const retention = new Retention({ store, clock, log, key, uptime, onReceipt, ...ending });

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
    minFreeBytes: limits.minFreeBytes,
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
    refusals,
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
    granting,
    registration,
    quieting,
    pickup,
    router,
    uploads,
    status,
    exchange,
    inbox,
    store,
    sandboxFetch,
    daemonStatus,
    ownAddresses,
    isOpen: () => open,
    onStop: settings.onStop,
    backups: seams.backups,
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
      await sandboxFetch.start();
      registration.resume().catch((error: unknown) => log.error('messages not moved', { reason: toAxError(error).message }));
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
      registration.stop();
      greeting.stop();
      notifier.stop();
      retention.stop();
      events.changed();
      await sandboxFetch.stop();
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
