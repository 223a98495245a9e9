/**
 * A world of a scenario: a network of its own, a daemon per station, and the rule about scenarios that cannot run here.
 *
 * Owns the order of the end (daemons, then namespaces), and the record of what each scenario saw, which test/net/table.ts renders. The
 * daemons are real processes inside the namespaces; the CLI reaches them over their control sockets, which lie in the file system.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { after, suite, test, type TestContext } from 'node:test';
import { Bed, join2, type Host } from '../e2e/hosts.ts';
import { killGroup } from '../e2e/processes.ts';
import { ranOrSkipped } from '../ran-before.ts';
import { Net, type Station } from './namespaces.ts';

export interface Seen {
  readonly rule: string;
  readonly seen: string;
  readonly seconds: number;
}

/** Where results are written, one JSON file per test file. */
export const RESULTS_FOLDER = join(import.meta.dirname, '..', '..', 'node_modules', '.cache', 'ax-net-table');

/** Only ends what hangs: most of them take less than a tenth of it. */
const SCENARIO_LIMIT_MS = 300_000;
/** Scenarios of one file that run at the same time: they wait far more than they compute. */
const AT_ONCE = 4;
const PORT = 'tcp/19264'; // in a namespace of its own nothing else can have it

/** A host and its place in the network. */
export interface Machine {
  readonly host: Host;
  readonly station: Station;
}

export class World {
  readonly net: Net;
  readonly bed = new Bed();
  readonly #helpers: number[] = [];

  constructor(...tools: readonly 'nft'[]) {
    try {
      this.net = new Net(...tools);
    } catch (error) {
      void this.bed.end();
      throw error;
    }
  }

  /** A running host; behind a router that lets nobody in, when told so. */
  async machine(name: string, isBehindRouter = false): Promise<Machine> {
    const station = isBehindRouter ? this.net.stationBehindRouter(name) : this.net.station(name);
    const host = this.bed.host(name, { prefix: station.prefix, listen: `/ip4/0.0.0.0/${PORT}` });
    await host.start({ direct: true });
    return { host, station };
  }

  /** Two running hosts, paired by an invite of the first. */
  async pair(first = 'hosta', second = 'hostb'): Promise<readonly [Machine, Machine]> {
    const [a, b] = await Promise.all([this.machine(first), this.machine(second)]);
    await join2(a.host, b.host);
    return [a, b];
  }

  /** A relay that delays, in a station of its own; gives the address at which it stands for `to`. */
  async relay(to: Machine, delayMs: number, jitterMs: number): Promise<string> {
    const station = this.net.station(`${to.station.name}-l`);
    const [command, ...words] = [...station.prefix, process.execPath, join(import.meta.dirname, 'relay.ts')];
    const target = `${to.station.address}:${PORT.slice(4)}`;
    const child = spawn(command, [...words, String(delayMs), String(jitterMs), target], { stdio: ['ignore', 'pipe', 'inherit'] });
    if (child.pid !== undefined) this.#helpers.push(child.pid);
    const port = await new Promise<string>((resolve, reject) => {
      child.once('exit', (status) => reject(new Error(`the relay ended with ${status}`)));
      child.stdout.setEncoding('utf8').once('data', (text: string) => resolve(text.trim()));
    });
    return `/ip4/${station.address}/tcp/${port}`;
  }

  async end(): Promise<void> {
    for (const pid of this.#helpers) killGroup(pid);
    await this.bed.end();
    this.net.end();
  }
}

/** Where a machine's daemon can be dialled. */
export function addressOf({ station }: Machine): string {
  return `/ip4/${station.address}/${PORT}`;
}

export interface ScenarioOptions {
  /** Programs it needs beyond `ip`. */
  readonly tools?: readonly 'nft'[];
  /** False for what is no row of the table. */
  readonly isShown?: boolean;
}

/** Says what was seen, in one line. */
type ScenarioBody = (world: World, t: TestContext) => Promise<string>;
type DefineScenario = (rule: string, body: ScenarioBody, options?: ScenarioOptions) => void;

/** The scenarios of one test file, `file` being its `import.meta.filename`; each gets a world of its own, several run at once. */
export function scenarios(file: string, define: (scenario: DefineScenario) => void): void {
  const name = basename(file, '.test.ts');
  const rules: string[] = [];
  const all: Seen[] = [];
  after(() => {
    if (all.length === 0) return;
    const path = join(RESULTS_FOLDER, `${name}.json`);
    // A run of some of them keeps what the others saw last.
    const known = [...all, ...(existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Seen[]) : [])];
    mkdirSync(RESULTS_FOLDER, { recursive: true });
    const rows = rules.flatMap((rule) => known.find((one) => one.rule === rule) ?? []);
    writeFileSync(path, `${JSON.stringify(rows, null, 2)}\n`);
  });
  suite(name, { concurrency: AT_ONCE }, () =>
    define((rule, body, { tools = ['nft'], isShown = true }: ScenarioOptions = {}) => {
      rules.push(rule);
      test(rule, { timeout: SCENARIO_LIMIT_MS }, async (t) => {
        const began = performance.now();
        const seen = await ranOrSkipped(t, { kind: 'namespaces', file: name, name: rule }, async () => {
          const world = new World(...tools);
          t.after(() => world.end());
          return body(world, t);
        });
        if (seen === undefined || !isShown) return;
        const seconds = Math.round((performance.now() - began) / 100) / 10;
        all.push({ rule, seen, seconds });
        t.diagnostic(`namespaces | ${rule} | ${seen} (${seconds} s)`);
      });
    }),
  );
}
