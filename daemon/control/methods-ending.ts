/**
 * What its sender may do to a message after the send: withdraw it, and have a dead one tried again.
 *
 * Owns the two methods and the guard-rail that an agent's shell touches what its own agent sent only. Each is decided in one transaction,
 * durable on return; what the other host has to say follows by itself.
 */
import { AxError } from '../../protocol/errors.ts';
import type { HostId } from '../../protocol/ids.ts';
import type { Actor } from '../addressing.ts';
import type { Agents } from '../agents.ts';
import type { Events } from '../events.ts';
import type { Exchange } from '../exchange.ts';
import type { Inbox } from '../inbox.ts';
import type { Naming } from '../naming.ts';
import type { Outbox } from '../outbox.ts';
import type { Peers } from '../peers.ts';
import type { Store, StoreReader } from '../store/store.ts';

type Params = Readonly<Record<string, unknown>>;

export interface EndingDeps {
  readonly self: HostId;
  readonly store: Store;
  readonly naming: Naming;
  readonly outbox: Outbox;
  readonly inbox: Inbox;
  readonly events: Events;
  readonly agents: Agents;
  readonly peers: Peers;
  readonly exchange: Exchange;
}

/** Withdraws a message. `cancelled`, `cancel_requested`, or AxError `too_late`. */
export async function cancel(deps: EndingDeps, params: Params, actor: Actor): Promise<Record<string, unknown>> {
  const { naming, outbox, inbox, store, events, exchange, self } = deps;
  const found = naming.message(params['id'], 'any');
  if (found.sent === undefined)
    throw new AxError('invalid_state', 'only its sender can cancel a message; it was received here', {
      fix: 'ask on the host that sent it',
    });
  const { id, host, local, agent } = found.sent;
  const result = await store.write((tx) => {
    requireOwnMessage(deps, { tx, sender: agent, may: 'cancels it' }, params, actor);
    if (!local) {
      const { row, isNew } = outbox.cancel(tx, id);
      if (isNew)
        events.add(tx, {
          type: row.state === 'cancelled' ? 'message.cancelled' : 'message.cancel_requested',
          messageId: id,
          hostId: host,
          state: row.state,
        });
      return row.state === 'cancelled' ? 'cancelled' : 'cancel_requested';
    }
    const decided = inbox.cancel(tx, self, id, found.sent!.digest);
    if (decided.outcome === 'too_late')
      throw new AxError('too_late', decided.row?.state === 'fetched' ? 'the message was picked up' : 'the body was handed out', {
        details: { at: decided.row?.fetchedAt ?? decided.row?.handedOutAt ?? null, certain: decided.row?.state === 'fetched' },
      });
    if (decided.outcome === 'expired') throw new AxError('expired', 'the message has expired; there is nothing to cancel');
    outbox.settleLocal(tx, id, 'cancelled', 0);
    if (decided.isNew) events.add(tx, { type: 'message.cancelled', messageId: id, hostId: self, state: 'cancelled' });
    return 'cancelled';
  });
  if (!local) exchange.wake(host);
  return { message_id: id, state: result };
}

interface Own {
  readonly tx: StoreReader;
  /** The agent that sent the message. */
  readonly sender: string | null;
  /** What the sender may do, as the end of a sentence. */
  readonly may: 'cancels it' | 'has it tried again';
}

/** A guard-rail: a session's shell touches what its own agent sent, and more only when told that it acts for the owner. */
function requireOwnMessage({ agents }: EndingDeps, { tx, sender, may }: Own, params: Params, actor: Actor): void {
  if (actor.session === null || params['as_owner'] === true) return;
  const own = agents.ofSession(actor.session.session_id, tx)?.name;
  if (own !== undefined && own === sender) return;
  throw new AxError('invalid_state', 'the message was not sent by the agent of this session', {
    fix: `its sender or the owner of the host ${may}; add --as-owner when the owner told you to`,
  });
}

/**
 * Has a refused or expired message tried again under the same id. AxError `message_not_found`, `ambiguous_id`, `invalid_state` (it is
 * neither, or was received here), `expired` (past the cap of the forwarding time), `host_not_found` (its host was removed since).
 */
export async function retry(deps: EndingDeps, params: Params, actor: Actor): Promise<Record<string, unknown>> {
  const { naming, outbox, store, events, exchange, peers } = deps;
  const found = naming.message(params['id'], 'any');
  if (found.sent === undefined)
    throw new AxError('invalid_state', 'only its sender can have a message tried again; it was received here', {
      fix: 'ask on the host that sent it',
    });
  const { id, host, agent } = found.sent;
  const row = await store.write((tx) => {
    requireOwnMessage(deps, { tx, sender: agent, may: 'has it tried again' }, params, actor);
    const retried = outbox.retry(tx, id);
    // Nothing is ever sent to a host that is not paired, and no list would show it as waiting.
    if (peers.get(host, tx) === undefined)
      throw new AxError('host_not_found', `the host this message is for (${naming.nameOf(host)}) is not paired with this one any more`, {
        fix: 'pair with it again (ax host add NAME ADDRESS, or ax host join CODE), then retry',
      });
    events.add(tx, { type: 'message.retried', messageId: id, hostId: host, state: retried.state });
    return retried;
  });
  exchange.lookAnew(host);
  return { message_id: id, state: row.state, to: naming.nameOf(host) };
}
