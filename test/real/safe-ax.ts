/**
 * A copy of the built ax where no agent may write, laid out as `make install` does: rules for a harness are refused for any other place.
 *
 * Owns its folder, beside the cached harnesses or where else no agent may write, and its end. It has a Node of its own; the daemon's packages are
 * the project's.
 */
import assert from 'node:assert/strict';
import {
  accessSync,
  chmodSync,
  constants,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { replaceProblem } from '../../cli/place.ts';
import { join2, ROOT } from '../e2e/hosts.ts';
import type { Bed, Host } from '../e2e/hosts.ts';
import { cacheFolder } from './install.ts';
import { KEYS, Terminal } from './terminal.ts';

export class SafeAx {
  readonly #root: string;
  /** The program, an absolute path: what notices and rules call it. */
  readonly program: string;

  constructor() {
    this.#root = realpathSync(mkdtempSync(join(safeFolder(), 'ax-')));
    this.program = join(this.#root, 'bin', 'ax');
    try {
      this.#fill(join(this.#root, 'lib', 'ax'));
    } catch (error) {
      this.end();
      throw error;
    }
  }

  /** Starts a host's daemon from here; the host ends it. */
  async start(host: Host): Promise<void> {
    const args = ['daemon', 'start', '--listen', '/ip4/127.0.0.1/tcp/0', '--name', host.name];
    const started = await host.ok(args, { program: [this.program] });
    host.pid = Number(started['pid']);
    host.hostId = String(started['host_id']);
  }

  /** Two paired hosts; only the second one runs this ax. */
  async pair(bed: Bed): Promise<readonly [Host, Host]> {
    const [a, b] = [await bed.running('hosta'), bed.host('hostb')];
    await this.start(b);
    await join2(a, b);
    return [a, b];
  }

  /** A person at a terminal of a host runs a line, and says yes when it asks `question`; gives what the terminal showed. */
  async person(host: Host, args: readonly string[], question?: RegExp, more: NodeJS.ProcessEnv = {}): Promise<string> {
    const terminal = new Terminal(this.program, args, { env: { ...host.env, ...more }, cwd: host.home, cols: 160 });
    if (question !== undefined) {
      await terminal.until(question);
      terminal.type(`${KEYS.left}${KEYS.enter}`); // no is preselected
    }
    const { status } = await terminal.ended;
    assert.equal(status, 0, terminal.history());
    return terminal.history();
  }

  end(): void {
    rmSync(this.#root, { recursive: true, force: true });
  }

  #fill(lib: string): void {
    for (const folder of ['bin', 'dist', join('node', 'bin')]) mkdirSync(join(lib, folder), { recursive: true, mode: 0o755 });
    mkdirSync(join(this.#root, 'bin'), { mode: 0o755 });
    for (const file of [
      'package.json',
      'bin/ax',
      'bin/package.json',
      'dist/ax.cjs',
      'dist/plain.cjs',
      'dist/plain.code',
      'dist/whole.cjs',
      'dist/daemon.mjs',
    ]) {
      copyFileSync(join(ROOT, file), join(lib, file));
      chmodSync(join(lib, file), 0o755); // one that a group may write is refused
    }
    symlinkSync(join(ROOT, 'node_modules'), join(lib, 'node_modules'));
    const node = join(lib, 'node', 'bin', 'node');
    copyFileSync(process.execPath, node, constants.COPYFILE_FICLONE);
    writeFileSync(this.program, `#!/bin/sh\nexec '${node}' '${join(lib, 'dist', 'ax.cjs')}' "$@"\n`, { mode: 0o755 });
  }
}

/** The first folder in which such an ax can be made here: that of the harnesses, unless it lies in a temporary folder or a workspace. */
function safeFolder(): string {
  const cache = cacheFolder();
  const isGood = (folder: string): boolean => {
    try {
      accessSync(folder, constants.W_OK);
      return replaceProblem([folder]) === undefined;
    } catch {
      return false; // not there, or not for this user
    }
  };
  return [cache, homedir(), '/usr/local/lib', '/opt', '/var/lib'].find(isGood) ?? cache;
}
