/**
 * Where a body that was fetched is kept whole: `<state>/fetched/<message id>`, for its owner alone, as long as the message is remembered.
 *
 * Owns the layout and which names there are ax's to remove; the CLI and the daemon both write and prune that folder.
 */
import { isMessageId } from './ids.ts';
import { METADATA_RETENTION_MS } from './limits.ts';

/** Ms since a kept body was written, after which the next fetch removes it. */
export const KEPT_MS = METADATA_RETENTION_MS;

/** What a command or a daemon leaves that is killed while it writes; the word between is made of hexadecimal digits and hyphens. */
const PART = /^\.ax-[0-9a-f-]+\.part$/;

export function keptFolder(stateDir: string): string {
  return `${stateDir}/fetched`;
}

/** A name in that folder that ax gives. What else lies there is somebody's own: the state folder may be any that was named. */
export function isKeptName(name: string): boolean {
  return isMessageId(name) || PART.test(name);
}
