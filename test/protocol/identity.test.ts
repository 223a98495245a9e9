/**
 * Host identity: keys interchange with tweetnacl and libp2p, and nothing weak or ambiguous is ever taken as a host.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys';
import { peerIdFromPrivateKey } from '@libp2p/peer-id';
import fc from 'fast-check';
import { base58btc } from 'multiformats/bases/base58';
import nacl from 'tweetnacl';
import { AxError } from '../../protocol/errors.ts';
import { fingerprint, hostIdOf, hostKeyFromSeed, parseHostId, publicKeyOf, verify } from '../../protocol/identity.ts';

const seedOf = (n: number): Uint8Array => new Uint8Array(32).map((_, i) => (n * 31 + i * 7) & 0xff);
const text = (value: string): Uint8Array => new TextEncoder().encode(value);
const GROUP_ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const P = 2n ** 255n - 19n;
const PREFIX = Uint8Array.of(0x00, 0x24, 0x08, 0x01, 0x12, 0x20);

function littleEndian(value: bigint): Uint8Array {
  const bytes = new Uint8Array(32);
  for (let i = 0, rest = value; i < 32; i++, rest >>= 8n) bytes[i] = Number(rest & 0xffn);
  return bytes;
}

function fromLittleEndian(bytes: Uint8Array): bigint {
  return bytes.reduceRight((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
}

const asText = (key: Uint8Array): string => base58btc.baseEncode(Buffer.concat([PREFIX, key]));
const refusal = (code: string) => (error: unknown) => error instanceof AxError && error.code === code;

test('the same seed gives the same public key and signature bytes as tweetnacl', () => {
  for (let n = 0; n < 8; n++) {
    const theirs = nacl.sign.keyPair.fromSeed(seedOf(n));
    const ours = hostKeyFromSeed(seedOf(n));
    const message = text(`message ${n}`);
    assert.deepEqual(Buffer.from(ours.publicKey), Buffer.from(theirs.publicKey));
    assert.deepEqual(Buffer.from(ours.sign(message)), Buffer.from(nacl.sign.detached(message, theirs.secretKey)));
  }
});

test('the first vector of RFC 8032 holds', () => {
  const key = hostKeyFromSeed(Buffer.from('9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60', 'hex'));
  assert.equal(Buffer.from(key.publicKey).toString('hex'), 'd75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a');
  assert.equal(
    Buffer.from(key.sign(new Uint8Array(0))).toString('hex'),
    'e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b',
  );
});

test('a host id is the libp2p peer id of the same key', async () => {
  for (let n = 0; n < 4; n++) {
    const key = hostKeyFromSeed(seedOf(n));
    const theirs = peerIdFromPrivateKey(await generateKeyPairFromSeed('Ed25519', seedOf(n)));
    assert.equal(key.hostId, theirs.toString());
    assert.equal(parseHostId(key.hostId), key.hostId);
    assert.equal(hostIdOf(publicKeyOf(key.hostId)), key.hostId);
  }
});

test('a signature holds for its bytes and its key only', () => {
  const [a, b] = [hostKeyFromSeed(seedOf(1)), hostKeyFromSeed(seedOf(2))];
  const signature = a.sign(text('hello'));
  assert.equal(verify(a.hostId, text('hello'), signature), true);
  assert.equal(verify(a.publicKey, text('hello'), signature), true);
  assert.equal(verify(a.hostId, text('hellp'), signature), false);
  assert.equal(verify(b.hostId, text('hello'), signature), false);
  assert.equal(verify(a.hostId, text('hello'), signature.subarray(0, 63)), false);
  for (let at = 0; at < 64; at++) {
    const bent = Uint8Array.from(signature);
    bent[at]! ^= 1;
    assert.equal(verify(a.hostId, text('hello'), bent), false, `byte ${at}`);
  }
});

test('a malleated signature (S + L) is refused, although tweetnacl takes it', () => {
  const key = hostKeyFromSeed(seedOf(3));
  const signature = key.sign(text('pay once'));
  const malleated = Uint8Array.from(signature);
  malleated.set(littleEndian(fromLittleEndian(signature.subarray(32)) + GROUP_ORDER), 32);
  assert.equal(nacl.sign.detached.verify(text('pay once'), malleated, key.publicKey), true);
  assert.equal(verify(key.hostId, text('pay once'), malleated), false);
});

test('a key of small order is no host, as text and as bytes', () => {
  const order8 = 'c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a';
  const weak = [littleEndian(1n), littleEndian(P - 1n), littleEndian(0n), Buffer.from(order8, 'hex')].map((key) => Uint8Array.from(key));
  for (const key of weak) {
    assert.throws(() => hostIdOf(key), refusal('invalid_argument'));
    assert.throws(() => parseHostId(asText(key)), refusal('invalid_argument'));
    // R = identity, S = 0: under a small-order key a lax verifier takes it for any message.
    assert.equal(verify(key, text('anything'), Uint8Array.of(1, ...new Uint8Array(63))), false);
  }
});

test('a key that is not canonical or not on the curve is no host', () => {
  const bad = [
    littleEndian(P),
    littleEndian(P + 1n),
    littleEndian(2n ** 255n - 1n),
    littleEndian(2n),
    Uint8Array.from({ length: 32 }, () => 0xff),
  ];
  const negativeZero = littleEndian(1n);
  negativeZero[31]! |= 0x80;
  for (const key of [...bad, negativeZero]) assert.throws(() => parseHostId(asText(key)), refusal('invalid_argument'));
});

test('any other text is refused with invalid_argument and nothing else', () => {
  const good = hostKeyFromSeed(seedOf(4)).hostId;
  const rsa = 'QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N';
  for (const value of [
    '',
    good.slice(1),
    `${good}1`,
    ` ${good}`,
    `1${good}`,
    good.toLowerCase(),
    rsa,
    `z${good}`,
    7,
    null,
    undefined,
    {},
  ]) {
    assert.throws(() => parseHostId(value), refusal('invalid_argument'), JSON.stringify(value) ?? 'undefined');
  }
  fc.assert(
    fc.property(
      fc.oneof(
        fc.string({ unit: 'binary' }),
        fc.nat({ max: 51 }).map((at) => `${good.slice(0, at)}z${good.slice(at + 1)}`),
      ),
      (value) => {
        try {
          assert.equal(asText(publicKeyOf(parseHostId(value))), value);
        } catch (error) {
          if (!refusal('invalid_argument')(error)) throw error;
        }
      },
    ),
  );
});

test('the seed does not show in a printed or serialised host key', () => {
  const key = hostKeyFromSeed(seedOf(5));
  assert.deepEqual(Buffer.from(key.seed), Buffer.from(seedOf(5)));
  assert.equal(inspect(key).includes('seed'), false);
  assert.equal(JSON.stringify(key).includes('seed'), false);
  assert.deepEqual(Object.keys({ ...key }).includes('seed'), false);
});

test('a fingerprint is five short groups, the same for the same host and another for another', () => {
  const a = fingerprint(hostKeyFromSeed(seedOf(6)).hostId);
  assert.match(a, /^[0-9a-f]{4}( [0-9a-f]{4}){4}$/);
  assert.equal(a, fingerprint(hostKeyFromSeed(seedOf(6)).hostId));
  assert.notEqual(a, fingerprint(hostKeyFromSeed(seedOf(7)).hostId));
});

test('a key forgotten in favour of hundreds of strangers is checked and known again', () => {
  const known = hostKeyFromSeed(seedOf(8));
  let strangers = 0;
  for (let n = 3; strangers < 600; n++) {
    // y = n is on the curve for about every second n; the rest is refused.
    try {
      hostIdOf(littleEndian(BigInt(n)));
      strangers += 1;
    } catch (error) {
      if (!refusal('invalid_argument')(error)) throw error;
    }
  }
  assert.equal(verify(known.hostId, text('still'), known.sign(text('still'))), true);
  assert.equal(hostIdOf(known.publicKey), known.hostId);
});
