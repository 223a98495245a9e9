/**
 * What stands in front of each payload on a stream between two hosts: is it a request or an answer, and to which.
 *
 * Owns five bytes: kind (1 request, 2 answer), then the request's number, big-endian. The opener of a stream asks on it
 * and counts its requests from 1; the other side only answers, in any order. A request with no payload is the link's own
 * keep-alive and is answered with no payload. Frozen with the hello protocol: both channels use it.
 */
import { AxError } from './errors.ts';
import { FRAME_HEADER_BYTES, frameHeader, writeUint32 } from './frame.ts';
import { MAX_FRAME_BYTES } from './limits.ts';

export const CHANNEL_HEADER_BYTES = 5;
/** Largest frame on a stream, bytes: a payload of MAX_FRAME_BYTES and this header. */
export const MAX_CHANNEL_FRAME_BYTES = MAX_FRAME_BYTES + CHANNEL_HEADER_BYTES;
/** Largest payload on the hello channel, whoever sends it, bytes. */
export const MAX_HELLO_BYTES = 4 * 1024;
/** Largest payload on the wire channel from a host that is not paired, bytes: a try to pair is far smaller. */
export const MAX_STRANGER_BYTES = 16 * 1024;
/** Largest request number; a stream that has used it up is replaced by a new one. */
export const MAX_REQUEST_NUMBER = 0xffffffff;

export type ChannelKind = 'request' | 'answer';

export interface ChannelFrame {
  readonly kind: ChannelKind;
  readonly number: number;
  /** A view on the frame's bytes, up to MAX_FRAME_BYTES; may be empty. */
  readonly payload: Uint8Array;
}

/** The header for one payload. */
export function channelHeader(kind: ChannelKind, number: number): Uint8Array {
  return writeHeader(new Uint8Array(CHANNEL_HEADER_BYTES), 0, kind, number);
}

/** All that stands in front of one payload: the frame's header and this one. Throws as frameHeader. */
export function channelFrameHeader(kind: ChannelKind, number: number, payloadBytes: number): Uint8Array {
  const header = frameHeader(CHANNEL_HEADER_BYTES + payloadBytes, MAX_CHANNEL_FRAME_BYTES, CHANNEL_HEADER_BYTES);
  return writeHeader(header, FRAME_HEADER_BYTES, kind, number);
}

function writeHeader(bytes: Uint8Array, at: number, kind: ChannelKind, number: number): Uint8Array {
  bytes[at] = kind === 'request' ? 1 : 2;
  writeUint32(bytes, at + 1, number);
  return bytes;
}

/** Takes a frame of the kind this side of the stream may receive apart; AxError `protocol_violation` for anything else. */
export function parseChannelFrame(frame: Uint8Array, expected: ChannelKind): ChannelFrame {
  if (frame.length < CHANNEL_HEADER_BYTES) throw new AxError('protocol_violation', 'a frame too short for its header');
  const kind = frame[0] === 1 ? 'request' : frame[0] === 2 ? 'answer' : undefined;
  if (kind !== expected) throw new AxError('protocol_violation', `a frame that is no ${expected}`);
  const number = frame[1]! * 2 ** 24 + ((frame[2]! << 16) | (frame[3]! << 8) | frame[4]!);
  if (number === 0) throw new AxError('protocol_violation', 'requests are counted from 1');
  return { kind, number, payload: frame.subarray(CHANNEL_HEADER_BYTES) };
}
