/**
 * Naming: what people type for hosts, messages and agents, resolved to ids; and ids turned back into names for people.
 *
 * Owns no state. What fits several things is refused with the candidates; nothing is ever picked for its age.
 */
import { parseHostRef } from '../protocol/address.ts';
import { AxError } from '../protocol/errors.ts';
import { isMessageId, parseMessageIdPrefix } from '../protocol/ids.ts';
import type { HostId, MessageId } from '../protocol/ids.ts';
import { parseHostId } from '../protocol/identity.ts';
import { didYouMean } from '../protocol/nearest.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Outbox } from './outbox.ts';
import type { Sent } from './sent-row.ts';
import type { Peer, Peers } from './peers.ts';

export type ResolvedHost =
  | { readonly local: true; readonly id: HostId; readonly name: string }
  | { readonly local: false; readonly id: HostId; readonly name: string; readonly peer: Peer };

export interface FoundMessage {
  readonly sent: Sent | undefined;
  readonly received: Received | undefined;
}

/** Messages looked through for one beginning of an id. */
const MAX_SHARED_PREFIX = 1000;

export class Naming {
  readonly #self: HostId;
  readonly #ownName: () => string;
  readonly #peers: Peers;
  readonly #outbox: Outbox;
  readonly #inbox: Inbox;

  constructor(self: HostId, ownName: () => string, peers: Peers, outbox: Outbox, inbox: Inbox) {
    this.#self = self;
    this.#ownName = ownName;
    this.#peers = peers;
    this.#outbox = outbox;
    this.#inbox = inbox;
  }

  /** HOST as typed. AxError `host_not_found`, `ambiguous_host`, `invalid_argument`. */
  host(typed: unknown): ResolvedHost {
    const ref = parseHostRef(typed);
    if (ref.kind === 'local') return this.#local();
    if (ref.kind !== 'alias') {
      const id = parseHostId(ref.id);
      if (id === this.#self) return this.#local();
      const peer = this.#peers.get(id);
      if (peer === undefined)
        throw new AxError('host_not_found', `the host ${id} is not paired with this one`, {
          fix: 'ax host invite here and ax host join there, or: ax host add',
        });
      return { local: false, id, name: peer.name, peer };
    }
    const found = this.#peers.named(ref.alias);
    const [peer] = found;
    if (peer === undefined)
      throw new AxError('host_not_found', `there is no host called "${ref.alias}"${this.#meant(ref.alias)}`, { fix: 'ax host list' });
    if (found.length > 1)
      throw new AxError('ambiguous_host', `"${ref.alias}" fits ${found.length} hosts`, {
        details: { candidates: found.map((one) => `${one.name} ${one.hostId}`) },
        fix: 'use the whole host id',
      });
    return { local: false, id: peer.hostId, name: peer.name, peer };
  }

  #meant(alias: string): string {
    return didYouMean(alias, [...this.#peers.all().map((peer) => peer.name), 'Localhost']);
  }

  #local(): ResolvedHost {
    return { local: true, id: this.#self, name: 'Localhost' };
  }

  /** The local name of a host, or its id. */
  nameOf(id: HostId): string {
    return id === this.#self ? 'Localhost' : (this.#peers.get(id)?.name ?? id);
  }

  /** How a sender or receiver is shown: NAME@HOST, or the host alone for an owner. */
  party(agent: string | null | undefined, host: HostId): string {
    const at = host === this.#self ? this.#ownName() : this.nameOf(host);
    return agent === null || agent === undefined ? at : `${agent}@${at}`;
  }

  /** The host behind an id's `@`: also one that is no longer paired, by its id. */
  #sender(typed: string): HostId {
    const ref = parseHostRef(typed);
    return ref.kind === 'id' ? parseHostId(ref.id) : this.host(typed).id;
  }

  /**
   * A message by its id or the beginning of it, with `@HOST` behind it where two hosts used the same id. `side` limits where to look,
   * `fits` which received ones count. AxError `message_not_found`, `ambiguous_id`.
   */
  message(typed: unknown, side: 'received' | 'any', fits: (row: Received) => boolean = () => true): FoundMessage {
    const at = typeof typed === 'string' ? typed.indexOf('@') : -1;
    const prefix = parseMessageIdPrefix(at < 0 ? typed : (typed as string).slice(0, at));
    const from = at < 0 ? undefined : this.#sender((typed as string).slice(at + 1));
    const received = this.#inbox.find(prefix, MAX_SHARED_PREFIX).filter((row) => (from === undefined || row.sender === from) && fits(row));
    const sent = side === 'any' && from === undefined ? this.#outbox.find(prefix, 20) : [];
    const ids = new Set<MessageId>([...received.map((row) => row.id), ...sent]);
    const [id] = ids;
    const here = id === undefined && side === 'received' ? this.#outbox.find(prefix, MAX_SHARED_PREFIX) : [];
    if (here.length > 1)
      throw new AxError('ambiguous_id', `${prefix} fits ${here.length} messages that were sent from here, and none that was received`, {
        details: { candidates: here },
        fix: 'type more of the id',
      });
    if (here[0] !== undefined)
      throw new AxError('message_not_found', 'that message was sent from here; its body is with its receiver', {
        fix: `ax admin status ${here[0]}`,
      });
    if (id === undefined)
      throw new AxError('message_not_found', `there is no message ${prefix}${isMessageId(prefix) ? '' : '…'} on this host`, {
        fix: 'ax messages list',
      });
    if (ids.size > 1)
      throw new AxError('ambiguous_id', `${prefix} fits ${ids.size} messages`, {
        details: { candidates: [...ids] },
        fix: 'type more of the id',
      });
    if (received.length > 1)
      throw new AxError('ambiguous_id', `two hosts sent a message ${id}`, {
        details: { candidates: received.map((row) => `${id}@${this.nameOf(row.sender)}`) },
        fix: `say whose: ${id}@HOST`,
      });
    return { sent: side === 'any' ? this.#outbox.get(id) : undefined, received: received[0] };
  }
}
