/**
 * Noise as the link uses it: the library's handshake, and records that are enciphered and cut here.
 *
 * Owns the cipher of the records on node:crypto, and how many buffers and writes a record costs; the handshake, the keys, the count of
 * nonces and what follows a bad record are the library's. Left to itself it hands the cipher raw keys, which costs Node more than a small
 * record; it throws an error for each record that is not complete yet; and each record leaves in six writes, each a packet of its own.
 * Invariant: on the wire nothing differs (two bytes of length, ciphertext, tag; ChaCha20-Poly1305), so that either side may be the plain library.
 */
import { createCipheriv, createDecipheriv, createSecretKey } from 'node:crypto';
import type { KeyObject } from 'node:crypto';
import type { Socket } from 'node:net';
import { noise } from '@chainsafe/libp2p-noise';
import type { SecuredConnection } from '@libp2p/interface';
import { Uint8ArrayList } from 'uint8arraylist';
import { release, releasePassed } from '../../protocol/memory.ts';

const CIPHER = 'chacha20-poly1305';
const LENGTH_BYTES = 2;
const TAG_BYTES = 16;
const TAGGED = { authTagLength: TAG_BYTES } as const;
/** What two bytes of length can say, without the tag. */
const MAX_PLAIN_BYTES = 65_535 - TAG_BYTES;

type Bytes = Uint8Array | Uint8ArrayList;

/** The parts of the library's encrypter, its connection and the socket's below that are replaced. It calls each on its object. */
interface EncrypterInside {
  readonly crypto: { encrypt: typeof seal; decrypt: typeof open };
}
interface SocketInside {
  readonly socket: Socket;
  sendData(data: Uint8ArrayList): { readonly sentBytes: number; readonly canSendMore: boolean };
}
interface ConnectionInside {
  readonly stream: SocketInside;
  readonly handshake: { encrypt(plain: Bytes): Bytes; decrypt(record: Bytes): Bytes };
  decoder: { decode(bytes: Bytes): Iterable<Bytes>; readonly buffer?: Uint8ArrayList };
  encrypt(plain: Bytes): Bytes;
  decrypt(record: Bytes): Bytes;
}

/** What only a mistake of this host can cause. It ends the connection, and belongs into the log. */
export class LinkFault extends Error {
  override readonly name = 'LinkFault';
}

type MakeEncrypter = ReturnType<typeof noise>;

/** What stands in the node's `connectionEncrypters`. */
export function recordedNoise(): MakeEncrypter {
  const make = noise();
  return (components) => {
    const encrypter = make(components);
    Object.assign((encrypter as unknown as EncrypterInside).crypto, { encrypt: seal, decrypt: open });
    const [inbound, outbound] = [encrypter.secureInbound.bind(encrypter), encrypter.secureOutbound.bind(encrypter)];
    encrypter.secureInbound = async (below, options) => recorded(await inbound(below, options));
    encrypter.secureOutbound = async (below, options) => recorded(await outbound(below, options));
    return encrypter;
  };
}

function recorded<T>(secured: SecuredConnection<T>): SecuredConnection<T> {
  const inside = secured.connection as unknown as ConnectionInside;
  const { handshake } = inside;
  // What came right behind the handshake may have gone into the library's own already; whole records have left it.
  inside.decoder = new RecordCutter(inside.decoder.buffer);
  inside.encrypt = (plain) => sealRecords(plain, (bytes) => handshake.encrypt(bytes));
  inside.decrypt = (record) => handshake.decrypt(record);
  inside.stream.sendData = (data) => written(inside.stream.socket, data);
  return secured;
}

/** As the library writes to its socket, and what was written is given back. */
function written(socket: Socket, data: Uint8ArrayList): ReturnType<SocketInside['sendData']> {
  let [sentBytes, canSendMore] = [0, true];
  for (const part of data) {
    sentBytes += part.byteLength;
    canSendMore = socket.write(part, () => release(part));
    if (!canSendMore) break;
  }
  return { sentBytes, canSendMore };
}

/** The library keeps one array per key and connection, so a key's object lives as long as it is used. */
const keyObjects = new WeakMap<Uint8Array, KeyObject>();

function keyObject(key: Uint8Array): KeyObject {
  let known = keyObjects.get(key);
  if (known === undefined) keyObjects.set(key, (known = createSecretKey(key)));
  return known;
}

const partsOf = (bytes: Bytes): Iterable<Uint8Array> => (bytes instanceof Uint8Array ? [bytes] : bytes);

/** Ciphertext and tag of one record. */
function seal(plain: Bytes, nonce: Uint8Array, ad: Uint8Array, key: Uint8Array): Uint8ArrayList {
  const cipher = createCipheriv(CIPHER, keyObject(key), nonce, TAGGED);
  if (ad.length > 0) cipher.setAAD(ad, { plaintextLength: plain.byteLength });
  const sealed = new Uint8ArrayList();
  for (const part of partsOf(plain)) sealed.append(cipher.update(part));
  cipher.final();
  sealed.append(cipher.getAuthTag());
  return sealed;
}

/** The plaintext of one record; throws when its tag does not fit, and the library then ends the connection. */
function open(record: Bytes, nonce: Uint8Array, ad: Uint8Array, key: Uint8Array): Uint8ArrayList {
  const textBytes = record.byteLength - TAG_BYTES;
  if (textBytes < 0) throw new RangeError('a record shorter than its tag');
  const decipher = createDecipheriv(CIPHER, keyObject(key), nonce, TAGGED);
  if (ad.length > 0) decipher.setAAD(ad, { plaintextLength: textBytes });
  decipher.setAuthTag(record.subarray(textBytes));
  const text = record instanceof Uint8Array ? [record.subarray(0, textBytes)] : record.sublist(0, textBytes);
  const plain = new Uint8ArrayList();
  for (const part of text) plain.append(decipher.update(part));
  decipher.final();
  return plain;
}

/** All records of one send as one buffer: one write, and one packet where it fits. */
function sealRecords(plain: Bytes, encrypt: (plain: Bytes) => Bytes): Uint8Array {
  const total = plain.byteLength;
  const out = Buffer.allocUnsafe(total + Math.ceil(total / MAX_PLAIN_BYTES) * (LENGTH_BYTES + TAG_BYTES));
  let at = 0;
  for (let from = 0; from < total; from += MAX_PLAIN_BYTES) {
    const to = Math.min(total, from + MAX_PLAIN_BYTES);
    const record = encrypt(plain instanceof Uint8Array ? plain.subarray(from, to) : plain.sublist(from, to));
    at = out.writeUInt16BE(record.byteLength, at);
    for (const part of partsOf(record)) {
      out.set(part, at);
      at += part.length;
      release(part);
    }
  }
  // Bytes that changed their length meanwhile would send what lay in this memory before.
  if (at !== out.length) throw new LinkFault('a record has another length than was to be sealed');
  for (const part of partsOf(plain)) releasePassed(part);
  return out;
}

/** Cuts what arrives into records, without copying. Holds at most one record that is not complete yet. */
class RecordCutter {
  #waiting = new Uint8ArrayList();
  /** The chunks that end in what waits. */
  #begun: Uint8Array[] = [];

  /** `begun`: the beginning of the first record, if some of it is here already. */
  constructor(begun?: Uint8ArrayList) {
    if (begun !== undefined) this.#waiting.append(begun);
  }

  /** Each record is to be opened before the next is asked for: the memory it came in is given back then. */
  *decode(bytes: Bytes): Generator<Bytes> {
    for (const chunk of partsOf(bytes)) yield* this.#cut(chunk);
  }

  *#cut(chunk: Uint8Array): Generator<Bytes> {
    let at = 0;
    if (this.#waiting.length > 0) {
      this.#waiting.append(chunk);
      const end = this.#waiting.length < LENGTH_BYTES ? Infinity : LENGTH_BYTES + this.#waiting.getUint16(0);
      if (this.#waiting.length < end) return void this.#begun.push(chunk);
      at = chunk.length - (this.#waiting.length - end);
      yield this.#waiting.sublist(LENGTH_BYTES, end);
      this.#waiting = new Uint8ArrayList();
      for (const part of this.#begun.splice(0)) release(part);
    }
    for (let end; at + LENGTH_BYTES <= chunk.length; at = end) {
      end = at + LENGTH_BYTES + chunk[at]! * 256 + chunk[at + 1]!;
      if (end > chunk.length) break;
      yield chunk.subarray(at + LENGTH_BYTES, end);
    }
    if (at === chunk.length) return release(chunk);
    this.#waiting.append(chunk.subarray(at));
    this.#begun.push(chunk);
  }
}
