/**
 * System tools that a test needs and a fresh machine may lack: bubblewrap and socat for the harnesses' own sandboxes, iproute2 and
 * nftables for networks of several hosts.
 *
 * Gets them with apt-get where this account may and the system has it, once per machine; a test that cannot have them is skipped
 * loudly (test/ran-before.ts). Installs nothing else, and nothing where the tools are there.
 */
import { spawnSync } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { NotInstallable, systemPath } from './install.ts';

/** Which package of Debian brings which program. */
const PACKAGES = { bwrap: 'bubblewrap', socat: 'socat', ip: 'iproute2', tc: 'iproute2', nft: 'nftables' } as const;
export type Tool = keyof typeof PACKAGES;
const LIMIT_MS = 180_000;

/** Makes sure that `tools` are on the PATH. NotInstallable, with the reason, when this machine cannot have them. */
export function needTools(...tools: readonly Tool[]): void {
  const missing = tools.filter((tool) => !isOnPath(tool));
  if (missing.length === 0) return;
  const packages = [...new Set(missing.map((tool) => PACKAGES[tool]))];
  const what = packages.join(' and ');
  if (!isOnPath('apt-get')) throw new NotInstallable(`${what} missing, and this system has no apt-get to get them`);
  if (process.getuid?.() !== 0) throw new NotInstallable(`${what} missing; as root: apt-get install ${packages.join(' ')}`);
  // Two test files may want them at once: apt itself waits for the other's lock.
  for (const words of [['update'], ['install', '-y', '--no-install-recommends', ...packages]]) {
    const run = spawnSync('apt-get', ['-qq', '-o', 'DPkg::Lock::Timeout=120', ...words], {
      env: { ...process.env, PATH: systemPath(), DEBIAN_FRONTEND: 'noninteractive' },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: LIMIT_MS,
      encoding: 'utf8',
    });
    // An update may fail for one source of several: the install decides.
    if (words[0] !== 'update' && run.status !== 0) throw new NotInstallable(`apt-get ${words.join(' ')}: ${lastLine(run.stderr)}`);
  }
  const still = tools.filter((tool) => !isOnPath(tool));
  if (still.length > 0) throw new NotInstallable(`apt-get brought no ${still.join(' and no ')}`);
}

function isOnPath(tool: string): boolean {
  // An account's PATH may lack the folders of the system's own tools.
  return [...systemPath().split(delimiter), '/usr/sbin', '/sbin'].some((folder) => {
    try {
      accessSync(join(folder, tool), constants.X_OK);
      return true;
    } catch {
      return false; // not in this folder
    }
  });
}

function lastLine(text: string | null): string {
  return (text ?? '').trim().split('\n').at(-1) ?? '';
}
