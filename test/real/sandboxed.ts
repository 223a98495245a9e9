/**
 * What ax says inside a harness's sandbox, whichever harness it is: the commands that need the daemon, and the one refusal of them all.
 */
import assert from 'node:assert/strict';
import type { Json } from '../e2e/processes.ts';

/** An id that no message has. */
export const NO_MESSAGE = '01m8mgsn08233s2f79x2y0z75t';

/** One line of each command that needs the daemon. */
export const NEED_DAEMON: readonly string[] = [
  'agent setup --name x --workspace .',
  'agent list',
  'agent sessions',
  'agent sandbox-fetch status',
  'agent rename a b',
  'agent remove a',
  'send --to a@hosta hi',
  'send --host hosta --destination-workspace /x --harness codex hi',
  `messages list`,
  `messages show ${NO_MESSAGE}`,
  `messages fetch ${NO_MESSAGE}`,
  `messages reply ${NO_MESSAGE} hi`,
  'host id',
  'host list',
  'host show hosta',
  'host ping hosta',
  'admin status',
  `admin status ${NO_MESSAGE}`,
  `admin cancel ${NO_MESSAGE}`,
  'admin dead',
  `admin retry ${NO_MESSAGE}`,
  'admin events',
  'daemon start',
];

/** What one of them printed with `--format json` is the refusal: exit 3, `sandboxed`, one sentence, and a fix that names the `ways` out. */
export function assertSandboxed(what: string, said: string, status: number, ways: readonly string[]): void {
  const line = said.split('\n').find((one) => one.startsWith('{')) ?? assert.fail(`${what}: ${said}`);
  const { error } = JSON.parse(line) as Json;
  assert.deepEqual([error.code, status], ['sandboxed', 3], `${what}: ${said}`);
  assert.match(error.message, /^a sandbox around this shell lets no command connect to the daemon \(\/.*control\.sock\)$/);
  for (const way of ways) assert.ok(error.fix.includes(way), error.fix);
}
