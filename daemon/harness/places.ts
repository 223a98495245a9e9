/**
 * Paths as every harness's adapter meets them: folders as addresses, whose a folder is, how long a socket's path may be.
 *
 * Owns nothing that is one harness's alone. Nothing here throws for what it finds on the disk.
 */
import { realpath, stat } from 'node:fs/promises';
import { isAbsolute, normalize } from 'node:path';
import { hasUnsafeCharacters } from '../../protocol/ids.ts';

/** Longest path of a Unix socket, bytes (Linux; systems with less refuse it by themselves). */
export const MAX_SOCKET_PATH_BYTES = 107;

/** The code of a system error, or '' for anything else. */
export function errorCode(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}

/** Is that an absolute path to a folder of `uid`? Never throws. */
export async function isOwnFolder(path: string, uid: number): Promise<boolean> {
  try {
    const info = await stat(path);
    return isAbsolute(path) && info.isDirectory() && info.uid === uid;
  } catch {
    return false; // not there, or not for us to see
  }
}

/** A recorded folder as an address: canonical, or as recorded when it is gone; what it must not hold made visible. Never throws. */
export async function workspaceOf(folder: string): Promise<{ readonly workspace: string; readonly workspaceUsable: boolean }> {
  return visibleFolder(await canonicalFolder(folder));
}

async function canonicalFolder(folder: string): Promise<string> {
  try {
    return await realpath(folder);
  } catch {
    return folder === '/' ? folder : normalize(folder).replace(/\/+$/, ''); // the folder is gone: as recorded
  }
}

function visibleFolder(folder: string): { workspace: string; workspaceUsable: boolean } {
  if (!hasUnsafeCharacters(folder)) return { workspace: folder, workspaceUsable: true };
  const visible = Array.from(folder, (char) => (hasUnsafeCharacters(char) ? '\ufffd' : char)).join('');
  return { workspace: visible, workspaceUsable: false };
}
