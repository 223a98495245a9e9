/**
 * A network of its own for tests: one namespace per host, one for the switch between them, and the faults of a real network.
 *
 * Owns namespaces, cables (veth), addresses and faults. Every cable is made inside the namespaces, so the machine's own network has no
 * part in it: no address, no route, no rule. Loss and delay are netem's where the kernel has it; else loss is a rule of the switch.
 * Invariant: whatever a test did, its namespaces and the processes in them end with it; what a run that was killed left behind goes at
 * the start of the next (a name holds the id and the start of the process that made it).
 */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { delimiter } from 'node:path';
import { killGroup } from '../e2e/processes.ts';
import { NotInstallable } from '../real/install.ts';
import { needTools } from '../real/tools.ts';

const PREFIX = 'axn';
/** Inside the namespaces only: nothing else can have it there. */
const SUBNET = '10.77.0';
const PRIVATE = '192.168.77';
const ENV = { ...process.env, PATH: [process.env['PATH'] ?? '', '/usr/sbin', '/sbin'].join(delimiter) };

interface Ran {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function tryRun(command: string, words: readonly string[], input = ''): Ran {
  return spawnSync(command, words, { encoding: 'utf8', env: ENV, input, timeout: 20_000 });
}

function run(command: string, words: readonly string[], input = ''): string {
  const { status, stdout, stderr } = tryRun(command, words, input);
  if (status !== 0) throw new Error(`${command} ${words.join(' ')}: ${status} ${stderr.trim()}`);
  return stdout;
}

const ip = (...words: string[]): string => run('ip', words);

/** When a process started, as /proc tells it; undefined when it does not run. Same id, other start: another process. */
function startOf(pid: number | 'self'): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
  } catch {
    return undefined; // no such process
  }
}

/** One host's place in the network. */
export interface Station {
  readonly name: string;
  readonly namespace: string;
  /** What a program is started with to run there. */
  readonly prefix: readonly string[];
  /** The switch's end of its cable. */
  readonly port: string;
  /** Its address now, as others see it; of a host behind a router, the router's. */
  address: string;
}

/** Packets of IPv4 from one station to another; ARP is never touched, so a cut is silence and not a missing neighbour. */
export interface Flow {
  readonly from: Station;
  readonly to: Station;
  /** Only the first packet of a TCP connection: as a firewall that lets nobody in. */
  readonly opening?: boolean;
}

export class Net {
  readonly #id = `${PREFIX}-${process.pid}-${startOf('self')}-${randomBytes(3).toString('hex')}`;
  readonly #namespaces: string[] = [];
  readonly #stations: Station[] = [];
  readonly #hub: string;
  #addresses = 0;
  #lossPercent = 0;
  #cuts: readonly Flow[] = [];
  #hasEnded = false;
  readonly #onExit = (): void => this.end();

  /** NotInstallable when this machine cannot have namespaces, or `tools` beyond `ip`. Sweeps what dead runs left. */
  constructor(...tools: readonly 'nft'[]) {
    if (process.platform !== 'linux') throw new NotInstallable(`network namespaces are Linux's; this is ${process.platform}`);
    if (process.getuid?.() !== 0) throw new NotInstallable('network namespaces need root');
    needTools('ip', ...tools);
    sweep();
    this.#hub = `${this.#id}-hub`;
    const made = tryRun('ip', ['netns', 'add', this.#hub]);
    if (made.status !== 0) throw new NotInstallable(`ip netns add: ${made.stderr.trim().split('\n').at(-1)}`);
    this.#namespaces.push(this.#hub);
    process.on('exit', this.#onExit);
    try {
      this.#needKernel(() => ip('-n', this.#hub, 'link', 'add', 'br0', 'type', 'bridge'));
      this.#needKernel(() => ip('-n', this.#hub, 'link', 'add', 'v0', 'type', 'veth', 'peer', 'name', 'v1'));
      ip('-n', this.#hub, 'link', 'del', 'v0');
      ip('-n', this.#hub, 'link', 'set', 'br0', 'up');
      if (tools.includes('nft')) {
        this.#lossPercent = 1;
        this.#needKernel(() => this.#apply());
        this.#lossPercent = 0;
        this.#apply();
      }
    } catch (error) {
      this.end();
      throw error;
    }
  }

  /** A station with a cable to the switch. */
  station(name: string): Station {
    const namespace = this.#namespace(name);
    const port = `p${this.#stations.length}`;
    const address = this.#nextAddress();
    this.#cable(this.#hub, port, namespace);
    ip('-n', this.#hub, 'link', 'set', port, 'master', 'br0', 'up');
    ip('-n', namespace, 'addr', 'add', `${address}/24`, 'dev', 'eth0');
    const station = { name, namespace, prefix: entering(namespace), port, address };
    this.#stations.push(station);
    return station;
  }

  /** A station behind a router that translates its address: it dials out, and nobody can dial in. Needs `nft`. */
  stationBehindRouter(name: string): Station {
    const router = this.station(`${name}-r`);
    const namespace = this.#namespace(name);
    this.#cable(router.namespace, 'lan0', namespace);
    ip('-n', router.namespace, 'addr', 'add', `${PRIVATE}.1/24`, 'dev', 'lan0');
    ip('-n', router.namespace, 'link', 'set', 'lan0', 'up');
    ip('-n', namespace, 'addr', 'add', `${PRIVATE}.2/24`, 'dev', 'eth0');
    ip('-n', namespace, 'route', 'add', 'default', 'via', `${PRIVATE}.1`);
    ip('netns', 'exec', router.namespace, 'sh', '-c', 'echo 1 >/proc/sys/net/ipv4/ip_forward');
    const rules = 'table ip ax {\n chain out {\n  type nat hook postrouting priority 100\n  oifname "eth0" masquerade\n }\n}\n';
    run('ip', ['netns', 'exec', router.namespace, 'nft', '-f', '-'], rules);
    return { ...router, name, namespace, prefix: entering(namespace) };
  }

  /** Gives a station another address; the old one is gone at once. */
  move(station: Station): void {
    // In this order: with the old address go all others of its subnet.
    ip('-n', station.namespace, 'addr', 'del', `${station.address}/24`, 'dev', 'eth0');
    station.address = this.#nextAddress();
    ip('-n', station.namespace, 'addr', 'add', `${station.address}/24`, 'dev', 'eth0');
  }

  /** From here on so many of a hundred packets are lost, each way on every cable; says by what. */
  lose(percent: number): 'netem' | 'nft' {
    if (this.#netem(['loss', `${percent}%`])) return 'netem';
    this.#lossPercent = percent;
    this.#apply();
    return 'nft';
  }

  /** Delays every packet by so much, and a bit more or less; false where the kernel cannot: then a relay has to do it. */
  delay(ms: number, jitterMs: number): boolean {
    return this.#netem(['delay', `${ms}ms`, `${jitterMs}ms`]);
  }

  /** From here on exactly these flows are cut; without any the network is whole. Needs `nft`. */
  cut(...flows: readonly Flow[]): void {
    this.#cuts = flows;
    this.#apply();
  }

  /** Removes everything; safe to call again, and when something is gone already. */
  end(): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    process.off('exit', this.#onExit);
    for (const namespace of this.#namespaces) remove(namespace);
  }

  #namespace(name: string): string {
    const namespace = `${this.#id}-${name}`;
    ip('netns', 'add', namespace);
    this.#namespaces.push(namespace);
    ip('-n', namespace, 'link', 'set', 'lo', 'up');
    return namespace;
  }

  /** A cable from `port` in one namespace to `eth0` in another; neither end is ever outside. */
  #cable(namespace: string, port: string, other: string): void {
    ip('-n', namespace, 'link', 'add', port, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', other);
    ip('-n', other, 'link', 'set', 'eth0', 'up');
  }

  #nextAddress(): string {
    this.#addresses += 1;
    return `${SUBNET}.${this.#addresses}`;
  }

  /** Sets netem on every station's own end, or takes it off; false where the kernel has no netem. */
  #netem(words: readonly string[]): boolean {
    needTools('tc');
    const probe = tryRun('tc', ['-n', this.#hub, 'qdisc', 'add', 'dev', 'br0', 'root', 'netem', 'delay', '1ms']);
    if (probe.status !== 0) return false;
    run('tc', ['-n', this.#hub, 'qdisc', 'del', 'dev', 'br0', 'root']);
    // No loss and no delay is what it does without words.
    for (const { namespace } of this.#stations) run('tc', ['-n', namespace, 'qdisc', 'replace', 'dev', 'eth0', 'root', 'netem', ...words]);
    return true;
  }

  /** The switch's rules, as they are to be now. */
  #apply(): void {
    const cuts = this.#cuts.map(
      ({ from, to, opening }) =>
        `  iifname "${from.port}" oifname "${to.port}" ether type ip ${opening === true ? 'tcp flags & (syn | ack) == syn ' : ''}drop\n`,
    );
    const loss = this.#lossPercent === 0 ? '' : `  ether type ip numgen random mod 100 < ${this.#lossPercent} drop\n`;
    const chain = ` chain through {\n  type filter hook forward priority 0\n${cuts.join('')}${loss} }\n`;
    run('ip', ['netns', 'exec', this.#hub, 'nft', '-f', '-'], `table bridge ax\ndelete table bridge ax\ntable bridge ax {\n${chain}}\n`);
  }

  /** NotInstallable where the kernel lacks what `work` needs. */
  #needKernel(work: () => unknown): void {
    try {
      work();
    } catch (error) {
      throw new NotInstallable(`this kernel cannot: ${(error as Error).message.split('\n')[0]}`, { cause: error });
    }
  }
}

function entering(namespace: string): readonly string[] {
  return ['ip', 'netns', 'exec', namespace];
}

/** Ends what runs in a namespace of ours, then the namespace. */
function remove(namespace: string): void {
  for (const pid of tryRun('ip', ['netns', 'pids', namespace]).stdout.split('\n').map(Number)) if (pid > 1) killGroup(pid);
  tryRun('ip', ['netns', 'del', namespace]);
}

/** Removes the namespaces of runs whose process is gone; those of runs under way stay. */
function sweep(): void {
  for (const line of tryRun('ip', ['netns', 'list']).stdout.split('\n')) {
    const [namespace = ''] = line.split(' ');
    const [, pid, start] = /^axn-(\d+)-(\d+)-/.exec(namespace) ?? [];
    if (pid !== undefined && startOf(Number(pid)) !== start) remove(namespace);
  }
}
