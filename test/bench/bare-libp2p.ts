/**
 * A bare libp2p process for comparison: the transports, the encryption and the muxer that the daemon uses, and nothing of ax.
 *
 * Run by plain-child.ts with `{ nodes, dial?, listen }` as its options: makes so many nodes and says `{ addresses }` of the first. With
 * `dial` each of them connects there. `{ "send": MS }` on its stdin makes the first one send 64 KiB pieces over one stream for so long, and say
 * `{ mbPerSecond }`. Whoever is sent to reads and throws away. Waits with the `drain` event: `onDrain()` of this version does not wait.
 */
import { createInterface } from 'node:readline';
import { noise } from '@chainsafe/libp2p-noise';
import type { Connection, Libp2p, Stream } from '@libp2p/interface';
import { tcp } from '@libp2p/tcp';
import { yamux } from '@libp2p/yamux';
import { multiaddr } from '@multiformats/multiaddr';
import { createLibp2p } from 'libp2p';

const PROTOCOL = '/bench/1';
const PIECE = new Uint8Array(64 * 1024).fill(0x61);
const options = JSON.parse(process.argv.at(-1) ?? '{}') as { nodes: number; dial?: string };

function say(words: object): void {
  process.stdout.write(`${JSON.stringify(words)}\n`);
}

async function makeNode(): Promise<Libp2p> {
  const node = await createLibp2p({
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux({ streamOptions: { maxStreamWindowSize: 1024 * 1024 } })],
    connectionMonitor: { enabled: false },
    connectionManager: { maxConnections: 1024, inboundConnectionThreshold: 1000, maxIncomingPendingConnections: 1000 },
  });
  await node.handle(PROTOCOL, (stream) => {
    let bytes = 0;
    stream.addEventListener('message', (event) => {
      bytes += event.data.byteLength;
    });
    // The other side has ended its half: it is told how much came.
    stream.addEventListener('remoteCloseWrite', () => {
      stream.send(new TextEncoder().encode(String(bytes)));
      stream.close().catch((error: unknown) => process.stderr.write(`${String(error)}\n`));
    });
  });
  return node;
}

/** MB/s until the other side has told that it has everything. */
async function send(connection: Connection, ms: number): Promise<number> {
  const stream: Stream = await connection.newStream(PROTOCOL);
  const told = new Promise<string>((resolve, reject) => {
    stream.addEventListener('message', (event) => resolve(new TextDecoder().decode(event.data.subarray())), { once: true });
    stream.addEventListener('close', () => reject(new Error('the stream ended')), { once: true });
  });
  const began = performance.now();
  while (performance.now() - began < ms) {
    if (!stream.send(PIECE)) await new Promise((resolve) => stream.addEventListener('drain', resolve, { once: true }));
  }
  await stream.close();
  const bytes = Number(await told);
  return bytes / 1e6 / ((performance.now() - began) / 1000);
}

const nodes: Libp2p[] = [];
const connections: Connection[] = [];
for (let n = 0; n < options.nodes; n++) {
  const node = await makeNode();
  nodes.push(node);
  if (options.dial !== undefined) connections.push(await node.dial(multiaddr(options.dial)));
}
say({ addresses: nodes[0]?.getMultiaddrs().map(String) });

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line) as { send: number };
  const [first] = connections;
  if (first === undefined) throw new Error('this process is connected to nobody');
  say({ mbPerSecond: await send(first, asked.send) });
}
