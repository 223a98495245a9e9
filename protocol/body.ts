/**
 * What a message's body is to a reader: text that can be printed, or something for a file.
 *
 * Owns the two questions, so that both ways of a fetch, with and without a connection, answer them alike. Looks into no meaning.
 */
import { MAX_PRINTED_BYTES } from './limits.ts';

/** Does a body go into a file, with only its head printed (too long) or nothing of it (no text)? */
export function goesIntoFile(body: Uint8Array): boolean {
  return body.length > MAX_PRINTED_BYTES || !isText(body);
}

/** UTF-8 without a NUL: escaped bytes would fill a reader's context and say nothing. */
export function isText(body: Uint8Array): boolean {
  try {
    return !new TextDecoder('utf-8', { fatal: true }).decode(body).includes('\0');
  } catch {
    return false;
  }
}
