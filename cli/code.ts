/**
 * The bundle of the plain commands (dist/plain.cjs) as a script of V8, with the code that V8 made of it when it was built.
 *
 * Owns how the two belong together: the first line of the bundle and the first bytes of the code are the same id, so that code is never taken for
 * another source. V8 itself refuses code of another version of it or of other flags; then, or without the file, the source is compiled.
 * The code lies beside the source and nowhere else: whoever may write it may write the program. So there is no cache in a folder of the
 * user's, where an agent could put its own code into commands that run outside of its sandbox.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Script } from 'node:vm';

/** Hexadecimal digits of the id. */
export const ID_LENGTH = 16;

/** What the script gives when it is run: the function that Node calls for a CommonJS module. */
export type ModuleFunction = (exports: object, require: NodeJS.Require, module: NodeJS.Module, filename: string, dirname: string) => void;

/** The first line of a bundle with this id. */
export function firstLine(id: string): string {
  return `/*${id}*/`;
}

export function sourcePath(folder: string): string {
  return join(folder, 'plain.cjs');
}

export function codePath(folder: string): string {
  return join(folder, 'plain.code');
}

/** The script in this folder, with its code where that is there and of this very source. */
export function scriptIn(folder: string): Script {
  const filename = sourcePath(folder);
  const source = readFileSync(filename, 'utf8');
  const cachedData = codeFor(source, codePath(folder));
  return new Script(`(function (exports, require, module, __filename, __dirname) { ${source}\n});`, {
    filename,
    ...(cachedData === undefined ? {} : { cachedData }),
  });
}

function codeFor(source: string, path: string): Buffer | undefined {
  if (!existsSync(path)) return undefined;
  const file = readFileSync(path);
  return source.startsWith(firstLine(file.toString('latin1', 0, ID_LENGTH))) ? file.subarray(ID_LENGTH) : undefined;
}
