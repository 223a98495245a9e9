/**
 * Status: what operators and senders are told, read from the state owners and changing nothing.
 *
 * Owns the overview, the lists and one message's whole story in the shapes of protocol/control.ts. It never says more than
 * is known: what has not answered is shown with its age, and `uncertain` stays visible until it is resolved.
 */
import type {
  CauseRow,
  DeadRow,
  AdminStatus,
  DaemonStatus,
  EventRow,
  HistoryRow,
  HostRow,
  MessageRow,
  MessageStatus,
} from '../protocol/control.ts';
import { openEnvelopeHeaders, readEnvelope } from '../protocol/envelope.ts';
import type { Headers } from '../protocol/envelope.ts';
import { decode } from '../protocol/codec.ts';
import { AxError } from '../protocol/errors.ts';
import { readSigned } from '../protocol/hashtree.ts';
import type { HostId } from '../protocol/ids.ts';
import { DEFAULT_LIST_ROWS, MAX_LIST_ROWS } from '../protocol/limits.ts';
import { parseWorkspace } from '../protocol/paths.ts';
import { RECEIVER_STATES, SENDER_ENDS, SENDER_STATES } from '../protocol/states.ts';
import type { ReceiverState, SenderState } from '../protocol/states.ts';
import type { SealKeys } from '../protocol/seal.ts';
import type { Agents } from './agents.ts';
import { attention, openEntries } from './attention.ts';
import { causeRow, versionsApart } from './causes.ts';
import type { Clock } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Event, Events } from './events.ts';
import type { Files } from './files/files.ts';
import { grantsOf } from './granting.ts';
import type { Greeting } from './greeting.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Naming } from './naming.ts';
import type { Notices } from './notices.ts';
import type { Outbox } from './outbox.ts';
import type { Sent, SentFrom } from './sent-row.ts';
import type { Peer, Peers } from './peers.ts';
import type { Refusals } from './refusals.ts';
import type { Store } from './store/store.ts';

export interface StatusDeps {
  readonly minFreeBytes: number;
  readonly store: Store;
  readonly clock: Clock;
  readonly self: HostId;
  readonly sealKeys: SealKeys;
  readonly running: () => number;
  readonly files: Files;
  readonly naming: Naming;
  readonly greeting: Greeting;
  readonly discovery: Discovery;
  readonly peers: Peers;
  readonly refusals: Refusals;
  readonly agents: Agents;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
  readonly notices: Notices;
  readonly events: Events;
  readonly daemon: () => DaemonStatus;
}

/** Rows that are read at once where only some of them are shown. */
const PAGE = 200;

/** Rows from below a sequence (undefined: all), newest first, so many at most; fewer are the last. */
type Read = (before: number | undefined, size: number) => readonly (Sent | Received)[];

export class Status {
  readonly #deps: StatusDeps;

  constructor(deps: StatusDeps) {
    this.#deps = deps;
  }

  host(peer: Peer): HostRow {
    const view = this.#deps.greeting.view(peer.hostId);
    return {
      host_id: peer.hostId,
      name: peer.name,
      addresses: peer.addresses,
      ...grantsOf(this.#deps, peer),
      state: view.state,
      last_seen_at: view.lastSeenAt ?? peer.lastSeenAt,
      rtt_ms: view.rttMs === null ? null : Math.round(view.rttMs * 100) / 100,
      version: view.version ?? peer.version,
    };
  }

  hosts(): HostRow[] {
    return this.#deps.peers.all().map((peer) => this.host(peer));
  }

  overview(): AdminStatus {
    const { store, outbox, inbox, notices } = this.#deps;
    const open = openEntries(this.#deps);
    const status = store.status();
    return {
      daemon: this.#deps.daemon(),
      hosts: this.hosts(),
      outbox: { ...open.counts, oldest_at: outbox.oldestOpen()?.createdAt ?? null },
      inbox: { ...inbox.tally(), oldest_at: inbox.oldestUnread()?.receivedAt ?? null },
      notices: notices.counts(),
      store: { path: status.path, bytes: status.bytes, free_bytes: status.freeBytes, entries: status.entries },
      attention: attention(this.#deps, status, open),
    };
  }

  /** Inbox or sent list, newest first. */
  async list(params: Readonly<Record<string, unknown>>): Promise<{ messages: MessageRow[]; scope: string }> {
    const { agents, files, clock } = this.#deps;
    const sent = params['sent'] === true;
    const limit = limitOf(params['limit']);
    const states: readonly string[] = sent ? SENDER_STATES : RECEIVER_STATES;
    const state = params['state'] ?? undefined;
    if (state !== undefined && (typeof state !== 'string' || !states.includes(state)))
      throw new AxError('invalid_argument', `a state is one of ${states.join(', ')}`);
    const typed = params['workspace'] === undefined || params['workspace'] === null ? undefined : parseWorkspace(params['workspace']);
    const workspace = typed === undefined ? undefined : ((await files.canonicalFolder(typed)) ?? typed);
    let before = this.#before(params['before'], sent);
    const from = workspace === undefined ? undefined : { workspace, agents: agents.ofWorkspace(workspace).map((agent) => agent.name) };
    const isWanted = this.#filter(state, workspace);
    const read = sent
      ? await this.#sentRows(state as SenderState | undefined, from)
      : this.#receivedRows(state as ReceiverState, workspace);
    const rows: MessageRow[] = [];
    const size = sent && state !== undefined && from !== undefined ? PAGE : limit; // else nearly every row that is read is shown
    for (;;) {
      const page = read(before, size);
      // Opening the sealed headers costs far more than reading a row: only what is shown is opened.
      for (const row of page.filter(isWanted).slice(0, limit - rows.length))
        rows.push('host' in row ? this.#sentRow(row) : this.#receivedRow(row));
      const last = page.at(-1);
      if (rows.length >= limit || page.length < size || last === undefined) break;
      before = last.seq;
      // Few of a great many may be wanted: the others get their turn while they are looked for.
      await new Promise<void>((resolve) => void clock.after(0, resolve));
    }
    return { messages: rows, scope: workspace ?? 'all workspaces of this host' };
  }

  /** How received rows are read, newest first: by their state when one is asked for. */
  #receivedRows(state: ReceiverState | undefined, workspace: string | undefined): Read {
    const { inbox } = this.#deps;
    if (state === undefined) return (before, size) => inbox.page(before, size, workspace);
    return (before, size) => inbox.inState(state, before, size, workspace);
  }

  /** How sent rows are read: by their state when one is asked for, but for the picked up ones of a folder, which are most of those it has. */
  async #sentRows(state: SenderState | undefined, from: SentFrom | undefined): Promise<Read> {
    const { outbox } = this.#deps;
    if (state === undefined || (state === 'fetched' && from !== undefined)) return (before, size) => outbox.page(before, size, from);
    if (state !== 'forwarding') return (before, size) => outbox.inState(state, before, size);
    const rows = await this.#forwarding();
    return (before = Number.POSITIVE_INFINITY, size) => rows.filter((row) => row.seq < before).slice(0, size);
  }

  /** What is on its way, newest first: a window of each host at most, nearly always its oldest; so it is looked for from that side. */
  async #forwarding(): Promise<Sent[]> {
    const { outbox, clock } = this.#deps;
    const found: Sent[] = [];
    for (const host of outbox.openHosts()) {
      for (let after = 0; found.length < outbox.tally().forwarding;) {
        const rows = outbox.open(host, after, PAGE);
        found.push(...rows.filter((row) => row.state === 'forwarding'));
        if (rows.length < PAGE) break;
        after = rows.at(-1)!.seq;
        await new Promise<void>((resolve) => void clock.after(0, resolve));
      }
    }
    return found.toSorted((one, other) => other.seq - one.seq);
  }

  /** What this host sent that was refused or has expired, newest first, each with why; of the whole host, never of one workspace only. */
  dead(params: Readonly<Record<string, unknown>>): { messages: DeadRow[]; scope: string } {
    const limit = limitOf(params['limit']);
    const rows = this.#deps.outbox.dead(this.#before(params['before'], true), limit);
    const dead = rows.map((row): DeadRow => {
      const host = this.#deps.naming.nameOf(row.host);
      const words = row.cause === null ? null : causeRow(row.cause, host, row.to.workspace);
      return { ...this.#sentRow(row), uncertain: row.uncertain, cause: words, can_retry: this.#canRetry(row) };
    });
    return { messages: dead, scope: 'all messages sent from this host' };
  }

  /** Would `admin.retry` take it now? */
  #canRetry(row: Sent): boolean {
    return this.#deps.peers.get(row.host) !== undefined && this.#deps.outbox.canRetry(row);
  }

  /** The sequence a list goes on below. AxError `invalid_argument` for a message of the other list. */
  #before(id: unknown, sent: boolean): number | undefined {
    if (id === undefined || id === null) return undefined;
    const found = this.#deps.naming.message(id, 'any');
    const row = sent ? found.sent : found.received;
    if (row !== undefined) return row.seq;
    const known = found.sent ?? found.received;
    throw new AxError(
      'invalid_argument',
      sent
        ? `message ${known?.id} was received here; the list of what was sent goes on before a message that was sent from here`
        : `message ${known?.id} was sent from here; the list of what was received goes on before a message that was received here`,
    );
  }

  /** Which rows are listed: in a state, and received for a workspace or sent from it. */
  #filter(state: string | undefined, workspace: string | undefined): (row: Sent | Received) => boolean {
    const folders = new Map<string, string | undefined>();
    const folderOf = (agent: string): string | undefined => {
      if (!folders.has(agent)) folders.set(agent, this.#deps.agents.named(agent)?.workspace);
      return folders.get(agent);
    };
    return (row) => {
      if (state !== undefined && row.state !== state) return false;
      if (workspace === undefined) return true;
      if (!('host' in row)) return row.workspace === workspace;
      return row.origin.workspace === workspace || (row.agent !== null && folderOf(row.agent) === workspace);
    };
  }

  #headers(signed: Uint8Array): Headers {
    return openEnvelopeHeaders(this.#deps.sealKeys, this.#deps.self, readEnvelope(readSigned(decode(signed), 'an envelope').payload));
  }

  #sentRow(row: Sent): MessageRow {
    const { naming } = this.#deps;
    return {
      message_id: row.id,
      kind: row.kind,
      state: row.state,
      harness: row.to.harness,
      workspace: row.to.workspace,
      from: naming.party(row.agent, this.#deps.self),
      to: naming.nameOf(row.host),
      subject: this.#headers(row.signed).subject ?? null,
      bytes: row.bytes,
      received_at: row.acceptedAt,
      handed_out_at: row.receiver?.handedOutAt ?? null,
      fetched_at: row.fetchedAt,
    };
  }

  #receivedRow(row: Received): MessageRow {
    const { naming, self } = this.#deps;
    const headers = this.#headers(row.signed);
    return {
      message_id: row.id,
      kind: row.storedAs,
      state: row.state,
      harness: row.harness,
      workspace: row.workspace,
      from: naming.party(headers.from?.name, row.sender),
      to: naming.party(undefined, self),
      subject: headers.subject ?? null,
      bytes: row.bytes,
      received_at: row.receivedAt,
      handed_out_at: row.handedOutAt,
      fetched_at: row.fetchedAt,
    };
  }

  /** One message's whole story. AxError `message_not_found`, `ambiguous_id`. */
  message(id: unknown): MessageStatus {
    const { naming, self } = this.#deps;
    const found = naming.message(id, 'any');
    if (found.received !== undefined && (found.sent === undefined || found.sent.local)) return this.#received(found.received, found.sent);
    if (found.sent === undefined) throw new AxError('message_not_found', 'there is no such message');
    const row = found.sent;
    const open = row.state === 'queued' || row.state === 'forwarding' || row.state === 'deferred';
    return {
      message_id: row.id,
      side: 'sender',
      state: row.state,
      uncertain: row.uncertain,
      cancel_requested: row.cancelRequested,
      receiver_state: row.receiver?.state ?? null,
      receiver_at: row.receiver?.at ?? null,
      receiver_notice: row.receiver?.notice ?? null,
      receiver_notice_reason: row.receiver?.noticeReason ?? null,
      handed_out_at: row.receiver?.handedOutAt ?? null,
      fetched_at: row.fetchedAt,
      stored_as: row.storedAs,
      live_session: SENDER_ENDS.has(row.state) ? null : (row.receiver?.liveSession ?? null), // nobody tells it any more after an end
      cause:
        (open ? this.#apart(row.host) : undefined) ??
        (row.cause === null ? null : causeRow(row.cause, naming.nameOf(row.host), row.to.workspace)),
      destination: {
        host_id: row.host,
        host: naming.nameOf(row.host),
        harness: row.to.harness,
        workspace: row.to.workspace,
        session_id: row.to.session ?? null,
      },
      from: naming.party(row.agent, self),
      subject: this.#headers(row.signed).subject ?? null,
      bytes: row.bytes,
      remaining_ms: open ? Math.max(0, row.deadline - this.#deps.running()) : null,
      history: this.#history(row.id, row.host),
    };
  }

  /** Why nothing leaves for a host now, whatever was the matter before: no protocol in common. */
  #apart(host: HostId): CauseRow | undefined {
    const { state, range, version, lastSeenAt } = this.#deps.greeting.view(host);
    if (state !== 'update_required' || range === null) return undefined;
    return versionsApart(this.#deps.naming.nameOf(host), version, range, lastSeenAt ?? this.#deps.clock.now());
  }

  #received(row: Received, sent: Sent | undefined): MessageStatus {
    const { naming, self, discovery } = this.#deps;
    const headers = this.#headers(row.signed);
    return {
      message_id: row.id,
      side: sent === undefined ? 'receiver' : 'local',
      state: row.state,
      uncertain: false,
      cancel_requested: false,
      receiver_state: row.state,
      receiver_at: this.#endedAt(row) ?? row.fetchedAt ?? row.handedOutAt ?? row.receivedAt,
      receiver_notice: row.notice?.outcome ?? null,
      receiver_notice_reason: row.notice?.reason ?? null,
      handed_out_at: row.handedOutAt,
      fetched_at: row.fetchedAt,
      stored_as: row.storedAs,
      live_session: discovery.hasReachable(row.harness, row.workspace),
      cause: null,
      destination: { host_id: self, host: 'Localhost', harness: row.harness, workspace: row.workspace, session_id: row.hint },
      from: naming.party(headers.from?.name, row.sender),
      subject: headers.subject ?? null,
      bytes: row.bytes,
      remaining_ms: row.bodyKept && row.state !== 'cancelled' ? Math.max(0, row.expires - this.#deps.running()) : null,
      history: this.#history(row.id, row.sender),
    };
  }

  /** When a message was cancelled or expired here, as the event log tells it. */
  #endedAt(row: Received): number | undefined {
    if (row.state !== 'cancelled' && row.state !== 'expired') return undefined;
    return this.#deps.events.of(row.id).findLast((event) => event.type === `message.${row.state}` && event.hostId === row.sender)?.at;
  }

  /** The history of a message towards one host: another may have used the same id. */
  #history(id: string, host: HostId): HistoryRow[] {
    const own = this.#deps.events.of(id).filter((event) => event.hostId === undefined || event.hostId === host);
    return own.map((event) => ({
      seq: event.seq,
      at: event.at,
      state: event.type.startsWith('message.') ? event.type.slice(8) : `${event.type}${event.state === undefined ? '' : ` ${event.state}`}`,
      detail: event.detail ?? null,
    }));
  }
}

export function eventRow(event: Event): EventRow {
  return {
    seq: event.seq,
    at: event.at,
    type: event.type,
    message_id: event.messageId ?? null,
    host_id: event.hostId ?? null,
    subject: event.subject ?? null,
    state: event.state ?? null,
    detail: event.detail ?? null,
  };
}

function limitOf(value: unknown): number {
  if (value === undefined || value === null) return DEFAULT_LIST_ROWS;
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 1 || value > MAX_LIST_ROWS)
    throw new AxError('invalid_argument', `a limit is from 1 to ${MAX_LIST_ROWS}`);
  return value;
}
