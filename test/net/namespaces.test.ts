/** The network of the scenarios itself: it stands apart from the machine's, and leaves nothing behind however a run ends. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { isAlive } from '../e2e/processes.ts';
import { Net } from './namespaces.ts';
import { scenarios } from './world.ts';

const ip = (...words: string[]): string => spawnSync('ip', words, { encoding: 'utf8' }).stdout;
/** Links, addresses and routes of the machine's own network, without what counts or runs down by itself. */
const ownNetwork = (): string => ['link', 'addr', 'route'].map((what) => ip('-o', what).replace(/\d+sec/g, '')).join('\n');

/** A run that makes a network and a process in it, says so, and goes on until it is killed. */
const RUN = `
  import { spawn } from 'node:child_process';
  import { Net } from ${JSON.stringify(new URL('./namespaces.ts', import.meta.url).href)};
  const [command, ...words] = new Net().station('a').prefix;
  const inside = spawn(command, [...words, 'sleep', '300'], { stdio: 'ignore' });
  inside.once('spawn', () => process.stdout.write(String(inside.pid)));
  setInterval(() => undefined, 1000);
`;

scenarios(import.meta.filename, (scenario) => {
  scenario(
    "nothing of a network is in the machine's own: no link, no address, no route",
    async (world) => {
      const before = ownNetwork();
      world.net.station('more');
      world.net.lose(20);
      assert.equal(ownNetwork(), before);
      assert.match(ip('-n', world.net.station('another').namespace, '-o', 'addr'), /10\.77\.0\.2/);
      return 'links, addresses and routes of the machine are as they were';
    },
    { isShown: false },
  );

  scenario(
    'what a killed run left behind goes with the next, its processes too; what a live run uses stays',
    async (world, t) => {
      const mine = world.net.station('mine').namespace;
      const run = spawn(process.execPath, ['--no-warnings', '--input-type=module', '-e', RUN], { stdio: ['ignore', 'pipe', 'inherit'] });
      t.after(() => run.kill('SIGKILL'));
      const [inside] = (await once(run.stdout, 'data')) as [Buffer];
      const left = (): string[] =>
        ip('netns', 'list')
          .split('\n')
          .filter((line) => line.startsWith(`axn-${run.pid}-`));
      assert.deepEqual([left().length, isAlive(Number(inside))], [2, true]);
      run.kill('SIGKILL');
      await once(run, 'exit');
      new Net().end(); // or that of a test which runs meanwhile, a moment ago
      assert.deepEqual([left(), isAlive(Number(inside))], [[], false]);
      assert.ok(ip('netns', 'list').includes(mine));
      return 'gone';
    },
    { isShown: false },
  );
});
