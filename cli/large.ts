/**
 * Bodies that fit into no single request on the control socket: handed over, and taken, in parts.
 *
 * Owns the two ways. When they are used, and whether what came is whole, is for those who ask.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import type { FetchedMessage, Method } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import { isMessageId } from '../protocol/ids.ts';
import { keptFolder } from '../protocol/kept.ts';
import { MAX_PIECE_BYTES } from '../protocol/limits.ts';
import { call } from './client.ts';
import type { CallOptions } from './client.ts';
import type { Environment } from './environment.ts';
import { randomWord } from './random.ts';

/**
 * Node waits at its exit for its threads, and one that makes code there may wait for a collection of garbage by the thread that waits: with as
 * much memory as a large body takes, one command in 25 never ended on a busy machine (nodejs/node#54918). From here on no thread makes any.
 */
function makeCodeHere(): void {
  setFlagsFromString('--no-concurrent-sparkplug');
}

/** Asks for something with a body that goes ahead of it; AxError as `call`. */
export async function callInParts<T>(
  environment: Environment,
  method: Method,
  params: object,
  body: Uint8Array,
  options: CallOptions,
): Promise<T> {
  makeCodeHere();
  const upload = randomWord() + randomWord();
  for (let index = 0; index * MAX_PIECE_BYTES < body.length; index++) {
    const part = body.subarray(index * MAX_PIECE_BYTES, (index + 1) * MAX_PIECE_BYTES);
    await call(environment, 'message.upload', { upload, index, body: part }, options);
  }
  return call<T>(environment, method, { ...params, upload }, options);
}

/** The body of a message that was announced in parts, as it came. AxError as `call`. */
export async function takeParts(environment: Environment, fetched: FetchedMessage, parts: number): Promise<Uint8Array> {
  const { message_id: id, from_host: fromHost, hand_out, kept } = fetched;
  if (kept !== undefined && kept !== null) {
    // Through the channel for sandboxed sessions nothing can be asked: the daemon has put all of it into a file.
    if (!isMessageId(id) || fetched.sha256 === null)
      throw new AxError('protocol_violation', 'the daemon gave no id or no digest of the body in its file');
    return (await readFile(join(keptFolder(environment.stateDir), id)).catch(() => undefined)) ?? new Uint8Array(0);
  }
  makeCodeHere();
  const found: Uint8Array[] = [];
  for (let index = 0; index < parts; index++) {
    const { body } = await call<{ readonly body: Uint8Array }>(environment, 'message.part', { id, from_host: fromHost, hand_out, index });
    found.push(body);
  }
  return new Uint8Array(Buffer.concat(found));
}
