/**
 * The oracle's part about single rows, judged in the very transaction that changes them, so that rights and bounds are exact.
 *
 * Owns: nothing but greetings gets to a host of another protocol; nothing is stored for a host that may not write there; what lacks
 * `notify` is a note and causes no attempt on a session; bounds and rates hold; and time ends something only when that much running time
 * has passed. Reads rows as the transaction sees them; changes nothing.
 */
import type { Agent } from '../../daemon/agents.ts';
import type { Begun } from '../../daemon/arriving.ts';
import type { Received } from '../../daemon/received-row.ts';
import type { Attempt } from '../../daemon/notices.ts';
import type { Peer } from '../../daemon/peers.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import { seqKey, unpack } from '../../daemon/store/rows.ts';
import type { Table } from '../../daemon/store/store.ts';
import { acceptOffer } from '../../protocol/envelope.ts';
import { sha256 } from '../../protocol/hashtree.ts';
import type { HostId } from '../../protocol/ids.ts';
import { DEFAULT_DEADLINE_MS, DEFAULT_LIMITS, DEFAULT_RETENTION_MS, MESSAGE_BURST } from '../../protocol/limits.ts';
import { commonProtocol } from '../../protocol/version.ts';
import type { ProtocolRange } from '../../protocol/version.ts';
import type { Limits } from '../../protocol/limits.ts';
import type { WireRequest } from '../../protocol/wire.ts';
import type { Ask, Checker } from './checker.ts';
import type { Host } from './fleet.ts';
import { allows, leftBy } from './rights.ts';

/** Rounding of times to whole ms, on the way to a row and back. */
const ROUNDING_MS = 2;

export class RowRules {
  readonly #checker: Checker;
  /** Running ms of the host at which a row of it began, by host and row. */
  readonly #begun = new Map<string, number>();
  /** New messages of a host for a workspace in one life of the receiver. */
  readonly #taken = new Map<string, number>();
  /** In which life of the receiver a message in pieces was offered first, and so taken from its rate; by host, sender and id. */
  readonly #offeredIn = new Map<string, number>();
  /** What a host that hands a message over might do when it arrived: its grants' revision, or undefined when it might not leave it. */
  readonly #mightWrite = new Map<WireRequest, string | undefined>();

  /** Under which builds of its sender something signed has left; a copy of it may come late. */
  readonly #leftUnder = new Map<string, ProtocolRange[]>();

  constructor(checker: Checker) {
    this.#checker = checker;
  }

  applied(host: Host, table: Table, key: string, before: Uint8Array | undefined, after: Uint8Array | undefined): void {
    if (after === undefined) return;
    if (table === 'inbox') this.#received(host, before && unpack<Received>(before), unpack<Received>(after));
    else if (table === 'outbox') this.#sent(host, before && unpack<Sent>(before), unpack<Sent>(after));
    else if (table === 'arriving' && key.startsWith('r/')) this.#offered(host, before && unpack<Begun>(before), unpack<Begun>(after));
    else if (table === 'notices' && before === undefined && key.startsWith('a/')) this.#attempted(host, unpack<Attempt>(after));
  }

  /** A change of grants was answered, with the revision that the host has from now on. */
  granted(host: Host, peer: HostId, revision: number): void {
    const { fleet } = this.#checker;
    const row = this.#checker.disk(host).peer(peer);
    if (row !== undefined && row.revision < revision && !fleet.counts.has('host.remove ok'))
      this.#checker.fail('a change of grants is durable when it is answered', `${host.name} ${row.revision} < ${revision}`);
  }

  /** Something signed leaves, of this build. */
  leaving(host: Host, request: WireRequest): void {
    const name = signedName(request);
    if (name !== undefined) this.#leftUnder.set(name, [...(this.#leftUnder.get(name) ?? []), host.machine.protocol]);
  }

  /** A message arrives: may its sender leave it, and have the two builds a protocol in common? */
  arrived(host: Host, peer: HostId, request: WireRequest): void {
    const builds = this.#leftUnder.get(signedName(request) ?? '') ?? [];
    if (builds.length > 0 && builds.every((range) => commonProtocol(range, host.machine.protocol) === undefined))
      this.#checker.fail('nothing but greetings gets to a host of another protocol', `${host.name} is sent a ${request.type}`);
    if (request.type === 'deliver' || request.type === 'offer') this.#mightWrite.set(request, this.#revision(host, peer, request));
  }

  /** It was refused for want of a right: then it lacked the right at some moment, unless its grants changed meanwhile. */
  refused(host: Host, peer: HostId, request: WireRequest, code: string): void {
    if ((request.type !== 'deliver' && request.type !== 'offer') || (code !== 'grant_missing' && code !== 'untrusted_peer')) return;
    const before = this.#mightWrite.get(request);
    if (before !== undefined && before === this.#revision(host, peer, request))
      this.#checker.fail('a host that may leave a message is not refused it for want of a right', `${host.name}: ${code}`);
  }

  #revision(host: Host, peer: HostId, request: WireRequest & { readonly type: 'deliver' | 'offer' }): string | undefined {
    const row = this.#peer(host, peer);
    const { to } = acceptOffer(peer, host.id, request.envelope);
    const isAllowed = allows(row, 'write', host.folders.get(to.workspace) ?? '', this.#checker.fleet.times(host));
    return isAllowed ? `${host.lives} ${row?.addedAt} ${row?.revision}` : undefined;
  }

  #peer(host: Host, id: string): Peer | undefined {
    const bytes = host.life?.store.get('peers', id);
    return bytes === undefined ? undefined : unpack<Peer>(bytes);
  }

  #inbox(host: Host): Received[] {
    return (host.life?.store.range('inbox') ?? []).map((entry) => unpack<Received>(entry.value));
  }

  #row(host: Host, sender: string, id: string): Received | undefined {
    const pointer = host.life?.store.get('inbox_index', `i/${id}/${sender}`);
    const bytes = pointer && host.life?.store.get('inbox', seqKey(unpack<{ seq: number }>(pointer).seq));
    return bytes && unpack<Received>(bytes);
  }

  /** Another envelope under the id is another message. */
  #offered(host: Host, before: Begun | undefined, { sender, id, digest }: Begun): void {
    if (before !== undefined && Buffer.compare(before.digest, digest) === 0) return;
    if (host.life !== undefined) this.#offeredIn.set(`${host.name} ${sender} ${id}`, host.life.number);
  }

  #received(host: Host, before: Received | undefined, row: Received): void {
    const name = `${host.name} in ${row.sender}/${row.id}`;
    if (before === undefined) {
      this.#begun.set(name, this.#checker.fleet.ran(host));
      return this.#admitted(host, row);
    }
    if (row.state !== 'expired' || before.state === 'expired') return;
    const { fleet } = this.#checker;
    const ask = this.#askOf(this.#checker.disk(fleet.host(row.sender)).sent(row.id));
    if (ask === undefined) return;
    const asked = ask.retentionMs ?? DEFAULT_RETENTION_MS;
    this.#lasted(host, name, asked, 'a message is kept for its retention in running time');
  }

  /** A new message, from here or from another host. */
  #admitted(host: Host, row: Received): void {
    const { fleet } = this.#checker;
    const { limits, life } = host;
    if (isTight(limits)) this.#bounded(host, row.sender);
    if (row.sender === host.id || life === undefined) return;
    const times = fleet.times(host);
    const peer = this.#peer(host, row.sender);
    if (!allows(peer, 'write', row.workspace, times))
      this.#checker.fail('nothing is stored for a host that may not write there', `${host.name} ${row.workspace} ${row.id}`);
    const sent = this.#checker.disk(fleet.host(row.sender)).sent(row.id);
    const mayWake = allows(peer, 'notify', row.workspace, times);
    const expected = sent?.kind === 'message' && mayWake ? 'message' : 'note';
    if (sent !== undefined && row.storedAs !== expected)
      this.#checker.fail('a message is stored as one exactly when its host may cause notices there', `${row.id} as ${row.storedAs}`);
    if (sent?.kind === 'message' && !mayWake) fleet.count('message kept as a note');
    // What was offered in an earlier life was taken from the rate of that one: half of it was here when this one began.
    if (row.pieces !== undefined && this.#offeredIn.get(`${host.name} ${row.sender} ${row.id}`) !== life.number) return;
    const place = `${host.name} ${life.number} ${row.sender} ${row.workspace}`;
    const taken = (this.#taken.get(place) ?? 0) + 1;
    this.#taken.set(place, taken);
    const lived = host.machine.monotonic() - life.born;
    // A transaction that is undone has taken its message from the bucket as well, so this counts as the bucket does.
    if (limits.messageBurst < MESSAGE_BURST && taken > limits.messageBurst + (limits.messagesPerMinute * lived) / 60_000)
      this.#checker.fail('new messages of a host keep to its rate', `${place}: ${taken} in ${Math.round(lived)} ms`);
  }

  /** What a host has left here, with the message that is just being stored. */
  #bounded(host: Host, sender: string): void {
    const { limits } = host;
    const { waiting, bytes, kept } = leftBy(sender, this.#inbox(host));
    if (waiting > limits.waitingMessages || bytes > limits.waitingBytes || kept > limits.keptMessages)
      this.#checker.fail(
        'what one host leaves here stays within its bounds',
        `${host.name}: ${waiting} wait (${bytes} bytes), ${kept} kept`,
      );
  }

  #sent(host: Host, before: Sent | undefined, row: Sent): void {
    const name = `${host.name} out ${row.id}`;
    if (before === undefined) return void this.#begun.set(name, this.#checker.fleet.ran(host));
    if (row.state !== 'expired' || before.state === 'expired' || row.acceptedAt !== null || row.local) return;
    const ask = this.#askOf(row);
    if (ask === undefined) return;
    const asked = ask.deadlineMs ?? DEFAULT_DEADLINE_MS;
    const judge = (): void => this.#lasted(host, name, asked, 'forwarding ends after its deadline in running time');
    // Looked at when the transaction is over: when it also removes that host, what waited for it ends with it.
    this.#checker.fleet.world.after(0, () => (this.#peer(host, row.host) === undefined ? undefined : judge()));
  }

  /** What was asked for; undefined when a directed test sent it by itself. */
  #askOf(row: Sent | undefined): Ask | undefined {
    return row === undefined ? undefined : this.#checker.asks.get(row.request.key);
  }

  #lasted(host: Host, name: string, askedMs: number, rule: string): void {
    const begun = this.#begun.get(name);
    if (begun === undefined) return;
    const lasted = this.#checker.fleet.ran(host) - begun;
    if (lasted < askedMs - ROUNDING_MS) this.#checker.fail(rule, `${name} lasted ${Math.round(lasted)} of ${askedMs} ms`);
  }

  /** An attempt on a session: every message it stands for, and who pays for it, may cause one there now. */
  #attempted(host: Host, attempt: Attempt): void {
    const times = this.#checker.fleet.times(host);
    const mayWake = (sender: HostId): boolean => sender === host.id || allows(this.#peer(host, sender), 'notify', attempt.workspace, times);
    const because = [...attempt.messages.map((message) => message.sender), attempt.paidBy];
    if (attempt.messages.length === 0 || !because.every(mayWake))
      this.#checker.fail('an identity without notify causes no notice', `${host.name} ${attempt.workspace}`);
    for (const message of attempt.messages) {
      const row = this.#row(host, message.sender, message.id);
      if (row?.storedAs !== 'message' || row.workspace !== attempt.workspace || row.harness !== attempt.harness)
        this.#checker.fail('a note causes no notice', `${host.name} ${message.id} is ${row?.storedAs ?? 'absent'}`);
    }
    const agent = (host.life?.store.range('agents') ?? [])
      .map((entry) => unpack<Partial<Agent>>(entry.value))
      .find((one) => one.harness === attempt.harness && one.workspace === attempt.workspace);
    const quiet = agent?.quiet ?? null;
    if (quiet !== null && (quiet.untilWall ?? Infinity) > times.wall && (quiet.untilRan ?? Infinity) > times.ran)
      this.#checker.fail('a quiet agent is sent no notice', `${host.name} ${agent?.name}`);
  }
}

/** Are these bounds ever met? Those of a real host are far beyond what a simulated one is left. */
function isTight(limits: Limits): boolean {
  return (['waitingMessages', 'waitingBytes', 'keptMessages'] as const).some((what) => limits[what] < DEFAULT_LIMITS[what]);
}

function signedName(request: WireRequest): string | undefined {
  const signed =
    request.type === 'deliver' || request.type === 'offer'
      ? request.envelope
      : request.type === 'cancel'
        ? request.cancel
        : request.type === 'receipt'
          ? request.receipt
          : undefined;
  return signed === undefined
    ? undefined
    : `${request.type === 'offer' ? 'deliver' : request.type} ${Buffer.from(sha256(signed.payload)).toString('hex')}`;
}
