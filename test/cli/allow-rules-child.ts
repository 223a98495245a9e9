/**
 * `ax agent allow-rules` for an ax that lies where a test says: the sources lie in a workspace, for which it refuses, rightly.
 *
 * All else is the real command.
 */
import { noun, program } from '../../cli/command.ts';
import { addAllowRules } from '../../cli/commands/allow-rules.ts';
import { tell } from '../../cli/failure.ts';

const word = process.env['TEST_AX_WORD'] ?? 'ax';
const path = word === 'ax' ? '/usr/local/bin/ax' : word;
const args = process.argv.slice(2);
const root = program('0');
// A program that is on every host, and that root alone may write.
addAllowRules(noun(root, 'agent', 'agents', 'ax agent'), () => ({ word, path, files: ['/usr/bin/env'] }));
try {
  await root.parseAsync(args, { from: 'user' });
} catch (error) {
  process.exitCode = await tell(error, args);
}
