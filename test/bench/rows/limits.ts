/**
 * The physical limits of this machine, beside which the other rows are read: disk, hash, cipher, signature, loopback.
 *
 * Owns the smallest program for each: what Node can do on one core when it does nothing else. No targets.
 */
import { createCipheriv, createHash, generateKeyPairSync, randomBytes, sign, verify } from 'node:crypto';
import { closeSync, fdatasyncSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { createConnection, createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { closedLoop } from '../closed-loop.ts';
import type { Contestant, Row, Sample } from '../row.ts';

const RECORD = randomBytes(1024);
const PIECE = randomBytes(1024 * 1024);
const GROUPS = [1, 8, 64, 512];

/** How often a second `work` is done, over so many ms. */
function rate(ms: number, work: () => void): number {
  const from = performance.now();
  let done = 0;
  for (; performance.now() - from < ms; done++) work();
  return done / ((performance.now() - from) / 1000);
}

/** Appends of a group of records, each group synced: groups a second. */
function disk(ms: number): Sample {
  const folder = mkdtempSync(join(tmpdir(), 'axl-'));
  try {
    const figures = GROUPS.map((group) => {
      const file = openSync(join(folder, `log-${group}`), 'w');
      const bytes = Buffer.alloc(group * RECORD.length, RECORD);
      const perSecond = rate(ms, () => {
        writeSync(file, bytes);
        fdatasyncSync(file);
      });
      closeSync(file);
      return [`fdatasync/s, ${group} KiB each`, perSecond];
    });
    return Object.fromEntries(figures) as Sample;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function processor(ms: number): Sample {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519');
  const signature = sign(null, RECORD, privateKey);
  const [key, nonce] = [randomBytes(32), randomBytes(12)];
  const seal = (bytes: Uint8Array): void => {
    const cipher = createCipheriv('chacha20-poly1305', key, nonce, { authTagLength: 16 });
    cipher.update(bytes);
    cipher.final();
    cipher.getAuthTag();
  };
  return {
    'SHA-256/s, 1 KiB': rate(ms, () => createHash('sha256').update(RECORD).digest()),
    'SHA-256 MB/s, 1 MiB': 1.048576 * rate(ms, () => createHash('sha256').update(PIECE).digest()),
    'ChaCha20-Poly1305/s, 1 KiB': rate(ms, () => seal(RECORD)),
    'ChaCha20-Poly1305 MB/s, 1 MiB': 1.048576 * rate(ms, () => seal(PIECE)),
    'Ed25519 signatures/s, 1 KiB': rate(ms, () => sign(null, RECORD, privateKey)),
    'Ed25519 verifications/s, 1 KiB': rate(ms, () => verify(null, RECORD, publicKey, signature)),
  };
}

/** 1 KiB there and back over TCP on loopback; both ends in this process, so a little less than two processes reach. */
async function loopback(ms: number): Promise<Sample> {
  const server = createServer({ noDelay: true }, (socket) => void socket.pipe(socket));
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  const socket = createConnection({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', noDelay: true });
  let missing = 0;
  let done: () => void = () => undefined;
  socket.on('data', (chunk) => {
    missing -= chunk.length;
    if (missing === 0) done();
  });
  const send = (): Promise<void> =>
    new Promise((resolve) => {
      missing = RECORD.length;
      done = resolve;
      socket.write(RECORD);
    });
  const { perSecond } = await closedLoop({ inFlight: 1, warmMs: ms / 4, measureMs: ms, send });
  socket.destroy();
  server.close();
  return { 'TCP round trips/s, 1 KiB': perSecond };
}

export const limits: Row = {
  name: 'limits',
  title: 'Physical limits of this machine (Node, one core, nothing else)',
  targets: [],
  setUp: async ({ pace }) => {
    const ms = pace.measureMs / 5;
    const contestants: Contestant[] = [
      { name: 'disk', measure: async () => disk(ms) },
      { name: 'processor', measure: async () => processor(ms) },
      { name: 'loopback', measure: () => loopback(ms) },
    ];
    return { contestants };
  },
};
