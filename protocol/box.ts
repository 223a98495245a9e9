/**
 * The channel for a session whose sandbox lets it connect to nothing: its places in the state folder and its one kind of request.
 *
 * Owns the grammar of a request line, which says `fetch` or `confirm` and nothing else. A line is written by whoever can open the pipe:
 * nothing in it names a path, a host or a text, and a line that is not exactly right is `undefined`, never an error to answer.
 * Invariant: a line is shorter than PIPE_BUF, so that lines of several writers never mix.
 */
import { isMessageId } from './ids.ts';
import type { MessageId } from './ids.ts';

const VERSION = '1';
const LINE =
  /^1 (?:(fetch)|confirm) ([0-9a-f]{32}) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) ([0-9a-z]{26}) ([0-9a-f]{32})(?: ([0-9a-f]{24}))?$/;
const WORD = /^[0-9a-f]{32}$/;

export interface BoxRequest {
  /** 128 bits in hexadecimal, new for each request: the name of the answer. */
  readonly nonce: string;
  /** The session that asks, as its shell exports it. A claim: the code is what counts. */
  readonly thread: string;
  readonly id: MessageId;
  /** 128 bits in hexadecimal, from the notice. */
  readonly code: string;
  /** Confirms that hand-out; undefined: fetches. */
  readonly handOut: string | undefined;
}

export interface BoxPaths {
  /** 0700, as everything in the state folder. */
  readonly folder: string;
  /** The pipe that requests are written to. */
  readonly requests: string;
  /** The folder of answers, each named by its nonce. */
  readonly answers: string;
}

export function boxPaths(stateDir: string): BoxPaths {
  const folder = `${stateDir}/box`;
  return { folder, requests: `${folder}/requests`, answers: `${folder}/answers` };
}

/** A nonce or a code: 32 hexadecimal digits in lower case. */
export function isBoxWord(value: unknown): value is string {
  return typeof value === 'string' && WORD.test(value);
}

/** A whole message id: the channel takes no beginning of one. */
export function isBoxId(value: unknown): value is MessageId {
  return isMessageId(value);
}

/** The bytes of a request, with a newline before it: half a line that somebody left in the pipe ends there. */
export function boxLine(request: BoxRequest): Uint8Array {
  const { nonce, thread, id, code, handOut } = request;
  const words = [
    VERSION,
    handOut === undefined ? 'fetch' : 'confirm',
    nonce,
    thread,
    id,
    code,
    ...(handOut === undefined ? [] : [handOut]),
  ];
  return new Uint8Array(Buffer.from(`\n${words.join(' ')}\n`, 'latin1'));
}

/** One line without its newlines; undefined unless every byte is as it must be. */
export function parseBoxLine(line: Uint8Array): BoxRequest | undefined {
  const match = LINE.exec(Buffer.from(line.buffer, line.byteOffset, line.byteLength).toString('latin1'));
  if (match === null) return undefined;
  const [, fetch, nonce = '', thread = '', id, code = '', handOut] = match;
  if (!isMessageId(id) || (fetch === undefined) !== (handOut !== undefined)) return undefined;
  return { nonce, thread, id, code, handOut };
}
