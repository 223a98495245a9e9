/**
 * `make build`: writes the bundle that it gets on stdin to the file it is given, with nothing in it that V8 keeps in two bytes a character.
 *
 * One letter beyond Latin-1 doubles what the source of the daemon takes in memory as long as that runs: 2 MiB. esbuild writes such letters as escapes,
 * but for those in comments, which are replaced here, and in regular expressions. A bundle with one of these is told, and fails the build.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';

const target = process.argv[2] ?? '';
const isComment = (line: string): boolean => /^\s*(\/\/|\/\*|\*)/.test(line);
const lines = readFileSync(0, 'utf8').split('\n');
const odd = lines.filter((line) => /[^\0-\xff]/.test(line) && !isComment(line));
if (odd.length > 0) {
  process.stderr.write(`${target} would take twice its size in memory, for lines such as: ${odd[0]?.slice(0, 200)}\n`);
  process.exit(1);
}
writeFileSync(`${target}.new`, lines.map((line) => (isComment(line) ? line.replaceAll(/[^\0-\x7f]/g, '?') : line)).join('\n'));
renameSync(`${target}.new`, target);
