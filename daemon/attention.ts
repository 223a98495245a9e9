/**
 * Attention: what an operator should look at now, each with the time since when and what to do.
 *
 * Owns the choice and the words; reads the state owners and changes nothing. Bounded: a few rows of each kind, never a walk over
 * everything that is kept. Nothing is said that is not known.
 */
import type { AdminStatus, AttentionCode, AttentionRow as Row } from '../protocol/control.ts';
import type { HostId } from '../protocol/ids.ts';
import { isNoticeSafe, shellQuote } from '../protocol/paths.ts';
import { quietLeft } from './agents.ts';
import type { Agents } from './agents.ts';
import { explain } from './causes.ts';
import type { Clock } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Greeting } from './greeting.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Naming } from './naming.ts';
import { WITHHELD } from './notices.ts';
import type { Outbox } from './outbox.ts';
import type { Cause } from './sent-row.ts';
import type { Peer, Peers } from './peers.ts';
import type { Refusals } from './refusals.ts';
import type { StoreStatus } from './store/store.ts';

export interface AttentionDeps {
  readonly minFreeBytes: number;
  readonly clock: Clock;
  readonly running: () => number;
  readonly self: HostId;
  readonly naming: Naming;
  readonly greeting: Greeting;
  readonly discovery: Discovery;
  readonly peers: Peers;
  readonly refusals: Refusals;
  readonly agents: Agents;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
}

/** Open entries of a host looked at, the oldest. */
const LOOKED_AT = 500;
/** Addresses with unread messages that are named. */
const ADDRESSES = 20;
/** Hosts without the right to notify that are named for one address. */
const NO_RIGHT = 5;
/** A notice on which nobody acted is worth a word after this, ms; its reminders are sent meanwhile. */
const UNANSWERED_MS = 3_600_000;
/** Refusals are named for a day, at most so many, found among the newest messages that ended so. */
const LATELY_MS = 86_400_000;
const REFUSALS = 5;
const ENDED_LOOKED_AT = 100;

/** What one host keeps waiting for one reason. */
interface Deferred {
  readonly peer: Peer;
  readonly cause: Cause;
  readonly workspace: string;
  count: number;
  /** More entries of that host are open than were looked at. */
  readonly more: boolean;
  readonly since: number;
}

export interface OpenEntries {
  readonly counts: AdminStatus['outbox'];
  readonly deferred: readonly Deferred[];
}

/** What is open, counted, and what was deferred grouped by host and cause: of the LOOKED_AT oldest entries of each host. */
export function openEntries({ peers, outbox }: Pick<AttentionDeps, 'peers' | 'outbox'>): OpenEntries {
  const counts = outbox.tally();
  const groups = new Map<string, Deferred>();
  for (const peer of counts.deferred === 0 ? [] : peers.all()) {
    const open = outbox.open(peer.hostId, 0, LOOKED_AT);
    for (const row of open) {
      if (row.state !== 'deferred' || row.cause === null) continue;
      const key = `${peer.hostId} ${row.cause.code}`;
      const group = groups.get(key);
      if (group !== undefined) group.count++;
      else {
        const more = open.length === LOOKED_AT;
        groups.set(key, { peer, cause: row.cause, workspace: row.to.workspace, count: 1, more, since: row.createdAt });
      }
    }
  }
  return { counts, deferred: [...groups.values()] };
}

/** Everything that wants a person's eye, the gravest first. */
export function attention(deps: AttentionDeps, { freeBytes, fault }: StoreStatus, open: OpenEntries): Row[] {
  return [
    ...(fault === undefined
      ? []
      : [
          {
            code: 'store_failed' as const,
            what: `the store takes no more writes: ${fault}`,
            since: null,
            fix: 'mend the disk, then: ax daemon restart',
          },
        ]),
    ...(freeBytes < deps.minFreeBytes
      ? [
          {
            code: 'disk_low' as const,
            what: `only ${freeBytes} bytes are free: nothing new is accepted or queued`,
            since: null,
            fix: 'free some disk space',
          },
        ]
      : []),
    ...copiedKeys(deps),
    ...deps.peers.all().flatMap((peer) => hostRows(deps, peer, open)),
    ...open.deferred.map(deferredRow),
    ...deps.refusals.rows().map((row) => ({ code: 'refused_here' as const, ...row })),
    ...refusedLately(deps),
    ...deps.inbox.unreadAddresses(ADDRESSES).flatMap((address) => unreadRows(deps, address.harness, address.workspace)),
  ];
}

function copiedKeys({ greeting, naming }: AttentionDeps): Row[] {
  const copies = greeting.warnings();
  const code = 'host_id_twice';
  const fix = 'stop one of the two and give it a new state folder';
  return [
    ...copies.copies.map((host) => ({
      code: code as typeof code,
      what: `the host id of ${naming.nameOf(host)} is alive in two places: its key was copied`,
      since: null,
      fix,
    })),
    ...(copies.self === undefined
      ? []
      : [
          {
            code: code as typeof code,
            what: `${naming.nameOf(copies.self.by)} sees this host's own id alive in two places: the key was copied`,
            since: copies.self.at,
            fix,
          },
        ]),
  ];
}

function hostRows({ greeting, outbox }: AttentionDeps, peer: Peer, open: OpenEntries): Row[] {
  const view = greeting.view(peer.hostId);
  const found: Row[] = [];
  const isTold = open.deferred.some((group) => group.peer.hostId === peer.hostId && group.cause.code === 'untrusted_peer');
  if (view.state === 'untrusted' && !isTold)
    found.push({
      code: 'peer_untrusted',
      what: `${peer.name} does not know this host`,
      since: null,
      fix: 'on that host: ax host add, or pair anew with an invite',
    });
  if (view.state === 'update_required')
    found.push({
      code: 'peer_update_required',
      what: `${peer.name} runs an ax without a common protocol (${view.version ?? 'unknown'})`,
      since: null,
      fix: 'update ax on the older host',
    });
  if (view.state === 'wrong_peer')
    found.push({
      code: 'peer_wrong_key',
      what: `another key answers at the address of ${peer.name}`,
      since: null,
      fix: `check the address: ax host show ${peer.name}`,
    });
  const oldest = view.state === 'down' ? outbox.open(peer.hostId, 0, 1)[0] : undefined;
  if (oldest !== undefined)
    found.push({
      code: 'peer_down',
      what: `messages wait for ${peer.name}, which is not reachable`,
      since: oldest.createdAt,
      fix: `ax host ping ${peer.name}`,
    });
  return found;
}

function deferredRow({ peer, cause, workspace, count, more, since }: Deferred): Row {
  const { what, next } = explain(cause, peer.name, workspace);
  const waiting = count === 1 && !more ? '1 message for it waits' : `${more ? 'at least ' : ''}${count} messages for it wait`;
  const code = cause.code === 'untrusted_peer' ? 'peer_untrusted' : 'messages_deferred';
  return { code, what: `${what} (${cause.code}); ${waiting}`, since, fix: next === '' ? `ax host ping ${peer.name}` : next };
}

/** Messages that were refused for good: nobody looks at their status again unless told. */
function refusedLately({ outbox, naming, clock }: AttentionDeps): Row[] {
  const since = clock.now() - LATELY_MS;
  return outbox
    .dead(undefined, ENDED_LOOKED_AT)
    .flatMap((row) => {
      if (row.cause === null || row.cause.at < since) return [];
      const { what } = explain(row.cause, naming.nameOf(row.host), row.to.workspace);
      const end =
        row.state === 'refused' ? 'was refused for good' : row.acceptedAt === null ? 'expired before its host took it' : 'expired unread';
      return [
        {
          code: 'message_refused' as const,
          what: `message ${row.id} ${end}: ${what}`,
          since: row.cause.at,
          fix: `ax admin status ${row.id}`,
        },
      ];
    })
    .slice(0, REFUSALS);
}

type Make = (code: AttentionCode, what: string, fix: string, since?: number) => Row;

/** Why the unread messages of one address wake nobody, if so. Notes never do, and are no cause for attention. */
function unreadRows(deps: AttentionDeps, harness: string, workspace: string): Row[] {
  const firsts = deps.inbox
    .senders(harness, workspace)
    .flatMap((sender) => deps.inbox.scoped({ harness, workspace, sender, session: null }, 1))
    .toSorted((one, other) => one.seq - other.seq);
  const mayNotify = ({ sender }: Received): boolean => sender === deps.self || deps.peers.may(sender, 'notify', workspace);
  const oldest = firsts.find(mayNotify);
  const told = oldest === undefined ? undefined : unreadRow(deps, oldest);
  const others = firsts.filter((first) => !mayNotify(first)).slice(0, NO_RIGHT);
  return [...(told === undefined ? [] : [told]), ...others.map((first) => noRightRow(deps, first))];
}

/** Messages that were stored while their sender's host might cause notices, which was taken back since. */
function noRightRow({ naming, peers }: AttentionDeps, { sender, workspace, receivedAt }: Received): Row {
  const host = naming.nameOf(sender);
  const isPaired = peers.get(sender) !== undefined;
  return {
    code: 'no_right',
    what: `unread messages of ${host} for ${workspace} wake nobody: that host may cause no notices here any more`,
    since: receivedAt,
    fix: isPaired
      ? `ax host grant ${shellQuote(host)} notify --workspace ${shellQuote(workspace)}`
      : `read them in a shell: ax messages list --workspace ${shellQuote(workspace)}`,
  };
}

function unreadRow({ discovery, agents, clock, running }: AttentionDeps, oldest: Received): Row | undefined {
  const { harness, workspace } = oldest;
  const row: Make = (code, what, fix, since = oldest.receivedAt) => ({ code, what, since, fix });
  const live = discovery.at(harness, workspace);
  if (!discovery.reaches(harness))
    return row(
      'not_reached',
      `unread messages for ${workspace} wake nobody: this build of ax does not reach ${harness} sessions`,
      `read them in a shell: ax messages list --workspace ${workspace}`,
    );
  if (!isNoticeSafe(workspace))
    return row(
      'not_reached',
      `unread messages for ${workspace} wake nobody: a name with "<", ">", "$" or a backtick cannot stand in a notice`,
      'read them in a shell: ax messages list; then give the folder another name',
    );
  const agent = agents.at(harness, workspace);
  const quietMs = quietLeft(agent, { now: () => clock.now(), running });
  if (agent !== undefined && quietMs > 0) {
    const until = Number.isFinite(quietMs) ? new Date(clock.now() + quietMs).toISOString() : 'it is unquiet';
    return row(
      'agent_quiet',
      `unread messages for ${workspace} wait: its agent ${agent.name} is quiet until ${until}`,
      `nothing need be done: they are told of then; sooner: ax agent unquiet ${agent.name}`,
    );
  }
  if (live.length === 0)
    return row(
      'no_session',
      `unread messages for ${workspace}, where no ${harness} session is live`,
      'start a session there; it is told by itself',
    );
  if (!discovery.hasReachable(harness, workspace))
    return row(
      'not_reached',
      `unread messages for ${workspace}, where no session can be told (${live[0]?.reason ?? 'not reachable'})`,
      'start an interactive session there, or look in that one: ax messages list',
    );
  return noticeRow(oldest, row, clock.now());
}

function noticeRow(oldest: Received, row: Make, now: number): Row | undefined {
  const { notice, workspace } = oldest;
  switch (notice?.outcome) {
    case 'withheld':
      return notice.reason === 'budget'
        ? row(
            'notices_withheld',
            `unread messages for ${workspace} wake nobody for now: ${WITHHELD.budget}`,
            'nothing need be done: they are told of later',
          )
        : notice.reason === 'several'
          ? row('notices_withheld', `unread messages for ${workspace} wake nobody: ${WITHHELD.several}`, 'in one of them: ax messages list')
          : undefined;
    case 'held':
    case 'blocked':
      return row(
        'notices_held',
        `a session in ${workspace} ${notice.outcome === 'held' ? 'holds' : 'refuses'} notices`,
        'its user decides: approve it there, or set crossSessionInbound in the user settings',
        notice.at,
      );
    case 'queue_paused':
      return row(
        'queue_paused',
        `the user of a Codex thread in ${workspace} interrupted it: its queue waits, and the notice in it`,
        'its user goes on in that thread: the queue runs after their next turn',
        notice.at,
      );
    case 'written':
    case 'approved':
    case 'left_queue':
    case 'unverified':
      return now - notice.at < UNANSWERED_MS
        ? undefined
        : row(
            'unanswered',
            `a session in ${workspace} was told of unread messages and has not fetched them`,
            'look into that session: it may ask its user for leave, or have dropped the notice; in it: ax messages list',
            notice.at,
          );
    default:
      return undefined;
  }
}
