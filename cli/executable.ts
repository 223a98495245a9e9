/**
 * Is this a program that this user can run, and where on a PATH is one of a name?
 *
 * Owns the shell's own rule: a plain file with the right to execute it; what is not one is passed over, and the next folder counts.
 */
import { accessSync, constants, statSync } from 'node:fs';
import { join } from 'node:path';

export function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false; // not there, or not for this user: a shell goes on to the next folder as well
  }
}

/** The first program of that name, an absolute path; undefined when there is none. Relative folders are left out: they mean each workspace. */
export function programOn(folders: readonly string[], name: string): string | undefined {
  return folders
    .filter((folder) => folder.startsWith('/'))
    .map((folder) => join(folder, name))
    .find(isProgram);
}
