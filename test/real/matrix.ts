/**
 * The matrix of genuine harnesses: one node:test test per cell and version, what each cell saw, and the rule about skips.
 *
 * Owns the fixture that cells of one file share, the notes in the run's output, and the record of what was seen, from which
 * test/real/table.ts renders docs/harnesses.md. A cell is skipped only where its harness cannot be installed (test/ran-before.ts).
 */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { after, test, type TestContext } from 'node:test';
import { ranOrSkipped } from '../ran-before.ts';
import { install, versionsOf, type HarnessName, type Installed } from './install.ts';

/** What was seen in one cell; the order is the one of the file. */
export interface Seen {
  readonly cell: string;
  readonly seen: string;
}

/** One file's results for one version, as written. */
export interface Results {
  readonly harness: HarnessName;
  readonly version: string;
  readonly file: string;
  readonly cells: readonly Seen[];
}

/** Where results are written, one JSON file per test file and version. */
export const RESULTS_FOLDER = join(import.meta.dirname, '..', '..', 'node_modules', '.cache', 'ax-harness-table');

/** Another thing than the harness that a cell needs and that this machine cannot have; skips the cell as NotInstallable does. */
export { NotInstallable } from './install.ts';

export interface Fixture<F> {
  /** Made before the first cell of a version that runs. */
  make(installed: Installed): Promise<F>;
  /** Undoes it after the last cell of the file, also when cells failed. */
  end(fixture: F): Promise<void>;
}

/** One cell: what it does, asserts, and says it saw, in one short sentence without line breaks. */
export type CellBody<F> = (fixture: F, cell: { readonly t: TestContext; readonly installed: Installed }) => Promise<string>;

export interface CellOptions {
  readonly timeoutMs?: number;
  /** False for a cell that is no row of the table and no note of the run. */
  readonly isShown?: boolean;
}

export type DefineCell<F> = (name: string, body: CellBody<F>, options?: CellOptions) => void;

const CELL_LIMIT_MS = 90_000;

/**
 * The cells of one test file, `file` being its `import.meta.filename`. Returns the function that defines one cell; its name is a rule.
 * Call it once per file, at the top.
 */
export function matrix<F = undefined>(harness: HarnessName, file: string, fixture?: Fixture<F>): DefineCell<F> {
  const columns = versionsOf(harness).map((version) => new Column(harness, version, basename(file, '.test.ts'), fixture));
  after(async () => {
    for (const column of columns) await column.end();
  });
  return (name, body, options = {}) => {
    for (const column of columns) {
      if (options.isShown !== false) column.cells.push(name);
      const timeout = options.timeoutMs ?? CELL_LIMIT_MS;
      test(`${harness} ${column.version}: ${name}`, { timeout }, (t) => column.run(t, name, body, options.isShown !== false));
    }
  };
}

class Column<F> {
  readonly version: string;
  /** The cells of the table, in the order of the file. */
  readonly cells: string[] = [];
  readonly #harness: HarnessName;
  readonly #file: string;
  readonly #fixture: Fixture<F> | undefined;
  readonly #seen: Seen[] = [];
  #made: Promise<F> | undefined;

  constructor(harness: HarnessName, version: string, file: string, fixture: Fixture<F> | undefined) {
    this.#harness = harness;
    this.version = version;
    this.#file = file;
    this.#fixture = fixture;
  }

  async run(t: TestContext, name: string, body: CellBody<F>, isShown: boolean): Promise<void> {
    const what = { kind: `${this.#harness} ${this.version}`, file: this.#file, name };
    const seen = await ranOrSkipped(t, what, async () => {
      const installed = await install(this.#harness, this.version);
      this.#made ??= this.#fixture?.make(installed);
      const said = await body((await this.#made) as F, { t, installed });
      assert.match(said, /^[^\n]{1,300}$/, 'a cell says what was seen, in one line');
      return said;
    });
    if (seen === undefined || !isShown) return;
    this.#seen.push({ cell: name, seen });
    t.diagnostic(`${this.#harness} ${this.version} | ${name} | ${seen}`);
  }

  async end(): Promise<void> {
    if (this.#made !== undefined)
      await this.#made.then(
        (made) => this.#fixture?.end(made),
        () => undefined, // its cells have failed with the reason
      );
    if (this.#seen.length === 0) return;
    mkdirSync(RESULTS_FOLDER, { recursive: true });
    const path = join(RESULTS_FOLDER, `${this.#file}-${this.version}.json`);
    // A run of some cells only keeps what the others saw last.
    const before = existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Results).cells : [];
    const cells = this.cells.flatMap((name) => [...this.#seen, ...before].find((one) => one.cell === name) ?? []);
    const results: Results = { harness: this.#harness, version: this.version, file: this.#file, cells };
    writeFileSync(path, `${JSON.stringify(results, null, 2)}\n`);
  }
}
