/**
 * One session record of Claude Code, `<root>/sessions/<pid>.json`: read with limits, parsed strictly, reduced to what ax uses.
 *
 * Records are foreign bytes that another program rewrites in place. Owns the reading of one file and its shape; whether
 * the process behind it lives is claude-live.ts's. Names, terminals, tokens and the key files beside are never read.
 * Invariant: no bytes in a record file make anything here throw.
 */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { isAbsolute } from 'node:path';
import { hasUnsafeCharacters, parseSessionId } from '../../protocol/ids.ts';
import { MAX_PATH_BYTES } from '../../protocol/limits.ts';
import { errorCode, workspaceOf } from './places.ts';
import type { SessionStatus } from './harness.ts';

/** Largest record file that is looked at, bytes; genuine ones have under 1 KiB. */
export const MAX_RECORD_BYTES = 64 * 1024;
const MAX_VERSION_CHARS = 64;
const RECORD_NAME = /^([1-9][0-9]{0,9})\.json$/;

/** What a record says, after validation; nothing of it is believed about a live process yet. */
export interface SessionRecord {
  readonly pid: number;
  readonly procStart: string;
  readonly sessionId: string;
  /** Canonical folder, or as recorded (control characters made visible) when it is gone. */
  readonly workspace: string;
  readonly workspaceUsable: boolean;
  readonly status: SessionStatus;
  readonly statusSince: number;
  readonly startedAt: number;
  readonly version: string;
  readonly entrypoint: string;
  /** Undefined when the session cannot be messaged at all. */
  readonly socket: string | undefined;
  readonly peerProtocol: number | undefined;
  readonly pidDomain: string | undefined;
}

/** `gone`: no such file; `unusable`: half-written, oversized, another user's or not a record. */
export type RecordRead = SessionRecord | 'gone' | 'unusable';

/** The pid a record's file name names, or undefined for every other file (the key files too). */
export function pidOfRecordName(name: string): number | undefined {
  const match = RECORD_NAME.exec(name);
  return match?.[1] === undefined ? undefined : Number(match[1]);
}

/** Reads one record file that belongs to `uid`; never throws, never blocks on a pipe, never follows a symbolic link. */
export async function readRecord(path: string, pid: number, uid: number): Promise<RecordRead> {
  let text: string;
  try {
    const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const info = await file.stat();
      if (!info.isFile() || info.uid !== uid || info.size > MAX_RECORD_BYTES) return 'unusable';
      const buffer = Buffer.alloc(MAX_RECORD_BYTES + 1);
      const { bytesRead } = await file.read(buffer, 0, buffer.length, 0);
      if (bytesRead > MAX_RECORD_BYTES) return 'unusable';
      text = buffer.toString('utf8', 0, bytesRead);
    } finally {
      await file.close();
    }
  } catch (error) {
    return errorCode(error) === 'ENOENT' ? 'gone' : 'unusable';
  }
  const record = parseRecord(text, pid);
  if (record === undefined) return 'unusable';
  return { ...record, ...(await workspaceOf(record.workspace)) };
}

/** The record in `text` when it is one of process `pid`; `workspace` is still the raw folder. Never throws. */
export function parseRecord(text: string, pid: number): SessionRecord | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined; // half-written, or never JSON: the caller tries once more and then goes without it
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
  const fields = value as Record<string, unknown>;
  const sessionId = uuidOrNothing(fields['sessionId']);
  const cwd = pathOrNothing(fields['cwd']);
  const procStart = shortText(fields['procStart'], 64);
  if (fields['pid'] !== pid || sessionId === undefined || cwd === undefined || procStart === undefined) return undefined;
  const status = fields['status'];
  const peerProtocol = fields['peerProtocol'];
  return {
    pid,
    procStart,
    sessionId,
    workspace: cwd,
    workspaceUsable: true,
    status: status === 'idle' || status === 'busy' || status === 'waiting' ? status : 'unknown',
    statusSince: milliseconds(fields['statusUpdatedAt']),
    startedAt: milliseconds(fields['startedAt']),
    version: label(fields['version']),
    entrypoint: shortText(fields['entrypoint'], 64) ?? '',
    socket: pathOrNothing(fields['messagingSocketPath']),
    peerProtocol: typeof peerProtocol === 'number' ? peerProtocol : undefined,
    pidDomain: shortText(fields['pidDomain'], 256),
  };
}

function uuidOrNothing(value: unknown): string | undefined {
  try {
    return parseSessionId(value);
  } catch {
    return undefined; // not a UUID: not a record of ours
  }
}

function pathOrNothing(value: unknown): string | undefined {
  if (typeof value !== 'string' || !isAbsolute(value) || value.includes('\0')) return undefined;
  return Buffer.byteLength(value, 'utf8') <= MAX_PATH_BYTES ? value : undefined;
}

function shortText(value: unknown, maxChars: number): string | undefined {
  return typeof value === 'string' && value.length > 0 && value.length <= maxChars && !hasUnsafeCharacters(value) ? value : undefined;
}

function milliseconds(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) && value > 0 && value < 8.64e15 ? Math.floor(value) : 0;
}

function label(value: unknown): string {
  const text = typeof value === 'string' ? value.slice(0, MAX_VERSION_CHARS) : '';
  const clean = Array.from(text, (char) => (hasUnsafeCharacters(char) ? '' : char)).join('');
  return clean === '' ? 'unknown' : clean;
}
