/**
 * Fills a store with waiting messages, through the owners of its tables: rows, indexes, counts and events are those of real traffic.
 *
 * Owns what a large store looks like here: one paired host that sent everything, half of it to one folder and the rest spread over 50,
 * and a tenth as much that waits to go to a host that is away. One envelope, sealed once, stands for all; ids differ.
 */
import { join } from 'node:path';
import { Events } from '../../daemon/events.ts';
import { Inbox } from '../../daemon/inbox.ts';
import { Outbox } from '../../daemon/outbox.ts';
import { Peers } from '../../daemon/peers.ts';
import type { Store } from '../../daemon/store/store.ts';
import { systemClock } from '../../daemon/clock/system.ts';
import { sealMessage } from '../../protocol/envelope.ts';
import type { Draft } from '../../protocol/envelope.ts';
import { encodeSigned } from '../../protocol/hashtree.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';
import type { HostKey } from '../../protocol/identity.ts';
import { makeMessageId } from '../../protocol/ids.ts';
import type { HostId, MessageId } from '../../protocol/ids.ts';
import { DEFAULT_LIMITS } from '../../protocol/limits.ts';
import { SEAL_RANDOM_BYTES, SealKeys } from '../../protocol/seal.ts';
import { counted } from '../protocol/sample.ts';

const NO_LIMITS = { ...DEFAULT_LIMITS, waitingMessages: 1e9, waitingBytes: 2 ** 50, keptMessages: 1e9, keptBytes: 2 ** 50 };
const BATCH = 1000;
export const FOLDERS = 50;
const SENDER = hostKeyFromSeed(counted(32, 71));
const AWAY = hostKeyFromSeed(counted(32, 72));
const ORIGIN = { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'test' };

/** The n-th message's id; they sort by n. */
export function bigId(n: number): MessageId {
  return makeMessageId(
    1_790_000_000_000 + n,
    Uint8Array.from({ length: 10 }, (_, i) => (n >>> (i % 4)) & 0xff),
  );
}

/** The folder of the n-th message: `base`/all for every second one, else one of 50 below `base`. */
export function folderOf(base: string, n: number): string {
  return n % 2 === 0 ? join(base, 'all') : join(base, `w${n % FOLDERS}`);
}

/** Puts `messages` waiting messages into a store of `self`; `base` is the folder under which their workspaces lie. */
export async function fill(store: Store, self: HostKey, base: string, messages: number): Promise<void> {
  const running = (): number => 0;
  const inbox = new Inbox(store, running, NO_LIMITS);
  const outbox = new Outbox(store, running);
  const events = new Events(store, systemClock, running);
  const peers = new Peers(store, 'self', { now: () => systemClock.now(), running });
  await store.write((tx) => {
    const facts = { exactName: true, addresses: [], grants: ['read', 'write', 'notify'] as const, now: systemClock.now() };
    peers.add(tx, { ...facts, hostId: SENDER.hostId, name: 'sender' });
    peers.add(tx, { ...facts, hostId: AWAY.hostId, name: 'away' });
  });
  const incoming = sealedFor(SENDER, self.hostId, join(base, 'all'));
  const outgoing = sealedFor(self, AWAY.hostId, '/far');
  for (let from = 0; from < messages; from += BATCH) {
    await store.write((tx) => {
      for (let n = from; n < Math.min(messages, from + BATCH); n++) {
        const id = bigId(n);
        const { draft, ...facts } = incoming;
        inbox.accept(
          tx,
          { ...facts.row, ...RECEIVED, id, sender: SENDER.hostId, workspace: folderOf(base, n), receivedAt: draft.sentAt },
          facts.body,
        );
        events.add(tx, { type: 'message.received', messageId: id, hostId: SENDER.hostId, state: 'awaiting_setup' });
        if (n % 10 !== 0) continue;
        const sent = bigId(messages + n);
        const { to, sentAt } = outgoing.draft;
        const row = {
          ...outgoing.row,
          ...QUEUED,
          id: sent,
          host: AWAY.hostId,
          to,
          createdAt: sentAt,
          request: { key: sent, fingerprint: sent },
        };
        outbox.add(tx, row, outgoing.body);
        events.add(tx, { type: 'message.queued', messageId: sent, hostId: AWAY.hostId, state: 'queued' });
      }
    });
  }
}

const DAY = 86_400_000;
const RECEIVED = { state: 'awaiting_setup', storedAs: 'message', harness: 'claude', hint: null, expires: 7 * DAY } as const;
const QUEUED = { kind: 'message', state: 'queued', local: false, agent: null, origin: ORIGIN, createdRan: 0, deadline: 3 * DAY } as const;

interface Sealed {
  readonly draft: Draft;
  readonly row: { readonly signed: Uint8Array; readonly digest: Uint8Array; readonly bytes: number; readonly sentAt: number };
  readonly body: Uint8Array;
}

function sealedFor(from: HostKey, to: HostId, workspace: string): Sealed {
  const draft: Draft = {
    id: bigId(0),
    kind: 'message',
    to: { host: to, harness: 'claude', workspace },
    sentAt: systemClock.now(),
    headers: { subject: 'one of a great many' },
    body: counted(200),
  };
  const { signed, digest, pieces } = sealMessage(from, new SealKeys(from), draft, counted(SEAL_RANDOM_BYTES, 9));
  return { draft, row: { signed: encodeSigned(signed), digest, bytes: draft.body.length, sentAt: draft.sentAt }, body: pieces[0]! };
}
