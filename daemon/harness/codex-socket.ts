/**
 * Where Codex's shared daemon is found, and whether its socket may be connected to.
 *
 * Owns the trust in the path: a link of ours (or the socket itself) in a folder of ours, that leads to a socket of ours alone in a real
 * folder of ours alone. Every check is made anew before each connection, and what is connected to is what was checked, not the link.
 * Invariant: nothing is ever connected to that another account could have put there. Nothing here makes, removes or repairs a file.
 */
import { lstat, readlink } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { errorCode, MAX_SOCKET_PATH_BYTES } from './places.ts';

/** The folder of the socket below a Codex home. */
export const CONTROL_FOLDER = 'app-server-control';
const NAME = 'app-server-control.sock';

/** The words for why a socket is not touched. */
export const SOCKET_FAULTS = {
  folder: 'socket folder open to other users',
  link: 'socket link owned by another user',
  chain: 'socket link leads to another link',
  owner: 'socket owned by another user',
  mode: 'socket open to other users',
  type: 'socket path is not a socket',
  long: 'socket path too long',
  unreadable: 'socket path not readable',
} as const;
export type SocketFault = (typeof SOCKET_FAULTS)[keyof typeof SOCKET_FAULTS];

/** `target`: what may be connected to. `absent`: no Codex daemon runs there. */
export type SocketVerdict = { readonly target: string } | { readonly fault: SocketFault } | 'absent';

/** The public path of a home's socket. */
export function socketPath(home: string): string {
  return join(home, CONTROL_FOLDER, NAME);
}

/** Judges the socket of `home` for `uid` now. Never throws. */
export async function findSocket(home: string, uid: number): Promise<SocketVerdict> {
  const path = socketPath(home);
  try {
    const fault = await publicFault(path, uid);
    if (fault !== undefined) return { fault };
    const isLink = (await lstat(path)).isSymbolicLink();
    const target = isLink ? resolve(dirname(path), await readlink(path)) : path;
    return (await targetFault(target, uid)) ?? { target };
  } catch (error) {
    const code = errorCode(error);
    return code === 'ENOENT' || code === 'ENOTDIR' ? 'absent' : { fault: SOCKET_FAULTS.unreadable };
  }
}

/** The folder of the public path and what stands in it. */
async function publicFault(path: string, uid: number): Promise<SocketFault | undefined> {
  const folder = await lstat(dirname(path));
  if (!folder.isDirectory() || folder.uid !== uid || (folder.mode & 0o022) !== 0) return SOCKET_FAULTS.folder;
  const entry = await lstat(path);
  if (entry.uid === uid) return undefined;
  return entry.isSymbolicLink() ? SOCKET_FAULTS.link : SOCKET_FAULTS.owner;
}

async function targetFault(target: string, uid: number): Promise<{ readonly fault: SocketFault } | undefined> {
  const folder = await lstat(dirname(target)); // of the folder itself: a link is no folder
  if (!folder.isDirectory() || folder.uid !== uid || (folder.mode & 0o077) !== 0) return { fault: SOCKET_FAULTS.folder };
  const socket = await lstat(target);
  if (socket.isSymbolicLink()) return { fault: SOCKET_FAULTS.chain };
  if (!socket.isSocket()) return { fault: SOCKET_FAULTS.type };
  if (socket.uid !== uid) return { fault: SOCKET_FAULTS.owner };
  if ((socket.mode & 0o077) !== 0) return { fault: SOCKET_FAULTS.mode };
  return Buffer.byteLength(target, 'utf8') > MAX_SOCKET_PATH_BYTES ? { fault: SOCKET_FAULTS.long } : undefined;
}
