/**
 * `make build`: takes the bundle of cli/main.ts on stdin, and writes it and the code that V8 makes of it into the folder it is given.
 *
 * Owns that the two name each other (cli/code.ts), that each is whole when it is there, and what may be in the bundle: modules of Node and, when it is
 * needed, dist/whole.cjs. Run by the Node whose V8 the code is for; any other Node compiles the bundle as it always did.
 */
import { createHash } from 'node:crypto';
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { codePath, firstLine, ID_LENGTH, scriptIn, sourcePath } from '../cli/code.ts';

const folder = process.argv[2] ?? '';
const bundle = readFileSync(0, 'utf8').replaceAll('require("./whole.ts")', 'require("./whole.cjs")');
const loaded = new Set([...bundle.matchAll(/\b(?:require|import)\("([^"]*)"\)/g)].map(([, name]) => name ?? ''));
const odd = [...loaded].filter((name) => !name.startsWith('node:') && name !== './whole.cjs');
if (odd.length > 0 || !loaded.has('./whole.cjs')) {
  process.stderr.write(`dist/plain.cjs must load Node's own modules and whole.cjs, and nothing else: ${odd.join(', ')}\n`);
  process.exit(1);
}

const id = createHash('sha256').update(bundle).digest('hex').slice(0, ID_LENGTH);
rmSync(codePath(folder), { force: true });
put(sourcePath(folder), `${firstLine(id)}\n${bundle}`);
// Every function, not only those that a run of the file itself would reach. The flags are a part of what V8 compares.
setFlagsFromString('--no-lazy');
const script = scriptIn(folder);
setFlagsFromString('--lazy');
put(codePath(folder), Buffer.concat([Buffer.from(id, 'latin1'), script.createCachedData()]));

function put(path: string, content: string | Uint8Array): void {
  writeFileSync(`${path}.new`, content);
  renameSync(`${path}.new`, path);
}
