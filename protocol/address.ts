/**
 * Addresses: what a message is signed for, and how people name hosts and agents.
 *
 * Owns the logical destination (host + harness + workspace; a session id only as a hint) and the parsing of NAME@HOST and
 * of HOST itself. It does not know which hosts exist. Matching is by the exact canonical workspace: an ancestor or a nested
 * folder is another address.
 */
import { AxError } from './errors.ts';
import { parseLabel, parseName } from './ids.ts';
import type { HostId } from './ids.ts';

export const HARNESSES = ['claude', 'codex'] as const;
export type HarnessName = (typeof HARNESSES)[number];

/** Where a message goes. `workspace` is as the sender typed it until the receiver has made it canonical. */
export interface Destination {
  readonly host: HostId;
  readonly harness: HarnessName;
  readonly workspace: string;
  /** A hint that selects one of several live attachments; never part of the address. */
  readonly session?: string;
}

/** Where an answer goes: an agent of the sending host. */
export interface ReplyAddress {
  readonly name: string;
  readonly harness: HarnessName;
  readonly workspace: string;
}

export function parseHarness(value: unknown): HarnessName {
  if (typeof value === 'string' && (HARNESSES as readonly string[]).includes(value)) return value as HarnessName;
  throw new AxError('invalid_argument', `a harness is one of ${HARNESSES.join(', ')}`);
}

/** How a person named a host. */
export type HostRef =
  | { readonly kind: 'local' }
  | { readonly kind: 'id'; readonly id: HostId }
  | { readonly kind: 'address'; readonly id: HostId; readonly address: string }
  | { readonly kind: 'alias'; readonly alias: string };

const PEER_ID = /^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$/;

/** HOST as typed: an alias, a whole host id, a multiaddr that ends in /p2p/ID, or Localhost. */
export function parseHostRef(value: unknown): HostRef {
  const typed = parseLabel(value, 'a host', 512);
  if (typed.toLowerCase() === 'localhost') return { kind: 'local' };
  if (PEER_ID.test(typed)) return { kind: 'id', id: typed as HostId };
  if (typed.startsWith('/')) return parseHostAddress(typed);
  return { kind: 'alias', alias: parseName(typed, 'a host alias') };
}

/** A dialable multiaddr with the host's id at its end. */
export function parseHostAddress(value: unknown): { readonly kind: 'address'; readonly id: HostId; readonly address: string } {
  const typed = parseLabel(value, 'an address', 512);
  const cut = typed.lastIndexOf('/p2p/');
  const id = cut < 0 ? '' : typed.slice(cut + 5);
  if (!PEER_ID.test(id)) throw new AxError('invalid_argument', 'an address looks like /ip4/192.0.2.7/tcp/19264/p2p/12D3KooW…');
  return { kind: 'address', id: id as HostId, address: parseListenAddress(typed.slice(0, cut)) };
}

const MULTIADDR =
  /^\/(?:ip4\/([0-9.]{7,15})|ip6\/([0-9A-Fa-f:.]{2,45})|dns[46]?\/([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?))\/tcp\/(0|[1-9]\d{0,4})$/;
const IP4 = /^(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}$/;

/** A TCP multiaddr without a host id, one that can be dialled: /ip4/A/tcp/P, /ip6/A/tcp/P or /dns4/NAME/tcp/P. */
export function parseListenAddress(value: unknown): string {
  const match = typeof value === 'string' ? MULTIADDR.exec(value) : null;
  const [, ip4, ip6, , , port] = match ?? [];
  const isAddress = match !== null && (ip4 === undefined || IP4.test(ip4)) && (ip6 === undefined || isIp6(ip6));
  if (!isAddress || Number(port) > 65535)
    throw new AxError('invalid_argument', 'a TCP address looks like /ip4/192.0.2.7/tcp/19264 or /dns4/host.example/tcp/19264');
  return value as string;
}

/** Eight groups of one to four hexadecimal digits; `::` once for the rest; the last two may be written as an IPv4 address. */
function isIp6(address: string): boolean {
  const tail = address.slice(address.lastIndexOf(':') + 1);
  if (tail.includes('.') && !IP4.test(tail)) return false;
  const whole = tail.includes('.') ? `${address.slice(0, -tail.length)}0:0` : address;
  const halves = whole.split('::');
  const groups = halves.flatMap((half) => (half === '' ? [] : half.split(':')));
  const isComplete = halves.length === 1 ? groups.length === 8 : halves.length === 2 && groups.length < 8;
  return isComplete && groups.every((group) => /^[0-9A-Fa-f]{1,4}$/.test(group));
}

/** NAME@HOST: a registered agent. */
export function parseAgentAt(value: unknown): { readonly name: string; readonly host: string } {
  const typed = parseLabel(value, 'an agent address', 640);
  const at = typed.indexOf('@');
  if (at < 1 || at === typed.length - 1) throw new AxError('invalid_argument', 'an agent address looks like NAME@HOST');
  return { name: parseName(typed.slice(0, at), 'an agent name'), host: typed.slice(at + 1) };
}
