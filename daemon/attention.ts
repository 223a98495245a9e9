/**
 * Attention: what an operator should look at now, each with the time since when and what to do.
 *
 * Owns the choice and the words; reads the state owners and changes nothing. Bounded: a few rows of each kind, never a walk over
 * everything that is kept. Nothing is said that is not known.
 */
import type { AdminStatus } from '../protocol/control.ts';
import { MIN_FREE_BYTES } from '../protocol/limits.ts';
import { isNoticeSafe } from '../protocol/paths.ts';
import { explain } from './causes.ts';
import type { Clock } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Events } from './events.ts';
import type { Greeting } from './greeting.ts';
import type { Inbox, Received } from './inbox.ts';
import type { Naming } from './naming.ts';
import { WITHHELD } from './notices.ts';
import type { Cause, Outbox } from './outbox.ts';
import type { Peer, Peers } from './peers.ts';

export interface AttentionDeps {
  readonly clock: Clock;
  readonly naming: Naming;
  readonly greeting: Greeting;
  readonly discovery: Discovery;
  readonly peers: Peers;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
  readonly events: Events;
}

type Row = AdminStatus['attention'][number];

/** Open entries of a host looked at. */
const LOOKED_AT = 10_000;
/** Addresses with unread messages that are named. */
const ADDRESSES = 20;
/** Refusals are named for a day, at most so many, found among the newest entries of the event log. */
const LATELY_MS = 86_400_000;
const REFUSALS = 5;
const EVENTS_LOOKED_AT = 5000;

/** What one host keeps waiting for one reason. */
interface Deferred {
  readonly peer: Peer;
  readonly cause: Cause;
  readonly workspace: string;
  count: number;
  readonly since: number;
}

export interface OpenEntries {
  readonly counts: AdminStatus['outbox'];
  readonly deferred: readonly Deferred[];
}

/** Counts what is open, and groups what was deferred by host and cause. Looks at no more than LOOKED_AT entries of each host. */
export function openEntries({ peers, outbox }: Pick<AttentionDeps, 'peers' | 'outbox'>): OpenEntries {
  const counts = { queued: 0, forwarding: 0, deferred: 0, uncertain: 0 };
  const groups = new Map<string, Deferred>();
  for (const peer of peers.all()) {
    for (const row of outbox.open(peer.hostId, 0, LOOKED_AT)) {
      if (row.state === 'queued' || row.state === 'forwarding' || row.state === 'deferred') counts[row.state]++;
      if (row.uncertain) counts.uncertain++;
      if (row.state !== 'deferred' || row.cause === null) continue;
      const key = `${peer.hostId} ${row.cause.code}`;
      const group = groups.get(key);
      if (group !== undefined) group.count++;
      else groups.set(key, { peer, cause: row.cause, workspace: row.to.workspace, count: 1, since: row.createdAt });
    }
  }
  return { counts, deferred: [...groups.values()] };
}

/** Everything that wants a person's eye, the gravest first. */
export function attention(deps: AttentionDeps, freeBytes: number, open: OpenEntries): Row[] {
  return [
    ...(freeBytes < MIN_FREE_BYTES
      ? [{ what: `only ${freeBytes} bytes are free: nothing new is accepted or queued`, since: null, fix: 'free some disk space' }]
      : []),
    ...copiedKeys(deps),
    ...deps.peers.all().flatMap((peer) => hostRows(deps, peer, open)),
    ...open.deferred.map(deferredRow),
    ...refusedLately(deps),
    ...deps.inbox
      .unreadAddresses()
      .slice(0, ADDRESSES)
      .flatMap((address) => unreadRow(deps, address.harness, address.workspace) ?? []),
  ];
}

function copiedKeys({ greeting, naming }: AttentionDeps): Row[] {
  const copies = greeting.warnings();
  const fix = 'stop one of the two and give it a new state folder';
  return [
    ...copies.copies.map((host) => ({
      what: `the host id of ${naming.nameOf(host)} is alive in two places: its key was copied`,
      since: null,
      fix,
    })),
    ...(copies.self === undefined
      ? []
      : [
          {
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
      what: `${peer.name} does not know this host`,
      since: null,
      fix: 'on that host: ax host add, or pair anew with an invite',
    });
  if (view.state === 'update_required')
    found.push({
      what: `${peer.name} runs an ax without a common protocol (${view.version ?? 'unknown'})`,
      since: null,
      fix: 'update ax on the older host',
    });
  if (view.state === 'wrong_peer')
    found.push({
      what: `another key answers at the address of ${peer.name}`,
      since: null,
      fix: `check the address: ax host show ${peer.name}`,
    });
  const oldest = view.state === 'down' ? outbox.open(peer.hostId, 0, 1)[0] : undefined;
  if (oldest !== undefined)
    found.push({
      what: `messages wait for ${peer.name}, which is not reachable`,
      since: oldest.createdAt,
      fix: `ax host ping ${peer.name}`,
    });
  return found;
}

function deferredRow({ peer, cause, workspace, count, since }: Deferred): Row {
  const { what, next } = explain(cause, peer.name, workspace);
  const waiting = count === 1 ? '1 message for it waits' : `${count} messages for it wait`;
  return { what: `${what} (${cause.code}); ${waiting}`, since, fix: next === '' ? `ax host ping ${peer.name}` : next };
}

/** Messages that were refused for good: nobody looks at their status again unless told. */
function refusedLately({ events, outbox, naming, clock }: AttentionDeps): Row[] {
  return events.lately('message.refused', clock.now() - LATELY_MS, REFUSALS, EVENTS_LOOKED_AT).flatMap((event) => {
    const row = event.messageId === undefined ? undefined : outbox.find(event.messageId, 1).map((id) => outbox.get(id))[0];
    if (row?.state !== 'refused' || row.cause === null) return [];
    const { what } = explain(row.cause, naming.nameOf(row.host), row.to.workspace);
    return [{ what: `message ${row.id} was refused for good: ${what}`, since: event.at, fix: `ax admin status ${row.id}` }];
  });
}

/** Why the unread messages of one address wake nobody, if so. Notes never do, and are no cause for attention. */
function unreadRow({ inbox, discovery }: AttentionDeps, harness: string, workspace: string): Row | undefined {
  const firsts = inbox
    .senders(harness, workspace)
    .flatMap((sender) => inbox.scoped({ harness, workspace, sender, session: null }, 1))
    .toSorted((one, other) => one.seq - other.seq);
  const [oldest] = firsts;
  if (oldest === undefined) return undefined;
  const row = (what: string, fix: string, since = oldest.receivedAt): Row => ({ what, since, fix });
  const live = discovery.at(harness, workspace);
  if (!discovery.reaches(harness))
    return row(
      `unread messages for ${workspace} wake nobody: this build of ax does not reach ${harness} sessions`,
      `read them in a shell: ax messages list --workspace ${workspace}`,
    );
  if (!isNoticeSafe(workspace))
    return row(
      `unread messages for ${workspace} wake nobody: a name with "<", ">", "$" or a backtick cannot stand in a notice`,
      'read them in a shell: ax messages list; then give the folder another name',
    );
  if (live.length === 0)
    return row(`unread messages for ${workspace}, where no ${harness} session is live`, 'start a session there; it is told by itself');
  if (!discovery.hasReachable(harness, workspace))
    return row(
      `unread messages for ${workspace}, where no session can be told (${live[0]?.reason ?? 'not reachable'})`,
      'start an interactive session there, or look in that one: ax messages list',
    );
  return noticeRow(oldest, row);
}

function noticeRow(oldest: Received, row: (what: string, fix: string, since?: number) => Row): Row | undefined {
  const { notice, workspace } = oldest;
  switch (notice?.outcome) {
    case 'withheld':
      return notice.detail === WITHHELD.budget
        ? row(`unread messages for ${workspace} wake nobody for now: ${WITHHELD.budget}`, 'nothing need be done: they are told of later')
        : row(`unread messages for ${workspace} wake nobody: ${WITHHELD.several}`, 'in one of them: ax messages list');
    case 'held':
    case 'blocked':
      return row(
        `a session in ${workspace} ${notice.outcome === 'held' ? 'holds' : 'refuses'} notices`,
        'its user decides: approve it there, or set crossSessionInbound in the user settings',
        notice.at,
      );
    default:
      return undefined;
  }
}
