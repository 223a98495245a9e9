/**
 * What a daemon is built from: its seams to the world, and what is set for this one.
 *
 * Owns the two types and nothing else. main.ts fills them with the real adapters, the simulation with its own.
 */
import type { HostKey } from '../protocol/identity.ts';
import type { Limits } from '../protocol/limits.ts';
import type { AxCommand } from '../protocol/notice.ts';
import type { Backups } from './backup/backup.ts';
import type { Box } from './box/box.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Files } from './files/files.ts';
import type { Harness } from './harness/harness.ts';
import type { Link } from './link/link.ts';
import type { Log } from './log.ts';
import type { Store } from './store/store.ts';

export interface Seams {
  readonly clock: Clock;
  readonly random: Random;
  readonly store: Store;
  readonly link: Link;
  readonly harnesses: readonly Harness[];
  readonly files: Files;
  readonly log: Log;
  readonly key: HostKey;
  /** Left out where there is no channel for sandboxed sessions. */
  readonly box?: Box;
  /** Left out where nothing can be copied. */
  readonly backups?: Backups;
}

export interface Settings {
  /** How this host calls itself towards others. */
  readonly name: string;
  /** Where others are told to dial this host, as multiaddrs; empty: where it listens. */
  readonly announce: readonly string[];
  /** How its ax is called in notices and printed commands. */
  readonly ax: AxCommand;
  /** Bounds that the owner set; DEFAULT_LIMITS when left out. */
  readonly limits?: Limits;
  /** Largest piece that a body is cut into and handed out in; MAX_PIECE_BYTES when left out. */
  readonly pieceBytes?: number;
  /** For the status: the control socket and the process. */
  readonly control: string;
  readonly pid: number;
  /** Asked to stop by `daemon.stop`. */
  readonly onStop: () => void;
}
