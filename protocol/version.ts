/**
 * The versions ax speaks and is.
 *
 * Owns the product version (kept equal to package.json by a test), the range of peer protocols this build speaks and the
 * version of the control protocol between the CLI and its daemon.
 * The hello exchange is frozen for ever, so that two builds without a common protocol can still say so to each other.
 */

/** Product version, semver. */
export const AX_VERSION = '0.1.0';

/** Peer protocols this build speaks, lowest and highest. */
export const PEER_PROTOCOL = { min: 2, max: 2 } as const;

/** Version of the requests on the control socket. A daemon answers another version with `update_required`. */
export const CONTROL_PROTOCOL = 1;

/** Version of the JSON envelope the CLI prints. */
export const SCHEMA_VERSION = '1';

export interface ProtocolRange {
  readonly min: number;
  readonly max: number;
}

/** The highest protocol both speak, or undefined when the ranges do not meet. */
export function commonProtocol(a: ProtocolRange, b: ProtocolRange): number | undefined {
  const highest = Math.min(a.max, b.max);
  return highest >= Math.max(a.min, b.min) ? highest : undefined;
}
