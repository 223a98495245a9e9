/**
 * The file that is run as `ax` once it is built, dist/ax.cjs: it runs the bundle of cli/main.ts beside it.
 *
 * Owns nothing else: to read code that V8 has made before is quicker than to compile (cli/code.ts). In development, and where tests make
 * one file of the CLI, cli/main.ts is run itself.
 */
import { scriptIn, sourcePath } from './code.ts';
import type { ModuleFunction } from './code.ts';

const run = scriptIn(__dirname).runInThisContext() as ModuleFunction;
run(exports as object, require, module, sourcePath(__dirname), __dirname);
