/**
 * What nobody can foresee: the border of a frame, the name of a file in the making, a request id.
 *
 * Owns all randomness of the CLI. It comes from the system's own source, read as a file, because to load node:crypto takes a tenth of a command; where
 * there is no such source, from that module.
 */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { makeUuid } from '../protocol/ids.ts';

/** 16 hexadecimal digits that nobody can foresee. */
export function randomWord(): string {
  return Buffer.from(unforeseen(8)).toString('hex');
}

export function newRequestId(): string {
  return makeUuid(unforeseen(16));
}

/** Random bytes from the system's own source; through node:crypto, which takes longer to load than a send has, only where there is none. */
function unforeseen(length: number): Uint8Array {
  return systemBytes(length) ?? process.getBuiltinModule('node:crypto').randomBytes(length);
}

function systemBytes(length: number): Uint8Array | undefined {
  let source: number;
  try {
    source = openSync('/dev/urandom', 'r');
  } catch {
    return undefined; // not there, or not for this user
  }
  try {
    const bytes = new Uint8Array(length);
    // A plain file in its place, as a broken container may have, gives everybody the same.
    return fstatSync(source).isCharacterDevice() && readSync(source, bytes, 0, length, null) === length ? bytes : undefined;
  } finally {
    closeSync(source);
  }
}
