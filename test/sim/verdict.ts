/**
 * The end of a simulated world: when everything works again and has come to rest, what must be true of every message.
 *
 * Owns `unsettled`, which says what still has to happen (empty: at rest), and `judgeEnd`, the rules that hold then. Reads the
 * disks only; what a rule needs to know of the world (who may what, who is willing) it reads there too.
 */
import type { Event } from '../../daemon/events.ts';
import { Inbox } from '../../daemon/inbox.ts';
import { Outbox } from '../../daemon/outbox.ts';
import type { Received } from '../../daemon/received-row.ts';
import type { Sent } from '../../daemon/sent-row.ts';
import { RECEIVER_ENDS, RECEIVER_STATES, SENDER_ENDS, SENDER_STATES } from '../../protocol/states.ts';
import type { Checker } from './checker.ts';
import type { Disk } from './disk.ts';
import type { Fleet, Host } from './fleet.ts';
import { allows, hasRoom } from './rights.ts';

const OPEN: readonly string[] = ['queued', 'forwarding', 'deferred'];

const known = (from: Host, to: Host, disks: ReadonlyMap<Host, Disk>): boolean =>
  disks.get(from)!.peer(to.id) !== undefined && disks.get(to)!.peer(from.id) !== undefined;

/** Would the host that this message waits for take it now: they know each other, it may be left there, and there is room? */
function isWelcome(fleet: Fleet, from: Host, row: Sent, disks: ReadonlyMap<Host, Disk>): boolean {
  const to = fleet.host(row.host);
  if (from === to) return true;
  const there = disks.get(to)!;
  // '': it will be told that the folder does not exist, if it may write to all; else the answer is the one for any other folder.
  const workspace = to.folders.get(row.to.workspace) ?? '';
  if (!known(from, to, disks) || !allows(there.peer(from.id), 'write', workspace, fleet.times(to))) return false;
  return workspace === '' || there.seen(from.id, row.id) !== undefined || hasRoom(from.id, row.bytes, there.allReceived(), to.limits);
}

/** Would somebody read this message by himself? One willing session at its address, and a notice for it. */
function isReadable(fleet: Fleet, host: Host, row: Received, disk: Disk): boolean {
  if (row.storedAs !== 'message') return false;
  if (row.sender !== host.id && !allows(disk.peer(row.sender), 'notify', row.workspace, fleet.times(host))) return false;
  const there = (row.harness === 'codex' ? host.threads : host.agents).live.filter((session) => session.workspace === row.workspace);
  const [only] = there;
  return there.length === 1 && only?.behaviour === 'acts' && only.unreachable === undefined;
}

const disksOf = (fleet: Fleet, checker: Checker): Map<Host, Disk> => new Map(fleet.hosts.map((host) => [host, checker.disk(host)]));

/** What has not come to rest yet, in words. */
export function unsettled(fleet: Fleet, checker: Checker): string[] {
  const disks = disksOf(fleet, checker);
  const found: string[] = [];
  for (const [host, disk] of disks) {
    if (host.life?.started !== true) found.push(`${host.name} is down`);
    for (const other of fleet.hosts)
      if (other !== host && known(host, other, disks) && disk.count('receipts', `${other.id}/`) > 0)
        found.push(`${host.name} has receipts for ${other.name}`);
    for (const row of disk.allSent()) {
      const to = fleet.host(row.host);
      if (OPEN.includes(row.state) && isWelcome(fleet, host, row, disks))
        found.push(`${host.name} ${row.id} is ${row.state} (${row.cause?.code ?? 'no cause'})`);
      if (row.cancelRequested && known(host, to, disks)) found.push(`${host.name} ${row.id} is ${row.state}, cancel_requested`);
    }
    for (const row of disk.allReceived()) {
      if (!RECEIVER_ENDS.has(row.state) && row.expires <= fleet.times(host).ran) found.push(`${host.name} ${row.id} is due to expire`);
      if (!RECEIVER_ENDS.has(row.state) && isReadable(fleet, host, row, disk))
        found.push(`${host.name} ${row.id} is ${row.state}, unread (${row.notice?.outcome ?? 'no notice'})`);
    }
  }
  return found;
}

/** The rules of a world at rest. */
export function judgeEnd(fleet: Fleet, checker: Checker): void {
  const disks = disksOf(fleet, checker);
  checker.sample();
  checker.keepAll();
  for (const ask of checker.asks.values()) {
    if (ask.id === undefined) continue;
    const sent = disks.get(ask.from)!.sent(ask.id);
    if (sent === undefined) checker.fail('every message whose send returned is in its outbox', ask.id);
    else if (sent.host !== ask.to.id) checker.fail('a message goes where it was sent', ask.id);
  }
  for (const [host, disk] of disks) {
    for (const row of disk.allReceived())
      if (disks.get(fleet.host(row.sender))!.sent(row.id) === undefined)
        checker.fail('no message is at a receiver that no sender sent', row.id);
    for (const row of disk.allSent()) agree(checker, host, row, disks, fleet);
    requestsMadeOne(checker, disk);
    inOrder(checker, host, disk);
    listedByState(checker, host);
  }
}

/** The lists by state are those of the rows in that state. Entries on their way have none: they are found among the open ones. */
function listedByState(checker: Checker, host: Host): void {
  const store = host.life?.store;
  if (store === undefined) return;
  const [outbox, inbox] = [new Outbox(store, () => 0), new Inbox(store, () => 0)];
  const seqs = (rows: readonly { readonly seq: number }[]): string => rows.map((row) => row.seq).join(' ');
  const [sent, received] = [outbox.page(undefined, Infinity), inbox.page(undefined, Infinity)];
  const differ = (state: string, listed: string, held: string): void => {
    if (listed !== held) checker.fail('a list by state holds each row in that state once', `${host.name} ${state}: ${listed}; ${held}`);
  };
  for (const state of SENDER_STATES.filter((one) => one !== 'forwarding'))
    differ(state, seqs(outbox.inState(state, undefined, Infinity)), seqs(sent.filter((row) => row.state === state)));
  for (const state of RECEIVER_STATES)
    differ(state, seqs(inbox.inState(state, undefined, Infinity)), seqs(received.filter((row) => row.state === state)));
}

/** What the sender says and what the receiver holds are the same story. */
function agree(checker: Checker, host: Host, row: Sent, disks: ReadonlyMap<Host, Disk>, fleet: Fleet): void {
  const to = fleet.host(row.host);
  const other = disks.get(to)!.received(host.id, row.id);
  const story = `${row.id}: ${row.state}${row.uncertain ? ' uncertain' : ''} at ${host.name}, ${other?.state ?? 'absent'} at ${to.name}`;
  const there = other?.state;
  const reachable = isWelcome(fleet, host, row, disks);
  switch (row.state) {
    case 'accepted':
      if (row.local && there !== undefined && !RECEIVER_ENDS.has(there)) break;
      if (there === undefined || (RECEIVER_ENDS.has(there) && known(host, to, disks)))
        checker.fail('accepted at rest means waiting at the receiver', story);
      break;
    case 'fetched':
      if (there !== 'fetched') checker.fail('fetched at both ends', story);
      if (!row.local && row.receiver?.state !== 'fetched')
        checker.fail('the mirror of a fetched message says fetched', `${story}, mirror ${row.receiver?.state}`);
      break;
    case 'cancelled':
      if (there !== undefined && there !== 'cancelled') checker.fail('cancelled at both ends', story);
      break;
    case 'refused':
      if (there !== undefined) checker.fail('a refused message is not at its receiver', story);
      break;
    case 'expired':
      if (!row.uncertain && there !== undefined && there !== 'expired')
        checker.fail('expired for certain means gone at the receiver', story);
      if (there === 'fetched' && known(host, to, disks)) checker.fail('a pickup corrects an uncertain expiry', story);
      break;
    default:
      if (reachable) checker.fail('nothing waits for a host that would take it', `${story}, ${row.cause?.code ?? 'no cause'}`);
  }
  if (row.acceptedAt !== null && other !== undefined && row.storedAs !== other.storedAs)
    checker.fail('the sender is told as what its message is stored', `${story}: ${row.storedAs}, ${other.storedAs}`);
  if (reachable && row.uncertain && !SENDER_ENDS.has(row.state)) checker.fail('nothing stays uncertain', story);
  if (row.cancelRequested && known(host, to, disks)) checker.fail('nothing stays cancel_requested', story);
}

/** One request id, one message. */
function requestsMadeOne(checker: Checker, disk: Disk): void {
  const keys = new Set<string>();
  for (const row of disk.allSent()) {
    if (keys.has(row.request.key)) checker.fail('the same request id never makes two messages', row.request.key);
    keys.add(row.request.key);
  }
}

const ONCE: readonly string[] = [
  'message.queued',
  'message.accepted',
  'message.received',
  'message.fetched',
  'message.refused',
  'message.cancelled',
];

/** The event log has every transition once, in the order of the states, and ends where the rows are. */
function inOrder(checker: Checker, host: Host, disk: Disk): void {
  const byMessage = Map.groupBy(
    disk.events().filter((event) => event.messageId !== undefined && event.type.startsWith('message.')),
    (event) => event.messageId!,
  );
  let last = 0;
  for (const event of disk.events()) {
    if (event.seq <= last) checker.fail('events are numbered in order', String(event.seq));
    last = event.seq;
  }
  for (const [id, events] of byMessage) {
    const story = `${host.name} ${id}: ${events.map((event) => event.type.slice(8)).join(' ')}`;
    for (const type of checker.isRetried(id) ? ONCE.filter((one) => one !== 'message.refused') : ONCE)
      if (events.filter((event) => event.type === type).length > 1) checker.fail('each transition is in the log once', story);
    for (let i = 1; i < events.length; i++)
      if (isRepeated(events[i - 1]!, events[i]!)) checker.fail('each transition is in the log once', story);
  }
  for (const row of disk.allSent()) {
    if (row.local) continue;
    const types = (byMessage.get(row.id) ?? []).map((event) => event.type);
    if (types[0] !== 'message.queued') checker.fail('a message begins as queued in the log', `${host.name} ${row.id}: ${types.join(' ')}`);
    if (SENDER_ENDS.has(row.state) && !types.includes(`message.${row.state}` as Event['type']))
      checker.fail('the log tells how a message ended', `${host.name} ${row.id} ${row.state}: ${types.join(' ')}`);
  }
  for (const row of disk.allReceived()) {
    const types = (byMessage.get(row.id) ?? []).map((event) => event.type);
    if (!types.includes('message.received'))
      checker.fail('the log tells that a message was received', `${host.name} ${row.id}: ${types.join(' ')}`);
    if (RECEIVER_ENDS.has(row.state) && !types.includes(`message.${row.state}` as Event['type']))
      checker.fail('the log tells how a message ended', `${host.name} ${row.id} ${row.state}: ${types.join(' ')}`);
    if ((row.handedOutAt !== null) !== types.includes('message.handed_out'))
      checker.fail('the log tells of a hand-out', `${host.name} ${row.id}: ${types.join(' ')}`);
  }
}

const REPEATABLE: readonly string[] = ['message.read_by_owner', 'message.handed_out', 'message.deferred'];

function isRepeated(before: Event, after: Event): boolean {
  return before.type === after.type && !REPEATABLE.includes(after.type);
}
