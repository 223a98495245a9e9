/**
 * What a daemon says of itself: warnings about its own key, and where others could dial it.
 *
 * Owns no state; both are pure readings of what other parts know.
 */
import type { HostId } from '../protocol/ids.ts';
import type { Greeting } from './greeting.ts';
import type { Naming } from './naming.ts';

/** Sentences about host ids that are alive in two places. */
export function copiedKeyWarnings(greeting: Greeting, naming: Naming): string[] {
  const { copies, self } = greeting.warnings();
  const nameOf = (host: HostId): string => naming.nameOf(host);
  return [
    ...copies.map((host) => `the host id of ${nameOf(host)} is alive in two places: its key was copied`),
    ...(self === undefined ? [] : [`${nameOf(self.by)} sees this host's own id alive in two places: the key was copied`]),
  ];
}

/** Listen addresses another host could dial: loopback and link-local ones only when there is nothing else. */
export function dialable(listen: readonly string[]): readonly string[] {
  const far = listen.filter((address) => !/^\/(ip4\/(127|169\.254)\.|ip6\/(::1\/|fe80:))/.test(address));
  return far.length > 0 ? far : listen;
}
