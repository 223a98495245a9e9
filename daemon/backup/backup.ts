/**
 * The seam to copies of this host's state: a folder that a person keeps elsewhere and restores from.
 *
 * Owns the interface and the record that such a folder carries. Real: folder.ts. The simulation makes no copies.
 */
import type { HostId } from '../../protocol/ids.ts';

/** A file of a backup as it was made. */
export interface BackupFile {
  /** Its path in the folder. */
  readonly name: (typeof BACKUP_FILES)[number];
  readonly bytes: number;
  /** SHA-256, hexadecimal. */
  readonly sha256: string;
}

export const BACKUP_FILES = ['store/data.mdb', 'store/format', 'config.json', 'host.key'] as const;

/** What a backup is of, for people. */
export interface BackupFacts {
  /** Wall time, RFC 3339. */
  readonly made_at: string;
  /** The ax that made it. */
  readonly version: string;
  readonly schema: number;
  readonly host_id: HostId;
  /** The host key is in it: whoever has the folder is this host. */
  readonly with_key: boolean;
}

/** `backup.json`, without its seal: all that the host which made it vouches for. */
export interface BackupRecord extends BackupFacts {
  readonly files: readonly BackupFile[];
}

/**
 * What that host's key signs of a record. Without it, whoever can write where a backup lies could have another store, with other hosts and
 * other rights, restored under this host's key; and LMDB does not survive what was made to harm it.
 */
export function sealedBytes({ made_at, version, schema, host_id, with_key, files }: BackupRecord): Uint8Array {
  const list = files.map(({ name, bytes, sha256 }) => [name, bytes, sha256]);
  return Buffer.from(`ax/1 backup\0${JSON.stringify([made_at, version, schema, host_id, with_key, list])}`, 'utf8');
}

export interface BackupMade extends BackupFacts {
  /** Absolute. */
  readonly path: string;
  /** Size of its files. */
  readonly bytes: number;
}

export interface Backups {
  /**
   * Copies what this host holds at one moment to `folder` (absolute; missing or empty), whole or not at all, for this user only.
   * AxError `invalid_argument` (not absolute, inside the state folder, its parent missing), `invalid_state` (something is there),
   * `store_full`, `internal`.
   */
  make(folder: string, withKey: boolean): Promise<BackupMade>;
}
