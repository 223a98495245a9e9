/**
 * The libp2p node of this host: TCP, Noise, yamux, and every limit of those libraries that ax does not leave at its default.
 *
 * Owns the configuration and the reading of the node's errors; no peer, no request. No discovery, relay, identify or store
 * on disk: peers and addresses come from pairing. The connection monitor is off, because connection.ts probes on its own.
 */
import { noise } from '@chainsafe/libp2p-noise';
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys';
import type { Connection, Libp2p, Stream } from '@libp2p/interface';
import { tcp } from '@libp2p/tcp';
import { yamux } from '@libp2p/yamux';
import { createLibp2p } from 'libp2p';
import { AxError } from '../../protocol/errors.ts';
import type { HostKey } from '../../protocol/identity.ts';
import { PROTOCOLS } from './connection.ts';
import type { Channel } from './link.ts';

/** Streams per protocol, direction and connection. One is used; the second bridges the replacement of one that broke. */
const STREAMS_PER_CHANNEL = 2;
const MAX_CONNECTIONS = 1024;
/** Connections from one address in one second, and handshakes under way at once: a burst of restarted hosts behind one router. */
const INBOUND_PER_SECOND = 64;
const INBOUND_HANDSHAKES = 256;
const HANDSHAKE_TIMEOUT_MS = 5000;
const ADDRESS_DIAL_TIMEOUT_MS = 5000;
/** Far above the muxer's keep-alive of 30 s: only ends what is dead below the muxer. */
const SOCKET_IDLE_MS = 120_000;
/** Largest muxer window. A paused reader is sent up to this much, so it must stay under the stream's 4 MiB read buffer. */
const MAX_WINDOW_BYTES = 1024 * 1024;

export interface NodeHooks {
  opened(connection: Connection): void;
  closed(connection: Connection): void;
  incoming(channel: Channel, stream: Stream, connection: Connection): void;
  /** Whether a peer that just proved its key is turned away before it gets a connection. */
  refuses(peer: string): boolean;
}

/** Starts the node; AxError `unavailable` naming the addresses that cannot be listened on. */
export async function startNode(key: HostKey, listen: readonly string[], hooks: NodeHooks): Promise<Libp2p> {
  const node = await createNode(key, listen, hooks);
  node.addEventListener('connection:open', (event) => hooks.opened(event.detail));
  node.addEventListener('connection:close', (event) => hooks.closed(event.detail));
  for (const channel of ['hello', 'wire'] as const) {
    const limits = { maxInboundStreams: STREAMS_PER_CHANNEL, maxOutboundStreams: STREAMS_PER_CHANNEL };
    await node.handle(PROTOCOLS[channel], (stream, connection) => hooks.incoming(channel, stream, connection), limits);
  }
  try {
    await node.start();
  } catch (error) {
    throw cannotListen(listen, error);
  }
  return node;
}

async function createNode(key: HostKey, listen: readonly string[], hooks: NodeHooks): Promise<Libp2p> {
  try {
    return await createLibp2p({
      start: false,
      privateKey: await generateKeyPairFromSeed('Ed25519', key.seed),
      addresses: { listen: [...listen] },
      transports: [tcp({ inboundSocketInactivityTimeout: SOCKET_IDLE_MS, outboundSocketInactivityTimeout: SOCKET_IDLE_MS })],
      connectionEncrypters: [noise()],
      streamMuxers: [yamux({ maxInboundStreams: 8, maxOutboundStreams: 8, streamOptions: { maxStreamWindowSize: MAX_WINDOW_BYTES } })],
      connectionMonitor: { enabled: false },
      connectionManager: {
        maxConnections: MAX_CONNECTIONS,
        inboundConnectionThreshold: INBOUND_PER_SECOND,
        maxIncomingPendingConnections: INBOUND_HANDSHAKES,
        inboundUpgradeTimeout: HANDSHAKE_TIMEOUT_MS,
        addressDialTimeout: ADDRESS_DIAL_TIMEOUT_MS,
        reconnectRetries: 0,
      },
      connectionGater: { denyInboundEncryptedConnection: (peer) => hooks.refuses(peer.toString()) },
    });
  } catch (error) {
    // Only the listen addresses can be wrong here; they come from the owner's configuration.
    throw cannotListen(listen, error);
  }
}

function cannotListen(listen: readonly string[], error: unknown): AxError {
  const code = /\b(EADDRINUSE|EADDRNOTAVAIL|EACCES)\b/.exec(error instanceof Error ? error.message : '')?.[1];
  const why = code === 'EADDRINUSE' ? ': the port is taken' : code === undefined ? '' : ` (${code})`;
  return new AxError('unavailable', `cannot listen on ${listen.join(', ')}${why}`, {
    cause: error,
    details: { addresses: listen, reason: code ?? null },
  });
}

/** Whether a failed dial failed because another key than the expected one answered. */
export function isWrongKey(error: unknown): boolean {
  if (error instanceof AggregateError) return error.errors.some(isWrongKey);
  // The upgrader keeps only the message of what Noise threw; a test pins the wording of the exact version in use.
  return error instanceof Error && /does not match expected remote identity key/.test(error.message);
}

/** Why a dial failed, for people: the system's code when there is one. */
export function dialReason(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return /\bE[A-Z]{4,}\b/.exec(message)?.[0] ?? message.split('\n')[0] ?? '';
}
