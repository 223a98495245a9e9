/**
 * What the real link meets besides its own kind: bare libp2p nodes that say what they like, and a TCP proxy in the path.
 *
 * Owns no rule. A foreign node authenticates as any host does, so that what it sends reaches the code behind Noise.
 */
import { randomBytes } from 'node:crypto';
import { connect, createServer } from 'node:net';
import type { Server, Socket } from 'node:net';
import { noise } from '@chainsafe/libp2p-noise';
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys';
import type { Connection, Libp2p, Stream } from '@libp2p/interface';
import { tcp } from '@libp2p/tcp';
import { yamux } from '@libp2p/yamux';
import { multiaddr } from '@multiformats/multiaddr';
import { createLibp2p } from 'libp2p';
import { PROTOCOLS } from '../../../daemon/link/connection.ts';
import { parseHostId } from '../../../protocol/identity.ts';
import type { HostId } from '../../../protocol/ids.ts';
import type { LinkHost } from '../../contract/link.ts';

export interface Foreign {
  readonly node: Libp2p;
  readonly id: HostId;
  /** Opens a stream to a host; the stream is raw. */
  open(host: LinkHost, protocol?: string, port?: number): Promise<Stream>;
  /** A connection to a host, through `port` when given. */
  dial(host: LinkHost, port?: number): Promise<Connection>;
}

/** A bare node; `serve` is what it does with streams of each protocol it speaks. With a `seed` it is the host of that key. */
export async function foreign(serve: Record<string, (stream: Stream) => void> = {}, seed: Uint8Array = randomBytes(32)): Promise<Foreign> {
  const node = await createLibp2p({
    privateKey: await generateKeyPairFromSeed('Ed25519', seed),
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    connectionMonitor: { enabled: false },
  });
  for (const [protocol, handler] of Object.entries(serve)) await node.handle(protocol, handler);
  const dial = (host: LinkHost, port = portOf(host)): Promise<Connection> =>
    node.dial(multiaddr(`/ip4/127.0.0.1/tcp/${port}/p2p/${host.id}`));
  const open = async (host: LinkHost, protocol = PROTOCOLS.wire, port?: number): Promise<Stream> =>
    (await dial(host, port)).newStream(protocol);
  return { node, id: parseHostId(node.peerId.toString()), open, dial };
}

/** A frame of the muxer, as its specification numbers the types (0 data, 1 window, 2 ping, 3 good-bye) and flags (1 SYN, 2 ACK, 4 FIN, 8 RST). */
export function muxerFrame(type: number, flag: number, streamId: number, length: number): Buffer {
  const frame = Buffer.alloc(12);
  frame[1] = type;
  frame.writeUInt16BE(flag, 2);
  frame.writeUInt32BE(streamId, 4);
  frame.writeUInt32BE(length, 8);
  return frame;
}

/** Sends bytes on a connection below its streams. False when the connection is no more. */
export function sendBelow(connection: Connection, bytes: Uint8Array): boolean {
  const { muxer } = connection as unknown as { muxer: { send(bytes: Uint8Array): boolean } };
  if (connection.status !== 'open') return false;
  muxer.send(bytes);
  return true;
}

/** Makes a connection's own end take answers to pings that only the test sent; the library would end it. */
export function forgiving(connection: Connection): void {
  const { muxer } = connection as unknown as { muxer: { handlePingResponse: () => void } };
  muxer.handlePingResponse = () => undefined;
}

export const addressesOf = (node: Libp2p): string[] => node.getMultiaddrs().map((address) => address.toString().replace(/\/p2p\/.*$/, ''));

/** Host and port of a host's first address, for raw sockets. */
export function portOf(host: LinkHost): number {
  return Number(/\/tcp\/(\d+)$/.exec(host.link.status().listen[0] ?? '')?.[1]);
}

/** A proxy in front of a host that counts connections and bytes, and can go silent without closing anything. */
export class Proxy {
  accepted = 0;
  /** Passed on, both ways. */
  bytes = 0;
  silent = false;
  /** What goes on in place of what came, in writes of its own. */
  alter: (bytes: Buffer, towards: 'host' | 'dialler') => readonly Uint8Array[] = (bytes) => [bytes];
  readonly sockets = new Set<Socket>();
  readonly #server: Server;

  /** `from`: the address it speaks from. */
  constructor(port: number, from?: string) {
    this.#server = createServer({ noDelay: true }, (client) => {
      this.accepted += 1;
      const upstream = connect({ port, host: '127.0.0.1', noDelay: true, ...(from === undefined ? {} : { localAddress: from }) });
      for (const [from, to] of [
        [client, upstream],
        [upstream, client],
      ] as const) {
        from.on('data', (bytes) => {
          if (this.silent) return;
          this.bytes += bytes.length;
          for (const altered of this.alter(bytes, to === upstream ? 'host' : 'dialler')) to.write(altered);
        });
        from.on('close', () => void (this.silent ? undefined : to.destroy()));
        from.on('error', () => void to.destroy());
      }
      this.sockets.add(client);
      client.on('close', () => this.sockets.delete(client));
    });
  }

  /** Starts; the address to dial instead of the host's own. */
  async listen(): Promise<string> {
    await new Promise<void>((resolve) => void this.#server.listen(0, '127.0.0.1', resolve));
    const address = this.#server.address();
    return `/ip4/127.0.0.1/tcp/${typeof address === 'object' && address !== null ? address.port : 0}`;
  }

  async close(): Promise<void> {
    this.silent = false;
    for (const socket of this.sockets) socket.destroy();
    await new Promise<void>((resolve) => void this.#server.close(() => resolve()));
  }
}
