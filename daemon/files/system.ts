/**
 * Folders of the real file system.
 *
 * Owns nothing but the two system calls; anything that is not an existing, reachable folder is `undefined`. Who asks for a folder while it
 * is being looked at shares that look: many messages for one folder arrive in the same turn.
 */
import { realpath, stat } from 'node:fs/promises';
import type { Files } from './files.ts';

const looking = new Map<string, Promise<string | undefined>>();

export const systemFiles: Files = {
  canonicalFolder(path) {
    let look = looking.get(path);
    if (look === undefined) {
      look = canonical(path).finally(() => looking.delete(path));
      looking.set(path, look);
    }
    return look;
  },
};

async function canonical(path: string): Promise<string | undefined> {
  try {
    const real = await realpath(path);
    return (await stat(real)).isDirectory() ? real : undefined;
  } catch {
    return undefined; // absent, not permitted, a loop of links: for an address all of these are "not there"
  }
}
