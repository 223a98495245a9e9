/**
 * The libp2p node of this host: TCP, Noise, yamux, and every limit of those libraries that ax does not leave at its default.
 *
 * Owns the configuration and the reading of the node's errors; no peer, no request. No discovery, relay, identify or store
 * on disk: peers and addresses come from pairing. The connection monitor is off, because connection.ts probes on its own. The
 * muxer and its bounds are metering.ts.
 */
import { privateKeyFromRaw } from '@libp2p/crypto/keys';
import type { Connection, Libp2p, Logger, MultiaddrConnection, Stream } from '@libp2p/interface';
import { tcp } from '@libp2p/tcp';
import { createLibp2p } from 'libp2p';
import { AxError } from '../../protocol/errors.ts';
import type { HostKey } from '../../protocol/identity.ts';
import type { Clock } from '../clock/clock.ts';
import { PROTOCOLS } from './connection.ts';
import type { Channel } from './link.ts';
import { MAX_UNSENT_BYTES, Meters } from './metering.ts';
import type { MeterHooks } from './metering.ts';
import { LinkFault, recordedNoise } from './records.ts';

/** Streams per protocol, direction and connection. One is used; the second bridges the replacement of one that broke. */
const STREAMS_PER_CHANNEL = 2;
const MAX_CONNECTIONS = 1024;
/**
 * Connections from one address in one second, a burst of restarted hosts behind one router; and handshakes under way at once.
 * One address that says nothing holds at most 192 of those (six seconds' worth), so it cannot keep the others out.
 */
const INBOUND_PER_SECOND = 32;
const INBOUND_HANDSHAKES = 512;
const HANDSHAKE_TIMEOUT_MS = 5000;
const ADDRESS_DIAL_TIMEOUT_MS = 5000;
/** Far above the 55 s within which a silent connection is probed: only ends what is dead below that. */
const SOCKET_IDLE_MS = 120_000;

const nothing = (): void => undefined;
/**
 * What the libraries say of themselves is nothing an owner can use; the daemon tells what happens to a connection in its own words. Their own
 * logger makes three objects for each connection, each of its streams and each layer below, said or not: 15 KiB a peer.
 */
const SILENT: Logger = Object.assign(() => undefined, { error: nothing, trace: nothing, enabled: false, newScope: () => SILENT });

export interface NodeHooks extends MeterHooks {
  /** A connection ended for a mistake of this host. */
  faulted(error: Error): void;
  opened(connection: Connection): void;
  closed(connection: Connection): void;
  incoming(channel: Channel, stream: Stream, connection: Connection): void;
  /** Whether a peer that just proved its key is turned away before it gets a connection. */
  refuses(peer: string, address: string): boolean;
}

/** Starts the node; AxError `unavailable` naming the addresses that cannot be listened on. */
export async function startNode(key: HostKey, listen: readonly string[], clock: Clock, hooks: NodeHooks): Promise<Libp2p> {
  const meters = new Meters(clock, hooks);
  const node = await createNode(key, listen, meters, hooks);
  node.addEventListener('connection:open', ({ detail: connection }) => {
    meters.opened(connection);
    connection.addEventListener('close', (event) => {
      if (event.error instanceof LinkFault) hooks.faulted(event.error);
      if (event.error?.name !== 'StreamBufferError') return;
      hooks.violated(
        connection,
        new AxError('protocol_violation', 'the peer made this host write more than it reads', { cause: event.error }),
      );
    });
    hooks.opened(connection);
  });
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

async function createNode(key: HostKey, listen: readonly string[], meters: Meters, hooks: NodeHooks): Promise<Libp2p> {
  // What is encrypted waits below the muxer's connection: a peer that reads a little now and then moves the whole of it there.
  const bounded = (below: MultiaddrConnection): void => void (below.maxWriteBufferLength = MAX_UNSENT_BYTES);
  try {
    return await createLibp2p({
      start: false,
      logger: { forComponent: () => SILENT },
      // The library's own way from a seed works the public half out anew, in JavaScript: a tenth of a second of each start.
      privateKey: privateKeyFromRaw(Buffer.concat([key.seed, key.publicKey])),
      addresses: { listen: [...listen] },
      transports: [tcp({ inboundSocketInactivityTimeout: SOCKET_IDLE_MS, outboundSocketInactivityTimeout: SOCKET_IDLE_MS })],
      connectionEncrypters: [recordedNoise()],
      streamMuxers: [meters.muxers()],
      connectionMonitor: { enabled: false },
      connectionManager: {
        maxConnections: MAX_CONNECTIONS,
        inboundConnectionThreshold: INBOUND_PER_SECOND,
        maxIncomingPendingConnections: INBOUND_HANDSHAKES,
        inboundUpgradeTimeout: HANDSHAKE_TIMEOUT_MS,
        addressDialTimeout: ADDRESS_DIAL_TIMEOUT_MS,
        reconnectRetries: 0,
      },
      connectionGater: {
        denyInboundEncryptedConnection: (peer, below) => {
          bounded(below);
          return hooks.refuses(peer.toString(), below.remoteAddr.toString());
        },
        denyOutboundEncryptedConnection: (_peer, below) => {
          bounded(below);
          return false;
        },
      },
    });
  } catch (error) {
    // Only the listen addresses can be wrong here; they come from the owner's configuration.
    throw cannotListen(listen, error);
  }
}

const LISTEN_FIX =
  'listen elsewhere: ax daemon start --listen /ip4/0.0.0.0/tcp/OTHER with a free port for OTHER, or the same as "listen" in config.json';

function cannotListen(listen: readonly string[], error: unknown): AxError {
  const code = /\b(EADDRINUSE|EADDRNOTAVAIL|EACCES)\b/.exec(error instanceof Error ? error.message : '')?.[1];
  const why = code === 'EADDRINUSE' ? ': the port is taken' : code === undefined ? '' : ` (${code})`;
  return new AxError('unavailable', `cannot listen on ${listen.join(', ')}${why}`, {
    cause: error,
    details: { addresses: listen, reason: code ?? null },
    ...(code === undefined ? {} : { fix: LISTEN_FIX }),
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
