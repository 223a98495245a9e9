/**
 * The oracle of the simulation: what every daemon promised, held against what the disks hold and what was really asked.
 *
 * Owns the rules, each in words; a broken one ends the run. It reads disks, seams and answers and never calls or changes a
 * daemon. Facts come from the workload (what clients asked, got and confirmed) and from the fleet (what crossed a seam).
 */
import type { Notice, Session } from '../../daemon/harness/harness.ts';
import type { LogFields } from '../../daemon/log.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import type { Table } from '../../daemon/store/store.ts';
import type { FetchedMessage } from '../../protocol/control.ts';
import { sha256 } from '../../protocol/hashtree.ts';
import type { HostId } from '../../protocol/ids.ts';
import { readCancel, readReceipt } from '../../protocol/receipt.ts';
import { RECEIVER_STATES, receiverMay, SENDER_ENDS, SENDER_STATES, senderMay } from '../../protocol/states.ts';
import { readAnswer, receiptOf } from '../../protocol/wire.ts';
import type { WireRequest } from '../../protocol/wire.ts';
import { Disk } from './disk.ts';
import type { Fleet, Host, Watcher } from './fleet.ts';
import { NoticeRules } from './notice-rules.ts';
import { PieceRules } from './piece-rules.ts';
import { RowRules } from './row-rules.ts';
import type { StoreImage } from './store.ts';
import type { World } from './world.ts';

/** One send as its client meant it; `key` is its request id and the beginning of its body. */
export interface Ask {
  readonly key: string;
  readonly from: Host;
  readonly to: Host;
  readonly body: Uint8Array;
  /** Canonical. */
  readonly workspace: string;
  /** As asked for; left out: the defaults. */
  readonly deadlineMs?: number | undefined;
  readonly retentionMs?: number | undefined;
  /** Set when an answer was received. */
  id: string | undefined;
}

/** What is known of one message at its receiver, by what readers did there. */
interface Reading {
  /** Fetches by a session that were begun, and tokens whose body came back. */
  begun: number;
  readonly tokens: Set<string>;
  readonly confirming: Set<string>;
}

const senderReach = closure(SENDER_STATES, senderMay);
/** Without the step that only an owner's retry takes. */
const aloneReach = closure(SENDER_STATES, (from, to) => senderMay(from, to) && !(SENDER_ENDS.has(from) && to === 'queued'));
/** The newest hand-outs that a row names: while there are fewer, its very first one is among them. */
const KEPT_HANDOUTS = 8;
const receiverReach = closure(RECEIVER_STATES, receiverMay);
export class Checker implements Watcher {
  readonly #world: World;
  readonly asks = new Map<string, Ask>();
  readonly #byId = new Map<string, Ask>();
  readonly #readings = new Map<string, Reading>();
  /** Promises that a host's disk must keep from the answer on. */
  readonly #promises = new Map<Host, { readonly what: string; readonly holds: (disk: Disk) => boolean }[]>();
  readonly #accepted = new Set<string>();
  readonly #lastStates = new Map<string, string>();
  readonly #shown = new Map<string, { readonly state: string; readonly epoch: string }>();
  /** What is said to sessions, and what becomes of it. */
  readonly notices: NoticeRules;
  readonly rows: RowRules;
  readonly pieces: PieceRules;
  /** Messages that their owner has had tried again: those alone leave a refusal or an expiry for the queue. */
  readonly #retried = new Set<string>();
  fleet!: Fleet;
  onMoment: (host: Host, what: 'deliver arrived' | 'piece arrived' | 'accepted' | 'notice' | 'receipt') => void = () => undefined;

  constructor(world: World) {
    this.#world = world;
    this.notices = new NoticeRules(world, this);
    this.rows = new RowRules(this);
    this.pieces = new PieceRules(this);
  }

  fail(rule: string, detail = ''): void {
    this.#world.note(`BROKEN ${rule} ${detail}`);
    this.#world.faults.push(new Error(`broken rule: ${rule}${detail === '' ? '' : ` (${detail})`}`));
  }

  // --- what clients did ----------------------------------------------------------------------------------------------------

  asked(ask: Ask): void {
    this.asks.set(ask.key, ask);
  }

  sendReturned(ask: Ask, id: string): void {
    if (ask.id !== undefined && ask.id !== id) this.fail('the same request id never makes two messages', `${ask.key}: ${ask.id} and ${id}`);
    ask.id = id;
    this.#byId.set(id, ask);
    this.promise(ask.from, `send of ${id} returned, so its outbox row is durable`, (disk) => disk.sent(id) !== undefined);
  }

  fetchBegun(host: Host, id: string): void {
    this.#reading(host, id).begun++;
  }

  /** A body came back. `by: session` makes it a hand-out. `tokensBefore`: how many were known when the answer came, before its parts did. */
  fetched(host: Host, result: FetchedMessage, begunBefore: number, tokensBefore = this.tokens(host, result.message_id)): void {
    const { message_id: id } = result;
    const key = Buffer.from(result.body.subarray(0, 64)).toString('latin1').split('|')[0]!;
    const ask = this.asks.get(key);
    if (ask === undefined) return this.fail('no message is at a receiver that no sender sent', `${host.name} ${id}`);
    if (Buffer.compare(ask.body, result.body) !== 0) this.fail('the body fetched is the body sent', id);
    if (ask.to !== host || ask.workspace !== result.workspace) this.fail('a message is only at its destination', id);
    if (ask.id !== undefined && ask.id !== id) this.fail('a request is at its receiver once, under its id', `${key}: ${ask.id} and ${id}`);
    if (result.from_host !== ask.from.id) this.fail('a message names the host that sent it', id);
    const reading = this.#reading(host, id);
    // Answers to two readers may come in either order; which hand-out was the first is what the disk says.
    const handOuts = this.disk(host).received(ask.from.id, id)?.handOuts ?? [];
    const isOrderKnown = result.by === 'session' && handOuts.length > 0 && handOuts.length < KEPT_HANDOUTS;
    const isFirst = isOrderKnown ? handOuts[0]?.token === result.hand_out : tokensBefore === 0;
    if (!isFirst && !result.refetch) this.fail('a body given again says refetch', id);
    if (isOrderKnown && isFirst && result.refetch) this.fail('a first hand-out does not say refetch', id);
    if (begunBefore === 0 && result.refetch) this.fail('a first hand-out does not say refetch', id);
    if (result.refetch) this.fleet.count('refetch');
    if (result.by === 'owner') return this.fleet.count('read_by_owner');
    reading.tokens.add(result.hand_out);
    this.promise(
      host,
      `the body of ${id} was handed out, so the hand-out is durable`,
      (disk) => typeof disk.received(ask.from.id, id)?.handedOutAt === 'number',
    );
    if (reading.confirming.size === 0 && this.disk(host).received(ask.from.id, id)?.state === 'fetched')
      this.fail('fetched only after the reader confirmed', id);
  }

  confirmBegun(host: Host, id: string, token: string): void {
    this.#reading(host, id).confirming.add(token);
  }

  confirmed(host: Host, id: string, sender: string): void {
    this.promise(host, `the pickup of ${id} was confirmed, so it is durable`, (disk) => disk.received(sender, id)?.state === 'fetched');
  }

  /** `cancelled` or `cancel_requested` was answered. What was requested lapses when its host is removed, and when its owner has it tried again. */
  cancelReturned(host: Host, id: string, answer: string): void {
    const isOver = (row: Sent, disk: Disk): boolean =>
      row.cause !== null || row.acceptedAt !== null || row.state === 'refused' || this.#retried.has(id) || disk.removals(row.host) > 0;
    this.promise(host, `a cancel of ${id} was answered ${answer}, so it is durable`, (disk) => {
      const row = disk.sent(id);
      if (row === undefined) return false;
      if (row.local || row.state === 'cancelled') return true;
      return answer === 'cancel_requested' && (row.cancelRequested || isOver(row, disk));
    });
  }

  /** A retry is asked for; from here on the message may leave its end. */
  retrying(id: string): void {
    this.#retried.add(id);
  }

  isRetried(id: string): boolean {
    return this.#retried.has(id);
  }

  /** A retry was answered. */
  retried(host: Host, id: string): void {
    this.promise(host, `a retry of ${id} was answered, so it is durable`, (disk) =>
      disk.events().some((event) => event.messageId === id && event.type === 'message.retried'),
    );
  }

  /** A session asks by itself: from some moment between this and `touched` on it knows what waits. */
  touching(sessionId: string): void {
    this.notices.touching(sessionId);
  }

  touched(sessionId: string): void {
    this.notices.touched(sessionId);
  }

  /** A state was shown to somebody. */
  shown(host: Host, side: 'sender' | 'receiver', id: string, state: string, from: string): void {
    const { life } = host;
    if (life === undefined) return;
    this.fleet.count(`${side} ${state}`);
    const key = `${host.name} ${side} ${id} ${side === 'receiver' ? from : ''}`;
    const epoch = `${life.number}.${life.rollbacks}`;
    const before = this.#shown.get(key);
    if (before?.epoch === epoch && !this.#reachable(side, id, before.state, state))
      this.fail('states only move along their table', `${key}: shown ${before.state}, then ${state}`);
    this.#shown.set(key, { state, epoch });
  }

  // --- what crossed a seam ---------------------------------------------------------------------------------------------------

  applied(host: Host, table: Table, key: string, before: Uint8Array | undefined, after: Uint8Array | undefined): void {
    this.rows.applied(host, table, key, before, after);
  }

  arrived(host: Host, peer: HostId, request: WireRequest): void {
    this.rows.arrived(host, peer, request);
    if (request.type === 'deliver') this.onMoment(host, 'deliver arrived');
    if (request.type === 'piece' && request.index % 4 === 1) this.onMoment(host, 'piece arrived');
  }

  answered(host: Host, peer: HostId, request: WireRequest, bytes: Uint8Array): void {
    const answer = readAnswer(bytes);
    this.#world.note(`${host.name} answers ${this.fleet.host(peer).name}'s ${request.type}: ${answer.ok ? 'ok' : answer.refusal.code}`);
    if (!['deliver', 'offer', 'piece', 'cancel', 'receipt'].includes(request.type)) return;
    if (!answer.ok) {
      this.rows.refused(host, peer, request, answer.refusal.code);
      return this.fleet.count(`${request.type} answered ${answer.refusal.code}`);
    }
    if (this.pieces.answered(host, peer, request, answer.fields)) return;
    if (request.type === 'receipt') {
      const receipt = readReceipt(peer, host.id, request.receipt);
      if (receipt.outcome !== 'fetched') return;
      return this.promise(host, `the pickup receipt of ${receipt.id} was taken, so it is stored`, (disk) =>
        ['fetched', 'cancelled', 'refused', undefined].includes(disk.sent(receipt.id)?.state),
      );
    }
    const receipt = readReceipt(host.id, peer, receiptOf(answer.fields));
    const { id } = receipt;
    if (request.type === 'cancel') {
      this.fleet.count(`cancel answered ${receipt.outcome}`);
      if (receipt.outcome === 'cancelled')
        this.promise(
          host,
          `the cancel of ${id} was granted, so the message can never be handed out`,
          (disk) => disk.seen(peer, id)?.tombstone === true || disk.received(peer, id)?.state === 'cancelled',
        );
      return;
    }
    if (receipt.outcome === 'cancelled')
      return this.fleet.count(
        this.disk(host).received(peer, id) !== undefined ? 'late copy of a cancelled row answered' : 'tombstone answered',
      );
    if (receipt.outcome !== 'accepted') return;
    if (this.#accepted.has(`${host.name} ${peer} ${id}`)) this.fleet.count('duplicate answered');
    this.#accepted.add(`${host.name} ${peer} ${id}`);
    this.promise(
      host,
      `${id} was answered accepted, so the message is durable`,
      (disk) => disk.seen(peer, id)?.tombstone === false && disk.received(peer, id) !== undefined,
    );
    this.onMoment(host, 'accepted');
  }

  leaving(host: Host, peer: HostId, request: WireRequest): void {
    this.rows.leaving(host, request);
    if (request.type === 'receipt') {
      const receipt = readReceipt(host.id, peer, request.receipt);
      const row = this.disk(host).received(peer, receipt.id);
      if (row?.state !== receipt.outcome)
        this.fail(
          'a receipt leaves only when what it tells is durable',
          `${host.name} tells ${receipt.outcome}, its disk says ${row?.state ?? 'nothing'}`,
        );
      this.onMoment(host, 'receipt');
    }
    if (request.type === 'cancel') {
      const { id } = readCancel(host.id, peer, request.cancel);
      if (
        !this.disk(host)
          .events()
          .some((event) => event.messageId === id && event.type === 'message.cancel_requested')
      )
        this.fail('a cancel leaves only when it is durable', `${host.name} ${id}`);
    }
    if (request.type === 'piece') this.pieces.leaving(host, request);
    if (request.type !== 'deliver' && request.type !== 'offer') return;
    const digest = sha256(request.envelope.payload);
    const row = this.disk(host)
      .allSent()
      .find((one) => Buffer.compare(one.digest, digest) === 0);
    if (row?.uncertain !== true)
      this.fail(
        'a message leaves only when it is durable at its sender, and marked uncertain',
        `${host.name} ${row === undefined ? 'holds no such row' : `${row.id} ${row.state}`}`,
      );
  }

  notifying(host: Host, session: Session, notice: Notice): void {
    this.notices.notifying(host, session, notice);
    if (host.life !== undefined) this.onMoment(host, 'notice');
  }

  notified(host: Host, session: Session, notice: Notice, outcome: string): void {
    this.notices.notified(host, session, notice, outcome);
  }

  heard(host: Host, notice: string, outcome: string): void {
    this.notices.heard(host, notice, outcome);
  }

  /** An error in the log is a broken assertion, unless the disk was full. */
  logged(host: Host, event: string, fields: LogFields | undefined): void {
    const reason = String(fields?.['reason'] ?? '');
    if (/(^|: )the flush of/.test(reason) || reason.includes('store is closed') || reason.includes('bytes are free')) return;
    this.fail('the core asserts nothing false', `${host.name} ${event}: ${reason}`);
  }

  ended(host: Host, image: StoreImage, crashed: boolean): void {
    this.#keep(host, new Disk(image), crashed ? 'a crash' : 'a stop');
    this.sample();
  }

  // --- what the disks hold ---------------------------------------------------------------------------------------------------

  /** Looks at all disks: states along their tables, and what sender and receiver say of the same message. */
  sample(): void {
    const disks = new Map(this.fleet.hosts.map((host) => [host, this.disk(host)]));
    for (const [host, disk] of disks) {
      this.notices.known(host, disk);
      this.pieces.sample(host, disk);
      const names = new Set<string>();
      for (const row of disk.allReceived()) {
        const name = `${row.sender}/${row.id}`;
        if (names.has(name)) this.fail('a message is in the inbox once', `${host.name} ${row.id}`);
        names.add(name);
        this.#moved(host, 'receiver', name, row.state);
        this.#noticed(host, name, row.notice?.outcome);
        const reading = this.#readings.get(`${host.name} ${row.id}`);
        if (row.state === 'fetched' && (reading?.confirming.size ?? 0) === 0) this.fail('fetched only after the reader confirmed', row.id);
        if (row.handedOutAt !== null && (reading?.begun ?? 0) === 0) this.fail('a hand-out only to a session that asked', row.id);
        if (row.state === 'cancelled' && (reading?.tokens.size ?? 0) > 0) this.fail('a cancelled message was never handed out', row.id);
      }
      for (const row of disk.allSent()) {
        this.#moved(host, 'sender', row.id, row.state);
        if (row.uncertain) this.fleet.count('uncertain');
        if (row.cause?.code === 'untrusted_peer') this.fleet.count('held for a host that does not know this one');
        if (row.cancelRequested) this.fleet.count('cancel_requested');
        const there = disks.get(this.fleet.host(row.host))!;
        const known = there.seen(host.id, row.id);
        const other = there.received(host.id, row.id);
        if ((row.state === 'accepted' || row.state === 'fetched') && (known === undefined || known.tombstone))
          this.fail('accepted at the sender means durable at the receiver', row.id);
        if (row.state === 'fetched' && other?.state !== 'fetched')
          this.fail('fetched at the sender means fetched at the receiver', `${row.id} is ${other?.state ?? 'absent'}`);
        if (row.state === 'cancelled' && (other?.handedOutAt ?? null) !== null)
          this.fail('cancelled at the sender means never handed out at the receiver', row.id);
        // A tombstone is of a cancel: its message was never taken.
        if (row.state === 'refused' && known?.tombstone === false)
          this.fail('refused at the sender means not taken by the receiver', row.id);
      }
    }
  }

  disk(host: Host): Disk {
    return new Disk(this.fleet.disk(host));
  }

  promise(host: Host, what: string, holds: (disk: Disk) => boolean): void {
    if (!holds(this.disk(host))) this.fail(what, host.name);
    this.#promises.set(host, [...(this.#promises.get(host) ?? []), { what, holds }]);
  }

  #keep(host: Host, disk: Disk, after: string): void {
    for (const promise of this.#promises.get(host) ?? [])
      if (!promise.holds(disk)) this.fail(`${promise.what}, also after ${after}`, host.name);
  }

  /** Everything promised still holds. */
  keepAll(): void {
    for (const host of this.fleet.hosts) this.#keep(host, this.disk(host), 'all');
  }

  #moved(host: Host, side: 'sender' | 'receiver', name: string, state: string): void {
    const key = `${host.name} ${side} ${name}`;
    const before = this.#lastStates.get(key);
    if (before !== undefined && !this.#reachable(side, name, before, state))
      this.fail('durable states only move along their table', `${key}: ${before}, then ${state}`);
    if (before !== state) {
      this.fleet.count(`${side} ${state}`);
      this.#lastStates.set(key, state);
    }
  }

  #noticed(host: Host, name: string, outcome: string | undefined): void {
    const key = `${host.name} notice ${name}`;
    if (outcome === undefined || this.#lastStates.get(key) === outcome) return;
    this.fleet.count(`notice ${outcome}`);
    this.#lastStates.set(key, outcome);
  }

  #reachable(side: 'sender' | 'receiver', id: string, from: string, to: string): boolean {
    const reach = side === 'receiver' ? receiverReach : this.#retried.has(id) ? senderReach : aloneReach;
    return from === to || (reach.get(from)?.has(to) ?? false);
  }

  #reading(host: Host, id: string): Reading {
    const key = `${host.name} ${id}`;
    let reading = this.#readings.get(key);
    if (reading === undefined) this.#readings.set(key, (reading = { begun: 0, tokens: new Set(), confirming: new Set() }));
    return reading;
  }

  /** How many hand-outs of a message have been answered. */
  tokens(host: Host, id: string): number {
    return this.#reading(host, id).tokens.size;
  }

  begun(host: Host, id: string): number {
    return this.#reading(host, id).begun;
  }
}

function closure<T extends string>(states: readonly T[], may: (from: T, to: T) => boolean): Map<string, Set<string>> {
  const reach = new Map<string, Set<string>>();
  for (const start of states) {
    const found = new Set<string>([start]);
    for (const from of found) for (const to of states) if (may(from as T, to)) found.add(to);
    reach.set(start, found);
  }
  return reach;
}
