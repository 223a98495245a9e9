/**
 * Many real hosts in one process: cores of the daemon with real links and stores, for a daemon that is to have many peers.
 *
 * Run with `{ folder, peers }` as its last argument; reads one invitation a line on stdin, joins with the next host and says
 * `{ joined, hostId }`. They have no harness and no control socket: nobody but the other host speaks to them.
 */
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { systemClock, systemRandom } from '../../daemon/clock/system.ts';
import { createDaemon } from '../../daemon/daemon.ts';
import { systemFiles } from '../../daemon/files/system.ts';
import { createLibp2pLink } from '../../daemon/link/libp2p.ts';
import { silentLog } from '../../daemon/log.ts';
import { openLmdbStore } from '../../daemon/store/lmdb.ts';
import { hostKeyFromSeed } from '../../protocol/identity.ts';

const ACTOR = { origin: { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'bench' }, session: null };
const { folder } = JSON.parse(process.argv.at(-1) ?? '{}') as { folder: string };

let count = 0;
for await (const code of createInterface({ input: process.stdin })) {
  const name = `peer${(count += 1)}`;
  const key = hostKeyFromSeed(systemRandom.bytes(32));
  const store = await openLmdbStore(join(folder, name));
  const link = createLibp2pLink({ key, listen: ['/ip4/127.0.0.1/tcp/0'], clock: systemClock, log: silentLog });
  const daemon = createDaemon(
    { clock: systemClock, random: systemRandom, store, link, harnesses: [], files: systemFiles, log: silentLog, key },
    { name, announce: [], ax: { program: 'ax' }, control: '', pid: process.pid, onStop: () => process.exit(0) },
  );
  await daemon.start();
  await daemon.call('host.join', { code }, ACTOR);
  process.stdout.write(`${JSON.stringify({ joined: count, hostId: key.hostId })}\n`);
}
process.exit(0);
