/**
 * Whether this machine has lost an address of its own: what was connected from there is dead, and no packet will ever say so.
 *
 * Owns the comparison with what the system listed before; libp2p.ts decides what follows. Sends nothing. An address that came
 * changes nothing for the connections there are, so only one that went counts.
 */
import { networkInterfaces } from 'node:os';

/** The addresses of this machine, as the system lists them now; without those of interfaces that are down. */
export function ownAddresses(): ReadonlySet<string> {
  return new Set(Object.values(networkInterfaces()).flatMap((list) => list?.map(({ address }) => address) ?? []));
}

/** A function that says whether an address has gone since it was last called, or made. */
export function watchAddresses(read: () => ReadonlySet<string>): () => boolean {
  let before = read();
  return () => {
    const now = read();
    const hasGone = [...before].some((address) => !now.has(address));
    before = now;
    return hasGone;
  };
}
