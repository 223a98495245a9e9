/**
 * Prints what the last runs of the scenarios saw, as a Markdown table: the last step of `make test-net`.
 *
 * Owns the form only; the rules and the words are the tests'. What has not run here is not made up.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { RESULTS_FOLDER, type Seen } from './world.ts';

const files = existsSync(RESULTS_FOLDER) ? readdirSync(RESULTS_FOLDER).toSorted() : [];
const all = files.flatMap((name) => JSON.parse(readFileSync(join(RESULTS_FOLDER, name), 'utf8')) as Seen[]);
const rows = all.map(({ rule, seen, seconds }) => `| ${rule} | ${seen} | ${seconds} |`);
process.stdout.write(`${['| Scenario | Seen | Seconds |', '| --- | --- | --- |', ...rows].join('\n')}\n`);
