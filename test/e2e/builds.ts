/**
 * Builds of ax with other versions, for tests: the same sources with a few constants replaced, bundled as `make build` does.
 *
 * Owns one temporary folder per build, laid out as an installation, so that its CLI starts its own daemon.
 */
import { build } from 'esbuild';
import type { BuildOptions, Plugin } from 'esbuild';
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './hosts.ts';

/** What is replaced in which source, by path in the project; each must be found. */
export type Changes = Readonly<Record<string, readonly (readonly [found: RegExp, by: string])[]>>;

export interface Build {
  /** For `Host.ax`: this build's CLI on the project's Node. */
  readonly program: readonly string[];
  readonly daemon: string;
}

function replacing(changes: Changes): Plugin {
  return {
    name: 'other-version',
    setup(building) {
      for (const [path, pairs] of Object.entries(changes)) {
        const file = join(ROOT, path);
        building.onLoad({ filter: new RegExp(`${path.replaceAll(/[/.]/g, '\\$&')}$`) }, (asked) => {
          if (asked.path !== file) return undefined;
          let contents = readFileSync(file, 'utf8');
          for (const [found, by] of pairs) {
            if (contents.search(found) < 0) throw new Error(`${path} does not hold ${String(found)}`);
            contents = contents.replace(found, by);
          }
          return { contents, loader: 'ts' };
        });
      }
    },
  };
}

export async function buildAx(folder: string, changes: Changes): Promise<Build> {
  for (const name of ['bin', 'dist']) mkdirSync(join(folder, name), { recursive: true });
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  copyFileSync(join(ROOT, 'bin', 'ax'), join(folder, 'bin', 'ax'));
  writeFileSync(join(folder, 'bin', 'package.json'), '{"type":"commonjs"}');
  const common: BuildOptions = { bundle: true, platform: 'node', target: 'node22', logLevel: 'silent', plugins: [replacing(changes)] };
  const [program, daemon] = [join(folder, 'dist', 'ax.cjs'), join(folder, 'dist', 'daemon.mjs')];
  await Promise.all([
    build({
      ...common,
      entryPoints: [join(ROOT, 'cli', 'main.ts')],
      format: 'cjs',
      outfile: program,
      banner: { js: 'const __moduleUrl = require("node:url").pathToFileURL(__filename).href;' },
      define: { 'import.meta.url': '__moduleUrl', 'import.meta.dirname': '__dirname', 'import.meta.filename': '__filename' },
    }),
    build({ ...common, entryPoints: [join(ROOT, 'daemon', 'main.ts')], format: 'esm', packages: 'external', outfile: daemon }),
  ]);
  return { program: [process.execPath, program], daemon };
}

/** The constants of protocol/version.ts. */
export function versions(ax: string, control: number, peer: number): Changes {
  return {
    'protocol/version.ts': [
      [/AX_VERSION = '[^']+'/, `AX_VERSION = '${ax}'`],
      [/CONTROL_PROTOCOL = \d+/, `CONTROL_PROTOCOL = ${control}`],
      [/\{ min: \d+, max: \d+ \}/, `{ min: ${peer}, max: ${peer} }`],
    ],
  };
}
