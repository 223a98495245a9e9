/**
 * Floods against a real daemon: many connections, slow ones, deaf ones, and frames that never come, from strangers, from a paired host's
 * key, and from processes of the same user. In each the daemon's memory stays bounded and the others are served meanwhile.
 *
 * The peak is the kernel's own (VmHWM, put back before each flood); AX_FLOOD_REPORT=1 prints one line for each flood.
 */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { dirname, join } from 'node:path';
import { before, test } from 'node:test';
import type { TestContext } from 'node:test';
import { encode } from '../../protocol/codec.ts';
import { CONTROL_PROTOCOL } from '../../protocol/version.ts';
import { encodeFrame } from '../../protocol/frame.ts';
import { MAX_FRAME_BYTES } from '../../protocol/limits.ts';
import { encodeRequest, readAnswer } from '../../protocol/wire.ts';
import { foreign, sendBelow, muxerFrame } from '../daemon/link/foreign.ts';
import type { Foreign } from '../daemon/link/foreign.ts';
import { join2, makeBed, until } from './hosts.ts';
import type { Host } from './hosts.ts';

const bed = makeBed();
let a: Host;
let b: Host;
let workspace: string;
before(async () => {
  [a, b] = await bed.pair();
  workspace = b.workspace('served');
});

const port = (): number => Number((b.listen[0] ?? '').split('/').at(-1));
/** What any flood may add at its peak: what 5,000 connections and the garbage of a busy heap take, and not more with more of them. */
const LIMIT_MIB = 160;
const wireProtocol = '/ax/wire/1';

function statusKiB(field: 'VmHWM' | 'VmRSS'): number {
  return Number(new RegExp(`${field}:\\s+(\\d+)`).exec(readFileSync(`/proc/${b.pid}/status`, 'utf8'))?.[1] ?? 0);
}

/** Sends a message from `a` and sees it accepted; the round trip is what "served" means here. */
async function served(words: string): Promise<void> {
  const sent = await a.call('message.send', {
    host: 'hostb',
    workspace,
    harness: 'claude',
    kind: 'message',
    body: Buffer.from(words),
    request_id: words.replaceAll(/[^A-Za-z0-9]/g, '-'),
  });
  await a.untilStatus(String(sent['message_id']), { state: 'accepted' }, 20_000);
  await b.call('host.list');
}

/** Runs a flood; the paired host is served during and after it, in the same process, and the peak stays under LIMIT_MIB above what was. */
async function flooded(t: TestContext, name: string, flood: (during: () => Promise<void>) => Promise<void>): Promise<void> {
  const { pid } = b;
  await served(`before ${name}`);
  const before = statusKiB('VmRSS');
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
  let times = 0;
  await flood(async () => served(`during ${name} ${(times += 1)}`));
  assert.ok(times > 0, 'nobody was served meanwhile');
  await served(`after ${name}`);
  const grown = (statusKiB('VmHWM') - before) / 1024;
  t.diagnostic(`${name}: peak ${(statusKiB('VmHWM') / 1024).toFixed(0)} MiB, ${grown.toFixed(0)} MiB above what it was`);
  if (process.env['AX_FLOOD_REPORT'] === '1')
    process.stdout.write(`${name}: peak ${(statusKiB('VmHWM') / 1024).toFixed(0)} MiB, +${grown.toFixed(0)} MiB\n`);
  assert.equal(b.pid, pid);
  assert.ok(grown < LIMIT_MIB, `grew by ${grown.toFixed(0)} MiB`);
}

/** Sockets that stay open, from several addresses of 127/8; ended with the test. */
function sockets(t: TestContext, count: number, target: { port: number } | { path: string }, addresses = 1): Socket[] {
  const made = Array.from({ length: count }, (_, n) => {
    const from =
      'port' in target
        ? { host: '127.0.0.1', localAddress: `127.0.${1 + Math.floor((n % addresses) / 200)}.${2 + ((n % addresses) % 200)}` }
        : {};
    const socket = connect({ ...target, ...from } as never);
    socket.on('error', () => socket.destroy()); // refused or cut: what the flood is for
    return socket;
  });
  t.after(() => made.forEach((socket) => socket.destroy()));
  return made;
}

const settled = (made: readonly Socket[]): Promise<void> =>
  until(
    'the connections',
    async () => made.every((socket) => !socket.connecting) || `${made.filter((socket) => socket.connecting).length} left`,
  );

test('5,000 connections that say nothing on the peer port', async (t) => {
  await flooded(t, '5,000 half-open connections', async (during) => {
    // From 200 addresses, in waves: each wave holds its places until it is cut off.
    for (let wave = 0; wave < 5; wave++) {
      const made = sockets(t, 1000, { port: port() }, 200);
      await settled(made);
      await during();
    }
  });
});

test('a slow loris on the peer port: handshakes that come a byte at a time', async (t) => {
  await flooded(t, 'slow loris, peer port', async (during) => {
    const made = sockets(t, 300, { port: port() }, 30);
    await settled(made);
    const line = Buffer.from('\u0013/multistream/1.0.0\n');
    for (let at = 0; at < line.length; at++) {
      for (const socket of made) if (!socket.destroyed) socket.write(line.subarray(at, at + 1));
      if (at % 5 === 0) await during();
    }
  });
});

/** Bare nodes that authenticate as any host does; stopped with the test. */
async function strangers(t: TestContext, count: number): Promise<Foreign[]> {
  const nodes = await Promise.all(Array.from({ length: count }, () => foreign()));
  for (const { node } of nodes) t.after(() => node.stop());
  return nodes;
}

const asHost = (host: Host): never => ({ id: host.hostId, link: { status: () => ({ listen: host.listen }) } }) as never;

function requestFrame(payload: Uint8Array, number: number): Buffer {
  const frame = Buffer.alloc(9 + payload.length);
  frame.writeUInt32BE(5 + payload.length, 0);
  frame[4] = 1;
  frame.writeUInt32BE(number, 5);
  frame.set(payload, 9);
  return frame;
}

test('tries to pair with wrong codes are answered, soon told nothing more, and cost the true host nothing', async (t) => {
  const code = String((await b.ok(['host', 'invite']))['code']);
  const late = await bed.running('late');
  await flooded(t, 'pairing tries', async (during) => {
    const codes = new Map<string, number>();
    const began = performance.now();
    for (let round = 0; round < 12; round++) {
      const [stranger] = await strangers(t, 1);
      const stream = await stranger!.open(asHost(b), wireProtocol).catch(() => undefined);
      if (stream === undefined) continue;
      const answers: Buffer[] = [];
      stream.addEventListener('message', (event) => void answers.push(Buffer.from((event.data as { subarray(): Uint8Array }).subarray())));
      for (let n = 1; n <= 10; n++)
        stream.send(
          requestFrame(encodeRequest({ type: 'pair', invite: `x${n}`, secret: new Uint8Array(32).fill(n), name: 'x', addresses: [] }), n),
        );
      await until('the answers', async () => Buffer.concat(answers).length > 10 * 20 || stream.status !== 'open' || 'few');
      const bytes = Buffer.concat(answers);
      for (let at = 0; at + 9 <= bytes.length; at += 4 + bytes.readUInt32BE(at)) {
        const answer = readAnswer(new Uint8Array(bytes.subarray(at + 9, at + 4 + bytes.readUInt32BE(at))));
        const said = answer.ok ? 'ok' : answer.refusal.code;
        codes.set(said, (codes.get(said) ?? 0) + 1);
      }
      await stranger!.node.stop();
      if (round % 4 === 0) await during();
    }
    assert.deepEqual([...codes.keys()].toSorted(), ['not_found', 'throttled'], JSON.stringify([...codes]));
    // A connection that is refused, or ends while it is answered, leaves fewer to count.
    const told = codes.get('not_found') ?? 0;
    const minutes = Math.ceil((performance.now() - began) / 60_000);
    assert.ok(told > 0 && told <= 20 * minutes, `${told} tries were told that their code is wrong`);
  });
  await late.ok(['host', 'join', '-'], { stdin: `${code}\n` });
});

for (const standing of ['stranger', 'paired host'] as const)
  test(`frames announced and never sent, streams without end and answers never read, from a ${standing}`, async (t) => {
    const node = standing === 'stranger' ? (await strangers(t, 1))[0]! : await asPaired(t);
    await flooded(t, `hostile frames, ${standing}`, async (during) => {
      const stream = await node.open(asHost(b), wireProtocol);
      const header = Buffer.alloc(9);
      header.writeUInt32BE(standing === 'stranger' ? 16 * 1024 : MAX_FRAME_BYTES, 0);
      header[4] = 1;
      stream.send(header); // the rest of it never comes
      await during();
      const connection = await node.dial(asHost(b));
      // Streams opened and dropped as fast as they go, with windows that promise to read everything; nothing is ever read.
      for (let n = 0; n < 2000 && connection.status === 'open'; n++)
        sendBelow(connection, Buffer.concat([muxerFrame(1, 1, 100_001 + 2 * n, 1 << 24), muxerFrame(1, 8, 100_001 + 2 * n, 0)]));
      await during();
      const asks = encodeRequest({ type: 'sessions' });
      const again = await node.open(asHost(b), wireProtocol).catch(() => undefined);
      for (let n = 1; n < 5000 && again?.status === 'open'; n++) again.send(requestFrame(asks, n));
      await during();
    });
  });

/** A host that is paired with b, whose key is then used by a node that says what it likes. */
async function asPaired(t: TestContext): Promise<Foreign> {
  const friend = await bed.running('friend');
  await join2(b, friend);
  await friend.stop();
  const node = await foreign({}, new Uint8Array(readFileSync(join(friend.stateDir, 'host.key'))));
  t.after(() => node.node.stop());
  assert.equal(node.id, friend.hostId);
  return node;
}

const ask = (id: number): Uint8Array =>
  encodeFrame(
    encode({
      v: CONTROL_PROTOCOL,
      id,
      method: 'host.list',
      params: {},
      origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'cli' },
      session: null,
    }),
  );

test('a process of the same user that floods the control socket: too many connections, slow ones, deaf ones', async (t) => {
  await flooded(t, 'control socket', async (during) => {
    const frame = ask(1);
    const slow = sockets(t, 100, { path: b.socketPath });
    await settled(slow);
    for (const socket of slow) socket.write(frame.subarray(0, 7)); // begun and not ended
    const deaf = sockets(t, 50, { path: b.socketPath });
    await settled(deaf);
    for (const socket of deaf) {
      socket.pause();
      for (let n = 0; n < 200; n++) socket.write(ask(n + 1)); // asked and never read
    }
    await during();
    const many = sockets(t, 400, { path: b.socketPath });
    await settled(many);
    for (const socket of [...many, ...deaf, ...slow]) socket.destroy();
    await during();
  });
});

test('a session that floods the socket for receipts: with garbage, with receipts nobody waits for, and with its own again and again', async (t) => {
  const flooding = b.workspace('flooding');
  const session = await b.session(flooding, { autorun: false });
  const sent = await a.ok(['send', '--host', 'hostb', '--destination-workspace', flooding, '--harness', 'claude', 'x']);
  await b.untilStatus(String(sent['message_id']), { receiver_notice: 'written' });
  const path = join(dirname(session.socket), `ax-${b.pid}.sock`);
  const receipt = (id: string, status: string): string =>
    `${JSON.stringify({ type: 'control', action: 'peer_message_status', orig_msg_id: id, status })}\n`;
  await flooded(t, 'reply socket', async (during) => {
    for (let round = 0; round < 20; round++) {
      const made = sockets(t, 50, { path });
      await settled(made);
      for (const [n, socket] of made.entries()) {
        if (n % 3 === 0) socket.write(Buffer.alloc(128 * 1024, 0x41));
        else
          for (let line = 0; line < 100; line++) socket.write(receipt(`00000000-0000-4000-8000-${String(line).padStart(12, '0')}`, 'held'));
      }
      if (round % 5 === 0) await during();
      for (const socket of made) socket.destroy();
    }
  });
  const attention = await b.call('admin.status');
  assert.ok(JSON.stringify(attention).length < 20_000);
});
