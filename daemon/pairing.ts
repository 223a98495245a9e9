/**
 * Pairing: how two hosts come to know each other, and every change to the list of known hosts.
 *
 * Owns the invite code, redeeming it, and add, rename, remove. A code names the inviting host's id and addresses and one
 * secret; the secret goes only to that id, over the authenticated link, is compared in constant time and works once (for
 * the same host again, while its answer may have been lost). Each side stores what it itself allows the other.
 */
import { parseHostAddress, parseListenAddress } from '../protocol/address.ts';
import { asFields, asList, decode, encode, text, violation } from '../protocol/codec.ts';
import { AxError, toAxError } from '../protocol/errors.ts';
import { sameSecret, sha256 } from '../protocol/hashtree.ts';
import { parseHostId } from '../protocol/identity.ts';
import { nameFrom, parseName } from '../protocol/ids.ts';
import type { HostId } from '../protocol/ids.ts';
import { DEFAULT_INVITE_TTL_MS, MAX_INVITE_TTL_MS, REQUEST_TIMEOUT_MS, USUAL_PORT } from '../protocol/limits.ts';
import { GRANT_ACTIONS } from '../protocol/states.ts';
import type { GrantAction } from '../protocol/states.ts';
import { encodeRequest, encodeResult, readAnswer, readPaired } from '../protocol/wire.ts';
import type { PairRequest } from '../protocol/wire.ts';
import type { Clock, Random } from './clock/clock.ts';
import { within } from './clock/within.ts';
import type { Events } from './events.ts';
import { parseGrants } from './granting.ts';
import type { Greeting } from './greeting.ts';
import type { Link } from './link/link.ts';
import type { Log } from './log.ts';
import type { Naming } from './naming.ts';
import type { Outbox } from './outbox.ts';
import type { Peer, Peers } from './peers.ts';
import type { Receipts } from './receipts.ts';
import type { Store } from './store/store.ts';

export interface PairingDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly link: Link;
  readonly log: Log;
  readonly self: HostId;
  readonly ownName: () => string;
  /** Where this host may be dialled, best first. */
  readonly ownAddresses: () => readonly string[];
  readonly running: () => number;
  readonly peers: Peers;
  readonly outbox: Outbox;
  readonly receipts: Receipts;
  readonly events: Events;
  readonly naming: Naming;
  readonly greeting: Greeting;
  /** A host may do here what it could not do before: what it left unread may be told of. */
  readonly onPaired: () => void;
}

interface Code {
  readonly host: HostId;
  readonly addresses: readonly string[];
  readonly invite: string;
  readonly secret: Uint8Array;
}

const CODE_PREFIX = 'ax1-';
/** Failed pairing tries over all hosts that are told so and logged within a while, and that while, ms. */
const MAX_FAILURES = 20;
const FAILURE_WINDOW_MS = 60_000;

export class Pairing {
  readonly #deps: PairingDeps;
  #failures: number[] = [];

  constructor(deps: PairingDeps) {
    this.#deps = deps;
  }

  /** Tells the link which hosts are known and where. */
  learn(): void {
    this.#deps.link.learn(new Map(this.#deps.peers.all().map((peer) => [peer.hostId, peer.addresses])));
  }

  /** A one-time code; durable on return. AxError `unavailable` when no address could stand in it. */
  async invite(params: {
    grants: unknown;
    ttlMs: unknown;
  }): Promise<{ code: string; expires_at: number; addresses: readonly string[]; warnings: readonly string[] }> {
    const { store, clock, random, peers, running, self, ownAddresses } = this.#deps;
    const addresses = ownAddresses().slice(0, 8);
    if (addresses.length === 0)
      throw new AxError('unavailable', 'this host listens nowhere, so nobody could join it', {
        fix: `invite from the other host, or: ax daemon restart --listen /ip4/0.0.0.0/tcp/${USUAL_PORT}`,
      });
    const grants = parseGrants(params.grants);
    const ttl = params.ttlMs === undefined || params.ttlMs === null ? DEFAULT_INVITE_TTL_MS : params.ttlMs;
    if (typeof ttl !== 'number' || !Number.isSafeInteger(ttl) || ttl < 1000 || ttl > MAX_INVITE_TTL_MS)
      throw new AxError('invalid_argument', 'an invite lives from 1 s to 24 h');
    const secret = random.bytes(32);
    const invite = Buffer.from(random.bytes(9)).toString('base64url');
    await store.write((tx) =>
      peers.addInvite(
        tx,
        {
          id: invite,
          secretHash: sha256(secret),
          grants,
          createdAt: clock.now(),
          createdRan: running(),
          expires: running() + ttl,
          usedBy: null,
        },
        running(),
      ),
    );
    const code = CODE_PREFIX + Buffer.from(encode({ h: self, a: addresses, i: invite, s: secret })).toString('base64url');
    const onlyHere = addresses.every((address) => /^\/(ip4\/127\.|ip6\/::1\/)/.test(address));
    const warnings = onlyHere ? ['the code names loopback addresses only: it works on this machine, or through a port forward'] : [];
    return { code, expires_at: clock.now() + ttl, addresses, warnings };
  }

  /**
   * Redeems a code; both sides know each other on return. For a host that is known already nothing changes here but its addresses, unless
   * `grants` says what it may from now on: a code that is pasted again undoes no revoke. `granted` is what that host says it allows this
   * one. AxError `invalid_state` for another name than it has here.
   */
  async join(params: {
    code: unknown;
    name: unknown;
    grants: unknown;
  }): Promise<{ host_id: string; name: string; grants: readonly string[]; already_paired: boolean; granted: readonly string[] }> {
    const { link, clock, ownName, ownAddresses, self } = this.#deps;
    const code = readCode(params.code);
    const grants = isNothing(params.grants) ? null : parseGrants(params.grants);
    const wanted = isNothing(params.name) ? undefined : parseName(params.name, 'a host alias');
    if (code.host === self) throw new AxError('invalid_argument', "this invite is this host's own; join it from the other host");
    if (code.addresses.length === 0)
      throw new AxError('unavailable', 'the invite names no address where that host can be reached', {
        fix: 'on that host, listen on a reachable address (ax daemon start --listen), or invite the other way round',
      });
    const known = this.#deps.peers.get(code.host);
    if (known !== undefined && wanted !== undefined) requireSameName(known, wanted);
    link.learn(
      new Map([
        ...this.#deps.peers.all().map((peer): [HostId, readonly string[]] => [peer.hostId, peer.addresses]),
        [code.host, [...new Set([...code.addresses, ...(known?.addresses ?? [])])]],
      ]),
    );
    try {
      const bytes = await within(clock, REQUEST_TIMEOUT_MS, (limit) =>
        link.request(
          code.host,
          'wire',
          encodeRequest({ type: 'pair', invite: code.invite, secret: code.secret, name: ownName(), addresses: ownAddresses().slice(0, 8) }),
          limit,
        ),
      );
      const answer = readAnswer(bytes);
      if (!answer.ok) throw joinRefused(answer.refusal.code);
      const told = readPaired(answer.fields);
      const peer = await this.#store(
        {
          hostId: code.host,
          name: wanted ?? nameFrom(told.name, 'host'),
          exactName: wanted !== undefined,
          addresses: [...code.addresses, ...told.addresses.flatMap(usable)],
          grants,
        },
        'host.paired',
      );
      const granted = GRANT_ACTIONS.filter((action) => told.grants.includes(action));
      return { host_id: peer.hostId, name: peer.name, grants: peer.grants, already_paired: known !== undefined, granted };
    } catch (error) {
      this.learn();
      const failed = toAxError(error);
      if (failed.code === 'unavailable' || failed.code === 'timeout') {
        throw new AxError(failed.code, `the inviting host was not reached at ${code.addresses.join(', ')}: ${failed.message}`, {
          fix: 'check that its daemon runs and that a firewall lets the port in; the invite stays good until it expires',
          cause: error,
        });
      }
      throw failed;
    }
  }

  /** Answers a pairing try of a host. */
  async handle(peer: HostId, request: PairRequest): Promise<Uint8Array> {
    const { peers, running, ownName, ownAddresses } = this.#deps;
    const invite = peers.invite(request.invite);
    const good = sameSecret(sha256(request.secret), invite?.secretHash ?? new Uint8Array(32));
    if (invite === undefined || !good) throw this.#failed(peer);
    if (invite.expires <= running()) throw new AxError('expired', 'the invite has expired');
    if (invite.usedBy !== null && invite.usedBy !== peer) throw new AxError('invalid_state', 'the invite was used by another host');
    const stored = await this.#store(
      {
        hostId: peer,
        name: nameFrom(request.name, 'host'),
        exactName: false,
        addresses: request.addresses.flatMap(usable),
        grants: invite.grants,
      },
      'host.paired',
      invite.id,
    );
    return encodeResult({ name: ownName(), addresses: ownAddresses().slice(0, 8), grants: stored.grants });
  }

  /** Counts a wrong code. Past a number of them the answer tells nothing more; a right code always works. */
  #failed(peer: HostId): AxError {
    const { clock, log } = this.#deps;
    this.#failures = this.#failures.filter((at) => clock.monotonic() - at < FAILURE_WINDOW_MS);
    if (this.#failures.length >= MAX_FAILURES) {
      return new AxError('throttled', 'too many failed pairings', { details: { retry_after_ms: FAILURE_WINDOW_MS } });
    }
    this.#failures.push(clock.monotonic());
    log.warn('a pairing with a wrong code was refused', { host: peer });
    return new AxError('not_found', 'no such invite');
  }

  /** `ax host add`: by hand, needed on both sides. A known host gets one more address; AxError `invalid_state` under another name. */
  async add(params: { name: unknown; address: unknown; grants: unknown }): Promise<Peer> {
    const name = parseName(params.name, 'a host alias');
    const ref = parseHostAddress(params.address);
    const hostId = parseHostId(ref.id);
    if (hostId === this.#deps.self) throw new AxError('invalid_argument', "that is this host's own id");
    const known = this.#deps.peers.get(hostId);
    if (known !== undefined) requireSameName(known, name);
    const grants = isNothing(params.grants) ? null : parseGrants(params.grants);
    return this.#store({ hostId, name, exactName: true, addresses: [ref.address], grants }, 'host.added');
  }

  async rename(params: { host: unknown; name: unknown }): Promise<Peer> {
    const { store, peers, events, naming } = this.#deps;
    const host = naming.host(params.host);
    if (host.local) throw new AxError('invalid_argument', 'this host is named by "name" in config.json or ax daemon start --name');
    const name = parseName(params.name, 'a host alias');
    return store.write((tx) => {
      const renamed = peers.rename(tx, host.id, name);
      events.add(tx, { type: 'host.renamed', hostId: host.id, subject: name, detail: host.name });
      return renamed;
    });
  }

  /** Forgets a host. AxError `invalid_state` when mail still waits for it, unless `cancelPending`. */
  async remove(params: {
    host: unknown;
    cancelPending: unknown;
  }): Promise<{ host_id: string; name: string; cancelled: number; warnings: string[] }> {
    const { store, peers, outbox, receipts, events, naming } = this.#deps;
    const host = naming.host(params.host);
    if (host.local) throw new AxError('invalid_argument', 'this host cannot be removed from itself');
    const { cancelled, invites } = await store.write((tx) => {
      const open = outbox.allOpen(tx, host.id);
      if (open.length > 0 && params.cancelPending !== true) {
        throw new AxError(
          'invalid_state',
          `${open.length} message${open.length === 1 ? '' : 's'} still wait${open.length === 1 ? 's' : ''} for ${host.name}`,
          { details: { pending: open.length }, fix: `ax host remove ${host.name} --cancel-pending` },
        );
      }
      for (const row of open) {
        const ended = outbox.abandon(tx, row.id);
        if (ended !== undefined && ended.state !== row.state)
          events.add(tx, {
            type: ended.state === 'cancelled' ? 'message.cancelled' : 'message.expired',
            messageId: row.id,
            hostId: host.id,
            state: ended.state,
            detail: 'host removed',
          });
      }
      receipts.drop(tx, host.id);
      const voided = peers.remove(tx, host.id);
      events.add(tx, { type: 'host.removed', hostId: host.id, subject: host.name });
      return { cancelled: open.length, invites: voided };
    });
    this.learn();
    const codes = invites === 1 ? '1 open pairing code is' : `${invites} open pairing codes are`;
    const warnings = invites === 0 ? [] : [`${codes} void now, since that host might hold one: make new ones for the others`];
    return { host_id: host.id, name: host.name, cancelled, warnings };
  }

  /** Greets a host `count` times. AxError when it is not there. */
  async ping(params: {
    host: unknown;
    count: unknown;
  }): Promise<{ host_id: string; name: string; rtt_ms: number[]; version: string | null }> {
    const { naming, greeting, clock } = this.#deps;
    const host = naming.host(params.host);
    if (host.local) throw new AxError('invalid_argument', 'this host needs no ping');
    const count = params.count === undefined || params.count === null ? 3 : params.count;
    if (typeof count !== 'number' || !Number.isSafeInteger(count) || count < 1 || count > 20)
      throw new AxError('invalid_argument', 'ping 1 to 20 times');
    const rtt: number[] = [];
    for (let i = 0; i < count; i++) {
      const before = clock.monotonic();
      await greeting.hello(host.id).catch((error: unknown) => Promise.reject(unreached(toAxError(error), host.name)));
      rtt.push(Math.round((clock.monotonic() - before) * 100) / 100);
    }
    const view = greeting.view(host.id);
    if (view.state === 'untrusted')
      throw new AxError('untrusted_peer', `${host.name} answers, but its owner has not paired it with this host`, {
        fix: 'on that host: ax host add, or pair anew with an invite',
      });
    return { host_id: host.id, name: host.name, rtt_ms: rtt, version: view.version };
  }

  async #store(
    fresh: { hostId: HostId; name: string; exactName: boolean; addresses: readonly string[]; grants: readonly GrantAction[] | null },
    type: 'host.paired' | 'host.added',
    inviteId?: string,
  ): Promise<Peer> {
    const { store, peers, events, clock, greeting } = this.#deps;
    const peer = await store.write((tx) => {
      let { grants } = fresh;
      if (inviteId !== undefined) {
        const invite = peers.invite(inviteId, tx);
        if (invite === undefined || (invite.usedBy !== null && invite.usedBy !== fresh.hostId))
          throw new AxError('invalid_state', 'the invite was used by another host');
        // The same code again, its answer may have been lost: told what holds now, which its owner may have changed since.
        const known = peers.get(fresh.hostId, tx);
        if (invite.usedBy === fresh.hostId && known !== undefined) return known;
        peers.useInvite(tx, invite, fresh.hostId);
        grants = peers.grantsBy(invite, known); // what was taken back since it was made stays taken back
      }
      const added = peers.add(tx, { ...fresh, grants, now: clock.now() });
      events.add(tx, { type, hostId: added.hostId, subject: added.name });
      return added;
    });
    this.learn();
    if (inviteId !== undefined) greeting.expect(peer.hostId);
    else if (greeting.view(peer.hostId).connected) void greeting.greet(peer.hostId);
    else this.#deps.link.nudge(peer.hostId);
    this.#deps.onPaired();
    return peer;
  }
}

/** Reads a pairing code. AxError `invalid_argument` for anything else. */
export function readCode(value: unknown): Code {
  const bad = (cause?: unknown): AxError =>
    new AxError('invalid_argument', 'this is not a whole ax pairing code (it begins with ax1-)', {
      fix: 'copy it again, all of its one long line: a code that was cut short or wrapped does not work',
      cause,
    });
  if (typeof value !== 'string' || value.length > 8192) throw bad();
  const typed = value.trim();
  if (!typed.startsWith(CODE_PREFIX) || !/^[A-Za-z0-9_-]+$/.test(typed)) throw bad();
  try {
    const fields = asFields(decode(new Uint8Array(Buffer.from(typed.slice(CODE_PREFIX.length), 'base64url'))), 'a code');
    const secret = fields['s'];
    if (!(secret instanceof Uint8Array) || secret.length !== 32) throw violation('secret');
    const addresses = asList(fields['a'], 'addresses', 16).map(parseListenAddress);
    return { host: parseHostId(text(fields, 'h', 64)), addresses, invite: text(fields, 'i', 64), secret };
  } catch (error) {
    throw bad(error);
  }
}

/** A host that gives no sign: what there is to look at, on both sides. */
function unreached(error: AxError, name: string): AxError {
  if (error.fix !== undefined || (error.code !== 'unavailable' && error.code !== 'timeout')) return error;
  return new AxError(error.code, error.message, {
    fix: `look whether its daemon runs (there: ax daemon status) and at which addresses it was known: ax host show ${name}`,
    ...(error.details === undefined ? {} : { details: error.details }),
    cause: error,
  });
}

/** What is known under one name is renamed by its own verb. */
function requireSameName(known: Peer, name: string): void {
  if (known.name.toLowerCase() === name.toLowerCase()) return;
  throw new AxError('invalid_state', `that host is already known as ${known.name}`, { fix: `ax host rename ${known.name} ${name}` });
}

function isNothing(value: unknown): value is undefined | null {
  return value === undefined || value === null;
}

/** A foreign address, when it is one this build can dial. */
function usable(address: string): string[] {
  try {
    return [parseListenAddress(address)];
  } catch (error) {
    if (error instanceof AxError) return [];
    throw error;
  }
}

function joinRefused(code: string): AxError {
  if (code === 'not_found')
    return new AxError('not_found', 'the inviting host does not know this code', { fix: 'ask for a new one: ax host invite' });
  if (code === 'expired') return new AxError('expired', 'the invite has expired', { fix: 'ask for a new one: ax host invite' });
  if (code === 'invalid_state')
    return new AxError('invalid_state', 'the invite was already used by another host', { fix: 'ask for a new one: ax host invite' });
  if (code === 'throttled') return new AxError('throttled', 'the inviting host saw too many wrong codes; try again in a minute');
  return new AxError('unavailable', `the inviting host answered ${code}`);
}
