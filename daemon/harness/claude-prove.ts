/**
 * Proof that a shell belongs to the session it claims: the values it exports agree with the record of a live process.
 *
 * Owns the comparison of a claim with the records of given config roots. All values are inherited by every descendant of a
 * session, so a proof says which session a command comes from, not that its model typed it. Reads no key file.
 */
import { stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { AxError } from '../../protocol/errors.ts';
import { pause } from '../clock/within.ts';
import { isPrivate, judge, type Surroundings } from './claude-live.ts';
import { readRecord, type SessionRecord } from './claude-record.ts';
import { isOwnFolder } from './places.ts';
import type { SessionClaim } from './harness.ts';

/** A session may be rewriting its record (a cleared conversation) just as its shell asks, ms. */
const SECOND_LOOK_MS = 100;

export interface Proof {
  readonly root: string;
  readonly record: SessionRecord;
}

/**
 * Finds the record that a claim names in `roots`, or in the claim's own config folder when that is ours. AxError `not_found`
 * when no such session lives, `invalid_state` naming the variables that disagree.
 */
export async function proveClaim(claim: SessionClaim, roots: readonly string[], around: Surroundings, signal: AbortSignal): Promise<Proof> {
  const places = new Set(roots);
  if (claim.configDir !== undefined && (await isOwnFolder(claim.configDir, around.uid))) places.add(resolve(claim.configDir));
  const first = await look(claim, places, around, signal);
  if ('record' in first) return first;
  await pause(around.clock, SECOND_LOOK_MS, signal);
  const second = await look(claim, places, around, signal);
  if ('record' in second) return second;
  if (second.disagrees.length === 0) {
    throw new AxError('not_found', `no live Claude Code session with process id ${claim.pid} is known on this host`);
  }
  throw new AxError(
    'invalid_state',
    `this shell's ${second.disagrees.join(' and ')} disagrees with what Claude Code recorded for process ${claim.pid}`,
    {
      details: { disagrees: second.disagrees },
    },
  );
}

async function look(
  claim: SessionClaim,
  roots: ReadonlySet<string>,
  around: Surroundings,
  signal: AbortSignal,
): Promise<Proof | { disagrees: readonly string[] }> {
  let disagrees: readonly string[] = [];
  if (claim.pid === undefined || !Number.isSafeInteger(claim.pid) || claim.pid <= 0) return { disagrees };
  for (const root of roots) {
    const folder = join(root, 'sessions');
    if (!(await isTrusted(folder, around.uid))) continue;
    const record = await readRecord(join(folder, `${claim.pid}.json`), claim.pid, around.uid);
    if (typeof record === 'string' || (await judge(record, around, signal)) === 'dead') continue;
    const wrong = disagreements(claim, record);
    if (wrong.length === 0) return { root, record };
    disagrees = wrong;
  }
  return { disagrees };
}

function disagreements(claim: SessionClaim, record: SessionRecord): readonly string[] {
  const wrong: string[] = [];
  if (record.sessionId !== claim.sessionId) wrong.push('CLAUDE_CODE_SESSION_ID');
  if (record.socket === undefined || record.socket !== claim.socket) wrong.push('CLAUDE_CODE_MESSAGING_SOCKET');
  return wrong;
}

async function isTrusted(folder: string, uid: number): Promise<boolean> {
  try {
    return isPrivate(await stat(folder), uid);
  } catch {
    return false; // not there
  }
}
