/**
 * The seam to this host's folders: whether a workspace exists and what its one canonical path is.
 *
 * Owns the interface only. Real: system.ts. A workspace is made canonical once, by the host that owns it; symbolic links,
 * `..` and doubled slashes are one address afterwards.
 */

export interface Files {
  /** The real path of an existing folder, or undefined. Never throws. */
  canonicalFolder(path: string): Promise<string | undefined>;
}
