/**
 * The CLI's end of the channel for sandboxed sessions: one line into a pipe of the daemon's, one answer out of a file of its.
 *
 * Used only after a connection to the daemon was refused by the system itself. Owns what is checked before a byte is written or believed:
 * pipe, answers and their folders belong to this user alone, and nothing is a symbolic link. It makes nothing, starts nothing and waits at
 * most 5 s; every request is asked again under a new nonce while there is no answer, because somebody else may have taken it.
 */
import { constants, watch } from 'node:fs';
import { lstat, open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { boxLine, boxPaths, isBoxId, isBoxWord } from '../protocol/box.ts';
import type { BoxPaths, BoxRequest } from '../protocol/box.ts';
import type { FetchedMessage } from '../protocol/control.ts';
import { AxError } from '../protocol/errors.ts';
import { MAX_FRAME_BYTES } from '../protocol/limits.ts';
import { readAnswer } from './client.ts';
import type { Environment } from './environment.ts';
import { randomWord } from './random.ts';
import { awaiting, pause, stopwatch } from './wait.ts';

/** How long an answer is waited for in all, and until the same is asked again, ms. */
const PATIENCE_MS = 5000;
const ASK_AGAIN_MS = 1200;
const POLL_MS = 50;
const FULL_PAUSE_MS = 20;

const { O_RDONLY, O_WRONLY, O_NONBLOCK, O_NOFOLLOW } = constants;

/** What a fetch asks for, all of it from the notice and the shell. */
export interface BoxAsk {
  readonly id: unknown;
  readonly code: string | undefined;
}

/** Fetches through the channel. `refusal` is the sandbox's own, thrown again, with the reason, where there is no channel. */
export async function fetchThroughBox(environment: Environment, refusal: AxError, ask: BoxAsk): Promise<FetchedMessage> {
  const fetched = (await exchange(environment, refusal, ask, undefined)) as unknown as FetchedMessage;
  if (fetched.message_id !== ask.id) throw new AxError('internal', 'the answer that came is about another message');
  return fetched;
}

/** Confirms a hand-out that came through the channel. */
export async function confirmThroughBox(environment: Environment, refusal: AxError, ask: BoxAsk, handOut: string): Promise<void> {
  await exchange(environment, refusal, ask, handOut);
}

async function exchange(
  environment: Environment,
  refusal: AxError,
  ask: BoxAsk,
  handOut: string | undefined,
): Promise<Record<string, unknown>> {
  const { id, code } = ask;
  const thread = environment.session?.session_id;
  if (thread === undefined) throw refusal;
  const paths = boxPaths(environment.stateDir);
  const pipe = await openRequests(paths, refusal);
  try {
    if (!isBoxWord(code))
      throw because(refusal, 'the way for sandboxed sessions is open, but takes only the whole command of a notice, with its --code');
    if (!isBoxId(id)) throw because(refusal, 'the way for sandboxed sessions takes only the whole id of a message');
    const request = (): BoxRequest => ({ nonce: randomWord() + randomWord(), thread, id, code, handOut });
    const bytes = await awaiting('the daemon to answer', untilAnswered(pipe, paths, request));
    if (bytes !== undefined) return readAnswer(environment, handOut === undefined ? 'message.fetch' : 'message.confirm', bytes);
  } finally {
    await pipe.close();
  }
  throw new AxError('timeout', `the daemon took no request through ${paths.requests} in ${PATIENCE_MS / 1000} s; try again`, {
    details: { socket: environment.socketPath },
    cause: refusal,
  });
}

function because(refusal: AxError, why: string): AxError {
  return new AxError(refusal.code, `${refusal.message}; ${why}`, {
    ...(refusal.fix === undefined ? {} : { fix: refusal.fix }),
    ...(refusal.details === undefined ? {} : { details: refusal.details }),
    cause: refusal,
  });
}

/** The pipe, open for writing and checked. Where there is none, or none to be trusted, the sandbox's refusal stands. */
async function openRequests(paths: BoxPaths, refusal: AxError): Promise<FileHandle> {
  for (const folder of [paths.folder, paths.answers]) {
    const facts = await lstat(folder).catch(() => undefined);
    if (facts === undefined) throw refusal;
    if (!facts.isDirectory() || !isOwn(facts)) throw because(refusal, `${folder} is not a folder of this user alone`);
  }
  const pipe = await open(paths.requests, O_WRONLY | O_NONBLOCK | O_NOFOLLOW).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'EACCES') throw refusal;
    if (error.code === 'ENXIO') throw because(refusal, 'the daemon that would read this pipe does not run');
    throw because(refusal, `${paths.requests} cannot be written to (${error.code ?? error.message})`);
  });
  const facts = await pipe.stat();
  if (facts.isFIFO() && isOwn(facts)) return pipe;
  await pipe.close();
  throw because(refusal, `${paths.requests} is not a pipe of this user alone`);
}

function isOwn(facts: { readonly uid: number; readonly mode: number }): boolean {
  return facts.uid === process.getuid?.() && (facts.mode & 0o077) === 0;
}

/** Asks, and asks again, until one of the requests is answered; undefined when none was in time. */
async function untilAnswered(pipe: FileHandle, paths: BoxPaths, request: () => BoxRequest): Promise<Uint8Array | undefined> {
  const passed = stopwatch();
  const nonces: string[] = [];
  let wake = (): void => {};
  const watcher = tryWatch(paths.answers, () => wake());
  try {
    for (let asked = Number.NEGATIVE_INFINITY; passed() < PATIENCE_MS;) {
      if (passed() - asked >= ASK_AGAIN_MS) {
        const next = request();
        const isWritten = await tryWrite(pipe, boxLine(next));
        if (isWritten) nonces.push(next.nonce);
        asked = isWritten ? passed() : asked;
      }
      const changed = new Promise<void>((resolve) => (wake = resolve));
      for (const nonce of nonces) {
        const bytes = await readOwn(join(paths.answers, nonce));
        if (bytes !== undefined) return bytes;
      }
      await Promise.race([changed, pause(nonces.length === 0 ? FULL_PAUSE_MS : POLL_MS)]);
    }
    return undefined;
  } finally {
    watcher?.close();
  }
}

/** A watch is for speed only: where it cannot be had, looking every 50 ms does. */
function tryWatch(folder: string, onChange: () => void): { close(): void } | undefined {
  try {
    const watcher = watch(folder, { persistent: false }, onChange);
    watcher.on('error', () => watcher.close());
    return watcher;
  } catch {
    return undefined;
  }
}

/** False when the pipe is full; a line goes whole or not at all. */
async function tryWrite(pipe: FileHandle, line: Uint8Array): Promise<boolean> {
  try {
    return (await pipe.write(line)).bytesWritten === line.length;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'EAGAIN' || code === 'EPIPE') return false;
    throw new AxError('internal', `the pipe of the daemon cannot be written to (${code ?? String(error)})`, { cause: error });
  }
}

/** An answer: a plain file of this user alone; undefined while it is not there. */
async function readOwn(path: string): Promise<Uint8Array | undefined> {
  let file: FileHandle;
  try {
    file = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new AxError('internal', `${path} cannot be read (${(error as NodeJS.ErrnoException).code ?? String(error)})`, { cause: error });
  }
  try {
    const facts = await file.stat();
    if (!facts.isFile() || !isOwn(facts) || facts.nlink > 1 || facts.size > MAX_FRAME_BYTES)
      throw new AxError('internal', `${path} is not an answer of this user's daemon`);
    return new Uint8Array(await file.readFile());
  } finally {
    await file.close();
  }
}
