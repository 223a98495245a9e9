/**
 * Who may what at a simulated host, and for how much there is room: worked out from the rows alone, as the rules of ax are written.
 *
 * Owns no state. The oracle's own reading of grants with a workspace or an end, and of the bounds on what one host may leave; it shares
 * no code with the daemon.
 */
import type { Received } from '../../daemon/received-row.ts';
import type { GrantRule, Peer } from '../../daemon/peers.ts';
import type { Limits } from '../../protocol/limits.ts';
import { RECEIVER_ENDS } from '../../protocol/states.ts';
import type { GrantAction } from '../../protocol/states.ts';

/** What both clocks of a host say, ms: the wall's, and its daemon's running time. */
export interface Times {
  readonly wall: number;
  readonly ran: number;
}

/** May a host do this in a workspace ('': in all), by its row and both clocks? A rule ends with the first clock that says so. */
export function allows(peer: Peer | undefined, action: GrantAction, workspace: string, times: Times): boolean {
  if (peer === undefined) return false;
  if (peer.grants.includes(action)) return true;
  const holds = (rule: GrantRule): boolean =>
    (rule.expiresAt === null || times.wall < rule.expiresAt) && (rule.expiresRan === null || times.ran < rule.expiresRan);
  const covers = (rule: GrantRule): boolean => rule.workspace === null || rule.workspace === workspace;
  return (peer.rules ?? []).some((rule) => rule.action === action && holds(rule) && covers(rule));
}

/** What one host has left at another: unread messages and their bytes, and how many are stored in all. */
export function leftBy(
  sender: string,
  rows: readonly Received[],
): { readonly waiting: number; readonly bytes: number; readonly kept: number } {
  const own = rows.filter((row) => row.sender === sender);
  const unread = own.filter((row) => !RECEIVER_ENDS.has(row.state));
  return { waiting: unread.length, bytes: unread.reduce((sum, row) => sum + row.bytes, 0), kept: own.length };
}

/** Is there room for one more message of this size? */
export function hasRoom(sender: string, bytes: number, rows: readonly Received[], limits: Limits): boolean {
  const left = leftBy(sender, rows);
  return left.waiting < limits.waitingMessages && left.bytes + bytes <= limits.waitingBytes && left.kept < limits.keptMessages;
}
