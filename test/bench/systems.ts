/**
 * What the rows of one run share: the paired daemons, Redis and Postfix, each started when the first row asks for it.
 *
 * Owns their end, which comes however the run ends, and whether the two compared systems can be had: they are installed from Debian where
 * that is possible, and told as missing, loudly, where it is not.
 */
import { accessSync, constants } from 'node:fs';
import { join } from 'node:path';
import { runToEnd } from '../e2e/processes.ts';
import { AxPair } from './ax-pair.ts';
import { startPostfix, startRedis, type Server } from './servers.ts';

/** How long one contestant is measured in one repeat, and what comes before, ms. */
export interface Pace {
  readonly warmMs: number;
  readonly measureMs: number;
  /** A small run for regressions: what takes long is made smaller, and says so. */
  readonly isQuick: boolean;
}

const WARM_MS = 10_000;
const QUICK_WARM_MS = 3000;

export class Systems {
  readonly pace: Pace;
  readonly versions: Record<string, string> = {};
  readonly #mayInstall: boolean;
  #pair: Promise<AxPair> | undefined;
  readonly #servers = new Map<string, Promise<Server | string>>();
  #installed: Promise<string | undefined> | undefined;

  constructor(pace: Pace, mayInstall: boolean) {
    this.pace = pace;
    this.#mayInstall = mayInstall;
  }

  /** Two paired daemons without limits of their own, warm. */
  pair(): Promise<AxPair> {
    return (this.#pair ??= this.#warmPair());
  }

  /** A running Redis, or why there is none. */
  redis(): Promise<Server | string> {
    return this.#server('Redis', 'redis-server', startRedis);
  }

  /** A running Postfix, or why there is none. */
  postfix(): Promise<Server | string> {
    return this.#server('Postfix', 'postfix', startPostfix);
  }

  async end(): Promise<void> {
    // One that did not start has cleaned up after itself, and its row has told why.
    const [pairs, servers] = await Promise.all([Promise.allSettled([this.#pair]), Promise.allSettled(this.#servers.values())]);
    for (const server of servers) if (server.status === 'fulfilled' && typeof server.value !== 'string') server.value.end();
    for (const pair of pairs) if (pair.status === 'fulfilled') await pair.value?.end();
  }

  async #warmPair(): Promise<AxPair> {
    const pair = await AxPair.start();
    await pair.warm(this.pace.isQuick ? QUICK_WARM_MS : WARM_MS);
    return pair;
  }

  #server(name: string, program: string, start: () => Promise<Server>): Promise<Server | string> {
    const found = this.#servers.get(name) ?? this.#start(name, program, start);
    this.#servers.set(name, found);
    return found;
  }

  async #start(name: string, program: string, start: () => Promise<Server>): Promise<Server | string> {
    if (!isOnPath(program)) {
      const failed = await (this.#installed ??= install(this.#mayInstall));
      if (!isOnPath(program)) return `${name} is not available: ${failed ?? 'its package brought no program of that name'}`;
    }
    if (program === 'postfix' && process.getuid?.() !== 0) return `${name} is not available: only root can start it`;
    const server = await start();
    this.versions[name] = server.version;
    return server;
  }
}

function isOnPath(program: string): boolean {
  return ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin'].some((folder) => {
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch {
      return false; // not there
    }
  });
}

/** Starts no service: Debian's own switch for that is set while the packages come in, unless the machine has set one. */
const INSTALL = `
set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\\nexit 101\\n' >$policy
  chmod 755 $policy
  trap 'rm -f $policy' EXIT
fi
apt-get update -q
apt-get install -y -q --no-install-recommends redis-server postfix
`;

/** Installs both from Debian; why not, when it cannot. */
async function install(mayInstall: boolean): Promise<string | undefined> {
  if (!mayInstall) return 'it is not installed (make bench installs it)';
  if (process.getuid?.() !== 0 || !isOnPath('apt-get')) return 'installing it needs root and apt-get';
  process.stdout.write('Installing redis-server and postfix (their services are not started) ...\n');
  const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', DEBIAN_FRONTEND: 'noninteractive', LANG: 'C.UTF-8' };
  const { status, stderr } = await runToEnd('/bin/sh', ['-c', INSTALL], { env, cwd: '/' });
  return status === 0 ? undefined : `apt-get failed: ${stderr.trim().split('\n').at(-1) ?? ''}`;
}
