/**
 * Folders of the real file system.
 *
 * Owns nothing but the two system calls; anything that is not an existing, reachable folder is `undefined`.
 */
import { realpath, stat } from 'node:fs/promises';
import type { Files } from './files.ts';

export const systemFiles: Files = {
  async canonicalFolder(path) {
    try {
      const real = await realpath(path);
      return (await stat(real)).isDirectory() ? real : undefined;
    } catch {
      return undefined; // absent, not permitted, a loop of links: for an address all of these are "not there"
    }
  },
};
